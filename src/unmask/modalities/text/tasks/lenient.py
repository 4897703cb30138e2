"""Rows of labelled data that are wrong: all of them are counted and the first ones named; refused together, or left
out."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from unmask.errors import UserError, first_of, option

SHOWN = 10
Made = TypeVar("Made")


def warned(line: str) -> None:
    """What is said where nobody listens: a Python warning of a line that is one, nothing of others."""
    if "warning: " in line:
        warnings.warn(line.replace("warning: ", "", 1), stacklevel=3)


@dataclass
class Problems:
    """What is wrong with which rows.

    Attributes:
        lenient: leave such rows out and say so, instead of refusing them.
        offered: whether the caller could ask for that.
        say: called with what was left out.
        found: (where, what is wrong, what to do).
        mended: what was put right, and how often.
    """

    lenient: bool = False
    offered: bool = True
    say: Callable[[str], None] = lambda line: None
    found: list[tuple[str, str, str]] = field(default_factory=list)
    mended: Counter[str] = field(default_factory=Counter)

    def add(self, where: str, what: str, hint: str = "") -> None:
        """Note one."""
        self.found.append((where, what, hint))

    def each(self, rows: Iterable[tuple[str, Any]], make: Callable[[str, Any], Made]) -> list[Made]:
        """make(where, row) of every row that can be made; the others are noted."""
        out = []
        for where, row in rows:
            try:
                out.append(make(where, row))
            except UserError as error:
                self.add(where, error.what.removeprefix(f"{where}: "), error.hint or "")
        return out

    def settle(self, unit: str) -> None:
        """Say what was put right and what is left out, or refuse."""
        for what, count in self.mended.items():
            self.say(f"{what}: {count:,}")
        self.mended.clear()
        if not self.found:
            return
        named = first_of((f"{where}: {what}" for where, what, _ in self.found), SHOWN, between="; ")
        if self.lenient:
            self.say(f"{len(self.found):,} {unit} left out: {named}")
            self.found = []
            return
        if len(self.found) == 1:
            where, what, hint = self.found[0]
            leave = f"{option('lenient', True)} leaves it out." if self.offered else ""
            raise UserError(f"{where}: {what}", hint=f"{hint} {leave}".strip())
        leave = f"Mend them, or leave them out with {option('lenient', True)}." if self.offered else "Mend them."
        raise UserError(f"{len(self.found):,} {unit} are wrong: {named}", hint=leave)
