"""A shared command runs what the model's modality brings; what that does not have or read is refused, never passed
over."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import tiny_folders
import unmask
from commands import exit_code, run
from unmask.cli import main
from unmask.cli.app import COMMANDS, build
from unmask.cli.dispatch import command_of, flags, read_words
from unmask.cli.options import there
from unmask.errors import UserError
from unmask.plugins import resolve
from unmask.registry import modalities


@pytest.mark.parametrize(
    ("command", "kind", "hint"),
    [
        (("evaluate", "MODEL", "data"), "events", "--labels"),
        (("finetune", "classify", "MODEL", "data", "--out", "x"), "table", "text, images and events"),
        (("predict", "MODEL", "data", "--out", "x"), "table", "text, images and events"),
    ],
)
def test_a_command_that_a_kind_does_not_have(tmp_path, capsys, monkeypatch, command, kind, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
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
        ("evaluate MODEL data", "text images table", "--lenient"),
        ("evaluate glue data", "glue", "--ratio 0.2"),
        ("finetune classify MODEL data --out f", "images", "--seeds 2"),
        ("finetune outcome MODEL data --out f", "events", "--seeds 2"),
        ("finetune classify MODEL data --out f", "images", "--metric f1"),
        ("finetune outcome MODEL data --out f", "events", "--metric f1"),
        ("finetune classify MODEL data --out f", "images", "--adapt f"),
        ("finetune outcome MODEL data --out f", "events", "--adapt f"),
        ("finetune classify MODEL data --out f", "images", "--label l"),
        ("finetune outcome MODEL data --out f", "events", "--label l"),
        ("finetune outcome MODEL data --out f", "events", "--validation f"),
        ("finetune classify MODEL data --out f", "text images", "--labels f"),
        ("finetune next-visit MODEL data --out f", "events", "--labels f"),
    ],
)
def test_a_flag_that_a_kind_does_not_read_is_refused(tmp_path, capsys, command, kinds, flags):
    for kind in kinds.split():
        about = {"kind": "text", "task": {"name": "classify"}} if kind == "tuned" else {"kind": kind}
        (tmp_path / "unmask.json").write_text(json.dumps(about))
        with pytest.raises(SystemExit) as stop:
            main([*command.replace("MODEL", str(tmp_path)).split(), *flags.split()])
        assert stop.value.code == 2
        err = capsys.readouterr().err
        assert err.startswith(f"unmask: {flags.split()[0]}: not read for ")
        if (kind, flags) == ("images", "--adapt f"):  # it was said to be for classify, which was asked for
            assert "It is for classify of text, " in err


@pytest.mark.parametrize(
    ("words", "listed", "absent"),
    [
        ("fill MODEL", "--top", "--box"),
        ("fill --json MODEL x", "--top", "--box"),
        ("finetune tag", "--adapt", "--text2"),
        ("finetune classify MODEL", "--label", "--labels"),
        ("evaluate glue", "--model", "--ratio"),
        ("evaluate MODEL", "--ratio", "--most-unknown"),
        ("export MODEL --to hf", "--dtype", "--quantize"),
        ("pretrain text", "--minutes", "--duration"),
    ],
)
def test_help_lists_what_the_case_reads_and_nothing_else(tmp_path, capsys, words, listed, absent):
    code, out, _ = run(capsys, *words.replace("MODEL", str(tmp_path)).split(), "--help")
    assert code == 0
    assert f"  {listed} " in out
    assert f"  {absent} " not in out


def test_a_command_without_its_words_says_where_to_look(capsys):
    code, _, err = run(capsys, "fill", "--top", "3")
    assert code == 2
    assert "unmask fill --help" in err


def test_words_are_told_from_the_values_of_options():
    def first(model: str, top: int = 3, gaps: bool = False) -> None: ...

    def second(model: str, top: bool = False) -> None: ...

    commands = {"one": command_of(first, "fill")}
    one = flags(commands)
    assert read_words(["--top", "5", "M", "--gaps", "t"], one) == (["M", "t"], {"--top": "5", "--gaps": ""})
    assert read_words(["--top=5", "M", "--", "--gaps"], one) == (["M", "--gaps"], {"--top": "5"})
    both = flags(commands | {"two": command_of(second, "fill")})
    assert both["--top"] is None
    assert read_words(["M", "--top", "5"], both, 1)[0] == ["M"]
    with pytest.raises(UserError, match="--top before the model"):
        read_words(["--top", "5", "M"], both, 1)


@pytest.mark.parametrize("most", ["0", "-1"])
def test_evaluate_takes_one_document_or_more(tmp_path, capsys, monkeypatch, most):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "unmask.json").write_text('{"kind": "text"}')
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(tmp_path), "data", "--most", most])
    assert stop.value.code == 2
    assert f"--most {most}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fill text.txt MODEL", "unmask fill MODEL text.txt"),
        ("predict text.txt MODEL --out o.jsonl", "unmask predict MODEL text.txt --out o.jsonl"),
        ("impute text.txt MODEL --out text.txt", "unmask impute MODEL text.txt --out text.txt"),
        (
            "finetune classify --seed 1 text.txt MODEL --out o",
            "unmask finetune classify --seed 1 MODEL text.txt --out o",
        ),
        ("finetune MODEL classify text.txt --out o", "unmask finetune classify MODEL text.txt --out o"),
        ("finetune MODEL text.txt --out o", "unmask finetune TASK MODEL text.txt --out o, where TASK is classify, tag"),
    ],
)
def test_words_in_another_order_are_put_into_order(tmp_path, capsys, monkeypatch, words, said):
    """`lm: no suffix` was said of a model where the data belongs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "MODEL").mkdir()
    (tmp_path / "MODEL" / "unmask.json").write_text('{"kind": "text"}')
    (tmp_path / "text.txt").write_text("a text\n")
    code, _, err = run(capsys, *words.split())
    assert (code, said in err) == (2, True), err


