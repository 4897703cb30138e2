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
from unmask.events import outcome_report
from unmask.events.folder import save_folder
from unmask.events.meds import Events, Labels, read_labels, read_meds
from unmask.events.model import EventModel, load
from unmask.events.outcome import fit_head
from unmask.events.recipes import OutcomeSettings
from unmask.events.scoring import baselines, scored
from unmask.events.summaries import last_values, summarise, usual
from unmask.events.targets import Labelled, TimeToEvent, target_of

SHARES = (0.1, 0.25, 0.5)
"""Of the training labels, for the learning curve."""


@dataclass(frozen=True, kw_only=True)
class OutcomeRun:
    """A finished fine-tuning: folder and figures."""

    folder: Path
    figures: dict[str, Any]


def finetune_outcome(
    model: str | Path, data: str | Path | Events, labels: str | Path, out: str | Path, *,
    settings: OutcomeSettings | None = None,
) -> OutcomeRun:  # fmt: skip
    """Fit an outcome head on a MEDS task: a yes or no, classes, or the time to an event.

    Raises:
        UserError: for anything wrong with model, data or labels; one class only; `out` holds a model.
    """
    settings = settings or OutcomeSettings()
    started, out = time.perf_counter(), Path(out)
    if (out / "unmask.json").exists():
        raise UserError(f"{out} already holds a model", hint="Choose another --out.")
    loaded = load(model, device=settings.device, precision=settings.precision)
    events = data if isinstance(data, Events) else read_meds(data)
    points = read_labels(labels, events)
    target = target_of(points)
    y = target.encode(points)
    held = uniform(settings.seed, events.subjects[points.subject], 62) < settings.holdout
    check(target, y, held, str(labels))
    work = Work(loaded, events, points, target, settings)
    train, test = np.flatnonzero(~held), np.flatnonzero(held)
    head = fit_head(work.x[train], y[train], points.subject[train], settings, target)
    found: dict[str, Any] = {"kind": target.kind, "labels": len(points), "training": len(train), "held_out": len(test)}
    predicted = {"ours": head.predict(work.x[test], target)} if len(test) else {}
    if settings.baselines and len(test):
        predicted |= work.baselines(train, test)
    seen = points.take(test)
    found["results"] = {n: scored(target, seen, p, seed=settings.seed) for n, p in predicted.items()}
    if settings.curve and len(test):
        found["curve"] = work.curve(train, test)
    folder = loaded.folder
    folder.head, folder.outcome = head, {**dataclasses.asdict(settings), "target": target.to_dict()}
    save_folder(out, folder)
    found |= {"seconds": time.perf_counter() - started, "device": str(loaded.device), "precision": loaded.precision}
    (out / "metrics.jsonl").write_text(json.dumps({"step": 1, **found, "kind": "outcome"}) + "\n", encoding="utf-8")
    found["subgroups"] = outcome_report.write(out, found, work.histories, seen, predicted, target, folder)
    return OutcomeRun(folder=out, figures=found)


def check(target: Labelled, y: np.ndarray, held: np.ndarray, labels: str) -> None:
    """Raises: UserError: too few labels to train on, or all of one kind."""
    strata = target.strata(y)
    if len(np.unique(strata)) < 2 and not (isinstance(target, TimeToEvent) and strata.any()):
        said = f"every label is {bool(strata[0])}" if target.kind == "binary" else "every label is the same"
        raise UserError(f"{labels}: {said}", hint="A task needs at least two outcomes.")
    kinds, counts = np.unique(strata[~held], return_counts=True)
    if (~held).sum() < 10 or (len(kinds) < 2 and not isinstance(target, TimeToEvent)):
        raise UserError(
            f"{int((~held).sum())} labels to train on, of kinds {dict(zip(kinds.tolist(), counts.tolist(), strict=True))}",
            hint="Give 10 or more with both outcomes, or a smaller holdout=.",
        )


class Work:
    """Features of all points, made once; heads and baselines on parts of them."""

    def __init__(
        self, loaded: EventModel, events: Events, points: Labels, target: Labelled, settings: OutcomeSettings
    ) -> None:
        self.points, self.target, self.settings = points, target, settings
        self.histories = loaded.histories(events)
        self.y = target.encode(points)
        summary, names = summarise(self.histories, points)
        self.x = loaded.features(
            self.histories, points, states=settings.states, summaries=settings.summaries, summary=summary
        )
        used = usual(names)
        self.plain, self.last = summary[:, used], last_values([n for n, u in zip(names, used, strict=True) if u])

    def baselines(self, train: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
        if isinstance(self.target, TimeToEvent):
            start = 1 / (1 + np.exp(-self.target.start(self.y[train])))
            return {"prevalence": np.tile(1 - np.cumprod(1 - start), (len(test), 1))}
        y = self.target.strata(self.y)
        return baselines(
            self.plain[train], y[train], self.plain[test], last=self.last, classes=max(2, self.target.outputs),
            seed=self.settings.seed,
        )  # fmt: skip

    def curve(self, train: np.ndarray, test: np.ndarray) -> list[dict[str, Any]]:
        """Ours and the baselines at smaller shares of the training labels: random ones, balanced as they come."""
        rng = np.random.default_rng(self.settings.seed)
        order, out = rng.permutation(train), []
        for share in SHARES:
            few = np.sort(order[: round(share * len(order))])
            if len(few) < 20 or len(np.unique(self.target.strata(self.y[few]))) < 2:
                continue
            head = fit_head(self.x[few], self.y[few], self.points.subject[few], self.settings, self.target)
            predicted = {"ours": head.predict(self.x[test], self.target), **self.baselines(few, test)}
            seen = self.points.take(test)
            for name, p in predicted.items():
                figures = scored(self.target, seen, p, draws=100, seed=self.settings.seed)
                out.append({"labels": len(few), "model": name, **figures})
        return out
