"""Rules between columns hold in points, draws and synthetic rows alike; observed cells stay; what cannot be met is
said."""

import datetime as dt
import warnings

import numpy as np
import pandas as pd
import pytest

from unmask.errors import UserError
from unmask.modalities.table.imputation.complete import complete
from unmask.modalities.table.model import TableModel, load
from unmask.modalities.table.rules.conditions import parse_constraints
from unmask.modalities.table.rules.rules import Rules
from unmask.modalities.table.schema.schema import Column, Schema
from unmask.modalities.table.synthesis.synthesize import perturb

RULES = ["admission <= surgery <= discharge", "bmi := weight / height**2", "dbp < sbp", "pregnant == 1 -> sex == 'F'"]
FAST = {"steps": 0, "members": 2}


def stays(rows: int = 250, seed: int = 0, missing: float = 0.0) -> pd.DataFrame:
    """Three dates in order, a body mass index, two pressures, an implication; pandas, with holes on request."""
    rng = np.random.default_rng(seed)
    day = rng.integers(0, 900, rows)
    wait, stay = rng.poisson(1.5, rows), rng.poisson(4, rows)
    sex = np.where(rng.random(rows) < 0.5, "F", "M")
    height = np.round(rng.normal(np.where(sex == "F", 1.65, 1.78), 0.07), 2)
    weight = np.round(rng.normal(26, 4, rows) * height**2, 1)
    low = np.round(rng.normal(75, 12, rows))
    frame = pd.DataFrame(
        {
            "admission": day,
            "surgery": day + wait,
            "discharge": day + wait + stay,
            "sex": sex,
            "pregnant": ((sex == "F") & (rng.random(rows) < 0.4)).astype(int),
            "height": height,
            "weight": weight,
            "bmi": np.round(weight / height**2, 1),
            "dbp": low,
            "sbp": low + 1 + rng.poisson(25, rows),
        }
    )
    for name in ("admission", "surgery", "discharge"):
        frame[name] = pd.to_datetime(frame[name], unit="D", origin="2020-01-01")
    if missing:
        for name in frame:
            frame.loc[rng.random(rows) < missing, name] = None
    return frame


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return stays(missing=0.3)


@pytest.fixture(scope="module")
def model(table) -> TableModel:
    return TableModel.fit(table, constraints=RULES, **FAST)


def breaches(t: pd.DataFrame) -> dict[str, int]:
    t = t.assign(sex=t.sex.astype(str), pregnant=t.pregnant.astype(float))
    computed = (t.bmi - t.weight / t.height**2).abs()
    return {
        "dates": int((~((t.admission <= t.surgery) & (t.surgery <= t.discharge))).sum()),
        # bmi, weight and height are written with 1, 1 and 2 decimals
        "bmi": int((computed > 0.051 + 0.05 / t.height**2 + 2 * t.weight * 0.005 / t.height**3).sum()),
        "pressure": int((t.dbp >= t.sbp).sum()),
        "pregnant": int(((t.pregnant == 1) & (t.sex != "F")).sum()),
        "times of day": sum(int((t[c].dt.normalize() != t[c]).sum()) for c in ("admission", "surgery", "discharge")),
    }


