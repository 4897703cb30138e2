"""Formulas mean what R means by them, or are refused; what cannot be estimated is said."""

import re

import numpy as np
import pandas as pd
import pytest

from unmask import MultipleImputation, TableModel
from unmask.errors import UserError
from unmask.modalities.table.imputation.formula_text import parse_formula

N = 60
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "y": RNG.normal(size=N).round(3),
        "x": RNG.normal(size=N).round(3),
        "z": RNG.gamma(2, size=N).round(3),
        "g": RNG.choice(list("abc"), N),
        "h": RNG.choice(["u", "v"], N),
    }
)
# The columns of R 4's model.matrix, by name (`:` between factors, a letter for the level of g or h).
R = {
    "y ~ g + x:g": "1 b c x:a x:b x:c",
    "y ~ 0 + x + g": "x a b c",
    "y ~ x + g - 1": "x a b c",
    "y ~ g*h": "1 b c v b:v c:v",
    "y ~ g:h": "1 a:u b:u c:u a:v b:v c:v",
    "y ~ g + g:h": "1 b c a:v b:v c:v",
    "y ~ h + g:h": "1 v u:b v:b u:c v:c",
    "y ~ 0 + g + h": "a b c v",
    "y ~ 0 + g:h": "a:u b:u c:u a:v b:v c:v",
    "y ~ x:g": "1 x:a x:b x:c",
    "y ~ x + x:g": "1 x x:b x:c",
    "y ~ x:g:h": "1 x:a:u x:b:u x:c:u x:a:v x:b:v x:c:v",
    "y ~ x*g*h": "1 x b c v x:b x:c x:v b:v c:v x:b:v x:c:v",
    "y ~ g*h - g": "1 v b:u c:u b:v c:v",
    "y ~ C(g, Treatment('b'))": "1 a c",
    "y ~ C(g, Treatment(reference='c')) + factor(h)": "1 a b v",
    "y ~ as.factor(g)": "1 b c",
    "y ~ factor(g) + x:factor( g )": "1 b c x:a x:b x:c",
    "y ~ C(g, Treatment('b')) + x:C(g, Treatment('b'))": "1 a c x:a x:b x:c",
    "y ~ C(g, Treatment('b')) + x:C(g, Treatment(reference=\"b\"))": "1 a c x:a x:b x:c",
}


def by_hand(names):
    parts = {"1": np.ones(N), "x": FRAME.x.to_numpy()}
    parts |= {
        level: (FRAME[c] == level).to_numpy(float) for c, levels in (("g", "abc"), ("h", "uv")) for level in levels
    }
    return np.column_stack([np.prod([parts[f] for f in name.split(":")], 0) for name in names.split()])


@pytest.fixture(scope="module")
def schema():
    return TableModel.fit(FRAME, steps=0, members=2).schema


def coded(schema):
    columns = [schema.columns[i] for i in schema.modelled]
    return [
        FRAME[c.name].to_numpy(float) if c.is_quantity else FRAME[c.name].map(c.categories.index).to_numpy(float)
        for c in columns
    ]


def as_set(design):
    return sorted(map(tuple, np.round(design.T, 9).tolist()))


@pytest.mark.parametrize("text", R)
def test_categories_are_coded_as_r_codes_them(schema, text):
    formula = parse_formula(text, schema)
    design = formula.design(coded(schema))
    if formula.intercept:
        design = np.column_stack([np.ones(N), design])
    assert as_set(design) == as_set(by_hand(R[text]))
    assert len(formula.names) == len(set(formula.names)) == sum(formula.widths()) == design.shape[1] - formula.intercept


def test_an_analysis_of_a_slope_per_level_is_least_squares_on_those_columns():
    rng = np.random.default_rng(1)
    g = rng.choice(list("abc"), 400)
    x = rng.normal(size=400)
    slope, level = np.array([1.0, -1.0, 2.0]), np.array([10.0, 12.0, 8.0])
    at = np.searchsorted(["a", "b", "c"], g)
    frame = pd.DataFrame({"y": (level[at] + slope[at] * x + rng.normal(0, 0.1, 400)).round(4), "x": x.round(4), "g": g})
    found = MultipleImputation(2, rounds=1).fit(frame).pool("y ~ g + x:g")
    told = dict(zip(found.names, found.estimate, strict=True))
    assert told["(Intercept)"] == pytest.approx(10, abs=0.05)
    assert [told[n] for n in found.names if "x" in n] == pytest.approx(slope, abs=0.05)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("y ~ strata(g)", r"strata\(\)"),
        ("y ~ x + offset(z)", "belongs to counts"),
        ("y ~ ns(x, 3)", r"ns\(\)"),
        ("y ~ bs(x, df=4)", r"bs\(\)"),
        ("y ~ poly(x, 2)", r"poly\(\)"),
        ("y ~ C(g, Sum)", "other contrasts"),
        ("y ~ C(g, Poly)", "other contrasts"),
        ("y ~ C(g, levels=['b', 'a'])", "other contrasts"),
        ("y ~ C(g, Treatment('nobody'))", "no level 'nobody'"),
        ("y ~ C(x)", "is a quantity"),
        ("y ~ g + x:factor(g)", r"'g' and 'factor\(g\)' are two variables"),
        ("y ~ factor(g):h + C(g)", r"'factor\(g\)' and 'C\(g\)' are two variables"),
        ("y ~ C(g, Treatment('b')) + x:C(g)", "are two variables"),
        ("y ~ g*h - factor(g)", "are two variables"),
        ("y ~ . + as.factor(g)", r"'g' and 'as.factor\(g\)' are two variables"),
        ("y ~ (x + z)**2", "arithmetic"),
        ("y ~ x / g", "arithmetic"),
        ("y ~ x %in% g", "cannot be read"),
        ("Surv(x, z, h) ~ g", "Surv takes time and event"),
    ],
)
def test_what_means_another_thing_is_refused_by_name(schema, text, said):
    with pytest.raises(UserError, match=said):
        parse_formula(text, schema)


