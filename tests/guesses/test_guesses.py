"""Every call of the tables works as meant, or is refused with ours; see guessed.py for how a row is added."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest
from guessed import KINDS, Guess, guesses

import unmask
from unmask.errors import UserError

ROWS = [(kind, guess) for kind in KINDS for guess in guesses(kind)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Kind -> its folder and names, made when they are first asked for."""
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    with pytest.MonkeyPatch.context() as patch:
        for kind in sorted({kind for kind, _ in ROWS}):
            home = tmp_path_factory.mktemp(kind)
            patch.chdir(home)
            found[kind] = home, importlib.import_module(f"guess_{kind}").names(home)
    return found


def value(call: str, names: dict[str, Any]) -> Any:
    """Of the last line of a call, an expression."""
    *lines, last = ast.parse(call).body
    assert isinstance(last, ast.Expr), "the last line of a call is an expression"
    exec(compile(ast.Module(lines, []), "guess", "exec"), names)
    return eval(compile(ast.Expression(last.value), "guess", "eval"), names)


def check(guess: Guess, names: dict[str, Any]) -> None:
    """Run a call, and look at what came of it."""
    if guess.says is None:
        found = value(guess.call, names)
        assert eval(guess.gives or "", names | {"found": found}), f"{found!r}"[:2000]
        return
    with pytest.raises((UserError, AttributeError, TypeError, ImportError)) as caught:
        value(guess.call, names)
    assert guess.says in str(caught.value)


@pytest.mark.parametrize(("kind", "guess"), ROWS, ids=[f"{kind}-{guess.call[:60]}" for kind, guess in ROWS])
def test_a_guess_works_or_is_answered_with_our_call(made, kind, guess, monkeypatch):
    home, names = made[kind]
    monkeypatch.chdir(home)
    check(guess, {"unmask": unmask, **names})


def test_a_guess_that_fails_otherwise_is_seen():
    with pytest.raises(AssertionError):
        check(Guess(known_from="", call="1 + 1", gives="found == 3"), {})
    with pytest.raises(AssertionError):
        check(Guess(known_from="", call="unmask.nothing", says="unmask.load"), {"unmask": unmask})
    with pytest.raises(ZeroDivisionError):
        check(Guess(known_from="", call="1 / 0", says="zero"), {})
