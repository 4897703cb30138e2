"""One training run of any masked model: data order, validation, checkpoints, resume, signals, tracking.

The masked learning itself is `core.pretrain`; this is what stands around it. It runs under Accelerate, so
`accelerate launch` and torchrun work: the global data order is dealt to the processes.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.pretrain import StepContext, StepReport, pretrain
from unmask.core.sampler import PackedSampler, split_rows
from unmask.errors import UserError, option, setting
from unmask.files import check_folder
from unmask.memory import keep_freed_memory, peak_memory
from unmask.training.ahead import ahead
from unmask.training.checkpoint import Checkpoint
from unmask.training.compute import Compute, Whole, fit_memory, launch
from unmask.training.job import Job, RunResult
from unmask.training.optimiser import NanGuard, step
from unmask.training.precision import resolve_device
from unmask.training.processes import check_same_everywhere, load_latest, others_alive, own_random_numbers
from unmask.training.same_run import check_not_done, check_same_run, warn_of_threads
from unmask.training.schedule import RunClock, rate
from unmask.training.settings import TrainSettings, same_run_hint
from unmask.training.signals import SignalGuard
from unmask.training.tracking import Tracker, console_logger
from unmask.training.validation import BestWeights, EarlyStopping, Validation
from unmask.writing import own_folder

CHECKPOINT_SHARE = 0.02
"""Of the time, what checkpoints by the clock take at most: one that takes 7 s (110 M parameters) is made every 350 s.
"""
BETWEEN_EVALUATIONS = 0.05
"""Of the run, between two validations, where `validate_every` does not say."""
EXAMINED = 4
"""Steps' worth of held-out slots that a validation on the way looks at: so it takes less than a tenth of the run."""


def run(
    job: Job,
    out: str | Path,
    settings: TrainSettings,
    *,
    resume: bool = False,
    console: bool = True,
    trackers: Sequence[str] = (),
    save: Callable[[nn.Module], None] | None = None,
) -> RunResult:
    """Train until the settings' end, an early stop, or a signal; `save(model)` is called at the end."""
    out = check_run_folder(out, resume=resume)
    with own_folder(out, busy="trains there"):
        refuse_compile(settings)
        if not job.validation and (settings.patience is not None or job.stop_when is not None):
            one = len(job.sampler.examples) == 1
            raise UserError(
                "1 example is left to learn from, of which nothing can be held out to stop early by"
                if one
                else "nothing is held out to stop early by",
                hint=("Give more data" if one else "Hold some out (holdout)")
                + (f", or set {setting('patience', None)}." if settings.patience is not None else "."),
            )
        keep_freed_memory()
        return TrainingRun(job, out, settings, resume=resume, console=console).train(trackers=trackers, save=save)


