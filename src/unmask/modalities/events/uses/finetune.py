"""`unmask finetune outcome`: a pretrained event model and MEDS labels -> a model that predicts, and its report.

Held-out patients are chosen before anything is fitted; head and baselines see the same training patients, cut at the
same prediction times.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unmask.core.hashing import Salt, uniform
from unmask.errors import UserError, setting
from unmask.modalities.events.outcome.candidates import FEWEST as FEWEST
from unmask.modalities.events.outcome.candidates import AgeAndCount, Candidates
from unmask.modalities.events.outcome.clinical import descriptions
from unmask.modalities.events.outcome.features import gather, last_values, usual
from unmask.modalities.events.outcome.number import nearest
from unmask.modalities.events.outcome.outcome import OutcomeHead, fit_head, folds
from unmask.modalities.events.outcome.outcome_worth import columns_of, worth
from unmask.modalities.events.outcome.scoring import scored
from unmask.modalities.events.outcome.targets import (
    Classes,
    Number,
    Target,
    TimeToEvent,
    class_names,
    target_of,
)
from unmask.modalities.events.outcome.tune import Tuned
from unmask.modalities.events.recipes import OutcomeSettings, check_outcome_read
from unmask.modalities.events.records.cuts import after_death, without_events
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import BY_SPLITS, Events, Labels, as_events, named, read_labels
from unmask.modalities.events.records.splits import who_trained
from unmask.modalities.events.uses import outcome_report
from unmask.modalities.events.uses.card import counts, scored_figures
from unmask.modalities.events.uses.folder import save_folder
from unmask.modalities.events.uses.model import EventModel, load
from unmask.training.finetune_checkpoints import Checkpointer, Stages, StoppedBySignal
from unmask.training.processes import join_others
from unmask.writing import training_folder, writes_model, written_folder

SHARES = (0.1, 0.25, 0.5)
"""Of the training labels, for the learning curve."""
CALIBRATING = 1000
"""Points that the intervals of numbers come from: so many folds are set apart, one after the other, as give them."""


class FittedOutcome(NamedTuple):
    """A head, the encoder tuned for it, and what they are asked, which for numbers holds the intervals too."""

    head: OutcomeHead
    tuned: Tuned | None
    target: Target


@dataclass(frozen=True, kw_only=True)
class OutcomeRun:
    """A fine-tuning: folder and figures, which say under `stopped` whether it is 'finished' or ended by a 'signal'."""

    folder: Path
    figures: dict[str, Any]


@writes_model
def finetune_outcome(
    model: str | Path,
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
    y, stages = target.encode(points), None
    if checkpoints or resume:
        stages = stages_of(out, loaded, events, points, y, held, settings, resume=resume)
    work = OutcomeWork(loaded, loaded.histories(events), points, target, y, settings, stages)
    try:
        weighed = worth(work, train) if settings.worth else None
        if weighed is not None:
            settings = weighed.settings
            work.use(settings)
        fitted = work.fit(train)
    except StoppedBySignal as stop:
        return stopped(out, loaded, target, stop)
    rule, target = work.candidates.age_and_count(train), fitted.target
    found: dict[str, Any] = {"kind": target.kind, "labels": len(points), "training": len(train), "held_out": len(test)}
    if weighed is not None:
        found["worth"] = weighed.figures
    found |= {"outside": points.outside, "held_out_by": "a hash of the id" if events.held_out is None else BY_SPLITS}
    found |= loaded.unknown
    for name, lie in (("without_events", without_events(events, points)), ("after_death", after_death(events, points))):
        found[name] = {part: int(lie[rows].sum()) for part, rows in (("training", train), ("held_out", test))}
    found |= told_of(points, {"training": train, "held_out": test}, labels)
    if isinstance(target, Number):
        found["number"] = target.to_dict() | {"taken_as": taken_as(points.take(train))}
    predicted = work.predict(fitted, test) if len(test) else {}
    if settings.baselines and len(test):
        predicted |= work.candidates.predict(train, test)
    seen = points.take(test)
    if isinstance(target, Classes):
        found["unseen_classes"] = dict(Counter(name for name in class_names(seen) or () if name not in target.names))
    found["results"] = {n: scored(target, seen, p, seed=settings.seed) for n, p in predicted.items()}
    if settings.curve and len(test):
        try:
            found["curve"] = work.curve(train, test, fitted)
        except StoppedBySignal as stop:
            return stopped(out, loaded, target, stop)
    with written_folder(out) as new:
        keep(new, loaded, fitted, settings, found, started, who_trained(events, points, held), rule)
        found["subgroups"] = outcome_report.write(
            new, found, work.histories, seen, predicted, target, loaded.folder, descriptions(data), settings.examples
        )
    if stages is not None:
        stages.remove()
    return OutcomeRun(folder=out, figures=found)


def stopped(out: Path, loaded: EventModel, target: Target, stop: StoppedBySignal) -> OutcomeRun:
    """A run that a signal ended, to be resumed."""
    figures = {"kind": target.kind, "stopped": "signal", "steps": stop.steps}
    return OutcomeRun(folder=out, figures=figures | {"device": str(loaded.device), "precision": loaded.precision})


def told_of(points: Labels, parts: dict[str, np.ndarray], labels: Any) -> dict[str, Any]:
    """The outcome's name (of the task folder), and of each part how many patients and positives it has."""
    path = Path(named(labels))
    out: dict[str, Any] = {"outcome": path.parent.name if path.is_file() else path.resolve().name}
    out["patients"] = {name: len(np.unique(points.subject[rows])) for name, rows in parts.items()}
    if points.value is not None:
        out["positives"] = {name: int(points.value[rows].sum()) for name, rows in parts.items()}
    return out


