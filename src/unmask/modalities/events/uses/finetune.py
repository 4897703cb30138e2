"""`unmask finetune outcome`: a pretrained event model and MEDS labels -> a model that predicts, and its report.

Held-out patients are chosen before anything is fitted; head and baselines see the same training patients, cut at the
same prediction times.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.core.hashing import Salt, uniform
from unmask.errors import UserError, setting
from unmask.evaluation.classes import class_counts, label_notes
from unmask.evaluation.results import figures_shown, place
from unmask.evaluation.shown import Printed, Shown
from unmask.given import natural
from unmask.modalities.events.outcome.candidates import FEWEST as FEWEST
from unmask.modalities.events.outcome.candidates import AgeAndCount
from unmask.modalities.events.outcome.clinical import descriptions
from unmask.modalities.events.outcome.scoring import scored, unseen_classes
from unmask.modalities.events.outcome.targets import Classes, MultiLabel, NumberTarget, Target, target_of
from unmask.modalities.events.recipes import OutcomeSettings, check_outcome_read
from unmask.modalities.events.records.cuts import after_death, without_events
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.labels import class_names, named, read_labels
from unmask.modalities.events.records.meds import BY_SPLITS, Events, Labels, as_events
from unmask.modalities.events.records.splits import who_trained
from unmask.modalities.events.uses import outcome_report
from unmask.modalities.events.uses.card import KINDS as OUTCOMES
from unmask.modalities.events.uses.card import counts, scored_figures
from unmask.modalities.events.uses.folder import save_folder
from unmask.modalities.events.uses.model import EventModel, load
from unmask.modalities.events.uses.work import FittedOutcome, OutcomeWork, can_judge, worth
from unmask.odd_numbers import number_notes
from unmask.training.finetune_checkpoints import Stages, StoppedBySignal
from unmask.training.job import ModelOfRun
from unmask.training.processes import join_others
from unmask.training.same_run import digest
from unmask.writing import training_folder, writes_model, written_folder


@dataclass(frozen=True, kw_only=True, repr=False)
class OutcomeRun(ModelOfRun, Printed):
    """A fine-tuning: folder and figures, which say under `stopped` whether it is 'finished' or ended by a 'signal';
    `.model` is the fine-tuned model."""

    folder: Path
    figures: dict[str, Any]

    def shown(self) -> Shown:
        """Held-out figures beside those of rules and simpler models, and what to do next."""
        found = self.figures
        visits = found["kind"] == MultiLabel.kind
        return figures_shown(
            f"A model of {OUTCOMES[found['kind']]}, of {found['training']:,} {'patients' if visits else 'labels'}",
            scored_figures(found),
            notes=[f"{found['held_out']:,} held out", *found.get("notes", ()), place(self.folder)],
            next_step="run.model.predict(meds, labels=task) or run.model.evaluate(meds, labels=task)",
            head="held out",
        )


@writes_model
def finetune_outcome(
    model: str | Path | EventModel,
    data: Any,
    labels: Any,
    out: str | Path,
    *,
    settings: OutcomeSettings | None = None,
    checkpoints: bool = False,
    resume: bool = False,
) -> OutcomeRun:
    """Fit an outcome head on a MEDS task: a yes or no, classes, a number, or the time to an event.

    Args:
        checkpoints: keep them beside `out` while training, one of them at SIGTERM or Ctrl-C, which then ends the run:
            there is no model yet.
        resume: go on from the checkpoints of an interrupted run to `out`, on the same data with the same settings.

    Raises:
        UserError: for anything wrong with model, data or labels; one class only; `out` holds a model.
    """
    settings = settings or OutcomeSettings()
    started, out = time.perf_counter(), Path(out)
    resume = join_others(out, settings.device, resume=resume)
    loaded, events = begin(model, data, settings)
    points = read_labels(labels, events)
    held = held_out(events, points, settings)
    train, test = np.flatnonzero(~held), np.flatnonzero(held)
    target = target_for(points.take(train), named(labels), settings)
    check_outcome_read(settings, target.kind, own_splits=events.held_out is not None, checkpoints=checkpoints or resume)
    histories = loaded.histories(events)
    given: dict[str, Any] = {"checkpoints": checkpoints, "resume": resume}
    work = work_of(out, loaded, histories, points, target, target.encode(points), held, settings, **given)
    found: dict[str, Any] = {"kind": target.kind, "labels": len(points), "training": len(train), "held_out": len(test)}
    predicted: dict[str, np.ndarray] = {}
    seen = points.take(test)
    try:
        if settings.worth:
            settings, found["worth"] = worth(work, train)
            work.use(settings)
        fitted = work.fit(train)
        rule, target = work.candidates.age_and_count(train), fitted.target
        if len(test):
            predicted = work.predict(fitted, test)
            predicted |= work.candidates.predict(train, test) if settings.baselines else {}
        results = {n: scored(target, seen, p, seed=settings.seed) for n, p in predicted.items()}
        curve = work.curve(train, test, fitted) if settings.curve and len(test) else None
    except StoppedBySignal as stop:
        return stopped(out, loaded, target, stop)
    found |= {"outside": points.outside, "held_out_by": "a hash of the id" if events.held_out is None else BY_SPLITS}
    found |= loaded.unknown
    for name, lie in (("without_events", without_events(events, points)), ("after_death", after_death(events, points))):
        found[name] = {part: int(lie[rows].sum()) for part, rows in (("training", train), ("held_out", test))}
    found |= counts_of(points, {"training": train, "held_out": test}, labels)
    if isinstance(target, NumberTarget):
        found["number"] = target.to_dict() | {"taken_as": taken_as(points.take(train))}
    if isinstance(target, Classes):
        found["unseen_classes"] = unseen_classes(target, seen)
    found["notes"] = label_remarks(target, points)
    found["results"] = results
    if curve is not None:
        found["curve"] = curve

    def report(new: Path) -> None:
        found["subgroups"] = outcome_report.write(
            new, found, histories, seen, predicted, target, loaded.folder, descriptions(data), settings.examples
        )

    return finished(out, work, loaded, fitted, found, started, who_trained(events, points, held), report, rule)


def stopped(out: Path, loaded: EventModel, target: Target, stop: StoppedBySignal) -> OutcomeRun:
    """A run that a signal ended, to be resumed."""
    figures = {"kind": target.kind, "stopped": "signal", "steps": stop.steps}
    return OutcomeRun(folder=out, figures=figures | {"device": str(loaded.device), "precision": loaded.precision})


def counts_of(points: Labels, parts: dict[str, np.ndarray], labels: Any) -> dict[str, Any]:
    """The outcome's name (of the task folder), and of each part how many patients and positives it has."""
    path = Path(named(labels))
    out: dict[str, Any] = {"outcome": path.parent.name if path.is_file() else path.resolve().name}
    out["patients"] = {name: len(np.unique(points.subject[rows])) for name, rows in parts.items()}
    if points.value is not None:
        out["positives"] = {name: int(points.value[rows].sum()) for name, rows in parts.items()}
    return out


