"""Tables come in every kind and go out as they came; broken files are refused by line."""

import csv
import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tables import patients

from unmask import files
from unmask.errors import UserError
from unmask.modalities.table.imputation.multiple import MultipleImputation
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.pretrain import pretrain
from unmask.modalities.table.reading import readers
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.recipes import settings_of
from unmask.modalities.table.schema.infer import infer_schema
from unmask.modalities.table.schema.schema import Column
from unmask.modalities.table.schema.values import decode
from unmask.modalities.table.writing.writers import as_polars, write_table


def test_csv_is_read_and_written_letter_for_letter(tmp_path):
    text = 'a,"b, c",größe\n1.50,x,\n007,"y ""z""",ü\n,#NULL!,1e3\n'
    (tmp_path / "in.csv").write_text(text, encoding="utf-8")
    frame = read_frame(tmp_path / "in.csv")
    assert frame.names == ["a", "b, c", "größe"]
    write_table(frame, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text(encoding="utf-8") == text
    (tmp_path / "in.csv").write_text(text, encoding="utf-8-sig")  # as Excel marks it
    write_table(read_frame(tmp_path / "in.csv"), tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "in.csv").read_bytes()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n3\n", r"in.csv:3: 1 cells, the header has 2"),
        ("a,b\n1,2,3\n", r"in.csv:2: 3 cells"),
        ("", "empty"),
        ("a,b\n", "no rows"),
        ('a,b\n1,2\n\n"1\n2",2\n3\n', "in.csv:6: 1 cells"),
    ],
)
def test_broken_files(tmp_path, text, says):
    (tmp_path / "in.csv").write_text(text)
    with pytest.raises(UserError, match=says):
        read_frame(tmp_path / "in.csv")


def test_a_quote_that_nobody_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_CELL", 20)
    (tmp_path / "in.csv").write_text('a,b\n"1,2\n' + "3,4\n" * 20)
    with pytest.raises(UserError, match=r"in.csv:2 to \d+: field larger"):
        read_frame(tmp_path / "in.csv")
    csv.field_size_limit(1 << 28)


def test_only_line_ends_part_rows(tmp_path):
    cells = ["a\u2028b", "form\x0cfeed", "next\x85line", "x" * 200_000, '"two\r\nlines"']
    (tmp_path / "in.csv").write_bytes("\r\n".join(["a,b", *[f"{c},1" for c in cells]]).encode())
    frame = read_frame(tmp_path / "in.csv")
    assert frame.columns[0].tolist() == [c.strip('"') for c in cells]
    assert frame.columns[1].tolist() == ["1"] * 5


def test_files_that_are_not_there_or_not_tables(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"a,b\n1,\xff\n")
    (tmp_path / "x.parquet").write_bytes(b"nothing")
    for name, says in (("y.csv", "no such file"), ("x.csv", "x.csv:2: not UTF-8"), ("x.parquet", "not a parquet")):
        with pytest.raises(UserError, match=says):
            read_frame(tmp_path / name)
    with pytest.raises(UserError, match="not a table"):
        read_frame({1: 2})


def test_semicolons_and_tabs(tmp_path):
    for delimiter in ";\t":
        (tmp_path / "in.csv").write_text(f"a{delimiter}b\n1,5{delimiter}2\n")
        assert read_frame(tmp_path / "in.csv").names == ["a", "b"]


@pytest.fixture(scope="module")
def model():
    return TableModel.fit(patients(80, missing=0.1), steps=3, members=2)


def holed() -> pd.DataFrame:
    return patients(12, seed=3, missing=0.3)


def observed_equal(before: pl.DataFrame, after: pl.DataFrame) -> None:
    assert before.columns == after.columns
    assert before.schema == after.schema
    for name in before.columns:
        kept = before[name].is_not_null()
        assert before[name].filter(kept).equals(after[name].filter(kept))
        assert after[name].null_count() == 0


