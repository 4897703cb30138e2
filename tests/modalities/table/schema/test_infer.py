"""Read or refuse: what is no value, which mark parts decimals, what is a code, a date, a rule; and all bad cells at
once."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from unmask.errors import UserError
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.parse import is_missing
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.rules.rules import schema_for
from unmask.modalities.table.schema.infer import infer, infer_schema
from unmask.modalities.table.schema.values import encode
from unmask.modalities.table.writing.writers import write_table


def raw(*cells) -> np.ndarray:
    return np.array([*cells, None], object)[:-1]


def look_at(cells, **settings):
    override = {"columns": {"x": settings}} if settings else None
    schema, findings = infer(Frame(names=["x"], columns=[raw(*cells)]), override=override, strict=False)
    return schema.columns[0], {f.code: f for f in findings}


def test_none_and_na_are_values_among_categories():
    for cells in (["None", "Bleeding", "Infection"] * 9, ["Na", "K", "Ca"] * 9, ["none", "mild", "none"] * 9):
        column, found = look_at(cells)
        assert set(column.categories) == set(cells)
        assert found["none_as_value"].severity == "warning"
        assert f"({cells.count(cells[0])} cells)" in found["none_as_value"].text


def test_none_and_na_are_no_values_among_numbers_and_that_is_said():
    column, found = look_at(["None", "1.5", "na", "2.25"] * 9)
    assert (column.kind, column.low, column.high) == ("numeric", 1.5, 2.25)
    assert found["missing_spelling"].text == "'x': taken for missing: 'None' (9 cells), 'na' (9 cells)"


def test_categories_are_values_whatever_they_are_called():
    column, _ = look_at(["NA", "EU", "US", ""] * 9, kind="nominal", categories=["NA", "EU", "US"])
    frame = read_frame(pd.DataFrame({"x": ["NA", "EU", ""]}))
    schema = infer_schema(
        ["x"], frame.columns, override={"columns": {"x": {"kind": "nominal", "categories": ["NA", "EU"]}}}
    )
    assert column.categories == ("NA", "EU", "US")
    assert np.array_equal(encode(frame, schema)[0], [0, 1, np.nan], equal_nan=True)


def test_none_is_missing_where_it_is_no_category():
    schema = infer_schema(["x"], [raw("a", "b", "c")])
    frame = read_frame(pd.DataFrame({"x": ["a", "None"]}))
    assert np.array_equal(encode(frame, schema)[0], [0, np.nan], equal_nan=True)


def test_missing_codes_of_one_column():
    table = {"crp": ["-9", "1.5", "2"] * 9, "other": ["-9", "-8", "4"] * 9}
    schema = infer_schema(
        list(table), [raw(*v) for v in table.values()], override={"columns": {"crp": {"missing": [-9]}}}
    )
    assert [c.low for c in schema.columns] == [1.5, -9.0]
    assert schema.columns[0].missing == ("-9",)
    frame = read_frame(pd.DataFrame({"crp": [-9.0, 1.5], "other": [-9.0, 4]}))
    first, second = encode(frame, schema)
    assert np.isnan(first).tolist() == [True, False]
    assert np.isnan(second).tolist() == [False, False]


@pytest.mark.parametrize(
    ("cells", "listed"),
    [
        ([*range(20, 90), 999, 999], "999 (2 cells)"),
        ([*range(50), -9, -9, -99], "-99 (1 cells), -9 (2 cells)"),
        ([0, 1, 2, 3] * 9 + [99], "99 (1 cells)"),
        ([*range(40, 100)] * 2, ""),
        ([*range(1, 10)] * 5, ""),
        ([-9, -5, 0, 4] * 9, ""),
    ],
)
def test_codes_of_missing_values_are_reported_and_not_converted(cells, listed):
    column, found = look_at(cells)
    assert (column.low, column.high) == (min(cells), max(cells))
    assert ("sentinel" in found) == bool(listed)
    if listed:
        assert listed in found["sentinel"].text
        assert found["sentinel"].add.startswith("[columns.x] missing = [")


HEIGHTS = [*range(150, 195)] * 2
SKEWED = [round(1.17**k, 2) for k in range(60)]  # 1 to 10 000, evenly in logarithms


@pytest.mark.parametrize(
    ("cells", "listed"),
    [
        ([*HEIGHTS, 1780, 1.75, 1812], "1780 (row 91), 1.75 (row 92), 1812 (row 93)"),
        ([*range(40, 130), 6.5], "6.5 (row 91)"),
        ([*range(-60, 40), 300], "300 (row 101)"),
        ([*HEIGHTS, *[1780] * 9], ""),  # not a few
        (SKEWED, ""),
        ([*HEIGHTS, 250, 120], ""),  # odd, and possible
        ([1, 2, 3, 500] * 3, ""),  # too few others to tell
    ],
)
def test_numbers_far_from_all_others_are_reported_with_their_rows(cells, listed):
    column, found = look_at(cells)
    assert (column.low, column.high) == (min(cells), max(cells))  # read as they stand
    assert ("extreme" in found) == bool(listed)
    if listed:
        assert f"holds {listed}, far from" in found["extreme"].text


def test_codes_and_bounds_that_a_person_gave_are_not_reported_as_far_off():
    _, found = look_at([*HEIGHTS, 999, 1780])
    assert "999 (1 cells)" in found["sentinel"].text
    assert "1780 (row 92), far from its other values (150 to 194)" in found["extreme"].text
    look_found = infer(
        Frame(names=["x"], columns=[np.array([*HEIGHTS, 1780.0])]),
        override={"columns": {"x": {"low": 0, "high": 2000}}},
    )[1]
    assert not look_found


def test_a_code_of_no_value_does_not_hide_values_in_another_unit():
    """Glucose in mmol/l, three cells in mg/dl: four cells are no few of 300, three are."""
    glucose = [round(3 + 0.02 * k, 1) for k in range(300)]
    _, found = look_at([*glucose, 95, 110, 180, 888])
    assert "888 (1 cells)" in found["sentinel"].text
    assert "95 (row 301), 110 (row 302), 180 (row 303), far from" in found["extreme"].text


def test_unknown_among_categories_is_reported():
    column, found = look_at(["F", "M", "Unknown", "not done"] * 9)
    assert len(column.categories) == 4
    assert found["unknown_category"].add == '[columns.x] missing = ["Unknown", "not done"]'


@pytest.mark.parametrize("code", ["-99", "-9", "99", "999", "-1", "9999", "-88", "9", ".a", "Don't know", "weiß nicht"])
def test_codes_of_no_value_among_categories_are_reported(code):
    """-99 in 42 of 400 stages was a category, of which new rows were drawn, without a word."""
    found = look_at(["I", "II", "III", "IV", code] * 9)[1]
    assert found["unknown_category"].add == f'[columns.x] missing = ["{code}"]'
    found = look_at(["yes", "no", "U", code] * 9)[1]
    assert found["unknown_category"].add == f'[columns.x] missing = ["U", "{code}"]'


@pytest.mark.parametrize(
    "levels", [["1", "2", "3a", "99"], ["A", "B", "1"], ["0", "1", "9", "x"], ["40-49", "50-59", "60"], ["A", "T", "U"]]
)
def test_numbers_and_letters_that_may_be_categories_are_not(levels):
    assert "unknown_category" not in look_at(levels * 9)[1]


# Numbers as files spell them.


def csv(tmp_path, text: str, name: str = "t.csv", encoding: str = "utf-8"):
    (tmp_path / name).write_bytes(text.encode(encoding))
    return tmp_path / name


@pytest.mark.parametrize(
    ("cells", "numbers", "written"),
    [
        (["1,5", "2", "10,25"], [1.5, 2, 10.25], "3,5"),
        (["1.234,5", "2,5", "1.000.000"], [1234.5, 2.5, 1e6], "3,5"),
        (["1,234.5", "2.5", "7"], [1234.5, 2.5, 7], "3.5"),
        (["12,34,567", "2.5", "7"], [1234567, 2.5, 7], "3.5"),
        (["1'234.5", "2.5", "7"], [1234.5, 2.5, 7], "3.5"),
        (["1 234,5", "2,5", "7"], [1234.5, 2.5, 7], "3,5"),
        (["1\u202f234,5", "2,5", "7"], [1234.5, 2.5, 7], "3,5"),
        (["−1,5", "2,5", "7"], [-1.5, 2.5, 7], "3,5"),
    ],
)
def test_marks_are_read_and_written_back(tmp_path, cells, numbers, written):
    from unmask.modalities.table.writing.writers import filled_copy

    path = csv(tmp_path, "x;y\n" + "".join(f"{c};a\n" for c in [*cells, ""]))
    frame = read_frame(path)
    schema = schema_for(frame, {"columns": {"y": {"kind": "nominal"}}}, duration=None, event=None)
    assert np.array_equal(encode(frame, schema)[0], [*numbers, np.nan], equal_nan=True)
    out = filled_copy(frame, {0: (np.array([3]), [3.5])}, schema, [0, 1])
    write_table(out, tmp_path / "o.csv")
    assert (tmp_path / "o.csv").read_text(encoding="utf-8") == path.read_text(encoding="utf-8").replace(
        "\n;a", f"\n{written};a"
    )
    if set(cells) & {"1.234,5", "1,5"}:
        assert any("decimals after ','" in n for n in schema.notes)


def test_the_first_unclear_number_of_the_file_is_shown():
    for first in ("4,321", "2,345"):
        with pytest.raises(UserError, match=rf"column 'x', row 3: '{first}' could be"):
            infer_schema(["x"], [raw("", "0", first, *[f"{1 + i % 9},{200 + i}" for i in range(40)])])


def test_columns_of_one_name_are_refused_unless_they_are_empty_and_unnamed():
    x, y = raw(*["1.5", "2.5"] * 10), raw(*["3.5", "2.5"] * 10)
    with pytest.raises(UserError, match="columns 1 and 3 are called 'x'"):
        infer_schema(["x", "y", "x"], [x, y, y])
    assert len(infer_schema(["x", "", ""], [x, raw(*[""] * 20), raw(*[""] * 20)]).modelled) == 1


def test_a_comma_that_could_be_either_is_refused_unless_the_file_or_a_person_says():
    x, y = raw(*["1,234", "5,678"] * 9), raw(*["0,5", "1,25"] * 9)
    with pytest.raises(UserError, match=r"column 'x', row 1: '1,234' could be a decimal fraction.*\n.*decimal=','"):
        infer_schema(["x"], [x])
    assert infer_schema(["x", "y"], [x, y]).columns[0].high == 5.678  # another column is certain
    assert infer_schema(["x"], [x], override={"decimal": ","}).columns[0].high == 5.678
    assert infer_schema(["x"], [x], override={"decimal": "."}).columns[0].high == 5678
    assert infer_schema(["x"], [x], override={"columns": {"x": {"decimal": "."}}}).columns[0].high == 5678
    with pytest.raises(UserError, match=r"'1\.234' could be"):
        infer_schema(["x", "y"], [raw(*["1.234", "1.234"] * 9), y])


def schema_of(path):
    return schema_for(read_frame(path), None)


def test_points_may_part_thousands_where_commas_part_decimals(tmp_path):
    """Whole numbers below a thousand beside fractions of three digits: 34 of 200 cells were read a thousand times too
    small in a file whose cells semicolons part."""
    cells = ["611", "1.081", "600", "12.656"] * 5
    with pytest.raises(UserError, match=r"column 'CK', row 3: '1\.081' could be a decimal fraction"):
        schema_of(csv(tmp_path, "CK;b\n" + "".join(f"{c};{i % 2}\n" for i, c in enumerate(cells))))
    schema_of(csv(tmp_path, "CK;b\n" + "".join(f"{c};0.5\n" for c in cells)))  # points part decimals elsewhere
    schema_of(csv(tmp_path, "CK;b\n9.8;1\n0.123;0\n" + "".join(f"{c};0\n" for c in cells)))  # and here
    comma = raw(*["0,5", "1,25"] * 10)
    for slip in ("12.5", "9.8"):
        with pytest.raises(UserError, match=r"'1\.081' could be"):
            infer_schema(["x", "y"], [raw(slip, *cells), comma[:1].repeat(21)])
    assert infer_schema(["x", "y"], [raw("0.5", *["1.5"] * 20), comma[:1].repeat(21)]).columns[0].high == 1.5


def test_a_new_file_in_another_spelling_is_read_in_its_own(tmp_path):
    rng = np.random.default_rng(0)
    german = "x;y\n" + "".join(f"{a:.2f};{b:.1f}\n".replace(".", ",") for a, b in rng.normal(5, 1, (40, 2)))
    model = TableModel.fit(csv(tmp_path, german), steps=0)
    english = read_frame(csv(tmp_path, "x,y\n5.25,4.5\n,5.5\n", "e.csv"))
    assert encode(english, model.schema)[0][0] == 5.25
    filled = model.impute(tmp_path / "e.csv")
    assert 3 < filled["x"][1] < 7
    assert filled["x"].dtype == pl.Float64
    model.save(tmp_path / "m")
    from unmask.modalities.table.model import load

    new = load(tmp_path / "m").synthesize(20)
    assert new["x"].dtype == pl.Float64
    assert 2 < new["x"].mean() < 8


def test_limits_of_detection_are_intervals_or_what_the_schema_says():
    cells = ["<0.5"] * 30 + [str(v / 4) for v in range(2, 42)] + [">90"] * 2
    column, found = look_at(cells)
    assert column.kind == "numeric"
    assert found["censored"].text.startswith("'x': 30 cells below 0.5, 2 above 90: ")
    assert np.isnan(encode(read_frame(pd.DataFrame({"x": cells})), infer_schema(["x"], [raw(*cells)]))[0]).sum() == 32
    for choice, low, high, holes in (("value", 0.5, 90, 0), ("half", 0.25, 90, 0), ("missing", 0.5, 10.25, 32)):
        schema = infer_schema(["x"], [raw(*cells)], override={"columns": {"x": {"limits": choice}}})
        assert (schema.columns[0].low, schema.columns[0].high) == (low, high)
        assert np.isnan(encode(read_frame(pd.DataFrame({"x": cells})), schema)[0]).sum() == holes


def test_mostly_below_the_limit_is_a_quantity_and_age_groups_are_not():
    assert "censored" in look_at(["<0.5"] * 90 + [str(v / 4) for v in range(2, 12)])[1]
    assert look_at(["<50", "50-60", ">60"] * 20)[0].kind == "nominal"
    assert look_at(["<65", "≥65"] * 20)[0].kind == "binary"
    assert look_at(["1", "2", "3A", "3B", "4"] * 20)[0].kind == "nominal"


@pytest.mark.parametrize(("suffix", "count"), [("*", 5), (" mmol/l", 40)])
def test_units_and_marks_behind_numbers(suffix, count):
    cells = [f"{v / 4}" + (suffix if v < count else "") for v in range(40)]
    column, found = look_at(cells)
    assert column.kind in ("numeric", "integer")
    assert len(found["suffix"].cells) == count
    column, found = look_at(cells, suffixes=[suffix.strip()])
    assert (column.low, column.high) == (0, 9.75)
    assert "suffix" not in found


def test_numbers_in_two_units_are_refused_and_site_numbers_are_identifiers():
    weights = [f"{v + 0.5} kg" if v % 3 else f"{2 * v} lb" for v in range(30, 90)]
    column, found = look_at(weights)
    assert column.kind == "numeric"
    assert len(found["suffix"].cells) == 60
    assert 'if all cells are in one unit: [columns.x] suffixes = ["kg", "lb"]' in found["suffix"].add
    some = look_at([f"{v}" for v in range(90)] + ["154 lb"])[1]["suffix"]  # the others may be kg
    assert 'if all cells are in one unit: [columns.x] suffixes = ["lb"]' in some.add
    every = look_at([f"{v / 4} kg" for v in range(90)])[1]["suffix"]
    assert every.add == 'To read the numbers before it: [columns.x] suffixes = ["kg"]'
    assert look_at([f"{1000 + v} {'LON' if v % 3 else 'PAR'}" for v in range(60)])[0].kind == "id"


def test_unknown_among_numbers_is_refused_with_the_line_to_add():
    cells = [str(v % 50) for v in range(60)] + ["Unknown"] * 20
    with pytest.raises(
        UserError, match=r"row 61: 'Unknown' among numbers(.|\n)*\[columns.x\] missing = \[\"Unknown\"\]"
    ):
        infer_schema(["x"], [raw(*cells)])
    assert look_at(cells, missing=["Unknown"])[0].kind == "integer"


def test_all_bad_cells_of_all_columns_at_once():
    table = {"a": ["1.5"] * 30 + ["x", "y"], "b": ["2"] * 30 + ["inf", "3"], "c": ["1.5"] * 32}
    with pytest.raises(UserError) as error:
        infer_schema(list(table), [raw(*v) for v in table.values()])
    text = str(error.value)
    for cell in (
        "column 'a', row 31: 'x'",
        "column 'a', row 32: 'y'",
        "column 'b', row 31: inf",
        "in all 3 cells: 2 in 'a', 1 in 'b'",
    ):
        assert cell in text
    schema = infer_schema(["a", "s"], [raw("1.5", "2"), raw("u", "v")])
    with pytest.raises(
        UserError, match=r"row 0: 'x' is not(.|\n)*row 1: category 'w' was not seen(.|\n)*in all 2 cells"
    ):
        encode(read_frame(pd.DataFrame({"a": ["x", "2"], "s": ["u", "w"]})), schema)


# Kinds.


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "binary"),
        ([0, 1], "binary"),
        ([61, 72], "binary"),
        ([5, 5], "integer"),
        ([1, 2, 3], "integer"),
        ([0.5, 1.5], "numeric"),
    ],
)
def test_a_kind_does_not_depend_on_the_route(tmp_path, values, kind):
    table = pd.DataFrame({"x": values * 15, "y": np.arange(15 * len(values)) / 7})
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_parquet(tmp_path / "t.parquet")
    routes = [
        table,
        pl.from_pandas(table),
        pl.from_pandas(table).to_arrow(),
        tmp_path / "t.csv",
        tmp_path / "t.parquet",
        table.to_numpy(),
        table.astype({"x": object}),
    ]
    assert {schema_for(read_frame(t), None, duration=None, event=None).columns[0].kind for t in routes} == {kind}


def test_ordered_types_are_ordinal():
    cells = ["mid", "low", "high"] * 10
    ordered = pd.DataFrame({"x": pd.Categorical(cells, ["low", "mid", "high"], ordered=True)})
    enum = pl.DataFrame({"x": pl.Series(cells, dtype=pl.Enum(["low", "mid", "high"]))})
    for table in (ordered, enum):
        column = schema_for(read_frame(table), None, duration=None, event=None).columns[0]
        assert (column.kind, column.categories) == ("ordinal", ("low", "mid", "high"))


@pytest.mark.parametrize(
    ("name", "cells", "said"),
    [
        ("grade", [*range(1, 10)], True),
        ("x", [0, 1, 2, 3], True),
        ("age", [*range(30, 60)], False),
        ("site", [1, 2, 5, 9], True),
        ("visits", [3, 4, 6], False),
    ],
)
def test_codes_that_look_like_quantities(name, cells, said):
    schema = infer_schema([name], [np.array(cells * 20, float)])
    assert schema.columns[0].kind == "integer"
    assert any("codes of categories" in n and f'[columns.{name}] kind = "nominal"' in n for n in schema.notes) == said


# Dates.


def test_dates_whose_order_no_cell_tells_are_refused():
    with pytest.raises(UserError, match=r"'0\d/0\d/2020' could be day or month first"):
        infer_schema(["x"], [raw(*["01/02/2020", "03/04/2020"] * 9)])
    column, found = look_at(["01/02/2020", "13/02/2020"] * 9)
    assert column.format == "%d/%m/%Y"
    assert "day first" in found["date_format"].text
    assert look_at(["01/02/2020", "03/04/2020"] * 9, format="%m/%d/%Y", kind="datetime")[0].format == "%m/%d/%Y"


@pytest.mark.parametrize(
    ("cells", "code", "bad"),
    [
        (["13/02/2020"] * 20 + ["02/14/2020"], "date_mixed", "02/14/2020"),
        (["2020-02-01"] * 20 + ["14.02.2020"], "date_mixed", "14.02.2020"),
        (["28.02.2020"] * 20 + ["30.02.2020"], "date_impossible", "30.02.2020"),
        (["2020-02-01"] * 20 + ["soon"], "date_impossible", "soon"),
    ],
)
def test_mixed_and_impossible_dates_are_named(cells, code, bad):
    column, found = look_at(cells)
    assert column.kind == "datetime"
    assert found[code].cells == ((21, bad),)


def test_placeholders_future_dates_and_short_years():
    _, found = look_at([f"2019-03-{d:02}" for d in range(1, 29)] + ["1900-01-01"] * 3 + ["2999-01-01"])
    assert "1900-01-01 (3 cells)" in found["date_placeholder"].text
    assert "2999-01-01" in found["date_future"].text
    for zero in ("1960-01-01", "1582-10-14"):  # of SAS and Stata, of SPSS
        found = look_at([f"2019-03-{d:02}" for d in range(1, 29)] + [zero] * 3)[1]
        assert f"{zero} (3 cells)" in found["date_placeholder"].text
    assert "date_placeholder" not in look_at([f"{year}-01-01" for year in range(1940, 2000, 4)])[1]  # years of birth
    assert "short_year" in look_at(["13.02.58", "01.12.61"] * 9)[1]
    assert "date_as_number" in look_at([20200113, 20200214, 20210305] * 9)[1]


# Structural rules.


@pytest.mark.parametrize("seed", range(3))
def test_a_rare_level_is_no_rule_by_chance(seed):
    """With 3 % missing, a level of three rows once explained another column's holes."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=300)
    x[:9] = np.nan
    level = np.where(np.arange(300) < 3, "rare", np.where(rng.random(300) < 0.5, "a", "b"))
    schema = infer_schema(["x", "y", "z"], [x, level.astype(object), rng.normal(size=300)])
    assert [c.structural for c in schema.columns] == [None] * 3


