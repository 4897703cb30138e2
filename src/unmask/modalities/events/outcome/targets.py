"""What a label file asks for, a class of `Target` each: yes or no, one of several classes, a number, or a time."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.errors import UserError, setting
from unmask.evaluation.survival import kaplan_meier, rounded_up, step_values
from unmask.given import natural
from unmask.modalities.events.outcome.calibrating import geometric_mean, logistic_line, on_line
from unmask.modalities.events.outcome.number import LastValue
from unmask.modalities.events.recipes import Problem
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.labels import class_names, may_be_classes
from unmask.modalities.events.records.meds import Labels

INTERVALS = 12
"""Of the time to an event, cut at quantiles of the observed event times."""
LEVEL = 0.9
"""Share of the points whose interval should hold the number."""
STRATA = (-0.7, 0.0, 0.7)
"""Standardised numbers between which folds are balanced."""
MOST_LOG = 5.0
"""Of the predicted deviation, on either side: of standardised numbers."""


class Target(ABC):
    """Turns labels into numbers, gives the loss of the head's outputs, and turns outputs into what `predict` writes."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many numbers the head gives per point."""

    def encode(self, labels: Labels) -> np.ndarray:
        """(points, ...) what the head is trained on; TypeError of a kind that no label file asks for."""
        raise TypeError(f"no label file asks for {self.kind!r}")

    def strata(self, y: np.ndarray) -> np.ndarray:
        """(points,) what folds are balanced by, of encoded labels; by default one stratum."""
        return np.zeros(len(y), np.int64)

    @abstractmethod
    def start(self, y: np.ndarray) -> np.ndarray:
        """(outputs,) those that know no feature."""

    @abstractmethod
    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """(members, points) of logits (members, points, outputs), in nats."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """(points, outputs) from those of the members: their mean."""
        return logits.sigmoid().mean(0)

    def blend(self, voices: Sequence[np.ndarray]) -> np.ndarray:
        """(points, outputs) from those of networks, trees and others, each counting alike."""
        return np.mean(voices, 0)

    def finished(self, p: np.ndarray, histories: Histories, points: Labels) -> np.ndarray:
        """Predictions of all voices together as the model gives them; by default as they are."""
        return p

    @abstractmethod
    def columns(self, p: np.ndarray, labels: Labels) -> dict[str, Any]:
        """What `predict` writes: the label, and what is predicted."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the folder."""
        return {"kind": self.kind, **dataclasses.asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True, kw_only=True)
class Binary(Target):
    """boolean_value: the probability that it is true.

    Attributes:
        intercept, slope: of the line through the log-odds of the voices' mean that gives the probability (logistic
            recalibration, Cox 1958): the mean of voices that differ is too near to the middle.
        points: that the line comes from, of patients that the voices were not fitted on; 0 without one.
    """

    intercept: float = 0.0
    slope: float = 1.0
    points: int = 0
    kind, outputs, classes = "binary", 1, 2

    def encode(self, labels: Labels) -> np.ndarray:
        assert labels.value is not None
        return labels.value.astype(np.float32)[:, None]

    def strata(self, y: np.ndarray) -> np.ndarray:
        return y[:, 0].astype(np.int64)

    def start(self, y: np.ndarray) -> np.ndarray:
        base = np.clip(y.mean(0), 1e-3, 1 - 1e-3)
        return np.log(base / (1 - base))

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, y.expand_as(logits), reduction="none")[..., 0]

    def blend(self, voices: Sequence[np.ndarray]) -> np.ndarray:
        """The mean of their log-odds."""
        return geometric_mean([np.concatenate([1 - p, p], 1) for p in voices])[:, 1:]

    def calibrated(self, p: np.ndarray, y: np.ndarray) -> Binary:
        """With the line that goes with predictions (points, 1) of labels (points, 1) that were not fitted on."""
        intercept, slope = logistic_line(p[:, 0], y[:, 0])
        return Binary(intercept=intercept, slope=slope, points=len(p))

    def finished(self, p: np.ndarray, histories: Histories | None = None, points: Labels | None = None) -> np.ndarray:
        """On the line."""
        return on_line(p, self.intercept, self.slope) if self.points else p

    def columns(self, p: np.ndarray, labels: Labels) -> dict[str, Any]:
        seen = labels.column("value", labels.value, pl.Boolean)
        return {"boolean_value": seen, "predicted_boolean_probability": p[:, 0]}


