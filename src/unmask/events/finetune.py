"""`unmask finetune outcome`: a pretrained event model and MEDS labels -> a model that predicts, and its report.

Held-out patients are chosen before anything is fitted; head and baselines see the same training patients, cut at the
same prediction times.
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.core.corruption import uniform
from unmask.errors import UserError
from unmask.events.folder import save_folder
from unmask.events.histories import Histories
from unmask.events.meds import read_labels, read_meds
from unmask.events.model import load
from unmask.events.outcome import baselines, figures, fit_head
from unmask.events.recipes import OutcomeSettings
from unmask.events.summaries import summarise, usual


@dataclass(frozen=True, kw_only=True)
class OutcomeRun:
    """A finished fine-tuning: folder and figures."""

    folder: Path
    figures: dict[str, Any]


def finetune_outcome(
    model: str | Path, data: str | Path, labels: str | Path, out: str | Path, *, settings: OutcomeSettings | None = None
) -> OutcomeRun:
    """Fit an outcome head on a binary MEDS task.

    Raises:
        UserError: for anything wrong with model, data or labels; one class only; `out` is the model's own folder.
    """
    settings = settings or OutcomeSettings()
    started, out = time.perf_counter(), Path(out)
    if (out / "unmask.json").exists():
        raise UserError(f"{out} already holds a model", hint="Choose another --out.")
    loaded = load(model, device=settings.device, precision=settings.precision)
    events = read_meds(data)
    points = read_labels(labels, events)
    y = points.value
    assert y is not None
    if len(np.unique(y)) < 2:
        raise UserError(f"{labels}: every label is {bool(y[0])}", hint="A task needs both outcomes.")
    held = uniform(settings.seed, events.subjects[points.subject], 62) < settings.holdout
    if len(np.unique(y[~held])) < 2 or (~held).sum() < 10:
        raise UserError(
            f"{int((~held).sum())} labels to train on, {int(y[~held].sum())} of them true",
            hint="Give 10 or more with both outcomes, or a smaller holdout=.",
        )
    histories = Histories(events, loaded.folder.vocabulary)
    x = loaded.features(histories, points, states=settings.states, summaries=settings.summaries)
    head = fit_head(x[~held], y[~held], points.subject[~held], settings)
    found: dict[str, Any] = {"labels": len(points), "training": int((~held).sum()), "held_out": int(held.sum())}
    predicted = {"ours": head.predict(x[held])} if held.any() else {}
    if settings.baselines and held.any():
        plain, names = summarise(histories, points)
        plain = plain[:, usual(names)]
        predicted |= baselines(plain[~held], y[~held], plain[held], seed=settings.seed)
    found["results"] = {name: figures(y[held], p, seed=settings.seed) for name, p in predicted.items()}
    folder = loaded.folder
    folder.head = head
    folder.outcome = {**dataclasses.asdict(settings), "kind": "binary"}
    save_folder(out, folder)
    found |= {"seconds": time.perf_counter() - started, "device": str(loaded.device), "precision": loaded.precision}
    (out / "metrics.jsonl").write_text(json.dumps({"step": 1, "kind": "outcome", **found}) + "\n", encoding="utf-8")
    write_report(out, found, y[held], predicted)
    return OutcomeRun(folder=out, figures=found)


def write_report(out: Path, found: dict[str, Any], y: np.ndarray, predicted: dict[str, np.ndarray]) -> Path:
    """report.html: held-out figures beside the baselines', and the calibration curve."""
    from unmask.evaluation.charts import line_chart, table
    from unmask.evaluation.report import Report

    page = Report("Outcome prediction from patient events", str(out))
    page.facts({
        "Training labels": found["training"], "Held-out labels": found["held_out"],
        "Held-out positives": int(y.sum()), "Time": f"{found['seconds']:.0f} s",
    })  # fmt: skip
    shown = ("auroc", "auprc", "brier", "ece")
    rows = []
    for name, result in found["results"].items():
        if "auroc" in result:
            rows.append([name, *(f"{result[k]:.3f} ({_span(result['intervals'][k])})" for k in shown)])
    page.section(
        "On held-out patients", table(["model", *(k.upper() for k in shown)], rows),
        note="95 % bootstrap intervals over prediction points; no model saw these patients' labels. ECE: 10 bins.",
    )  # fmt: skip
    curves = {}
    for name in ("ours", "gradient boosting"):
        if name in predicted and len(y) >= 20:
            parts = np.array_split(np.argsort(predicted[name], kind="stable"), 10)
            curves[name] = ([float(predicted[name][i].mean()) for i in parts], [float(y[i].mean()) for i in parts])
    if curves:
        page.section("Calibration", line_chart(curves, "Observed against predicted", "predicted", "observed"))
    return page.write(out / "report.html")


def _span(interval: list[float]) -> str:
    return f"{interval[0]:.3f} to {interval[1]:.3f}"
