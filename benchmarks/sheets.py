"""The files that pages draw their tables from, for the benchmarks that write them."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "make"))

from verify.provenance import processor
from verify.result import FOLDER
from verify.sheet import Sheet, Table, parsed, written

__all__ = ["FOLDER", "Sheet", "Table", "parsed", "processor", "processor_line", "write_sheet", "written"]

ROOT = Path(__file__).parents[1]


def write_sheet(name: str, *tables: Table, sources: str, **about: str) -> None:
    """Write docs/results/NAME.json of what was measured today at this commit. `about`: title, says, command, processor
    and seeds; `sources`: the files or folders of code that it measures, a space between."""
    commit = subprocess.check_output(["git", "-C", ROOT, "rev-parse", "HEAD"], text=True).strip()
    given = {"commit": commit, "since": commit, "date": date.today().isoformat(), "sources": tuple(sources.split())}
    sheet = Sheet(name=name, tables=tables, **given, **about)
    (ROOT / FOLDER / f"{name}.json").write_text(written(sheet), encoding="utf-8")


def processor_line(found: dict[str, Any]) -> str:
    """What `processor` found, as pages say it."""
    features = ", ".join(found["features"])
    return f"{found['model']} ({features}), {found['cores']} cores, load before {found['load_before']:.1f}"