WRONG = [
    "pretrain text no/t.txt --out o",
    "pretrain table no/t.csv --out o",
    "pretrain images no/p --out o",
    "pretrain events no/m --out o",
    "pretrain text HERE --out o --config no/c.toml",
    "pretrain table HERE --out o --schema no/c.toml",
    "prepare text no/t.txt --out o",
    "prepare events no/m --out o",
    "adapt M/text no/t.txt --out o",
    "adapt no/m/m HERE --out o",
    "adapt M/text HERE --general no/t.txt --out o",
    "finetune classify no/m/m HERE --out o",
    "finetune tag M/text no/t.conll --out o",
    "finetune classify M/text HERE --validation no/t.csv --out o",
    "finetune classify M/images no/p --out o",
    "finetune outcome M/events no/m --labels HERE --out o",
    "finetune outcome M/events HERE --labels no/m --out o",
    "predict M/text no/t.csv --out o.jsonl",
    "predict M/images no/p --out o.jsonl",
    "predict M/events no/m --labels HERE --out o.parquet",
    "fill no/m/m [MASK]",
    "fill M/text no/t.txt",
    "fill M/images no/p --out o.png",
    "fill M/table no/t.csv --out o.csv",
    "fill M/events no/m --out o.parquet",
    "ask M/events no/m Q --out o.parquet",
    "generate no/m/m",
    "impute M/table no/t.csv --out o.csv",
    "impute no/t.csv --proper 2 --out o.csv",
    "synthesize no/m/m --rows 2 --out o.csv",
    "augment M/table no/t.csv --rows 2 --where a>1 --out o.csv",
    "score M/text no/t.txt",
    "score M/table no/t.csv",
    "score M/images no/p",
    "score M/events no/m",
    "embed M/text no/t.txt --out o.npy",
    "embed M/table no/t.csv --out o.npy",
    "embed M/images no/p --out o.npy",
    "embed M/events no/m --out o.npy",
    "evaluate M/text no/t.txt",
    "evaluate M/table no/t.csv",
    "evaluate M/images no/p",
    "evaluate M/events no/m --labels HERE",
    "zeroshot M/text no/t.txt --label a --label b",
    "export no/m/m --out o",
    "surgery no/m/m --out o",
    "inspect no/m/m",
    "serve no/m/m",
    "describe no/t.csv",
    "describe no/p.png",
    "events convert no/e.csv --out o",
    "events audit no/m",
]