@dataclass(frozen=True, kw_only=True)
class NamedOutputs(Target):
    """An output per name."""

    names: tuple[str, ...]

    @property
    def outputs(self) -> int:
        return len(self.names)


@dataclass(frozen=True, kw_only=True)
class Classes(NamedOutputs):
    """categorical_value, or whole numbers as names: the probability of each class seen in training."""

    kind = "classes"

    @property
    def classes(self) -> int:
        return len(self.names)

    def encode(self, labels: Labels) -> np.ndarray:
        """(points, 1): number of the class, -1 for one that training did not have."""
        names, number = class_names(labels), {name: i for i, name in enumerate(self.names)}
        assert names is not None
        return np.array([number.get(n, -1) for n in names], np.int64)[:, None]

    def strata(self, y: np.ndarray) -> np.ndarray:
        return y[:, 0]

    def start(self, y: np.ndarray) -> np.ndarray:
        """Log shares, half a point added to each class."""
        counts = np.bincount(y[:, 0], minlength=self.outputs) + 0.5
        return np.log(counts / counts.sum())

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        return -logits.log_softmax(-1).gather(-1, y.expand(len(logits), -1, 1))[..., 0]

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1).mean(0)

    def blend(self, voices: Sequence[np.ndarray]) -> np.ndarray:
        return geometric_mean(voices)

    def columns(self, p: np.ndarray, labels: Labels) -> dict[str, Any]:
        field = "number" if labels.names is None else "names"
        return {
            "categorical_value": labels.column(field, class_names(labels), pl.String),
            "predicted_categorical_value": [self.names[i] for i in p.argmax(1)],
            **{f"predicted_probability_{name}": p[:, i] for i, name in enumerate(self.names)},
        }


