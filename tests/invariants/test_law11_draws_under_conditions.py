"""Law 11: rows drawn under conditions and rules are the model's own rows that meet them."""

import numpy as np
import pandas as pd
import pytest

from unmask.errors import UserError
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.rules.conditions import parse_where
from unmask.modalities.table.rules.rules import Rules
from unmask.modalities.table.synthesis import sampling
from unmask.modalities.table.synthesis.sampling import RowSampler

ROWS, SEEDS = 3000, (1, 2, 3)


@pytest.fixture(scope="module")
def model() -> TableModel:
    rng = np.random.default_rng(0)
    a = rng.normal(size=900)
    b = 0.8 * a + 0.6 * rng.normal(size=900)
    pressure = np.round(130 + 20 * a)
    table = pd.DataFrame(
        {
            "a": a.round(2),
            "b": b.round(2),
            "sbp": pressure,
            "dbp": np.round(80 + 0.4 * (pressure - 130) + rng.normal(0, 7, 900)),
            "sex": np.where(rng.random(900) < 1 / (1 + np.exp(-2 * a)), "F", "M"),
            "visit": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.round(300 + 80 * b), "D"),
            "lab": np.where(rng.random(900) < 0.4, np.nan, (b + rng.normal(0, 0.5, 900)).round(2)),
        }
    )
    return TableModel.fit(table, steps=0, members=2)


def drawn(model, where=None, rules=(), rows=ROWS, seed=1):
    limits = parse_where(where, model.schema)
    return RowSampler(model, limits, Rules.of(model.schema, rules), 1.0).sample(rows, seed)


@pytest.fixture(scope="module")
def own(model):
    return drawn(model, rows=200_000, seed=9)


DESIGNS = {
    "two conditions that pull apart": ("a <= 0 and b >= 0", ()),
    "a high and a low pressure": ("sbp >= 150 and dbp <= 80", ()),
    "a rule between columns": (None, ("a < b",)),
    "a chain and a condition": ("b <= 0.5", ("a < lab", "lab < b")),
    "three conditions of three kinds": ("sex == 'M' and a >= 0.3 and visit <= '2020-10-20'", ()),
    "a rule between kinds": (None, ("sex == 'F' -> a <= -0.2",)),
    "a column with holes": ("lab >= 0.5 and a <= 0 and sex == 'F'", ()),
}


@pytest.mark.parametrize("name", DESIGNS)
def test_draws_are_the_models_own_rows_that_meet_them(model, own, name):
    where, rules = DESIGNS[name]
    limits = parse_where(where, model.schema)
    met = np.all([np.ones(len(own[0]), bool), *(v.holds(own[p]) for p, v in limits.items())], axis=0)
    found = Rules.of(model.schema, rules)
    for broken in found.broken(own).values():
        met &= ~broken
    assert met.sum() > 400
    draws = [drawn(model, where, rules, seed=s) for s in SEEDS]
    for place, x in enumerate(own):
        kept, made = x[met], np.concatenate([d[place] for d in draws])
        assert all(limits[place].holds(d[place]).all() for d in draws if place in limits)
        # .03 deviations, and five standard errors of the two samples: by chance in one of a million runs.
        doubt = 5 * np.sqrt(1 / len(kept) + 1 / len(made)) * kept.std()
        assert abs(made.mean() - kept.mean()) <= 0.03 * x.std() + doubt, place
    for d in draws:
        assert not any(broken.any() for broken in found.broken(d).values())
        assert len(np.unique(np.column_stack(d), axis=0)) == ROWS


@pytest.mark.parametrize("seed", range(16))
def test_every_row_handed_out_meets_the_conditions_as_they_stand(model, seed):
    """Between, at and beyond the values that a column writes; what no value can meet is refused."""
    rng = np.random.default_rng(seed)
    table = model.synthesize(400, seed=seed)
    name = rng.choice(["a", "b", "sbp", "dbp", "lab"])
    off = [-1.2, -0.7, -0.3, -0.004, 0, 0.004, 0.3, 0.7, 1.2]
    low, high = np.sort(rng.choice(table[name], 1 + seed % 2)[[0, -1]] + rng.choice(off, 2))
    ends = f"`{name}` >{rng.choice(['', '='])} {low} and `{name}` <{rng.choice(['', '='])} {high}"
    try:
        made = model.synthesize(200, where=ends, seed=seed, extremes="keep", rare="keep")
    except UserError:
        assert table.query(ends).empty, ends
    else:
        assert len(made.query(ends)) == 200, ends


@pytest.mark.parametrize(
    "where", ["sbp > 120.2 and sbp < 120.8", "sbp == 120.5", "a == 0.125", "visit == '2020-10-20 12:00'"]
)
def test_conditions_between_two_values_that_are_written_are_refused(model, where):
    with pytest.raises(UserError, match="nothing is left"):
        model.synthesize(20, where=where)


def test_improbable_conditions_are_said_and_contradictions_refused(model, monkeypatch):
    monkeypatch.setattr(sampling, "ATTEMPTS", 4)
    far = "a >= 2.2 and b <= -1.5 and sex == 'M' and sbp <= 90 and dbp >= 110"
    with pytest.warns(UserWarning, match="weighed by how probable they are together"):
        model.synthesize(500, where=far, extremes="keep")
    with pytest.raises(UserError, match="a < b, b < a: nothing is left"):
        drawn(model, rules=("a < b", "b < a"), rows=50)


def test_draws_without_two_bound_columns_are_drawn_once(model):
    for where in (None, "a <= 0"):
        limits = parse_where(where, model.schema)
        sampler = RowSampler(model, limits, Rules.of(model.schema, ()), 1.0)
        assert np.array_equal(sampler.sample(50, 3)[1], sampler._drawn(0, 50, 3)[0][1])