class TrainingRun:
    """A training run, ready to go on from its first step or from where it was.

    Attributes:
        step: optimiser steps done, those before a resume included; `first_step` is where this process began.
        early: the best look so far, and whether the run is to stop.
        next_evaluation: the progress at which the next look is due, where `validate_every` does not say.
    """

    tracker: Tracker
    signals: SignalGuard

    def __init__(self, job: Job, out: Path, settings: TrainSettings, *, resume: bool, console: bool) -> None:
        self.job, self.out, self.settings, self.model = job, out, settings, job.model
        self.early = EarlyStopping(settings.patience, job.stop_when, watched=job.watched, at_start=job.at_start)
        accelerator = launch(settings)
        found = load_latest(out, accelerator) if resume else None
        check_same_run(found, job.fingerprint, out, hint=same_run_hint())
        total = total_steps(settings, job.sampler)
        check_not_done(found, settings, total, out)
        warn_of_threads(found)
        self.compute = Compute.choose(settings, accelerator, found)
        self.console, say = console, console_logger(console)
        check_same_everywhere(accelerator, {**job.fingerprint, "the checkpoint": found.step if found else None})
        self.engine = make_engine(job, settings, self.compute, out, say)
        own_random_numbers(settings.seed, self.compute.rank, found)
        self.fitted = fit_memory(job, self.compute, settings, found)
        self.engine.begin(found)
        seconds = self._restore(found)
        precision = self.compute.precision
        for line in (f"computing in {precision.name}: {precision.reason}", *self.fitted.lines()):
            say(line)
        self.clock, self.guard = RunClock(settings.minutes, total, seconds, self.compute), NanGuard(settings.nan_limit)
        self.best = self._best_weights(found)
        slots = EXAMINED * settings.batch_slots
        self.held_out = Validation(job, self.engine, slots=slots, rows=self.fitted.rows, compute=self.compute)
        self.slots, self.seconds, self.padding = 0, 0.0, list[float]()
        self.unchecked: StepReport | None = None

    def train(self, *, trackers: Sequence[str], save: Callable[[nn.Module], None] | None) -> RunResult:
        """Take the steps, look, keep checkpoints; then keep the best weights and save them."""
        tracker = Tracker(
            self.out,
            total=self.settings.ending,
            console=self.console,
            trackers=trackers,
            config=vars(self.settings),
            resumed_step=self.first_step if self.resumed else None,
        )
        alive = others_alive(self.compute.accelerator)
        with alive, tracker as self.tracker, SignalGuard() as self.signals:
            if not self.resumed:
                self.tracker.event(
                    "start",
                    precision=self.compute.precision.name,
                    reason=self.compute.precision.reason,
                    device=str(self.compute.device),
                    expected_memory_mb=round(self.fitted.expected / 1e6),
                    micro_batches=self.fitted.parts,
                )
            self._take_steps()
            self._check(None)
            kept = self.step if self.stopped == "signal" else self._finish(save)
            self.engine.close()
            self.tracker.event("end", step=self.step, stopped=self.stopped, skipped=self.guard.total)
            self.compute.accelerator.wait_for_everyone()
        return self._result(kept)

    def _restore(self, found: Checkpoint | None) -> float:
        """Begin anew, or where the checkpoint is; the seconds that the run took up to there."""
        self.resumed = found is not None
        self.step = self.first_step = 0 if found is None else found.step
        self.stopped, self.validation, self.next_evaluation = "finished", dict[str, float](), math.inf
        if found is None:
            return 0.0
        extra = found.extra
        self.early.loss, self.early.waited = extra["best"], extra["waited"]
        self.early.refused = extra.get("refused", False)
        self.next_evaluation = extra.get("next_check", math.inf)
        if extra.get("stopped_before") == self.settings.ending:
            self.stopped = "early"  # and stays so until it is given another end
        return float(extra["seconds"])

    def _best_weights(self, found: Checkpoint | None) -> BestWeights | None:
        if not self.early.possible:
            return None
        best = BestWeights(self.out)
        if found is not None:
            best.restore(found.extra.get("best_step"))
            if not self.compute.from_first(float(best.state is not None)):
                best.state = None
        elif self.job.stop_when is not None or self.job.at_start is not None:  # they may stay the best
            best.keep(self.engine.state(), 0, write=self.compute.first_process)
        return best

    def _take_steps(self) -> None:
        """Steps until the end, an early stop or a signal, with looks and checkpoints between them."""
        self.pace = CheckpointPace(self.settings)
        self.next_evaluation = min(self.next_evaluation, self.clock.progress(self.step) + BETWEEN_EVALUATIONS)
        if self.stopped == "early":
            return
        for report in self._reports():
            self._record(report)
            if self._evaluation_due(report) and self._evaluate(report.progress):
                self.stopped = "early"
                return
            if self.compute.any_process(self.signals.requested):
                self.stopped = "signal"
                self._checkpoint()
                return
            if self.pace.due(self.step, self.compute):
                self._checkpoint()

    def _reports(self) -> Iterator[StepReport]:
        """A report per step of `core.pretrain`."""
        compute = self.compute
        context = StepContext(
            update=self._update,
            total=compute.total,
            processes=compute.processes,
            device=compute.device,
            autocast=compute.autocast,
            no_sync=self.engine.no_sync,
        )
        steps = planned_steps(self.job, self.fitted.parts, self.step, compute)
        start: dict[str, Any] = {"seed": self.settings.seed, "first_step": self.step, "progress": self.clock.progress}
        return pretrain(self.engine.losses, steps, self.job.corruption, context, **start)

    def _update(self, progress: float) -> tuple[Tensor, Tensor]:
        """Apply the gradients; (their norm, whether they were finite and so applied)."""
        clip, factor = self.settings.clip, rate(progress, self.settings)
        norm = step(self.engine.optimiser, self.model.parameters(), clip=clip, rate=factor)
        self.engine.optimiser.zero_grad(set_to_none=True)
        return norm, torch.isfinite(norm)

    def _record(self, report: StepReport) -> None:
        """Count what the step did, and log it every `log_every` steps."""
        self.step = report.step
        self._check(report)
        self.slots, self.seconds = self.slots + report.slots, self.seconds + report.seconds
        self.padding.append(report.padding_waste)
        if self.step % self.settings.log_every == 0 or self.step == self.first_step + 1:
            self.tracker.log(
                self.step,
                report.progress,
                loss=report.loss,
                accuracy=report.accuracy,
                slots_per_second=self.slots / max(self.seconds, 1e-9),
                padding_waste=report.padding_waste,
                hidden_slots=report.hidden,
                gradient_norm=report.gradient_norm,
                epoch=report.epoch,
                skipped=report.skipped,
                learning_rate=self.settings.learning_rate * rate(report.progress, self.settings),
            )

    def _check(self, report: StepReport | None) -> None:
        """Stop a run whose gradients stay other than finite. On a GPU the step before is looked at, so that this one
        is under way meanwhile."""
        late = self.compute.device.type != "cpu"
        checked, self.unchecked = (self.unchecked, report) if late else (report, None)
        if checked is not None:
            self.guard.check(checked.gradient_norm)

    def _evaluation_due(self, report: StepReport) -> bool:
        every = self.settings.validate_every
        due = self.step % every == 0 if every else report.progress >= self.next_evaluation
        hidden_yet = report.progress >= self.job.corruption.causal  # else the model has not met a mask
        return due and hidden_yet and bool(self.job.validation)

    def _evaluate(self, progress: float) -> bool:
        """Validate, and keep the weights where they are the best so far; whether the run is to stop."""
        self.next_evaluation = progress + BETWEEN_EVALUATIONS
        self.validation = self.held_out.evaluate(self.tracker, self.step, progress)
        improved, stop = self.early.update(self.validation)
        if improved and self.best is not None:
            self.best.keep(self.engine.state(), self.step, write=self.compute.first_process)
        return stop

    def _checkpoint(self) -> None:
        """Write all that a resumed run goes on from."""
        with self.pace.timed():
            self.engine.save(self.step, self._state)

    def _state(self) -> dict[str, Any]:
        """What the run has come to, besides weights and optimiser, as JSON."""
        return {
            "best": self.early.loss,
            "best_step": self.best.step if self.best else None,
            "waited": self.early.waited,
            "refused": self.early.refused,
            "next_check": self.next_evaluation,
            "seconds": self.clock.elapsed(),
            "precision": self.compute.precision.name,
            "parts": self.fitted.parts,
            "threads": torch.get_num_threads(),
            "fingerprint": self.job.fingerprint,
            "stopped_before": self.settings.ending if self.stopped == "early" else None,
        }

    def _finish(self, save: Callable[[nn.Module], None] | None) -> int:
        """Keep the best or the last weights, judge them on all held-out rows, save; the step that they are of."""
        self._checkpoint()  # what a longer run would go on from
        kept, best = self.step, self.best
        if best is not None and best.state is not None and best.step != kept and not self._last_is_best():
            self.engine.load(best.state)
            kept = best.step
            self.tracker.event("kept", step=kept)
        if self.job.validation:
            self.validation = self.held_out.evaluate(self.tracker, self.step, 1.0, whole=True)
        if save is not None and (model := self.engine.whole()) is not None and self.compute.first_process:
            save(model)
        return kept

    def _last_is_best(self) -> bool:
        """Whether the last weights beat the best ones, judged the same way, and are not why the run stopped."""
        return self.stopped == "finished" and self.early.improves(self.held_out.evaluate(self.tracker, self.step, 1.0))

    def _result(self, kept: int) -> RunResult:
        return RunResult(
            steps=self.step,
            kept_step=kept,
            seconds=self.clock.elapsed(),
            stopped=self.stopped,
            validation=self.validation,
            slots_per_second=self.slots / max(self.seconds, 1e-9),
            padding_waste=sum(self.padding) / max(len(self.padding), 1),
            skipped_steps=self.guard.total,
            precision=self.compute.precision.name,
            device=str(self.compute.device),
            peak_memory_mb=peak_memory(),
            expected_memory_mb=round(self.fitted.expected / 1e6),
            micro_batches=self.fitted.parts,
            refused=self.stopped == "early" and self.early.refused,
        )


