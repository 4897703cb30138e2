"""What the audit finds of leaks of every known kind (tests/modalities/events/leaks.py), and what it warns of in data
that nobody planted anything in.

    python benchmarks/events_leaks.py NAME=MEDS[=LABELS] ... [--sheet]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/modalities/events"))

from leaks import NOT_LOOKED_FOR, OF_TASKS, PLANTED, clean

from sheets import Table, write_sheet
from unmask.modalities.events.audit.audit_points import audit
from unmask.modalities.events.records.shards import write_meds


def planted(name: str) -> str:
    """The check that finds a planted leak; "not found" where none does."""
    _, plant, check = PLANTED[name]
    stays = clean()
    plant(stays)
    points = pl.DataFrame(stays.points, schema=["subject_id", "prediction_time", "boolean_value"], orient="row")
    with tempfile.TemporaryDirectory() as folder:
        write_meds(stays.frame(), Path(folder) / "meds", name="made")
        found = audit(f"{folder}/meds", points.with_columns(pl.col("prediction_time").cast(pl.Datetime("us"))))[0]
    return check if any(f.check == check and f.level == "warning" for f in found) else "not found"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="*", help="NAME=MEDS or NAME=MEDS=LABELS")
    parser.add_argument("--sheet", action="store_true", help="write docs/results/events-leaks.json")
    parser.add_argument("--processor", default="2 shared cores")
    given = parser.parse_args()
    rows = [(name, kind, planted(name)) for name, (kind, *_) in PLANTED.items()]
    rows += [(name, kind, f"{check} (of a task file)") for name, (kind, check) in OF_TASKS.items()]
    rows += [(name, kind, f"not looked for: {why}") for name, (kind, why) in NOT_LOOKED_FOR.items()]
    real = []
    for words in given.data:
        name, meds, *labels = words.split("=")
        found, about = audit(meds, labels[0] if labels else None)
        for f in [f for f in found if f.level == "warning"]:
            real.append((name, f"{about['subjects']:,}", f.check, f.sentence))
            print(*real[-1], sep=" | ")
        if not any(f.level == "warning" for f in found):
            real.append((name, f"{about['subjects']:,}", "none", ""))
    for row in rows:
        print(*row, sep=" | ")
    if given.sheet:
        write_sheet(
            "events-leaks",
            Table(columns=("planted", "kind", "what the audit says"), rows=tuple(rows)),
            Table(columns=("data", "patients", "warning", "what it says"), rows=tuple(real)),
            title="Leaks that were planted, and warnings where none was",
            says="Each leak by itself in clean stays of 240 made patients, on which the audit raises no warning (four "
            "seeds). Kinds in capitals are those of icu-leakage-check 0.1.0; demo: its demo plants it. Below, all "
            "warnings in data of others as they come.",
            command="python benchmarks/events_leaks.py NAME=MEDS=LABELS --sheet",
            processor=given.processor,
            seeds="1 of what is planted",
            sources="src/unmask/modalities/events/audit",
        )


if __name__ == "__main__":
    main()
