"""The examples in docstrings are true: each is run, module by module."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PARSER = doctest.DocTestParser()


def examples(path: Path) -> int:
    """How many examples the docstrings of a file hold."""
    text = path.read_text(encoding="utf-8")
    if ">>>" not in text:
        return 0
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(ast.parse(text)) if isinstance(node, documented))
    return sum(len(PARSER.get_examples(text)) for text in found if text)


MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): count
    for path in sorted(SOURCE.rglob("*.py"))
    if (count := examples(path))
}


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(module, optionflags=doctest.REPORT_ONLY_FIRST_FAILURE)
    assert result.failed == 0
    assert result.attempted == MODULES[name], "some examples were not found by doctest"


def test_there_are_examples():
    assert sum(MODULES.values()) > 60
