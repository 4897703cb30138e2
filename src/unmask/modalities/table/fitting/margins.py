"""Scales, means, deviations and shares of a table's columns as they would be without holes.

Where what is missing depends on what is seen (the sicker, the more complete), the mean of the values that were seen is
not the mean of all. The factor analysis estimates it with everything else, by expectation maximisation with an
intercept; the model's columns are centred there, and their normal scores are ranks among all rows. For complete columns
nothing changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtr

from unmask.core.hashing import Salt
from unmask.modalities.table.distribution.cells import Cells, moments_of, sampled, to_cells
from unmask.modalities.table.distribution.codec import Coding
from unmask.modalities.table.distribution.factor_analysis import Dims, FactorAnalysis, FactorModel, fit_factors
from unmask.modalities.table.distribution.scale import BinScale, fit_scale
from unmask.modalities.table.recipes import TableSettings

ROWS = 3000
"""Rows that these are estimated on, where there are more: a sample, as their error there is .02 deviations."""
RELIABLE = 30
"""Rows of a level at which the correction of its share is shrunk to half."""
FEW = 20
"""A column with fewer values keeps what was seen of it."""


ROUNDS = 3
"""How often scales are estimated again, at most: eight rounds gave a near-linear pair (n = 100) no more than three."""
ITERATIONS = 10
"""Of the factor analysis in a round; 40 gave the same."""
SETTLED = 0.005
"""Rounds end when no border between values moves by more than this share of the distribution."""
BORDERS = 100
"""Values at which the distribution of the missing cells is worked out, at most."""


def scales_of_all_rows(
    codings: list[Coding], columns: Sequence[np.ndarray], settings: TableSettings, weight: np.ndarray | None = None
) -> list[Coding]:
    """Codings whose scales are those of all rows. Normal scores of the observed values alone make linear relations
    curved: by chance in a small table, and systematically where missing cells depend on other columns.

    By expectation maximisation: the factor analysis estimates how the missing cells of a column are distributed, every
    observed value then also counts for the missing ones near it, and the scale is fitted again. No value is made up:
    bins hold observed values alone, and atoms stay.

    Args:
        codings: of the values that were seen.
        columns: values with NaN where there is none.
        weight: (rows,) of each row, for bootstrap copies.
    """
    rows = len(columns[0]) if columns else 0
    weight = np.ones(rows) if weight is None else weight
    if np.array_equal(weight, np.round(weight)):  # numbers of copies: bins are as many as for the rows themselves
        columns = [np.repeat(x, weight.astype(np.int64)) for x in columns]
        rows = int(weight.sum())
        weight = np.ones(rows)
    known = [~np.isnan(x) & (weight > 0) for x in columns]
    lacking = [
        i
        for i, (c, here) in enumerate(zip(codings, known, strict=True))
        if c.scale is not None and c.scale.bins > 1 and FEW <= here.sum() < (weight > 0).sum()
    ]
    sample = sampled(np.arange(rows), ROWS, settings.train.seed, Salt.MARGIN_ROWS)
    part, codings = [x[sample] for x in columns], list(codings)
    for _ in range(ROUNDS if lacking else 0):
        cells, load = to_cells(part, codings), weight[sample]
        fit = FactorFit(dims=Dims(codings, moments_of(cells, load)), cells=cells, settings=settings, weight=load)
        if not fit.count(rows):
            break
        location, deviation = _scores_of(fit, rows)
        moved = 0.0
        for i in lacking:
            hidden = ~cells.seen[:, i] & (load > 0)
            before = codings[i].scale
            if before is None or not hidden.any():
                continue
            here, dim = known[i], int(fit.dims.of_quantity[i])
            own = columns[i][here]
            share = 1 - weight[here].sum() / weight.sum()
            border, below = _below(before, own, location[hidden, dim], deviation[hidden, dim], load[hidden])
            mass = _spread(own, weight[here], border, below, share)
            scale = fit_scale(own, most=settings.bins, weight=mass)
            codings[i] = dataclasses.replace(codings[i], scale=scale)
            moved = max(
                moved,
                np.abs(
                    np.interp(border, scale.knot_x, scale.knot_u) - np.interp(border, before.knot_x, before.knot_u)
                ).max(),
            )
        if moved < SETTLED:
            break
    return codings


def _scores_of(fit: FactorFit, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, dims) mean and deviation of the scores, given the seen cells of their row."""
    dims, cells = fit.dims, fit.cells
    found = fit.of_exactly(np.arange(len(cells)), factors=fit.count(rows), intercept=True, iterations=ITERATIONS)
    assert found.mean is not None
    x, seen = dims(torch.from_numpy(cells.number), torch.from_numpy(cells.score), torch.from_numpy(cells.seen))
    center = torch.tensor(found.mean, dtype=torch.float32)
    mean, variance = FactorAnalysis(found)(x - center, seen)
    return (dims.center + dims.scale * (mean + center)).numpy(), (dims.scale * variance.sqrt()).numpy()


