"""What a slot knows of time: parts as data, added to the event's embedding or joined with it.

Each part reads the context of a slot (hours since the origin, age at the origin, date of the origin, visit number, time
of asking) and gives one vector. The first slot stands at the time of asking, where that is told. Static facts have no
time: no part says when there, at most how old the patient was at the origin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

YEAR = 24 * 365.25
"""Hours."""
NARROW = 16
"""Width of CEHR-BERT's embeddings of time, age and visit order."""
MONTHS = 110 * 12 + 1
VISITS = 1000


def squash(hours: Tensor) -> Tensor:
    """Hours since the first event on a scale where a day and a year both differ from nothing."""
    return torch.log1p(hours.clamp_min(0)) / 3


def stretch(scaled: Tensor) -> Tensor:
    """The inverse of `squash`; at most 370 years."""
    return torch.expm1(3 * scaled.clamp(0, 5))


def age(values: dict[str, Tensor]) -> Tensor:
    """Years, of timed events; 0 at static ones."""
    return (values["age_at_start"] + values["hours"] / YEAR) * values["timed"]


def since_1970(values: dict[str, Tensor]) -> Tensor:
    """Hours, of timed events; 0 at static ones."""
    return (values["start_year"] * YEAR + values["hours"]) * values["timed"]


NUMBERS: dict[str, tuple[int, Callable[[dict[str, Tensor]], Tensor]]] = {
    "age_months": (MONTHS, lambda values: (age(values) * 12).long()),
    "segment": (2, lambda values: values["visit"] % 2),
    "visit_number": (VISITS, lambda values: values["visit"]),
}
"""Part -> how many whole numbers there are, and the one of each slot."""
SCALED_TIMES: dict[str, Callable[[dict[str, Tensor]], Tensor]] = {
    "time_sines": lambda values: since_1970(values) / (7 * 24 * 1000),  # weeks, in thousands
    "age_sines": lambda values: age(values) / 100,
    "time2vec_age": lambda values: age(values) * 1e-2,
    "time2vec_time": lambda values: since_1970(values) * 1e-4,
}
"""Part -> the time of each slot, on a scale on which sines tell of it."""


PERIODS = tuple(6.0 * 4.0**i for i in range(9))
"""Hours, from six to 45 years: a day is a quarter turn of the third of them, after ten years as after one."""


class Scales(nn.Module):
    """Sines and cosines of the hours at several periods, of the squashed hours since the origin and until the time of
    asking, and the age: ours.

    Differences of hours and of days are told at any distance from the origin, and how long before the time of asking an
    event was, most finely where it was shortly before.
    """

    FREQUENCIES = 8
    periods: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("periods", torch.tensor(PERIODS), persistent=False)
        given = 2 * self.FREQUENCIES + 1
        self.out, self.line = width, nn.Linear(2 * len(PERIODS) + 2 * given + 3, width)

    def forward(self, values: dict[str, Tensor]) -> Tensor:
        timed, given = values["timed"].float()[..., None], (values["prediction_hours"] >= 0).float()[..., None]
        hours = values["hours"]
        turn = hours[..., None] * (2 * math.pi / self.periods)
        parts = [
            turn.sin() * timed,
            turn.cos() * timed,
            self._waves(hours) * timed,
            self._waves(values["prediction_hours"] - hours) * timed * given,
            timed,
            given,
            ((values["age_at_start"] + hours / YEAR) / 50)[..., None],
        ]
        return self.line(torch.cat(parts, -1))

    def _waves(self, hours: Tensor) -> Tensor:
        squashed = squash(hours)[..., None]
        angle = squashed * (math.pi / 2) * 2.0 ** torch.arange(self.FREQUENCIES, device=hours.device)
        return torch.cat([angle.sin(), angle.cos(), squashed], -1)


class NumberEmbedding(nn.Module):
    """A learned vector for a whole number: age in months, parity of the visit, visit number."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.out, self.kind, self.table = width, kind, nn.Embedding(NUMBERS[kind][0], width)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, values: dict[str, Tensor]) -> Tensor:
        return self.table(NUMBERS[self.kind][1](values).clamp(0, self.table.num_embeddings - 1))


class VisitWaves(nn.Module):
    """Frozen sines and cosines of the visit number (BEHRT's position; its doubled exponent is a slip, not copied)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = width

    def forward(self, values: dict[str, Tensor]) -> Tensor:
        half = self.out // 2
        rate = torch.exp(-math.log(10_000.0) * torch.arange(half, device=values["visit"].device) / half)
        angle = values["visit"][..., None] * rate
        waves = torch.cat([angle.sin(), angle.cos()], -1)
        return torch.nn.functional.pad(waves, (0, self.out - 2 * half))


class Sines(nn.Module):
    """sin(w t + phase) of a scaled time, learned w and phase (CEHR-BERT); with `linear`, Time2Vec: one of them per
    line."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.out, self.kind = width, kind
        self.rate, self.phase = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))

    def forward(self, values: dict[str, Tensor]) -> Tensor:
        angle = SCALED_TIMES[self.kind](values)[..., None] * self.rate + self.phase
        if self.kind.startswith("time2vec"):
            return torch.cat([angle[..., :1].clamp(-100, 100), angle[..., 1:].cos()], -1)
        return angle.sin()


def make_part(name: str, width: int) -> nn.Module:
    """The part called `name`; its `out` is its width."""
    if name == "scales":
        return Scales(width)
    if name in ("visit_waves", "order_waves"):
        return VisitWaves(width if name == "visit_waves" else NARROW)
    if name in NUMBERS:
        return NumberEmbedding(width, name)
    return Sines(NARROW if name.endswith("sines") else width, name)


class Clock(nn.Module):
    """All parts of a recipe, by their names; added where `joined` is False, else laid beside the event's embedding and
    projected back."""

    def __init__(self, parts: tuple[str, ...], width: int, joined: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: make_part(name, width) for name in parts})
        made: Iterable[Any] = self.parts.values()
        total = sum(int(part.out) for part in made)
        self.join = nn.Linear(width + total, width) if joined else None

    def forward(
        self, x: Float[Tensor, "rows slots width"], values: dict[str, Tensor], silent: Tensor | None
    ) -> Float[Tensor, "rows slots width"]:
        """`x` with time in it. Where `silent`, the time is not told."""
        made = [part(values) for part in self.parts.values()]
        if silent is not None:
            made = [torch.where(silent[..., None], 0.0, m) for m in made]
        if self.join is None:
            return x + torch.stack(made).sum(0) if made else x
        return torch.nn.functional.gelu(self.join(torch.cat([x, *made], -1)))