def make_engine(job: Job, settings: TrainSettings, compute: Compute, folder: Path, say: Callable[[str], None]) -> Whole:
    """The engine that `settings.shard` asks for; a process that is alone holds everything, and says so."""
    if settings.shard == "none":
        return Whole(job, settings, compute, folder)
    if compute.processes == 1:
        say("shard=full: there is one process, which holds the whole model")
        return Whole(job, settings, compute, folder)
    if settings.compile:
        raise UserError("compile=true with shard=full", hint=f"Take one of them, such as {setting('shard', 'none')}.")
    from unmask.training.shards import ShardedModel

    return ShardedModel(job, settings, compute, folder)


class CheckpointPace:
    """When checkpoints are due: every `checkpoint_every` steps, else by the clock."""

    def __init__(self, settings: TrainSettings) -> None:
        self.every, self.seconds = settings.checkpoint_every, settings.checkpoint_seconds
        self.saved_at, self.pause = time.monotonic(), settings.checkpoint_seconds

    def due(self, step: int, compute: Compute) -> bool:
        """Whether to write one after this step; all processes agree."""
        if self.every:
            return step % self.every == 0
        return compute.from_first(time.monotonic() - self.saved_at - self.pause) > 0

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Around the writing of one: the next is due the later the longer it takes."""
        began = time.monotonic()
        yield
        self.saved_at = time.monotonic()
        self.pause = max(self.seconds, (self.saved_at - began) / CHECKPOINT_SHARE)


def refuse_compile(settings: TrainSettings) -> None:
    """Asked before long work: compiled training does not pay on CPUs."""
    if settings.compile and resolve_device(settings.device).type == "cpu":
        raise UserError(
            "compile=true on a CPU: with static shapes it trained at 0.99 to 1.03 times the speed after 4 to 30 s of "
            "compiling, with those of packed batches 8 steps took 186 s",
            hint="Leave it out; it is for GPUs.",
        )


def check_run_folder(out: str | Path, *, resume: bool) -> Path:
    """A run's folder, asked for before long work: one that can be made, or holds the run to continue, or neither run
    nor model.
    """
    out = check_folder(out)
    held = [name for name in ("checkpoints", "config.json", "model.safetensors") if (out / name).exists()]
    if held and not (resume and "checkpoints" in held):
        hint = f"Choose another {option('out')}" + (
            "." if resume else f", or add {option('resume', True)} to continue a run."
        )
        raise UserError(f"{out} already holds a run or a model", hint=hint)
    return out


AHEAD_OF_A_GPU = 2
"""Micro-batches that a thread makes while a GPU computes, at least: it never waits for the next one to be packed."""


class MicroBatches(Collection[PackedBatch]):
    """The micro-batches of one step, of a known number, each made when it is asked for; gone through once."""

    def __init__(self, batches: Iterator[PackedBatch], count: int) -> None:
        self._batches, self._count = batches, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PackedBatch]:
        return self._batches

    def __contains__(self, batch: object) -> bool:
        return False


def planned_steps(
    job: Job, parts: int, first_step: int, compute: Compute
) -> Iterator[tuple[int, Collection[PackedBatch]]]:
    """(epoch, this process's micro-batches) per step; only those that are in work, or made ahead, are in memory.

    Args:
        parts: micro-batches per step and process.
        first_step: steps of the sampler that are done already.
    """
    shares = parts * compute.processes
    rows = -(-job.sampler.rows // shares)

    def made() -> Iterator[tuple[int, PackedBatch]]:
        for planned in job.sampler.steps(skip=first_step):
            about = (planned.epoch,) if job.by_epoch else ()
            for share in split_rows(planned.rows, shares)[compute.rank :: compute.processes]:
                yield planned.epoch, job.make_batch(share, rows, *about)

    on_gpu = compute.device.type != "cpu"
    with contextlib.closing(ahead(made(), max(job.prefetch, AHEAD_OF_A_GPU * on_gpu))) as batches:
        for epoch, batch in batches:
            rest = map(operator.itemgetter(1), itertools.islice(batches, parts - 1))
            step = MicroBatches(itertools.chain([batch], rest), parts)
            del batch
            yield epoch, step


def total_steps(settings: TrainSettings, sampler: PackedSampler) -> int | None:
    """Optimiser steps of a run that steps or epochs end; None of one that the clock ends."""
    if settings.epochs is not None:
        return max(1, round(sampler.steps_per_epoch() * settings.epochs))
    return settings.steps
