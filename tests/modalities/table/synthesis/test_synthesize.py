"""Synthetic rows: conditions and constraints exactly met, structure kept, outcomes alike, nothing copied."""

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tables import patients

from unmask.errors import UserError
from unmask.modalities.table.model import TableModel, load
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.values import encode
from unmask.modalities.table.survival.estimators import fit_cox
from unmask.modalities.table.synthesis.synthesize import augment, augmented, perturb, synthesize
from unmask.modalities.table.writing.writers import write_table


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return patients(400, missing=0.05)


@pytest.fixture(scope="module")
def model(table) -> TableModel:
    return TableModel.fit(table, steps=40, members=2)


def test_rows_look_like_the_table(table, model):
    new = model.synthesize(1500, seed=3)
    assert list(new.columns) == list(table.columns)
    assert (new.dtypes == table.dtypes).all()
    assert abs(new.age.mean() - table.age.mean()) < 2
    assert abs(new[["dbp", "sbp"]].corr().iloc[0, 1] - table[["dbp", "sbp"]].corr().iloc[0, 1]) < 0.15
    assert abs(new.event.mean() - table.event.mean()) < 0.08
    assert abs((new.stage == "I").mean() - (table.stage == "I").mean()) < 0.08
    assert not new.merge(table.dropna(), how="inner").shape[0]


def test_the_positive_part_of_a_column_of_many_zeros_keeps_its_shape():
    # Drawn first, by the linear part's normal, which the mass at 0 makes narrow: a mean of 16.4 for 20.
    rng = np.random.default_rng(0)
    packs = np.where(rng.random(600) < 0.3, rng.gamma(2, 10, 600).round(1), 0.0)
    table = pd.DataFrame({"age": rng.normal(60, 11, 600).round(), "packs": packs})
    drawn = TableModel.fit(table, steps=20, members=2).synthesize(2000, where="packs > 0").packs
    assert abs(drawn.mean() - packs[packs > 0].mean()) < 1
    assert abs(drawn.std() - packs[packs > 0].std()) < 1


def slopes(table: pd.DataFrame) -> np.ndarray:
    return np.array([np.polyfit(own.age, own.y, 1)[0] for _, own in table.dropna().groupby("sex")])


def test_an_interaction_outlives_holes_in_the_outcome():
    # In a random order a column was drawn given the outcome in half of the blocks, which rows without one never showed:
    # slopes of .066 and -.066.
    found = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        age, sex = rng.normal(60, 10, 1000).round(1), rng.choice(["f", "m"], 1000)
        y = 5 + 0.1 * (age - 60) * np.where(sex == "m", 1, -1) + rng.normal(0, 0.5, 1000)
        table = pd.DataFrame({"age": age, "sex": sex, "y": np.where(rng.random(1000) < 0.3, np.nan, y.round(2))})
        found.append(slopes(TableModel.fit(table).synthesize(4000)) - slopes(table))
    assert (np.abs(np.mean(found, 0)) < 0.02).all()


def older_lack_y(rows: int, **whole: np.ndarray) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.normal(60, 10, rows).round(1)
    y = np.where(rng.random(rows) < 1 / (1 + np.exp(-(age - 60) / 6)), np.nan, 0.06 * age + rng.normal(0, 0.8, rows))
    return pd.DataFrame({"age": age, **whole, "y": y.round(2)})


@pytest.mark.parametrize("whole", [{}, {"sex": np.array(["f", "m", "m"] * 200)}])
def test_a_whole_column_keeps_its_mean_where_another_lacks_the_old(whole):
    # Rows with holes had been learnt more often than others where little is visible: .1 deviations too old beside a
    # second whole column, .3 without one.
    table = older_lack_y(600, **whole)
    new = TableModel.fit(table).synthesize(6000)
    assert abs(new.age.mean() - table.age.mean()) < 0.5
    assert abs(new.age.std() - table.age.std()) < 0.5


