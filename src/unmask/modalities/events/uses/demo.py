"""`unmask demo events`: simulated patients with planted rules; pretrain, recover a rule, predict an outcome.

The patients are simulated, and the rules are these: one in three has DIABETES, which raises GLUCOSE (mean 9.5 against
5.5) and comes with METFORMIN at most visits; one in four has HYPERTENSION, which raises SYSTOLIC (155 against 120) and
comes with an ACE_INHIBITOR; CREATININE drifts upward in those with both; the outcome then follows with probability 0.8,
else 0.05. The events of a visit come in any order.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from unmask.core.fill import Question, answers
from unmask.modalities.events.recipes import EventSettings, OutcomeSettings, with_overrides
from unmask.modalities.events.records.meds import BIRTH
from unmask.modalities.events.records.shards import SCHEMA, write_meds
from unmask.writing import demo_folder, replace_json

RULES = {"GLUCOSE": (5.5, 9.5), "SYSTOLIC": (120.0, 155.0)}
"""Means without and with the disease that raises them."""
CAUSE = {"GLUCOSE": "DIABETES", "SYSTOLIC": "HYPERTENSION"}
OFTEN = 0.8
"""Share of the visits at which a disease or its medicine is written down."""


def simulate(out: Path, patients: int = 1500, seed: int = 0) -> Path:
    """Write OUT/meds and OUT/task; returns the MEDS folder. Outcomes lie after the prediction time and are
    no events. Visits are between 8 and 17 o'clock."""
    rng, opened = np.random.default_rng(seed), np.random.default_rng((seed, 1))
    rows: list[tuple[int, datetime | None, str, float | None]] = []
    labels = []
    for subject in range(patients):
        born = datetime(1950, 1, 1) + timedelta(days=int(rng.integers(0, 12_000)))
        diabetes, tension = rng.random() < 1 / 3, rng.random() < 1 / 4
        rows.append((subject, None, f"GENDER//{'FEMALE' if rng.random() < 0.5 else 'MALE'}", None))
        rows.append((subject, born, BIRTH, None))
        moment = datetime(2015, 1, 1) + timedelta(days=int(rng.integers(0, 400)))
        for visit in range(int(rng.integers(3, 8))):
            drift = 0.25 * visit if diabetes and tension else 0.0
            seen: list[tuple[str, float | None]] = [
                ("VISIT", None),
                ("GLUCOSE", rng.normal(RULES["GLUCOSE"][diabetes], 0.8)),
                ("SYSTOLIC", rng.normal(RULES["SYSTOLIC"][tension], 9)),
                ("CREATININE", rng.normal(1.0 + drift, 0.15)),
            ]
            for ill, names in ((diabetes, ("DIABETES", "METFORMIN")), (tension, ("HYPERTENSION", "ACE_INHIBITOR"))):
                seen += [(name, None) for name in names if ill and rng.random() < OFTEN]
            at = moment + timedelta(minutes=int(opened.integers(8 * 60, 17 * 60)))
            rows += [(subject, at, *seen[i]) for i in rng.permutation(len(seen))]
            moment += timedelta(days=int(rng.integers(30, 200)))
        labels.append((subject, moment, bool(rng.random() < (0.8 if diabetes and tension else 0.05))))
    folder = write_meds(pl.DataFrame(rows, schema=SCHEMA, orient="row"), out / "meds", name="simulated")
    (out / "task").mkdir()
    schema: Any = {"subject_id": pl.Int64, "prediction_time": pl.Datetime("us"), "boolean_value": pl.Boolean}
    pl.DataFrame(labels, schema=schema, orient="row").write_parquet(out / "task" / "0.parquet")
    return folder


def run_demo(
    out: str | Path = "demo-events", *, minutes: float = 1.4, seed: int = 0, console: bool = True, patients: int = 1500
) -> dict[str, Any]:
    """Simulate, pretrain, check the planted rules, predict the outcome; writes OUT/outcome/report.html."""
    from unmask.modalities.events.uses.finetune import finetune_outcome
    from unmask.modalities.events.uses.pretrain import pretrain
    from unmask.training.signals import interrupt_if

    out = demo_folder(out)
    meds = simulate(out, patients, seed)
    small = {"slots": 64, "batch_slots": 4096, "ratio": 0.4, "hide": "event", "learning_rate": 4e-3}
    settings = with_overrides(EventSettings(), {"minutes": minutes, "seed": seed, **small})
    run = pretrain(meds, out / "model", settings=settings, console=console)
    interrupt_if(run.result.stopped)
    rules = recovered(out / "model", simulate(out / "new", 200, seed + 1))
    done = finetune_outcome(
        out / "model", meds, out / "task", out / "outcome", settings=OutcomeSettings(seed=seed, examples=True)
    ).figures
    result = done["results"]["ours"]
    lines = [
        "patients are simulated; the rules planted in them:",
        *(
            f"  hidden {name} of new patients, expected with {CAUSE[name]} {rules[name]['with']:.1f} "
            f"(planted {RULES[name][1]:.1f}), without {rules[name]['without']:.1f} ({RULES[name][0]:.1f})"
            for name in RULES
        ),
        f"outcome on held-out patients: AUROC {result['auroc']:.3f}, AUPRC {result['auprc']:.3f} (higher is better)",
        *comparison(done["results"]),
    ]
    found = {"rules": rules, "results": done["results"], "report": str(out / "outcome" / "report.html"), "lines": lines}
    found |= {"device": run.result.device, "precision": run.result.precision}
    replace_json(out / "demo.json", found)
    return found


def comparison(results: dict[str, dict[str, Any]]) -> list[str]:
    """The rules and simpler models on the same patients, and why one of them wins, where one does."""
    lines = [
        f"  {name}: AUROC {r['auroc']:.3f}, AUPRC {r['auprc']:.3f}" for name, r in results.items() if name != "ours"
    ]
    ahead = [name for name, r in results.items() if r["auroc"] > results["ours"]["auroc"]]
    if ahead:
        lines.append(
            f"  {', '.join(ahead)} did better: the planted outcome hangs on whether two codes stand in the record, "
            "which counts of codes show whole"
        )
    return lines


def recovered(folder: Path, meds: Path) -> dict[str, dict[str, float]]:
    """What the model expects of hidden values of patients it never saw, with and without the disease in their record.
    Of every patient the last value of a code is hidden, one event at a time."""
    from unmask.modalities.events.records.meds import read_meds
    from unmask.modalities.events.uses.model import load

    model = load(folder, precision="fp32", device="cpu")
    histories, network = model.histories(read_meds(meds)), model.folder.model
    vocabulary, slots = model.folder.vocabulary, model.folder.settings.slots
    found: dict[str, dict[str, float]] = {}
    for name in RULES:
        code, cause = vocabulary.numbers([name, CAUSE[name]])
        expected: dict[str, list[float]] = {"with": [], "without": []}
        examples = [histories.example(i, slots=slots) for i in range(len(histories.events))]
        questions = [Question(example=e, hidden=np.flatnonzero(e.values["code"] == code)[-1:]) for e in examples]
        for numbers, prediction, places in answers(network, questions, slots=slots):
            location, _ = prediction.of_code(torch.full((len(prediction),), int(code)))
            for number, at in zip(numbers, places, strict=True):
                kind = "with" if (examples[number].values["code"] == cause).any() else "without"
                expected[kind].append(float(vocabulary.unscale(int(code), location[at].numpy())[0]))
        found[name] = {kind: float(np.mean(values)) for kind, values in expected.items()}
    return found