def test_pandas_in_pandas_out(model):
    before = holed()
    after = model.impute(before)
    assert isinstance(after, pd.DataFrame)
    assert (after.dtypes == before.dtypes).all()
    pd.testing.assert_frame_equal(after.where(before.notna()), before.where(before.notna()))
    assert after.notna().all().all()


def test_pandas_categories_stay_categories(model):
    before = holed()
    before["stage"] = before["stage"].astype("category")
    assert str(model.impute(before)["stage"].dtype) == "category"


def test_polars_and_arrow(model):
    before = pl.from_pandas(holed())
    observed_equal(before, model.impute(before))
    given = before.to_arrow()
    texts = [i for i, kind in enumerate(given.schema.types) if pa.types.is_large_string(kind)]
    given = given.set_column(texts[0], given.schema.names[texts[0]], given[texts[0]].dictionary_encode())
    arrow = model.impute(given)
    assert isinstance(arrow, pa.Table)
    assert arrow.schema == given.schema  # large_string and the numbers of dictionaries too
    observed_equal(before, pl.from_arrow(arrow).cast(before.schema))


def test_numpy():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    out = TableModel.fit(x, steps=2, members=2).impute(x)
    assert out.dtype == np.float32
    seen = ~np.isnan(x)
    assert np.array_equal(out[seen], x[seen])
    assert np.isfinite(out).all()


def test_numbers_stored_as_text_are_numbers():
    frame = read_frame(pd.DataFrame({"x": ["1.5", "2.5", None, "4"], "y": ["a", "b", "a", "b"]}))
    schema = infer_schema(frame.names, frame.columns)
    assert [c.kind for c in schema.columns] == ["numeric", "binary"]


def test_unicode_names_and_columns_of_one_name():
    table = patients(60)[["age", "dbp", "sbp"]]
    table.columns = ["größe", "dbp", "血压"]
    table.iloc[3, 0] = np.nan
    model = TableModel.fit(table, steps=0, members=1)
    after = model.impute(table)
    assert list(after.columns) == ["größe", "dbp", "血压"]
    assert after.notna().all().all()
    twice = table.rename(columns={"血压": "größe"})
    with pytest.raises(UserError, match="columns 1 and 3 are called 'größe'"):
        TableModel.fit(twice, steps=0, members=1)
    with pytest.raises(UserError, match="columns 1 and 4 are called 'größe'"):
        model.impute(pd.concat([table, table[["größe"]]], axis=1))
    beside = pd.concat([table, twice[["dbp", "dbp"]].set_axis(["more", "more"], axis=1)], axis=1)
    assert list(model.impute(beside).columns) == list(beside.columns)  # columns the model does not know pass through


def test_dates_are_imputed_as_they_are_written(tmp_path):
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, 60), unit="D")
    table = pd.DataFrame({"admitted": days.strftime("%d/%m/%Y"), "x": rng.normal(size=60)})
    table.to_csv(tmp_path / "t.csv", index=False)
    table.loc[5, "admitted"] = None
    filled = TableModel.fit(tmp_path / "t.csv", steps=2, members=2).impute(table)
    assert pd.to_datetime(filled["admitted"][5], format="%d/%m/%Y").year in (2020, 2021, 2022)


def typed(rows: int = 60) -> pl.DataFrame:
    """Dates, times with and without a zone, dates as texts, booleans, numbers as texts; a fifth of each missing."""
    rng = np.random.default_rng(0)
    days = [dt.date(2020, 1, 1) + dt.timedelta(days=int(d)) for d in rng.integers(0, 900, rows)]
    times = [dt.datetime(d.year, d.month, d.day, 12) for d in days]
    columns = {
        "day": pl.Series(days),
        "at": pl.Series(times),
        "zoned": pl.Series(times).dt.replace_time_zone("Europe/Berlin"),
        "text": pl.Series([f"{d:%d/%m/%Y}" for d in days]),
        "flag": pl.Series(rng.random(rows) < 0.5),
        "number": pl.Series([str(v) for v in rng.normal(size=rows).round(2)]),
        "x": pl.Series(rng.normal(size=rows)),
        "whole": pl.Series(rng.integers(0, 50, rows)),
    }
    return pl.DataFrame(columns).with_columns(
        pl.when(pl.Series(rng.random(rows) < 0.2)).then(None).otherwise(pl.all()).name.keep()
    )