def test_whole_columns_are_learnt_where_another_has_holes():
    # What the network says of a column was judged on cells that rows lack: of columns without holes it was left out.
    a, noise = np.random.default_rng(1).normal(size=(2, 600))
    new = TableModel.fit(older_lack_y(600, a=a.round(3), square=(a**2 + 0.3 * noise).round(3))).synthesize(3000)
    assert np.corrcoef(new.a**2, new.square)[0, 1] > 0.5


@pytest.mark.parametrize(("skewed", "curve"), [(False, np.square), (True, np.log)])
def test_hazards_keep_the_curve_of_a_covariate(skewed, curve):
    # They were linear in every covariate: the log hazard ratio of the square was .03 for .48, of the logarithm .15.
    rng = np.random.default_rng(0)
    x = (np.exp(rng.normal(size=800)) if skewed else rng.normal(size=800)).round(3)
    died, left = rng.exponential(np.exp(-0.5 * curve(x)) * 10), rng.uniform(0, 20, 800)
    table = pd.DataFrame({"x": x, "time": np.minimum(died, left).round(3), "event": (died <= left).astype(int)})
    new = TableModel.fit(table, steps=0, duration="time", event="event").synthesize(4000)
    real, made = (
        fit_cox(curve(t[["x"]].to_numpy()), t["time"].to_numpy(), t["event"].to_numpy()).beta for t in (table, new)
    )
    np.testing.assert_allclose(made, real, atol=0.1)


def test_the_seed_decides_and_rows_do_not_depend_on_how_many(model):
    assert model.synthesize(30, seed=4).equals(model.synthesize(30, seed=4))
    assert not model.synthesize(30, seed=4).equals(model.synthesize(30, seed=5))
    assert model.synthesize(30, seed=4).equals(model.synthesize(600, seed=4).iloc[:30])


def test_a_loaded_model_draws_the_same(model, tmp_path):
    model.save(tmp_path / "m")
    from unmask.modalities.table.writing.writers import as_polars

    again = as_polars(load(tmp_path / "m").synthesize(50)).to_pandas()
    expected = model.synthesize(50)
    for name in expected:
        assert again[name].astype(expected[name].dtype).tolist() == expected[name].tolist()


def test_a_loaded_model_draws_the_types_it_was_fitted_on(tmp_path):
    rng = np.random.default_rng(0)
    table = pl.DataFrame(
        {
            "day": [dt.date(2020, 1, 1) + dt.timedelta(days=int(d)) for d in rng.integers(0, 900, 60)],
            "flag": rng.random(60) < 0.5,
            "count": rng.integers(0, 9, 60),
            "x": rng.normal(size=60),
            "word": ["a", "b"] * 30,
        }
    )
    table.write_parquet(tmp_path / "t.parquet")
    TableModel.fit(tmp_path / "t.parquet", steps=2, members=2).save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert loaded.synthesize(20).schema == table.schema
    assert perturb(loaded, table).schema == table.schema
    whole, _ = augment(loaded, tmp_path / "t.parquet", where="flag == True", rows=9)
    assert whole.drop("synthetic")[:60].equals(table)
    assert load(loaded.save(tmp_path / "again")).synthesize(20).schema == table.schema


def test_a_model_of_a_file_gives_polars_tables(tmp_path):
    patients(60).to_csv(tmp_path / "t.csv", index=False)
    TableModel.fit(tmp_path / "t.csv", steps=2, members=2).save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    for table in (loaded.synthesize(9), perturb(loaded, tmp_path / "t.csv")):
        assert isinstance(table, pl.DataFrame)
        assert table["age"].dtype.is_numeric()


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("sex == 'F' and age >= 70", lambda t: (t.sex == "F") & (t.age >= 70)),
        ("60 < age <= 62", lambda t: (t.age > 60) & (t.age <= 62)),
        (
            "stage in ['I', 'III'] and 50 <= dbp < 70",
            lambda t: t.stage.isin(["I", "III"]) & (t.dbp >= 50) & (t.dbp < 70),
        ),
        ("stage != 'I'", lambda t: t.stage != "I"),
        ("event == 1 and time < 300", lambda t: (t.event == 1) & (t.time < 300)),
        ({"sex": "M"}, lambda t: t.sex == "M"),
        ({"age": np.float64(71), "sex": np.str_("M")}, lambda t: (t.age == 71) & (t.sex == "M")),
        ("sex == 'M' & age > 70", lambda t: (t.sex == "M") & (t.age > 70)),
        ("age == 71", lambda t: t.age == 71),
    ],
)
def test_conditions_are_met_exactly(model, where, holds):
    assert holds(model.synthesize(300, where=where, seed=1)).all()


