"""Columns are recognised, overridden, and refused with the row and the value at fault."""

import numpy as np
import pandas as pd
import pytest
from tables import SHARED, patients

from unmask.errors import UserError
from unmask.modalities.table.imputation.multiple import MultipleImputation
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.infer import infer_schema
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.schema.values import encode


def schema_of(columns: dict, **options) -> Schema:
    raw = [np.array([*v, None], object)[:-1] for v in columns.values()]
    return infer_schema(list(columns), raw, **options)


def kinds(columns: dict, **options) -> dict[str, str]:
    return {c.name: c.kind for c in schema_of(columns, **options).columns}


def test_kinds():
    n = 40
    found = kinds(
        {
            "id": list(range(n)),
            "name": [f"patient {i}" for i in range(n)],
            "age": ["61", "72"] * 20,
            "bmi": ["22.5", "NA", "21.4", "30"] * 10,
            "sex": ["F", "M"] * 20,
            "smokes": ["0", "1"] * 20,
            "stage": ["I", "II", "III", "I"] * 10,
            "seen": ["2001-02-03"] * n,
            "flag": [True, False] * 20,
        }
    )
    assert found == {
        "id": "id",
        "name": "id",
        "age": "binary",
        "bmi": "numeric",
        "sex": "binary",
        "smokes": "binary",
        "stage": "nominal",
        "seen": "datetime",
        "flag": "binary",
    }


@pytest.mark.parametrize("spelling", ["", " ", "NA", "n/a", "NaN", "null", "None", "#NULL!", "?", "."])
def test_spellings_of_missing(spelling: str):
    (column,) = schema_of({"x": ["1.5", spelling, "2.5", "7.25"]}).columns
    assert (column.kind, column.low, column.high, column.decimals) == ("numeric", 1.5, 7.25, 2)


def test_a_missing_spelling_of_ones_own():
    (column,) = schema_of({"x": ["1", "-99", "2", "3"]}, override={"missing": ["-99"]}).columns
    assert column.low == 1.0


@pytest.mark.parametrize("missing", ["-99", ["-99"], -99, [-99.0]])
def test_a_missing_spelling_is_a_text_or_a_number_in_any_column(missing):
    for cells in (["1", "-99", "2", "3"], [1.0, -99.0, 2.0, 3.0], ["1", -99, 2, "3"]):
        frame = read_frame(pd.DataFrame({"x": cells}))
        (column,) = infer_schema(frame.names, frame.columns, override={"missing": missing}).columns
        assert column.low == 1.0


def test_places_and_sizes_are_those_of_modelled_columns():
    schema = schema_of({"name": [f"n{i}" for i in range(40)], "x": [0.5, 1.5, 2.5, 3.5] * 10, "sex": ["F", "M"] * 20})
    assert schema.sizes == [0, 2]
    assert (schema.place("x"), schema.place("sex")) == (0, 1)
    with pytest.raises(UserError, match="'name' is an identifier"):
        schema.place("name")
    with pytest.raises(UserError, match="Did you mean 'sex'"):
        schema.place("sexx")


def test_numbers_given_as_categories_are_texts():
    schema = schema_of(
        {"stage": [1, 2, 3] * 9}, override={"columns": {"stage": {"kind": "ordinal", "categories": [1, 2, 3]}}}
    )
    assert schema.columns[0].categories == ("1", "2", "3")


def test_dates_have_bounds():
    (column,) = schema_of({"seen": ["1970-01-03", "", "1970-02-01"] * 3}).columns
    assert (column.kind, column.low, column.high) == ("datetime", 2.0, 31.0)


