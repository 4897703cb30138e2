"""Fine-tuning, the same for every kind of data: steps, looks at held-out data, early stopping, the best state kept,
checkpoints.

What is fine-tuned brings its data and its loss as a `Finetunable`; how long and how fast `TrainSettings` say. Several
members may be trained side by side in one module, each with an early stop and a best state of its own.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unmask.core.pretrain import Later
from unmask.memory import keep_freed_memory, peak_memory
from unmask.training.finetune_checkpoints import Checkpointer, Progress, StoppedBySignal
from unmask.training.optimiser import NanGuard, step
from unmask.training.processes import Processes, check_same_everywhere, others_alive, own_random_numbers
from unmask.training.schedule import RunClock, rate
from unmask.training.settings import TrainSettings
from unmask.training.tracking import Tracker

UNBOUNDED = 10**9
"""Steps of a run that ends by the clock."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a look at the held-out data found.

    Attributes:
        scores: (members,) of the present state; more is better, and what is not a number is the worst.
        metrics: by name, for the curve and the report.
    """

    scores: np.ndarray
    metrics: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, score: float, metrics: dict[str, float] | None = None) -> Evaluation:
        """The look at a module that is one member."""
        return cls(scores=np.array([score]), metrics=metrics or {})


class Finetunable(ABC):
    """What a kind of data brings to fine-tuning; a subclass of its own says how.

    Args:
        module: what is trained, and whose best state it ends in.

    Attributes:
        keep_best: end in the best state; else in the last one.
        evaluations_count: whether the time of looks counts towards the minutes that end a run.
        divided: each process of a launcher takes its share of a step (`launcher.rank_range`); else each does all of it.
    """

    keep_best: bool = True
    evaluations_count: bool = True
    divided: bool = True

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @abstractmethod
    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """The items of each step of an epoch, of as many steps in every epoch; asked for once per epoch."""

    @property
    def per_epoch(self) -> int:
        """Steps per epoch; a kind whose batches are drawn as they are asked for says it without drawing."""
        return len(self.batches(0))

    @abstractmethod
    def backward(self, items: np.ndarray, *, step: int, epoch: int) -> Tensor:
        """Add up the gradients of a step's loss, in parts where memory asks for it; the loss, detached: of this
        process's share of the step, which those of the others add up with to the whole.

        Args:
            step: its number, from 1; epoch: its epoch, from 0.
        """

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """How good the module is on held-out data, as it is now."""

    def place(self, step: int, steps: int) -> float:
        """The place of a step (from 1) on the schedule of the learning rate, from 0 to 1."""
        return (step - 1) / steps

    def stepped(self, factor: float, *, applied: bool) -> None:  # noqa: B027 - not every kind needs it
        """Called after each update at `factor` times the peak rate; not `applied` where gradients were not finite."""

    def row(self, factor: float, seconds: float) -> dict[str, Any]:
        """What a line of metrics.jsonl holds besides loss, gradient norm and epoch."""
        return {}

    def saved(self) -> dict[str, Any]:
        """What belongs to the present state besides weights, optimiser and torch's random numbers, as JSON."""
        return {}

    def restore(self, saved: dict[str, Any]) -> None:  # noqa: B027 - nor this
        """Go back to where `saved` was."""


@dataclass
class FinetuneResult:
    """How a fine-tuning run ended: 'finished', 'early' (patience), 'time' (minutes) or 'signal' (saved, to be resumed).

    `kept_step` is the step of the state that was kept, of `total` planned ones; 0 where it is the one given. `metrics`
    are those of that state, `history` those of all looks.
    """

    steps: int
    seconds: float
    cpu_seconds: float
    validation_seconds: float
    stopped: str
    metrics: dict[str, float]
    history: list[dict[str, Any]]
    kept_step: int
    total: int
    peak_memory_mb: float


