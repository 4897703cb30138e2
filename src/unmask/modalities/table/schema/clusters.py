"""Which rows belong together: patients with several visits, centres with several patients."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unmask.errors import UserError
from unmask.modalities.table.reading.findings import setting
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.parse import text_of
from unmask.modalities.table.schema.schema import Column, Schema
from unmask.modalities.table.schema.values import match_columns, missing_cells

FEWEST = 5
"""Clusters of several rows that a distribution of clusters can be estimated from at all."""
EVIDENCE = 3.0
"""Clusters in which a column would differ by chance, at least, if it is to say something that it differs in none."""


@dataclass(frozen=True)
class Clusters:
    """The cluster of every row.

    Attributes:
        number: (rows,) from 0, in the order of the first rows.
        names: of each cluster, as text.
    """

    number: np.ndarray
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    @functools.cached_property
    def order(self) -> np.ndarray:
        """Rows, cluster by cluster."""
        return np.argsort(self.number, kind="stable")

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """Rows of each cluster."""
        return np.bincount(self.number)

    def sums(self, x: np.ndarray, function: np.ufunc = np.add) -> np.ndarray:
        """(clusters, ...) sums of (rows, ...), or another function than the sum."""
        return function.reduceat(x[self.order], self.sizes.cumsum() - self.sizes, axis=0)

    def means(self, x: np.ndarray) -> np.ndarray:
        """(clusters, columns) means of (rows, columns)."""
        return self.sums(x) / self.sizes[:, None]

    def of_one_value(self, x: np.ndarray) -> np.ndarray:
        """(clusters,) the value of a column in each cluster; NaN where it has none, or several."""
        low = self.sums(x, np.fmin)
        return np.where(low == self.sums(x, np.fmax), low, np.nan)

    def differing(self, x: np.ndarray) -> tuple[np.ndarray, float]:
        """Clusters in which a column has several values, and in how many it would by chance.

        Args:
            x: (rows,) numbers, NaN where missing.
        """
        seen = ~np.isnan(x)
        size = self.sums(seen.astype(int))
        clusters = np.flatnonzero((size > 0) & np.isnan(self.of_one_value(x)))
        share = np.unique(x[seen], return_counts=True)[1] / max(seen.sum(), 1)
        sizes, count = np.unique(size[size > 1], return_counts=True)
        return clusters, float(sum(n * (1 - (share**rows).sum()) for rows, n in zip(sizes, count, strict=True)))

    def is_constant(self, x: np.ndarray) -> bool:
        """Whether a column is one of clusters (level two): never of several values within one, and not by chance."""
        differing, expected = self.differing(x)
        return not len(differing) and expected >= EVIDENCE

    def slip(self, x: np.ndarray) -> tuple[int, int] | None:
        """(cluster, row) of a column that differs within very few clusters, where by chance it would in most: the row
        that stands alone there."""
        differing, expected = self.differing(x)
        if not 0 < len(differing) <= max(1, 0.02 * len(self)) or expected < 0.5 * len(self):
            return None
        rows = self.order[self.number[self.order] == differing[0]]
        rows = rows[~np.isnan(x[rows])]
        values, count = np.unique(x[rows], return_counts=True)
        return int(differing[0]), int(rows[x[rows] == values[count.argmin()]][0])


def clusters_of(frame: Frame, schema: Schema, name: str) -> Clusters:
    """The clusters that a column names."""
    column = schema.columns[schema.number(name, where="cluster: ")]
    raw = frame.columns[match_columns(frame, schema)[schema.number(name)]]
    where, missing = f"{frame.source}, column {name!r}", missing_cells(raw, column, schema)
    if missing.any():
        more = f", as in {int(missing.sum()) - 1} more" if missing.sum() > 1 else ""
        raise UserError(
            f"{where}, row {frame.row_name(int(missing.argmax()))}: no value{more}: the row belongs to no cluster",
            hint="Write the cluster of every row, or take these rows out.",
        )
    texts = [text_of(v).strip() for v in raw.tolist()]
    odd = 0 if column.kind == "datetime" else next((i for i, text in enumerate(texts) if not _whole(text)), None)
    if column.kind == "datetime" or (column.kind == "numeric" and odd is not None):
        raise UserError(
            f"{where}, row {frame.row_name(odd or 0)}: {texts[odd or 0]!r} is a measurement, or a date, as are the "
            "other cells, and not the name of a cluster",
            hint="Give the column of the patient or centre that rows belong to; if these are codes, declare it: "
            + setting(name, 'kind = "nominal"'),
        )
    number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    found = Clusters(np.array([number[text] for text in texts], int), tuple(number))
    several = int((found.sizes > 1).sum())
    if several < FEWEST:
        what = f"{several} clusters of several rows" if several else "one row per cluster"
        raise UserError(
            f"{where}: {what} ({len(found)} values in {len(texts)} rows, such as {texts[0]!r} in row "
            f"{frame.row_name(0)})",
            hint=f"Expected {FEWEST} clusters of several rows or more. Leave the cluster out where rows are "
            "independent; a few centres are a category like any other.",
        )
    return found


def with_cluster(schema: Schema, name: str) -> Schema:
    """The schema in which a column names clusters: an identifier, of which nothing is modelled."""
    columns = [Column(name=c.name, kind="id", missing=c.missing) if c.name == name else c for c in schema.columns]
    return dataclasses.replace(schema, columns=tuple(columns), cluster=name)


def _whole(text: str) -> bool:
    try:
        return float(text.replace(",", ".")) % 1 == 0
    except ValueError:
        return True


def described(found: Clusters, columns: Sequence[Column], values: Sequence[np.ndarray]) -> str:
    """How many clusters there are, and which columns are of level two.

    Args:
        values: of each column, numbers with NaN where missing.
    """
    sizes = found.sizes
    constant = [c.name for c, x in zip(columns, values, strict=True) if c.modelled and found.is_constant(x)]
    rows = f"{sizes.min()}" if sizes.min() == sizes.max() else f"{sizes.min()} to {sizes.max()}"
    level = f"constant within clusters (level two): {', '.join(map(repr, constant))}" if constant else "no column is "
    return f"{len(found)} clusters of {rows} rows; {level}" + ("" if constant else "constant within clusters")
