"""A column of one value and empty cells is refused until a person says what an empty cell means, on every path."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from tables import patients

from commands import run
from unmask import MaskedImputer, MultipleImputation, TableModel
from unmask.errors import UserError
from unmask.modalities.table.schema.describe import describe

FAST = {"steps": 0, "members": 2}
ROWS = np.arange(120)
TICKED = ROWS % 5 == 0
BOXES = {
    "x": (np.where(TICKED, "x", None), "no", "x"),
    "1": (np.where(TICKED, 1.0, np.nan), "0", "1"),
    "yes": (np.where(TICKED, "Yes", None), "No", "Yes"),
    "ja": (np.where(TICKED, "ja", None), "nein", "ja"),
    "TRUE": (np.where(TICKED, "TRUE", None), "FALSE", "TRUE"),
    "True": (np.where(TICKED, True, None), "False", "True"),
    "spaces": (np.where(TICKED, "x", "  "), "no", "x"),
    "two spellings": (np.where(TICKED, np.where(ROWS % 2, "X", "x"), None), "no", "x"),
    "a remark of one": (np.where(ROWS == 7, "VIP", None), "NO", "VIP"),
}


def table(name: str = "x") -> pd.DataFrame:
    whole = patients(len(ROWS), seed=3, missing=0.1)[["age", "sbp", "sex"]]
    return whole.assign(age=whole["age"].fillna(60), box=BOXES[name][0])


@pytest.fixture(params=["pandas", "polars", "file"])
def kind(request):
    return request.param


def given(name, kind, tmp_path):
    whole = table(name)
    if kind == "file":
        whole.to_csv(tmp_path / "t.csv", index=False)
        return tmp_path / "t.csv"
    return pl.from_pandas(whole) if kind == "polars" else whole


@pytest.mark.parametrize("name", BOXES)
def test_no_path_fills_a_tick_box_unless_its_empty_cells_are_explained(name, kind, tmp_path):
    data = given(name, kind, tmp_path)
    ways = [lambda: TableModel.fit(data, **FAST), lambda: MultipleImputation(2).fit(data)]
    if kind != "file":
        ways += [lambda: MaskedImputer(steps=0).fit(data)]
    for way in ways:
        with pytest.raises(UserError, match="'box' holds") as refused:
            way()
        assert "[columns.box] blank = " in refused.value.hint
        assert '[columns.box] missing = [""]' in refused.value.hint
        assert f'blank = "{BOXES[name][1]}"' in refused.value.hint
    (found,) = [f for f in describe(data).findings if f.code == "tick_box"]
    assert (found.severity, found.column) == ("error", "box")


@pytest.mark.parametrize("name", [n for n in BOXES if n != "a remark of one"])
def test_an_empty_cell_that_means_no_is_a_no_everywhere(name, kind, tmp_path):
    data, no, yes = given(name, kind, tmp_path), *BOXES[name][1:]
    schema = {"columns": {"box": {"blank": no}}}
    model = TableModel.fit(data, schema=schema, **FAST)
    assert no in model.schema.columns[3].categories
    filled = model.impute(data)
    ours = [filled, *MultipleImputation(2, schema=schema).fit(data).completed]
    if kind != "file":
        imputer = MaskedImputer(steps=0, schema=schema).set_output(transform="polars" if kind == "polars" else "pandas")
        ours.append(imputer.fit_transform(data))
    for one in ours:
        box = np.array([str(v).removesuffix(".0") for v in one["box"]])
        assert (np.char.lower(box[TICKED]) == yes.lower()).all()
        assert (box[~TICKED] == no).all()
        assert not pd.DataFrame({n: list(one[n]) for n in one.columns}).isna().any().any()
    new = model.synthesize(600)["box"]
    assert np.mean([str(v).removesuffix(".0") == no for v in new]) == pytest.approx(0.8, abs=0.08)
    assert model.schema == type(model.schema).from_dict(model.schema.to_dict())


def test_an_empty_cell_that_is_missing_is_imputed_and_numbers_keep_their_kind():
    filled = TableModel.fit(table(), schema={"columns": {"box": {"missing": [""]}}}, **FAST).impute(table())
    assert (filled["box"] == "x").all()
    doses = table().assign(box=np.where(TICKED, 7.25, np.nan))
    dose = TableModel.fit(doses, schema={"columns": {"box": {"kind": "numeric", "blank": 0}}}, **FAST)
    assert dose.schema.columns[3].low == 0
    assert sorted(set(dose.impute(doses)["box"])) == [0, 7.25]


@pytest.mark.parametrize(
    "cells",
    [
        np.where(TICKED, 0.0, np.nan),  # no cell can mean no where `no` is written
        np.where(TICKED, "no", None),
        np.where(TICKED, "x", np.where(ROWS % 7 == 0, "no", None)),
        pd.Categorical(np.where(TICKED, "yes", None), categories=["no", "yes"], ordered=True),
    ],
)
def test_a_column_that_writes_its_no_is_no_tick_box(cells):
    assert not [f for f in describe(table().assign(box=cells)).findings if f.code == "tick_box"]


def test_a_column_of_one_value_that_new_rows_lack_is_asked_about_too():
    model = TableModel.fit(table().assign(box="x"), **FAST)
    with pytest.raises(UserError, match="'box' holds"):
        model.impute(table())


def test_a_level_that_the_column_cannot_hold_is_refused():
    with pytest.raises(UserError, match="blank = 'no' in a column of numbers"):
        TableModel.fit(table("1"), schema={"columns": {"box": {"blank": "no"}}}, **FAST)


def test_the_command_line_refuses_and_honours_the_schema(tmp_path, capsys):
    table().to_csv(tmp_path / "t.csv", index=False)
    for command in (
        ["pretrain", "table", "t.csv", "--out", "m"],
        ["impute", "t.csv", "--proper", "2", "--out", "f.csv"],
    ):
        code, _, said = run(capsys, *[tmp_path / w if w in ("t.csv", "m", "f.csv") else w for w in command])
        assert code == 2
        assert "[columns.box] blank" in said
        assert sorted(p.name for p in tmp_path.iterdir()) == ["t.csv"]
    found = describe(tmp_path / "t.csv", schema={"columns": {"box": {"blank": "no"}}})
    assert found.columns[3].levels == {"no": 96, "x": 24}
    found.write_toml(tmp_path / "s.toml")
    words = ["impute", tmp_path / "t.csv", "--proper", 2, "--out", tmp_path / "f.csv", "--schema", tmp_path / "s.toml"]
    code, printed, said = run(capsys, *words)
    assert code == 0, said
    assert "'box': 96 empty cells are 'no'" in printed + said
    assert set(pd.read_csv(tmp_path / "f-1.csv")["box"]) == {"no", "x"}


@pytest.mark.parametrize("values", [[7.25, 7.25], ["pos", "indet", "pos"], ["2019-03-04", "2019-05-04"]])
def test_a_column_with_a_value_in_few_rows_is_warned_of(values):
    frame = table().assign(marker=[*values, *[None] * (len(table()) - len(values))])
    with pytest.warns(UserWarning, match=rf"'marker' holds a value in {len(values)} of 120 rows"):
        model = TableModel.fit(frame.drop(columns="box"), **FAST)
    assert any("'marker' holds" in note for note in model.schema.notes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TableModel.fit(frame.drop(columns="box"), schema={"columns": {"marker": {"kind": "text"}}}, **FAST)


def test_a_remark_of_one_patient_is_not_shown_by_describe():
    remarked = patients(len(ROWS), seed=3)[["age", "sbp"]].assign(
        remark=np.where(ROWS == 7, "sister of Dr Meyer", None)
    )
    (told,) = [f.text for f in describe(remarked).findings if f.column == "remark" and f.severity == "warning"]
    assert told == "'remark' holds one value alone"
