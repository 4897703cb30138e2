"""Every flag that a kind's help lists is used there: nonsense for it is refused. Every other flag is refused and not
listed."""

import json
import re

import pytest

import tiny_folders
import unmask
from commands import run
from unmask.cli.dispatch import readers_of
from unmask.registry import modalities

NONSENSE = {
    "precision": "fp7",
    "device": "abacus",
    "mode": "?",
    "order": "?",
    "pooling": "?",
    "to": "?",
    "dtype": "?",
    "quantize": "?",
    "by": "?",
    "set_": "no_such_key=1",
    "config": "no.toml",
    "out": "no/such/folder/f",
    "validation": "no.csv",
    "labels": "no",
    "text": "no column",
    "text2": "no column",
    "label": "no column",
    "column": "no column",
    "metric": "?",
    "seeds": "x",
    "seed": "-1",
    "steps": "0",
    "epochs": "0",
    "minutes": "0",
    "ratio": "7",
    "most": "0",
    "longest": "0",
    "adapt": "no.txt",
    "texts": "no.txt",
    "top": "0",
    "temperature": "-1",
}
"""Values that no command can do with; flags without a value, and --candidate, have none."""
DATA = {
    "fill": "The [MASK] fox.",
    "score": "The fox.",
    "embed": "The fox.",
    "evaluate": "DATA",
    "predict": "DATA",
    "finetune": "DATA",
    "export": None,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("flags")
    model = tiny_folders.folder(path / "model")
    rows = tiny_folders.sentiment(8)
    unmask.finetune(model, rows, task="classify", out=path / "classify", steps=1, precision="fp32", device="cpu")
    (path / "data.csv").write_text("text,label\n" + "".join(f"{t},{label}\n" for t, label in rows))
    return path


def readers(name):
    """Case -> the options that its command reads, by parameter."""
    cases = [pair for one in modalities().values() for pair in readers_of(one, name).items()]
    return {
        case: {p.name: p.opts[0] for p in command.params if p.param_type_name == "option"} for case, command in cases
    }


def listed():
    """(command, case, parameter, option) of text models: as help has them."""
    for name, case in (
        ("fill", "text"),
        ("score", "text"),
        ("embed", "text"),
        ("evaluate", "text"),
        ("evaluate", "a text task"),
        ("predict", "text"),
        ("finetune", "classify"),
        ("export", "hf"),
        ("export", "onnx"),
    ):
        for parameter, option in readers(name)[case].items():
            folder = parameter == "out" and name in ("finetune", "export")  # folders above it are made
            if parameter in NONSENSE and not folder:
                yield pytest.param(name, case, parameter, option, id=f"{name}-{case}-{option}")


@pytest.mark.parametrize(("name", "reader", "parameter", "flag"), listed())
def test_nonsense_for_a_listed_flag_is_refused(place, tmp_path, capsys, name, reader, parameter, flag):
    model = place / ("classify" if name == "predict" or reader == "a text task" else "model")
    data = DATA[name] and DATA[name].replace("DATA", str(place / "data.csv"))
    arguments = [name, *(["classify"] if name == "finetune" else []), model, *([data] if data else [])]
    if parameter != "out" and name not in ("fill", "score", "evaluate"):
        arguments += ["--out", tmp_path / "o"]
    if name == "export" and parameter != "to":
        arguments += ["--to", reader]
    if parameter == "texts":
        arguments += ["--quantize", "int8"]
    code, out, err = run(capsys, *arguments, flag, NONSENSE[parameter])
    assert code == 2, (out[-300:], err[-300:])
    assert "Traceback" not in err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("name", ["embed", "evaluate", "export", "fill", "finetune", "predict", "score"])
def test_help_lists_an_option_under_those_who_read_it(name, capsys):
    _, out, _ = run(capsys, name, "--help")
    sections = dict(re.findall(r"^(Options[^\n]*):\n(.*?)(?=^\S|\Z)", out, flags=re.M | re.S))
    found = readers(name)
    for option in {option for options in found.values() for option in options.values()}:
        reading = [case for case, options in found.items() if option in options.values()]
        heads = [head for head, body in sections.items() if re.search(rf"^  {option}(?![\w-])", body, flags=re.M)]
        shown = [
            case
            for head in heads
            for case in re.sub(r"^.*?(a model of|finetuning:|--to) | alone$", "", head).split(", ")
        ]
        everybody = shown == ["Options"] and len(reading) == len(found)
        assert everybody or sorted(shown) == sorted(reading), option


@pytest.mark.parametrize("flag", ["--minutes 1", "--precision bf16", "--device cuda"])
def test_a_table_s_fit_refuses_what_its_help_leaves_out(tmp_path, capsys, flag):
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{i},{i % 3}\n" for i in range(30)))
    code, _, err = run(capsys, "pretrain", "table", tmp_path / "t.csv", "--out", tmp_path / "m", *flag.split())
    assert code == 2
    assert err
    assert not (tmp_path / "m").exists()
    _, out, _ = run(capsys, "pretrain", "table", "--help")
    assert flag.split()[0] not in out


@pytest.mark.parametrize("task", ["tag", "answer"])
def test_columns_are_not_read_for_tags_and_answers(tmp_path, capsys, task):
    (tmp_path / "unmask.json").write_text(json.dumps({"kind": "text", "task": {"name": task}}))
    for words in (
        ["predict", tmp_path, "d", "--out", "f"],
        ["evaluate", tmp_path, "d"],
        ["finetune", task, tmp_path, "d", "--out", "f"],
    ):
        code, _, err = run(capsys, *words, "--text2", "x")
        assert code == 2
        assert f"--text2: not read for {task}" in err