def finished(
    out: Path,
    work: OutcomeWork,
    loaded: EventModel,
    fitted: FittedOutcome,
    found: dict[str, Any],
    started: float,
    patients: dict[str, str],
    report: Callable[[Path], None],
    rule: AgeAndCount | None = None,
) -> OutcomeRun:
    """Write the fine-tuned folder, its figures, to which time, device and precision are added, and its report.
    `patients`: as `who_trained` gives them; `rule`: what the model is judged beside."""
    folder = loaded.folder
    folder.head, target = fitted
    folder.outcome = {**dataclasses.asdict(work.settings), "target": target.to_dict(), "patients": patients}
    folder.outcome |= {} if rule is None else {"age_and_count": dataclasses.asdict(rule)}
    about = {"results": [f.to_dict() for f in scored_figures(found)], "counts": counts(found)}
    with written_folder(out) as new:
        save_folder(new, folder, about=about)
        found |= {"seconds": time.perf_counter() - started, "device": str(loaded.device), "precision": loaded.precision}
        found["stopped"] = "finished"
        line = json.dumps({"step": 1, **found, "kind": "outcome"})
        (new / "metrics.jsonl").write_text(line + "\n", encoding="utf-8")
        report(new)
    if work.stages is not None:
        work.stages.remove()
    return OutcomeRun(folder=out, figures=found)


