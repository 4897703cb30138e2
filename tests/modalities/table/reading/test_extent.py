"""Files that claim more than there is are refused before anything is made of them."""

from __future__ import annotations

import time
import zipfile
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unmask import memory
from unmask.errors import UserError
from unmask.memory import Free, peak_memory
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.reading.sheets import MOST_COLUMNS

SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def spreadsheet(path: Path, cells: str) -> Path:
    kinds = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{PACKAGE}/content-types"><Default Extension="xml" ContentType="application/xml"/><Override '
            f'PartName="/xl/workbook.xml" ContentType="{kinds}.sheet.main+xml"/></Types>',
        )
        file.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r1" Type="{RELATIONS}/officeDocument" '
            'Target="xl/workbook.xml"/></Relationships>',
        )
        file.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{SHEET}" xmlns:r="{RELATIONS}"><sheets><sheet name="a" sheetId="1" r:id="r1"/></sheets>'
            "</workbook>",
        )
        file.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="r1" Type="{RELATIONS}/worksheet" '
            'Target="worksheets/sheet1.xml"/></Relationships>',
        )
        file.writestr(
            "xl/worksheets/sheet1.xml", f'<worksheet xmlns="{SHEET}"><sheetData>{cells}</sheetData></worksheet>'
        )
    return path


FIRST = '<row r="1"><c r="A1"><v>1</v></c></row><row r="2"><c r="A2"><v>2</v></c></row>'


def test_a_cell_far_away_is_refused_by_its_extent(tmp_path: Path):
    pytest.importorskip("python_calamine")
    assert read_frame(spreadsheet(tmp_path / "near.xlsx", FIRST)).names == ["1"]
    far = '<row r="1048576"><c r="XFD1048576"><v>3</v></c></row>'
    before = peak_memory()
    with pytest.raises(UserError, match=r"1,048,576 rows and 16,384 columns .*: at least 549\.8 GB"):
        read_frame(spreadsheet(tmp_path / "far.xlsx", FIRST + far))
    assert peak_memory() - before < 200


def test_what_unpacks_to_more_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("python_calamine")
    monkeypatch.setattr(memory, "free_memory", lambda: Free(1e6, "made up"))
    bomb = spreadsheet(tmp_path / "bomb.xlsx", FIRST + " " * 2_000_000)
    assert bomb.stat().st_size < 10_000
    with pytest.raises(UserError, match=r"bomb\.xlsx: unpacked it has 2,00\d,\d+ bytes"):
        read_frame(bomb)


def test_a_parquet_file_of_more_rows_than_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "free_memory", lambda: Free(1e6, "made up"))
    pl.DataFrame({"a": [1] * 200_000}).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(UserError, match=r"200,000 rows and 1 columns by its own account"):
        read_frame(tmp_path / "t.parquet")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_more_columns_than_are_looked_at_within_a_minute_are_refused_by_the_head(tmp_path: Path, kind: str):
    """A file of 300 000 columns took minutes before anything was said."""
    count = MOST_COLUMNS + 1 if kind == "parquet" else 300_000
    path = tmp_path / f"wide.{kind}"
    if kind == "csv":
        names = ",".join(f"c{i}" for i in range(count))
        path.write_text("\n".join([names, *[",".join(["1.5"] * count)] * 5]))
    else:
        pq.write_table(pa.table({f"c{i}": [1.5] for i in range(count)}), path)
    before, start = peak_memory(), time.process_time()
    with pytest.raises(UserError, match=rf"wide\.{kind}: {count:,} columns; at most {MOST_COLUMNS:,}"):
        read_frame(path)
    assert time.process_time() - start < 1
    assert peak_memory() - before < 200