@dataclass(frozen=True, kw_only=True)
class NumberTarget(Target):
    """float_value, or integer_value as an amount (days in hospital, a laboratory value): the expected number, and an
    interval that holds it as often as it should.

    The head gives an expected number and how far off it may be; the interval's width comes from how far off it was at
    points of patients that it was not fitted on (split conformal prediction, Lei et al. 2018, on residuals over the
    predicted deviation, for each side by itself).

    The head works on (label - centre) / spread, and so do predictions, (points, 2): expected number, and deviation.

    Attributes:
        centre, spread: mean and deviation of the training labels.
        least: 0 where no training label is below it: then nothing below is predicted, and no interval begins there.
        level: share of new points whose interval should hold the number.
        low, high: where the interval begins and ends, in predicted deviations from the expected number; None before
            `calibrated`.
        points: that these two come from.
        rule: last value of a code that predictions are mixed with, or judged by; None where none goes with the labels.
    """

    centre: float
    spread: float
    least: float | None = None
    level: float = LEVEL
    low: float | None = None
    high: float | None = None
    points: int = 0
    rule: LastValue | None = None
    kind, outputs = "number", 2

    @classmethod
    def fit(cls, labels: Labels) -> NumberTarget:
        """Centre and spread of training labels."""
        number = labels.amounts
        spread = float(number.std())
        if not spread > 1e-12 * max(1.0, float(np.abs(number).max())):
            raise UserError(
                f"every label to train on is {number[0]:g}",
                hint=f"Give numbers that differ, or a smaller {setting('holdout')}.",
            )
        return cls(centre=float(number.mean()), spread=spread, least=0.0 if number.min() >= 0 else None)

    def encode(self, labels: Labels) -> np.ndarray:
        """(points, 1) standardised numbers."""
        return ((labels.amounts - self.centre) / self.spread).astype(np.float32)[:, None]

    def strata(self, y: np.ndarray) -> np.ndarray:
        """Four ranges."""
        return np.digitize(y[:, 0], STRATA)

    def start(self, y: np.ndarray) -> np.ndarray:
        """(2,): mean and log deviation of standardised labels."""
        return np.array([y.mean(), np.log(max(float(y.std()), 1e-2))])

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Half the squared error, and the normal log density's loss of the deviation alone, the expected number taken
        as given: so numbers that are hard to tell are not learnt less."""
        location, log_deviation = logits[..., 0], logits[..., 1].clamp(-MOST_LOG, MOST_LOG)
        error = (location - y[:, 0]) ** 2
        return error / 2 + error.detach() / 2 * torch.exp(-2 * log_deviation) + log_deviation

    def probabilities(self, logits: Tensor) -> Tensor:
        """The members' mean, and the deviation of their mixture."""
        location, log_deviation = logits[..., 0], logits[..., 1].clamp(-MOST_LOG, MOST_LOG)
        variance = torch.exp(2 * log_deviation).mean(0) + location.var(0, correction=0)
        return torch.stack([location.mean(0), variance.sqrt()], -1)

    def blend(self, voices: Sequence[np.ndarray]) -> np.ndarray:
        """The voices' mean; trees, (points, 1), say nothing of the deviation."""
        location = np.mean([v[:, 0] for v in voices], 0)
        return np.stack([location, np.mean([v[:, 1] for v in voices if v.shape[1] > 1], 0)], 1)

    def mixed(self, p: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Predictions (points, 2) with the rule's share in them; `predicted` (points,) is what the rule says, in
        its unit."""
        assert self.rule is not None
        w = self.rule.weight
        location = (1 - w) * p[:, 0] + w * (predicted - self.centre) / self.spread
        return np.concatenate([location[:, None], p[:, 1:]], 1)

    def finished(self, p: np.ndarray, histories: Histories, points: Labels) -> np.ndarray:
        """With the share of the last value, if any."""
        if self.rule is None or not self.rule.weight:
            return p
        return self.mixed(p, self.rule.of(histories, points))

    def calibrated(self, p: np.ndarray, y: np.ndarray) -> NumberTarget:
        """With intervals as wide as predictions (points, 2) of numbers (points, 1) that were not fitted on ask for.
        With so few points that the share cannot be reached on a side, the interval ends where the farthest of them
        does."""
        score, n = np.sort((y[:, 0] - p[:, 0]) / p[:, 1]), len(p)
        tail = (1 - self.level) / 2
        first = max(int(np.floor((n + 1) * tail)), 1)
        return dataclasses.replace(self, low=float(score[first - 1]), high=float(score[n - first]), points=n)

    def expected(self, p: np.ndarray) -> np.ndarray:
        """(points,) the expected number, in its own unit."""
        return self._above(self.centre + self.spread * p[:, 0])

    def interval(self, p: np.ndarray) -> np.ndarray | None:
        """(points, 2) where the interval begins and ends; None for predictions without a deviation, or before
        `calibrated`."""
        if self.low is None or self.high is None or p.shape[1] < 2:
            return None
        ends = p[:, :1] + p[:, 1:] * np.array([[self.low, self.high]])
        return self._above(self.centre + self.spread * ends)

    def _above(self, number: np.ndarray) -> np.ndarray:
        return number if self.least is None else np.maximum(number, self.least)

    def columns(self, p: np.ndarray, labels: Labels) -> dict[str, Any]:
        ends = self.interval(p)
        return {
            "float_value": labels.column("number", labels.number, pl.Float64),
            "predicted_float_value": self.expected(p),
            "predicted_low": np.full(len(p), np.nan) if ends is None else ends[:, 0],
            "predicted_high": np.full(len(p), np.nan) if ends is None else ends[:, 1],
        }

    def judged(self, p: np.ndarray) -> np.ndarray:
        """(points, 1) expected numbers, or (points, 3) with their intervals behind: what `scoring.NUMBERS` and
        `COVERED` read."""
        ends, expected = self.interval(p), self.expected(p)[:, None]
        return expected if ends is None else np.concatenate([expected, ends], 1)


@dataclass(frozen=True, kw_only=True)
class TimeToEvent(Target):
    """float_value (days) with boolean_value (whether the event was seen, else censored): discrete-time hazards.

    A logistic hazard for each interval between `cuts` (Gensheimer & Narasimhan 2019). Who was censored within an
    interval has lived through a part of it. They count those past its middle as survivors; here all count by one share,
    `lived`, the one with which the hazard of the training labels is Kaplan-Meier's. (The middle is right where hazard
    and censoring are even; without a share risks are too high, .99 for .81 under uniform censoring.)

    Attributes:
        cuts: ends of the intervals, days.
        lived: (intervals,) the share.
    """

    cuts: tuple[float, ...]
    lived: tuple[float, ...]
    kind = "time_to_event"

    @property
    def outputs(self) -> int:
        return len(self.cuts)

    @classmethod
    def fit(cls, labels: Labels) -> TimeToEvent:
        """Cut at quantiles of the times of the events seen, rounded up to the digits that `columns` names them by.

        Where the longest time ends with the event, the last cut is left out: by then the share of those left is 0
        whatever the risk (unless it is the only cut).
        """
        days, seen = labels.times
        if not seen.any():
            raise UserError(
                f"no event was seen in {len(labels)} labels to train on",
                hint="boolean_value says whether the event was seen; give labels where it was.",
            )
        ends = np.quantile(days[seen == 1], np.arange(1, INTERVALS + 1) / INTERVALS)
        cuts = sorted({rounded_up(float(c)) for c in ends})
        survival = np.r_[1.0, step_values(*kaplan_meier(days, seen), np.array(cuts))]
        if survival[-1] == 0 and len(cuts) > 1:
            cuts, survival = cuts[:-1], survival[:-1]
        number = np.searchsorted(cuts, days, side="left")
        came, left = (np.bincount(number[seen == v], minlength=len(cuts) + 1)[:-1] for v in (1, 0))
        hazard = 1 - survival[1:] / survival[:-1]
        stayed = len(number) - np.cumsum(came + left)
        at_risk = np.where(came > 0, came / np.where(came > 0, hazard, 1.0), len(number))
        lived = (at_risk - came - stayed) / np.maximum(left, 1)
        return cls(cuts=tuple(cuts), lived=tuple(np.clip(lived, 0, 1).tolist()))

    def encode(self, labels: Labels) -> np.ndarray:
        """(points, 2): how many intervals were lived through, with a fraction where censored within one, and whether
        the event was seen."""
        days, seen = labels.times
        number = np.searchsorted(np.array(self.cuts), days, side="left")
        part = np.r_[self.lived, 0.0][number]
        return np.stack([number + part * (seen != 1), seen], 1).astype(np.float32)

    def strata(self, y: np.ndarray) -> np.ndarray:
        """Whether the event was seen."""
        return y[:, 1].astype(np.int64)

    def start(self, y: np.ndarray) -> np.ndarray:
        """Log-odds of the event in each interval among those at risk."""
        died, lived = (part.sum(0, dtype=torch.float64).clamp_min(1e-3) for part in self._counted(torch.from_numpy(y)))
        return (died / lived).log().numpy()

    def _counted(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """(points, intervals) twice: 1 where the event came, and the share of the interval that was lived through."""
        number, seen = y[:, 0:1], y[:, 1:2]
        interval = torch.arange(self.outputs, device=y.device)
        return ((interval == number) & (seen == 1)).float(), (number - interval).clamp(0, 1)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Minus the log-likelihood of the interval, or of having lived that long."""
        died, lived = self._counted(y)
        return (F.softplus(logits) * lived + F.softplus(-logits) * died).sum(-1)

    def intercepts(self, logits: Tensor, y: Tensor) -> Tensor:
        """(members, 1, outputs), to be added to logits (members, points, outputs): the hazards of those at risk then
        add up to the events seen, as in Kaplan-Meier's (the likelihood is largest). Within 5 of the log-odds, so that
        no hazard is 0 or 1."""
        died, lived = self._counted(y)
        low = torch.full_like(logits[:, :1], -5.0)
        high = -low
        for _ in range(30):
            middle = (low + high) / 2
            over = ((logits + middle).sigmoid() * (died + lived)).sum(1, keepdim=True) > died.sum(0)
            low, high = torch.where(over, low, middle), torch.where(over, middle, high)
        return (low + high) / 2

    def probabilities(self, logits: Tensor) -> Tensor:
        """Of the event by the end of each interval."""
        return (1 - torch.cumprod(1 - logits.sigmoid(), -1)).mean(0)

    def columns(self, p: np.ndarray, labels: Labels) -> dict[str, Any]:
        """The mean probability over the intervals, and the probability by each of their ends."""
        return {
            "float_value": labels.column("days", labels.days, pl.Float64),
            "boolean_value": labels.column("value", labels.value, pl.Boolean),
            "predicted_risk": p.mean(1),
            **{f"predicted_probability_by_{cut:g}_days": p[:, i] for i, cut in enumerate(self.cuts)},
        }