def begin(model: str | Path | EventModel, data: Any, settings: OutcomeSettings) -> tuple[EventModel, Events]:
    """The pretrained model, of a loaded one a copy, and the events."""
    loaded = (
        copy.deepcopy(model)
        if isinstance(model, EventModel)
        else load(model, device=settings.device, precision=settings.precision)
    )
    loaded.most_unknown = settings.most_unknown
    return loaded, as_events(data)


def held_out(events: Events, points: Labels, settings: OutcomeSettings) -> np.ndarray:
    """Which points nothing is fitted on: those of the subjects that the folder's splits hold out, else all those of a
    share of the patients, chosen by a hash of their ids."""
    if events.held_out is not None:
        return events.held_out[points.subject]
    return uniform(settings.seed, events.subjects[points.subject], Salt.HELD_OUT_POINT) < settings.holdout


def taken_as(training: Labels) -> str:
    """How labels that are amounts were taken, and what says otherwise."""
    distinct = np.unique(training.amounts)
    text = f"labels are taken as amounts ({len(distinct):,} distinct values from {distinct[0]:g} to {distinct[-1]:g})"
    whole = bool((distinct == np.round(distinct)).all())
    return f"{text}; {setting('problem', 'single')} takes whole numbers as classes" if whole else text


def label_remarks(target: Target, points: Labels) -> list[str]:
    """The classes with their counts, and warnings of labels that may be none, or spellings of one."""
    if isinstance(target, NumberTarget):
        assert points.number is not None
        return number_notes(points.number)
    if not isinstance(target, Classes):
        return []
    names = class_names(points) or []
    counts = Counter(names)
    return [*class_counts({name: counts[name] for name in sorted(counts, key=natural)}), *label_notes(names)]


def target_for(training: Labels, labels: str, settings: OutcomeSettings) -> Target:
    """What the training labels ask for: classes and cuts of the time are theirs alone."""
    if len(training) < FEWEST:
        raise UserError(
            f"{labels}: {len(training)} labels to train on",
            hint=f"Give {FEWEST} or more, or a smaller {setting('holdout')}.",
        )
    target = target_of(training, settings.problem)
    if isinstance(target, NumberTarget):
        return dataclasses.replace(target, level=settings.level)
    strata = target.strata(target.encode(training))
    if not can_judge(target, strata):
        only = bool(strata[0]) if target.kind == "binary" else "the same"
        raise UserError(
            f"{labels}: every label to train on is {only}",
            hint=f"Give two outcomes at least, or a smaller {setting('holdout')}.",
        )
    return target


def work_of(
    out: Path,
    loaded: EventModel,
    histories: Histories,
    points: Labels,
    target: Target,
    y: np.ndarray,
    held: np.ndarray,
    settings: OutcomeSettings,
    *,
    checkpoints: bool,
    resume: bool,
) -> OutcomeWork:
    """Features and candidates of all points, whose targets are `y`; of those that are `held` nothing is fitted.
    Trainings keep checkpoints beside `out` where asked for."""
    stages, events = None, histories.events
    if checkpoints or resume:
        compared = dataclasses.asdict(settings) | {"precision": loaded.precision}
        for name in ("checkpoint_seconds", "examples", "device"):
            del compared[name]
        weights = loaded.folder.model.state_dict().values()
        found = {
            "settings": compared,
            "the model": digest(loaded.folder.vocabulary.codes, *weights),
            "the events": digest([events.digest(), events.codes], events.subjects, events.offsets),
            "the labels": digest([], points.subject, points.time, y, held),
        }
        stages = Stages(training_folder(out), seconds=settings.checkpoint_seconds, fingerprint=found, resume=resume)
    return OutcomeWork(loaded, histories, points, target, y, settings, stages)