def test_dates_and_booleans_keep_their_types(tmp_path):
    table = typed().filter(~pl.all_horizontal(pl.all().is_null()))  # rows without any value stay empty
    model = TableModel.fit(table, steps=2, members=2)
    observed_equal(table, model.impute(table))
    observed_equal(table, pl.from_arrow(model.impute(table.to_arrow())))
    observed_equal(table, MultipleImputation(2, members=1).fit(table).completed[0])
    alone = table.filter(pl.col("x").is_not_null())[:1].with_columns(pl.when(False).then(pl.all().exclude("x")))
    observed_equal(alone, model.impute(alone))  # where nothing is observed, its type says what a column holds
    assert model.synthesize(30).schema == table.schema
    pandas = table.to_pandas()
    filled = model.impute(pandas)
    assert (filled.dtypes == pandas.dtypes).all()
    assert {type(v) for v in filled["day"]} == {type(v) for v in pandas["day"].dropna()}
    assert filled["text"].str.fullmatch(r"\d\d/\d\d/20\d\d").all()


def test_dates_are_drawn_within_their_range_and_reported(tmp_path):
    table = typed().select("day", "x")
    table.write_parquet(tmp_path / "t.parquet")
    run = pretrain(tmp_path / "t.parquet", tmp_path / "m", settings=settings_of(steps=2, members=2), console=False)
    low, high = table["day"].min(), table["day"].max()
    assert f"{low} to {high}" in (tmp_path / "m" / "report.html").read_text()
    assert run.model.synthesize(300)["day"].is_between(low, high).all()


def test_conditions_on_dates_are_written_as_dates():
    model = TableModel.fit(typed().select("day", "at", "text", "x"), steps=2, members=2)
    drawn = model.synthesize(40, where=["day > '2021-01-31' and day <= '2021-06-30'", "text < '01/02/2021'"])
    assert drawn["day"].is_between(dt.date(2021, 2, 1), dt.date(2021, 6, 30)).all()
    assert (drawn["text"].str.to_date("%d/%m/%Y") < dt.date(2021, 2, 1)).all()
    whole = model.synthesize(
        5, where={"day": dt.date(2021, 3, 1), "at": np.datetime64("2021-03-01T12:00:00.000000000")}
    )
    assert whole["day"].unique().to_list() == [dt.date(2021, 3, 1)]
    assert whole["at"].unique().to_list() == [dt.datetime(2021, 3, 1, 12)]
    for wrong in ("day > 18000", "day > 'soon'"):
        with pytest.raises(UserError, match=r"'day' is a date, .* is none\n.*'2020-01-31'"):
            model.synthesize(5, where=wrong)


@pytest.mark.parametrize("kind", [pl.DataFrame, pl.DataFrame.to_pandas, pl.DataFrame.to_arrow])
def test_a_column_of_lists_is_refused_or_left_out(kind):
    table = kind(typed().select("x", "whole").with_columns(pl.Series("visits", [[1, 2]] * 60)))
    with pytest.raises(UserError, match=r"column 'visits', row 0: a (list|ndarray), not one value"):
        TableModel.fit(table, steps=2, members=2)
    schema = {"columns": {"visits": {"kind": "id"}}}
    filled = TableModel.fit(table, schema=schema, steps=2, members=2).impute(table)
    assert type(filled) is type(table)
    assert [list(v) for v in pl.DataFrame(filled)["visits"]] == [[1, 2]] * 60
    assert pl.DataFrame(filled).null_count().sum_horizontal().item() == 0


