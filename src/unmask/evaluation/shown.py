"""A result as a person looks at it: one table with its title, notes and the next step, as text, HTML or data frame."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape

from unmask.errors import UserError, suggest
from unmask.evaluation.charts import number, table
from unmask.evaluation.metrics import Estimate
from unmask.evaluation.report import Report
from unmask.guessed import also_called
from unmask.writing import written


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
        printed: of the columns those that text and HTML have; none: all. The frame has all. A first column without a
            name holds the names of the rows, the index of a pandas frame.

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
    printed: Sequence[str] = ()

    def text(self) -> str:
        """Lines for a terminal: columns of numbers to the right, with as many decimals as their largest and smallest
        need."""
        parts = [self.title, ""] if self.rows or self.notes or self.next_step else [self.title]
        if self.rows:
            names = self.printed or self.columns
            columns = [[row[self.columns.index(name)] for row in self.rows] for name in names]
            written = []
            for name, column in zip(names, columns, strict=True):
                decimals, write = _decimals(column), self.formats.get(name)
                written.append([name, *(write(c) if write and _is_known(c) else _cell(c, decimals) for c in column)])
            numeric = [all(cell is None or _is_number(cell) for cell in column) for column in columns]
            parts += [*aligned(list(zip(*written, strict=True)), right=numeric), ""]
        parts += [*self.notes, *([f"next: {self.next_step}"] if self.next_step else [])]
        return "\n".join(parts).rstrip()

    def html(self) -> str:
        """The same for a notebook; everything is escaped."""
        parts = [Markup("<p><b>{}</b></p>").format(self.title)]
        if self.rows:
            names = self.printed or self.columns
            kept = [(self.columns.index(name), self.formats.get(name)) for name in names]
            rows = [
                [write(row[i]) if write and _is_known(row[i]) else row[i] for i, write in kept] for row in self.rows
            ]
            parts.append(table(list(names), rows))
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
            name = name or "name"
            data[name] = [cell.value if isinstance(cell, Estimate) else cell for cell in column]
            if any(isinstance(cell, Estimate) for cell in column):
                for end in ("low", "high"):
                    data[f"{name}_{end}"] = [getattr(cell, end, None) for cell in column]
        try:
            import pandas as pd
        except ImportError:
            import polars as pl

            return pl.DataFrame(data, strict=False)
        frame = pd.DataFrame(data)
        return frame if not self.columns or self.columns[0] else frame.set_index("name")

    __str__ = __repr__ = text
    _repr_html_ = html

    @also_called(
        dict.fromkeys(
            ("conf_int", "exponentiate", "conf_level", "alpha", "decimals", "style"),
            "All of it is in the frame: to_frame(), and exp(coef) and intervals are printed where they mean something",
        )
    )
    def __call__(self) -> Shown:
        """Itself: `summary()` is `summary`."""
        return self

    def __getitem__(self, key: Any) -> Any:
        """A column of the frame, `summary["p"]`."""
        if isinstance(key, str) and key not in self.columns:
            raise UserError(f"no column {key!r}", hint=suggest(key, [name for name in self.columns if name]))
        return self.frame()[key]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What else the frame has: `summary.loc`, `summary.round(2)`."""
            if name.startswith("_"):
                raise AttributeError(name)
            return getattr(self.frame(), name)


class Printed(ABC):
    """A result that prints itself. A class that says in `shown` what of it a person looks at has `print`, its table in
    notebooks and `to_frame`; a dataclass is declared with `repr=False`."""

    @abstractmethod
    def shown(self) -> Shown:
        """What is printed."""

    def __str__(self) -> str:
        return self.shown().text()

    def __repr__(self) -> str:
        return self.shown().text()

    def _repr_html_(self) -> str:
        return self.shown().html()

    @property
    def summary(self) -> Shown:
        """What is printed, whose columns are there by name as well: `summary["p"]`, `summary.loc["age"]`."""
        return self.shown()

    def print_summary(self) -> None:
        """Print it, as `print` does."""
        print(self)

    def to_frame(self) -> Any:
        """The printed table as a pandas frame where pandas is installed, else as a polars one."""
        return self.shown().frame()


class Chart:
    """A chart that a notebook shows, and that `write` puts into a file."""

    def __init__(self, markup: Markup) -> None:
        self.markup = markup

    def _repr_html_(self) -> str:
        return str(self.markup)

    def write(self, path: str | Path) -> Path:
        """Write it as .svg, or as a page of its own, .html; returns the path.

        Raises:
            UserError: another suffix.
        """
        path = Path(path)
        if path.suffix == ".html":
            return Report("").section("", self.markup).write(path)
        if path.suffix != ".svg":
            raise UserError(f"{path}: a chart is written as .svg or .html", hint="Choose one of these suffixes.")
        start, end = self.markup.index("<svg"), self.markup.index("</svg>") + 6
        with written(path) as temporary:
            temporary.write_text(self.markup[start:end], encoding="utf-8")
        return path

    savefig = write


def charted(markup: Markup, path: str | Path | None) -> Chart:
    """A chart, written to `path` where one is given."""
    chart = Chart(markup)
    if path is not None:
        chart.write(path)
    return chart


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


def _is_known(cell: Any) -> bool:
    return _is_number(cell) and not math.isnan(cell)


def _decimals(column: Sequence[Any]) -> int:
    """Decimals in which the largest number of a column keeps four digits and the smallest three; at most four.

    >>> _decimals([0.045, 1.25]), _decimals([1250.0, 310.0]), _decimals([0.0001])
    (4, 0, 4)
    """
    values = [cell.value if isinstance(cell, Estimate) else cell for cell in column]
    numbers = [float(value) for value in values if isinstance(value, float | np.floating)]
    sizes = [abs(value) for value in numbers if math.isfinite(value) and value != 0]
    if not sizes:
        return 0
    largest, smallest = (math.floor(math.log10(size)) for size in (max(sizes), min(sizes)))
    return min(max(3 - largest, 2 - smallest, 0), 4)


def _cell(cell: Any, decimals: int) -> str:
    if isinstance(cell, Estimate):
        value = _cell(cell.value, decimals)
        return value if math.isnan(cell.low) else f"{value} [{_cell(cell.low, decimals)}, {_cell(cell.high, decimals)}]"
    if cell is None or (_is_number(cell) and not math.isfinite(cell)):
        return "–" if cell is None else number(cell)
    if not _is_number(cell) or isinstance(cell, int | np.integer):
        return number(cell) if _is_number(cell) else str(cell)
    return number(cell) if 0 < abs(cell) < 0.5 * 10.0**-decimals else f"{cell:,.{decimals}f}"
