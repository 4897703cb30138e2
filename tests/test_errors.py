"""Messages name what a caller can give as that caller writes it: every flag and argument that they name is there."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import unmask
from commands import run
from unmask.cli.app import BY_KIND, OWN
from unmask.cli.dispatch import command_of, readers_of
from unmask.cli.images import READING, TABLE
from unmask.errors import UserError, either, option, setting, with_flags, with_keys
from unmask.plugins import resolve
from unmask.registry import modalities
from unmask.training.settings import TrainSettings

SOURCE = Path(unmask.__file__).parent
MODULES = [unmask, unmask.text, unmask.table, unmask.images, unmask.events]
FLAG = re.compile(r"(?<![\w(-])--([a-z][a-z0-9-]*)")
ARGUMENT = re.compile(r"(?<![\w.\"'-])([a-z_0-9]+)=(?!=)")
CALL = re.compile(r"\w\([^()]*\)|`[^`]*`")
WHOLE = re.compile(r"unmask .*\bMODEL\b")
"""A whole command line, as reports and model cards show it (`evaluation.card.Use`)."""
ELSEWHERE = {
    "training/settings.py": "reads the texts of --set",
    **{
        f"modalities/{room}/card.py": "commands of a model card"
        for room in ("text/network", "table", "images/network", "events/uses")
    },
    **{
        f"modalities/{kind}/registration.py": "commands that `unmask` alone shows"
        for kind in ("text", "table", "images", "events")
    },
}
"""Files whose texts name flags for another reader than the caller."""
PYTHON_ALONE = {
    "modalities/images/network/folder.py": {"heads"},
    "modalities/images/uses/reconstruct.py": {"statistics"},
    "modalities/text/tasks/guessed.py": {"task"},
    "training/settings.py": {"learning_rate", "steps"},
}
"""Arguments that a hint names for Python callers only; and what stands for a key in the hint of --set itself."""


@functools.cache
def commands() -> list[Any]:
    found = [command_of(resolve(run), name) for name, run in OWN.items()]
    for one in modalities().values():
        by_kind = [name for name in one.commands if name in BY_KIND]
        found += [c for name in one.commands if name not in by_kind for c in readers_of(one, name).values()]
        found += [command_of(resolve(one.cases(name)[one.name].run), one.name) for name in by_kind]
        found += [command_of(resolve(tool), name) for name, tool in one.tools.items()]
    return found


@functools.cache
def flags() -> set[str]:
    options = [p for c in commands() for p in c.params if p.param_type_name == "option"]
    return {name for p in options for name in (*p.opts, *p.secondary_opts)}


@functools.cache
def settings() -> set[str]:
    """What --set takes somewhere."""
    kinds = ("Settings", "FinetuneSettings", "EmbeddingSettings")
    classes = [getattr(m, name) for m in MODULES for name in kinds if name in dir(m)]
    fields = {field.name for c in [*classes, TrainSettings] for field in dataclasses.fields(c)}
    return fields | set(READING) | set(TABLE)


@functools.cache
def arguments() -> set[str]:
    """Parameters of what is public: functions, classes, their methods."""
    found: set[str] = set()
    for public in (getattr(module, name) for module in MODULES for name in dir(module)):
        methods = [m for _, m in inspect.getmembers(public, callable)] if inspect.isclass(public) else []
        for function in [public, *methods]:
            try:
                found |= set(inspect.signature(function).parameters)
            except (TypeError, ValueError):
                continue
    return found | settings()


@pytest.fixture(scope="module")
def sources() -> list[tuple[str, ast.Module]]:
    found = ((path.relative_to(SOURCE).as_posix(), path) for path in sorted(SOURCE.rglob("*.py")))
    return [
        (name, ast.parse(path.read_text(encoding="utf-8")))
        for name, path in found
        if not name.startswith("cli/") and name != "errors.py"
    ]


def calls(tree: ast.Module, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def texts(tree: ast.AST, besides: set[ast.AST]) -> Iterator[ast.Constant]:
    """Its string constants, less docstrings and those in `besides`."""
    besides = besides | {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in besides:
            yield node


def faults_of_calls(name: str, tree: ast.Module) -> Iterator[str]:
    """What its calls of `option`, `setting` and `either` name that is not there."""
    for call in calls(tree, "option", "setting"):
        if not isinstance(call.args[0], ast.Constant):
            continue
        said, where = call.args[0].value, f"{name}:{call.lineno}"
        value = call.args[1].value if len(call.args) > 1 and isinstance(call.args[1], ast.Constant) else ...
        with with_flags():
            flag = option(said, value).split()[0]
        if said not in settings() if call.func.id == "setting" else flag not in flags():
            yield f"{where}: no {call.func.id} {said}"
        if said not in arguments():
            yield f"{where}: no argument {said}"
    for call in calls(tree, "naming"):
        for part in {keyword.arg for keyword in call.keywords} - {None}:
            if f"--{part}" not in flags() or part not in arguments():
                yield f"{name}:{call.lineno}: no column {part}"
    for call in calls(tree, "either"):
        shown = [" ".join(text.value for text in texts(part, set())) for part in call.args]
        for flag in FLAG.findall(shown[0]):
            if f"--{flag}" not in flags() | {"--json"}:
                yield f"{name}:{call.lineno}: no flag --{flag}"
        for argument in ARGUMENT.findall(shown[1]):
            if argument not in arguments():
                yield f"{name}:{call.lineno}: no argument {argument}"
        for dotted in re.findall(r"unmask((?:\.\w+)+)", shown[1]):
            if not functools.reduce(lambda o, n: getattr(o, n, None), dotted.split(".")[1:], unmask):
                yield f"{name}:{call.lineno}: no unmask{dotted}"


def test_what_messages_name_is_there_in_both_forms(sources):
    assert [fault for name, tree in sources for fault in faults_of_calls(name, tree)] == []
    assert sum(1 for _, tree in sources for _ in calls(tree, "option", "setting", "either")) > 100


def test_no_message_names_a_flag_to_python(sources):
    faults = []
    for name, tree in sources:
        said = {node for call in calls(tree, "either") for node in ast.walk(call.args[0])}
        if name not in ELSEWHERE:
            faults += [
                f"{name}:{t.lineno}: {t.value}"
                for t in texts(tree, said)
                if FLAG.search(t.value) and not WHOLE.match(t.value)
            ]
    assert faults == []


def test_no_hint_names_an_argument_to_the_command_line(sources):
    options = {flag.removeprefix("--").replace("-", "_") for flag in flags()} | settings()
    faults = []
    for name, tree in sources:
        said = {node for call in calls(tree, "either") for node in ast.walk(call.args[1])}
        for hint in (node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "hint"):
            for text in texts(hint, said):
                named = set(ARGUMENT.findall(CALL.sub("", text.value))) - PYTHON_ALONE.get(name, set())
                faults += [f"{name}:{text.lineno}: {text.value}"] if named & options else []
    assert faults == []


@pytest.mark.parametrize(
    ("value", "flag", "argument"),
    [
        (..., "--out", "out="),
        (True, "--out", "out=True"),
        (False, "--no-out", "out=False"),
        ("a b", "--out 'a b'", "out='a b'"),
    ],
)
def test_an_option_in_both_forms(value, flag, argument):
    assert option("out", value) == argument
    with with_flags():
        assert option("out", value) == flag
    assert option("out", value) == argument


def test_who_sends_a_request_is_told_of_keys():
    """Hints of the server were in Python."""
    with with_flags(), with_keys():
        assert (option("top"), option("top", 3), setting("until", "last")) == ('"top"', '"top": 3', '"until": "last"')
        assert (either("--a", "a="), either("--a", "a=", '"b"')) == ("a=", '"b"')
    assert option("top", 3) == "top=3"


def test_a_setting_of_none_is_written_as_set_takes_it():
    assert setting("patience", None) == "patience=None"
    with with_flags():
        assert setting("patience", None) == "--set patience=none"


def test_the_caller_is_told_in_his_own_language(tmp_path, capsys):
    """The same mistake from both sides; and after a command Python is Python again."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "config.json").write_text("{}")
    data = tmp_path / "t.txt"
    data.write_text("one\ntwo\n")
    code, _, err = run(capsys, "pretrain", "text", data, "--out", tmp_path / "here", "--steps", 1)
    assert (code, "another --out, or add --resume to" in err) == (2, True), err
    with pytest.raises(UserError, match="another out=, or add resume=True to"):
        unmask.text.pretrain(str(data), tmp_path / "here")
