"""Trees kept as arrays say what scikit-learn's say, also of what is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)

from unmask.modalities.events.outcome.trees import BOOSTING, LEAF, SHARE, Trees


def made(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features with gaps (the third is missing everywhere), new ones, and numbers."""
    rng = np.random.default_rng(seed)
    x, new = rng.normal(size=(2, 300, 12)).astype(np.float32)
    y = np.where(rng.random(300) < 0.3, 2.0, x[:, 0] ** 2 + x[:, 1])
    x[rng.random(x.shape) < 0.2], new[rng.random(new.shape) < 0.2] = np.nan, np.nan
    x[:, 0] = np.where(y > 1.5, np.nan, x[:, 0])  # what is missing says something
    x[:, 2] = np.nan
    return x, new, y


def fitted(boosted: bool, classes: bool, x: np.ndarray, y: np.ndarray) -> tuple[Trees, Any]:
    x_there = np.where(np.isnan(x).all(0), 0, x)
    if boosted:
        kind: Any = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
        theirs = kind(**BOOSTING | {"max_iter": 20}, random_state=4)
        return Trees.boost(x, y, rounds=20, classes=4 if classes else None, seed=4), theirs.fit(x_there, y)
    kind = ExtraTreesClassifier if classes else ExtraTreesRegressor
    theirs = kind(20, min_samples_leaf=LEAF, max_features=SHARE, random_state=4)
    return Trees.grow(x, y, trees=20, classes=4 if classes else None, seed=4), theirs.fit(x_there, y)


@pytest.mark.parametrize("boosted", [False, True])
@pytest.mark.parametrize("known", [(0, 2), (0, 1, 3), (1,)])
def test_classes_as_scikit_learn_says_them(boosted: bool, known: tuple[int, ...]):
    x, new, number = made()
    y = np.array(known)[np.digitize(number, np.quantile(number, [0.4, 0.7][: len(known) - 1]))]
    trees, theirs = fitted(boosted, True, x, y)
    again = Trees(**trees.sizes)
    again.load_state_dict(trees.state_dict())
    p, expected = again.predict(new), theirs.predict_proba(np.where(np.isnan(x).all(0), 0, new))
    if len(known) == 1:  # of which scikit-learn's boosting says that it never comes
        expected = np.ones((len(new), 1))
    np.testing.assert_allclose(p[:, known], expected, atol=1e-5)
    assert (np.delete(p, known, 1) == 0).all()  # classes never seen
    assert len(known) == 1 or np.ptp(p[:, known[0]]) > 0.2


@pytest.mark.parametrize("boosted", [False, True])
def test_numbers_as_scikit_learn_says_them(boosted: bool):
    x, new, y = made(1)
    trees, theirs = fitted(boosted, False, x, y)
    expected = theirs.predict(np.where(np.isnan(x).all(0), 0, new))
    np.testing.assert_allclose(trees.predict(new)[:, 0], expected, atol=1e-5)
    assert np.ptp(expected) > 0.5