def keep(
    out: Path,
    loaded: EventModel,
    fitted: FittedOutcome,
    settings: OutcomeSettings,
    found: dict[str, Any],
    started: float,
    patients: dict[str, str],
    rule: AgeAndCount | None = None,
) -> None:
    """Write the fine-tuned folder and its figures, to which time, device and precision are added.

    Args:
        patients: who trained the head and who was held out, see `who_trained`.
        rule: what the model is judged beside.
    """
    folder = loaded.folder
    folder.head, folder.tuned, target = fitted
    folder.outcome = {**dataclasses.asdict(settings), "target": target.to_dict(), "patients": patients}
    folder.outcome |= {} if rule is None else {"age_and_count": rule.to_dict()}
    save_folder(out, folder, about={"results": [f.to_dict() for f in scored_figures(found)], "counts": counts(found)})
    found |= {"seconds": time.perf_counter() - started, "device": str(loaded.device), "precision": loaded.precision}
    found["stopped"] = "finished"
    (out / "metrics.jsonl").write_text(json.dumps({"step": 1, **found, "kind": "outcome"}) + "\n", encoding="utf-8")


def begin(model: str | Path, data: Any, settings: OutcomeSettings) -> tuple[EventModel, Events]:
    """The pretrained model and the events."""
    loaded = load(model, device=settings.device, precision=settings.precision)
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
    assert training.number is not None
    distinct = np.unique(training.number)
    text = f"labels are taken as amounts ({len(distinct):,} distinct values from {distinct[0]:g} to {distinct[-1]:g})"
    whole = bool((distinct == np.round(distinct)).all())
    return f"{text}; {setting('problem', 'single')} takes whole numbers as classes" if whole else text


def target_for(training: Labels, labels: str, settings: OutcomeSettings) -> Target:
    """What the training labels ask for: classes and cuts of the time are theirs alone."""
    if len(training) < FEWEST:
        raise UserError(
            f"{labels}: {len(training)} labels to train on",
            hint=f"Give {FEWEST} or more, or a smaller {setting('holdout')}.",
        )
    target = target_of(training, settings.problem)
    if isinstance(target, Number):
        return dataclasses.replace(target, level=settings.level)
    strata = target.strata(target.encode(training))
    if not tells(target, strata):
        only = bool(strata[0]) if target.kind == "binary" else "the same"
        raise UserError(
            f"{labels}: every label to train on is {only}",
            hint=f"Give two outcomes at least, or a smaller {setting('holdout')}.",
        )
    return target


def tells(target: Target, strata: np.ndarray) -> bool:
    """Whether something can be learnt from labels of these strata: two outcomes, or an event that was seen."""
    return bool(strata.any()) if isinstance(target, TimeToEvent) else len(np.unique(strata)) > 1


