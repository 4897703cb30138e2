"""`unmask demo events`: simulated patients with planted rules; pretrain, recover a rule, predict an outcome.

The patients are simulated, and the rules are these: one in three has DIABETES, which raises GLUCOSE (mean 9.5 against
5.5) and is followed by METFORMIN; one in four has HYPERTENSION, which raises SYSTOLIC and is followed by an ACE_INHIBITOR;
CREATININE drifts upward in those with both; DIALYSIS (the outcome) then follows with probability 0.8, else 0.05.
"""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from unmask.core.batch import Example, pack
from unmask.core.corruption import hide
from unmask.core.inference import at_rest
from unmask.errors import UserError
from unmask.events.meds import BIRTH
from unmask.events.recipes import EventSettings, OutcomeSettings, with_overrides
from unmask.events.shards import write_meds


def simulate(out: Path, patients: int = 1500, seed: int = 0) -> Path:
    """Write OUT/meds and OUT/task; returns the MEDS folder. Outcomes lie after the prediction time and are no events."""
    rng = np.random.default_rng(seed)
    rows: list[tuple[int, datetime | None, str, float | None]] = []
    labels = []
    for subject in range(patients):
        born = datetime(1950, 1, 1) + timedelta(days=int(rng.integers(0, 12_000)))
        diabetes, tension = rng.random() < 1 / 3, rng.random() < 1 / 4
        rows.append((subject, None, f"GENDER//{'FEMALE' if rng.random() < 0.5 else 'MALE'}", None))
        rows.append((subject, born, BIRTH, None))
        moment = datetime(2015, 1, 1) + timedelta(days=int(rng.integers(0, 400)))
        for visit in range(int(rng.integers(3, 8))):
            rows.append((subject, moment, "VISIT", None))
            rows.append((subject, moment, "GLUCOSE", rng.normal(9.5 if diabetes else 5.5, 0.8)))
            rows.append((subject, moment, "SYSTOLIC", rng.normal(155 if tension else 120, 9)))
            drift = 0.25 * visit if diabetes and tension else 0.0
            rows.append((subject, moment, "CREATININE", rng.normal(1.0 + drift, 0.15)))
            if diabetes:
                rows += [(subject, moment, "DIABETES", None), (subject, moment, "METFORMIN", None)]
            if tension:
                rows += [(subject, moment, "HYPERTENSION", None), (subject, moment, "ACE_INHIBITOR", None)]
            moment += timedelta(days=int(rng.integers(30, 200)))
        labels.append((subject, moment, bool(rng.random() < (0.8 if diabetes and tension else 0.05))))
    schema: dict[str, Any] = {
        "subject_id": pl.Int64, "time": pl.Datetime("us"), "code": pl.String, "numeric_value": pl.Float32
    }  # fmt: skip
    folder = write_meds(pl.DataFrame(rows, schema=schema, orient="row"), out / "meds", name="simulated")
    (out / "task").mkdir()
    schema = {"subject_id": pl.Int64, "prediction_time": pl.Datetime("us"), "boolean_value": pl.Boolean}
    pl.DataFrame(labels, schema=schema, orient="row").write_parquet(out / "task" / "0.parquet")
    return folder


def run_demo(
    out: str | Path = "demo-events", *, minutes: float = 1.0, seed: int = 0, console: bool = True, patients: int = 1500
) -> dict[str, Any]:
    """Simulate, pretrain, check the planted rules, predict the outcome; writes OUT/outcome/report.html.

    Raises:
        UserError: `out` exists and is not an earlier demo.
    """
    from unmask.events.finetune import finetune_outcome
    from unmask.events.pretrain import pretrain

    out = Path(out)
    if out.exists():
        if not (out / "demo.json").exists() and any(out.iterdir()):
            raise UserError(f"{out} exists and is not an earlier demo", hint="Choose another --out.")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / "demo.json").write_text("{}")
    meds = simulate(out, patients, seed)
    settings = with_overrides(
        EventSettings(),
        {"minutes": minutes, "seed": seed, "slots": 64, "batch_slots": 4096, "ratio": 0.4, "hide": "event"},
    )
    run = pretrain(meds, out / "model", settings=settings, console=console)
    rules = recovered(out / "model")
    done = finetune_outcome(
        out / "model", meds, out / "task", out / "outcome", settings=OutcomeSettings(seed=seed)
    ).figures
    result = done["results"]["ours"]
    lines = [
        "patients are simulated; the rules planted in them:",
        f"  expected glucose with diabetes {rules['glucose_with']:.1f} (planted 9.5), without "
        f"{rules['glucose_without']:.1f} (5.5)",
        f"outcome on held-out patients: AUROC {result['auroc']:.3f}, AUPRC {result['auprc']:.3f}",
    ]
    found = {
        "rules": rules, "results": done["results"], "report": str(out / "outcome" / "report.html"), "lines": lines,
        "device": run.result.device, "precision": run.result.precision,
    }  # fmt: skip
    (out / "demo.json").write_text(json.dumps(found, indent=1))
    return found


def recovered(folder: Path) -> dict[str, float]:
    """What the model expects glucose to be at a visit, with and without diabetes in the record."""
    from unmask.events.model import load

    loaded = load(folder, precision="fp32", device="cpu").folder
    numbers = loaded.vocabulary.numbers(loaded.vocabulary.codes).tolist()
    code = dict(zip(loaded.vocabulary.codes, numbers, strict=True))
    out = {}
    for name, more in (("glucose_with", ["DIABETES", "METFORMIN"]), ("glucose_without", [])):
        codes = [0, code["VISIT"], code["GLUCOSE"], *(code[c] for c in more)]
        n = len(codes)
        zeros = np.zeros(n, np.float32)
        values = {
            "code": np.array(codes), "value": zeros, "has": np.zeros(n, np.int64), "hours": zeros,
            "timed": np.r_[0, np.ones(n - 1, np.int64)], "born": np.full(n, 50, np.float32),
            "start": np.full(n, 45, np.float32), "visit": np.r_[0, np.ones(n - 1, np.int64)],
        }  # fmt: skip
        example = Example(values=values, identity=0, special=np.arange(n) == 0)
        with at_rest(loaded.model):
            prediction = loaded.model(pack([example], slots=n), hide(torch.tensor([2])))
            location, _ = prediction.of_code(torch.tensor([code["GLUCOSE"]]))
        out[name] = float(loaded.vocabulary.unscale(code["GLUCOSE"], location.numpy())[0])
    return out
