"""Event slots: embed code, value, time and age; predict them back as one joint distribution.

p(code) x p(value | code) x p(time): the value has a normal of its own for every code, so a hidden slot is scored as a
whole. A value that is missing is never a target, and neither is the time of a static event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.events.vocabulary import FIRST

PIECES = 12
FREQUENCIES = 8
_CHANNELS = ("code", "value", "has", "hours", "timed")


@dataclass(frozen=True, kw_only=True)
class EventCodecConfig:
    """Args: codes: numbers in the vocabulary; width: of the encoder; *_weight: of each target's loss (0 leaves it out)."""

    codes: int
    width: int = 64
    code_weight: float = 1.0
    value_weight: float = 1.0
    time_weight: float = 0.2
    deviation: float = 0.02


def squash(hours: Tensor) -> Tensor:
    """Hours since the first event on a scale where a day and a year both differ from nothing."""
    return torch.log1p(hours.clamp_min(0)) / 3


class EventPrediction:
    """Joint distribution of hidden events. Targets are (hidden, 5): code, value, has, hours, timed."""

    def __init__(self, logits: Tensor, value: Tensor, time: Tensor, weights: tuple[float, float, float]) -> None:
        self.logits, self.value, self.time, self.weights = logits.float(), value.float(), time.float(), weights
        self.log_probs = self.logits.log_softmax(-1)

    def __len__(self) -> int:
        return len(self.logits)

    def of_code(self, code: Int[Tensor, "hidden"]) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the value, were the slot of this code."""
        both = self.value.view(len(self), self.logits.shape[1], 2)[torch.arange(len(self), device=code.device), code]
        return both[:, 0], both[:, 1].clamp(-6, 4)

    def parts(self, target: Float[Tensor, "hidden 5"]) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability of code, value and time, 0 where there is none."""
        code = target[:, 0].long()
        first = self.log_probs.gather(1, code[:, None])[:, 0]
        second = _normal(target[:, 1], *self.of_code(code)) * target[:, 2]
        third = _normal(squash(target[:, 3]), self.time[:, 0], self.time[:, 1].clamp(-8, 4)) * target[:, 4]
        return first, second, third

    def loss(self, target: Tensor) -> Tensor:
        return -torch.stack([w * p.sum() for w, p in zip(self.weights, self.parts(target), strict=True) if w]).sum()

    def log_prob(self, value: Tensor) -> Float[Tensor, "hidden"]:
        return torch.stack(self.parts(value)).sum(0)

    def mode(self) -> Float[Tensor, "hidden 5"]:
        scores = self.log_probs.clone()
        scores[:, :FIRST] = -math.inf
        code = scores.argmax(-1)
        one = torch.ones(len(self), device=code.device)
        hours = torch.expm1(3 * self.time[:, 0].clamp(0, 5))
        return torch.stack([code.float(), self.of_code(code)[0], one, hours, one], -1)

    def mean(self) -> Tensor:
        return self.mode()

    def sample(
        self, *, generator: torch.Generator | None = None, temperature: float = 1.0, top_k: int | None = None
    ) -> Tensor:
        out = self.mode()
        if temperature <= 0:
            return out
        scores = self.log_probs / temperature
        scores[:, :FIRST] = -math.inf
        if top_k is not None and top_k < scores.shape[1]:
            scores = scores.masked_fill(scores < scores.topk(top_k, -1).values[:, -1:], -math.inf)
        code = torch.multinomial(scores.softmax(-1), 1, generator=generator)[:, 0]
        location, log_variance = self.of_code(code)
        noise = torch.randn(len(self), generator=generator, device=code.device)
        out[:, 0], out[:, 1] = code.float(), location + noise * (0.5 * log_variance).exp() * temperature
        return out

    def confidence(self) -> Float[Tensor, "hidden"]:
        return self.log_probs.amax(-1)

    def correct(self, target: Tensor) -> Tensor:
        return (self.log_probs.argmax(-1) == target[:, 0].long()).sum()


