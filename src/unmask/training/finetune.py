"""Fine-tuning, the same for every kind of data: steps, looks at held-out data, early stopping, the best state kept,
checkpoints.

What is fine-tuned brings its data and its loss as a `Finetunable`; how long and how fast is a `Schedule`. Several
members may be trained side by side in one module, each with an early stop and a best state of its own.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from unmask.core.pretrain import Later
from unmask.memory import keep_freed_memory, peak_memory
from unmask.training.finetune_checkpoints import Checkpointer, Progress, StoppedBySignal
from unmask.training.launcher import check_one_process
from unmask.training.optimiser import NanGuard, step
from unmask.training.schedule import rate
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
    """

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
        """Add up the gradients of a step's loss, in parts where memory asks for it; the loss, detached.

        Args:
            step: its number, from 1; epoch: its epoch, from 0.
        """

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """How good the module is on held-out data, as it is now."""

    def stepped(self, factor: float, *, applied: bool) -> None:  # noqa: B027 - not every kind needs it
        """Called after each update at `factor` times the peak rate; `applied` is False where gradients were
        not finite."""

    def row(self, factor: float, seconds: float) -> dict[str, Any]:
        """What a line of metrics.jsonl holds besides loss, gradient norm and epoch."""
        return {}

    def saved(self) -> dict[str, Any]:
        """What belongs to the present state besides weights, optimiser and torch's random numbers, as JSON."""
        return {}

    def restore(self, saved: dict[str, Any]) -> None:  # noqa: B027 - nor this
        """Go back to where `saved` was."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and how fast a fine-tuning run goes, and when it looks at the held-out data.

    Attributes:
        steps: planned; `UNBOUNDED` where `minutes` end the run.
        evaluate_every: steps between looks; None never looks.
        evaluate_last: look after the last step too, wherever it falls.
        schedule: of the learning rate; None keeps the peak.
        place: the step's place (0 to 1) on the schedule; default (step - 1) / steps.
        minutes: of training, after which the run ends; the rate then falls by the clock.
        evaluations_count: whether the time of looks counts towards the minutes.
        until: the share of the steps to take, on the schedule of all of them.
        clip: largest gradient norm, None for none.
        patience: looks without improvement, of every member, before the run stops; None never stops.
        keep_best: end in the best state; else in the last one.
        log_every, nan_limit: as in `TrainSettings`.
    """

    steps: int
    evaluate_every: int | None
    evaluate_last: bool = True
    schedule: TrainSettings | None = None
    place: Callable[[int], float] | None = None
    minutes: float | None = None
    evaluations_count: bool = True
    until: float = 1.0
    clip: float | None = 1.0
    patience: int | None = None
    keep_best: bool = True
    log_every: int = 10
    nan_limit: int = 5

    def factor(self, step: int, by_clock: float) -> float:
        """The multiplier of the peak rate at a step.

        Args:
            by_clock: the share of the minutes that is over, where minutes end the run.
        """
        if self.schedule is None:
            return 1.0
        if self.minutes is not None:
            return rate(by_clock, self.schedule)
        return rate((step - 1) / self.steps if self.place is None else self.place(step), self.schedule)


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


class BestState:
    """The best state that was looked at, of each member.

    Args:
        module: with several members, every parameter's first dimension is the member.

    Attributes:
        state: None before the first look; empty where the present state is the best.
    """

    def __init__(self, module: nn.Module, *, members: int = 1) -> None:
        self.module, self.members = module, members
        self.scores, self.waited = np.full(members, -np.inf), np.zeros(members, int)
        self.state: dict[str, Tensor] | None = None
        if members > 1:
            self.state = {name: p.detach().clone() for name, p in module.named_parameters()}

    def offer(self, evaluation: Evaluation, *, last: bool = False, state: Mapping[str, Tensor] | None = None) -> bool:
        """Keep what is better than before; whether anything is.

        Args:
            last: no step follows: the state need not be copied.
            state: of one member, a copy that is made already; default is the present one.
        """
        scores = np.where(np.isnan(evaluation.scores), -np.inf, evaluation.scores)
        better = (scores > self.scores) | (self.state is None)
        self.waited = np.where(better, 0, self.waited + 1)
        self.scores = np.where(better, scores, self.scores)
        if self.members > 1 and self.state is not None:
            for name, p in self.module.named_parameters():
                self.state[name][better] = p.detach()[better]
        elif better.any():
            self.state = dict(state) if state is not None else {} if last else copy.deepcopy(self.module.state_dict())
        return bool(better.any())

    def load(self) -> None:
        """Put the module into its best state."""
        if self.state:
            self.module.load_state_dict({**self.module.state_dict(), **self.state})


