"""Eight files as the programs of clinics write them, each imputed by one command.

Cells that were there, and all that is around them, are unchanged to the letter; what cannot be known is asked for, with
the flag that says it.
"""

from __future__ import annotations

import csv
import datetime as dt
import functools
import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tables import spreadsheet

from commands import run
from unmask.modalities.table import verbs

ROWS = 60
RNG = np.random.default_rng(0)
AGE = RNG.normal(65, 10, ROWS).round().astype(int)
FEMALE = RNG.random(ROWS) < 0.5
WEIGHT = RNG.normal(78, 12, ROWS).round(1)
CRP = (np.exp(RNG.normal(1, 1, ROWS)) + 0.1).round(1)
PLATELETS = (RNG.normal(250, 50, ROWS) * 10).round().astype(int) * 100
DAY = [dt.date(2019, 1, 13) + dt.timedelta(days=int(d)) for d in RNG.integers(0, 900, ROWS)]
LACKING = {i: set(np.flatnonzero(RNG.random(ROWS) < 0.15).tolist()) for i in range(6)}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(verbs, "fit_to", functools.partial(verbs.fit_to, steps=0, members=1))


def holed(column, values, none):
    """The values as texts, some of them none."""
    return [none if i in LACKING[column] else str(v) for i, v in enumerate(values)]


def lines(columns, *, delimiter=",", end="\r\n", quoted=lambda text: text):
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    return [delimiter.join(quoted(cell) for cell in row) + end for row in rows]


def comma(values):
    return [f"{v:.1f}".replace(".", ",") for v in values]


def r_write_csv2() -> bytes:
    """R on a German Windows: ; and decimal commas, names and texts in quotes, NA without, Latin-1, CRLF."""

    def quoted(text):
        return text if text == "NA" or text.replace(",", "").isdecimal() else f'"{text}"'

    columns = {
        "Patient": [f"P{i:03}" for i in range(ROWS)],
        "Alter": holed(0, AGE, "NA"),
        "Geschlecht": holed(1, np.where(FEMALE, "weiblich", "männlich"), "NA"),
        "Größe; Gewicht": holed(2, comma(WEIGHT), "NA"),
        "CRP": holed(3, comma(CRP), "NA"),
    }
    return "".join(lines(columns, delimiter=";", quoted=quoted)).encode("latin-1")


def redcap() -> bytes:
    """A REDCap export: a byte order mark, check boxes, columns of instruments that are empty, -999 for not done."""
    columns = {
        "record_id": [str(i + 1) for i in range(ROWS)],
        "redcap_event_name": ["baseline_arm_1"] * ROWS,
        "redcap_repeat_instrument": [""] * ROWS,
        "age": holed(0, AGE, ""),
        "sex": holed(1, np.where(FEMALE, 1, 2), ""),
        "comorb___1": (AGE % 2).astype(str).tolist(),
        "weight": holed(2, WEIGHT, "-999"),
        "visit_date": holed(4, DAY, ""),
        "note": [f'said "no, thanks", day {i}' if i % 2 else f"day {i}" for i in range(ROWS)],
    }
    quoted = lambda text: '"' + text.replace('"', '""') + '"' if '"' in text or "," in text else text  # noqa: E731
    return b"\xef\xbb\xbf" + "".join(lines(columns, end="\n", quoted=quoted)).encode()


def libre_office() -> bytes:
    """LibreOffice Calc, all cells quoted: thousands apart, days before months, a cell with a line end in it."""
    columns = {
        "ID": [f"P{i:03}" for i in range(ROWS)],
        "Age": holed(0, AGE, ""),
        "Platelets": holed(5, [f"{v:,}" for v in PLATELETS], ""),
        "CRP": holed(3, CRP, ""),
        "Visit": holed(4, [d.strftime("%d/%m/%Y") for d in DAY], ""),
        "Remarks": ["fell on\nthe stairs" if i % 7 == 0 else f"nothing of note {i}" for i in range(ROWS)],
    }
    return "".join(lines(columns, end="\n", quoted=lambda text: f'"{text}"')).encode()


def sas_proc_export() -> bytes:
    """SAS, PROC EXPORT: . for no number, a blank for no text, dates as DATE9."""
    columns = {
        "USUBJID": [f"01-{i:03}" for i in range(ROWS)],
        "AGE": holed(0, AGE, "."),
        "SEX": holed(1, np.where(FEMALE, "F", "M"), " "),
        "CRP": holed(3, CRP, "."),
        "VISITDT": holed(4, [d.strftime("%d%b%Y").upper() for d in DAY], "."),
    }
    return "".join(lines(columns)).encode()