def test_a_rule_with_evidence_is_taken_and_said():
    pregnant = raw(*["yes", "no", None, None] * 25)
    schema = infer_schema(["sex", "pregnant"], [raw(*["F", "F", "M", "M"] * 25), pregnant])
    assert schema.columns[1].structural == ("sex", "M")
    assert any("50 of 50 rows, and 0 of the other 50" in n for n in schema.notes)


def test_missing_by_content():
    assert is_missing(raw("na", "3", "4")).tolist() == [True, False, False]
    assert is_missing(raw("na", "yes", "no")).tolist() == [False] * 3
    assert is_missing(raw("None", "2020-01-01")).tolist() == [True, False]


def test_texts_with_zeros_in_front_are_codes():
    """A postcode 02345 is no quantity: a mean of two of them is in no file."""
    zips = [f"{z:05d}" for z in (2345, 80331, 10115, 1067)] * 9
    column, found = look_at(zips)
    assert (column.kind, set(column.categories)) == ("nominal", set(zips))
    assert "'01067', with zeros in front" in found["zeros_in_front"].text
    assert look_at(zips, kind="integer")[0].kind == "integer"
    assert look_at([f"{z:05d}" for z in range(0, 90_000, 900)])[0].kind == "id"
    assert look_at(["0", "5", "10", "0.5"] * 9)[1] == {}
    column, found = look_at([*(f"{n:02d}" for n in range(60)), *map(str, range(60))])
    assert (column.kind, column.high) == ("integer", 59)  # 5 and 05: numbers, typed in two ways