def test_pandas_missing_values_of_every_kind():
    table = patients(60)
    table["name"] = table["sex"].astype("string")
    table["flag"] = (table["event"] == 1).astype("boolean")
    table["plain"] = table["stage"].astype(object)
    table["count"] = table["dbp"].astype("Int64")
    new = ["name", "flag", "plain", "count"]
    table.loc[3:9, new] = pd.NA
    filled = TableModel.fit(table, steps=2, members=2).impute(table)
    assert filled.notna().all().all()
    assert (filled.dtypes == table.dtypes).all()
    assert filled.loc[10:, new].equals(table.loc[10:, new])


def test_a_category_unseen_in_training(model):
    table = holed().fillna({"stage": "I"})
    table.loc[4, "stage"] = "IV"
    with pytest.raises(UserError, match="column 'stage', row 4: category 'IV' was not seen"):
        model.impute(table)
    assert model.impute(table, unseen="missing")["stage"][4] in ("I", "II", "III")


def test_a_missing_column_is_named(model):
    with pytest.raises(UserError, match="no column 'sbp'"):
        model.impute(holed().drop(columns="sbp"))


def test_parquet_round_trip(tmp_path, model):
    before = pl.from_pandas(holed())
    before.write_parquet(tmp_path / "in.parquet")
    tables, _, cells = model.impute_frame(tmp_path / "in.parquet")
    write_table(tables[0], tmp_path / "out.parquet")
    observed_equal(before, pl.read_parquet(tmp_path / "out.parquet"))
    assert cells == sum(before[c].null_count() for c in before.columns)
    assert as_polars(tables[0]).equals(pl.read_parquet(tmp_path / "out.parquet"))


def test_a_long_file_is_read_in_blocks_with_equal_texts_as_one_object(tmp_path, monkeypatch):
    """Across blocks, with quoted line ends, an empty line, a byte-order mark, and lines numbered as in the file."""
    monkeypatch.setattr(readers, "AT_ONCE", 6)
    rows = [f'level {i % 2},{i},"a\nb"' for i in range(10)]
    path = tmp_path / "long.csv"
    path.write_text("\ufeffx,y,z\n" + "\n".join([*rows[:5], "", *rows[5:]]) + "\n", encoding="utf-8")
    frame = read_frame(path)
    assert frame.names == ["x", "y", "z"]
    assert [list(c) for c in frame.columns] == [
        [f"level {i % 2}" for i in range(10)],
        [str(i) for i in range(10)],
        ["a\nb"] * 10,
    ]
    assert frame.lines.tolist() == [3, 5, 7, 9, 11, 14, 16, 18, 20, 22]
    assert len({id(v) for v in frame.columns[0]}) == 2
    path.write_bytes(path.read_bytes() + b"\xff,1,2\n")
    with pytest.raises(UserError, match=r"long.csv:23: not UTF-8"):
        read_frame(path)


def test_no_zero_has_a_sign():
    """Normals rounded to 0 from below were written -0.0, half of the zeros of a column."""
    assert str(decode(np.array([-0.04, -0.0, 0.5]), Column(name="x", kind="numeric", decimals=1))) == "[0.0, 0.0, 0.5]"


def test_lengths_of_time_are_refused():
    """The difference of two dates was taken for a category per number of days, or for an identifier."""
    days = np.arange(40) % 9
    for table in (
        pd.DataFrame({"stay": pd.to_timedelta(days, unit="D"), "x": days}),
        pl.DataFrame({"stay": [dt.timedelta(days=int(d)) for d in days], "x": days}),
    ):
        with pytest.raises(UserError, match=r"column 'stay', row 0: a [Tt]imedelta, a length of time"):
            TableModel.fit(table, steps=0)
        TableModel.fit(table, steps=0, schema={"columns": {"stay": {"kind": "id"}}})


def test_unknown_categories_are_shown_as_they_stand():
    model = TableModel.fit(pd.DataFrame({"sex": ["f", "m"] * 20, "x": np.arange(40) % 7}), steps=0)
    with pytest.raises(UserError, match=r"row 0: category 0\.0 was not seen"):
        model.impute(pd.DataFrame({"sex": [0.0, 1.0], "x": [1, 2]}))
