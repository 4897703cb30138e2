"""What the guesses of events.toml read: simulated patients, their task, a model, a model of the outcome, frames."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from unmask.events import finetune, pretrain
from unmask.modalities.events.uses.demo import simulate

TINY: dict[str, Any] = {"steps": 2, "width": 16, "slots": 64, "batch_slots": 512, "precision": "fp32", "console": False}
QUICK: dict[str, Any] = {"epochs": 2, "members": 1, "hidden": 8, "trees": 5, "curve": False, "baselines": False}


def names(home: Path) -> dict[str, Any]:
    simulate(home, patients=120)
    pretrain(home / "meds", home / "model", **TINY)
    finetune(home / "model", home / "meds", home / "outcome", labels=home / "task", **QUICK)
    frame = pl.concat(pl.read_parquet(file) for file in sorted((home / "meds" / "data").rglob("*.parquet")))
    task = pl.read_parquet(home / "task" / "0.parquet")
    frame.write_csv(home / "events.csv")
    window = "start_inclusive: False, end_inclusive: True, index_timestamp: start, label: glucose"
    (home / "task.yaml").write_text(
        "predicates: {visit: {code: VISIT}, glucose: {code: GLUCOSE, value_min: 9}}\n"
        f"trigger: visit\nwindows: {{target: {{start: trigger, end: start + 180 days, {window}}}}}\n"
    )
    return {
        "meds": frame.to_pandas(),
        "task_df": task.to_pandas(),
        "others": frame.with_columns(pl.col("subject_id") + 10_000_000),
        "others_task": task.with_columns(pl.col("subject_id") + 10_000_000),
        "tiny": {name: value for name, value in TINY.items() if name not in ("width", "slots", "steps")},
        "quick": {name: value for name, value in QUICK.items() if name != "epochs"},
    }
