"""What reading a table brought to light: notes, warnings, and cells that cannot be read; all of them at once."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from unmask.errors import UserError, outside

SHOWN = 20
"""Bad cells that an error names; the rest are counted per column."""


@dataclass(frozen=True)
class Finding:
    """One thing noticed.

    Args:
        severity: an error keeps the table from being read; a warning wants a decision; a note says what was done.
        column: which column it is about; None for the table.
        code: what kind of thing, for programs.
        text: what was found, in one sentence.
        add: the lines of a schema file that settle it.
        cells: (number of the row, value as it stands) of cells that do not fit.
        prefix, wrong: what is wrong with each of these, before and after the value.
    """

    severity: Literal["error", "warning", "note"]
    column: str | None
    code: str
    text: str
    add: str = ""
    cells: tuple[tuple[int, Any], ...] = ()
    prefix: str = ""
    wrong: str = ""

    def __str__(self) -> str:
        return (
            self.text if self.severity != "warning" else f"warning: {self.text}" + (f" {self.add}" if self.add else "")
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        cells = [{"row": row, "value": str(value)} for row, value in self.cells[:SHOWN]]
        return {
            "severity": self.severity,
            "column": self.column,
            "code": self.code,
            "text": self.text,
            "add": self.add,
            "cells": cells,
            "cell_count": len(self.cells),
        }


def warn_of(notes: Iterable[str]) -> None:
    """Warn of those notes that begin so; what a command prints as "warning: " is a warning in Python too."""
    for text in notes:
        if text.startswith("warning: "):
            warnings.warn(text.removeprefix("warning: "), stacklevel=outside())


def refuse(findings: Iterable[Finding], source: str) -> None:
    """Raise the errors among findings as one, which names the first bad cells of all columns and counts the rest."""
    errors = [f for f in findings if f.severity == "error"]
    if not errors:
        return
    cells = [(f, row, value) for f in errors for row, value in f.cells]
    hints = list(dict.fromkeys(f.add for f in errors if f.add))
    whole = [f"{source}, {f.text}" for f in errors if not f.cells]
    lines = whole + [
        f"{source}, column {f.column!r}, row {row}: {f.prefix}{value!r}{f.wrong}" for f, row, value in cells[:SHOWN]
    ]
    if len(cells) > 1:
        counts = Counter(f.column for f, _, _ in cells)
        more = f" ({len(cells) - SHOWN} more are not listed)" if len(cells) > SHOWN else ""
        lines.append(f"in all {len(cells)} cells: " + ", ".join(f"{n} in {c!r}" for c, n in counts.items()) + more)
    raise UserError("\n".join(lines), hint="\n  ".join(hints))


def setting(column: str, line: str) -> str:
    """Lines of a schema file, in one line, for a hint.

    >>> setting("crp", 'limits = "half"'), setting("K+", "missing = [-9]")
    ('[columns.crp] limits = "half"', '[columns."K+"] missing = [-9]')
    """
    return f"[columns.{toml_key(column)}] {line}"


def toml_key(name: str) -> str:
    """A key of a TOML file, quoted where it must be."""
    import json

    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else json.dumps(name, ensure_ascii=False)


def toml_text(value: Any) -> str:
    """A text, or a list of them, as a TOML file has it."""
    import json

    return json.dumps(value, ensure_ascii=False)


def named(values: Sequence[Any], most: int = 5) -> str:
    """A few values in quotes.

    >>> named(["a", "b"]), named(range(9), 2)
    ("'a', 'b'", "'0', '1', ...")
    """
    return ", ".join(repr(str(v)) for v in list(values)[:most]) + (", ..." if len(values) > most else "")
