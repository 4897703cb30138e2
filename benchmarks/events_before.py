"""Pretraining and fine-tuning of patient events beside an older commit: processor seconds and peak memory.

    git worktree add /tmp/before COMMIT
    python benchmarks/events_before.py --before /tmp/before/src [--patients 1000] [--rounds 2] [--sheet]

Each command runs in a process of its own, the two versions by turns, with the same Python and libraries.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

from sheets import Table, write_sheet
from unmask.modalities.events.records.shards import write_meds

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[2] / "shared"))


def measured(source: Path, *words: str) -> tuple[float, float]:
    """Processor seconds and peak MB of a command."""
    child = subprocess.Popen(
        [sys.executable, "-m", "unmask", *words],
        env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{source}: unmask {' '.join(words)} ended with {child.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="src of a checkout of the older commit")
    parser.add_argument("--patients", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--processor", default="one of two shared cores")
    parser.add_argument("--sheet", action="store_true", help="write docs/results/events-before.json")
    a = parser.parse_args()
    data, found = SHARED / "data/events/physionet2012_a", dict[tuple[str, str], list[tuple[float, float]]]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        events = pl.concat([pl.read_parquet(p) for p in sorted((data / "data").rglob("*.parquet"))])
        kept = events["subject_id"].unique().sort().head(a.patients)
        write_meds(events.filter(pl.col("subject_id").is_in(kept.implode())), folder / "meds", name="stays")
        labels = pl.concat([pl.read_parquet(p) for p in sorted((data / "tasks/in_hospital_death").rglob("*.parquet"))])
        labels.filter(pl.col("subject_id").is_in(kept.implode())).write_parquet(folder / "labels.parquet")
        for k in range(a.rounds):
            for which, source in (("before", a.before), ("now", ROOT / "src")):
                model, outcome = folder / f"{which}-{k}", folder / f"{which}-{k}-outcome"
                meds, labelled = folder / "meds", ["--labels", folder / "labels.parquet"]
                plain = ["--set", "curve=false", "--set", "baselines=false"]
                finetune = ["finetune", "outcome", model, meds, *labelled, *plain, "--out"]
                without = ["--set", "boosting=0"] if which == "now" else []
                for what, words in (
                    (f"pretraining, {a.steps} steps", ["pretrain", "events", meds, "--out", model, "--steps", a.steps]),
                    ("fine-tuning", [*finetune, outcome]),
                    ("fine-tuning without boosting", [*finetune, f"{outcome}-2", *without]),
                ):
                    found.setdefault((what, which), []).append(measured(source, *map(str, words)))
                    print(what, which, found[what, which][-1], flush=True)
    rows = []
    for what in dict.fromkeys(what for what, _ in found):
        (old, old_peak), (new, new_peak) = (np.median(found[what, which], 0) for which in ("before", "now"))
        rows.append((what, f"{old:.1f}", f"{new:.1f}", f"{new / old:.2f}", f"{old_peak:,.0f}", f"{new_peak:,.0f}"))
        print(*rows[-1], sep=" | ")
    if a.sheet:
        commit = subprocess.check_output(["git", "-C", a.before, "rev-parse", "--short", "HEAD"], text=True).strip()
        write_sheet(
            "events-before",
            Table(columns=("", "s before", "s now", "now over before", "MB before", "MB now"), rows=tuple(rows)),
            sources="src/unmask/modalities/events",
            title="Pretraining and fine-tuning beside before",
            says=f"{a.patients:,} stays of PhysioNet-2012 (set a), processor seconds of the whole command and its peak "
            f"memory, medians of {a.rounds} runs by turns. Before is commit {commit}, whose outcome head has no "
            "boosting and is not calibrated on patients set apart. Fine-tuning without the learning curve and the "
            "baselines.",
            command="python benchmarks/events_before.py --before CHECKOUT/src --sheet",
            processor=a.processor,
            seeds="one",
        )


if __name__ == "__main__":
    main()