def test_conditions_change_what_follows(model):
    young, old = (model.synthesize(400, where=w).time.mean() for w in ("age < 58", "age > 72"))
    assert old < young


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("agee > 3", "Did you mean 'age'"),
        ("sex == 'Q'", "no category 'Q'"),
        ("age > 200", "no row can meet"),
        ("age > 70 and age < 60", "contradict"),
        ("age > 70.2 and age < 70.8", "nothing is left for 'age'.*\n.*none of its values: whole numbers"),
        ("age == 70.5", "nothing is left for 'age'"),
        ("age > 70 or sex == 'F'", "'or' is not supported"),
        ("age", "not a comparison"),
        ("age >", "cannot be read"),
        ("sex > 'F'", "has no order"),
        ("age == 'old'", "is a quantity"),
        ("age >= 1e999", "is a quantity"),
        (f"age >= 1{'0' * 400}", "is a quantity"),
        ("sex == 'A & B'", "no category 'A & B'"),
        ("__import__('os').system('x') == 1", "no column"),
    ],
)
def test_wrong_conditions(model, where, says):
    with pytest.raises(UserError, match=says):
        model.synthesize(5, where=where)


def test_constraints_hold_in_every_row(model):
    new = model.synthesize(
        800,
        constraints=["dbp < sbp", "stage == 'III' -> sex == 'F'", "sbp <= 180", "age := dbp - sbp / 10"][:2],
        where="sbp < 125",
    )
    assert (new.dbp < new.sbp).all()
    assert (new.sbp < 125).all()
    assert (new.sex[new.stage == "III"] == "F").all()


def test_a_formula(model):
    new = model.synthesize(50, constraints=["age := sbp - dbp / 2"])
    assert (new.age - (new.sbp - new.dbp / 2)).abs().max() <= 0.51


def test_formulas_may_read_each_other_in_any_order(model):
    new = model.synthesize(50, constraints=["sbp := dbp + 40", "dbp := age - 1"])
    assert (new.dbp == new.age - 1).all()
    assert (new.sbp == new.age + 39).all()


@pytest.mark.parametrize(
    ("where", "constraints", "says"),
    [
        ("sbp > 120", ["sbp := dbp + 40"], "'sbp', which is computed"),
        (None, ["sbp := dbp + 40", "sbp < age"], "on a computed column"),
        (None, ["sbp := dbp + 40", "dbp := sbp - 40"], "computed from itself"),
        (None, ["sbp := dbp + 40", "sbp := age"], "once"),
        (None, ["sbp := dbp + event"], "'event' is not a quantity"),
        (None, ["stage := dbp"], "'stage' is not a quantity"),
    ],
)
def test_a_formula_that_cannot_hold_is_refused(model, where, constraints, says):
    with pytest.raises(UserError, match=says):
        model.synthesize(5, where=where, constraints=constraints)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_temperatures_that_are_none_are_refused(model, temperature):
    with pytest.raises(UserError, match=f"temperature={temperature}"):
        model.synthesize(2, temperature=temperature)


def test_a_condition_without_support_is_said(model):
    with pytest.warns(UserWarning, match="extrapolation"):
        model.synthesize(5, where="age > 86")
    with pytest.warns(UserWarning, match="all the conditions"):
        model.synthesize(5, where="age < 52 and stage == 'III' and sbp > 125")