class _Loop:
    """One run and its state; see `finetune`."""

    def __init__(
        self,
        work: Finetunable,
        optimiser: Optimizer,
        settings: TrainSettings,
        tracker: Tracker | None,
        checkpointer: Checkpointer | None,
        members: int,
        processes: Processes,
    ) -> None:
        self.work, self.optimiser, self.settings, self.members = work, optimiser, settings, members
        self.tracker, self.checkpointer, self.processes = tracker, checkpointer, processes
        self.steps = settings.steps or UNBOUNDED
        for group in optimiser.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self.guard, self.stopped = NanGuard(settings.nan_limit), "finished"
        self.progress = Progress(scores=[-math.inf] * members, waited=[0] * members)
        self.best: dict[str, Tensor] | None = None
        if members > 1:
            self.best = {name: p.detach().clone() for name, p in work.module.named_parameters()}
        self.started, self.worked = time.perf_counter(), time.process_time()
        self.looking, self.looking_cpu, self.done = 0.0, 0.0, 0.0
        self.clock = RunClock(settings.minutes, self.steps, 0.0, processes)
        self.unread: tuple[Later, float, dict[str, Any]] | None = None

    def take_steps(self, until: float) -> None:
        """Steps until the end, an early stop, the end of the minutes or a signal."""
        self._restore()
        if self.progress.ended:
            self.stopped = self.progress.ended
            return
        self.work.module.train()
        last = round(until * self.steps)
        for epoch, items in itertools.islice(self._stream(), max(0, last - self.progress.step)):
            self._step(epoch, items)
            if self._evaluation_due():
                self._evaluate()
                if self._patience_is_over():
                    self.stopped = "early"
                    break
            if self.settings.minutes is not None and self.done >= 1.0:
                self.stopped = "time"
                break
            if self.checkpointer is not None:
                signal = self.processes.any_process(self.checkpointer.signals.requested)
                if signal or self.processes.from_first(self.checkpointer.due()):
                    self._save(self.checkpointer)
                if signal:
                    self.stopped = "signal"
                    break
        self._read()
        if self.checkpointer is None or self.stopped == "signal":
            return
        if self.processes.from_first(self.checkpointer.keeps_end()):
            self.progress.ended = self.stopped
            self._save(self.checkpointer)

    def finish(self) -> FinetuneResult:
        """Go back to the best state; how it went."""
        run, module = self.progress, self.work.module
        if self.work.keep_best and self.best:
            module.load_state_dict({**module.state_dict(), **self.best})
        if self.work.keep_best and run.history:  # else nothing was looked at yet
            self.work.restore(run.best_extra)
        module.eval()
        return FinetuneResult(
            steps=run.step,
            seconds=time.perf_counter() - self.started,
            cpu_seconds=time.process_time() - self.worked - self.looking_cpu,
            validation_seconds=self.looking,
            stopped=self.stopped,
            metrics=run.metrics,
            history=run.history,
            kept_step=run.kept_step,
            total=run.step if self.settings.minutes is not None else self.steps,
            peak_memory_mb=peak_memory(),
        )

    def _restore(self) -> None:
        found = None if self.checkpointer is None else self.checkpointer.found
        own_random_numbers(torch.initial_seed(), self.processes.rank if self.work.divided else 0, found)
        if self.checkpointer is None or found is None:
            return
        self.progress, best = self.checkpointer.restore(self.work.module, self.optimiser)
        self.work.restore(self.progress.extra)
        if self.progress.history:
            self.best = best or {}

    def _stream(self) -> Iterator[tuple[int, np.ndarray]]:
        """(epoch, items) of each step from here on."""
        epoch, skip = divmod(self.progress.step, self.work.per_epoch) if self.progress.step else (0, 0)
        for number in itertools.count(epoch):
            for items in self.work.batches(number)[skip:]:
                yield number, items
            skip = 0

    def _step(self, epoch: int, items: np.ndarray) -> None:
        run, settings = self.progress, self.settings
        run.step += 1
        loss = self.work.backward(items, step=run.step, epoch=epoch)
        if self.work.divided:
            loss = self.processes.total(loss)
            self.processes.sum_gradients(self.parameters)
        self.done = min(1.0, self.clock.progress(run.step))
        factor = rate(self.work.place(run.step, self.steps) if settings.minutes is None else self.done, settings)
        norm = step(self.optimiser, self.parameters, clip=settings.clip, rate=factor)
        self.optimiser.zero_grad(set_to_none=True)
        row: dict[str, Any] = {}
        if self.tracker is not None and (run.step % settings.log_every == 0 or run.step == 1):
            row = {"step": run.step, "progress": self.done, "epoch": epoch}
            row |= self.work.row(factor, time.perf_counter() - self.started)
        self._read()
        self.unread = Later([loss, norm]), factor, row
        if norm.device.type == "cpu":
            self._read()

    def _read(self) -> None:
        """Whether the last step was applied, and its line of the curve. A GPU is asked once the next step is on its
        way to it, so that it need not wait for the host."""
        if self.unread is None:
            return
        (numbers, factor, row), self.unread = self.unread, None
        loss, norm = numbers.values
        self.work.stepped(factor, applied=self.guard.check(norm))
        if self.tracker is not None and row:
            self.tracker.log(**row, loss=loss, gradient_norm=norm)

    def _evaluation_due(self) -> bool:
        every = self.settings.validate_every
        if every is None:
            return False
        return self.progress.step % every == 0 or self.done >= 1.0

    def _evaluate(self) -> None:
        """Look at the held-out data, and keep the state where it is the best so far."""
        self._read()
        began, working = time.perf_counter(), time.process_time()
        self.work.module.eval()
        evaluation = self.work.evaluate()
        if self.tracker is not None and evaluation.metrics:
            shown: dict[str, Any] = {f"validation_{name}": value for name, value in evaluation.metrics.items()}
            self.tracker.log(self.progress.step, self.done, kind="validation", **shown)
        self.count(evaluation)
        self.work.module.train()
        self.looking += time.perf_counter() - began
        self.looking_cpu += time.process_time() - working
        if not self.work.evaluations_count:
            self.clock.before -= time.perf_counter() - began

    def count(self, evaluation: Evaluation, state: Mapping[str, Tensor] | None = None) -> None:
        """Count a look, and keep the state, of each member, where it is the best so far.

        Args:
            state: of one member, a copy that is made already; default is the present one.
        """
        run, module, kept = self.progress, self.work.module, True
        run.history.append({"step": run.step, **evaluation.metrics})
        if self.work.keep_best:
            scores = np.array([self.processes.from_first(score) for score in evaluation.scores.tolist()])
            scores = np.where(np.isnan(scores), -np.inf, scores)
            better = (scores > np.array(run.scores)) | (self.best is None)
            run.scores = np.where(better, scores, run.scores).tolist()
            run.waited = np.where(better, 0, np.array(run.waited) + 1).tolist()
            kept = bool(better.any())
            if self.members > 1 and self.best is not None:
                for name, p in module.named_parameters():
                    self.best[name][better] = p.detach()[better]
            elif kept:  # after the last step the state need not be copied
                self.best = {} if self.done >= 1.0 else dict(state or copy.deepcopy(module.state_dict()))
        if kept:
            run.metrics, run.kept_step, run.best_extra = evaluation.metrics, run.step, self.work.saved()

    def _patience_is_over(self) -> bool:
        patience = self.settings.patience
        return patience is not None and min(self.progress.waited) >= patience

    def _save(self, checkpointer: Checkpointer) -> None:
        self._read()
        self.progress.extra = self.work.saved()
        checkpointer.save(self.progress, self.work.module, self.best, self.optimiser, self.processes)


