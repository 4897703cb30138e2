"""Event slots: embed code, value and time; predict them back as one joint distribution.

p(code) x p(value | code) x p(time): the value has a normal of its own for every code, so a hidden slot is scored as a
whole. A value that is missing is never a target. What of a hidden event is known by design is the
codec's `context_channels`.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.core.model import WantedSlots
from unmask.core.prediction import Categorical, no_mean, no_probabilities, weighted_sum
from unmask.kernels.fused_linear import round_up
from unmask.modalities.events.network.clock import Clock, squash, stretch
from unmask.modalities.events.recipes import Structure
from unmask.modalities.events.records.histories import Histories, ranks
from unmask.modalities.events.records.vocabulary import CLS, FIRST

CELLS = 2**19
"""Entries of the matrix at most: with 570 codes all tell of all, with 20,000 the 64 most frequent ones tell."""
FEWEST_CODES = 64
PATIENTS = 20_000
"""Whose counts the matrix starts at."""
TEMPER = 0.3
"""Events of one set repeat each other, so naive Bayes counts them too often; see benchmarks/events_codes.py."""
PSEUDO = 2.0


def sets_of(values: dict[str, Tensor], masked: Bool[Tensor, "rows slots"]) -> Int[Tensor, "rows slots"]:
    """A number for each time stamp of each example of the batch, whose slots stand beside each other. It changes with
    the number of the visit, at the first slot of an example, behind it, and at the start of a row."""
    visit = values["visit"]
    new = torch.ones_like(masked)
    first = (values["code"] == CLS) & ~masked
    new[:, 1:] = (visit[:, 1:] != visit[:, :-1]) | first[:, 1:] | first[:, :-1]
    return (new.flatten().cumsum(0) - 1).view(visit.shape)


class Evidence(nn.Module):
    """Of every code of the vocabulary, how much each of the most frequent codes speaks for it when they share a time
    stamp."""

    def __init__(self, codes: int) -> None:
        super().__init__()
        self.telling = min(codes - FIRST, max(FEWEST_CODES, CELLS // codes))
        self.weight = nn.Parameter(torch.zeros(codes, self.telling))

    def present(
        self, values: dict[str, Tensor], hidden: Bool[Tensor, "rows slots"], wanted: Int[Tensor, " wanted"]
    ) -> Float[Tensor, "wanted telling"]:
        """Which of the telling codes stand visibly in the set of each slot of `wanted`."""
        group = sets_of(values, hidden).flatten()
        with_wanted = torch.zeros_like(group)
        with_wanted[group[wanted]] = 1
        # Sets with a wanted slot get the first rows; how many there are is known on the device alone, so there is one
        # for each wanted slot, and a last one for all that does not tell: nothing here waits for the device.
        place = with_wanted.cumsum(0) - 1
        code = values["code"].flatten() - FIRST
        predictive = (~hidden.flatten()) & (code >= 0) & (code < self.telling) & (with_wanted[group] > 0)
        out = torch.zeros(len(wanted) + 1, self.telling, device=group.device)
        at = torch.where(predictive, place[group], len(wanted))
        out[at, torch.where(predictive, code, 0)] = 1.0
        return out[place[group[wanted]]]

    @torch.no_grad()
    def start(self, histories: Histories, train: np.ndarray) -> np.ndarray:
        """Begin at the counts of the training patients; returns each code's log share, what the head's bias
        begins at."""
        pairs, count, there, total = counted(histories, train, self.telling)
        share = (total + 0.5) / (total.sum() + 0.5 * len(total))
        chance = (pairs + PSEUDO * there) / (count[:, None] + PSEUDO)
        log_ratio = np.log(np.maximum(chance, 1e-4) / np.maximum(there, 1e-4))
        log_ratio[:FIRST] = 0
        self.weight.copy_(torch.from_numpy(TEMPER * log_ratio).float())
        return np.log(share)


def counted(
    histories: Histories, train: np.ndarray, telling: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Over the sets of at most `PATIENTS` training patients: (codes, telling) how often a code has a telling one beside
    it; (codes,) in how many sets a code stands; (telling,) share of the sets with each; (codes,) how often each code is
    seen."""
    from scipy.sparse import csr_matrix

    size = len(histories.vocabulary)
    pairs, count, total = np.zeros((size, telling)), np.zeros(size), np.zeros(size)
    there, sets = np.zeros(telling), 0
    chosen = np.random.default_rng(0).permutation(train)[:PATIENTS]
    for block in np.array_split(chosen, max(1, len(chosen) // 256)):
        code, number, start = [], [], 0
        for i in block.tolist():
            rows = histories.rows(i)
            code.append(histories.code[rows])
            number.append(ranks(histories.events.time[rows]) + start)
            start = int(number[-1][-1]) if len(rows) else start
        codes, group = np.concatenate(code), np.concatenate(number) - 1
        seen = csr_matrix((np.ones(len(codes)), (group, codes)), shape=(start, size))
        total += np.asarray(seen.sum(0)).ravel()
        once, twice = ((seen > times).astype(float) for times in (0, 1))
        log_ratio = once[:, FIRST : FIRST + telling]
        found = np.asarray((once.T @ log_ratio).todense())
        # A code beside itself: that it stands there twice.
        itself = np.arange(telling)
        found[FIRST + itself, itself] = np.asarray(twice.sum(0)).ravel()[FIRST + itself]
        pairs += found
        count += np.asarray(once.sum(0)).ravel()
        there += np.asarray(log_ratio.sum(0)).ravel()
        sets += start
    return pairs, count, there / max(sets, 1), total


PIECES = 12
CHANNELS = ("code", "value", "has_value", "hours")
ALWAYS = ("timed", "age_at_start", "start_year", "prediction_hours")
"""Known of hidden events too: that they have a time (static facts are never hidden), and the patient's age at the
origin, its date and the time of asking, the same for the whole history. The age at an event is made of these and its
hours, and hidden with them."""


class EventPrediction:
    """Joint distribution of hidden events. Targets are (hidden, 4): code, value, has, hours; 3 where the time is known.

    Args:
        code: over the codes.
        features: (hidden, width) what values are predicted from.
        scales: (codes, 2 width) and (codes, 2): from features to mean and log-variance of the value, for each code.
        time: (hidden, 2) mean and log-variance of the squashed hours, a normal cut at 0, or None where the time is
            known.
        valued: (codes,) whether a code comes with a value.
        weights: of code, value and time in the loss.

    Attributes:
        extra: what is trained beside the hidden events, added to the loss (see `query_fit.QueryModel`).
    """

    def __init__(
        self,
        code: Categorical,
        features: Tensor,
        scales: tuple[Tensor, Tensor],
        time: Tensor | None,
        valued: Tensor,
        weights: tuple[float, float, float],
    ) -> None:
        self.code, self.features, self.scales = code, features, scales
        self.time = None if time is None else time.float()
        self.valued, self.weights = valued, weights
        self.extra: Tensor | float = 0.0

    def __len__(self) -> int:
        return len(self.code)

    @property
    def logits(self) -> Tensor:
        return self.code.logits

    def of_code(self, code: Int[Tensor, " hidden"]) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of the value, were the slot of this code."""
        weight, bias = self.scales
        x = self.features.float()
        both = torch.einsum("nw,nkw->nk", x, F.embedding(code, weight).view(len(x), 2, x.shape[1])) + F.embedding(
            code, bias
        )
        return both[:, 0], both[:, 1].clamp(-6, 4)

    def parts(self, target: Float[Tensor, "hidden channels"]) -> list[tuple[float, Tensor]]:
        """(weight, log-probability) of code, value and time where they are trained; 0 where an event has none."""
        code, value, time = self.weights
        found = [(code, self.code.log_prob(target[:, 0].long()))]
        return [part for part in (*found, (value, self._value(target)), (time, self._time(target))) if part[0]]

    def _value(self, target: Tensor, tempered: bool = False) -> Tensor:
        return log_density(target[:, 1], *self.of_code(target[:, 0].long()), tempered) * target[:, 2]

    def _time(self, target: Tensor, tempered: bool = False) -> Tensor:
        if self.time is None:
            return torch.zeros(len(self), device=target.device)
        # The first event is the origin of time, which is known: its time is no target.
        location, log_variance = self.time[:, 0], self.time[:, 1].clamp(-8, 4)
        found = log_density(squash(target[:, 3]), location, log_variance, tempered)
        # Nothing lies before the origin: the normal is cut at 0 hours.
        inside = torch.special.log_ndtr(location * (-0.5 * log_variance).exp())
        found = found - inside * ((0.5 * log_variance.detach()).exp() if tempered else 1.0)
        return found * (target[:, 3] > 0)

    def loss(self, target: Tensor, weight: Float[Tensor, " hidden"] | None = None) -> Tensor:
        code, value, time = self.weights
        total = self.code.loss(target[:, 0].long(), weight) * code + self.extra
        if value:
            total = total - value * weighted_sum(self._value(target, tempered=True), weight)
        return total - time * weighted_sum(self._time(target, tempered=True), weight) if time else total

    def log_prob(self, value: Tensor) -> Float[Tensor, " hidden"]:
        return torch.stack([part for _, part in self.parts(value)]).sum(0)

    def mode(self) -> Float[Tensor, "hidden channels"]:
        code = self.code.mode()
        return self._joined(code, self.of_code(code)[0], None if self.time is None else self.time[:, 0])

    def mean(self) -> Tensor:
        """Raises UserError: a code has no mean (`of_code` gives the mean of a code's value)."""
        raise no_mean("events, each with a code,")

    def probabilities(self) -> Tensor:
        """Raises UserError: an event has a value and a time (`code.probabilities` are those of its code)."""
        raise no_probabilities("events, each with a value and a time,")

    def sample(
        self, *, generator: torch.Generator | None = None, temperature: float = 1.0, top_k: int | None = None
    ) -> Tensor:
        if temperature <= 0:
            return self.mode()

        def drawn(location: Tensor, log_variance: Tensor) -> Tensor:
            noise = torch.randn(len(self), generator=generator, device=location.device)
            return location + noise * (0.5 * log_variance).exp() * temperature

        code = self.code.sample(generator=generator, temperature=temperature, top_k=top_k)
        time = None
        if self.time is not None:
            location, spread = (
                self.time[:, 0].double(),
                (0.5 * self.time[:, 1].clamp(-8, 4)).double().exp() * temperature,
            )
            share = torch.rand(len(self), generator=generator, device=location.device, dtype=torch.float64)
            inside = torch.special.ndtr(location / spread)  # drawn from above, where the normal is cut at 0 hours
            time = (location - spread * torch.special.ndtri((inside * share).clamp_min(1e-300))).clamp_min(0).float()
        return self._joined(code, drawn(*self.of_code(code)), time)

    def _joined(self, code: Tensor, value: Tensor, time: Tensor | None) -> Tensor:
        has = self.valued[code].float() * bool(self.weights[1])
        made = [code.float(), value * has, has]
        return torch.stack(made if time is None else [*made, stretch(time)], -1)

    def confidence(self) -> Float[Tensor, " hidden"]:
        return self.code.confidence()

    def correct(self, target: Tensor) -> Tensor:
        return self.code.correct(target[:, 0].long())


def log_density(x: Tensor, location: Tensor, log_variance: Tensor, tempered: bool = False) -> Tensor:
    """Log density; `tempered`, each times its deviation, taken as given (Seitzer et al. 2022, beta 0.5). Without that
    the gradient of a nearly certain value or time, which grows with its precision, drowns the codes'."""
    found = -0.5 * ((x - location) ** 2 * (-log_variance).exp() + log_variance + math.log(2 * math.pi))
    return found * (0.5 * log_variance.detach()).exp() if tempered else found


class EventCodec(nn.Module):
    """Embeds events and predicts them back.

    Args:
        codes: how many there are.
        weights: of code, value and time in the loss; 0 leaves one out.
        deviation: of the codes' initial embeddings; without a norm behind them, they must be heard beside the clock.

    Attributes:
        channels: what of an event is hidden and predicted, in the order of the targets' columns.
        valued: (codes,) whether a code ever came with a value among the training patients.
    """

    drops_missing = False
    edges: Tensor
    valued: Tensor
    forbidden: Tensor

    def __init__(
        self, *, codes: int, width: int, weights: tuple[float, float, float], structure: Structure, deviation: float
    ) -> None:
        super().__init__()
        self.structure, self.weights, w = structure, weights, width
        self.channels = CHANNELS if structure.hides == "all" else CHANNELS[:3]
        self.context_channels = (*ALWAYS, "visit", *(name for name in CHANNELS if name not in self.channels))
        self.code = nn.Embedding(codes, w)
        self.value = nn.Linear(PIECES + 1, w)
        self.value_out = nn.Linear(w, w, bias=False)
        self.clock = Clock(structure.clock, w, structure.joined)
        self.evidence = Evidence(codes) if structure.evidence else None
        self.mask = nn.Parameter(torch.randn(w) * deviation)
        self.transform, self.norm = nn.Linear(w, w), nn.LayerNorm(w)
        self.code_head = nn.Linear(w, codes)
        self.time_head = nn.Linear(w, 2)
        self.value_head = nn.Embedding(codes, 2 * w)
        self.value_bias = nn.Embedding(codes, 2)
        nn.init.normal_(self.code.weight, std=deviation)
        for part in (self.transform, self.code_head, self.value_head, self.value_bias, self.time_head):
            # Near unit variance at first, or one outlier rules the step.
            nn.init.normal_(part.weight, std=0.02)
        self.register_buffer("valued", torch.ones(codes, dtype=torch.bool))
        self.register_buffer("edges", torch.linspace(-2.4, 2.4, PIECES + 1), persistent=False)
        self.register_buffer("forbidden", torch.arange(FIRST), persistent=False)

    def start(self, histories: Histories, train: np.ndarray) -> None:
        """With evidence: begin it, and the head's bias, at the counts of the training patients."""
        if self.evidence is not None:
            share = self.evidence.start(histories, train)
            with torch.no_grad():
                self.code_head.bias.copy_(torch.from_numpy(share).float())

    def embed(self, values: dict[str, Tensor], masked: Bool[Tensor, "rows slots"]) -> Float[Tensor, "rows slots width"]:
        x = self.code(values["code"])
        if self.structure.values:
            v, has = values["value"][..., None], values["has_value"][..., None]
            # Piecewise-linear pieces (Gorishniy et al. 2022, section 3.2) over the code's own quantiles.
            low, high = self.edges[:-1], self.edges[1:]
            pieces = torch.cat([((v - low) / (high - low)).clamp(0, 1), v], -1)
            x = x + self.value_out(F.gelu(self.value(pieces) + x)) * has
        x = torch.where(masked[..., None], self.mask, x)
        return self.clock(x, values, masked if self.structure.hides == "all" else None)

    def noise(self, values: dict[str, Tensor], flat: Int[Tensor, " n"], bits: Int[Tensor, " n"]) -> dict[str, Tensor]:
        codes = self.code.num_embeddings
        code = FIRST + (bits & 0x7FFFFFFF) % max(1, codes - FIRST)
        value = ((bits >> 31) & 0xFFFF).float() / 2**14 - 2
        hours, has_value = torch.expm1(((bits >> 48) & 0x3FFF).float() / 2**14 * 4), (bits >> 47) & 1
        drawn = {"code": code.clamp_max(codes - 1), "value": value, "has_value": has_value, "hours": hours}
        return {name: drawn[name] for name in self.channels}

    def targets(self, values: dict[str, Tensor], flat: Int[Tensor, " n"]) -> Float[Tensor, "n channels"]:
        return torch.stack([values[name].flatten()[flat].float() for name in self.channels], -1)

    def write(self, values: dict[str, Tensor], flat: Int[Tensor, " n"], new: Tensor) -> dict[str, Tensor]:
        out = {k: v.clone() for k, v in values.items()}
        for column, name in enumerate(self.channels):
            out[name].view(-1)[flat] = new[:, column].to(out[name].dtype)
        return out

    def predict(self, states: Float[Tensor, "wanted width"], wanted: WantedSlots) -> EventPrediction:
        """From the states, and, with evidence, from which codes stand visibly in the set of each slot."""
        head, n = self.code_head, len(states)
        x = self.norm(F.gelu(self.transform(round_up(states))))
        features, weight = x, head.weight
        if self.evidence is not None:
            grid = wanted.hidden.grid(wanted.batch.shape)
            present = self.evidence.present(wanted.batch.values, grid, wanted.slots)
            extra = F.pad(present, (0, 0, 0, len(x) - n)).to(x.dtype)
            features, weight = torch.cat([x, extra], 1), torch.cat([weight, self.evidence.weight], 1)
        code = Categorical(features, weight, head.bias, self.forbidden, n)
        scales = self.value_head.weight, self.value_bias.weight
        time = self.time_head(x[:n]) if self.structure.hides == "all" else None
        return EventPrediction(code, x[:n], scales, time, self.valued, self.weights)
