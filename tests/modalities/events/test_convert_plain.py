"""Plain tables as R, spreadsheets and other countries write them: read as meant, or refused with what to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from event_data import main_fails, main_ok

from unmask.errors import UserError
from unmask.modalities.events.sources.convert import convert


def written(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "data" / "*.parquet", hive_partitioning=False)


def converted(tmp_path: Path, text: str, **asked: Any) -> tuple[dict[str, Any], pl.DataFrame]:
    (tmp_path / "t.csv").write_text(text)
    found = convert(tmp_path / "t.csv", tmp_path / "m", **asked)
    return found, written(tmp_path / "m")


UNTIMED = (
    "subject_id,time,code,numeric_value\n1,2020-01-01 08:00:00,LAB,1\n1,2020-02-01 08:00:00,DX//A,\n1,,DX//A,\n"
    "2,2020-01-01 08:00:00,LAB,1\n2,,MEDS_DEATH,\n2,,SEX//M,\n3,,SEX//F,\n3,2020-01-01 08:00:00,LAB,1\n"
)


def test_rows_without_a_time_are_facts_only_of_codes_that_never_have_one(tmp_path: Path):
    found, events = converted(tmp_path, UNTIMED)
    assert found["rejected"] == {
        "no time, of a code that has one elsewhere (with static it is a fact)": 1,
        "no time of death (with static it is a fact)": 1,
    }
    assert found["static"] == {"SEX//M": 1, "SEX//F": 1}
    assert sorted(events.filter(pl.col("time").is_null())["code"]) == ["SEX//F", "SEX//M"]


def test_facts_without_a_time_are_taken_where_one_asks_for_it_and_always_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "t.csv").write_text(UNTIMED)
    main_ok(["events", "convert", str(tmp_path / "t.csv"), "--out", str(tmp_path / "m"), "--static"])
    said = capsys.readouterr().out
    assert "without a time, known from the start: 4" in said
    assert "MEDS_DEATH: 1" in said
    assert written(tmp_path / "m")["time"].null_count() == 4


COMMA = (
    "subject_id;time;code;numeric_value\n1;2020-01-01 08:00:00;BILI;14,5\n1;2020-01-02 08:00:00;BILI;21\n1;2020-01-03 "
    "08:00:00;{};{}\n"
)


def test_a_decimal_comma_is_asked_about_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "t.csv").write_text(COMMA.format("BILI", "1.234,5"))
    said = main_fails(["events", "convert", tmp_path / "t.csv", "--out", tmp_path / "m"], capsys)
    assert "14,5" in said
    assert "--decimal ," in said
    assert not (tmp_path / "m").exists()
    main_ok(["events", "convert", str(tmp_path / "t.csv"), "--out", str(tmp_path / "m"), "--decimal", ","])
    assert written(tmp_path / "m")["numeric_value"].to_list() == [14.5, 21, 1234.5]
    assert "--decimal" in main_fails(
        ["events", "convert", tmp_path / "t.csv", "--out", tmp_path / "n", "--decimal", ";"], capsys
    )


def test_a_point_beside_decimal_commas_is_no_number(tmp_path: Path):
    found, events = converted(tmp_path, COMMA.format("BILI", "1.234"), decimal=",")
    assert events["numeric_value"].to_list() == [14.5, 21, None]
    assert events["text_value"].to_list() == [None, None, "1.234"]
    assert found["notes"]["numbers with a mark that decimal does not explain, kept as text_value"] == 1


def test_commas_are_thousands_where_points_are_decimal(tmp_path: Path):
    text = "subject_id,time,code,numeric_value\n" + "\n".join(
        f'1,2020-01-01 08:00:0{i},A,"{v}"' for i, v in enumerate(("1,234", "1,234,567.5", "1,5", "2.5"))
    )
    found, events = converted(tmp_path, text, decimal=".")
    assert events["numeric_value"].to_list() == [1234, 1234567.5, None, 2.5]
    assert found["notes"]["numbers with a mark that decimal does not explain, kept as text_value"] == 1


def test_a_few_numbers_with_commas_are_texts_and_counted(tmp_path: Path):
    rows = [f"1,2020-01-01 08:00:00,A,{i}" for i in range(200)] + ['1,2020-01-01 08:00:00,A,"1,5"']
    found, events = converted(tmp_path, "subject_id,time,code,numeric_value\n" + "\n".join(rows))
    assert events["numeric_value"].null_count() == 1
    assert found["notes"]["numbers with a mark that decimal does not explain, kept as text_value"] == 1


NA = (
    "subject_id,time,code,numeric_value\nP01,2020-01-01 08:00:00,K,4\nP02,2020-01-01 08:00:00,K,NA\n"
    "NA,2020-01-01 08:00:00,K,5\nNA,2020-02-01 08:00:00,DX,NA\nP01,2020-01-03 08:00:00,NA,1\nP02,NA,SEX//M,.\n"
)


def test_nas_of_r_are_no_patient_no_code_and_no_value(tmp_path: Path):
    found, events = converted(tmp_path, NA)
    assert (found["subjects"], found["events"]) == (2, 3)
    assert found["rejected"] == {"no subject": 2, "code is 'NA', read as empty (missing says what is)": 1}
    assert events["numeric_value"].to_list() == [4, None, None]
    assert "text_value" not in events.columns
    assert found["static"] == {"SEX//M": 1}


def test_what_is_empty_may_be_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "t.csv").write_text(NA.replace(".\n", "-9\n"))
    main_ok(["events", "convert", str(tmp_path / "t.csv"), "--out", str(tmp_path / "m"), "--missing", "-9", "--static"])
    said = capsys.readouterr().out
    assert "time cannot be read: 1" in said  # NA is a text now
    events = written(tmp_path / "m")
    assert events["subject_id"].n_unique() == 3
    assert "NA" in events["code"].to_list()


def test_dates_that_stand_for_none_are_rejected_by_name(tmp_path: Path):
    found, events = converted(
        tmp_path,
        "subject_id,time,code\n1,2020-01-01 08:00:00,A\n1,9999-12-31,A\n1,1900-01-01 00:00:00,A\n1,0001-01-01,A\n"
        "1,1900-01-01,MEDS_BIRTH\n",
    )
    assert found["rejected"] == {f"time stands for none: {d}": 1 for d in ("9999-12-31", "1900-01-01", "0001-01-01")}
    assert found["notes"]["births on 1900-01-01, which may stand for none"] == 1
    assert len(events) == 2


def test_dates_that_may_stand_for_none_are_kept_and_counted(tmp_path: Path):
    found, events = converted(
        tmp_path, "subject_id,time,code\n1,2020-01-01,A\n1,2100-01-01,A\n2,2100-01-01,B\n2,2099-12-31 00:00:00,B\n"
    )
    assert len(events) == 4
    told = {name: count for name, count in found["notes"].items() if "for none" in name}
    assert told == {f"events on {d}, which may stand for none": n for d, n in (("2100-01-01", 2), ("2099-12-31", 1))}


def test_an_order_of_dates_that_gives_impossible_months_is_refused(tmp_path: Path):
    rows = "\n".join(f"1,{day:02}/03/2020,A" for day in range(1, 29))
    with pytest.raises(UserError, match=r"13/03/2020.*no month"):
        converted(tmp_path, f"subject_id,time,code\n{rows}\n", dates="month-first")
    found, _ = converted(tmp_path, f"subject_id,time,code\n{rows}\n", dates="day-first")
    assert found["events"] == 28


@pytest.mark.parametrize(
    ("header", "says"),
    [("subject_id,time,code,code", "'code' stands there twice"), ("subject_id,time,code,", "a column without a name")],
)
def test_columns_given_twice_are_refused_and_nameless_ones_named(tmp_path: Path, header: str, says: str):
    (tmp_path / "t.csv").write_text(f"{header}\n1,2020-01-01 08:00:00,A,1\n")
    if "twice" in says:
        with pytest.raises(UserError, match=says):
            convert(tmp_path / "t.csv", tmp_path / "m")
    else:
        assert says in convert(tmp_path / "t.csv", tmp_path / "m")["unused"]["t.csv"]


@pytest.mark.parametrize(
    ("column", "values", "kind"),
    [
        ("code", [["A", "B"], ["C"]], r"List\(String\)"),
        ("code", [{"a": 1}, {"a": 2}], "Struct"),
        ("numeric_value", [[1.0], [2.0]], r"List\(Float64\)"),
    ],
)
def test_a_column_of_lists_is_refused_by_name(tmp_path: Path, column: str, values: list[Any], kind: str):
    frame = pl.DataFrame({"subject_id": [1, 2], "time": ["2020-01-01 08:00:00"] * 2, "code": ["A", "B"]})
    frame = frame.with_columns(pl.Series(column, values))
    frame.write_parquet(tmp_path / "t.parquet")
    for source, where in ((tmp_path / "t.parquet", "t.parquet"), (frame, "table")):
        with pytest.raises(UserError, match=f"{where}: column '{column}' is of type {kind}"):
            convert(source, tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("name", "content", "asked", "says"),
    [
        ("t.csv", "subject_id,time,code\n1,2020-01-01,A\n", {"onset": True}, "--onset: not read for a table"),
        ("f.ndjson", "{}", {"missing": ["NA"], "columns": {"code": "c"}}, "--code, --missing: not read for FHIR"),
        ("o/person.csv", "person_id\n1\n", {"static": True, "decimal": ","}, "--static: not read for OMOP"),
    ],
)
def test_options_that_a_source_does_not_read_are_refused(
    tmp_path: Path, name: str, content: str, asked: dict[str, Any], says: str
):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    with pytest.raises(UserError, match=says):
        convert(path.parent if "/" in name else path, tmp_path / "m", **asked)


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
@pytest.mark.parametrize("bad", ["inf", "-Infinity", "1e200"])
def test_rows_whose_value_is_infinite_or_overflows_are_left_out_by_name(tmp_path: Path, kind: str, bad: str):
    cells = {"subject_id": [1, 1, 2], "time": ["2020-01-01 08:00:00"] * 3, "code": ["a"] * 3}
    frame = pl.DataFrame(cells | {"numeric_value": [1.0, None, float(bad)]})
    path = tmp_path / f"t.{kind}"
    if kind == "csv":
        path.write_text(
            "subject_id,time,code,numeric_value\n"
            + "".join(f"{s},2020-01-01 08:00:00,a,{v}\n" for s, v in ((1, 1), (1, ""), (2, bad)))
        )
    elif kind == "parquet":
        frame.write_parquet(path)
    found = convert(frame if kind == "frame" else path, tmp_path / "m")
    reason = "a value that is infinite, or beyond 3.4e38"
    assert found["rejected"] == {reason: 1}
    assert found["first_rejected"][reason]["where"] == f"{'table' if kind == 'frame' else path.name}, row 3"
    assert written(tmp_path / "m")["subject_id"].to_list() == [1, 1]


UNITS = (
    "subject_id,time,code,numeric_value,{}\n1,2020-01-01 08:00:00,GLUCOSE,5.1,mmol/L\n"
    "2,2020-01-01 08:00:00,GLUCOSE,92,mg/dL\n3,2020-01-01 08:00:00,GLUCOSE,93,\n3,2020-01-01 08:00:00,SEX//F,,mg/dL\n"
)


@pytest.mark.parametrize("name", ["unit", "valueuom"])
@pytest.mark.parametrize("in_memory", [False, True])
def test_a_code_in_another_unit_is_another_code(tmp_path: Path, name: str, in_memory: bool):
    (tmp_path / "t.csv").write_text(UNITS.format(name))
    source = pl.read_csv(tmp_path / "t.csv") if in_memory else tmp_path / "t.csv"
    found = convert(source, tmp_path / "m", columns={"unit": name})
    assert sorted(written(tmp_path / "m")["code"]) == ["GLUCOSE", "GLUCOSE//mg/dL", "GLUCOSE//mmol/L", "SEX//F"]
    assert not found["unused"]


@pytest.mark.parametrize("in_memory", [False, True])
def test_columns_that_are_not_read_are_named(tmp_path: Path, in_memory: bool):
    (tmp_path / "t.csv").write_text(UNITS.format("valueuom"))
    source = pl.read_csv(tmp_path / "t.csv") if in_memory else tmp_path / "t.csv"
    found = convert(source, tmp_path / "m")
    assert found["unused"] == {"table" if in_memory else "t.csv": "columns not read: valueuom"}


def test_times_without_a_zone_beside_times_with_one_are_counted(tmp_path: Path):
    rows = ("1,2020-01-01 08:00:00Z,a", "1,2020-01-02 08:00:00,a", "1,2020-01-03,a", "1,2020-01-04T08:00+02:00,a")
    said = "times without a zone beside times with one, taken as UTC"
    found, _ = converted(tmp_path, "\n".join(("subject_id,time,code", *rows)))
    assert found["notes"][said] == 1
    (tmp_path / "b").mkdir()
    found, _ = converted(tmp_path / "b", "\n".join(("subject_id,time,code", *rows[1:3])))
    assert said not in found["notes"]


def test_ids_beyond_64_bits_are_texts_or_refused(tmp_path: Path):
    large = "subject_id,time,code\n12345678901234567890,2020-01-01,a\n12345678901234567891,2020-01-01,a\n7,2020-01-01,a"
    found, _ = converted(tmp_path, large)
    assert (found["subjects"], found["rejected"]) == (3, {})
    wide = pl.DataFrame(
        {"subject_id": pl.Series([2**63, 7], dtype=pl.UInt64), "time": ["2020-01-01"] * 2, "code": ["a"] * 2}
    ).with_columns(pl.col("subject_id").alias("visit_id"))
    (tmp_path / "b").mkdir()
    assert convert(wide, tmp_path / "b" / "m")["subjects"] == 2