@pytest.mark.parametrize("draws", [0, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_rules_hold_in_points_and_draws(table, model, draws, seed):
    found = complete(model, table, draws=draws, seed=seed)
    assert not found.notes
    for t in found.tables:
        assert t.notna().all(axis=None)
        assert not any(breaches(t).values()), breaches(t)
        seen = table.notna()
        assert t.where(seen).equals(table.where(seen).astype(t.dtypes.to_dict()))


def test_without_them_rules_are_broken(table):
    assert min(breaches(complete(TableModel.fit(table, **FAST), table, draws=1).tables[0]).values()) == 0
    loose = breaches(complete(TableModel.fit(table, **FAST), table, draws=1).tables[0])
    assert loose["bmi"] > 50
    assert loose["dates"] > 5


@pytest.mark.parametrize("seed", [0, 1])
def test_rules_hold_in_synthetic_rows(model, seed, tmp_path):
    new = model.synthesize(1500, seed=seed)
    assert not any(breaches(new).values()), breaches(new)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert again.schema.constraints == tuple(RULES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not any(breaches(again.synthesize(300, seed=seed, where="admission > '2021-01-01'")).values())


@pytest.mark.parametrize("seed", [0, 1])
def test_rules_hold_where_real_cells_are_drawn_anew(model, seed):
    whole = stays(seed=seed)
    assert not any(breaches(whole).values())
    new = perturb(model, whole, share=0.5, seed=seed)
    assert not any(breaches(new).values()), breaches(new)
    assert 0.3 < (new == whole).to_numpy().mean() < 0.8


def test_rules_may_be_given_in_use(table):
    model = TableModel.fit(table, **FAST)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not any(breaches(model.impute(table, draws=1, constraints=RULES)[0]).values())
        cells = model.intervals(table, constraints=RULES)
    ends = cells[cells.low.notna()]
    assert ((ends.low <= ends.value) & (ends.value <= ends.high)).all()
    low = cells[cells.column == "dbp"].set_index("row").high
    other = table.sbp[low.index]
    assert (low[other.notna()] < other[other.notna()]).all()
    pregnant = cells[(cells.column == "pregnant")].set_index("row").probabilities
    assert all(p["1"] == 0 for row, p in pregnant.items() if table.sex[row] == "M")


def test_a_computed_column_is_computed_and_solved_for(model):
    t = stays(60, seed=5)
    t.loc[:19, "bmi"] = None
    t.loc[20:39, "weight"] = None
    t.loc[40:49, "height"] = None
    t.loc[50:, ["weight", "height"]] = None
    found = complete(model, t, interval=0.9)
    filled = found.tables[0]
    np.testing.assert_allclose(filled.bmi[:20], t.weight[:20] / t.height[:20] ** 2, atol=0.0501)
    np.testing.assert_allclose(filled.weight[20:40], t.bmi[20:40] * t.height[20:40] ** 2, atol=0.0501)
    np.testing.assert_allclose(filled.height[40:50], np.sqrt(t.weight[40:50] / t.bmi[40:50]), atol=0.00501)
    assert not breaches(filled)["bmi"]
    sure = {r["row"] for r in found.records if r.get("low") == r.get("high") == r["value"]}
    assert sure >= set(range(50))


def test_what_is_broken_as_recorded_is_said_and_left(model, table):
    t = stays(30, seed=2)
    t.loc[3, "sbp"] = t.loc[3, "dbp"] - 5
    t.loc[4, ["admission", "surgery", "discharge"]] = [dt.datetime(2021, 5, 9), None, dt.datetime(2021, 5, 1)]
    with pytest.warns(UserWarning, match="recorded") as said:
        filled = model.impute(t)
    texts = [str(w.message) for w in said]
    assert any("'dbp < sbp' is broken as recorded in row 3" in s for s in texts)
    assert any("cannot be met, given what is recorded, in row 4" in s for s in texts)
    assert filled.sbp[3] == t.sbp[3]
    assert filled.notna().all(axis=None)
    worse = TableModel.fit(t.drop(columns=["surgery"]), constraints=["dbp < sbp"], **FAST)
    assert any("broken as recorded in row 3" in note for note in worse.facts["notes"])


def test_recorded_cells_beyond_the_training_range_go_before_it(model):
    t = stays(4, seed=2)
    t.loc[:, "admission"] = dt.datetime(2030, 1, 5)
    t.loc[:, "discharge"] = dt.datetime(2030, 1, 9)
    t.loc[:, "surgery"] = None
    for draws in (0, 2):
        found = complete(model, t, draws=draws)
        assert not found.notes
        assert not any(breaches(one)["dates"] for one in found.tables)


def test_a_chain_binds_what_stands_between():
    schema = Schema(columns=tuple(Column(name=n, kind="integer", decimals=0, low=0, high=100) for n in "abcd"))
    rules = Rules(schema, parse_constraints(["a <= b < c", "d >= c"], schema))
    nan = np.full(2, np.nan)
    left = rules.limits(0, {0: nan, 1: nan, 2: nan, 3: np.array([50.0, 7.0])})
    assert left.high.tolist() == [49, 6]
    assert rules.limits(3, {0: np.array([10.0, 20.0]), 1: nan, 2: nan, 3: nan}).low.tolist() == [11, 21]
    dead = rules.limits(1, {0: np.array([60.0, 1]), 1: nan, 2: np.array([50.0, 9]), 3: nan}).dead
    assert dead.tolist() == [True, False]


@pytest.mark.parametrize(
    ("formula", "solve", "value"),
    [
        ("c := a / b**2", {"a": 48.0, "b": 2.0}, {"a": 48.0, "b": 2.0, "c": 12.0}),
        ("c := (a - b) * 2 + 1", {"a": 7.0, "b": 3.0}, {"a": 7.0, "b": 3.0, "c": 9.0}),
        ("c := 10 - a", {"a": 4.0}, {"a": 4.0, "b": 0.0, "c": 6.0}),
        ("c := 2 / a", {"a": 4.0}, {"a": 4.0, "b": 0.0, "c": 0.5}),
        ("c := 2 ** a", {"a": 3.0}, {"a": 3.0, "b": 0.0, "c": 8.0}),
        ("c := a * a + b", {"b": 1.0}, {"a": 3.0, "b": 1.0, "c": 10.0}),
    ],
)
def test_formulas_are_turned_round(formula, solve, value):
    schema = Schema(columns=tuple(Column(name=n, kind="numeric") for n in "abc"))
    (rule,) = parse_constraints([formula], schema)
    columns = {i: np.array([value[n]]) for i, n in enumerate("abc")}
    assert {"abc"[i]: float(f(columns)[0]) for i, f in rule.solve.items()} == pytest.approx(solve)


def test_rules_come_with_the_schema(table, tmp_path):
    (tmp_path / "s.toml").write_text('constraints = ["dbp < sbp"]\n')
    model = TableModel.fit(table, schema=tmp_path / "s.toml", **FAST)
    assert model.inspect()["constraints"] == ["dbp < sbp"]
    assert not breaches(model.impute(table))["pressure"]
    with pytest.raises(UserError, match="sbpp"):
        TableModel.fit(table, schema={"constraints": ["dbp < sbpp"]}, **FAST)
    with pytest.raises(UserError, match="cannot be read"):
        model.impute(table, constraints=["dbp"])


def test_dates_of_synthetic_rows_stay_dates(table):
    new = TableModel.fit(table, **FAST).synthesize(50)
    assert not breaches(new)["times of day"]


@pytest.mark.parametrize("how", ["mirrored", "drawn under them"])
def test_columns_completed_by_another_method_are_made_to_meet_the_rules(table, model, how):
    from unmask.modalities.table.imputation.under_rules import drawn_under, settled
    from unmask.modalities.table.reading.readers import read_frame
    from unmask.modalities.table.schema.values import decode, encode

    columns = encode(read_frame(table), model.schema)
    drawn = model.table.draw(columns, seed=3)
    if how == "mirrored":
        done, moved = settled(Rules.of(model.schema), columns, drawn)
        assert 0 < moved < np.isnan(np.column_stack(columns)).sum() / 2
    else:
        done = drawn_under(Rules.of(model.schema), model.table, columns, seed=3)
    for before, after in zip(columns, done, strict=True):
        assert (before == after)[~np.isnan(before)].all()
    filled = {c.name: decode(x, c) for c, x in zip(model.schema.columns, done, strict=True)}
    assert not any(breaches(pd.DataFrame(filled)).values()), breaches(pd.DataFrame(filled))


def test_rules_hold_in_multiple_imputation(table):
    from unmask import MultipleImputation

    found = MultipleImputation(3, schema={"constraints": RULES}).fit(table)
    for one in found.completed:
        assert not any(breaches(one).values()), breaches(one)
        seen = table.notna()
        assert one.where(seen).equals(table.where(seen).astype(one.dtypes.to_dict()))
    assert any("to meet the rules" in note for note in found.notes_)
