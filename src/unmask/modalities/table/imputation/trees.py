"""Imputation by trees (CART: Breiman, Friedman, Olshen & Stone 1984; in chained equations Burgette & Reiter 2010):
every incomplete row gets a donor from its leaf.

The predictions of the column's linear or logistic regression are one more predictor: a tree needs many leaves for a
straight line, and a regression cannot bend. Tree and donors are weighted by draws from a Dirichlet distribution (the
Bayesian bootstrap), so both vary with the uncertainty about them.
"""

from __future__ import annotations

import numpy as np
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from unmask.modalities.table.imputation.regressions import draw_regression, draw_shares

LEAF = 5
"""Donors in a leaf at least, as in R's mice."""
ROWS = 20_000
"""Rows that a tree is grown from at most."""
ABSENT = 1e-6
"""Probability of a level that no donor of the leaf has: shifts of the odds need a logarithm."""


def draw_tree_values(
    x: np.ndarray,
    y: np.ndarray,
    target: np.ndarray,
    rng: np.random.Generator,
    *,
    other: tuple[np.ndarray, np.ndarray] | None = None,
) -> np.ndarray:
    """(rows,) values of a quantity: those of a donor from each row's leaf. A row whose predicted mean lies beyond those
    of all donors of its leaf is moved by as much, to the nearest value of the column: trees go on as a constant beyond
    what was observed. Arguments as of `draw_donors`."""
    found = draw_regression(x, y, target, rng, other=other)
    grown = _Leaves(
        np.column_stack([found.mean, x[:, 1:]]), found.z, np.column_stack([found.wanted, target[:, 1:]]), rng
    )
    donors = grown.donors(rng)
    beyond = found.wanted - np.clip(found.wanted, *grown.ends(found.mean))
    if not beyond.any():
        return y[donors]
    values = np.unique(y)
    places = found.to(values)
    return values[np.searchsorted((places[1:] + places[:-1]) / 2, found.z[donors] + beyond)]


def draw_tree_shares(
    x: np.ndarray, y: np.ndarray, target: np.ndarray, rng: np.random.Generator, *, ordinal: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Levels that occur, and (rows, levels) log-probabilities: the shares of the donors in each row's leaf."""
    found = draw_shares(x, y, rng, ordinal=ordinal)
    of_donors, wanted = found.log_probability(x), found.log_probability(target)
    own = np.column_stack([of_donors[:, 1:], x[:, 1:]])
    number = np.searchsorted(found.levels, y.astype(int))
    grown = _Leaves(own, number, np.column_stack([wanted[:, 1:], target[:, 1:]]), rng, levels=len(found.levels))
    return found.levels, np.log(np.maximum(grown.shares(number, len(found.levels)), ABSENT))


class _Leaves:
    """A tree grown from weighted donors, and the leaf of each donor and of each target row."""

    def __init__(
        self, x: np.ndarray, y: np.ndarray, target: np.ndarray, rng: np.random.Generator, *, levels: int = 0
    ) -> None:
        self.weight = rng.standard_exponential(len(y))
        kind = DecisionTreeClassifier if levels else DecisionTreeRegressor
        tree = kind(min_samples_leaf=LEAF, random_state=int(rng.integers(2**31)))
        grown = rng.permutation(len(y))[:ROWS] if len(y) > ROWS else slice(None)
        tree.fit(x[grown], y[grown], sample_weight=self.weight[grown])
        self.of_donors, self.of_targets = tree.apply(x), tree.apply(target)

    def donors(self, rng: np.random.Generator) -> np.ndarray:
        """(targets,) numbers of donors, one from each target's leaf, by weight."""
        order = np.argsort(self.of_donors, kind="stable")
        leaves = self.of_donors[order]
        first = np.searchsorted(leaves, self.of_targets)
        last = np.searchsorted(leaves, self.of_targets, side="right") - 1
        upto = np.r_[0.0, np.cumsum(self.weight[order])]
        drawn = upto[first] + rng.random(len(first)) * (upto[last + 1] - upto[first])
        return order[np.clip(np.searchsorted(upto, drawn, side="right") - 1, first, last)]

    def ends(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(targets,) least and greatest x of the donors in each target's leaf."""
        size = int(max(self.of_donors.max(), self.of_targets.max())) + 1
        low, high = np.full(size, np.inf), np.full(size, -np.inf)
        np.minimum.at(low, self.of_donors, x)
        np.maximum.at(high, self.of_donors, x)
        return low[self.of_targets], high[self.of_targets]

    def shares(self, number: np.ndarray, levels: int) -> np.ndarray:
        """(targets, levels) weighted shares of the levels in each target's leaf."""
        count = np.zeros((int(max(self.of_donors.max(), self.of_targets.max())) + 1, levels))
        np.add.at(count, (self.of_donors, number), self.weight)
        own = count[self.of_targets]
        return own / own.sum(1, keepdims=True)