WRONG_OPTIONS = [
    "pretrain text HERE --out o --set leraning_rate=1",
    "pretrain images HERE --out o --set leraning_rate=1",
    "pretrain events HERE --out o --set leraning_rate=1",
    "pretrain table HERE --out o --set leraning_rate=1",
    "pretrain text HERE --out o --recipe brt",
    "finetune clasify M/text HERE --out o",
    "fill M/text [MASK] --out no/o.jsonl",
    "predict M/text HERE --out no/o.jsonl",
    "predict M/images HERE --out no/o.jsonl",
    "impute M/table HERE --out no/o.csv",
    "synthesize M/table --rows 2 --out no/o.csv",
]


@pytest.mark.parametrize(("commands", "said", "heavy"), [(WRONG, ": no such", "numpy"), (WRONG_OPTIONS, "", "torch")])
def test_a_wrong_path_or_option_is_told_before_anything_heavy_is_imported(tmp_path, commands, said, heavy):
    """Five to eight seconds went by, of which torch took most."""
    for kind in ("text", "table", "images", "events"):
        (tmp_path / "M" / kind).mkdir(parents=True)
        (tmp_path / "M" / kind / "unmask.json").write_text(json.dumps({"kind": kind}))
    (tmp_path / "HERE").mkdir()
    check = """
import contextlib, io, json, sys
from unmask.cli import main
commands, heavy = json.load(sys.stdin)
found = []
for words in commands:
    with contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main(words.split())
        except SystemExit as stop:
            found.append([words, stop.code, err.getvalue(), heavy in sys.modules])
print(json.dumps(found))
"""
    given = json.dumps([commands, heavy])
    done = subprocess.run(
        [sys.executable, "-c", check], input=given, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    found = json.loads(done.stdout)
    assert [words for words, *_ in found] == commands
    assert [(words, code, err) for words, code, err, _ in found if code != 2 or said not in err] == []
    assert [words for words, *_, there in found if there] == []


def test_all_that_is_read_is_declared_as_such():
    """Else a wrong path is told late."""
    others = {"task", "questions", "kind"}  # no places
    found = set()
    for kind, one in modalities().items():
        every = [(name, case.run) for name in one.commands for case in one.cases(name).values()]
        for name, function in [*every, *one.tools.items()]:
            for parameter in command_of(resolve(function), name).params:
                if parameter.param_type_name == "argument" and parameter.callback is None:
                    found.add((kind, name, parameter.name))
    assert {(kind, name, argument) for kind, name, argument in found if argument not in others} == {
        ("text", "evaluate", "model")  # the word glue
    }


def test_unmask_alone_shows_a_way_in_for_each_kind(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys)
    assert code == 0
    assert len(out.splitlines()) <= 20
    for kind, one in modalities().items():
        assert [command for command in one.first[1:] if f"  {command}\n" in out] == list(one.first[1:]), kind
    known = set(build().list_commands(None))
    assert {line.split()[1] for line in out.splitlines() if line.startswith("  unmask ")} <= known


@pytest.mark.parametrize("words", [(), ("--help",), ("pretrain", "--help"), ("events", "--help")])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_help_is_cut(capsys, monkeypatch, words, width):
    """`unmask --help` cut 20 of its 24 lines."""
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = run(capsys, *words)
    assert (code, "..." in out.replace("]...", "")) == (0, False)
    lines = [line for line in out.splitlines() if not line.startswith("  unmask ")]
    assert max(map(len, lines)) <= max(width, 50)  # click's narrowest
    if words == ("--help",):
        helps = (build().get_command(None, name).help for name in COMMANDS)
        assert {word for help in helps for word in help.partition("\n\n")[0].split()} <= set(out.split())


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("t.txt", "a text\n", "text"),
        ("c.csv", "age,crp\n1,2\n", "table"),
        ("e.csv", "subject_id,time,code\n1,2020-01-01,a\n", "events"),
        ("l.csv", "text,label\na text,b\n", "text"),
    ],
)
def test_a_kind_that_is_left_out_is_told_by_the_data(tmp_path, capsys, name, content, kind):
    (tmp_path / name).write_text(content)
    code, _, err = run(capsys, "pretrain", "--steps", "many", tmp_path / name, "--out", "o")
    assert code == 2
    assert err.startswith(f"{tmp_path / name} is taken for {kind}: unmask pretrain {kind} --steps many ")


