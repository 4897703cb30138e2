"""Points and labels of ACES task files: ours beside the package's, which runs in an environment of its own (it asks
for polars below 2).

    python benchmarks/events_tasks.py --aces ENVIRONMENT/bin/python NAME=MEDS=PREDICATES.yaml ... --tasks TASK.yaml ...
        [--sheet]

The tasks are those of MEDS-DEV (src/MEDS_DEV/tasks) and of ACES (sample_configs), as they are published.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl

from sheets import Table, write_sheet
from unmask.errors import UserError
from unmask.modalities.events.records.aces import read_task
from unmask.modalities.events.records.meds import read_meds
from unmask.modalities.events.records.windows import evaluate_task

PACKAGE = """
import logging, sys, time
from pathlib import Path
import polars as pl
from omegaconf import DictConfig
from aces.config import TaskExtractorConfig
from aces.predicates import get_predicates_df
from aces.query import query
logging.disable(50)
meds, task, predicates, out = sys.argv[1:]
started, parts = time.time(), []
for shard in sorted(Path(meds).glob("data/**/*.parquet")):
    config = TaskExtractorConfig.load(Path(task), Path(predicates))
    about = DictConfig({"path": str(shard), "standard": "meds", "ts_format": None})
    found = query(config, get_predicates_df(config, about))
    if len(found):
        parts.append(found.select("subject_id", "index_timestamp", pl.col("label").cast(pl.Boolean)))
empty = {"subject_id": pl.Int64, "index_timestamp": pl.Datetime("us"), "label": pl.Boolean}
(pl.concat(parts) if parts else pl.DataFrame(schema=empty)).write_parquet(out)
print(time.time() - started)
"""


def compared(meds: str, task: str, predicates: str, python: str) -> tuple[int, int, int, float, float] | None:
    """Rows of the package, distinct ones, those of them that are ours, and seconds of both; None where the task uses a
    predicate that nobody defines."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/labels.parquet"
        given = [python, "-c", PACKAGE, meds, task, predicates, out]
        done = subprocess.run(given, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{task}: {done.stderr.splitlines()[-1]}", file=sys.stderr)
            return None
        theirs, seconds = pl.read_parquet(out).drop_nulls(), float(done.stdout)
    started = time.time()
    events = read_meds(meds)
    try:
        ours = set(evaluate_task(read_task(task, predicates), events).frame(events).rows())
    except UserError as error:
        print(error, file=sys.stderr)
        ours = set()
    rows = set(theirs.rows())
    same = len(rows & ours) if len(rows) == len(ours) else -1
    return len(theirs), len(rows), same, seconds, time.time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+", help="NAME=MEDS=PREDICATES.yaml")
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--aces", required=True, help="a python that has es-aces")
    parser.add_argument("--sheet", action="store_true", help="write docs/results/events-tasks.json")
    parser.add_argument("--processor", default="2 shared cores")
    given = parser.parse_args()
    rows = []
    for words in given.data:
        name, meds, predicates = words.split("=")
        for task in given.tasks:
            found = compared(meds, task, predicates, given.aces)
            if found is not None and found[1]:
                theirs, distinct, same, their_seconds, seconds = found
                shown = (f"{n:,}" for n in (theirs, distinct, same))
                rows.append((name, Path(task).stem.replace("_", " "), *shown, f"{their_seconds:.1f}", f"{seconds:.1f}"))
                print(*rows[-1], sep="\t")
    if given.sheet:
        columns = ("data", "task", "rows of es-aces", "distinct", "the same in ours", "its seconds", "ours")
        write_sheet(
            "events-tasks",
            Table(columns=columns, rows=tuple(rows)),
            title="Published tasks, beside the package",
            says="Tasks of MEDS-DEV and of ACES as they are published, with predicates of each data set in a second "
            "file, on simulated patients (Synthea; clinosim 0.6.5, converted from FHIR) and on PhysioNet-2012 (sets a "
            "and c, with an event at the begin of each stay; without admissions and deaths). Tasks without a point in "
            "a data set, in both, are left out. es-aces 0.7.3 with polars 1.44. Seconds with reading, without "
            "starting.",
            command="python benchmarks/events_tasks.py --aces ENVIRONMENT/bin/python NAME=MEDS=PREDICATES.yaml "
            "--tasks TASK.yaml --sheet",
            processor=given.processor,
            seeds="of the simulators, one each",
            sources="src/unmask/modalities/events/records",
        )


if __name__ == "__main__":
    main()
