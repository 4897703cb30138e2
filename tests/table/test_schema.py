"""Columns are recognised, overridden, and refused with the row and the value at fault."""

import numpy as np
import pytest
from tables import SHARED, patients

from unmask.errors import UserError
from unmask.table.data import encode, read_frame
from unmask.table.schema import Schema, infer_schema


def schema_of(columns: dict, **options) -> Schema:
    raw = [np.array([*v, None], object)[:-1] for v in columns.values()]
    return infer_schema(list(columns), raw, **options)


def kinds(columns: dict, **options) -> dict[str, str]:
    return {c.name: c.kind for c in schema_of(columns, **options).columns}


def test_kinds():
    n = 40
    found = kinds({
        "id": list(range(n)), "name": [f"patient {i}" for i in range(n)], "age": ["61", "72"] * 20, "bmi": ["22.5", "NA", "21.4", "30"] * 10,
        "sex": ["F", "M"] * 20, "smokes": ["0", "1"] * 20, "stage": ["I", "II", "III", "I"] * 10, "seen": ["2001-02-03"] * n,
        "flag": [True, False] * 20,
    })  # fmt: skip
    assert found == {
        "id": "id", "name": "id", "age": "binary", "bmi": "numeric", "sex": "binary", "smokes": "binary",
        "stage": "nominal", "seen": "datetime", "flag": "binary",
    }  # fmt: skip


@pytest.mark.parametrize("spelling", ["", " ", "NA", "n/a", "NaN", "null", "None", "#NULL!", "?", "."])
def test_spellings_of_missing(spelling: str):
    (column,) = schema_of({"x": ["1.5", spelling, "2.5", "7.25"]}).columns
    assert (column.kind, column.low, column.high, column.decimals) == ("numeric", 1.5, 7.25, 2)


def test_a_missing_spelling_of_ones_own():
    (column,) = schema_of({"x": ["1", "-99", "2", "3"]}, override={"missing": ["-99"]}).columns
    assert column.low == 1.0


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
    with pytest.raises(UserError, match=r"row 3: '2' as an event"):
        schema_of(base | {"event": [0, 1, 2]}, duration="time", event="event")
    with pytest.raises(UserError, match="both columns"):
        schema_of(base, duration="time")
    with pytest.raises(UserError, match="Did you mean 'event'"):
        schema_of(base, duration="time", event="evnt")


def test_structural_missingness_is_told_from_accidental():
    table = patients(300)
    table["cause"] = np.where(table["event"] == 1, np.where(table["age"] > 65, "heart", "cancer"), None)
    table["lab"] = np.where(np.random.default_rng(0).random(300) < 0.3, np.nan, table["dbp"])
    frame = read_frame(table)
    schema = infer_schema(frame.names, frame.columns)
    assert {c.name: c.structural for c in schema.columns if c.structural} == {"cause": ("event", "0")}
    assert any("cause" in n for n in schema.notes)


@pytest.mark.skipif(not SHARED.exists(), reason="no shared data")
def test_flchain_chapter_is_structural():
    frame = read_frame(SHARED / "flchain.csv")
    schema = infer_schema(frame.names, frame.columns, source=frame.source, first_row=2)
    assert schema.columns[schema.number("chapter")].structural == ("event", "0")
    assert schema.duration == "time"
    assert len(encode(frame, schema)) == 11