def test_names_that_are_not_python_names():
    table = patients(80)[["age", "sbp", "sex"]].rename(columns={"sbp": "sys.bp", "sex": "Sex "})
    model = TableModel.fit(table, steps=2, members=2)
    with pytest.raises(UserError, match=r"has no category .the sys\.bp it's"):
        model.synthesize(5, where={"Sex ": "the sys.bp it's"})
    new = model.synthesize(40, where=["sys.bp > 120", "`Sex ` == 'F'"])
    assert (new["sys.bp"] > 120).all()
    assert (new["Sex "] == "F").all()


@pytest.fixture(scope="module")
def causes() -> pd.DataFrame:
    """A cause of death, empty for who lives, and unknown for some of the dead."""
    table = patients(300)
    table["cause"] = None
    table.loc[table.event == 1, "cause"] = np.where(table.age[table.event == 1] > 65, "heart", "cancer")
    return table


def test_structural_cells_are_empty(causes):
    new = TableModel.fit(causes, steps=3, members=2).synthesize(200)
    assert (new.cause.isna() == (new.event == 0)).all()


def test_a_condition_on_a_structural_column_asks_for_rows_that_have_it(causes):
    new = TableModel.fit(causes, steps=3, members=2).synthesize(200, where="cause == 'heart'")
    assert (new.cause == "heart").all()
    assert (new.event == 1).all()


def test_missing_cells_on_request(table, model):
    new = synthesize(model, 2000, missing=True).table
    assert abs(new.dbp.isna().mean() - table.dbp.isna().mean()) < 0.03
    assert not synthesize(model, 200, missing=True, where="dbp > 60").table.dbp.isna().any()


def test_missing_cells_come_in_the_patterns_of_the_table(causes):
    table = causes.assign(dbp=causes.dbp.where(causes.index % 3 > 0), sbp=causes.sbp.where(causes.index % 3 > 0))
    new = synthesize(TableModel.fit(table, steps=3, members=2), 600, missing=True).table
    assert (new.dbp.isna() == new.sbp.isna()).all()
    assert abs(new.dbp.isna().mean() - 1 / 3) < 0.06
    # Empty by its meaning is not missing: every dead patient has a cause in this table.
    assert new.cause[new.event == 1].notna().all()


def test_augment_adds_marked_rows(table, model):
    whole, new = augment(model, table, where="stage == 'III'", rows=60)
    assert whole.height == len(table) + 60
    assert whole["synthetic"].sum() == 60
    assert set(new["stage"]) == {"III"}


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_a_frame_that_is_added_to_keeps_its_types(table, tmp_path, kind):
    """Fitted to a file, given a frame: dates became texts of two forms, whole numbers floats."""
    table = table.assign(seen=pd.date_range("2020-01-01", periods=len(table)), age=table.age.fillna(50).astype(int))
    table.to_csv(tmp_path / "t.csv", index=False)
    model = TableModel.fit(tmp_path / "t.csv", steps=0)
    given = {"pandas": table, "polars": pl.from_pandas(table), "arrow": pa.Table.from_pandas(table)}[kind]
    whole, _ = augment(model, given, where="stage == 'III'", rows=4)
    assert whole["seen"].dtype.is_temporal()
    assert whole["age"].dtype == pl.Int64
    assert whole["seen"][:-4].to_list() == table.seen.to_list()
    assert whole["seen"].null_count() == 0
    write_table(table, tmp_path / "t.parquet")
    assert pl.read_parquet(tmp_path / "t.parquet")["seen"].dtype.is_temporal()


def german(rows: int) -> str:
    lines = ["Nr;Größe (cm);Wert;PLZ;Betrag"]
    for k in range(rows):
        value = f"{k % 9},{k % 7}" if k % 5 else ""
        lines.append(f"{k:04d};2.{k * 7 % 900 + 10:03d};{value};0{10 + k % 4}01;{k % 8 + 1}.{k * 37 % 900 + 99:03d},5")
    return "\n".join(lines) + "\n"


