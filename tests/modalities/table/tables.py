"""Small clinical tables, made in microseconds."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pandas as pd

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[3] / ".." / "shared")) / "data" / "tables"


def patients(rows: int = 200, seed: int = 0, missing: float = 0.0) -> pd.DataFrame:
    """Age, sex, two labs that go with them, a stage, and follow-up; pandas, with holes on request."""
    rng = np.random.default_rng(seed)
    age = np.round(rng.normal(65, 10, rows))
    sex = np.where(rng.random(rows) < 0.5, "F", "M")
    low = np.round(70 + 0.2 * (age - 65) + rng.normal(0, 8, rows))
    high = np.round(low + 45 + rng.gamma(4, 4, rows))
    stage = np.array(["I", "II", "III"])[np.clip((age > 60).astype(int) + (rng.random(rows) < 0.4), 0, 2)]
    died = rng.exponential(np.exp(-0.05 * (age - 65)) * 500)
    left = rng.uniform(100, 1500, rows)
    frame = pd.DataFrame(
        {
            "age": age,
            "sex": sex,
            "dbp": low,
            "sbp": high,
            "stage": stage,
            "time": np.maximum(1, np.round(np.minimum(died, left))),
            "event": (died <= left).astype(int),
        }
    )
    if missing:
        for name in ("age", "sex", "dbp", "sbp", "stage"):
            frame.loc[rng.random(rows) < missing, name] = None
    return frame


def spreadsheet(path: Path, sheets: dict[str, list[list]], merged: tuple[str, ...] = ()) -> None:
    """A minimal .xlsx file; `merged` ranges of cells in every sheet."""

    def cell(value: Any, place: str) -> str:
        if isinstance(value, str) and value.startswith("#"):
            return f'<c r="{place}" t="e"><f>1/{place}</f><v>{escape(value)}</v></c>'
        if isinstance(value, str) and value.startswith("<f"):
            kind = ' t="str"' if value.endswith("<v></v>") else ""
            return f'<c r="{place}"{kind}>{value}</c>'
        if isinstance(value, str):
            return f'<c r="{place}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'
        return f'<c r="{place}"><v>{value}</v></c>' if value is not None else ""

    def row(cells: list, number: int) -> str:
        return (
            f'<row r="{number}">' + "".join(cell(v, f"{'ABCDEF'[i]}{number}") for i, v in enumerate(cells)) + "</row>"
        )

    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    relations = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    names = "".join(f'<sheet name="{n}" sheetId="{i}" r:id="r{i}"/>' for i, n in enumerate(sheets, 1))
    links = "".join(
        f'<Relationship Id="r{i}" Type="{relations}/worksheet" Target="worksheets/s{i}.xml"/>'
        for i in range(1, len(sheets) + 1)
    )
    package = "http://schemas.openxmlformats.org/package/2006"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{package}/content-types"><Default Extension="xml" ContentType="application/xml"/></Types>',
        )
        file.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{package}/relationships"><Relationship Id="r0" Type="{relations}/officeDocument" '
            'Target="xl/workbook.xml"/></Relationships>',
        )
        file.writestr(
            "xl/workbook.xml", f'<workbook xmlns="{main}" xmlns:r="{relations}"><sheets>{names}</sheets></workbook>'
        )
        file.writestr(
            "xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{package}/relationships">{links}</Relationships>'
        )
        for i, rows in enumerate(sheets.values(), 1):
            body = "".join(row(cells, n) for n, cells in enumerate(rows, 1))
            held = "".join(f'<mergeCell ref="{m}"/>' for m in merged)
            body = f"<sheetData>{body}</sheetData>" + (f"<mergeCells>{held}</mergeCells>" if held else "")
            file.writestr(f"xl/worksheets/s{i}.xml", f'<worksheet xmlns="{main}">{body}</worksheet>')
