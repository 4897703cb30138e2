"""Columns drawn by trees, and when they are."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from unmask.errors import UserError
from unmask.modalities.table.imputation.regressions import draw_regression
from unmask.modalities.table.imputation.trees import draw_tree_shares, draw_tree_values
from unmask.table import MultipleImputation


def frame(seed: int, n: int = 500) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A straight line, a step, and a category that two others tell together and neither alone; whole and with holes."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, n))
    either = rng.random(n) < np.where(a * b > 0, 0.95, 0.05)
    whole = pl.DataFrame(
        {
            "a": a,
            "b": b,
            "line": a - b + rng.standard_normal(n),
            "step": np.where(a > 0, 5.0, 0.0) + np.where(b > 1, 3.0, 0.0) + 0.3 * rng.standard_normal(n),
            "either": np.where(either, "yes", "no"),
            "odds": np.where(rng.random(n) < 1 / (1 + np.exp(-2 * a)), "yes", "no"),
        }
    )
    gone = rng.random((n, 4)) < 0.3
    holed = [
        pl.when(pl.Series(gone[:, k])).then(None).otherwise(pl.col(c)).alias(c)
        for k, c in enumerate(("line", "step", "either", "odds"))
    ]
    return whole, whole.with_columns(holed)


def test_what_a_regression_cannot_tell_is_drawn_by_a_tree_and_a_straight_line_is_not():
    whole, holed = frame(0)
    done = MultipleImputation(5, seed=0).fit(holed)
    assert done.methods_ == {"line": "norm", "step": "cart", "either": "cart", "odds": "logreg"}
    assert done.reasons_["either"].startswith("its draws are nearer to held-out values than those of logreg, by ")
    gone = holed["either"].is_null()
    right = np.mean([(t["either"] == whole["either"]).filter(gone).mean() for t in done])
    assert right > 0.8  # .905 for draws from the true shares; .5 for the more frequent answer, and for a regression
    asked = MultipleImputation(5, seed=0, method={"either": "logreg"}).fit(holed)
    assert asked.methods_["either"] == "logreg"
    assert np.mean([(t["either"] == whole["either"]).filter(gone).mean() for t in asked]) < 0.6


def test_every_drawn_value_is_one_of_the_column_and_shares_are_those_of_the_leaf():
    rng = np.random.default_rng(0)
    side = np.repeat([0.0, 1.0], 100)
    x = np.column_stack([np.ones(200), side, rng.standard_normal(200)])
    y = np.where(side > 0, 10.0, 0.0) + rng.standard_normal(200)
    drawn = draw_tree_values(x, y, x, rng)
    assert set(drawn) <= set(y)
    assert ((drawn > 5) == (side > 0)).all()
    levels, log_share = draw_tree_shares(x, side, x, rng)
    assert levels.tolist() == [0, 1]
    assert np.exp(log_share[:, 1]) == pytest.approx(side, abs=1e-5)


def test_residuals_of_weighted_regressions_have_the_variance_of_the_errors():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        x = np.column_stack([np.ones(60), rng.standard_normal((60, 5))])
        one = draw_regression(x, rng.integers(0, 2, 60) * 2.0 - 1, x, rng)
        found.append(np.average(one.residuals() ** 2, weights=one.weight))
    assert np.mean(found) == pytest.approx(1.0, abs=0.04)  # least squares alone: .83


def test_beyond_the_donors_of_a_leaf_a_straight_line_goes_on():
    rng = np.random.default_rng(0)
    line = np.arange(200.0)
    x = np.column_stack([np.ones(200), (line - 100) / 58])
    seen = (line < 150) | (line > 190)  # what lies between has no donor of its own
    drawn = draw_tree_values(x[seen], line[seen], x[~seen], rng)
    assert np.abs(drawn - np.clip(line[~seen], None, 191)).max() < 22  # the nearest observed values: 149 or 191
    assert set(drawn) >= {149.0, 191.0}
    top = draw_tree_values(x[:150], line[:150], x[150:], rng)
    assert (top[5:] == 149).all()  # a donor of the last leaf alone would give 140 to 149


@pytest.mark.parametrize(
    "options", [{"formula": "line ~ a + either"}, {"cluster": "ward"}], ids=["analysis", "clusters"]
)
def test_trees_agree_with_no_analysis_and_know_no_clusters(options):
    _, holed = frame(0, 200)
    holed = holed.with_columns(ward=pl.Series([f"w{k % 20}" for k in range(200)]))
    with pytest.raises(UserError, match="method of 'either': cart, with an analysis"):
        MultipleImputation(2, method={"either": "cart"}, **options).fit(holed)
    assert "cart" not in MultipleImputation(2, rounds=1, **options).fit(holed).methods_.values()


def test_a_shift_moves_what_a_tree_drew():
    _, holed = frame(0)
    plain = MultipleImputation(3, seed=0).fit(holed)
    moved = plain.shifted({"either": 5.0, "step": 100.0})
    gone = holed["step"].is_null()
    assert (moved[0]["step"] - plain[0]["step"]).filter(gone).to_numpy() == pytest.approx(100.0)
    gone = holed["either"].is_null()
    assert (moved[0]["either"] == "yes").filter(gone).mean() > (plain[0]["either"] == "yes").filter(gone).mean()
