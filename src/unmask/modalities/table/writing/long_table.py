"""Several tables as one, below each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.table.writing.whole_columns import is_pandas
from unmask.modalities.table.writing.writers import as_polars


def below_each_other(tables: Sequence[Any], numbers: Sequence[int]) -> Any:
    """Tables as one of their kind, with the columns `.imp` and `.id` in front."""
    first = tables[0]
    if isinstance(first, np.ndarray):
        raise UserError(
            "complete('long') of arrays", hint="np.stack(done.completed) is (m, rows, columns); or fit to a frame."
        )
    if is_pandas(first):
        import pandas as pd

        levels = [".id"] if first.index.nlevels == 1 else list(first.index.names)
        return pd.concat(tables, keys=numbers, names=[".imp", *levels]).reset_index()
    import polars as pl

    parts = [
        as_polars(table).select(pl.lit(number).alias(".imp"), pl.row_index(".id").cast(pl.Int64), pl.all())
        for number, table in zip(numbers, tables, strict=True)
    ]
    long = pl.concat(parts, how="vertical_relaxed")
    return long.to_arrow() if type(first).__module__.startswith("pyarrow") else long
