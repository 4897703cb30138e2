"""What each part of an outcome head is worth, measured on the training patients alone, and which parts are kept.

Parts are the encoder's pooled states, the answers to questions, the summaries, and the trees beside the networks. In
five folds of the training patients the head is fitted with all parts and without each; a part is worth what the mean
log-likelihood of the patients left out loses without it. Parts that are worth nothing are left out together, if the
head without all of them is no worse than with them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from unmask.errors import UserError, setting
from unmask.modalities.events.outcome.features import Features
from unmask.modalities.events.outcome.outcome import fit_head, folds
from unmask.modalities.events.outcome.scoring import auroc
from unmask.modalities.events.outcome.targets import Binary, Classes, Target
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.records.meds import Labels

OPTIONAL = ("states", "answers", "summaries", "trees")
FOLDS = 5
DRAWS = 1000


@runtime_checkable
class Weighed(Protocol):
    """What is weighed: `finetune.OutcomeWork`."""

    settings: OutcomeSettings
    points: Labels
    target: Target
    y: np.ndarray
    x: Features

    def use(self, settings: OutcomeSettings) -> None:
        """Read the parts that the settings name."""
        ...


@dataclass(frozen=True, kw_only=True)
class Worth:
    """The settings with the parts that are kept, and the figures that say why."""

    settings: OutcomeSettings
    figures: dict[str, Any]


def columns_of(summaries: int, whole: int, loaded: Any, settings: OutcomeSettings) -> dict[str, np.ndarray]:
    """Which columns of the features each part has: summaries first, then states, then answers."""
    states = 2 * loaded.folder.settings.width if settings.states else 0
    ends = np.cumsum([0, summaries, states])
    return {
        "summaries": np.arange(ends[0], ends[1]),
        "states": np.arange(ends[1], ends[2]),
        "answers": np.arange(ends[2], whole),
    }


def without(settings: OutcomeSettings, parts: list[str]) -> OutcomeSettings | None:
    """The settings without some parts; None where the head would have nothing to read."""
    changes: dict[str, Any] = {part: 0 if part == "trees" else False for part in parts}
    left = {part: changes.get(part, getattr(settings, part)) for part in ("states", "answers", "summaries")}
    return dataclasses.replace(settings, **changes) if any(left.values()) else None


def worth(work: Weighed, train: np.ndarray) -> Worth:
    """Measure, and choose; on points of training patients alone."""
    if not isinstance(work.target, Binary | Classes):
        raise UserError(
            "worth=true: parts are weighed for a yes or no and for classes alone",
            hint=f"Leave it: {setting('worth', 'false')}.",
        )
    settings = dataclasses.replace(work.settings, encoder="frozen")
    parts = [part for part in OPTIONAL if getattr(settings, part)]
    comparison = _Judge(work, train)
    whole, each = comparison.of(settings), dict[str, np.ndarray]()
    for part in parts:
        fewer = without(settings, [part])
        if fewer is not None:
            each[part] = comparison.of(fewer)
    figures = {part: comparison.paired(whole, found) for part, found in each.items()}
    dropped = [part for part in each if figures[part]["log_likelihood"] <= 0]
    fewer = without(settings, dropped) if dropped else None
    # Parts that stand in for each other may each be worth nothing, and both together something.
    if fewer is not None and comparison.paired(whole, comparison.of(fewer))["log_likelihood"] > 0:
        fewer = None
    chosen = work.settings if fewer is None else dataclasses.replace(fewer, encoder=work.settings.encoder)
    out: dict[str, Any] = {"parts": figures, "left_out": [] if fewer is None else dropped, "points": len(train)}
    return Worth(settings=chosen, figures=out)


class _Judge:
    """Predictions of the training points by heads that did not learn from their patients."""

    def __init__(self, work: Weighed, train: np.ndarray) -> None:
        self.work, self.train = work, train
        self.y, self.groups = work.y[train], work.points.subject[train]
        generator = np.random.default_rng([work.settings.seed, 89])
        self.fold = folds(work.target.strata(self.y), self.groups, generator)

    def of(self, settings: OutcomeSettings) -> np.ndarray:
        """(points, outputs)"""
        work, out = self.work, None
        before = work.settings
        work.use(settings)
        for k in range(FOLDS):
            rest, fold_points = self.train[self.fold != k], self.train[self.fold == k]
            head = fit_head(work.x.part(rest), work.y[rest], work.points.subject[rest], settings, work.target)
            p = head.predict(work.x.part(fold_points), work.target)
            out = np.zeros((len(self.train), p.shape[1])) if out is None else out
            out[self.fold == k] = p
        work.use(before)
        assert out is not None
        return out

    def paired(self, whole: np.ndarray, fewer: np.ndarray) -> dict[str, Any]:
        """How much better `whole` is, with 95 % intervals over patients."""
        gain = self._likelihood(whole) - self._likelihood(fewer)
        rng, patients = np.random.default_rng(0), np.unique(self.groups, return_inverse=True)[1]
        weight = np.stack([np.bincount(rng.integers(0, n, n), minlength=n) for n in [patients.max() + 1] * DRAWS])
        times = weight[:, patients]
        drawn = (times * gain).sum(1) / times.sum(1)
        out: dict[str, Any] = {"log_likelihood": float(gain.mean()), "intervals": {}}
        out["intervals"]["log_likelihood"] = np.quantile(drawn, [0.025, 0.975]).tolist()
        if isinstance(self.work.target, Binary):
            y = self.y[:, 0]
            gap = auroc(y, whole[:, 0], times) - auroc(y, fewer[:, 0], times)
            out["auroc"] = float(auroc(y, whole[:, 0])[0] - auroc(y, fewer[:, 0])[0])
            out["intervals"]["auroc"] = np.nanquantile(gap, [0.025, 0.975]).tolist()
        return out

    def _likelihood(self, p: np.ndarray) -> np.ndarray:
        """(points,) log-likelihood of what came, in nats."""
        p = np.clip(p, 1e-6, 1 - 1e-6)
        if isinstance(self.work.target, Classes):
            return np.log(np.take_along_axis(p, self.y.astype(np.int64), 1))[:, 0]
        return np.log(np.where(self.y > 0, p, 1 - p)).sum(1)