def test_one_number_spelt_in_two_ways_is_no_binary_column():
    column, found = look_at(["01", "1", "02", "2"] * 9)
    assert column.kind == "nominal"
    assert "'01' (9 cells) and '1' (9); '02' (9 cells) and '2' (9)" in found["spelt_alike"].text
    for cells in (["01", "1", "2"] * 9, ["1", "1.00", "2"] * 9):
        column, found = look_at(cells)
        assert (column.kind, len(column.categories)) == ("nominal", 3)
        assert "spelt_alike" in found


def test_spellings_that_differ_in_case_or_blanks_are_warned_of():
    column, found = look_at(["Male", "male", "MALE ", "Female", "F"] * 9)
    assert len(column.categories) == 5
    assert "'Male' (9 cells) and 'male' (9), 'MALE' (9)." in found["spelt_alike"].text
    assert "'Female'" not in found["spelt_alike"].text
    column, found = look_at(["True", "TRUE", "false"] * 9)
    assert "'True' (9 cells) and 'TRUE' (9)" in found["spelt_alike"].text
    assert "spelt_alike" not in look_at(["Male", "Female ", "Female"] * 9)[1]
    column, found = look_at(["Male", "male"] * 9, categories=["Male", "male"], kind="nominal")
    assert "spelt_alike" not in found


