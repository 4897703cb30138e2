"""What is fitted for an outcome: heads on features that are made once, candidates beside them, and what each part of a
head is worth."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from unmask.errors import UserError, setting
from unmask.evaluation.resampling import auroc_auprc, bootstrap_counts, group_numbers
from unmask.modalities.events.outcome.candidates import FEWEST, Candidates
from unmask.modalities.events.outcome.features import MOST_CODES, gather, last_values, usual
from unmask.modalities.events.outcome.number import nearest
from unmask.modalities.events.outcome.outcome import OutcomeHead, fit_head, folds
from unmask.modalities.events.outcome.scoring import scored
from unmask.modalities.events.outcome.targets import Binary, Classes, NumberTarget, Target, TimeToEvent
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import Labels
from unmask.modalities.events.uses.model import EventModel
from unmask.training.finetune_checkpoints import Stages

SHARES = (0.1, 0.25, 0.5)
"""Of the training labels, for the learning curve."""
CALIBRATING = 1000
"""Points that the intervals of numbers, and the line of probabilities, come from: so many folds are set apart, one
after the other, as give them."""


class FittedOutcome(NamedTuple):
    """A head, and what it is asked, which for numbers holds the intervals too."""

    head: OutcomeHead
    target: Target


def can_judge(target: Target, strata: np.ndarray) -> bool:
    """Whether something can be learnt from labels of these strata: two outcomes, or an event that was seen."""
    return bool(strata.any()) if isinstance(target, TimeToEvent) else len(np.unique(strata)) > 1


class OutcomeWork:
    """Features of all points, made once; heads on parts of them, and the candidates. `stages` keep the checkpoints of
    each training, and raise `StoppedBySignal` at a signal."""

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
        self.histories, self.points = histories, points
        self.target, self.y = target, y
        if settings.states is None:
            beyond = len(loaded.folder.vocabulary.codes) > MOST_CODES
            alone = not (settings.summaries or settings.answers)
            settings = dataclasses.replace(settings, states=beyond or alone)
        learnt = loaded.learnt(states=bool(settings.states), answers=settings.answers)
        self.whole, names = whole, _ = gather(histories, points, learnt)
        states = len(names) + (2 * loaded.folder.settings.width if settings.states else 0)
        every = np.arange(whole.shape[1])  # summaries first, then states, then answers
        self.columns = {
            "summaries": every[: len(names)],
            "states": every[len(names) : states],
            "answers": every[states:],
        }
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

    def use(self, settings: OutcomeSettings) -> None:
        """Read the parts that these settings name, of those that were made."""
        used = [columns for name, columns in self.columns.items() if getattr(settings, name)]
        self.settings, self.x = settings, self.whole.some(np.concatenate(used))

    def fit(self, train: np.ndarray, *, intervals: bool = True) -> FittedOutcome:
        """Fit on some points; without `intervals` numbers are the expected ones alone, and probabilities stay as they
        are."""
        target = self.target
        if isinstance(target, NumberTarget | Binary) and intervals:
            target = self._calibrated(target, train)
        return FittedOutcome(self._fit(train), target)

    def _calibrated(self, target: NumberTarget | Binary, train: np.ndarray) -> NumberTarget | Binary:
        """The target with the line, or the intervals, that come from training patients set apart: a head is fitted on
        the others, and asked about them. Many labels need one such part, few all five in turn, so that `CALIBRATING`
        points are asked about. Numbers also with the last value of a code, and the share of it, that comes nearest."""
        fold = folds(
            target.strata(self.y[train]), self.points.subject[train], np.random.default_rng([self.settings.seed, 83])
        )
        parts = min(5, -(-5 * CALIBRATING // len(train)))
        left_out, ours, ruled = [], [], []
        for k in range(parts):
            fold_points, rest = train[fold == k], train[fold != k]
            if len(fold_points) and len(rest):
                left_out.append(fold_points)
                ours.append(self.predict(FittedOutcome(self._fit(rest), target), fold_points)["ours"])
                if isinstance(target, NumberTarget):
                    # What the last value of a code says, carried forward (True) and as a line through it (False).
                    points = self.points.take(fold_points)
                    ruled.append({r.carried: r.of(self.histories, points) for r in self.candidates.last_values(rest)})
        if not left_out:
            return target
        test, p = np.concatenate(left_out), np.concatenate(ours)
        if isinstance(target, Binary):
            return target.calibrated(p, self.y[test])
        found = {r.carried: r for r in self.candidates.last_values(train) if all(r.carried in rules for rules in ruled)}
        if found:
            # Each part is predicted by the rule of the others, as it is by their head.
            predicted = [np.concatenate([rules[kind] for rules in ruled]) for kind in found]
            which, weight = nearest(target.expected(p), predicted, self.points.amounts[test])
            rule = dataclasses.replace([*found.values()][which], weight=weight)
            target = dataclasses.replace(target, rule=rule)
            p = target.mixed(p, predicted[which]) if weight else p
        return target.calibrated(p, self.y[test])

    def _fit(self, train: np.ndarray) -> OutcomeHead:
        x, y, groups = self.x.part(train), self.y[train], self.points.subject[train]
        stage = None if self.stages is None else self.stages.next("head")
        return fit_head(x, y, groups, self.settings, self.target, checkpointer=stage)

    def predict(self, fitted: FittedOutcome, test: np.ndarray) -> dict[str, np.ndarray]:
        """(points, outputs) of all voices together, and of each alone where there are several."""
        head, target = fitted
        voices = head.voices(self.x.part(test), self.target)
        ours = target.finished(self.target.blend([*voices.values()]), self.histories, self.points.take(test))
        # Intervals belong to all voices together.
        each = {f"{n} alone": p[:, :1] if isinstance(target, NumberTarget) else p for n, p in voices.items()}
        return {"ours": ours} | (each if len(each) > 1 else {})

    def _with_fewer(self, fitted: FittedOutcome, few: np.ndarray) -> FittedOutcome:
        """Fitted anew on some of the training points, without intervals; of numbers with the same share of a rule of
        theirs."""
        less, target = self.fit(few, intervals=False), fitted.target
        if not isinstance(target, NumberTarget) or target.rule is None or not target.rule.weight:
            return less
        assert isinstance(less.target, NumberTarget)
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
            if len(few) < 2 * FEWEST or not can_judge(target, target.strata(self.y[few])):
                continue
            predicted = self.predict(self._with_fewer(fitted, few), test)
            if self.settings.baselines:
                predicted |= self.candidates.predict(few, test)
            seen = self.points.take(test)
            for name, p in predicted.items():
                figures = scored(target, seen, p, draws=100, seed=self.settings.seed)
                out.append({"labels": len(few), "model": name, **figures})
        return out


COUNTS = {"members": "networks", "trees": "trees", "boosting": "boosting"}
"""Settings of the head's own parts, and what these are called."""
OPTIONAL = ("states", "answers", "summaries", *COUNTS)
FOLDS = 5
DRAWS = 1000


