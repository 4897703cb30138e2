"""A command that a kind of model does not have says so; it never falls through to another kind's."""

from __future__ import annotations

import json

import pytest
import typer

from unmask.cli import build, embed, evaluate, fill, finetune, main, predict, score


@pytest.mark.parametrize(
    ("command", "kind", "hint"),
    [
        (("score", "MODEL", "data"), "images", "text, tables and events"),
        (("evaluate", "MODEL", "data"), "events", "--labels"),
        (("finetune", "classify", "MODEL", "data", "--out", "x"), "table", "text, images and events"),
        (("predict", "MODEL", "data", "--out", "x"), "table", "text, images and events"),
    ],
)  # fmt: skip
def test_a_command_that_a_kind_does_not_have(tmp_path, capsys, command, kind, hint):
    (tmp_path / "unmask.json").write_text(json.dumps({"kind": kind}))
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path) if part == "MODEL" else part for part in command])
    err = capsys.readouterr().err
    assert stop.value.code == 2
    assert str(tmp_path) in err
    assert hint in " ".join(err.split())


@pytest.mark.parametrize(
    ("command", "kinds", "flags"),
    [
        ("fill MODEL data", "images events table", "--candidate x"),
        ("fill MODEL data", "images table", "--top 3"),
        ("fill MODEL data", "events table", "--steps 2"),
        ("fill MODEL data", "text events table", "--box 1,1,2,2"),
        ("fill MODEL data", "text images events", "--draws 2"),
        ("fill MODEL data", "text images table", "--level 0.5"),
        ("score MODEL data", "text table", "--by visit"),
        ("score MODEL data", "text table", "--out f"),
        ("score MODEL data", "table", "--mode unit"),
        ("embed MODEL data --out f", "events table", "--pooling mean"),
        ("predict MODEL data --out f", "text images", "--labels f"),
        ("predict MODEL data --out f", "images events", "--text t"),
        ("evaluate MODEL data", "text images table", "--out f"),
        ("evaluate MODEL data", "text images", "--rows 5"),
        ("evaluate MODEL data", "text", "--report f"),
        ("evaluate MODEL data", "images table tuned", "--ratio 0.15"),
        ("evaluate MODEL data", "images table tuned", "--column t"),
        ("evaluate MODEL data", "table tuned", "--most 5"),
        ("evaluate glue data", "glue", "--ratio 0.2"),
        ("finetune classify MODEL data --out f", "images events", "--seeds 2"),
        ("finetune classify MODEL data --out f", "images events", "--metric f1"),
        ("finetune classify MODEL data --out f", "images events", "--adapt f"),
        ("finetune classify MODEL data --out f", "images events", "--label l"),
        ("finetune classify MODEL data --out f", "images events", "--resume"),
        ("finetune outcome MODEL data --out f", "events", "--validation f"),
        ("finetune classify MODEL data --out f", "text images", "--labels f"),
        ("finetune next-visit MODEL data --out f", "events", "--labels f"),
    ],
)  # fmt: skip
def test_a_flag_that_a_kind_does_not_read_is_refused(tmp_path, capsys, command, kinds, flags):
    for kind in kinds.split():
        about = {"kind": "text", "task": {"name": "classify"}} if kind == "tuned" else {"kind": kind}
        (tmp_path / "unmask.json").write_text(json.dumps(about))
        with pytest.raises(SystemExit) as stop:
            main([*command.replace("MODEL", str(tmp_path)).split(), *flags.split()])
        assert stop.value.code == 2
        assert capsys.readouterr().err.startswith(f"unmask: {flags.split()[0]}: not read for ")


@pytest.mark.parametrize("module", [embed, evaluate, fill, finetune, predict, score])
def test_what_kinds_read_are_flags_of_the_command(module):
    command = typer.main.get_command(build()).commands[module.__name__.rpartition(".")[2]]
    assert set(" ".join(module.READS.values()).split()) <= {parameter.name for parameter in command.params}


@pytest.mark.parametrize("most", ["0", "-1"])
def test_evaluate_takes_one_document_or_more(tmp_path, capsys, most):
    (tmp_path / "unmask.json").write_text('{"kind": "text"}')
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(tmp_path), "data", "--most", most])
    assert stop.value.code == 2
    assert f"--most {most}" in capsys.readouterr().err