@dataclass
class _Taken:
    """A step whose loss and gradient norm the host has not read yet; `row` is the rest of its line of the curve."""

    numbers: Later
    step: int
    share: float
    factor: float
    row: dict[str, Any] | None


class _Loop:
    """One run and its state; see `finetune`."""

    def __init__(
        self,
        work: Finetunable,
        optimiser: Optimizer,
        schedule: Schedule,
        tracker: Tracker | None,
        checkpointer: Checkpointer | None,
        members: int,
    ) -> None:
        self.work, self.optimiser, self.schedule, self.tracker, self.checkpointer = (
            work,
            optimiser,
            schedule,
            tracker,
            checkpointer,
        )
        for group in optimiser.param_groups:
            group.setdefault("initial_lr", group["lr"])
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self.best, self.guard = BestState(work.module, members=members), NanGuard(schedule.nan_limit)
        self.progress, self.stopped = Progress(), "finished"
        self.started, self.worked = time.perf_counter(), time.process_time()
        self.looking, self.looking_cpu, self.by_clock = 0.0, 0.0, 0.0
        self.taken: _Taken | None = None

    def take_steps(self) -> None:
        """Steps until the end, an early stop, the end of the minutes or a signal."""
        self._restore()
        if self.progress.ended:
            self.stopped = self.progress.ended
            return
        self.work.module.train()
        last = round(self.schedule.until * self.schedule.steps)
        for epoch, items in itertools.islice(self._stream(), max(0, last - self.progress.step)):
            self._step(epoch, items)
            if self._evaluation_due():
                self._evaluate()
                if self._patience_is_over():
                    self.stopped = "early"
                    break
            if self._time_is_over():
                self.stopped = "time"
                break
            if self.checkpointer is not None and self.checkpointer.due():
                self._save(self.checkpointer)
                if self.checkpointer.signals.requested:
                    self.stopped = "signal"
                    break
        self._read()
        if self.checkpointer is not None and self.stopped != "signal" and self.checkpointer.keeps_end():
            self.progress.ended = self.stopped
            self._save(self.checkpointer)

    def finish(self) -> FinetuneResult:
        """Go back to the best state; how it went."""
        if self.schedule.keep_best and self.best.state is not None:
            self.best.load()
            if self.progress.scores:  # else nothing was looked at yet
                self.work.restore(self.progress.best_extra)
        self.work.module.eval()
        run = self.progress
        return FinetuneResult(
            steps=run.step,
            seconds=time.perf_counter() - self.started,
            cpu_seconds=time.process_time() - self.worked - self.looking_cpu,
            validation_seconds=self.looking,
            stopped=self.stopped,
            metrics=run.metrics,
            history=run.history,
            kept_step=run.kept_step,
            total=run.step if self.schedule.minutes is not None else self.schedule.steps,
            peak_memory_mb=peak_memory(),
        )

    def begin_with(self, evaluation: Evaluation, state: Mapping[str, Tensor] | None) -> None:
        """Let the state before the steps be one that may be kept."""
        self.best.offer(evaluation, state=state)
        self._note(evaluation, kept=True)

    def _restore(self) -> None:
        if self.checkpointer is None or self.checkpointer.found is None:
            return
        self.progress, best = self.checkpointer.restore(self.work.module, self.optimiser)
        self.work.restore(self.progress.extra)
        if self.progress.scores:
            self.best.scores, self.best.waited = np.array(self.progress.scores), np.array(self.progress.waited)
            self.best.state = best or {}

    def _stream(self) -> Iterator[tuple[int, np.ndarray]]:
        """(epoch, items) of each step from here on."""
        epoch, skip = divmod(self.progress.step, self.work.per_epoch) if self.progress.step else (0, 0)
        for number in itertools.count(epoch):
            for items in self.work.batches(number)[skip:]:
                yield number, items
            skip = 0

    def _step(self, epoch: int, items: np.ndarray) -> None:
        run, schedule = self.progress, self.schedule
        run.step += 1
        loss = self.work.backward(items, step=run.step, epoch=epoch)
        if schedule.minutes is not None:
            spent = time.perf_counter() - self.started - (0.0 if schedule.evaluations_count else self.looking)
            self.by_clock = min(1.0, spent / (60 * schedule.minutes))
        factor = schedule.factor(run.step, self.by_clock)
        norm = step(self.optimiser, self.parameters, clip=schedule.clip, rate=factor)
        self.optimiser.zero_grad(set_to_none=True)
        row: dict[str, Any] | None = None
        if self.tracker is not None and (run.step % schedule.log_every == 0 or run.step == 1):
            row = {"epoch": epoch, **self.work.row(factor, time.perf_counter() - self.started)}
        self._read()
        self.taken = _Taken(Later([loss, norm]), run.step, self._share(), factor, row)
        if norm.device.type == "cpu":
            self._read()

    def _read(self) -> None:
        """Whether the last step was applied, and its line of the curve. A GPU is asked once the next step is on its
        way to it, so that it need not wait for the host."""
        taken, self.taken = self.taken, None
        if taken is None:
            return
        loss, norm = taken.numbers.values
        self.work.stepped(taken.factor, applied=self.guard.check(norm))
        if self.tracker is not None and taken.row is not None:
            self.tracker.log(taken.step, taken.share, loss=loss, gradient_norm=norm, **taken.row)

    def _share(self) -> float:
        """The share of the run that is done."""
        return self.by_clock if self.schedule.minutes is not None else self.progress.step / self.schedule.steps

    def _time_is_over(self) -> bool:
        return self.schedule.minutes is not None and self.by_clock >= 1.0

    def _ends_here(self) -> bool:
        return self.progress.step == self.schedule.steps or self._time_is_over()

    def _evaluation_due(self) -> bool:
        every = self.schedule.evaluate_every
        if every is None:
            return False
        return self.progress.step % every == 0 or (self.schedule.evaluate_last and self._ends_here())

    def _evaluate(self) -> None:
        """Look at the held-out data, and keep the state where it is the best so far."""
        self._read()
        began, working = time.perf_counter(), time.process_time()
        self.work.module.eval()
        evaluation = self.work.evaluate()
        if self.tracker is not None and evaluation.metrics:
            shown: dict[str, Any] = {f"validation_{name}": value for name, value in evaluation.metrics.items()}
            self.tracker.log(self.progress.step, self._share(), kind="validation", **shown)
        if self.schedule.keep_best:
            self._note(evaluation, kept=self.best.offer(evaluation, last=self._ends_here()))
        else:
            self._note(evaluation, kept=True)
        self.work.module.train()
        self.looking += time.perf_counter() - began
        self.looking_cpu += time.process_time() - working

    def _note(self, evaluation: Evaluation, *, kept: bool) -> None:
        run = self.progress
        run.history.append({"step": run.step, **evaluation.metrics})
        run.scores, run.waited = self.best.scores.tolist(), self.best.waited.tolist()
        if kept:
            run.metrics, run.kept_step, run.best_extra = evaluation.metrics, run.step, self.work.saved()

    def _patience_is_over(self) -> bool:
        patience = self.schedule.patience
        return patience is not None and bool((self.best.waited >= patience).all())

    def _save(self, checkpointer: Checkpointer) -> None:
        self._read()
        self.progress.extra = self.work.saved()
        checkpointer.save(self.progress, self.work.module, self.best.state, self.optimiser)


