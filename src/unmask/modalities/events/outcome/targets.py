"""What a label file asks for: a yes or no, one of several classes, a number, or the time to an event. One object each
way.

A target turns labels into numbers, gives the loss of the head's outputs, and turns outputs into what `predict` writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.errors import UserError, setting
from unmask.evaluation.survival import kaplan_meier, step_values
from unmask.modalities.events.outcome.number import LastValue, Number
from unmask.modalities.events.recipes import Problem
from unmask.modalities.events.records.meds import Labels, may_be_classes
from unmask.natural import natural

INTERVALS = 12
"""Of the time to an event, cut at quantiles of the observed event times."""


@dataclass(frozen=True, kw_only=True)
class Binary:
    """boolean_value: the probability that it is true."""

    outputs = 1
    classes = 2
    kind = "binary"

    def encode(self, labels: Labels) -> np.ndarray:
        """(points, 1): 1 where boolean_value is true, else 0."""
        assert labels.value is not None
        return labels.value.astype(np.float32)[:, None]

    def strata(self, y: np.ndarray) -> np.ndarray:
        """What folds are balanced by."""
        return y[:, 0].astype(np.int64)

    def start(self, y: np.ndarray) -> np.ndarray:
        """The outputs that know no feature: (outputs,)."""
        base = np.clip(y.mean(0), 1e-3, 1 - 1e-3)
        return np.log(base / (1 - base))

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """(members, points) of logits (members, points, outputs)."""
        return F.binary_cross_entropy_with_logits(logits, y.expand_as(logits), reduction="none")[..., 0]

    def probabilities(self, logits: Tensor) -> Tensor:
        """(points, outputs): the members' mean."""
        return logits.sigmoid().mean(0)

    def blend(self, voices: Sequence[np.ndarray]) -> np.ndarray:
        """One of several (points, 1): the mean of their log-odds."""
        return _geometric([np.concatenate([1 - p, p], 1) for p in voices])[:, 1:]

    def columns(self, p: np.ndarray, labels: Labels) -> dict[str, Any]:
        """What `predict` writes: the label, and the probability that it is true."""
        return {
            "boolean_value": _seen(labels),
            "predicted_boolean_probability": p[:, 0],
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the folder."""
        return {"kind": self.kind}


@dataclass(frozen=True, kw_only=True)
class Classes:
    """categorical_value, or whole numbers as names: the probability of each class seen in training."""

    names: tuple[str, ...]
    kind = "classes"

    @property
    def outputs(self) -> int:
        """One per class."""
        return len(self.names)

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.names)

    def encode(self, labels: Labels) -> np.ndarray:
        """(points, 1): number of the class, -1 for one that training did not have."""
        names, number = class_names(labels), {name: i for i, name in enumerate(self.names)}
        assert names is not None
        return np.array([number.get(n, -1) for n in names], np.int64)[:, None]

    def strata(self, y: np.ndarray) -> np.ndarray:
        """What folds are balanced by: the class."""
        return y[:, 0]

    def start(self, y: np.ndarray) -> np.ndarray:
        """(classes,): log shares, half a point added to each class."""
        counts = np.bincount(y[:, 0], minlength=self.outputs) + 0.5
        return np.log(counts / counts.sum())

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """(members, points): cross-entropy in nats."""
        return -logits.log_softmax(-1).gather(-1, y.expand(len(logits), -1, 1))[..., 0]

    def probabilities(self, logits: Tensor) -> Tensor:
        """(points, classes): the members' mean."""
        return logits.softmax(-1).mean(0)

    def blend(self, voices: Sequence[np.ndarray]) -> np.ndarray:
        """One of several (points, classes): their geometric mean, scaled to add up to 1."""
        return _geometric(voices)

    def columns(self, p: np.ndarray, labels: Labels) -> dict[str, Any]:
        """What `predict` writes: the label, the likeliest class, and a probability per class."""
        names = labels.nulled(
            "number" if labels.names is None else "names", class_names(labels) or [None] * len(labels)
        )
        return {
            "categorical_value": pl.Series(names, dtype=pl.String),
            "predicted_categorical_value": [self.names[i] for i in p.argmax(1)],
            **{f"predicted_probability_{name}": p[:, i] for i, name in enumerate(self.names)},
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the folder."""
        return {"kind": self.kind, "names": list(self.names)}


@dataclass(frozen=True, kw_only=True)
class TimeToEvent:
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
        """One hazard per interval."""
        return len(self.cuts)

    @classmethod
    def fit(cls, labels: Labels) -> TimeToEvent:
        """Cut at quantiles of the times of the events seen, rounded up to the digits that `columns` names them by.

        Raises:
            UserError: no event was seen.
        """
        assert labels.days is not None
        assert labels.value is not None
        seen = labels.days[labels.value == 1]
        if not len(seen):
            raise UserError(
                f"no event was seen in {len(labels)} labels to train on",
                hint="boolean_value says whether the event was seen; give labels where it was.",
            )
        ends = np.quantile(seen, np.arange(1, INTERVALS + 1) / INTERVALS)
        cuts = sorted({rounded_up(float(c)) for c in ends})
        number = np.searchsorted(cuts, labels.days, side="left")
        came, left = (np.bincount(number[labels.value == v], minlength=len(cuts) + 1)[:-1] for v in (1, 0))
        survival = np.r_[1.0, step_values(*kaplan_meier(labels.days, labels.value), np.array(cuts))]
        hazard = 1 - survival[1:] / survival[:-1]
        stayed = len(number) - np.cumsum(came + left)
        at_risk = np.where(came > 0, came / np.where(came > 0, hazard, 1.0), len(number))
        lived = (at_risk - came - stayed) / np.maximum(left, 1)
        return cls(cuts=tuple(cuts), lived=tuple(np.clip(lived, 0, 1).tolist()))

    def encode(self, labels: Labels) -> np.ndarray:
        """(points, 2): how many intervals were lived through, with a fraction where censored within one, and whether
        the event was seen."""
        assert labels.days is not None
        assert labels.value is not None
        number = np.searchsorted(np.array(self.cuts), labels.days, side="left")
        part = np.r_[self.lived, 0.0][number]
        return np.stack([number + part * (labels.value != 1), labels.value], 1).astype(np.float32)

    def strata(self, y: np.ndarray) -> np.ndarray:
        """What folds are balanced by: whether the event was seen."""
        return y[:, 1].astype(np.int64)

    def start(self, y: np.ndarray) -> np.ndarray:
        """(intervals,): log-odds of the event in each interval among those at risk."""
        number, interval = y[:, 0:1], np.arange(self.outputs)
        deaths = ((number == interval) & (y[:, 1:2] == 1)).sum(0) + 0.5
        lived = (number - interval).clip(0, 1).sum(0) + 0.5
        return np.log(deaths / lived)

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """(members, points): minus the log-likelihood of the interval, or of having lived that long."""
        number, seen = y[:, 0:1], y[:, 1:2]
        interval = torch.arange(self.outputs, device=y.device)
        lived = (number - interval).clamp(0, 1)  # 1: survived to the interval's end
        died = ((interval == number) & (seen == 1)).float()
        return (F.softplus(logits) * lived + F.softplus(-logits) * died).sum(-1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """(points, outputs): of the event by the end of each interval."""
        return (1 - torch.cumprod(1 - logits.sigmoid(), -1)).mean(0)

    def blend(self, voices: Sequence[np.ndarray]) -> np.ndarray:
        """One of several (points, intervals): their mean."""
        return np.mean(voices, 0)

    def columns(self, p: np.ndarray, labels: Labels) -> dict[str, Any]:
        """What `predict` writes: the label, the mean probability over the intervals, and the probability by each of
        their ends."""
        days = [None] * len(labels) if labels.days is None else labels.nulled("days", labels.days.tolist())
        return {
            "float_value": pl.Series(days, dtype=pl.Float64),
            "boolean_value": _seen(labels),
            "predicted_risk": p.mean(1),
            **{f"predicted_probability_by_{cut:g}_days": p[:, i] for i, cut in enumerate(self.cuts)},
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the folder."""
        return {"kind": self.kind, "cuts": list(self.cuts), "lived": list(self.lived)}


@dataclass(frozen=True, kw_only=True)
class MultiLabel:
    """Any of several codes (the next visit's): a probability for each."""

    names: tuple[str, ...]
    kind = "multi_label"
    TOP = 20

    @property
    def outputs(self) -> int:
        """One per code."""
        return len(self.names)

    def strata(self, y: np.ndarray) -> np.ndarray:
        """Folds are balanced by nothing: one stratum."""
        return np.zeros(len(y), np.int64)

    def start(self, y: np.ndarray) -> np.ndarray:
        """(codes,): log-odds of each code, half a visit added."""
        base = (y.sum(0) + 0.5) / (len(y) + 1)
        return np.log(base / (1 - base))

    def loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """(members, points): binary cross-entropy, summed over the codes."""
        return F.binary_cross_entropy_with_logits(logits, y.expand_as(logits), reduction="none").sum(-1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """(points, codes): the members' mean."""
        return logits.sigmoid().mean(0)

    def blend(self, voices: Sequence[np.ndarray]) -> np.ndarray:
        """One of several (points, codes): their mean."""
        return np.mean(voices, 0)

    def columns(self, p: np.ndarray, labels: Labels) -> dict[str, Any]:
        """What `predict` writes: the likeliest codes of each point, and their probabilities."""
        order = np.argsort(-p, axis=1, kind="stable")[:, : self.TOP]
        return {
            "predicted_codes": [[self.names[i] for i in row] for row in order.tolist()],
            "predicted_probabilities": np.take_along_axis(p, order, 1).tolist(),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the folder."""
        return {"kind": self.kind, "names": list(self.names)}


def _seen(labels: Labels) -> pl.Series:
    """boolean_value as the labels have it."""
    value = [None] * len(labels) if labels.value is None else labels.nulled("value", (labels.value == 1).tolist())
    return pl.Series(value, dtype=pl.Boolean)


def rounded_up(x: float) -> float:
    """To six digits, and not below `x`."""
    near = float(f"{x:.6g}")
    return near if near >= x else float(f"{x + abs(x) * 1e-5:.6g}")


def _geometric(voices: Sequence[np.ndarray]) -> np.ndarray:
    """The normalised geometric mean of distributions, (points, classes) each; one alone stays as it is."""
    if len(voices) == 1:
        return voices[0]
    mean = np.exp(np.mean([np.log(np.clip(p, 1e-3, 1)) for p in voices], 0))
    return mean / mean.sum(1, keepdims=True)


Labelled = Binary | Classes | Number | TimeToEvent
"""Targets that come as labels; those of `MultiLabel` are made of the events themselves (`next_visit.next_visits`)."""
Target = Labelled | MultiLabel
Sorted = Binary | Classes
"""Targets that are one of few classes, which trees predict as well."""


def class_names(labels: Labels) -> list[str] | None:
    """Each point's class: its name, or its number as one; None where labels are of another kind."""
    if labels.names is not None or labels.number is None:
        return labels.names
    return [f"{n:g}" if n != np.round(n) else str(int(n)) for n in labels.number.tolist()]


def target_of(labels: Labels, problem: Problem = "auto") -> Labelled:
    """What the labels of a task ask for; of whole numbers `problem` says whether they are classes ('single') or amounts
    ('regression'). 'auto' takes numbers with fractions, or with more than `meds.FEW` distinct values, as amounts.
    """
    if labels.number is not None:
        return _of_numbers(labels, problem)
    if problem != "auto":
        fields = {True: "the time to an event", False: "classes" if labels.names is not None else "yes or no"}
        raise UserError(
            f"problem={problem}, with labels of {fields[labels.days is not None]}",
            hint="Give float_value or integer_value alone, or leave problem out.",
        )
    if labels.days is not None:
        return TimeToEvent.fit(labels)
    if labels.names is not None:
        return Classes(names=tuple(sorted(set(labels.names), key=natural)))
    return Binary()


def _of_numbers(labels: Labels, problem: Problem) -> Labelled:
    assert labels.number is not None
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
            hint=f"Say {setting('problem', 'single')} for classes, or {setting('problem', 'regression')} for amounts.",
        )
    if problem == "single":
        return Classes(names=tuple(sorted(set(class_names(labels) or ()), key=natural)))
    return Number.fit(labels)


def from_dict(data: dict[str, Any]) -> Target:
    """Rebuild from `to_dict`."""
    if data["kind"] == "classes":
        return Classes(names=tuple(data["names"]))
    if data["kind"] == "multi_label":
        return MultiLabel(names=tuple(data["names"]))
    if data["kind"] == "number":
        rule = data.get("rule")
        fields = {k: v for k, v in data.items() if k not in ("kind", "rule")}
        return Number(**fields, rule=None if rule is None else LastValue(**rule))
    if data["kind"] == "time_to_event":
        return TimeToEvent(cuts=tuple(data["cuts"]), lived=tuple(data["lived"]))
    return Binary()