@dataclass(frozen=True, kw_only=True)
class MultiLabel(NamedOutputs):
    """Any of several codes (the next visit's): a probability for each."""

    kind = "multi_label"
    TOP = 20

    def start(self, y: np.ndarray) -> np.ndarray:
        """Log-odds of each code, half a visit added."""
        base = (y.sum(0) + 0.5) / (len(y) + 1)
        return np.log(base / (1 - base))

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Binary cross-entropy, summed over the codes."""
        return F.binary_cross_entropy_with_logits(logits, y.expand_as(logits), reduction="none").sum(-1)

    def columns(self, p: np.ndarray, labels: Labels) -> dict[str, Any]:
        """The likeliest codes of each point, and their probabilities."""
        order = np.argsort(-p, axis=1, kind="stable")[:, : self.TOP]
        return {
            "predicted_codes": [[self.names[i] for i in row] for row in order.tolist()],
            "predicted_probabilities": np.take_along_axis(p, order, 1).tolist(),
        }


Sorted = Binary | Classes
"""Targets that are one of few classes, which trees predict as well."""


def target_of(labels: Labels, problem: Problem = "auto") -> Target:
    """What the labels of a task ask for; of whole numbers `problem` says whether they are classes ('single') or amounts
    ('regression'). 'auto' takes numbers with fractions, or with more than `meds.FEW` distinct values, as amounts.
    """
    if labels.number is None and problem != "auto":
        fields = {True: "the time to an event", False: "classes" if labels.names is not None else "yes or no"}
        raise UserError(
            f"problem={problem}, with labels of {fields[labels.days is not None]}",
            hint="Give float_value or integer_value alone, or leave problem out.",
        )
    if labels.days is not None:
        return TimeToEvent.fit(labels)
    if labels.number is not None:
        distinct = np.unique(labels.number)
        parts = distinct[distinct != np.round(distinct)]
        if problem == "single" and len(parts):
            raise UserError(
                f"problem=single, with fractions among the labels, such as {parts[0]:g}",
                hint=f"Classes are whole numbers or categorical_value; {setting('problem', 'regression')} predicts "
                "amounts.",
            )
        if problem == "auto" and may_be_classes(distinct):
            shown = ", ".join(f"{n:g}" for n in distinct[:8]) + (", ..." if len(distinct) > 8 else "")
            raise UserError(
                f"labels are whole numbers with {len(distinct)} distinct values ({shown}): classes, or amounts?",
                hint=f"Say {setting('problem', 'single')} for classes, or {setting('problem', 'regression')} for "
                "amounts.",
            )
        if problem != "single":
            return NumberTarget.fit(labels)
    names = class_names(labels)
    return Binary() if names is None else Classes(names=tuple(sorted(set(names), key=natural)))


KINDS: dict[str, Any] = {each.kind: each for each in (Binary, Classes, NumberTarget, TimeToEvent, MultiLabel)}


def from_dict(data: dict[str, Any]) -> Target:
    """Rebuild from `to_dict`."""
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k != "kind"}
    if fields.get("rule") is not None:
        fields["rule"] = LastValue(**fields["rule"])
    return KINDS[data["kind"]](**fields)
