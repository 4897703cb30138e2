"""Files of other programs: letters, sheets, labels; read for certain or refused."""

import dataclasses
import datetime as dt
import zipfile

import numpy as np
import pandas as pd
import pytest
from tables import spreadsheet

from unmask.errors import UserError
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.infer import infer, infer_schema
from unmask.modalities.table.schema.values import cell_texts, decode, encode


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_marked_encodings_are_read(tmp_path, encoding):
    (tmp_path / "t.csv").write_bytes("größe,b\n1.5,ü\n".encode(encoding))
    frame = read_frame(tmp_path / "t.csv")
    assert frame.names == ["größe", "b"]
    assert frame.columns[1].tolist() == ["ü"]


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "SEP=;"])
def test_a_first_line_of_excel_names_the_separator(tmp_path, first):
    (tmp_path / "t.csv").write_text(f"{first}\na,b;c\n1;2\n3;4\n")
    frame = read_frame(tmp_path / "t.csv")
    assert frame.names == ["a,b", "c"]
    assert [frame.row_name(row) for row in (0, 1)] == [3, 4]
    (tmp_path / "t.csv").write_text(f"{first}\na;c\n1;2\n3\n")
    with pytest.raises(UserError, match=r"t\.csv:4: 1 cells"):
        read_frame(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("form", "back"),
    [
        ("%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S+00:00"),
        ("%Y-%m-%dT%H:%M:%S+00:00", "%Y-%m-%dT%H:%M:%S+00:00"),
        ("%Y-%m-%d %H:%M:%S+0000", "%Y-%m-%d %H:%M:%S+00:00"),
        ("%m/%d/%Y %I:%M %p", "%m/%d/%Y %I:%M %p"),
    ],
)
def test_times_with_zones_or_halves_of_a_day_are_times(tmp_path, form, back):
    times = [dt.datetime(2020, 1, 5) + dt.timedelta(hours=11 * k) for k in range(60)]
    (tmp_path / "t.csv").write_text("at,x\n" + "".join(f"{t.strftime(form)},{k}\n" for k, t in enumerate(times)))
    frame = read_frame(tmp_path / "t.csv")
    schema = infer_schema(frame.names, frame.columns)
    assert schema.columns[0].kind == "datetime"
    days = encode(frame, schema)[0]
    assert [round((d - days[0]) * 24) for d in days] == [11 * k for k in range(60)]
    assert cell_texts(decode(days, schema.columns[0]), schema.columns[0]) == [t.strftime(back) for t in times]


def test_offsets_count(tmp_path):
    (tmp_path / "t.csv").write_text("at\n" + "2020-01-05T02:00:00+02:00\n2020-01-05T00:00:00Z\n2020-01-09T06:00:00Z\n")
    frame = read_frame(tmp_path / "t.csv")
    schema = infer_schema(frame.names, frame.columns, override={"columns": {"at": {"kind": "datetime"}}})
    days = encode(frame, schema)[0]
    assert days[0] == days[1] == days[2] - 4.25


def test_other_encodings_are_asked_for(tmp_path):
    (tmp_path / "t.csv").write_bytes("x;Straße\n1;ä\n".encode("cp1252"))
    with pytest.raises(
        UserError, match=r"t\.csv:1: not UTF-8\n.*encoding='cp1252'.*cp1252 reads 'Straße'.*mac_roman reads"
    ):
        read_frame(tmp_path / "t.csv")
    assert read_frame(tmp_path / "t.csv", encoding="cp1252").names == ["x", "Straße"]
    with pytest.raises(UserError, match="not ascii"):
        read_frame(tmp_path / "t.csv", encoding="ascii")


def test_spreadsheets(tmp_path):
    pytest.importorskip("python_calamine")
    rows = [["age", "lab", "mixed"], [61, 1.5, 3], [72, None, "<0.5"]]
    spreadsheet(tmp_path / "t.xlsx", {"data": rows})
    frame = read_frame(tmp_path / "t.xlsx")
    assert frame.names == ["age", "lab", "mixed"]
    assert frame.columns[0].tolist() == [61, 72]
    assert frame.columns[2].tolist() == ["3", "<0.5"]
    assert frame.row_name(0) == 2
    spreadsheet(tmp_path / "two.xlsx", {"data": rows, "more": rows})
    with pytest.raises(UserError, match=r"2 sheets with cells: 'data', 'more'\n.*sheet="):
        read_frame(tmp_path / "two.xlsx")
    assert read_frame(tmp_path / "two.xlsx", sheet="more").names == frame.names
    with pytest.raises(UserError, match="Did you mean 'more'"):
        read_frame(tmp_path / "two.xlsx", sheet="mor")
    (tmp_path / "no.xlsx").write_bytes(b"nothing")
    with pytest.raises(UserError, match="not a spreadsheet"):
        read_frame(tmp_path / "no.xlsx")


