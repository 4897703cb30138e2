"""The cells of one column that is being read, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unmask.modalities.table.reading.findings import Finding, named


@dataclass(frozen=True, kw_only=True)
class Cells:
    """The cells of a column.

    Attributes:
        raw: all of them; gone: which of them hold no value.
        values, counts: the distinct cells that hold one, and how often each stands there.
        given: what a person says of the column.
        row_name: names the row of a cell in messages.
        findings: what is said, in order.
    """

    name: str
    raw: np.ndarray
    gone: np.ndarray
    values: np.ndarray
    counts: np.ndarray
    given: Mapping[str, Any]
    row_name: Callable[[int], int]
    findings: list[Finding] = field(default_factory=list)

    def note(self, code: str, text: str) -> None:
        """Say something that wants no decision."""
        self.findings.append(Finding(severity="note", column=self.name, code=code, text=text))

    def warn(self, code: str, text: str, add: str) -> None:
        """Say something that wants a decision, and what to `add` to the schema for it."""
        self.findings.append(Finding(severity="warning", column=self.name, code=code, text=text, add=add))

    def error(
        self, code: str, wrong: str, hint: str, values: Iterable[Any], shown: Callable[[Any], Any] = lambda v: v
    ) -> None:
        """An error of all cells that hold one of some values."""
        values = set(values)
        rows = [i for i, v in enumerate(self.raw.tolist()) if v.__hash__ is not None and v in values]
        self.findings.append(
            Finding(
                severity="error",
                column=self.name,
                code=code,
                add=hint,
                wrong=wrong,
                text=f"column {self.name!r}: {len(rows)} cells: {named(sorted(map(str, values)))}{wrong}",
                cells=tuple((self.row_name(i), shown(self.raw[i])) for i in rows),
            )
        )
