"""Masked pretraining: the six steps, for every modality and both architectures.

1. next packed batch, 2. draw what is hidden, 3. predict it, 4. loss on hidden slots only, averaged over the hidden
slots of the whole step (never over batches), 5. backward and update, 6. report.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Corruption, Hidden
from unmask.core.model import codec_of


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """What one step did. Slots are real ones, without padding; seconds are those of the whole step, the making of its
    batches included.

    Args:
        weight: what the loss is divided by: the number of hidden slots where all count 1, else of maskable ones.
        measured: loss (summed over hidden slots, each times its weight), how many of them were predicted right, the
            gradient's norm, and
            whether the update was applied. Reading one of them waits until a GPU has done the step.
        accurate: whether the prediction says what is right.
    """

    step: int
    epoch: int
    progress: float
    hidden: int
    weight: float
    slots: int
    padding_waste: float
    seconds: float
    measured: Later
    accurate: bool

    @property
    def loss(self) -> float:
        """Nats per hidden slot; per maskable one where hidden slots have weights."""
        return self.measured.values[0] / (self.weight or 1.0)

    @property
    def accuracy(self) -> float | None:
        """Share of the hidden slots whose value was predicted; None where the prediction does not say."""
        return self.measured.values[1] / max(self.hidden, 1) if self.accurate else None

    @property
    def gradient_norm(self) -> float:
        """Before clipping."""
        return self.measured.values[2]

    @property
    def skipped(self) -> bool:
        """The gradient was not finite, and nothing was updated."""
        return not self.measured.values[3]


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """Where and how a step runs: everything of it that is not masked learning.

    Args:
        update: applies the gradients at this progress, returns (gradient norm, applied?), on the device.
        processes: how many processes share a step.
    """

    update: Callable[[float], tuple[Tensor | float, Tensor | bool]]
    total: Callable[[Tensor], Tensor] = staticmethod(lambda x: x)
    processes: int = 1
    device: torch.device = torch.device("cpu")
    autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    no_sync: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


class MaskedLoss(nn.Module):
    """A masked model and its loss as one module: an engine for several processes wraps this, as it has to see the
    tensor that backward starts from."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: PackedBatch, hidden: Hidden) -> tuple[Tensor, Callable[[], Any]]:
        """(loss summed over hidden slots by weight; what gives the number of right predictions, or None)."""
        own = getattr(self.model, "step_loss", None)
        if own is not None:  # a model that learns from more than the values of hidden slots
            return own(batch, hidden), lambda: None
        prediction = self.model(batch, hidden)
        target = codec_of(self.model).targets(batch.values, hidden.flat)
        loss = prediction.loss(target) if hidden.weight is None else prediction.loss(target, hidden.weight)
        return loss, lambda: prediction.correct(target)


def with_loss(model: nn.Module) -> nn.Module:
    """The model with its loss, where it is not that already, be it wrapped by an engine."""
    return model if isinstance(getattr(model, "module", model), MaskedLoss) else MaskedLoss(model)


def pretrain(
    model: nn.Module,
    steps: Iterator[tuple[int, Collection[PackedBatch]]],
    corruption: Corruption,
    context: StepContext,
    *,
    seed: int = 0,
    first_step: int = 0,
    progress: Callable[[int], float],
) -> Iterator[StepReport]:
    """Train `model` until `progress(step)` reaches 1, yielding a report after every step.

    Args:
        model: a masked model, or a `MaskedLoss` that an engine may have wrapped.
        steps: (epoch, this process's micro-batches) per optimiser step; micro-batches may be made one by one, as they
            are asked for.
        progress: fraction of the run done before a step; learning-rate and ratio schedules are functions of it.
    """
    model.train()
    losses = with_loss(model)
    losses_of = getattr(losses, "module", losses).model
    step = first_step
    while True:
        start = time.perf_counter()
        following = next(steps, None)  # 1. next packed batch(es)
        done = progress(step)
        if following is None or done >= 1.0:
            return
        epoch, batches = following
        loss_sum = torch.zeros((), device=context.device)
        correct: Tensor | None = torch.zeros((), dtype=torch.float64, device=context.device)
        counts, hidden, slots, divisor, cells, number = torch.zeros(3, dtype=torch.float64), 0, 0, 1.0, 0, 0
        weight = 0.0
        drawn: list[Hidden] = []
        if getattr(losses_of, "over_all_slots", False) and len(batches) * context.processes > 1:
            batches = list(batches)
            drawn = [corruption.draw(b, seed=seed, epoch=epoch, progress=done) for b in batches]
            drawn = _with_per_slot(batches, drawn, context)
        for batch in batches:
            masked = (
                drawn[number] if drawn else corruption.draw(batch, seed=seed, epoch=epoch, progress=done)
            )  # 2. hide
            number += 1  # noqa: SIM113 - enumerate would hold on to the batch while the next one is made
            counts += torch.tensor([len(masked), batch.real_slots, masked.total_weight], dtype=torch.float64)
            if number == 1:
                # What the first micro-batch says of the step: exact where it is the only one, corrected below
                # elsewhere.
                hidden, slots, weight = _counted(context, counts)
                divisor = weight * len(batches) or 1.0
            cells += batch.segment.numel() * context.processes
            batch, masked = batch.to(context.device), masked.to(context.device)
            with contextlib.nullcontext() if number == len(batches) else context.no_sync():
                loss, right = _backward(losses, batch, masked, context, divisor)  # 3. to 5.
            del (
                batch,
                masked,
            )  # a batch is not kept while the next one is made, nor while the caller looks at the report
            loss_sum += loss
            correct = None if right is None or correct is None else correct + right
        hidden, slots, weight = _counted(context, counts) if len(batches) > 1 else (hidden, slots, weight)
        if divisor != (weight or 1.0):
            _scale_gradients(model, divisor / (weight or 1.0))
        norm, applied = context.update(done)  # 5. ... and update
        loss_sum = context.total(loss_sum)
        accurate = correct is not None
        correct = torch.zeros((), device=context.device) if correct is None else context.total(correct)
        step += 1
        yield StepReport(  # 6. report
            step=step,
            epoch=epoch,
            progress=done,
            hidden=hidden,
            weight=weight,
            slots=slots,
            padding_waste=max(0.0, 1.0 - slots / max(cells, 1)),
            seconds=time.perf_counter() - start,
            measured=Later([loss_sum, correct, norm, applied]),
            accurate=accurate,
        )