def test_merged_cells_are_refused(tmp_path):
    """A hospital written once for ten patients is not missing for nine of them."""
    pytest.importorskip("python_calamine")
    rows = [["site", "age"], ["A", 61], [None, 72], [None, 55], ["B", 60]]
    spreadsheet(tmp_path / "t.xlsx", {"data": rows}, merged=("A2:A4", "B6:C6"))
    with pytest.raises(UserError, match=r"sheet 'data': merged cells A2:A4 \('A'\): only the first.*\n.*Unmerge"):
        read_frame(tmp_path / "t.xlsx")
    spreadsheet(tmp_path / "empty.xlsx", {"data": rows}, merged=("B6:C6",))
    assert read_frame(tmp_path / "empty.xlsx").columns[0].tolist() == ["A", None, None, "B"]
    spreadsheet(tmp_path / "head.xlsx", {"data": [["demog", None], ["age", "sex"], [1, 2]]}, merged=("A1:B1",))
    with pytest.raises(UserError, match=r"merged cells A1:B1 \('demog'\)"):
        read_frame(tmp_path / "head.xlsx")


@pytest.mark.parametrize("cell", ["<f>A2/2</f><v />", "<f>A2/2</f>", '<f t="shared" si="0"/>'])
def test_formulas_without_a_stored_result_are_refused_by_cell(tmp_path, cell):
    """Of files that openpyxl wrote they were read as empty, and imputed."""
    pytest.importorskip("python_calamine")
    spreadsheet(tmp_path / "t.xlsx", {"data": [["age", "half"], [61, 30.5], [72, cell], [55, cell]]})
    with pytest.raises(UserError, match="sheet 'data': formulas without a stored result: B3, B4: they"):
        read_frame(tmp_path / "t.xlsx")
    no_text = '<f>IF(A3&gt;1,"","x")</f><v></v>'
    spreadsheet(tmp_path / "t.xlsx", {"data": [["age", "half"], [61, "<f>A2/2</f><v>30.5</v>"], [72, no_text]]})
    assert read_frame(tmp_path / "t.xlsx").columns[1].tolist() == pytest.approx([30.5, np.nan], nan_ok=True)


def test_results_of_files_to_be_computed_on_loading_are_none(tmp_path):
    """XlsxWriter, by which pandas writes, stores 0 for every formula."""
    pytest.importorskip("python_calamine")
    spreadsheet(tmp_path / "t.xlsx", {"data": [["age", "half"], [61, "<f>A2/2</f><v>0</v>"]]})
    assert read_frame(tmp_path / "t.xlsx").columns[1].tolist() == [0]
    with zipfile.ZipFile(tmp_path / "t.xlsx") as old, zipfile.ZipFile(tmp_path / "new.xlsx", "w") as new:
        for name in old.namelist():
            text = old.read(name).decode()
            new.writestr(name, text.replace("</workbook>", '<calcPr fullCalcOnLoad="1"/></workbook>'))
    with pytest.raises(UserError, match="without a stored result: B2"):
        read_frame(tmp_path / "new.xlsx")


def test_formulas_of_an_ods_without_a_stored_result_are_refused(tmp_path):
    pytest.importorskip("python_calamine")
    office, table, text = (f"urn:oasis:names:tc:opendocument:xmlns:{x}:1.0" for x in ("office", "table", "text"))
    cell = "<table:table-cell {}><text:p>{}</text:p></table:table-cell>"
    rows = [
        [cell.format('office:value-type="string"', name) for name in ("age", "half")],
        [
            cell.format('office:value-type="float" office:value="61"', 61),
            '<table:table-cell table:formula="of:=[.A2]/2"/>',
        ],
    ]
    body = "".join(f"<table:table-row>{''.join(row)}</table:table-row>" for row in rows)

    def written(body: str):
        with zipfile.ZipFile(tmp_path / "t.ods", "w") as file:
            file.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
            file.writestr("META-INF/manifest.xml", "<manifest/>")
            file.writestr(
                "content.xml",
                f'<office:document-content xmlns:office="{office}" xmlns:table="{table}" xmlns:text="{text}">'
                f'<office:body><office:spreadsheet><table:table table:name="data">{body}</table:table>'
                "</office:spreadsheet></office:body></office:document-content>",
            )
        return read_frame(tmp_path / "t.ods")

    with pytest.raises(UserError, match=r"without a stored result: of:=\[.A2\]/2"):
        written(body)
    stored = 'of:=[.A2]/2" office:value-type="float" office:value="30.5"'
    assert written(body.replace('of:=[.A2]/2"', stored)).columns[1].tolist() == [30.5]


