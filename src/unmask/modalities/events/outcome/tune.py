"""Fine-tuning of the encoder itself for an outcome: a copy of the pretrained one, with a linear output on its states.

The output is fitted first, on the states as they are, and then trained on with the encoder (Kumar et al. 2022: an
output that starts at random spoils the states it learns from). In every epoch a share of each history's events is left
out, as in pretraining: few labels make an encoder learn histories by heart otherwise. Training stops on patients of its
own, taken from the training patients.
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
from unmask.kernels.on_host import to_device
from unmask.modalities.events.network.codec import EventCodec
from unmask.modalities.events.outcome.outcome import folds
from unmask.modalities.events.outcome.targets import Target, TimeToEvent
from unmask.modalities.events.recipes import TuneSettings
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import Labels
from unmask.training.budget import MemoryPlan, fit_here, measure_loss
from unmask.training.finetune import EpochOrder, Evaluation, Finetunable, constant_rate, finetune
from unmask.training.finetune_checkpoints import Checkpointer
from unmask.training.launcher import process_count, rank_range
from unmask.training.optimiser import AdamW, build_optimiser
from unmask.training.settings import TrainSettings

OUTPUT_STEPS, OUTPUT_PATIENCE = 500, 21
"""Most steps that the output is fitted for by itself (products of (points, width) alone), and how many without
improvement."""
OUTPUT_POINTS = WATCHED = 20_000
"""Points that the output is fitted on by itself, and points that are watched, at most: of more, a random part, so that
memory and the time of a look do not grow with the number of labels."""
MEASURED = 2_000
"""Points among which the longest histories are looked for, to see what memory they take; about."""
LEAST_STEPS_BETWEEN = 20
"""Steps between two looks at the watched patients, where an epoch has fewer."""
Ask = Callable[[PackedBatch, int], Tensor]


def mean_and_maximum(masked: MaskedModel[EventCodec], batch: PackedBatch, count: int) -> Float[Tensor, "count double"]:
    """Mean, then maximum, of the encoder's states of a batch's `count` examples, from one pass; fp32."""
    states = masked.states(batch)
    return torch.cat([pool_states(states, batch, count, kind, True) for kind in ("mean", "max")], 1)


class Tuned(nn.Module):
    """A copy of a model's codec and encoder -> mean and maximum of the states, standardised, with dropout while
    training -> outputs of a target."""

    centre: Tensor
    spread: Tensor

    def __init__(self, masked: MaskedModel[EventCodec], outputs: int, dropout: float = 0.0) -> None:
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
    """Trains `Tuned`s on the points of a task, in a compute-precision context, and asks them; `slots`: longest history
    the model takes."""

    histories: Histories
    points: Labels
    target: Target
    slots: int
    settings: TuneSettings
    seed: int
    device: torch.device
    context: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def fit(
        self,
        masked: MaskedModel[EventCodec],
        numbers: np.ndarray,
        y: np.ndarray,
        checkpointer: Checkpointer | None = None,
    ) -> Tuned:
        """Fine-tune on the points `numbers`, their encoded targets `y`. Checkpoints are of the encoder; a resumed run
        fits the output anew before the first one. A signal that ends the training raises `StoppedBySignal`."""
        settings, generator = self.settings, np.random.default_rng([self.seed, 71])
        torch.manual_seed(self.seed)
        net = Tuned(masked, self.target.outputs, settings.dropout).to(self.device)
        fold = folds(self.target.strata(y), self.points.subject[numbers], generator)
        learnt, watched = np.flatnonzero(fold != 0), np.flatnonzero(fold == 0)
        if not len(learnt) or not len(watched):
            learnt = watched = np.arange(len(numbers))
        watched = _some(watched, WATCHED, generator)
        some, first = _some(learnt, OUTPUT_POINTS, generator), None
        if checkpointer is None or checkpointer.found is None:
            first = Evaluation.of(-self._fit_output(net, numbers, y, some, watched))
        work = EncoderFinetuning(self, net, numbers, y, learnt, watched, generator)
        work.forecast()
        finetune(work, build_optimiser(net, work.schedule), work.schedule, checkpointer=checkpointer, first=first)
        if isinstance(self.target, TimeToEvent):
            logits = self._logits(net, numbers)[None]
            net.out.bias.data += self.target.intercepts(logits, torch.from_numpy(y))[0, 0].to(self.device)
        return net

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
        work = OutputFinetuning(out, z, y[learnt], held_z, y[watched], self.loss)
        schedule = constant_rate(steps=OUTPUT_STEPS, validate_every=1, patience=OUTPUT_PATIENCE)
        found = finetune(work, AdamW(out.parameters(), lr=5e-3, weight_decay=0.1), schedule)
        net.out.load_state_dict(out.state_dict())
        return found.metrics["loss"]

    def _pooled(self, net: Tuned, numbers: np.ndarray) -> Float[Tensor, "points double"]:
        """Pooled states of some points."""
        out = torch.zeros(len(numbers), net.out.in_features)
        with inference_mode(net):
            for found, numbers_here in self.ask(net, numbers, ask=net.pooled):
                out[torch.from_numpy(numbers_here)] = found.cpu()
        return out

    def watch(self, net: Tuned, numbers: np.ndarray, y: np.ndarray) -> float:
        """Mean loss of points that nothing is learnt from."""
        with inference_mode(net):
            found = ((logits.cpu(), rows) for logits, rows in self.ask(net, numbers))
            return sum(float(self.loss(logits, y[rows])) for logits, rows in found) / len(numbers)

    def predict(self, net: Tuned, numbers: np.ndarray) -> np.ndarray:
        """(points, outputs) probabilities."""
        return self.target.probabilities(self._logits(net, numbers)[None]).double().numpy()

    def _logits(self, net: Tuned, numbers: np.ndarray) -> Float[Tensor, "points outputs"]:
        out = torch.zeros(len(numbers), self.target.outputs)
        with inference_mode(net.to(self.device)):
            for logits, rows in self.ask(net, numbers):
                out[torch.from_numpy(rows)] = logits.cpu()
        return out

    def loss(self, logits: Tensor, y: np.ndarray) -> Tensor:
        """Summed over points, whose targets are `y`."""
        return self.target.loss(logits[None], to_device(torch.from_numpy(y), logits.device)).sum()

    def ask(
        self, net: Tuned, numbers: np.ndarray, generator: np.random.Generator | None = None, ask: Ask | None = None
    ) -> Iterator[tuple[Tensor, np.ndarray]]:
        """Logits (or what `ask` gives) on the device, and which of `numbers` they are of; `generator` leaves some
        events of each history out."""
        thin = None if generator is None else lambda example: thinned(example, self.settings.drop, generator)
        for batch, rows in self.histories.batches(self.points, numbers, slots=self.slots, change=thin):
            with self.context():
                found = (ask or net)(batch.to(self.device), len(rows))
            yield found.float(), rows


class OutputFinetuning(Finetunable):
    """The output alone, on pooled states that stay as they are: every step takes all points, in every process.
    `held_z`, `held_y`: standardised states and targets of the watched points; the loss is summed over points."""

    divided = False

    def __init__(
        self,
        out: nn.Linear,
        z: Tensor,
        y: np.ndarray,
        held_z: Tensor,
        held_y: np.ndarray,
        loss: Callable[[Tensor, np.ndarray], Tensor],
    ) -> None:
        super().__init__(out)
        self.z, self.y, self.held_z, self.held_y, self.loss = z, y, held_z, held_y, loss

    def batches(self, epoch: int) -> list[np.ndarray]:
        return [np.arange(len(self.z))]

    def backward(self, items: np.ndarray, *, step: int, epoch: int) -> Tensor:
        loss = self.loss(self.module(self.z), self.y) / len(self.z)
        loss.backward()
        return loss.detach()

    def evaluate(self) -> Evaluation:
        with torch.no_grad():
            loss = float(self.loss(self.module(self.held_z), self.held_y)) / len(self.held_z)
        return Evaluation.of(-loss, {"loss": loss})


class EncoderFinetuning(Finetunable):
    """The encoder with its output, on histories of which a share of the events is left out. It learns from the points
    `learnt` of `numbers`, whose targets are `y`, and looks at `watched`; the gradients of `most` points are worked out
    together. `schedule`: whole epochs, until the watched points have not improved for some looks."""

    evaluate_last = False

    def __init__(
        self,
        tuner: Tuner,
        net: Tuned,
        numbers: np.ndarray,
        y: np.ndarray,
        learnt: np.ndarray,
        watched: np.ndarray,
        generator: np.random.Generator,
    ) -> None:
        super().__init__(net)
        self.tuner, self.net, self.numbers, self.y = tuner, net, numbers, y
        self.learnt, self.watched, self.generator = learnt, watched, generator
        self.order = EpochOrder(generator)
        settings = tuner.settings
        self.most = -(-settings.batch // process_count())
        self.steps = max(settings.epochs * self.per_epoch, settings.least_steps)
        self.schedule = TrainSettings(
            steps=-(-self.steps // self.per_epoch) * self.per_epoch,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            warmup=0.1,
            validate_every=max(self.per_epoch, LEAST_STEPS_BETWEEN),
            patience=settings.patience,
        )

    @property
    def per_epoch(self) -> int:
        """Steps per epoch."""
        return -(-len(self.learnt) // self.tuner.settings.batch)

    def place(self, step: int, steps: int) -> float:
        return step / self.steps

    def batches(self, epoch: int) -> list[np.ndarray]:
        return np.array_split(self.order.permutation(self.learnt, epoch), self.per_epoch)

    def saved(self) -> dict[str, Any]:
        return {"most": self.most, "order": self.order.saved()}

    def restore(self, saved: dict[str, Any]) -> None:
        self.most = int(saved["most"])
        self.order.restore(saved["order"])

    def backward(self, items: np.ndarray, *, step: int, epoch: int) -> Tensor:
        total = torch.zeros((), device=self.tuner.device)
        own = rank_range(len(items))
        self._leave_out_of(items[: own.start])
        for start in range(own.start, own.stop, self.most):
            part = items[start : min(start + self.most, own.stop)]
            for logits, rows in self.tuner.ask(self.net, self.numbers[part], self.generator):
                loss = self.tuner.loss(logits, self.y[part[rows]]) / len(items)
                loss.backward()
                total += loss.detach()
        self._leave_out_of(items[own.stop :])
        return total

    def _leave_out_of(self, items: np.ndarray) -> None:
        """Draw which events are left out of histories that another process learns from, so that all draw alike."""
        for _ in self.tuner.ask(self.net, self.numbers[items], self.generator, lambda *_: torch.zeros(())):
            pass

    def evaluate(self) -> Evaluation:
        held = self.tuner.watch(self.net, self.numbers[self.watched], self.y[self.watched])
        return Evaluation.of(-held, {"loss": held})

    def forecast(self) -> MemoryPlan:
        """What the run will need; no more points than fit are worked on together."""
        tuner, device = self.tuner, self.tuner.device
        some = self.numbers[self.learnt[:: max(1, len(self.learnt) // MEASURED)]]
        pairs = zip(tuner.points.subject[some].tolist(), tuner.points.time[some].tolist(), strict=True)
        length = [-tuner.histories.length(subject, time, slots=tuner.slots) for subject, time in pairs]
        longest = some[np.argsort(length, kind="stable")[: self.most]]

        def loss(rows: int) -> Tensor:
            rows_drawn = np.resize(longest, rows)
            return torch.stack([found.sum() for found, _ in tuner.ask(self.net, rows_drawn)]).sum()

        need = measure_loss(self.net, loss, device=device)
        fitted = fit_here(need, rows=self.most, device=device, unit="points")
        self.most = fitted.rows
        return fitted


def _some(numbers: np.ndarray, most: int, generator: np.random.Generator) -> np.ndarray:
    """All of them, or of more than `most` a random part in the same order."""
    return numbers if len(numbers) <= most else np.sort(generator.choice(numbers, most, replace=False))


def thinned(example: Example, share: float, generator: np.random.Generator) -> Example:
    """The example without a random share of its events; special slots stay, and places in the order are kept."""
    place = np.arange(len(example)) if example.position is None else np.asarray(example.position)
    kept = np.asarray(example.special) | (generator.random(len(example)) >= share)
    return dataclasses.replace(
        example,
        values={name: np.asarray(v)[kept] for name, v in example.values.items()},
        special=np.asarray(example.special)[kept],
        unit=np.asarray(example.unit)[kept],
        position=place[kept],
    )
