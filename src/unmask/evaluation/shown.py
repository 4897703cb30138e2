"""A result as a person looks at it: one table with its title, notes and the next step, as text, HTML or data frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from unmask.evaluation.charts import number, table
from unmask.evaluation.metrics import Estimate


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What is printed of a result.

    Args:
        title: what it is, in one line.
        columns: names of the columns.
        rows: a cell per column: text, number, None (a dash) or `Estimate` (with its interval in brackets).
        notes: sentences below the table.
        next_step: what to call next, as one writes it; "" for nothing.
        formats: column -> how its numbers are written; the frame keeps the numbers.

    >>> print(Shown(title="Two figures", columns=("figure", "model", "rule"), rows=[("accuracy", 0.9, 0.5)],
    ...     notes=["higher is better"], next_step="unmask predict model new.csv").text())
    Two figures
    <BLANKLINE>
    figure     model    rule
    accuracy  0.9000  0.5000
    <BLANKLINE>
    higher is better
    next: unmask predict model new.csv
    """

    title: str
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    notes: Sequence[str] = ()
    next_step: str = ""
    formats: Mapping[str, Callable[[float], str]] = field(default_factory=dict)

    def text(self) -> str:
        """Lines for a terminal: columns of numbers to the right, with as many decimals as their largest and smallest
        need."""
        parts = [self.title, ""] if self.rows or self.notes or self.next_step else [self.title]
        if self.rows:
            columns = [[row[place] for row in self.rows] for place in range(len(self.columns))]
            written = []
            for name, column in zip(self.columns, columns, strict=True):
                decimals, write = _decimals(column), self.formats.get(name)
                written.append([name, *(write(c) if write and _is_number(c) else _cell(c, decimals) for c in column)])
            numeric = [all(cell is None or _is_number(cell) for cell in column) for column in columns]
            parts += [*aligned(list(zip(*written, strict=True)), right=numeric), ""]
        parts += [*self.notes, *([f"next: {self.next_step}"] if self.next_step else [])]
        return "\n".join(parts).rstrip()

    def html(self) -> str:
        """The same for a notebook; everything is escaped."""
        parts = [Markup("<p><b>{}</b></p>").format(self.title)]
        if self.rows:
            writers = [self.formats.get(name) for name in self.columns]
            rows = [
                [write(c) if write and _is_number(c) else c for write, c in zip(writers, row, strict=True)]
                for row in self.rows
            ]
            parts.append(table(list(self.columns), rows))
        parts += [Markup("<p><small>{}</small></p>").format(note) for note in self.notes]
        if self.next_step:
            parts.append(Markup("<p><small>next: <code>{}</code></small></p>").format(self.next_step))
        return str(Markup("<div>{}</div>").format(Markup("").join(map(escape, parts))))

    def frame(self) -> Any:
        """The table as a pandas frame where pandas is installed, else as a polars one; an `Estimate` has columns of its
        interval beside it."""
        data: dict[str, list[Any]] = {}
        for place, name in enumerate(self.columns):
            column = [row[place] for row in self.rows]
            data[name] = [cell.value if isinstance(cell, Estimate) else cell for cell in column]
            if any(isinstance(cell, Estimate) for cell in column):
                for end in ("low", "high"):
                    data[f"{name}_{end}"] = [getattr(cell, end, None) for cell in column]
        try:
            import pandas as pd
        except ImportError:
            import polars as pl

            return pl.DataFrame(data, strict=False)
        return pd.DataFrame(data)


class Printed:
    """A result that prints itself. A class that says in `shown` what of it a person looks at has `print`, its table in
    notebooks and `to_frame`; a dataclass is declared with `repr=False`."""

    def shown(self) -> Shown:
        """What is printed."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.shown().text()

    def __repr__(self) -> str:
        return self.shown().text()

    def _repr_html_(self) -> str:
        return self.shown().html()

    def to_frame(self) -> Any:
        """The printed table as a pandas frame where pandas is installed, else as a polars one."""
        return self.shown().frame()


def aligned(rows: Sequence[Sequence[str]], *, right: Sequence[bool] = ()) -> list[str]:
    """Rows of texts as lines, the cells of a column below each other; `right`: which columns are set right.

    >>> aligned([("age", "1.5", "years"), ("sex", "12", "")], right=(False, True, False))
    ['age  1.5  years', 'sex   12']
    """
    rows = [[cell.replace("\n", " ") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [*right, *[False] * (len(widths) - len(right))]
    return [
        "  ".join(
            cell.rjust(width) if side else cell.ljust(width)
            for cell, width, side in zip(row, widths, sides, strict=True)
        ).rstrip()
        for row in rows
    ]


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float | np.number) and not isinstance(cell, bool)


def _decimals(column: Sequence[Any]) -> int:
    """Decimals in which the largest number of a column keeps four digits and the smallest two; at most four.

    >>> _decimals([0.045, 1.25]), _decimals([1250.0, 310.0]), _decimals([0.0001])
    (3, 0, 4)
    """
    values = [cell.value if isinstance(cell, Estimate) else cell for cell in column]
    numbers = [float(value) for value in values if isinstance(value, float | np.floating)]
    sizes = [abs(value) for value in numbers if math.isfinite(value) and value != 0]
    if not sizes:
        return 0
    largest, smallest = (math.floor(math.log10(size)) for size in (max(sizes), min(sizes)))
    return min(max(3 - largest, 1 - smallest, 0), 4)


def _cell(cell: Any, decimals: int) -> str:
    if isinstance(cell, Estimate):
        value = _cell(cell.value, decimals)
        return value if math.isnan(cell.low) else f"{value} [{_cell(cell.low, decimals)}, {_cell(cell.high, decimals)}]"
    if cell is None or (_is_number(cell) and not math.isfinite(cell)):
        return "–" if cell is None else number(cell)
    if not _is_number(cell) or isinstance(cell, int | np.integer):
        return number(cell) if _is_number(cell) else str(cell)
    return number(cell) if 0 < abs(cell) < 0.5 * 10.0**-decimals else f"{cell:,.{decimals}f}"
