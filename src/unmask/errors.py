"""The one exception for a person's mistake: what, where, what was expected, what to do next.

A message names what the caller can give as that caller writes it: flags on the command line, arguments in Python, keys
in a request to the server. `option`, `setting` and `either` write all forms, so that a message is written once.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import numbers
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class UserError(Exception):
    """Bad input. The command line prints it without a traceback and exits with code 2.

    Args:
        what: what is wrong, naming file, row, column or key and the offending value.
        hint: what was expected and what to do next.
    """

    exit_code = 2

    def __init__(self, what: str, *, hint: str = "") -> None:
        self.what, self.hint = what, hint
        super().__init__(f"{what}\n  {hint}" if hint else what)


class UnknownSetting(UserError):
    """A setting that is not there.

    Args:
        name: of the setting.
        known: those that are there.
        closest: what to look for among them; `name` by default.
    """

    def __init__(self, name: str, known: Iterable[str], *, closest: str | None = None) -> None:
        self.name, self.known = name, sorted(known)
        super().__init__(f"unknown setting '{name}'", hint=suggest(closest or name, self.known))


def suggest(name: str, known: Iterable[str]) -> str:
    """A sentence naming the closest known spelling, or listing what is known.

    >>> suggest("leraning_rate", ["learning_rate", "seed"])
    "Did you mean 'learning_rate'?"
    >>> suggest("zzz", ["learning_rate", "seed"])
    'Known: learning_rate, seed.'
    >>> suggest("age", ["age ", "aged"])
    "'age ' differs in its blanks alone: strip them from the name."
    """
    known = sorted(known)
    blanks = next((k for k in known if k.strip() == name.strip()), None)
    if blanks is not None:
        odd = blanks if blanks != blanks.strip() else name
        return f"{odd!r} differs in its blanks alone: strip them from the name."
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(map(quoted, known))}."


def quoted(name: Any) -> str:
    """A name as it stands in a list of names: in quotes where it would be misread without them, as with a comma, a
    quote, blanks at its ends or a new line in it.

    >>> [quoted(name) for name in ("good", "very good", 3)]
    ['good', 'very good', '3']
    >>> print(*map(quoted, ("a, b", " a", "a  b", "two\\nlines", "")), sep=" ")
    'a, b' ' a' 'a  b' 'two\\nlines' ''
    """
    text = str(name)
    return text if text.isprintable() and re.fullmatch(r"[^ ,;'\"]+( [^ ,;'\"]+)*", text) else repr(text)


def first_of(items: Iterable[Any], most: int = 5, *, between: str = ", ") -> str:
    """The first of several, for a message, and how many more there are.

    >>> first_of(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    >>> first_of(["a: 1", "b: 2", "c: 3"], 2, between="; ")
    'a: 1; b: 2; and 1 more'
    """
    found = [str(item) for item in items]
    shown, left = between.join(found[:most]), len(found) - most
    if left <= 0:
        return shown
    return f"{shown} and {left:,} more" if between == ", " else f"{shown}{between}and {left:,} more"


_flags = False
"""Whether the caller is the command line."""
_keys = False
"""Whether the caller has sent a request: the keys of a JSON object are what it gives."""


@contextlib.contextmanager
def with_flags(flags: bool = True) -> Iterator[None]:
    """The caller is the command line: messages made meanwhile name flags.

    Args:
        flags: False where it is not, as of requests to a server that the command line has started.
    """
    global _flags
    before, _flags = _flags, flags
    try:
        yield
    finally:
        _flags = before


@contextlib.contextmanager
def with_keys() -> Iterator[None]:
    """The callers are those who send requests to a server: messages made meanwhile name keys of JSON."""
    global _keys
    with with_flags(False):
        before, _keys = _keys, True
        try:
            yield
        finally:
            _keys = before


def _key(name: str, value: Any) -> str:
    return json.dumps(name) + ("" if value is ... else f": {json.dumps(value, default=str)}")


def flags_are_named() -> bool:
    """Whether the caller is the command line: to be handed on, with `with_flags`, to processes that work for it."""
    return _flags


def either(flags: str, python: str, keys: str | None = None) -> str:
    """`flags` on the command line, `python` in Python, `keys` in a request (as in Python, where it is not given): for
    what they do not write alike."""
    return flags if _flags else python if keys is None or not _keys else keys


def option(name: str, value: Any = ...) -> str:
    """An option of a command, which is an argument of a function in Python.

    Args:
        name: of the option, as a Python name.
        value: for example, or a word in capitals for what is to be put there; none to name the option alone.

    >>> option("text", "COLUMN"), option("header", False), option("most_unknown")
    ("text='COLUMN'", 'header=False', 'most_unknown=')
    >>> with with_flags():
    ...     option("text", "COLUMN"), option("header", False), option("most_unknown")
    ('--text COLUMN', '--no-header', '--most-unknown')
    >>> with with_keys():
    ...     option("text", "COLUMN"), option("header", False), option("most_unknown")
    ('"text": "COLUMN"', '"header": false', '"most_unknown"')
    """
    if _keys:
        return _key(name, value)
    if not _flags:
        return f"{name}={'' if value is ... else repr(value)}"
    flag = name.replace("_", "-")
    if value is False:
        return f"--no-{flag}"
    return f"--{flag}" if value is ... or value is True else f"--{flag} {shlex.quote(str(value))}"


def setting(name: str, value: Any = ...) -> str:
    """A field of a settings class, which `--set` gives on the command line.

    >>> setting("problem", "single"), setting("refit", True), setting("column")
    ("problem='single'", 'refit=True', 'column=')
    >>> with with_flags():
    ...     setting("problem", "single"), setting("refit", True), setting("column")
    ('--set problem=single', '--set refit=true', '--set column=')
    """
    if _keys:
        return _key(name, value)
    if not _flags:
        return f"{name}={'' if value is ... else repr(value)}"
    shown = "" if value is ... else str(value).lower() if value is None or isinstance(value, bool) else str(value)
    return f"--set {shlex.quote(f'{name}={shown}')}"


def outside() -> int:
    """The `stacklevel` of a warning that names the line of who called unmask."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "unmask",
        "contextlib",
    ):
        level, frame = level + 1, frame.f_back
    return level


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is no whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise UserError(option(name, value), hint=f"Expected a whole number, {least} or more.")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise UserError(f"{name}={value}", hint=f"Expected {' or '.join(choices)}.")
