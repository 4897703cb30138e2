"""The files that pages draw their tables from, for the benchmarks that write them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "make"))

from verify.provenance import processor
from verify.result import FOLDER
from verify.sheet import Sheet, Table, parsed, written

__all__ = ["FOLDER", "Sheet", "Table", "parsed", "processor", "written"]