def finetune(
    work: Finetunable,
    optimiser: Optimizer,
    settings: TrainSettings,
    *,
    until: float = 1.0,
    tracker: Tracker | None = None,
    checkpointer: Checkpointer | None = None,
    first: Evaluation | None = None,
    initial: Mapping[str, Tensor] | None = None,
    members: int = 1,
) -> FinetuneResult:
    """Fine-tune; the module ends in its best state, ready to be used.

    Args:
        settings: with `steps` or `minutes`; without `validate_every` nothing is looked at.
        until: the share of the steps to take, on the schedule of all of them.
        checkpointer: keeps checkpoints, one of them at SIGTERM and SIGINT, and goes on with the one it found.
        first: a look at the module as it is given, where that state may be kept too.
        initial: a copy of its weights then, where there is one already.
        members: models side by side in the module, each with a score, an early stop and a best state of its own; the
            first dimension of every parameter is then the member.

    Raises:
        StoppedBySignal: a signal ended one of several trainings of a run (`Stages`); its checkpoint is kept.
    """
    keep_freed_memory()
    processes = Processes.of_launcher()
    if checkpointer is not None:
        step = checkpointer.found.step if checkpointer.found else None
        check_same_everywhere(processes.accelerator, {**checkpointer.fingerprint, "the checkpoint": step})
    loop = _Loop(work, optimiser, settings, tracker, checkpointer, members, processes)
    if first is not None:
        loop.count(first, initial)
    signals = contextlib.nullcontext() if checkpointer is None else checkpointer.signals
    with signals, others_alive(processes.accelerator):
        loop.take_steps(until)
    result = loop.finish()
    if checkpointer is not None and checkpointer.stages is not None and result.stopped == "signal":
        raise StoppedBySignal(result.steps)
    return result


def constant_rate(**settings: Any) -> TrainSettings:
    """Settings of a run whose rate stays the peak, and whose gradients are not clipped."""
    return TrainSettings(schedule="constant", warmup=0.0, clip=None, **settings)


class EpochOrder:
    """A new order of the items in every epoch, from a generator that other things are drawn from as well.

    A run that goes on within an epoch draws the order of that epoch again, and then goes on where the generator was.
    """

    def __init__(self, generator: np.random.Generator) -> None:
        self.generator = generator
        self.epoch, self.before = -1, generator.bit_generator.state

    def permutation(self, items: int | np.ndarray, epoch: int) -> np.ndarray:
        """The items in the order of an epoch."""
        bits = self.generator.bit_generator
        if epoch != self.epoch:
            self.epoch, self.before = epoch, bits.state
            return self.generator.permutation(items)
        now, bits.state = bits.state, self.before
        order = self.generator.permutation(items)
        bits.state = now
        return order

    def saved(self) -> dict[str, Any]:
        """As JSON: the epoch, and the generator before its order was drawn and now."""
        return {"epoch": self.epoch, "before": self.before, "now": self.generator.bit_generator.state}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go back to where `saved` was."""
        self.epoch, self.before = saved["epoch"], saved["before"]
        self.generator.bit_generator.state = saved["now"]


def shuffled(items: int, batch: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The items of each step of an epoch: a pure function of (seed, epoch)."""
    order = np.random.default_rng([seed, epoch]).permutation(items)
    return [order[i : i + batch] for i in range(0, items, batch)]


def planned_steps(*, steps: int | None, epochs: float | None, per_epoch: int) -> int:
    """How many steps a run takes; at least one."""
    return steps or max(1, round(per_epoch * (epochs or 1.0)))