def finetune(
    work: Finetunable,
    optimiser: Optimizer,
    schedule: Schedule,
    *,
    tracker: Tracker | None = None,
    checkpointer: Checkpointer | None = None,
    first: Evaluation | None = None,
    initial: Mapping[str, Tensor] | None = None,
    members: int = 1,
) -> FinetuneResult:
    """Fine-tune; the module ends in its best state, ready to be used.

    Args:
        optimiser: over the parameters that are trained.
        tracker: what the curve is written to.
        checkpointer: keeps checkpoints, one of them at SIGTERM and SIGINT, and goes on with the one it found.
        first: a look at the module as it is given, where that state may be kept too.
        initial: a copy of its weights then, where there is one already.
        members: models side by side in the module, each with a score, an early stop and a best state of its own.
    """
    check_one_process("fine-tuning")
    keep_freed_memory()
    loop = _Loop(work, optimiser, schedule, tracker, checkpointer, members)
    if first is not None:
        loop.begin_with(first, initial)
    with contextlib.nullcontext() if checkpointer is None else checkpointer.signals:
        loop.take_steps()
    return loop.finish()


def finetune_stage(
    work: Finetunable, optimiser: Optimizer, schedule: Schedule, *, checkpointer: Checkpointer | None, **options: Any
) -> FinetuneResult:
    """`finetune`, as one of several trainings of a run (`Stages`).

    Raises:
        StoppedBySignal: a signal ended it; its checkpoint is kept.
    """
    result = finetune(work, optimiser, schedule, checkpointer=checkpointer, **options)
    if result.stopped == "signal":
        raise StoppedBySignal(result.steps)
    return result


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
