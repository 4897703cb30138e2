"""The files that pages draw their tables from, for the benchmarks that write them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "make"))

from verify.provenance import processor
from verify.result import FOLDER
from verify.sheet import Sheet, Table, parsed, written

__all__ = ["FOLDER", "Sheet", "Table", "parsed", "processor", "processor_line", "written"]


def processor_line(found: dict[str, Any]) -> str:
    """What `processor` found, as pages say it."""
    features = ", ".join(found["features"])
    return f"{found['model']} ({features}), {found['cores']} cores, load before {found['load_before']:.1f}"
