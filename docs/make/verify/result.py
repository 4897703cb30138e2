"""A result of the pages: what is measured, and the JSON file that holds what was measured last.

A file is only ever written by a command, and the tables of the pages are only ever drawn from files.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.files import read_object
from unmask.writing import written

FOLDER = "docs/results"
"""Where the files are, from the root of a checkout."""

Measured = Mapping[str, Mapping[str, float]]
"""Model or rule -> figure -> value, of one seed. The first is the one the others stand beside."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A result as it is declared.

    Args:
        name: of the file, and behind `results:` in a page's mark.
        title: of the table.
        says: how it is measured, in a sentence or two.
        measure: "package.module:function", called with seed= and `given`, which gives a `Measured`.
        rule: the trivial rule among the names of `Measured`.
        seeds: it is measured once with each; they draw the data's split or holes as well as the training.
        sources: files and folders of the code it measures, from the root.
        quick: whether it takes a minute or two, and not tens of them.
        given: further arguments of the function.
    """

    name: str
    title: str
    says: str
    measure: str
    rule: str
    seeds: Sequence[int]
    sources: Sequence[str]
    quick: bool = True
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """What remakes it."""
        return f"python docs/make/doc_verify.py {self.name}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure of one model over all seeds.

    Attributes:
        value: the mean.
        low, high: 95 % interval of the mean over seeds (Student's t); None with one seed.
        values: by seed.
    """

    model: str
    figure: str
    value: float
    low: float | None
    high: float | None
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Record:
    """A result as it was measured: what its file holds.

    Attributes:
        rows: every figure of every model.
        gains: of the first model over the trivial rule, paired by seed.
        about: where, when, by what: `provenance.about`.
    """

    name: str
    title: str
    says: str
    command: str
    rule: str
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    gains: tuple[Row, ...]
    about: Mapping[str, Any]

    @property
    def models(self) -> list[str]:
        """Models and rules, in order."""
        return list(dict.fromkeys(row.model for row in self.rows))

    @property
    def figures(self) -> list[str]:
        """Names of figures, in order."""
        return list(dict.fromkeys(row.figure for row in self.rows))

    def row(self, model: str, figure: str) -> Row | None:
        """The figure of a model; None where it has none."""
        return next((r for r in self.rows if (r.model, r.figure) == (model, figure)), None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    def write(self, root: Path) -> Path:
        """Write its file below the root of a checkout."""
        path = root / FOLDER / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        with written(path) as temporary:
            temporary.write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return path


def recorded(result: Result, by_seed: Sequence[Measured], about: Mapping[str, Any]) -> Record:
    """The record of what was measured with each seed.

    Raises:
        ValueError: the trivial rule is missing, or seeds have other figures than the first.
    """
    first = by_seed[0]
    if result.rule not in first:
        raise ValueError(f"{result.name}: no {result.rule!r} among {list(first)}")
    shape = {model: list(figures) for model, figures in first.items()}
    if any({m: list(f) for m, f in one.items()} != shape for one in by_seed):
        raise ValueError(f"{result.name}: seeds have other figures than the first, {shape}")
    rows = [summary(model, name, [one[model][name] for one in by_seed]) for model in first for name in first[model]]
    leading = next(iter(first))
    both = [name for name in first[leading] if name in first[result.rule]]
    gains = [
        summary(f"{leading} - {result.rule}", name, [one[leading][name] - one[result.rule][name] for one in by_seed])
        for name in both
    ]
    return Record(
        name=result.name,
        title=result.title,
        says=result.says,
        command=result.command,
        rule=result.rule,
        seeds=tuple(result.seeds),
        rows=tuple(rows),
        gains=tuple(gains),
        about=about,
    )


def summary(model: str, figure: str, values: Sequence[float]) -> Row:
    """Mean and 95 % interval over seeds.

    >>> row = summary("ours", "rmse", [1.0, 2.0, 3.0])
    >>> row.value, round(row.low, 3), round(row.high, 3)
    (2.0, -0.484, 4.484)
    """
    from scipy.stats import t

    x = np.asarray(values, np.float64)
    low = high = None
    if len(x) > 1:
        half = float(t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / math.sqrt(len(x)))
        low, high = float(x.mean() - half), float(x.mean() + half)
    return Row(model=model, figure=figure, value=float(x.mean()), low=low, high=high, values=tuple(map(float, x)))


def read(root: Path, name: str) -> Record | None:
    """The record in a checkout; None where there is none."""
    path = root / FOLDER / f"{name}.json"
    found = read_object(path)
    if found is None:
        return None
    try:
        rows, gains = (
            tuple(Row(**{**row, "values": tuple(row["values"])}) for row in found[part]) for part in ("rows", "gains")
        )
        return Record(**{**found, "rows": rows, "gains": gains, "seeds": tuple(found["seeds"])})
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not a result ({error})", hint="Write it anew: python docs/make/doc_verify.py --write."
        ) from None


__all__ = ["FOLDER", "Measured", "Record", "Result", "Row", "read", "recorded", "summary"]
