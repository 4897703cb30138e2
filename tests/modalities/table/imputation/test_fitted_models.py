"""Estimates of other libraries' models: one name and one standard error each, in the same order in all tables."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from unmask.errors import UserError
from unmask.modalities.table.imputation.fitted_models import aligned, estimates_of, predictions_of
from unmask.modalities.table.imputation.pooling import pool


class Fitted:
    def __init__(self, **found):
        self.__dict__.update(found)


def equations(order: str, labels: list[tuple[str, str]]) -> Fitted:
    """As statsmodels gives them: a column per equation, the names of both in the index of the covariance."""
    params = pd.DataFrame([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], index=["const", "age", "score"])
    index = pd.MultiIndex.from_tuples(labels)
    covariance = pd.DataFrame(np.diag(np.ravel(params.to_numpy(), order) ** 2 / 100), index=index)
    return Fitted(params=params, bse=params / 10, df_resid=9, cov_params=lambda: covariance)


@pytest.mark.parametrize(
    ("order", "labels"),
    [
        ("F", [(level, term) for level in "BC" for term in ("const", "age", "score")]),  # MNLogit
        ("C", [(term, of) for term in ("const", "age", "score") for of in ("age", "score")]),  # VAR
    ],
)
def test_coefficients_of_several_equations_have_the_names_of_both(order, labels):
    """A multinomial regression was printed as const, age, score: a row of two equations, then the half of another."""
    found = estimates_of(equations(order, labels))
    assert found.names == tuple(map(":".join, labels))
    assert found.estimate.tolist() == ([1, 3, 5, 2, 4, 6] if order == "F" else [1, 2, 3, 4, 5, 6])
    assert found.error == pytest.approx(found.estimate / 10)
    with pytest.raises(UserError, match=r"\(3, 2\) coefficients without names"):
        estimates_of(Fitted(params=np.ones((3, 2)), bse=np.ones((3, 2)), cov_params=lambda: np.eye(6)))


@pytest.mark.parametrize(
    "test",
    [
        lambda x, y: stats.pearsonr(x, y),
        lambda x, y: {"r": stats.spearmanr(x, y)},
        lambda x, y: (stats.ttest_ind(x, y), stats.ttest_ind(y, x)),
        lambda x, y: stats.f_oneway(x, y),
        lambda x, y: stats.siegelslopes(x, y),
        lambda x, y: stats.chi2_contingency(np.abs([x, y])),
    ],
)
def test_a_statistic_and_its_p_value_are_no_estimate_and_its_error(test):
    with pytest.raises(UserError, match="no estimate and its standard error"):
        estimates_of(test(*np.random.default_rng(0).normal(size=(2, 9))))


def test_estimates_with_names_are_aligned_by_them():
    """Shares by value_counts stand in the order of each table's counts: they were pooled by position."""
    shares = [pd.Series({"a": 0.6, "b": 0.4}), pd.Series({"b": 0.55, "a": 0.45})]
    errors = [pd.Series({"b": 0.2, "a": 0.1}), pd.Series({"b": 0.2, "a": 0.1})]
    for kind in (lambda q, u: (q, u), lambda q, u: {k: (q[k], u[k]) for k in q.index}):
        first, second = aligned([estimates_of(kind(q, u)) for q, u in zip(shares, errors, strict=True)])
        assert first.names == second.names == ("a", "b")
        assert second.estimate.tolist() == [0.45, 0.55]
        assert first.error.tolist() == second.error.tolist() == [0.1, 0.2]
    for many in (shares, pd.DataFrame(shares)):
        found = pool(many, errors)
        assert found.names == ("a", "b")
        assert found.estimate == pytest.approx([0.525, 0.475])
        assert found.within == pytest.approx([0.01, 0.04])
    with pytest.raises(UserError, match="table 2 gave other estimates than table 1: 'b' only in one"):
        aligned([estimates_of((shares[0], errors[0])), estimates_of((shares[1][["a"]], errors[0][["a"]]))])


@pytest.mark.parametrize(
    "returned",
    [
        (pd.DataFrame(np.ones((3, 2))), pd.DataFrame(np.ones((3, 2)))),
        (pd.Series({"a": 1.0}), pd.Series({"b": 1.0})),
        ([1.0, 2.0], np.eye(2)),
        ([1.0], np.eye(1)),
        ([1.0, 2.0], [1.0, 2.0], ["a"]),
        (0.3, 0.7, 298.0),
    ],
)
def test_what_has_not_one_name_and_one_error_per_estimate_is_refused(returned):
    with pytest.raises(UserError, match="an analysis returned"):
        estimates_of(returned)
    with pytest.raises(UserError, match="1 names of 2 estimates"):
        pool(np.ones((2, 2)), np.ones((2, 2)), names=["a"])


def test_predictions_of_several_categories_are_refused():
    """Of three probabilities the last was taken; of several numbers per row all, as if each were a row's."""
    for name, values in (("predict_proba", np.full((4, 3), 1 / 3)), ("predict", np.ones((4, 2)))):
        with pytest.raises(UserError, match="numbers per row"):
            predictions_of(Fitted(**{name: lambda _, v=values: v}), None)
    assert predictions_of(Fitted(predict_proba=lambda _: np.array([[0.4, 0.6]])), None)[0].tolist() == [0.6]