class Worth(NamedTuple):
    """The settings with the parts that are kept, and the figures that say why."""

    settings: OutcomeSettings
    figures: dict[str, Any]


def without(settings: OutcomeSettings, parts: list[str]) -> OutcomeSettings | None:
    """The settings without some parts; None where the head would have nothing to read."""
    changes: dict[str, Any] = {part: 0 if part in COUNTS else False for part in parts}
    left = [name for name in OPTIONAL if changes.get(name, getattr(settings, name))]
    return dataclasses.replace(settings, **changes) if 0 < sum(name in COUNTS for name in left) < len(left) else None


def worth(work: OutcomeWork, train: np.ndarray) -> Worth:
    """What each part of a head is worth, and which parts are kept; on points of training patients alone.

    Parts are the encoder's pooled states, the answers to questions, the summaries, and the head's own: networks, trees,
    boosting. In five folds of these patients the head is fitted with all and without each; a part is worth what the
    mean log-likelihood of the patients left out loses without it. Parts that are worth nothing are left out together,
    if the head without all of them is no worse than with them.
    """
    target, y, groups = work.target, work.y[train], work.points.subject[train]
    if not isinstance(target, Binary | Classes):
        raise UserError(
            "worth=true: parts are weighed for a yes or no and for classes alone",
            hint=f"Leave it: {setting('worth', 'false')}.",
        )
    original = work.settings
    fold = folds(target.strata(y), groups, np.random.default_rng([original.seed, 89]))

    def voices(settings: OutcomeSettings) -> dict[str, np.ndarray]:
        """(points, outputs) by each part of heads that did not learn from their patients."""
        out: dict[str, np.ndarray] = {}
        work.use(settings)
        for k in range(FOLDS):
            rest, left_out = train[fold != k], train[fold == k]
            head = fit_head(work.x.part(rest), work.y[rest], work.points.subject[rest], settings, target)
            for name, p in head.voices(work.x.part(left_out), target).items():
                out.setdefault(name, np.zeros((len(train), target.outputs)))[fold == k] = p
        work.use(original)
        return out

    def predicted(settings: OutcomeSettings) -> np.ndarray:
        return target.blend([*voices(settings).values()])

    every = voices(original)
    whole, each = target.blend([*every.values()]), {}
    for part in OPTIONAL:
        if not getattr(original, part) or (fewer := without(original, [part])) is None:
            continue
        # The head's parts do not know of each other: without one, the others say the same.
        kept = [p for name, p in every.items() if name != COUNTS[part]] if part in COUNTS else None
        each[part] = predicted(fewer) if kept is None else target.blend(kept)
    figures = {part: _gain(target, y, whole, found, groups) for part, found in each.items()}
    dropped = [part for part in each if figures[part]["log_likelihood"] <= 0]
    fewer = without(original, dropped) if dropped else None
    # Parts that stand in for each other may each be worth nothing, and both together something.
    if fewer is not None and _gain(target, y, whole, predicted(fewer), groups)["log_likelihood"] > 0:
        fewer = None
    return Worth(
        fewer or original, {"parts": figures, "left_out": [] if fewer is None else dropped, "points": len(train)}
    )