def test_a_file_that_is_added_to_stays_as_it_was_to_the_letter(tmp_path):
    (tmp_path / "g.csv").write_text(german(120), encoding="utf-8")
    schema = tmp_path / "schema.toml"
    schema.write_text('decimal = ","\n[columns.PLZ]\nkind = "nominal"\n[columns.Nr]\nkind = "id"\n', encoding="utf-8")
    model = TableModel.fit(tmp_path / "g.csv", schema=schema, steps=0)
    few = german(0) + "0002;4.500;1,1;01101;7.394,8\n0003;;NA;01201;1.000,5\n"
    (tmp_path / "few.csv").write_text(few, encoding="utf-8")
    whole, _ = augmented(model, tmp_path / "few.csv", "PLZ == '01101'", 6)
    write_table(whole, tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
    assert [line.rpartition(";") for line in lines[:3]] == [
        (line, ";", mark) for line, mark in zip(few.splitlines(), ("synthetic", "False", "False"), strict=True)
    ]
    (tmp_path / "rest.csv").write_text("\n".join([lines[0], *lines[3:]]), encoding="utf-8")
    again = read_frame(tmp_path / "rest.csv")
    values = encode(again, model.schema)
    place = model.schema.modelled.index(model.schema.number("Größe (cm)"))
    assert (values[place] > 1900).all()  # not 2.498
    assert set(again.columns[again.names.index("PLZ")]) == {"01101"}
    # As a table of types: numbers as numbers, by the marks of the schema; codes as the texts they are.
    for table in (
        augment(model, tmp_path / "few.csv", where="PLZ == '01101'", rows=6)[1],
        model.synthesize(6, where="PLZ == '01101'"),
    ):
        assert table["Größe (cm)"].min() > 1900
        assert set(table["PLZ"]) == {"01101"}
    assert model.impute(tmp_path / "g.csv")["Nr"][2] == "0002"
    write_table(
        Frame(names=["long"], columns=[np.array(["12345678901234567891", "2"], object)]), tmp_path / "l.parquet"
    )
    assert pl.read_parquet(tmp_path / "l.parquet")["long"].to_list() == ["12345678901234567891", "2"]
    (tmp_path / "marked.csv").write_text(few.replace("Nr;", "synthetic;"), encoding="utf-8")
    with pytest.raises(UserError, match="'synthetic' already"):
        augment(model, tmp_path / "marked.csv", where="PLZ == '01101'", rows=6)


def test_perturbation_keeps_part_of_real_rows(table, model):
    out = perturb(model, table, share=0.3)
    kept = ((out == table) | table.isna()).to_numpy().mean()
    assert 0.65 < kept < 0.95
    with pytest.raises(UserError):
        perturb(model, table, share=0)


def test_computed_columns_leave_the_outcome_as_it_is():
    """They were computed after the outcome, whose hazards were not numbers then: every new patient was event-free at
    the end."""
    rng = np.random.default_rng(0)
    weight, height = rng.normal(75, 10, 300).round(1), rng.normal(1.7, 0.1, 300).round(2)
    died, left = rng.exponential(np.exp(-(weight - 75) / 20)) * 10, rng.exponential(20, 300)
    frame = pd.DataFrame(
        {
            "weight": weight,
            "height": height,
            "bmi": (weight / height**2).round(2),
            "time": np.minimum(died, left).round(2),
            "event": (died <= left).astype(int),
        }
    )
    plain = TableModel.fit(frame, steps=0, duration="time", event="event").synthesize(400)
    ruled = TableModel.fit(frame, steps=0, duration="time", event="event", constraints=["bmi := weight / height**2"])
    for table in (ruled.synthesize(400), ruled.synthesize(400, where="height > 1.7")):
        assert table["event"].mean() == pytest.approx(frame["event"].mean(), abs=0.12)
        assert table["event"].mean() == pytest.approx(plain["event"].mean(), abs=0.12)
        assert table["time"].nunique() > 150
        assert np.allclose(table["bmi"], table["weight"] / table["height"] ** 2, atol=0.006)
