"""Write MEDS folders of any size in constant memory: spill by subject, then sort and write shard by shard.

Every chunk is dealt to `BUCKETS` files by a hash of the subject, so a subject lies in one of them whole; buckets are
then read a few at a time, about `SHARD_ROWS` events, sorted and written as one shard. Memory: one chunk and one shard.
Above BUCKETS x SHARD_ROWS events a bucket is larger than a shard, and memory grows with it.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from unmask.files import fsync
from unmask.modalities.events.records.meds import MEDS_VERSION
from unmask.writing import check_absent, written_folder

BUCKETS = 256
SHARD_ROWS = 1_000_000
SCHEMA: dict[str, Any] = {
    "subject_id": pl.Int64,
    "time": pl.Datetime("us"),
    "code": pl.String,
    "numeric_value": pl.Float32,
}
EXTRA: dict[str, Any] = {"text_value": pl.String, "visit_id": pl.Int64}
"""Columns that stand in the folder where a source has any: an answer in words, and the encounter an event belongs to.
"""
STORED = pa.schema(
    [
        pa.field("subject_id", pa.int64()),
        pa.field("time", pa.timestamp("us")),
        pa.field("code", pa.string()),
        pa.field("numeric_value", pa.float32()),
        pa.field("text_value", pa.large_string()),
        pa.field("visit_id", pa.int64()),
    ]
)
"""As MEDS has it; polars alone would write large_string throughout, which its validation refuses."""


class MedsWriter:
    """Takes events in any order, in chunks; `finish` makes the folder appear, whole. A context manager."""

    def __init__(self, out: str | Path) -> None:
        self.target = check_absent(out)
        self._written = contextlib.ExitStack()
        self.rows, self.subjects = 0, 0
        self.counts: dict[str, int] = {}
        self.extra: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._sizes = [0] * BUCKETS
        self._open: dict[int, Any] = {}

    def __enter__(self) -> MedsWriter:
        self.folder = self._written.enter_context(written_folder(self.target))
        (self.folder / "spill").mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> bool | None:
        for writer in self._open.values():
            with contextlib.suppress(OSError):  # a full disk, which is what the error says
                writer.close()
        return self._written.__exit__(kind, error, at)

    def add(self, frame: pl.DataFrame) -> None:
        """Events with the columns of `SCHEMA` and any of `EXTRA`; those of one subject and time keep their order."""
        self.extra |= {n for n in EXTRA if n in frame.columns and frame[n].null_count() < len(frame)}
        frame = frame.select(
            (pl.col(n) if n in frame.columns else pl.lit(None)).cast(kind).alias(n)
            for n, kind in (SCHEMA | EXTRA).items()
        )
        self.rows += len(frame)
        seen = frame["code"].value_counts()
        for code, count in seen.iter_rows():
            self.counts[code] = self.counts.get(code, 0) + count
            self._numbers.setdefault(code, len(self._numbers))
        # Codes are spilled as numbers: the same bytes per event whatever their length.
        table = seen.select("code", pl.Series("number", [self._numbers[c] for c in seen["code"]], dtype=pl.UInt32))
        bucket = (pl.col("subject_id").hash(seed=7) % BUCKETS).cast(pl.Int64).alias("bucket")
        frame = frame.join(table, on="code", how="left", maintain_order="left").drop("code").with_columns(bucket)
        parts = frame.partition_by("bucket", as_dict=True, include_key=False, maintain_order=True)
        for (number,), part in parts.items():
            arrow = part.to_arrow()
            if number not in self._open:
                path = self.folder / "spill" / f"{number}.arrow"
                self._open[number] = pa.ipc.new_stream(pa.OSFile(str(path), "wb"), arrow.schema)
            self._open[number].write_table(arrow)
            self._sizes[number] += len(part)
        del frame, parts
        pa.default_memory_pool().release_unused()

    def finish(
        self, *, name: str, descriptions: dict[str, str] | None = None, about: Mapping[str, Any] | None = None
    ) -> Path:
        """Sort, write data and metadata; the folder appears when the block ends. `about`: more of the data set, for
        metadata/dataset.json."""
        for writer in self._open.values():
            writer.close()
        numbers = sorted(self._open)
        self._open = {}
        (self.folder / "data").mkdir()
        (self.folder / "metadata").mkdir(exist_ok=True)
        group: list[int] = []
        shard = 0
        for i, number in enumerate(numbers):
            group.append(number)
            full = i + 1 == len(numbers) or sum(self._sizes[n] for n in [*group, numbers[i + 1]]) > SHARD_ROWS
            if full:
                self._shard(group, self.folder / "data" / f"{shard}.parquet")
                group, shard = [], shard + 1
        self._metadata(name, descriptions or {}, about or {})
        shutil.rmtree(self.folder / "spill")
        return self.target

    def _shard(self, numbers: list[int], path: Path) -> None:
        parts = []
        for number in numbers:
            spilled = self.folder / "spill" / f"{number}.arrow"
            with pa.OSFile(str(spilled), "rb") as file:
                parts.append(pl.from_arrow(pa.ipc.open_stream(file).read_all()))
            spilled.unlink()
        frame = pl.concat([p for p in parts if isinstance(p, pl.DataFrame)])
        del parts
        frame = frame.sort("subject_id", "time", nulls_last=False, maintain_order=True)
        self.subjects += frame["subject_id"].n_unique()
        code = pl.Series("code", list(self._numbers), dtype=pl.String).gather(frame["number"])
        columns = [*SCHEMA, *(n for n in EXTRA if n in self.extra)]
        stored = pa.schema([STORED.field(n) for n in columns])
        pq.write_table(frame.with_columns(code).select(columns).to_arrow().cast(stored), path)
        fsync(path)
        del frame, code
        pa.default_memory_pool().release_unused()

    def _metadata(self, name: str, descriptions: dict[str, str], more: Mapping[str, Any]) -> None:
        codes = sorted(self.counts)
        schema = pa.schema([("code", pa.string()), ("description", pa.string())])
        known = pa.table({"code": codes, "description": [described(c, descriptions) for c in codes]}, schema=schema)
        pq.write_table(known, self.folder / "metadata" / "codes.parquet")
        about: dict[str, Any] = {"dataset_name": name, "etl_name": "unmask", "meds_version": MEDS_VERSION, **more}
        if "visit_id" in self.extra:
            about["raw_source_id_columns"] = ["visit_id"]
        (self.folder / "metadata" / "dataset.json").write_text(json.dumps(about), encoding="utf-8")


def described(code: str, descriptions: Mapping[str, str]) -> str | None:
    """What a code is called; with a unit or an answer behind it (LAB//1//mg/dL), what the code without that is called.

    >>> described("LAB//1//mg/dL", {"LAB//1": "Creatinine"})
    'Creatinine'
    """
    parts = code.split("//")
    shorter = ("//".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((descriptions[c] for c in shorter if c in descriptions), None)


def write_meds(
    frame: pl.DataFrame,
    out: str | Path,
    *,
    name: str,
    codes: dict[str, str] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write events (subject_id, time, code, numeric_value) as a MEDS folder, sorted; whole or not at all."""
    with MedsWriter(out) as shards:
        shards.add(frame)
        return shards.finish(name=name, descriptions=codes, about=about)