def _gain(target: Target, y: np.ndarray, whole: np.ndarray, fewer: np.ndarray, groups: np.ndarray) -> dict[str, Any]:
    """How much better predictions with a part are than those without, with 95 % intervals over patients (`groups`)."""

    def likelihood(p: np.ndarray) -> np.ndarray:
        """(points,) log-likelihood of what came, in nats."""
        p = np.clip(p, 1e-6, 1 - 1e-6)
        if isinstance(target, Classes):
            return np.log(np.take_along_axis(p, y.astype(np.int64), 1))[:, 0]
        return np.log(np.where(y > 0, p, 1 - p)).sum(1)

    gain = likelihood(whole) - likelihood(fewer)
    patients = group_numbers(groups, len(groups))
    times = np.stack(list(bootstrap_counts(int(patients.max()) + 1, DRAWS, seed=0)))[:, patients]
    drawn = (times * gain).sum(1) / times.sum(1)
    out: dict[str, Any] = {"log_likelihood": float(gain.mean()), "intervals": {}}
    out["intervals"]["log_likelihood"] = np.quantile(drawn, [0.025, 0.975]).tolist()
    if isinstance(target, Binary):
        gap = (auroc_auprc(y[:, 0], whole[:, 0], times) - auroc_auprc(y[:, 0], fewer[:, 0], times))[0]
        out["auroc"] = float((auroc_auprc(y[:, 0], whole[:, 0]) - auroc_auprc(y[:, 0], fewer[:, 0]))[0, 0])
        out["intervals"]["auroc"] = np.nanquantile(gap, [0.025, 0.975]).tolist()
    return out