def laboratory() -> bytes:
    """A laboratory's export for Excel: sep=;, a byte order mark, units in cells, - for none, empty lines, 286.000."""
    columns = {
        "Fall": [f"F{i:03}" for i in range(ROWS)],
        "Alter": holed(0, AGE, ""),
        "CRP": holed(3, [f"{v} mg/l" if i % 3 else v for i, v in enumerate(comma(CRP))], ""),
        "Thrombozyten": holed(5, [f"{v:,}".replace(",", ".") for v in PLATELETS], "-"),
        "Abnahme": holed(4, [d.strftime("%d.%m.%Y") for d in DAY], ""),
    }
    rows = lines(columns, delimiter=";")
    rows[20] += "\r\n"
    return b"\xef\xbb\xbf" + ("sep=;\r\n" + "".join(rows) + "\r\n").encode()


UNITS = 'missing = ["-"]\ndecimal = ","\n[columns.CRP]\nsuffixes = ["mg/l"]\n'
"""The schema that its errors ask for."""


TEXTS = {  # what makes it, flags that its errors ask for, delimiter, encoding, columns with lacking cells
    "r_write_csv2": (r_write_csv2, ["--encoding", "latin-1"], ";", "latin-1", (0, 1, 2, 3)),
    "redcap": (redcap, ["--missing", "-999"], ",", "utf-8-sig", (0, 1, 2, 4)),
    "libre_office": (libre_office, [], ",", "utf-8", (0, 5, 3, 4)),
    "sas_proc_export": (sas_proc_export, [], ",", "ascii", (0, 1, 3, 4)),
    "laboratory": (laboratory, ["--schema", "known.toml"], ";", "utf-8-sig", (0, 3, 5, 4)),
}


def raw_cells(text: str, delimiter: str) -> list[str]:
    """The bytes of a CSV text, parted where a cell ends: at delimiters and line ends outside of quotes."""
    out, inside = [""], False
    for letter in text:
        inside ^= letter == '"'
        if not inside and letter in (delimiter, "\n", "\r"):
            out += [letter, ""]
        else:
            out[-1] += letter
    return out


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_file_is_unchanged_to_the_byte_but_for_the_filled_cells(tmp_path, capsys, monkeypatch, name):
    make, flags, delimiter, encoding, filled_columns = TEXTS[name]
    path, out = tmp_path / f"{name}.csv", tmp_path / "filled.csv"
    path.write_bytes(make())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "known.toml").write_text(UNITS)
    code, text, error = run(capsys, "impute", path, "--out", out, *flags)
    assert code == 0, error
    before, after = (raw_cells(p.read_bytes().decode(encoding), delimiter) for p in (path, out))
    assert len(before) == len(after)
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    expected = sum(len(LACKING[c]) for c in filled_columns)
    assert len(changed) == expected
    assert f"{expected} cells filled" in text
    assert {old.strip('" ') for old, _ in changed} <= {"", "NA", ".", "-", "-999"}
    assert all(new.strip('" ') for _, new in changed)
    if encoding == "utf-8-sig":
        assert out.read_bytes().startswith(b"\xef\xbb\xbf")
    again = list(csv.reader(io.StringIO(out.read_bytes().decode(encoding)), delimiter=delimiter))
    assert {len(row) for row in again if row and not row[0].startswith("sep=")} == {len(again[1] or again[2])}


def stata(path: Path) -> None:
    """pandas' to_stata as people use it: labels, a date, -9 for refused."""
    import pandas as pd

    table = pd.DataFrame(
        {
            "age": [np.nan if i in LACKING[0] else float(v) for i, v in enumerate(AGE)],
            "sex": pd.Categorical(np.where(FEMALE, "female", "male")),
            "weight": [-9 if i in LACKING[2] else v for i, v in enumerate(WEIGHT)],
            "visit": pd.to_datetime([None if i in LACKING[4] else d for i, d in enumerate(DAY)]),
        }
    )
    table.to_stata(path, write_index=False, convert_dates={"visit": "td"})


def spss(path: Path) -> None:
    """SPSS: labels of values, 9 declared as missing."""
    import pandas as pd
    import pyreadstat

    table = pd.DataFrame(
        {
            "age": [np.nan if i in LACKING[0] else float(v) for i, v in enumerate(AGE)],
            "sex": [9.0 if i in LACKING[1] else 2.0 - f for i, f in enumerate(FEMALE)],
            "weight": [np.nan if i in LACKING[2] else v for i, v in enumerate(WEIGHT)],
        }
    )
    labels = {"sex": {1.0: "female", 2.0: "male", 9.0: "not known"}}
    pyreadstat.write_sav(table, str(path), variable_value_labels=labels, missing_ranges={"sex": [9]})