def _below(
    scale: BinScale, seen: np.ndarray, location: np.ndarray, deviation: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Borders between the seen values, and the share of the missing ones below each."""
    values = np.unique(seen)
    border = (values[1:] + values[:-1]) / 2
    if len(border) > BORDERS:
        border = border[np.linspace(0, len(border) - 1, BORDERS).astype(int)]
    z = scale.score_at(border)
    return border, ndtr((z[:, None] - location) / deviation) @ weight / weight.sum()


def _spread(seen: np.ndarray, weight: np.ndarray, border: np.ndarray, below: np.ndarray, share: float) -> np.ndarray:
    """(values,) the share of the distribution of all rows that each observed value represents.

    Args:
        weight: (values,) of the rows of the seen values.
        below: (borders,) share of the missing cells below each.
        share: of missing cells.
    """
    group = np.searchsorted(border, seen)
    own = np.bincount(group, weight, minlength=len(border) + 1)
    whole = (1 - share) * own / own.sum() + share * np.diff(below, prepend=0.0, append=1.0)
    return weight * (whole / np.maximum(own, 1e-12))[group]


def estimate_margins(fit: FactorFit, moments: np.ndarray) -> tuple[list[Coding], np.ndarray]:
    """Codings with the shares of their categories, and (columns, 2) means and deviations of the scores, of all rows.
    `fit`: of the columns as they were seen; `moments`: (columns, 2) of the scores that were seen."""
    dims, cells = fit.dims, fit.cells
    rows = sampled(np.arange(len(cells)), ROWS, fit.settings.train.seed, Salt.MARGIN_ROWS)
    found = fit.of_exactly(rows, factors=fit.count(len(cells)), intercept=True)
    assert found.mean is not None
    spread = np.sqrt((found.loading**2).sum(1) + found.noise)
    codings, moments = list(dims.codings), moments.copy()
    column, level = dims.column.numpy(), dims.level.numpy()
    for i in np.flatnonzero((~cells.seen).any(0) & (cells.seen.sum(0) >= FEW)):
        own = np.flatnonzero(column == i)
        if not len(own):
            continue
        center, scale = (t.numpy()[own].astype(float) for t in (dims.center, dims.scale))
        if level[own[0]] < 0:
            # As far as two deviations: beyond it the few values that were seen say too little.
            moments[i] = (
                center[0] + scale[0] * np.clip(found.mean[own[0]], -2, 2),
                scale[0] * np.clip(spread[own[0]], 0.5, 2),
            )
            continue
        codings[i] = dataclasses.replace(
            codings[i],
            share=_shares(codings[i].share, level[own], scale * found.mean[own], int(cells.seen[:, i].sum())),
        )
    return codings, moments


def _shares(seen: Sequence[float], levels: np.ndarray, moved: np.ndarray, rows: int) -> tuple[float, ...]:
    """All shares of a column, of which some levels were estimated to have `moved` more or less than was seen in `rows`
    cells.

    Where a level has few rows, or leaves few to the others, what predicts it is mostly chance (`discriminant.py`), and
    so is the correction: it is shrunk, the more the fewer rows there are.
    """
    share = np.array(seen)
    count = np.minimum(share[levels], 1 - share[levels]) * rows
    new = share.copy()
    new[levels] = np.clip(share[levels] + moved * count / (count + RELIABLE), 0.1 * share[levels], None)
    rest = np.setdiff1d(np.arange(len(share)), levels)
    if len(rest):  # levels without a dim of their own move together
        new[rest] *= max(1 - new[levels].sum(), 0.1 * share[rest].sum()) / max(share[rest].sum(), 1e-12)
    return tuple((new / new.sum()).tolist())


MOST_ROWS = 10_000
"""Rows that it is fitted on at most: its parameters are few. Of 50 000 x 20 (`benchmarks/tables_scale.py sample`) 3
000, 10 000 and all rows gave an RMSE of .5947, .5915 and .5905 in 1.8, 4.2 and 19.5 s."""


@dataclass(frozen=True, kw_only=True)
class FactorFit:
    """A factor analysis of some of the rows of a table; see `fit_factors`.

    Attributes:
        settings: how many factors at most (fewer for few dims or rows), the ridge on their loadings, and the seed that
            decides the sample, where rows are many.
        weight: (rows,) of each row, for bootstrap copies.
    """

    dims: Dims
    cells: Cells
    settings: TableSettings
    weight: np.ndarray | None = None

    def count(self, rows: int) -> int:
        """How many factors so many rows bear; 0 where there is nothing to relate."""
        most = self.settings.factors
        if not most or len(self.dims) < 2 or rows < 8:
            return 0
        return max(1, min(most, len(self.dims) - 1, rows // 4))

    def of(self, rows: np.ndarray) -> FactorModel:
        """Fitted to these rows, or to `MOST_ROWS` of them."""
        rows = sampled(rows, MOST_ROWS, self.settings.train.seed, Salt.LINEAR_PART_ROWS)
        return self.of_exactly(rows, factors=self.count(len(rows)))

    def of_exactly(
        self, rows: np.ndarray, *, factors: int, intercept: bool = False, iterations: int = 40
    ) -> FactorModel:
        """Fitted to all of these rows. `intercept`: fit the means of the dims too; `iterations`: at most."""
        part = self.cells[rows]
        x, seen = self.dims(torch.from_numpy(part.number), torch.from_numpy(part.score), torch.from_numpy(part.seen))
        return fit_factors(
            x.double().numpy(),
            seen.numpy() > 0,
            factors=factors,
            shrink=self.settings.shrink,
            intercept=intercept,
            iterations=iterations,
            weight=None if self.weight is None else self.weight[rows],
        )
