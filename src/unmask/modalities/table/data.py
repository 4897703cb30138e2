"""Tables in and out, under one name: frames, the readers and writers of each kind of table, and the values in their cells."""

from __future__ import annotations

from unmask.modalities.table.frame import Frame
from unmask.modalities.table.readers import read_csv, read_frame
from unmask.modalities.table.values import cell_texts, decode, encode, match_columns, writes_point
from unmask.modalities.table.writers import (
    as_polars,
    filled_copy,
    handed_out,
    like_stored,
    new_frame,
    new_table,
    rows_below,
    stored_types,
    write_table,
)

__all__ = [
    "Frame", "as_polars", "cell_texts", "decode", "encode", "filled_copy", "handed_out", "like_stored", "match_columns", "new_frame",
    "new_table", "read_csv", "read_frame", "rows_below", "stored_types", "write_table", "writes_point",
]  # fmt: skip
