"""Which method draws values that are like the held-out ones of a column, by the energy score."""

from __future__ import annotations

import numpy as np

from unmask.modalities.table.imputation.chained import Chain
from unmask.modalities.table.imputation.scales import written

FOLDS, DRAWS, ROWS = 3, 6, 2000
"""Folds, values drawn per row, and rows that methods are judged on at most."""
ENOUGH = 60
"""Observed values without which no method is judged: folds of 20 say nothing."""


def energy_scores(chain: Chain, place: int, methods: list[str]) -> np.ndarray:
    """(methods, rows) energy scores of values drawn for observed cells that the method did not see: the mean distance
    of draws from the truth, less half that between two draws (Gneiting & Raftery 2007, eq. 21; 4.2). It is least in
    expectation for the true distribution. The distance of categories is 1 where they differ: half the Brier score."""
    plan, rng = chain.plan, chain.rng
    rows = np.flatnonzero(~plan.missing[place])
    rows = rng.permutation(rows)[:ROWS]
    truth, size = plan.columns[place][rows], plan.sizes[place]
    scores = np.empty((len(methods), len(rows)))
    for number in range(FOLDS):
        held = np.arange(len(rows)) % FOLDS == number
        for k, method in enumerate(methods):
            drawn = np.array([chain.by_method(method, place, rows[~held], rows[held]) for _ in range(DRAWS)])
            if not size:
                drawn, _ = written(drawn, plan.schema.column(place))
            far = drawn != truth[held] if size else np.abs(drawn - truth[held])
            between = drawn[:, None] != drawn if size else np.abs(drawn[:, None] - drawn)
            scores[k, held] = far.mean(0) - between.sum((0, 1)) / (2 * DRAWS * (DRAWS - 1))
    return scores


def better(chain: Chain, place: int, usual: str, others: list[str]) -> tuple[str, float]:
    """The method of a column: the usual one, or another whose draws are nearer to held-out values by more than the
    standard error of the difference; and by which share of the usual one's score."""
    if (~chain.plan.missing[place]).sum() < ENOUGH:
        return usual, 0.0
    scores = energy_scores(chain, place, [usual, *others])
    gains = scores[0] - scores[1:]
    gain, error = gains.mean(1), gains.std(1) / np.sqrt(gains.shape[1])
    best = int(np.argmax(gain))
    if gain[best] <= error[best]:
        return usual, 0.0
    return others[best], float(gain[best] / scores[0].mean())
