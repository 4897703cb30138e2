"""Cells that are only bounded: read as intervals, counted, refused where they hold nothing."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from unmask.errors import UserError
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.censored import Censored
from unmask.modalities.table.schema.describe import describe
from unmask.modalities.table.schema.infer import infer
from unmask.modalities.table.schema.values import encode, encode_censored

PLAIN = [f"{v / 4:g}" for v in range(2, 42)]


def table(*odd, plain=PLAIN):
    return pd.DataFrame({"x": [*odd, *plain], "z": np.arange(len(odd) + len(plain)) + 0.5})


def intervals(data, **column):
    frame = read_frame(data)
    schema = infer(frame, override={"columns": {"x": column}})[0]
    columns, cells = encode_censored(frame, schema)
    return cells.get(0), columns[0], schema.columns[0]


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("<0.5", [0.1, 0.4999], [0.0, 0.5, -1]),
        ("<= 0.5", [0.1, 0.5], [0.51]),
        ("≤0.5", [0.5], [0.51]),
        (">1000", [1000.1, 1e9], [1000]),
        ("≥ 1000", [1000], [999.9]),
        ("2-4", [2, 3.3, 4], [1.9, 4.1]),
        ("2 – 4", [2, 4], [1.9]),
        ("1e-1-2e-1", [0.1, 0.2], [0.3]),
    ],
)
def test_what_a_cell_says_is_the_interval(text, inside, outside):
    cells, x, column = intervals(table(text))
    assert column.kind == "numeric"
    assert np.isnan(x).tolist() == [True] + [False] * len(PLAIN)
    assert cells.rows.tolist() == [0]
    assert all(cells.low[0] <= v <= cells.high[0] for v in inside)
    assert not any(cells.low[0] <= v <= cells.high[0] for v in outside)


def test_a_limit_in_a_column_with_negative_numbers_has_no_floor():
    assert intervals(table("<0.5", "-3.5"))[0].low[0] == -np.inf
    assert intervals(table("<0.5", "0"))[0].low[0] == 0
    assert intervals(table("<0.5"), low=0.1)[0].low[0] == 0.1
    assert intervals(table(">90"), high=200)[0].high[0] == 200


def test_every_reader_finds_the_same(tmp_path):
    data = table("<0.5", ">90", "2-4")
    data.to_csv(tmp_path / "t.csv", index=False)
    data.to_parquet(tmp_path / "t.parquet")
    mixed = data.assign(x=[v if v[0] in "<>" or "-" in v else float(v) for v in data.x])
    arrow = pl.DataFrame({"x": data.x.tolist(), "z": data.z.tolist()}).to_arrow()
    for one in (data, mixed, arrow, *(tmp_path / f"t.{kind}" for kind in ("csv", "parquet"))):
        cells, x, _ = intervals(one)
        assert cells.high.tolist() == [np.nextafter(0.5, 0), np.inf, 4]
        assert np.isnan(x).sum() == 3


def test_declared_limits_hold_for_numbers_and_for_words():
    cells, x, column = intervals(table("0.25", "<LOD", "< lloq", "BDL", "20", "> ULOQ"), lod=0.5, uloq=10)
    assert cells.high[:4].tolist() == [0.5] * 4
    assert cells.low[4:6].tolist() == [10, 10]
    assert np.isnan(x).sum() == 9  # 0.5, 10 and 10.25 too
    assert column.low == 0.5
    numbers = pd.DataFrame({"x": np.r_[np.full(30, 0.25), np.linspace(0.6, 9, 60)]})
    assert len(intervals(numbers, lod=0.5)[0].rows) == 30
    assert intervals(numbers)[0] is None


def test_a_word_for_a_limit_that_nobody_gave_is_asked_about():
    with pytest.raises(UserError, match=r"row 0: '<LOD' among numbers(.|\n)*lod = 0.5"):
        intervals(table("<LOD"))


def test_columns_of_other_things_stay_what_they_are():
    for cells, kind in (
        (["40-49", "50-59", "60-69"] * 20, "nominal"),
        (["1-2", "2-3", "4"] * 20, "nominal"),
        ([f"{110 + v}/{70 + v}" for v in range(60)], "id"),
        ([f"2020-01-{1 + v % 28:02}" for v in range(60)], "datetime"),
        (["<65", "≥65"] * 20, "binary"),
    ):
        assert infer(read_frame(pd.DataFrame({"x": cells})))[0].columns[0].kind == kind, cells[0]


@pytest.mark.parametrize(
    ("odd", "column", "wrong"),
    [
        (("7", "4-2"), {}, r"row 1: '4-2' is no interval: its ends are swapped"),
        (("<0.5",), {"low": 1}, r"row 0: '<0.5' leaves nothing within the bounds given \(1 to inf\)"),
        ((">90",), {"high": 50}, r"row 0: '>90' leaves nothing within the bounds given \(-inf to 50\)"),
        (("<abc",), {}, r"row 0: '<abc' among numbers"),
    ],
)
def test_intervals_that_hold_nothing_are_refused(odd, column, wrong):
    with pytest.raises(UserError, match=wrong):
        intervals(table(*odd), **column)


def test_all_bad_intervals_at_once_and_in_new_rows_too(tmp_path):
    with pytest.raises(UserError, match="in all 3 cells: 3 in 'x'"):
        intervals(table("4-2", "9-8", "<abc"))
    schema = infer(read_frame(table("<0.5")))[0]
    table("<0.5", "4-2", "9-8").to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(UserError, match=r"new.csv, column 'x', row 3: '4-2' is no interval(.|\n)*in all 2 cells"):
        encode(read_frame(tmp_path / "new.csv"), schema)


def test_a_column_of_limits_alone_is_refused():
    with pytest.raises(UserError, match="the column holds no number"):
        infer(read_frame(pd.DataFrame({"x": ["<0.5"] * 30, "z": range(30)})), override={"columns": {"x": {"lod": 0.5}}})


def test_describe_counts_them_and_the_schema_it_writes_keeps_the_limits():
    found = describe(table(*["<0.5"] * 14, "<0.1", ">90", "2-4"), schema={"columns": {"x": {"lod": 0.2}}})
    assert any("'x': 15 cells below 0.1 to 0.5, 1 above 90, 1 between two numbers: " in line for line in found.lines())
    assert found.columns[0].missing == 0
    assert "lod = 0.2" in found.toml()


@pytest.mark.parametrize(
    ("odd", "plain", "digits"),
    [
        (["<0.5"], ["0.6", "0.7", "1.2"] * 20, 5),  # .1 to .4 are too few
        (["<50.5"], ["60.1", "70.2"] * 20, 1),
        (["<5"], [str(v) for v in range(5, 30)], 0),
        (["<1"], [str(v) for v in range(5, 30)], 4),
        (["<0.5"], [str(v) for v in range(5, 30)], 1 + 4),
    ],
)
def test_drawn_values_stay_inside_when_they_are_rounded(odd, plain, digits):
    cells, _, _ = intervals(table(*odd, plain=plain))
    assert cells.digits == digits
    low, high = (end[0] for end in cells.ends)
    for u in np.linspace(0, 1, 101):
        value = cells.written(np.array([low + u * (high - low)]))[0]
        assert cells.low[0] <= value <= cells.high[0]
        assert value == round(value, digits)


def test_whole_numbers_below_a_limit_are_all_possible():
    cells = Censored(rows=np.array([0]), low=np.array([0.0]), high=np.array([np.nextafter(5, 0)]), digits=0)
    low, high = (end[0] for end in cells.ends)
    drawn = [cells.written(np.array([v]))[0] for v in np.linspace(low, high, 1000)]
    assert {v: round(drawn.count(v), -2) for v in set(drawn)} == dict.fromkeys((0, 1, 2, 3, 4), 200)