@pytest.mark.parametrize(
    ("name", "cells", "says"),
    [
        ("x", [f"{d:02d}012020" for d in range(1, 29)] * 9, 'format = "%d%m%Y"'),
        ("x", [f"{m:02d}{m + 15:02d}2020" for m in range(1, 13)] * 9, 'format = "%m%d%Y"'),
        ("x", [float(f"{d}012020") for d in range(1, 29)] * 9, "DDMMYYYY"),
        ("visit", [43831.0 + 3 * i for i in range(60)], "spreadsheets"),
        ("date of birth", [14_000.0 + 3.5 * i for i in range(60)], "spreadsheets"),
        ("admission_time", [1577836800.0 + 86_400 * i for i in range(60)], "seconds since 1970"),
        ("timestamp", [1577836800000.0 + 86_400_000 * (i % 30) for i in range(60)], "milliseconds since 1970"),
    ],
)
def test_dates_written_as_numbers_are_warned_of(name, cells, says):
    _, findings = infer(
        Frame(names=[name], columns=[raw(*cells) if isinstance(cells[0], str) else np.array(cells)]), strict=False
    )
    found = [f for f in findings if f.code == "date_as_number"]
    assert len(found) == 1
    assert says in str(found[0])


@pytest.mark.parametrize("name", ["time", "income", "visit", "birth weight"])
def test_quantities_are_no_dates(name):
    _, findings = infer(Frame(names=[name], columns=[np.arange(60.0) * 7 + 500]), strict=False)
    assert not [f for f in findings if f.code == "date_as_number"]


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ([*np.arange(60.0, 190, 2), 0.0, 0.0, 0.0, 0.0], "holds 0 (4 cells) apart"),
        ([*np.linspace(2.5, 9, 66), *[99.9] * 8, *[88.8] * 5], "holds 88.8 (5 cells), 99.9 (8 cells) apart"),
        ([*[1.0, 2, 3, 4, 5] * 9, *[88.0] * 3, *[99.0] * 3], "holds 88 (3 cells), 99 (3 cells) apart"),
    ],
)
def test_zeros_and_nines_far_from_all_others(cells, says):
    found = look_at([str(c) for c in cells])[1]
    assert says in found["sentinel"].text