def test_overrides():
    given = {
        "columns": {"grade": {"kind": "ordinal", "categories": ["low", "mid", "high"]}, "x": {"low": 0, "high": 9}}
    }
    schema = schema_of({"grade": ["mid", "low", "high"] * 3, "x": [1, 2, 3] * 3}, override=given)
    assert schema.columns[0].categories == ("low", "mid", "high")
    assert schema.columns[1].high == 9
    assert Schema.from_dict(schema.to_dict()) == schema


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ({"columns": {"agee": {"kind": "numeric"}}}, "Did you mean 'age'"),
        ({"columns": {"age": {"knd": "numeric"}}}, "Did you mean 'kind'"),
        ({"columns": {"age": {"kind": "number"}}}, "number"),
        ({"colums": {}}, "Did you mean 'columns'"),
        ({"columns": {"age": {"low": 9, "high": 1}}}, "above"),
        ({"columns": {"age": {"low": "a"}}}, "column 'age': low=a"),
        ({"columns": {"age": 3}}, "columns={'age': 3}"),
        ({"columns": {"age": {"structural": ["agee", "1"]}}}, "Did you mean 'age'"),
        ({"columns": {"age": {"structural": ["age", "9"]}}}, "no category '9'"),
        ({"columns": {"age": {"structural": ["age"]}}}, "a list of 2"),
        ({"columns": {"age": {"structural": []}}}, "a list of 2"),
        ({"columns": {"age": {"structural": True}}}, "a list of 2"),
    ],
)
def test_wrong_overrides(override, says):
    with pytest.raises(UserError, match=says):
        schema_of({"age": [1.5, 2.5, 3.5]}, override=override)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["1"] * 30 + ["abc"], r"column 'x', row 31: 'abc' among numbers"),
        (["1.5"] * 5 + ["inf"], r"row 6: inf"),
        ([float("inf"), 1.5, 2.5], r"row 1: inf"),
    ],
)
def test_cells_that_do_not_fit(cells, says):
    with pytest.raises(UserError, match=says):
        schema_of({"x": cells})


def test_survival_pair_is_checked():
    base = {"time": [1.0, 2.0, 3.5], "event": [0, 1, 1]}
    assert schema_of(base).duration == "time"
    with pytest.raises(UserError, match=r"row 2: -2.0 as a duration"):
        schema_of(base | {"time": [1.0, -2.0, 3.5]}, duration="time", event="event")
    with pytest.raises(UserError, match=r"'3' \(row 2\): which of them is the event"):
        schema_of(base | {"event": [1, 3, 1]}, duration="time", event="event")
    with pytest.raises(UserError, match="both columns"):
        schema_of(base, duration="time")
    with pytest.raises(UserError, match="Did you mean 'event'"):
        schema_of(base, duration="time", event="evnt")
    with pytest.raises(UserError, match=r"'1' \(row 3\).*which of them"):
        schema_of(base | {"event": [False, True, 1]}, duration="time", event="event")


@pytest.mark.parametrize(
    ("event", "levels"), [([1, 1, 1], ("0", "1")), ([0, 0, 0], ("0", "1")), ([True] * 3, ("False", "True"))]
)
def test_an_event_has_both_levels_whatever_was_seen(event, levels):
    schema = schema_of({"time": [1.0, 2.0, 3.5], "event": event})
    assert schema.columns[schema.number("event")].categories == levels


@pytest.mark.parametrize("empty", ["time", "event"])
def test_a_survival_pair_needs_values(empty):
    columns = {"time": [1.0, 2.0, 3.5], "event": [0, 1, 1], empty: [None] * 3}
    with pytest.raises(UserError, match=f"column '{empty}': no value at all"):
        schema_of(columns, duration="time", event="event")
    assert schema_of(columns).duration is None


def test_errors_number_rows_by_their_line(tmp_path):
    """Also after blank lines, and also where many models are fitted."""
    (tmp_path / "t.csv").write_text("x,y\n" + "1.5,2\n" * 30 + "\n\n\nabc,2\n")
    for fit in (TableModel.fit, MultipleImputation(2).fit):
        with pytest.raises(UserError, match="row 35: 'abc' among numbers"):
            fit(tmp_path / "t.csv")


def test_structural_missingness_is_told_from_accidental():
    table = patients(300)
    table["cause"] = np.where(table["event"] == 1, np.where(table["age"] > 65, "heart", "cancer"), None)
    table["lab"] = np.where(np.random.default_rng(0).random(300) < 0.3, np.nan, table["dbp"])
    frame = read_frame(table)
    schema = infer_schema(frame.names, frame.columns)
    assert {c.name: c.structural for c in schema.columns if c.structural} == {"cause": ("event", "0")}
    assert any("cause" in n for n in schema.notes)
    off = infer_schema(frame.names, frame.columns, override={"columns": {"cause": {"structural": False}}})
    assert off.columns[off.number("cause")].structural is None


@pytest.mark.skipif(not SHARED.exists(), reason="no shared data")
def test_flchain_chapter_is_structural():
    frame = read_frame(SHARED / "flchain.csv")
    schema = infer_schema(frame.names, frame.columns, source=frame.source)
    assert schema.columns[schema.number("chapter")].structural == ("event", "0")
    assert schema.duration == "time"
    assert len(encode(frame, schema)) == 11