def test_a_kind_that_the_data_does_not_tell_is_asked_for(tmp_path, capsys):
    (tmp_path / "both.csv").write_text("text,age,crp\na text,1,2\n")
    for words, said in (
        (["pretrain", tmp_path / "both.csv"], "one of text, table, images, events before the data"),
        (["pretrain", "image"], "Did you mean 'images'?"),
        (["pretrain", tmp_path / "no.csv"], "no such file or folder"),
        (["prepare", Path(__file__).parent.parent / "picture_files.py"], "one of text"),
    ):
        code, _, err = run(capsys, *words, "--out", "o")
        assert (code, said in err) == (2, True), err


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a model of texts, one of a table, and data for them."""
    home = tmp_path_factory.mktemp("models")
    tiny_folders.folder(home / "text")
    frame = "age,crp\n" + "".join(f"{i % 29},{'' if i % 5 == 0 else i % 7}\n" for i in range(60))
    (home / "t.csv").write_text(frame)
    unmask.TableModel.fit(str(home / "t.csv"), steps=0, members=2).save(home / "table")
    return home


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("words", "rows"),
    [
        ("fill M/text", 1),
        ("generate M/text --length 3 --number 2", 2),
        ("impute M/table M/t.csv", 61),
        ("impute M/table -", 61),
        ("fill M/table M/t.csv", 61),
        ("synthesize M/table --rows 4", 5),
        ("augment M/table M/t.csv --rows 4 --where age>3", 65),
    ],
)
def test_rows_go_to_standard_output_alone(models, capfdbinary, monkeypatch, words, rows):
    """`--out -` wrote a file whose name was a dash."""
    monkeypatch.chdir(models)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO((models / "t.csv").read_bytes())))
    given = [word.replace("M/", f"{models}/") for word in words.split()]
    given += ["the quick [MASK] fox"] if words == "fill M/text" else []
    assert exit_code(*given, "--out", "-") == 0
    out, err = capfdbinary.readouterr()
    assert len(out.decode().splitlines()) == rows, err
    assert out.startswith((b'{"', b"age,crp"))
    assert not (models / "-").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("embed MODEL HERE --out -", "--out -: no rows of text are written here"),
        ("pretrain text HERE --out -", "--out -: no rows of text are written here"),
        ("fill MODEL [MASK] --out - --json", "--out - with --json: both go to standard output"),
        ("impute MODEL HERE --draws 2 --out -", "--out - with --draws: several tables"),
        ("pretrain images - --out o", "-: standard input is not read here"),
    ],
)
def test_what_is_not_rows_does_not_go_to_standard_output(tmp_path, capsys, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    for name in ("MODEL", "HERE"):
        (tmp_path / name).mkdir()
    (tmp_path / "MODEL" / "unmask.json").write_text('{"kind": "text"}')
    code, out, err = run(capsys, *words.split())
    assert (code, out, said in err) == (2, "", True), err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["HERE", "MODEL"]


def test_a_text_or_standard_input_takes_the_place_of_a_file(monkeypatch):
    check = there("texts", text=True, stdin=".txt")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"one\ntwo\n")))
    assert Path(check("-")).read_text() == "one\ntwo\n"
    assert json.loads(Path(check("I liked\nit")).read_text()) == {"text": "I liked\nit"}
    with pytest.raises(UserError, match="no such file"):
        check("texts/no.txt")
