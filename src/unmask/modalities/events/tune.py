"""Fine-tuning of the encoder itself for an outcome: a copy of the pretrained one, with a linear output on its states.

The output is fitted first, on the states as they are, and then trained on with the encoder (Kumar et al. 2022: an output
that starts at random spoils the states it learns from). In every epoch a share of each history's events is left out, as
in pretraining: few labels make an encoder learn histories by heart otherwise. Training stops on patients of its own,
taken from the training patients.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from unmask.core.batch import Example, PackedBatch
from unmask.core.embed import pool_states
from unmask.core.inference import inference_mode
from unmask.core.model import MaskedModel
from unmask.modalities.events.histories import Histories
from unmask.modalities.events.meds import Labels
from unmask.modalities.events.outcome import folds
from unmask.modalities.events.recipes import TuneSettings
from unmask.modalities.events.targets import Target
from unmask.training.optimiser import AdamW, NanGuard, build_optimiser, step
from unmask.training.schedule import rate
from unmask.training.settings import TrainSettings

OUTPUT_STEPS = 500
"""Most that the output is fitted for by itself: products of (points, width) alone."""
OUTPUT_POINTS = WATCHED = 20_000
"""Points that the output is fitted on by itself, and points that are watched, at most: of more, a random part, so that
memory and the time of a look do not grow with the number of labels."""
LOOK = 20
"""Steps between two looks at the watched patients, where an epoch has fewer."""
Ask = Callable[[PackedBatch, int], Tensor]


def mean_and_maximum(masked: MaskedModel, batch: PackedBatch, count: int) -> Float[Tensor, "count double"]:
    """Mean, then maximum, of the encoder's states of a batch's `count` examples, from one pass; fp32."""
    states = masked.states(batch)
    return torch.cat([pool_states(states, batch, count, kind, True) for kind in ("mean", "max")], 1)


class Tuned(nn.Module):
    """Encoder -> mean and maximum of the states, standardised -> outputs of a target.

    Args:
        masked: whose codec and encoder are copied.
        outputs: numbers a point gets, see `targets`.
        dropout: on the pooled states, while training.
    """

    centre: Tensor
    spread: Tensor

    def __init__(self, masked: MaskedModel, outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.masked = MaskedModel(copy.deepcopy(masked.codec), copy.deepcopy(masked.encoder))
        width = 2 * masked.encoder.config.width
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("spread", torch.ones(width))
        self.dropout, self.out = nn.Dropout(dropout), nn.Linear(width, outputs)
        nn.init.zeros_(self.out.weight)

    def pooled(self, batch: PackedBatch, count: int) -> Float[Tensor, "count double"]:
        return mean_and_maximum(self.masked, batch, count)

    def logits(self, pooled: Float[Tensor, "count double"]) -> Float[Tensor, "count outputs"]:
        return self.out(self.dropout((pooled - self.centre) / self.spread))

    def forward(self, batch: PackedBatch, count: int) -> Float[Tensor, "count outputs"]:
        """Logits of a batch's `count` examples."""
        return self.logits(self.pooled(batch, count))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuner:
    """Trains `Tuned`s on the points of a task, and asks them.

    Args:
        slots: longest history the model takes.
        context: makes the compute-precision context.
    """

    histories: Histories
    points: Labels
    target: Target
    slots: int
    settings: TuneSettings
    seed: int
    device: torch.device
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def fit(self, masked: MaskedModel, numbers: np.ndarray, y: np.ndarray) -> Tuned:
        """Fine-tune on the points `numbers`, their targets `y` as `target.encode` gives them."""
        s, generator = self.settings, np.random.default_rng([self.seed, 71])
        torch.manual_seed(self.seed)
        net = Tuned(masked, self.target.outputs, s.dropout).to(self.device)
        fold = folds(self.target.strata(y), self.points.subject[numbers], generator)
        learnt, watched = np.flatnonzero(fold != 0), np.flatnonzero(fold == 0)
        if not len(learnt) or not len(watched):
            learnt = watched = np.arange(len(numbers))
        watched = _some(watched, WATCHED, generator)
        best = self._fit_output(net, numbers, y, _some(learnt, OUTPUT_POINTS, generator), watched)
        kept, waited, done = copy.deepcopy(net.state_dict()), 0, 0
        per_epoch = -(-len(learnt) // s.batch)
        steps = max(s.epochs * per_epoch, s.least_steps)
        plan = TrainSettings(steps=steps, learning_rate=s.learning_rate, weight_decay=s.weight_decay, warmup=0.1)
        optimiser, guard = build_optimiser(net, plan), NanGuard(plan.nan_limit)
        look = max(per_epoch, LOOK)
        while done < steps and waited < s.patience:
            net.train()
            for chosen in np.array_split(generator.permutation(learnt), per_epoch):
                for logits, asked in self._ask(net, numbers[chosen], generator):
                    (self._loss(logits, y[chosen[asked]]) / len(chosen)).backward()
                done += 1
                guard.check(step(optimiser, net.parameters(), clip=1.0, rate=rate(min(done / steps, 1.0), plan)))
                optimiser.zero_grad(set_to_none=True)
                if done % look == 0:
                    held = self._watch(net, numbers[watched], y[watched])
                    best, waited, kept = (
                        (held, 0, copy.deepcopy(net.state_dict())) if held < best else (best, waited + 1, kept)
                    )
                    net.train()
        net.load_state_dict(kept)
        return net.eval()

    def _fit_output(
        self, net: Tuned, numbers: np.ndarray, y: np.ndarray, learnt: np.ndarray, watched: np.ndarray
    ) -> float:
        """Fit the output on the states as they are; returns the loss of the watched points."""
        width = net.out.in_features
        learnt_states, watched_states = (self._pooled(net, numbers[part]) for part in (learnt, watched))
        net.centre.copy_(learnt_states.mean(0))
        net.spread.copy_(learnt_states.std(0, correction=0).clamp_min(1e-3))
        z, held_z = (((s.to(self.device) - net.centre) / net.spread).cpu() for s in (learnt_states, watched_states))
        with torch.no_grad():
            net.out.bias.copy_(torch.from_numpy(self.target.start(y[learnt])).float())
        out = nn.Linear(width, self.target.outputs)
        out.load_state_dict({k: v.cpu() for k, v in net.out.state_dict().items()})
        optimiser = AdamW(out.parameters(), lr=5e-3, weight_decay=0.1)
        best, kept, waited = np.inf, copy.deepcopy(out.state_dict()), 0
        for _ in range(OUTPUT_STEPS):
            optimiser.zero_grad()
            (self._loss(out(z), y[learnt]) / len(learnt)).backward()
            optimiser.step()
            with torch.no_grad():
                held = float(self._loss(out(held_z), y[watched])) / len(watched)
            better = held < best
            best, waited = (held, 0) if better else (best, waited + 1)
            kept = copy.deepcopy(out.state_dict()) if better else kept
            if waited > 20:
                break
        net.out.load_state_dict(kept)
        return best

    def _pooled(self, net: Tuned, numbers: np.ndarray) -> Float[Tensor, "points double"]:
        """Pooled states of some points."""
        out = torch.zeros(len(numbers), net.out.in_features)
        with inference_mode(net):
            for found, asked in self._ask(net, numbers, ask=net.pooled):
                out[torch.from_numpy(asked)] = found
        return out

    def _watch(self, net: Tuned, numbers: np.ndarray, y: np.ndarray) -> float:
        """Mean loss of points that nothing is learnt from."""
        with inference_mode(net):
            return sum(float(self._loss(logits, y[asked])) for logits, asked in self._ask(net, numbers)) / len(numbers)

    def predict(self, net: Tuned, numbers: np.ndarray) -> np.ndarray:
        """(points, outputs) probabilities."""
        out = np.zeros((len(numbers), self.target.outputs))
        with inference_mode(net.to(self.device)):
            for logits, asked in self._ask(net, numbers):
                out[asked] = self.target.probabilities(logits[None]).double().numpy()
        return out

    def _loss(self, logits: Tensor, y: np.ndarray) -> Tensor:
        return self.target.loss(logits[None], torch.from_numpy(y)).sum()

    def _ask(
        self, net: Tuned, numbers: np.ndarray, generator: np.random.Generator | None = None, ask: Ask | None = None
    ) -> Iterator[tuple[Tensor, np.ndarray]]:
        """Logits (or what `ask` gives), and which of `numbers` they are of.

        Args:
            generator: leaves some events of each history out.
        """
        thin = None if generator is None else lambda example: thinned(example, self.settings.drop, generator)
        for batch, asked in self.histories.batches(self.points, numbers, slots=self.slots, change=thin):
            with self.context():
                found = (ask or net)(batch.to(self.device), len(asked))
            yield found.float().cpu(), asked


def _some(numbers: np.ndarray, most: int, generator: np.random.Generator) -> np.ndarray:
    """All of them, or of more than `most` a random part in the same order."""
    return numbers if len(numbers) <= most else np.sort(generator.choice(numbers, most, replace=False))


def thinned(example: Example, share: float, generator: np.random.Generator) -> Example:
    """The example without a random share of its events; special slots stay, and places in the order are kept."""
    place = np.arange(len(example)) if example.position is None else np.asarray(example.position)
    kept = np.asarray(example.special) | (generator.random(len(example)) >= share)
    return dataclasses.replace(
        example, values={name: np.asarray(v)[kept] for name, v in example.values.items()},
        special=np.asarray(example.special)[kept], unit=np.asarray(example.unit)[kept],
        position=place[kept],
    )  # fmt: skip