@pytest.mark.parametrize("kind", ["dta", "sav"])
def test_labels_and_missing_codes_of_statistics_programs(tmp_path, kind):
    pyreadstat = pytest.importorskip("pyreadstat")
    table = pd.DataFrame({"sex": [1.0, 2, 1, 2], "age": [50.0, 60, 99, None], "day": [dt.date(2020, 1, 3)] * 4})
    labels = {"sex": {1: "male", 2: "female"}, "age": {99: "refused"}}
    path = tmp_path / f"t.{kind}"
    if kind == "dta":
        pyreadstat.write_dta(table, str(path), variable_value_labels=labels)
    else:
        pyreadstat.write_sav(table, str(path), variable_value_labels=labels, missing_ranges={"age": [99]})
    frame = read_frame(path)
    assert frame.columns[0].tolist() == ["male", "female", "male", "female"]
    assert (frame.columns[1][2] == 99) == (kind == "dta")  # SPSS declares it missing
    assert frame.columns[2][0] == dt.date(2020, 1, 3)
    assert any("'age': only some values have labels (99 'refused')" in n for n in frame.notes)
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read"):
        read_frame(path)


def test_dates_of_stata_that_are_read_as_numbers_are_said(tmp_path):
    pyreadstat = pytest.importorskip("pyreadstat")
    table = pd.DataFrame({"month": [600.0, 601, 602], "year": [2000.0, 2001, 2002]})
    pyreadstat.write_dta(table, str(tmp_path / "t.dta"), variable_format={"month": "%tmNN/CCYY", "year": "%ty"})
    (note,) = read_frame(tmp_path / "t.dta").notes
    assert "'month': Stata's dates in months since 1960" in note


ROWS = [["age", "sex", "ratio"], *([20 + k, "fm"[k % 2], k / 10] for k in range(60))]
BROKEN = {
    (5, 2): "#DIV/0!",
    (9, 2): "#N/A",
    (12, 1): "#NAME?",
    (14, 0): "#VALUE!",
    (15, 1): "#REF!",
    (16, 2): "#NUM!",
}


def broken_file(path):
    rows = [[BROKEN.get((i, j), v) for j, v in enumerate(row)] for i, row in enumerate(ROWS)]
    if path.suffix == ".csv":
        path.write_text("\n".join(",".join(map(str, row)) for row in rows))
    else:
        pytest.importorskip("python_calamine")
        spreadsheet(path, {"other": ROWS, "data": rows})
    return read_frame(path, sheet=None if path.suffix == ".csv" else "data")


@pytest.mark.parametrize("name", ["t.csv", "t.xlsx"])
def test_formulas_without_a_result_are_bad_cells_of_every_column(tmp_path, name):
    # A spreadsheet's were empty without a word, in a CSV file they were categories.
    frame = broken_file(tmp_path / name)
    with pytest.raises(UserError) as raised:
        infer(dataclasses.replace(frame, source="t"))
    for column, row, shown in (
        ("age", 15, "#VALUE!"),
        ("sex", 13, "#NAME?"),
        ("sex", 16, "#REF!"),
        ("ratio", 6, "#DIV/0!"),
        ("ratio", 17, "#NUM!"),
    ):
        assert f"column {column!r}, row {row}: {shown!r}, a formula without a result" in str(raised.value)
    assert "in all 5 cells: 1 in 'age', 2 in 'sex', 2 in 'ratio'" in str(raised.value)


@pytest.mark.parametrize("name", ["t.csv", "t.xlsx"])
def test_formulas_without_a_result_may_be_declared_missing(tmp_path, name):
    frame = broken_file(tmp_path / name)
    told = {"missing": ["#DIV/0!", "#NAME?", "#VALUE!", "#REF!", "#NUM!"]}
    schema = infer_schema(frame.names, frame.columns, override=told)
    assert [c.kind for c in schema.columns] == ["integer", "binary", "numeric"]
    assert [int((x != x).sum()) for x in encode(frame, schema)] == [1, 2, 3]


@pytest.mark.parametrize("text", ["#BEZUG!", "#WERT!", "#ZAHL!", "#¡VALOR!", "#¿NOMBRE?", "#NOM?", "########"])
def test_errors_of_spreadsheets_in_other_languages(text):
    sex = np.array([*("fm" * 30), text], object)
    with pytest.raises(UserError, match=r"row 61: .*, a formula without a result"):
        infer_schema(["sex"], [sex])


@pytest.mark.parametrize("text", ["#1", "#A", "a#!", "#2!"])
def test_categories_with_a_hash_are_categories(text):
    assert text in infer_schema(["arm"], [np.array([*("fm" * 30), text], object)]).columns[0].categories