@pytest.mark.parametrize(
    ("make", "ending", "flags", "filled"),
    [(stata, ".dta", ["--missing", -9], (0, 2, 4)), (spss, ".sav", [], (0, 1, 2))],
)
def test_a_file_of_a_statistics_package_keeps_its_values(tmp_path, capsys, make, ending, flags, filled):
    pyreadstat = pytest.importorskip("pyreadstat")
    path, out = tmp_path / f"t{ending}", tmp_path / "filled.parquet"
    make(path)
    code, text, error = run(capsys, "impute", path, "--out", out, *flags)
    assert code == 0, error
    assert f"{sum(len(LACKING[c]) for c in filled)} cells filled" in text
    assert "note: 'sex': the file's labels of its values are its categories" in text
    read = pyreadstat.read_dta if ending == ".dta" else pyreadstat.read_sav
    before, _ = read(str(path), apply_value_formats=True, output_format="polars")
    after = pl.read_parquet(out)
    assert after.columns == before.columns
    assert after.null_count().sum_horizontal().item() == 0
    for name in before.columns:
        for old, new in zip(before[name].to_list(), after[name].to_list(), strict=True):
            assert old is None or (isinstance(old, float) and (old != old or old == -9)) or old == new


def excel() -> list[list]:
    """A sheet as Excel has it: numbers and texts, empty cells where nothing was written."""
    values = [
        holed(0, AGE, None),
        holed(1, np.where(FEMALE, "F", "M"), None),
        holed(3, CRP, None),
    ]
    numbers = [[v if v is None or c == 1 else float(v) for v in column] for c, column in enumerate(values)]
    return [
        ["ID", "Age (y)", "Sex", "CRP mg/L"],
        *([f"P{i:03}", *row] for i, row in enumerate(zip(*numbers, strict=True))),
    ]


def test_a_spreadsheet_keeps_its_values_and_one_with_two_headers_says_what_to_do(tmp_path, capsys):
    pytest.importorskip("python_calamine")
    path, out, rows = tmp_path / "t.xlsx", tmp_path / "filled.csv", excel()
    spreadsheet(path, {"Data": rows})
    code, text, error = run(capsys, "impute", path, "--out", out)
    assert code == 0, error
    assert f"{sum(len(LACKING[c]) for c in (0, 1, 3))} cells filled" in text
    for old, new in zip(rows[1:], pl.read_csv(out).rows(), strict=True):
        assert all(a is None or a == b for a, b in zip(old, new, strict=True))
        assert None not in new
    groups = [None, "Demographics", None, "Laboratory"]
    spreadsheet(tmp_path / "two.xlsx", {"Data": [groups, *rows]}, merged=("B1:C1",))
    code, _, error = run(capsys, "impute", tmp_path / "two.xlsx", "--out", tmp_path / "no.csv")
    assert (code, "merged cells B1:C1 ('Demographics')" in error) == (2, True)
    assert not (tmp_path / "no.csv").exists()
    spreadsheet(tmp_path / "note.xlsx", {"Data": [*rows, [None] * 4, ["* measured at admission", None, None, None]]})
    code, _, error = run(capsys, "impute", tmp_path / "note.xlsx", "--out", tmp_path / "no.csv")
    assert (code, "row 63 ('ID': '* measured at admission'): the table's last, unlike the cells above" in error) == (
        0,
        True,
    )


def test_what_a_file_leaves_open_is_asked_for_with_the_flag_that_says_it(tmp_path, capsys):
    asked = ("--decimal ,", 'suffixes = ["mg/l"]', 'missing = ["-"]')
    for name, hints in (("r_write_csv2", ("--encoding cp1252",)), ("laboratory", asked)):
        (tmp_path / f"{name}.csv").write_bytes(TEXTS[name][0]())
        code, _, error = run(capsys, "impute", tmp_path / f"{name}.csv", "--out", tmp_path / "no.csv")
        assert code == 2
        assert all(hint in error for hint in hints), error
    (tmp_path / "t.txt").write_text('"id" "age"\n"1" 34\n"2" 40\n')  # R's write.table
    code, _, error = run(capsys, "impute", tmp_path / "t.txt", "--out", tmp_path / "no.csv")
    assert code == 2
    assert "blanks part its columns" in error
    assert not (tmp_path / "no.csv").exists()