class OutcomeWork:
    """Features of all points, made once; heads on parts of them, and the candidates.

    Args:
        stages: keep the checkpoints of each training; they raise `StoppedBySignal` at a signal.
    """

    def __init__(
        self,
        loaded: EventModel,
        histories: Histories,
        points: Labels,
        target: Target,
        y: np.ndarray,
        settings: OutcomeSettings,
        stages: Stages | None = None,
    ) -> None:
        self.stages = stages
        self.masked, self.histories, self.points = loaded.folder.model, histories, points
        self.target, self.y, self.settings = target, y, settings
        learnt = loaded.learnt(states=settings.states, answers=settings.answers)
        self.whole, names = whole, _ = gather(histories, points, learnt)
        self.columns = columns_of(len(names), whole.shape[1], loaded, settings)
        self.use(settings)
        used = np.flatnonzero(usual(names))
        self.candidates = Candidates(
            histories=histories,
            points=points,
            target=target,
            y=y,
            plain=whole.some(used),
            last=last_values([names[i] for i in used]),
            seed=settings.seed,
        )
        self.tuner = loaded.tuner(histories, points, target, settings) if settings.encoder == "tuned" else None

    def use(self, settings: OutcomeSettings) -> None:
        """Read the parts that these settings name, of those that were made."""
        used = [columns for name, columns in self.columns.items() if getattr(settings, name)]
        self.settings, self.x = settings, self.whole.some(np.concatenate(used))

    def fit(self, train: np.ndarray, *, intervals: bool = True) -> FittedOutcome:
        """Fit on some points; of numbers without `intervals` the expected ones alone."""
        target = self.target
        if isinstance(target, Number) and intervals:
            target = self._calibrated(target, train)
        return FittedOutcome(*self._fit(train), target)

    def _calibrated(self, target: Number, train: np.ndarray) -> Number:
        """The target with intervals that come from training patients set apart: a head is fitted on the others, and
        asked about them. Many labels need one such part, few all five in turn, so that `CALIBRATING` points are asked
        about."""
        fold = folds(
            target.strata(self.y[train]), self.points.subject[train], np.random.default_rng([self.settings.seed, 83])
        )
        parts = 1 if self.tuner is not None else min(5, -(-5 * CALIBRATING // len(train)))
        left_out, ours, ruled = [], [], []
        for k in range(parts):
            fold_points, rest = train[fold == k], train[fold != k]
            if len(fold_points) and len(rest):
                left_out.append(fold_points)
                ours.append(self.predict(FittedOutcome(*self._fit(rest), target), fold_points)["ours"])
                ruled.append(self._rules(rest, fold_points))
        if not left_out:
            return target
        test, p = np.concatenate(left_out), np.concatenate(ours)
        target = self._with_rule(target, train, test, p, ruled)
        if target.rule is not None and target.rule.weight:
            # Each part is predicted by the rule of the others, as it is by their head.
            kind = target.rule.carried
            p = target.mixed(p, np.concatenate([rules[kind] for rules in ruled]))
        return target.calibrated(p, self.y[test])

    def _rules(self, fitted_on: np.ndarray, test: np.ndarray) -> dict[bool, np.ndarray]:
        """What the last value of a code says of some points, in the unit of the labels, by rules of others: carried
        forward (True), and a line through it (False)."""
        assert isinstance(self.target, Number)
        return {r.carried: r.of(self.histories, self.points.take(test)) for r in self.candidates.last_values(fitted_on)}

    def _with_rule(
        self, target: Number, train: np.ndarray, test: np.ndarray, p: np.ndarray, ruled: list[dict[bool, np.ndarray]]
    ) -> Number:
        """With the rule, and the share of it, that comes nearest to the numbers of patients set apart."""
        assert self.points.number is not None
        found = {r.carried: r for r in self.candidates.last_values(train) if all(r.carried in rules for rules in ruled)}
        if not found:
            return target
        kinds = list(found)
        predictions = [np.concatenate([rules[kind] for rules in ruled]) for kind in kinds]
        which, weight = nearest(target.expected(p), predictions, self.points.number[test].astype(np.float64))
        return dataclasses.replace(target, rule=dataclasses.replace(found[kinds[which]], weight=weight))

    def _fit(self, train: np.ndarray) -> tuple[OutcomeHead, Tuned | None]:
        x, y, groups = self.x.part(train), self.y[train], self.points.subject[train]
        head = fit_head(x, y, groups, self.settings, self.target, checkpointer=self._checkpointer("head"))
        if self.tuner is None:
            return head, None
        return head, self.tuner.fit(self.masked, train, y, self._checkpointer("encoder"))

    def _checkpointer(self, name: str) -> Checkpointer | None:
        return None if self.stages is None else self.stages.next(name)

    def predict(self, fitted: FittedOutcome, test: np.ndarray) -> dict[str, np.ndarray]:
        """(points, outputs) of all voices together, and of the tuned encoder alone where there is one."""
        head, tuned, target = fitted
        alone = None if tuned is None or self.tuner is None else self.tuner.predict(tuned, test)
        ours = head.predict(self.x.part(test), self.target, [] if alone is None else [alone])
        if isinstance(target, Number):
            ours = target.with_rule(ours, self.histories, self.points.take(test))
        if alone is None:
            return {"ours": ours}
        # Intervals belong to all voices together.
        return {"ours": ours, "tuned encoder alone": alone[:, :1] if isinstance(self.target, Number) else alone}

    def _with_fewer(self, fitted: FittedOutcome, few: np.ndarray) -> FittedOutcome:
        """Fitted anew on some of the training points, without intervals; of numbers with the same share of a rule of
        theirs."""
        less, target = self.fit(few, intervals=False), fitted.target
        if not isinstance(target, Number) or target.rule is None or not target.rule.weight:
            return less
        assert isinstance(less.target, Number)
        same = [r for r in self.candidates.last_values(few) if r.carried == target.rule.carried]
        rule = dataclasses.replace(same[0], weight=target.rule.weight) if same else None
        return less._replace(target=dataclasses.replace(less.target, rule=rule))

    def curve(self, train: np.ndarray, test: np.ndarray, fitted: FittedOutcome) -> list[dict[str, Any]]:
        """Ours and the baselines at smaller shares of the training labels: random ones, balanced as they come."""
        target = self.target
        rng = np.random.default_rng(self.settings.seed)
        order, out = rng.permutation(train), []
        for share in SHARES:
            few = np.sort(order[: round(share * len(order))])
            if len(few) < 2 * FEWEST or not tells(target, target.strata(self.y[few])):
                continue
            predicted = self.predict(self._with_fewer(fitted, few), test)
            if self.settings.baselines:
                predicted |= self.candidates.predict(few, test)
            seen = self.points.take(test)
            for name, p in predicted.items():
                figures = scored(target, seen, p, draws=100, seed=self.settings.seed)
                out.append({"labels": len(few), "model": name, **figures})
        return out


def stages_of(
    out: Path,
    loaded: EventModel,
    events: Events,
    points: Labels,
    y: np.ndarray,
    held: np.ndarray,
    settings: OutcomeSettings,
    *,
    resume: bool,
) -> Stages:
    """Checkpoints beside `out`, of a run on these events and labels with these settings.

    Args:
        y: targets of all points; held: (points,) which of them nothing is fitted on.
    """
    compared = {
        k: v for k, v in dataclasses.asdict(settings).items() if k not in ("checkpoint_seconds", "examples", "device")
    }
    found: dict[str, Any] = {"settings": compared | {"precision": loaded.precision}}
    weights = loaded.folder.model.state_dict()
    found["the model"] = digest(loaded.folder.vocabulary.codes, *(t.cpu().numpy() for t in weights.values()))
    found["the events"] = digest([events.digest(), events.codes], events.subjects, events.offsets)
    found["the labels"] = digest([], points.subject, points.time, y, held)
    return Stages(training_folder(out), seconds=settings.checkpoint_seconds, fingerprint=found, resume=resume)


def digest(about: Any, *arrays: np.ndarray) -> str:
    """Of JSON and arrays: of others it is another one."""
    content = hashlib.sha256(json.dumps(about).encode())
    for array in arrays:
        content.update(str((array.dtype, array.shape)).encode())
        content.update(np.ascontiguousarray(array).data)
    return content.hexdigest()
