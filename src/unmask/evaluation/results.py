"""What verbs return, which prints itself: figures beside those of rules, and rows of predictions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from unmask.evaluation.card import Figure
from unmask.evaluation.meanings import legend, meaning
from unmask.evaluation.metrics import Estimate
from unmask.evaluation.shown import Printed, Shown

PRINTED = 10
"""Rows of predictions that are printed."""


def place(folder: Path) -> str:
    """Where a model is, and how it is kept where that is a temporary folder (`unmask.writing.makes_folder`)."""
    kept = folder.parent.parent != Path(tempfile.gettempdir()) or not folder.parent.name.startswith("unmask.")
    return f"folder: {folder}" + ("" if kept else ", a temporary one: run.model.save(folder) keeps the model")


def figures_shown(
    title: str, figures: Sequence[Figure], *, notes: Sequence[str] = (), next_step: str = "", head: str = "figure"
) -> Shown:
    """A row per figure, with a column for the model and for each rule beside it, and what is good."""
    columns = list(dict.fromkeys(figure.of for figure in figures))
    names = list(dict.fromkeys(figure.name for figure in figures))
    cells = {(f.name, f.of): Estimate(float(f.value), float(f.low), float(f.high), 0) for f in figures}
    rows = [
        [
            found.label if (found := meaning(name)) else name.replace("_", " "),
            *(cells.get((name, of)) for of in columns),
        ]
        for name in names
    ]
    good = legend(names)
    return Shown(
        title=title,
        columns=(head, *columns),
        rows=rows,
        notes=[*([good] if rows and good else []), *notes],
        next_step=next_step,
    )


class JudgedFigures(Printed, dict[str, Any]):
    """Figures by name, as `evaluate` gives them. `show` says what of them a person looks at."""

    def __init__(self, found: Mapping[str, Any], show: Callable[[Mapping[str, Any]], Shown]) -> None:
        super().__init__(found)
        self._show = show

    def shown(self) -> Shown:
        """The figures beside those of rules."""
        return self._show(self)


class PredictedRows(Printed, list[dict[str, Any]]):
    """A dictionary per thing that was predicted, in order.

    Args:
        title: with {} for how many there are.
        hidden: names that are not printed.
        about: how they were predicted, by name: it stands below them.
    """

    def __init__(
        self,
        rows: Iterable[dict[str, Any]],
        title: str,
        hidden: Collection[str] = (),
        about: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(rows)
        self.title, self.hidden, self.about = title, hidden, dict(about)

    def shown(self) -> Shown:
        """The first rows; `to_frame` has all, and all that they hold."""
        columns = [name for name in self._columns() if name not in self.hidden]
        more = len(self) - PRINTED
        return Shown(
            title=self.title.format(f"{len(self):,}"),
            columns=columns,
            rows=[[_cell(row.get(name)) for name in columns] for row in self[:PRINTED]],
            notes=[
                *([f"and {more:,} more: to_frame() has all"] if more > 0 else []),
                *([", ".join(f"{name}: {_cell(value)}" for name, value in self.about.items())] if self.about else []),
            ],
        )

    def to_frame(self) -> Any:
        """All rows, as a pandas frame where pandas is installed, else as a polars one."""
        columns = self._columns()
        return Shown(title="", columns=columns, rows=[[row.get(name) for name in columns] for row in self]).frame()

    def _columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self for name in row))


def _cell(value: Any) -> Any:
    """A number, or a text that is not too long; a value of several parts in words."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, list) and value and isinstance(value[0], Mapping) and "candidates" in value[0]:  # blanks
        best = ([f"{one['value']} {one['probability']:.1%}" for one in blank["candidates"][:3]] for blank in value)
        value = "; ".join(", ".join(blank) for blank in best)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):  # entities
        value = ", ".join(f"{one.get('text')!r}: {one.get('label', '')}" for one in value)
    elif isinstance(value, Mapping):
        parts = (f"{name} {part:.3g}" if isinstance(part, float) else f"{name} {part}" for name, part in value.items())
        value = value["text"] if "text" in value else ", ".join(parts)
    elif isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
