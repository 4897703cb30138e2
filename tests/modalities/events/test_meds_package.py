"""What we write is MEDS: the format's own package validates it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from event_data import DAY, table

from unmask.modalities.events.records.shards import write_meds
from unmask.modalities.events.uses.demo import simulate

meds = pytest.importorskip("meds", reason="the meds package is a development dependency")


def validate(folder: Path) -> None:
    """Raises where a file is not as the package wants it. Read file by file: the reader of folders adds
    dictionaries."""
    shards = sorted((folder / "data").glob("**/*.parquet"))
    assert shards
    for path in shards:
        meds.DataSchema.validate(pq.ParquetFile(path).read())
    meds.CodeMetadataSchema.validate(pq.ParquetFile(folder / meds.code_metadata_filepath).read())
    meds.DatasetMetadataSchema.validate(json.loads((folder / meds.dataset_metadata_filepath).read_text()))


def test_folders_written_by_us_validate(tmp_path: Path):
    validate(write_meds(table([(1, DAY, "A", 1.0), (1, None, "SEX//F", None)]), tmp_path / "m", name="made"))


def test_the_demo_validates(tmp_path: Path):
    simulate(tmp_path, patients=20)
    validate(tmp_path / "meds")
    for path in (tmp_path / "task").glob("*.parquet"):
        meds.LabelSchema.validate(pq.ParquetFile(path).read())
