"""The converter: events per second and peak memory on tables made by repeating patients, and the FHIR sample.

Each size runs in a process of its own; peak memory is that process's, Python and libraries among it.

    python benchmarks/events_convert.py [--millions 2,20] [--out F.json]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[2] / "shared"))


def make(millions: float, path: Path) -> int:
    """A csv of Synthea's events (or random ones) with patients repeated under new ids, a block at a time."""
    data = SHARED / "data/events/synthea_r4/data"
    if data.exists():
        base = pl.concat([pl.read_parquet(p) for p in sorted(data.rglob("*.parquet"))])
        base = base.select("subject_id", "time", "code", "numeric_value")
    else:
        rng = np.random.default_rng(0)
        base = pl.DataFrame(
            {
                "subject_id": rng.integers(0, 600, 150_000),
                "code": rng.integers(0, 500, 150_000).astype(str),
                "time": pl.from_epoch(pl.Series(np.sort(rng.integers(0, 10**9, 150_000))), "s").cast(pl.Datetime("us")),
                "numeric_value": rng.normal(size=150_000).astype(np.float32),
            }
        )
    number = base["subject_id"].rank("dense").cast(pl.Int64)
    times = max(1, round(millions * 1e6 / len(base)))
    with path.open("wb") as file:
        for i in range(times):
            block = base.with_columns((number + i * 100_000).alias("subject_id"))
            block.write_csv(file, include_header=i == 0, datetime_format="%Y-%m-%d %H:%M:%S")
    return times * len(base)


def measured(path: str, out: str) -> None:
    from unmask.modalities.events.sources.convert import convert

    start = time.perf_counter()
    found = convert(path, out)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert sum(found["rejected"].values()) == found["rejected_rows"]
    print(json.dumps({**found, "seconds": seconds, "peak_mib": peak}))


def agreement() -> dict[str, int]:
    """The FHIR sample through our converter, against the same patients in synthea_r4, event by event.

    Patients are matched by their birth and the most events in common; values are compared to three decimals, codes
    without the unit that ours have behind them, and times not at all: that copy has what happened where it happened.
    """
    from unmask.modalities.events.sources.convert import convert

    with tempfile.TemporaryDirectory() as folder:
        found = convert(SHARED / "data/events/synthea_fhir_r4_sample.zip", Path(folder) / "meds")
        assert sum(found["rejected"].values()) == found["rejected_rows"]
        ours = by_subject(Path(folder) / "meds")
    theirs = by_subject(SHARED / "data/events/synthea_r4")
    same = 0
    for mine in ours.values():
        same += max(sum((mine & other).values()) for other in theirs.values() if births(other) == births(mine))
    return {
        "resources": found["rows"],
        "kept": found["kept_rows"],
        "rejected": found["rejected_rows"],
        "patients": len(ours),
        "events": found["events"],
        "equal_events": same,
    }


def by_subject(folder: Path) -> dict[int, Counter]:
    frame = pl.concat([pl.read_parquet(p) for p in sorted((folder / "data").rglob("*.parquet"))])
    bare = pl.when(pl.col("numeric_value").is_not_null()).then(pl.col("code").str.extract("^(LAB//LOINC//[^/]+)"))
    frame = frame.with_columns(pl.col("numeric_value").round(3), pl.coalesce(bare, "code").alias("code"))
    born = pl.when(pl.col("code") == "MEDS_BIRTH").then("time")
    parts = frame.with_columns(born.alias("time")).group_by("subject_id")
    return {s: Counter(g.select("time", "code", "numeric_value").iter_rows()) for (s,), g in parts}


def births(events: Counter) -> list:
    return [time for time, code, _ in events if code == "MEDS_BIRTH"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", default="2,20")
    parser.add_argument("--quick", action="store_true", help="0.2 and 0.4 million")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out")
    a = parser.parse_args()
    if a.one:
        measured(*a.one)
        return
    if (SHARED / "data/events").exists():
        found_fhir = agreement()
        print("FHIR sample: " + ", ".join(f"{v:,} {k.replace('_', ' ')}" for k, v in found_fhir.items()), flush=True)
    found = []
    for millions in (float(m) for m in ("0.2,0.4" if a.quick else a.millions).split(",")):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "events.csv"
            made = make(millions, path)
            command = [sys.executable, __file__, "--one", str(path), str(Path(folder) / "meds")]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            row |= {"millions": millions, "made": made, "csv_mib": path.stat().st_size / 2**20}
            found.append(row)
            print(
                f"{row['events']:>12,} of {made:,} events, {row['subjects']:,} subjects: {row['seconds']:.1f} s, "
                f"{row['events'] / row['seconds']:,.0f} events/s, peak {row['peak_mib']:.0f} MiB, "
                f"{row['rejected_rows']} rejected",
                flush=True,
            )
    if len(found) > 1:
        print(f"peak memory, largest over smallest table: {found[-1]['peak_mib'] / found[0]['peak_mib']:.2f}")
    if a.out:
        Path(a.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
