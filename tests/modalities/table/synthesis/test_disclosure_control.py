"""Synthetic rows keep back what a few patients alone have, and say so; the model folder says what it holds."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from tables import patients

from unmask.errors import UserError
from unmask.modalities.table.evaluate import evaluate_model
from unmask.modalities.table.model import TableModel, load
from unmask.modalities.table.pretrain import pretrain
from unmask.modalities.table.recipes import settings_of
from unmask.modalities.table.synthesis.synthesize import synthesize
from unmask.modalities.table.writing.writers import handed_out

FAST = {"steps": 0, "members": 2}


def visits(patients_: int = 90) -> pd.DataFrame:
    """Two visits per patient, with a record number, a surname, and a blood group with levels of a few rows."""
    table = patients(2 * patients_, seed=4)
    who = np.repeat(np.arange(patients_), 2)
    syllables = ["ka", "lo", "mi", "ne", "ru", "so", "ti", "va", "wu", "ze"]
    surname = [syllables[k // 10].title() + syllables[k % 10] + syllables[(k * 7) % 10] for k in who]
    group = np.where(np.arange(len(table)) % 2 == 0, "A", "0").astype(object)
    group[:3], group[3:10] = "B", "AB"
    return table.assign(record=[f"MRN{100000 + 37 * k}" for k in who], surname=surname, group=group)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return visits()


@pytest.fixture(scope="module")
def model(table) -> TableModel:
    return TableModel.fit(table, **FAST)


def test_no_identifier_of_a_patient_with_two_visits_is_released(model, table, tmp_path):
    made = synthesize(model, 400)
    for name in ("record", "surname"):
        assert name not in made.table or not set(made.table[name]) & set(table[name])
    assert any("'record'" in note for note in made.notes)
    table.to_csv(tmp_path / "t.csv", index=False)
    run = pretrain(tmp_path / "t.csv", tmp_path / "m", settings=settings_of(**FAST), console=False)
    for file in ("unmask.json", "report.html"):
        text = (run.folder / file).read_text()
        assert not [v for v in table.record if v in text]
        assert not [v for v in table.surname if v in text]


@pytest.mark.parametrize("kind", ["pandas", "polars", "file"])
def test_new_identifiers_on_request(table, kind, tmp_path):
    data = table if kind == "pandas" else pl.from_pandas(table)
    if kind == "file":
        data = tmp_path / "t.csv"
        table.to_csv(data, index=False)
    model = TableModel.fit(data, schema={"columns": {"record": {"kind": "id"}, "surname": {"kind": "id"}}}, **FAST)
    new = model.synthesize(30, ids="new")
    assert list(new.columns) == list(table.columns)
    assert list(new["record"]) == [f"S{k}" for k in range(1, 31)]
    assert "record" not in model.synthesize(5).columns


def test_new_identifiers_are_those_of_no_training_row(table, tmp_path):
    """Where patients are called S1 to S400, each fresh identifier was that of a patient, without a word."""
    called = table.assign(record=[f"S{k + 1}" for k in range(len(table))])
    model = TableModel.fit(called, schema={"columns": {"record": {"kind": "id"}, "surname": {"kind": "id"}}}, **FAST)
    model.save(tmp_path / "m")
    for one in (model, load(tmp_path / "m")):
        new = one.synthesize(30, ids="new")
        assert list(new["record"]) == [f"SS{k}" for k in range(1, 31)]
        assert list(new["surname"]) == [f"S{k}" for k in range(1, 31)]


@pytest.mark.parametrize("seed", [0, 1])
def test_rare_levels_and_extremes_are_kept_back_unless_asked_for(model, table, seed):
    made = synthesize(model, 3000, seed=seed)
    new = made.table
    assert set(new["group"]) == {"A", "0", "AB"}
    assert any("1 of 4 levels of 'group'" in note for note in made.notes)
    for name in ("age", "dbp", "sbp", "time"):
        x = np.sort(table[name])
        assert new[name].min() >= x[4]
        assert new[name].max() <= x[-5]
    whole = synthesize(model, 3000, seed=seed, rare="keep", extremes="keep").table
    assert "B" in set(whole["group"])
    assert whole["sbp"].max() > np.sort(table["sbp"])[-5]


def test_asking_for_what_is_kept_back_says_how(model):
    with pytest.raises(UserError, match="no row can meet") as refused:
        model.synthesize(5, where="group == 'B'")
    assert "rare='keep'" in refused.value.hint
    assert set(model.synthesize(20, where="group == 'B'", rare="keep")["group"]) == {"B"}
    for wrong in ({"rare": "no"}, {"extremes": "no"}, {"ids": "no"}):
        with pytest.raises(UserError, match="Expected"):
            model.synthesize(5, **wrong)


def test_a_column_of_rare_levels_is_left_out(table):
    doctor = [f"D{k // 3}" for k in range(len(table))]
    table = table.drop(columns=["record", "surname"]).assign(doctor=doctor)
    model = TableModel.fit(table, schema={"columns": {"doctor": {"kind": "nominal"}}}, **FAST)
    made = synthesize(model, 50)
    assert "doctor" not in made.table
    assert np.isnan(made.released[-1]).all()
    assert any("'doctor'" in note for note in made.notes)
    assert any("'doctor'" in line and "identifier?" in line for line in model.inspect()["contains"])
    assert "doctor" in model.synthesize(50, rare="keep")
    assert "identical_rows" in evaluate_model(model, table)


def sparse(**columns) -> pd.DataFrame:
    """200 patients with columns that hold a value in a few rows and nothing in the others."""
    return patients(200, seed=7)[["age", "sbp"]].assign(**columns)


FIRST = np.arange(200)
SPARSE = {
    "two levels in six rows": np.where(FIRST < 3, "pos", np.where(FIRST < 6, "indet", None)),
    "a level of two rows beside one of twelve": np.where(FIRST < 2, "pos", np.where(FIRST < 14, "neg", None)),
    "four numbers": np.where(FIRST < 4, 7.25 + FIRST, np.nan),
    "eight numbers": np.where(FIRST < 8, 7.25 + FIRST, np.nan),
    "three dates": np.where(
        FIRST < 3, np.datetime64("2019-03-04") + FIRST.astype("timedelta64[D]"), np.datetime64("NaT")
    ),
    "remarks": np.where(FIRST < 12, np.char.add("sister of Dr Meyer, seen on day ", FIRST.astype(str)), None),
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("kind", ["in memory", "file"])
def test_guards_count_the_rows_of_the_table_and_not_the_cells_that_hold_a_value(name, kind, tmp_path):
    table = sparse(x=SPARSE[name])
    if kind == "file":
        table.to_csv(tmp_path / "t.csv", index=False)
        model = TableModel.fit(tmp_path / "t.csv", **FAST)
    else:
        model = TableModel.fit(table, **FAST)
    held = table["x"].dropna().astype(str).value_counts()
    made = synthesize(model, 400)
    new = pd.DataFrame({name: handed_out(made.table)[name] for name in handed_out(made.table).columns})
    drawn = set(new["x"].astype(str)) if "x" in new else set()
    assert not drawn & set(held.index[held < 5])
    assert drawn == set(held.index[held >= 5])
    assert "x" in new or any("'x'" in note for note in made.notes)


def test_numbers_that_few_patients_have_end_where_five_patients_have_them():
    x = np.where(FIRST < 40, FIRST * 7 % 40, np.nan)
    new = synthesize(TableModel.fit(sparse(x=x), **FAST), 2000).table["x"]
    assert (new.min(), new.max()) == (4, 35)
    assert "x" in synthesize(TableModel.fit(sparse(x=np.where(FIRST < 4, x, np.nan)), **FAST), 9, extremes="keep").table


def test_the_folder_says_what_it_contains(model, tmp_path):
    lines = model.inspect()["contains"]
    assert "not anonymous" in lines[0]
    assert json.dumps(lines)
    assert any("of fewer than 5 rows" in line for line in lines)
    assert any("follow-up times" in line for line in lines)