def _normal(x: Tensor, location: Tensor, log_variance: Tensor) -> Tensor:
    return -0.5 * ((x - location) ** 2 * (-log_variance).exp() + log_variance + math.log(2 * math.pi))


class EventCodec(nn.Module):
    """Embeds events and predicts them back."""

    edges: Tensor

    def __init__(self, config: EventCodecConfig) -> None:
        super().__init__()
        self.config = config
        w = config.width
        self.code = nn.Embedding(config.codes, w)
        self.value = nn.Linear(PIECES + 1, w)
        self.value_out = nn.Linear(w, w, bias=False)
        self.time = nn.Linear(2 * FREQUENCIES + 3, w)
        self.mask = nn.Parameter(torch.randn(w) * config.deviation)
        self.transform, self.norm = nn.Linear(w, w), nn.LayerNorm(w)
        self.code_head = nn.Linear(w, config.codes)
        self.value_head, self.time_head = nn.Linear(w, 2 * config.codes), nn.Linear(w, 2)
        for part in (self.code, self.transform, self.code_head):
            nn.init.normal_(part.weight, std=config.deviation)
        for part in (self.value_head, self.time_head):  # near unit variance at first, or one outlier rules the step
            nn.init.normal_(part.weight, std=min(config.deviation, 0.02))
        self.register_buffer("edges", torch.linspace(-2.4, 2.4, PIECES + 1), persistent=False)

    def embed(self, values: dict[str, Tensor], masked: Bool[Tensor, "rows slots"]) -> Float[Tensor, "rows slots width"]:
        code = self.code(values["code"])
        v, has = values["value"][..., None], values["has"][..., None]
        # Piecewise-linear pieces (Gorishniy et al. 2022, section 3.2) over the code's own quantiles.
        low, high = self.edges[:-1], self.edges[1:]
        pieces = torch.cat([((v - low) / (high - low)).clamp(0, 1), v], -1)
        x = code + self.value_out(F.gelu(self.value(pieces) + code)) * has
        x = x + self.time(self._clock(values))
        return torch.where(masked[..., None], self.mask, x)

    def _clock(self, values: dict[str, Tensor]) -> Tensor:
        timed = values["timed"].float()
        hours = squash(values["hours"])
        rate = math.pi * 2.0 ** torch.arange(FREQUENCIES, device=hours.device)
        angle = hours[..., None] * rate / 2
        waves = torch.cat([angle.sin(), angle.cos()], -1) * timed[..., None]
        return torch.cat([waves, torch.stack([hours * timed, timed, values["age"] / 50], -1)], -1)

    def noise(self, values: dict[str, Tensor], flat: Int[Tensor, "n"], bits: Int[Tensor, "n"]) -> dict[str, Tensor]:
        code = FIRST + (bits & 0x7FFFFFFF) % max(1, self.config.codes - FIRST)
        value = ((bits >> 31) & 0xFFFF).float() / 2**14 - 2
        out = {"code": code.clamp_max(self.config.codes - 1), "value": value, "has": ((bits >> 47) & 1)}
        hours = torch.expm1(((bits >> 48) & 0x3FFF).float() / 2**14 * 4)
        return out | {"hours": hours, "timed": torch.ones_like(flat), "age": torch.zeros_like(value)}

    def targets(self, values: dict[str, Tensor], flat: Int[Tensor, "n"]) -> Float[Tensor, "n 5"]:
        return torch.stack([values[name].flatten()[flat].float() for name in _CHANNELS], -1)

    def write(self, values: dict[str, Tensor], flat: Int[Tensor, "n"], new: Tensor) -> dict[str, Tensor]:
        out = {k: v.clone() for k, v in values.items()}
        for column, name in enumerate(_CHANNELS):
            out[name].view(-1)[flat] = new[:, column].to(out[name].dtype)
        return out

    def predict(self, states: Float[Tensor, "asked width"]) -> EventPrediction:
        c = self.config
        x = self.norm(F.gelu(self.transform(states)))
        weights = (c.code_weight, c.value_weight, c.time_weight)
        return EventPrediction(self.code_head(x), self.value_head(x), self.time_head(x), weights)
