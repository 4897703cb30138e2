"""Means, deviations and shares of a table's columns as they would be without holes.

Where what is missing depends on what is seen (the sicker, the more complete), the mean of the values that were seen is
not the mean of all. The factor analysis estimates it with everything else, by expectation maximisation with an
intercept; the model's columns are centred there. For complete columns nothing changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from unmask.core.hashing import Salt, hash_keys
from unmask.modalities.table.distribution.codec import Coding
from unmask.modalities.table.fitting.factor_fit import FactorFit

ROWS = 3000
"""Rows that the means are estimated on, where there are more: a sample, as their error there is .02 deviations."""
RELIABLE = 30
"""Rows of a level at which half of the move of its share is believed."""
FEW = 20
"""A column with fewer values keeps what was seen of it."""


def estimate_margins(fit: FactorFit, moments: np.ndarray) -> tuple[list[Coding], np.ndarray]:
    """Codings with the shares of their categories, and (columns, 2) means and deviations of the scores, of all rows.

    Args:
        fit: of the columns as they were seen.
        moments: (columns, 2) of the scores that were seen.
    """
    dims, cells = fit.dims, fit.cells
    rows = np.arange(len(cells))
    if len(rows) > ROWS:
        rows = np.sort(np.argsort(hash_keys(fit.seed, rows, Salt.MARGIN_ROWS), kind="stable")[:ROWS])
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

    Where a level has few rows, or few are left to the others, what tells it is mostly chance (`discriminant.py`), and
    so is the move: it is believed as far as the rows go.
    """
    share = np.array(seen)
    count = np.minimum(share[levels], 1 - share[levels]) * rows
    new = share.copy()
    new[levels] = np.clip(share[levels] + moved * count / (count + RELIABLE), 0.1 * share[levels], None)
    rest = np.setdiff1d(np.arange(len(share)), levels)
    if len(rest):  # levels without a dim of their own move together
        new[rest] *= max(1 - new[levels].sum(), 0.1 * share[rest].sum()) / max(share[rest].sum(), 1e-12)
    return tuple((new / new.sum()).tolist())


__all__ = ["estimate_margins"]
