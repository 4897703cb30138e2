"""Patient events larger than memory: from MEDS shards to the first steps of pretraining, time and peak memory by size.

    python benchmarks/events_scale.py --folder /tmp/scale [--millions 1,10,100] [--codes 300,20000] [--store disk]
    [--steps 20] python benchmarks/events_scale.py --folder /tmp/scale --labels 20000,100000 [--states]   the
    outcome head

Simulated patients of 500 events on average (a tenth of the codes makes half of them; 60 % have a value) are written as
shards of about a million events by numpy and pyarrow, 12 bytes per event; the last figures are those of the largest
size. Every size runs in a process of its own, and its peak resident memory, Python and libraries (some 350 MB)
included, is that of the process. "first step" is the time from the start of Python to the first optimiser step's end,
"read" the part of it until events are readable columns, "again" the whole where they are found as they were left.
Seconds are wall time; cpu is processor time up to the first step.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

EACH, SHARD = 500, 2000
"""Events per patient on average; patients per shard."""
YEAR = 365 * 24 * 3600 * 1_000_000


def simulate(folder: Path, millions: float, codes: int, labels: int = 0) -> None:
    """A MEDS folder of about so many events, and a task with so many labels: a yes or no that the values tell of."""
    patients = round(millions * 1e6 / EACH)
    names = pa.array([f"LAB//{i:05d}//mg/dL" for i in range(codes)])
    (folder / "data").mkdir(parents=True)
    asked: list[pa.Table] = []
    for shard, first in enumerate(range(0, patients, SHARD)):
        rng = np.random.default_rng([7, shard])
        count = min(SHARD, patients - first)
        size = rng.geometric(1 / EACH, count) + 1
        owner = np.repeat(np.arange(count), size)
        risk = rng.normal(size=count)
        number = np.where(rng.random(len(owner)) < 0.5, rng.integers(0, max(1, codes // 10), len(owner)), -1)
        number = np.where(number < 0, rng.integers(0, codes, len(owner)), number)
        value = (rng.normal(size=len(owner)) + risk[owner] * (number % 3 == 0)).astype(np.float32)
        stamp = np.sort(owner * (20 * YEAR) + rng.integers(0, 10 * YEAR, len(owner))) - owner * (20 * YEAR)
        table = pa.table(
            {
                "subject_id": owner + first,
                "time": pa.array(stamp, pa.timestamp("us")),
                "code": pa.DictionaryArray.from_arrays(pa.array(number.astype(np.int32)), names).cast(pa.string()),
                "numeric_value": pa.array(value, mask=rng.random(len(owner)) < 0.4),
            }
        )
        pq.write_table(table, folder / "data" / f"{shard:05d}.parquet")
        if labels:
            mine = rng.integers(0, count, -(-labels * count // patients))
            when = rng.integers(YEAR, 10 * YEAR, len(mine))
            truth = risk[mine] + rng.normal(size=len(mine)) > 1
            asked.append(
                pa.table(
                    {
                        "subject_id": mine + first,
                        "prediction_time": pa.array(when, pa.timestamp("us")),
                        "boolean_value": truth,
                    }
                )
            )
    if labels:
        (folder / "task").mkdir()
        pq.write_table(pa.concat_tables(asked), folder / "task" / "0.parquet")


def pretrained(meds: str, out: str, store: str, steps: int) -> dict[str, float]:
    """Pretrain for a few steps, and tell when what was done."""
    from unmask.memory import peak_memory
    from unmask.modalities.events.recipes import EventSettings, with_overrides
    from unmask.modalities.events.uses import pretrain as room
    from unmask.training.tracking import Tracker

    found: dict[str, float] = {}
    fit, update, log = room.Vocabulary.fit, room.batch_maker, Tracker.log

    def timed(*given: object, **more: object) -> object:
        found["read"] = time.perf_counter() - STARTED
        return fit(*given, **more)  # type: ignore[arg-type]

    def maker(*given: object) -> object:
        found["prepared"] = time.perf_counter() - STARTED
        return update(*given)  # type: ignore[arg-type]

    def logged(*given: object, **more: object) -> None:
        found.setdefault("first_step", time.perf_counter() - STARTED)
        found.setdefault("cpu", time.process_time())
        log(*given, **more)  # type: ignore[arg-type]

    room.Vocabulary.fit, room.batch_maker, Tracker.log = timed, maker, logged  # type: ignore[assignment,method-assign]
    given = {"store": store, "store_folder": str(Path(meds) / "store"), "steps": steps, "precision": "fp32"}
    given |= {"holdout": 0.001}  # whose judgement at the end is not what is measured
    run = room.pretrain(meds, out, settings=with_overrides(EventSettings(), given), console=True)
    return found | {
        "whole": time.perf_counter() - STARTED,
        "slots_per_second": run.result.slots_per_second,
        "peak_mb": peak_memory(),
        "events": run.data["events"],
        "forecast_mb": run.result.expected_memory_mb,
    }


def tuned(meds: str, model: str, out: str, states: bool) -> dict[str, float]:
    """Fine-tune the outcome head on the task of the folder."""
    from unmask.memory import peak_memory
    from unmask.modalities.events.recipes import OutcomeSettings
    from unmask.modalities.events.uses.finetune import finetune_outcome

    settings = OutcomeSettings(
        states=states,
        curve=False,
        baselines=False,
        epochs=2,
        trees=30,
    )
    run = finetune_outcome(model, meds, Path(meds) / "task", out, settings=settings)
    figures = run.figures["results"]["ours"]
    return {
        "labels": run.figures["labels"],
        "whole": time.perf_counter() - STARTED,
        "cpu_whole": time.process_time(),
        "peak_mb": peak_memory(),
        "auroc": figures["auroc"],
    }


def child(kind: str, *given: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, "--child", kind, *given], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--millions", default="1,10,100")
    parser.add_argument("--codes", default="300")
    parser.add_argument("--store", default="disk", choices=("auto", "memory", "disk"))
    parser.add_argument("--steps", default="20")
    parser.add_argument("--labels", default="")
    parser.add_argument("--states", action="store_true", help="the head reads the encoder's states too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.child:
        kind, *given = a.child
        made = pretrained(*given[:3], int(given[3])) if kind == "pretrain" else tuned(*given[:3], given[3] == "True")
        print(json.dumps(made))
        return
    if a.folder is None:
        parser.error("--folder: where the simulated data goes")
    a.folder.mkdir(parents=True, exist_ok=True)
    found = []
    for labels in [int(n) for n in a.labels.split(",") if n]:
        meds = a.folder / "labelled"
        simulate(meds, max(0.1, labels / 100_000), 300, labels)
        child("pretrain", str(meds), str(a.folder / "model"), a.store, a.steps)
        row = child("outcome", str(meds), str(a.folder / "model"), str(a.folder / "head"), str(a.states))
        print(
            f"{row['labels']:>10,} labels: {row['whole']:.0f} s ({row['cpu_whole']:.0f} s cpu), peak "
            f"{row['peak_mb']:,.0f} MB, AUROC {row['auroc']:.3f}",
            flush=True,
        )
        found.append(row)
        for name in ("labelled", "model", "head"):
            shutil.rmtree(a.folder / name)
    sizes = [] if a.labels else [(float(m), int(c)) for m in a.millions.split(",") for c in a.codes.split(",")]
    if sizes:
        print("| events | codes | read s | vocabulary s | first step s | cpu s | again s | peak MB | forecast MB |")
        print("|---|---|---|---|---|---|---|---|---|")
    for millions, codes in sizes:
        meds = a.folder / "meds"
        simulate(meds, millions, codes)
        row = {"codes": codes} | child("pretrain", str(meds), str(a.folder / "one"), a.store, a.steps)
        row["again"] = child("pretrain", str(meds), str(a.folder / "two"), a.store, "1")["first_step"]
        print(
            f"| {row['events']:,} | {codes:,} | {row['read']:.1f} | {row['prepared'] - row['read']:.1f} "
            f"| {row['first_step']:.1f} | {row['cpu']:.1f} | {row['again']:.1f} | {row['peak_mb']:,.0f} "
            f"| {row['forecast_mb']:,.0f} |",
            flush=True,
        )
        found.append(row)
        for name in ("meds", "one", "two"):
            shutil.rmtree(a.folder / name)
    if a.json:
        a.json.write_text(json.dumps(found, indent=1))


STARTED = time.perf_counter()
if __name__ == "__main__":
    main()