@pytest.mark.parametrize(
    "cells", [range(0, 60, 5), [0, *range(100, 1500, 100)], [0, 50, 100, 150] * 9, [0, *range(5, 19)]]
)
def test_zeros_that_belong(cells):
    assert "sentinel" not in look_at([float(c) for c in cells] * 3)[1]


@pytest.mark.parametrize("big", ["1e200", "-4e38", "inf"])
def test_a_number_beyond_the_arithmetic_is_refused_by_its_cell(big, tmp_path):
    """A square of 1e200 is infinite: means became NaN, cells stayed empty, and the verdict was praise."""
    path = tmp_path / "t.csv"
    path.write_text("a,bmi\n" + "".join(f"{i % 7},{20 + i % 11 / 10 if i != 12 else big}\n" for i in range(60)))
    with pytest.raises(UserError) as error:
        TableModel.fit(path, steps=0)
    assert all(part in str(error.value) for part in ("'bmi'", "14", "at most 3.4e+38"))
    good = path.read_text().replace(big, "22.5")
    model = TableModel.fit(write(tmp_path / "good.csv", good), steps=0)
    with pytest.raises(UserError, match=r"'bmi'") as error:
        model.impute(path)
    assert "14" in str(error.value)


def test_the_largest_number_of_the_arithmetic_is_filled_beside():
    bmi = [None if i % 5 == 0 else 3e38 if i == 12 else 20 + i % 11 / 10 for i in range(60)]
    table = pl.DataFrame({"a": [i % 7 for i in range(60)], "bmi": bmi})
    filled = TableModel.fit(table, steps=0).impute(table)["bmi"]
    assert filled.null_count() == 0
    assert np.isfinite(filled.to_numpy()).all()


def write(path, text):
    path.write_text(text)
    return path


def test_the_alphabet_is_no_order_of_words():
    def column(levels, **given):
        frame = pd.DataFrame({"out": levels * 10, "y": np.arange(10.0 * len(levels))})
        return infer(read_frame(frame), override={"columns": {"out": {"kind": "ordinal", **given}}})[0].columns[0]

    with pytest.raises(UserError, match=r'\[columns.out\] categories = \["high", "low", "medium"\]') as error:
        column(["low", "medium", "high"])
    assert "nothing says in which order its 3 categories are" in str(error.value)
    assert column(["low", "medium", "high"], categories=["low", "medium", "high"]).categories[0] == "low"
    assert column(["10", "2", "1"]).categories == ("1", "2", "10")
    assert column(["IV", "II", "I"]).categories == ("I", "II", "IV")
    assert column(["no", "yes"]).categories == ("no", "yes")
