"""A table in memory gives the events of the same table in a file."""

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from polars.testing import assert_frame_equal

from unmask.errors import UserError
from unmask.modalities.events.sources.convert import convert

ROWS = [
    {
        "subject_id": s,
        "time": f"2020-01-0{d} 08:00:00",
        "code": f"LAB//{(s + d) % 3}",
        "numeric_value": None if d == 2 else s + d / 2,
    }
    for s in (1, 2, 3)
    for d in (1, 2, 3)
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
SHAPES = {
    "pandas": lambda: pd.DataFrame(ROWS, index=range(5, 14)),
    "polars": lambda: pl.DataFrame(ROWS),
    "arrow": lambda: pa.Table.from_pylist(ROWS),
    "columns": lambda: COLUMNS,
    "rows": lambda: ROWS,
    "generator": lambda: (row for row in ROWS),
}


def events(folder):
    return pl.read_parquet(folder / "data" / "**" / "*.parquet").sort("subject_id", "time", "code")


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_the_file(shape, tmp_path):
    pl.DataFrame(ROWS).write_csv(tmp_path / "t.csv")
    expected = convert(tmp_path / "t.csv", tmp_path / "file")
    found = convert(SHAPES[shape](), tmp_path / "memory")
    assert_frame_equal(events(tmp_path / "memory"), events(tmp_path / "file"))
    assert (found["rows"], found["events"], found["subjects"]) == (
        expected["rows"],
        expected["events"],
        expected["subjects"],
    )


@pytest.mark.parametrize("source", [3, None, [], [1, 2], "", [("a", 1)], {"a": [1, 2], "b": [1]}])
def test_what_is_no_table_is_refused(source, tmp_path):
    with pytest.raises(UserError):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