def _backward(
    losses: nn.Module, batch: PackedBatch, masked: Hidden, context: StepContext, divisor: float
) -> tuple[Tensor, Any]:
    """Gradients of one micro-batch; (its loss, summed over hidden slots, how many of them are predicted right).

    A function of its own, so that predictions and targets are gone when it returns.
    """
    with context.autocast():
        loss, right = losses(batch, masked)  # 3. predict, 4. loss, summed over hidden slots ...
    # ... and divided by all hidden slots of the step, or by the maskable ones (`Hidden.total_weight`). Data-parallel
    # engines average gradients over processes, hence the factor.
    (loss * (context.processes / divisor)).backward()  # 5. backward
    return loss.detach(), right()


def _with_per_slot(batches: Collection[PackedBatch], drawn: list[Hidden], context: StepContext) -> list[Hidden]:
    """`drawn` with what losses over hidden slots are divided by, per real slot of the whole step: a loss over all slots
    has another divisor, which no micro-batch knows."""
    counts = [[len(g), b.real_slots, g.total_weight] for b, g in zip(batches, drawn, strict=True)]
    _, slots, weight = _counted(context, torch.tensor(counts, dtype=torch.float64).sum(0))
    return [replace(masked, per_slot=weight / max(slots, 1)) for masked in drawn]


def _counted(context: StepContext, counts: Tensor) -> tuple[int, int, float]:
    """(hidden slots, real slots, what the loss is divided by) of all processes."""
    if context.processes > 1:
        counts = context.total(counts.to(context.device)).cpu()
    hidden, slots, weight = counts.tolist()
    return round(hidden), round(slots), weight


def _scale_gradients(model: nn.Module, factor: float) -> None:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, factor)


def validate(
    model: nn.Module,
    batches: Iterable[PackedBatch],
    corruption: Corruption,
    *,
    seed: int = 0,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    device: torch.device | str = "cpu",
    without_gradients: Callable[[], contextlib.AbstractContextManager[Any]] = torch.inference_mode,
) -> dict[str, float]:
    """Loss (per hidden slot) and accuracy, where the prediction has one, with masks that are the same at every call.
    Every hidden slot counts 1.
    """
    losses = with_loss(model)
    was_training = model.training
    model.eval()
    total, hidden = 0.0, 0
    right: float | None = 0.0
    with without_gradients():
        for batch in batches:
            masked = replace(corruption.draw(batch, seed=seed, epoch=0), weight=None, maskable=None).to(device)
            loss, correct = _evaluate_batch(losses, batch.to(device), masked, autocast)
            total += loss
            right = None if correct is None or right is None else right + correct
            hidden += len(masked)
            del batch, masked  # gone before the next one is made
    model.train(was_training)
    accuracy = {} if right is None else {"accuracy": right / max(hidden, 1)}
    return {"loss": total / max(hidden, 1), **accuracy, "hidden_slots": float(hidden)}


def _evaluate_batch(
    losses: nn.Module,
    batch: PackedBatch,
    masked: Hidden,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]],
) -> tuple[float, float | None]:
    """(loss summed over hidden slots, how many of them are predicted right) of a batch, of which nothing is kept."""
    with autocast():
        loss, right = losses(batch, masked)
        correct = right()
    return float(loss), None if correct is None else float(correct)


class Later:
    """Numbers on their way to the host. Reading them waits for the work that they came of, not for what was begun
    since.

    Args:
        numbers: plain ones, or 0-d tensors on the host or on one device.
    """

    def __init__(self, numbers: Sequence[Tensor | float]) -> None:
        tensors = [n.detach() if isinstance(n, Tensor) else torch.tensor(n, dtype=torch.float64) for n in numbers]
        device = next((t.device for t in tensors if t.device.type != "cpu"), torch.device("cpu"))
        together = torch.stack([t.to(device, torch.float64, non_blocking=True) for t in tensors])
        self._copy = together.to("cpu", non_blocking=True)
        self._event = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record()

    @functools.cached_property
    def values(self) -> tuple[float, ...]:
        """The numbers, as they were when this was made."""
        if self._event is not None:
            self._event.synchronize()
        return tuple(self._copy.tolist())