def test_names_keep_their_blanks_inside_functions():
    frame = FRAME.rename(columns={"g": "my col", "z": "lab value"})
    schema = TableModel.fit(frame, steps=0, members=2).schema
    with pytest.raises(UserError, match=r"'my col' and 'factor\(my col\)' are two variables"):
        parse_formula("y ~ `my col` + x:factor(`my col`)", schema)
    assert parse_formula("y ~ exp( `lab value` )", schema).names == ["exp(lab value)"]


def cohort(n=227):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "time": rng.exponential(10, n).round(2) + 0.1,
            "event": (rng.random(n) < 0.6).astype(int),
            "died": np.where(rng.random(n) < 0.4, "yes", "no"),
            "age": rng.normal(60, 10, n).round(1),
            "g": np.where(np.arange(n) < 5, "rare", rng.choice(["a", "b"], n)),
        }
    )
    frame.loc[:4, "event"], frame.loc[:4, "died"] = 0, "no"
    frame.loc[rng.random(n) < 0.2, "age"] = np.nan
    return frame


def test_a_level_without_an_event_is_named_and_no_number():
    done = MultipleImputation(3, duration="time", event="event", rounds=1).fit(cohort().drop(columns="died"))
    with pytest.warns(UserWarning, match=r"separation\): g=rare \(0 of 5 rows\)"):
        found = done.pool_cox(["age", "g"])
    assert found.separated == ("g=rare",)
    for exponentiate in (False, True):
        table = found.table(exponentiate=exponentiate)
        assert "| g=rare | not estimable: separation | | |" in table
        assert re.search(r"\| g=b \| -?\d\.\d\d \(", table)
    assert np.isnan(found.estimate[found.names.index("g=rare")])
    assert np.isfinite(np.delete(found.estimate, found.names.index("g=rare"))).all()


def test_firths_likelihood_is_finite_under_separation():
    done = MultipleImputation(3, rounds=1).fit(cohort().drop(columns=["time", "event"]))
    with pytest.warns(UserWarning, match=r"g=rare \(0 of 5 rows\).*firth=True"):
        assert done.pool("died ~ g").separated == ("g=rare",)
    found = done.pool("died ~ g", firth=True)
    # Of a saturated table Firth adds half an outcome and half a failure to each cell (Heinze & Schemper 2002).
    frame = cohort()
    odds = {}
    for level in ("a", "b", "rare"):
        yes = (frame.died[frame.g == level] == "yes").to_numpy()
        odds[level] = np.log((yes.sum() + 0.5) / ((~yes).sum() + 0.5))
    told = dict(zip(found.names, found.estimate, strict=True))
    assert told["(Intercept)"] == pytest.approx(odds["a"], abs=1e-6)
    assert told["g=rare"] == pytest.approx(odds["rare"] - odds["a"], abs=1e-6)
    with pytest.raises(UserError, match="built for logistic regressions"):
        done.pool("age ~ g", firth=True)


def test_a_strong_effect_is_no_separation():
    rng = np.random.default_rng(3)
    x = rng.normal(size=500)
    frame = pd.DataFrame({"x": x.round(3), "y": np.where(rng.random(500) < 1 / (1 + np.exp(-4 * x)), "yes", "no")})
    found = MultipleImputation(2, rounds=1).fit(frame).pool("y ~ x")
    assert not found.separated
    assert found.estimate[1] == pytest.approx(4, abs=1)


def test_bounds_of_predicted_probabilities_are_probabilities():
    class Fitted:
        """As statsmodels' results of a logistic regression are."""

        def __init__(self, table):
            self.model = type("Model", (), {"endog": (table.died == "yes").astype(float)})
            self.predicted, self.se = np.array([0.004, 0.5, 0.99]), np.array([0.01, 0.05, 0.02])

        def get_prediction(self, new):
            return self

    done = MultipleImputation(3, rounds=1).fit(cohort().drop(columns=["time", "event"]))
    found = done.predict(Fitted, None)
    assert found.estimate == pytest.approx([0.004, 0.5, 0.99])
    assert ((found.low > 0) & (found.high < 1) & (found.low < found.estimate) & (found.estimate < found.high)).all()
    assert found.error == pytest.approx([0.01, 0.05, 0.02])
