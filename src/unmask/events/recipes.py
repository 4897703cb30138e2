"""Settings of `unmask pretrain events` and `finetune outcome`, and recipes as data. No torch import."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from unmask.errors import UserError, suggest
from unmask.training.settings import TrainSettings, apply_overrides, check_types


@dataclass(frozen=True, kw_only=True)
class EventSettings:
    """What is trained on patients' events. `train` says how long and how fast.

    Attributes:
        architecture: 'visible_only' (hidden slots dropped, small decoder) or 'in_place'.
        width, layers, heads, inner: of the encoder.
        slots: longest history; of longer ones static events and the latest timed ones are kept.
        floor: codes seen less often share one number.
        ratio: share of the events to hide; hide: whole 'visit's (events of one time stamp) or single 'event's.
        mask, random, keep: what stands in hidden slots.
        code_weight, value_weight, time_weight: of the three targets; 0 leaves one out.
        holdout: share of patients held out for validation.
    """

    architecture: Literal["visible_only", "in_place"] = "visible_only"
    width: int = 64
    layers: int = 2
    heads: int = 4
    inner: int = 128
    slots: int = 512
    floor: int = 5
    ratio: float = 0.6
    hide: Literal["visit", "event"] = "visit"
    mask: float = 1.0
    random: float = 0.0
    keep: float = 0.0
    code_weight: float = 1.0
    value_weight: float = 1.0
    time_weight: float = 0.2
    holdout: float = 0.05
    train: TrainSettings = field(
        default_factory=lambda: TrainSettings(epochs=3.0, batch_slots=16384, learning_rate=2e-3)
    )

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("width", "layers", "heads", "inner", "slots", "floor"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}", hint="Expected a whole number, 1 or more.")
        for name in ("ratio", "holdout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(
                    f"{name}={getattr(self, name)}", hint="Expected a share from 0 up to, not including, 1."
                )
        for name in ("code_weight", "value_weight", "time_weight"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)}", hint="Expected a number, 0 or more.")
        if self.train.batch_slots % self.slots:
            near = max(1, round(self.train.batch_slots / self.slots)) * self.slots
            raise UserError(
                f"batch_slots={self.train.batch_slots} is not a multiple of slots={self.slots}",
                hint=f"Use batch_slots={near}.",
            )


@dataclass(frozen=True, kw_only=True)
class OutcomeSettings:
    """The outcome head.

    Attributes:
        members: small networks averaged; each stops on a share of the training patients of its own.
        hidden: width of a member's hidden layer; dropout, weight_decay, learning_rate, epochs, patience: of its training.
        holdout: share of labelled patients that no member and no baseline sees: the report is about them.
        states: use the pretrained encoder's pooled states; summaries: use each code's last, min, max, mean and count.
        baselines: fit prevalence, logistic regression and gradient boosting beside it.
    """

    members: int = 5
    hidden: int = 64
    dropout: float = 0.3
    weight_decay: float = 0.3
    learning_rate: float = 2e-3
    epochs: int = 40
    patience: int = 6
    holdout: float = 0.2
    states: bool = True
    summaries: bool = True
    baselines: bool = True
    seed: int = 0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("members", "hidden", "epochs", "patience"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)}", hint="Expected a whole number, 1 or more.")
        for name in ("dropout", "holdout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(
                    f"{name}={getattr(self, name)}", hint="Expected a share from 0 up to, not including, 1."
                )
        if not (self.states or self.summaries):
            raise UserError("states=false and summaries=false", hint="The head needs one of them.")


OURS: Mapping[str, Any] = {}
BEHRT = {
    "architecture": "in_place", "ratio": 0.15, "hide": "event", "mask": 0.8, "random": 0.1, "keep": 0.1,
    "value_weight": 0.0, "time_weight": 0.0,
}  # fmt: skip
"""What BEHRT hides and asks for (Li et al. 2020): single codes, 15 %, 80/10/10, code alone. Its segments are not built."""

RECIPES: dict[str, Mapping[str, Any]] = {"ours": OURS, "behrt": BEHRT}


def with_overrides(settings: EventSettings, given: Mapping[str, Any]) -> EventSettings:
    """Replace settings by key; keys of `train` may be bare.

    Raises:
        UserError: for an unknown key, with the closest known one.
    """
    own = {f.name for f in dataclasses.fields(EventSettings)}
    training = {f.name for f in dataclasses.fields(TrainSettings)}
    here: dict[str, Any] = {}
    there: dict[str, Any] = {}
    for key, value in given.items():
        if key == "train" and isinstance(value, Mapping):
            there |= value
        elif key.split(".")[0] in own:
            here[key] = value
        elif key in training:
            there[key] = value
        else:
            raise UserError(f"unknown setting '{key}'", hint=suggest(key, own | training))
    train = settings.train
    if there:
        if any(name in there for name in ("steps", "minutes")):
            there = {"epochs": None, **there}
        train = apply_overrides(train, there)
    return apply_overrides(dataclasses.replace(settings, train=train), here)
