"""One training run of any masked model: data order, validation, checkpoints, resume, signals, tracking.

The masked learning itself is `core.pretrain`; this is the house around it. It runs under Accelerate, so
`accelerate launch` and torchrun work: the global data order is dealt to the processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import operator
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.batch import PackedBatch, place_best_fit
from unmask.core.corruption import Corruption
from unmask.core.plan import Plan, deal
from unmask.core.pretrain import Machine, StepReport, pretrain, validate
from unmask.errors import UserError
from unmask.files import check_folder, locked
from unmask.training.ahead import MadeWhenNeeded, ahead
from unmask.training.best import BestWeights
from unmask.training.budget import Fitted, fit, measure
from unmask.training.checkpoint import Checkpoint, SignalGuard, check_same_run, load_latest, save_checkpoint
from unmask.training.memory import free_memory, held_memory, keep_freed_memory, peak_memory
from unmask.training.optimiser import NanGuard, build_optimiser, step
from unmask.training.precision import Precision, computing, resolve_device, resolve_precision
from unmask.training.processes import check_same_everywhere, own_random_numbers, random_states
from unmask.training.schedule import rate
from unmask.training.settings import TrainSettings
from unmask.training.tracking import Tracker

CHECKPOINT_SHARE = 0.02
"""Of the time, what checkpoints by the clock take at most: one that takes 7 s (110 M parameters) is made every 350 s."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended.

    Attributes:
        stopped: 'finished', 'early' (patience, or a guard such as that against forgetting), or 'signal' (saved, resumable).
        kept_step: the step whose weights were kept; an earlier one than the last only where a run can stop early.
        expected_memory_mb: what was said before the start; `peak_memory_mb` is what the process held at most.
    """

    steps: int
    kept_step: int
    seconds: float
    stopped: str
    validation: dict[str, float]
    slots_per_second: float
    padding_waste: float
    skipped_steps: int
    precision: str
    device: str
    peak_memory_mb: float
    expected_memory_mb: float = math.nan
    micro_batches: int = 1

    def held_out(self, name: str, form: str) -> str:
        """A figure of the held-out data for a report: `form` filled with it; "none held out" where there is none.

        Args:
            name: "loss" or "accuracy".
            form: such as "{:.3f} nats".
        """
        value = self.validation.get(f"validation_{name}")
        return "none held out" if value is None or not math.isfinite(value) else form.format(value)

    def summary(self, folder: Path, seed: int, **more: Any) -> dict[str, Any]:
        """All of it as plain data, for --json."""
        return {
            "folder": str(folder), **dataclasses.asdict(self), "seed": seed,
            "validation": {k: v for k, v in self.validation.items() if math.isfinite(v)},
            "slots_per_second": round(self.slots_per_second, 1), "padding_waste": round(self.padding_waste, 4), **more,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is trained on what.

    Args:
        model: a `MaskedModel` (or any module with the same call and a `codec`).
        plan: the data order.
        make_batch: rows of example numbers -> packed batch with as many rows as asked.
        by_epoch: `make_batch` is given the epoch as a third argument (augmentation).
        measure: called with the model at every validation on the way and at the end, on the first process; what it
            returns, if anything, is recorded as a line of kind 'probe'.
        corruption: what is hidden in training.
        validation: held-out batches, and how they are masked (the same way at every validation).
        extra_validation: named further held-out sets, e.g. general text while adapting.
        stop_when: called with the validation metrics; True ends the run (the forgetting guard).
        fingerprint: what must be the same when the run is resumed, as JSON (`check_same_run`).
        unit: what a row is called, in the plural.
        look_ahead: micro-batches that a thread makes ahead of the loop; 0 makes them when they are needed.
    """

    model: nn.Module
    plan: Plan
    make_batch: Callable[..., PackedBatch]
    corruption: Corruption
    validation: Sequence[PackedBatch]
    validation_corruption: Corruption
    extra_validation: dict[str, Sequence[PackedBatch]] | None = None
    stop_when: Callable[[dict[str, float]], bool] | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    by_epoch: bool = False
    measure: Callable[[nn.Module], dict[str, float]] | None = None
    unit: str = "rows"
    look_ahead: int = 0


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
    """Train until the settings' end, an early stop, or a signal; `save(model)` is called at the end.

    Raises:
        UserError: the folder holds a run or a model and `resume` was not asked for; another process trains there; the
            settings of the resumed run differ.
    """
    out = run_folder(out, resume=resume)
    alone = (
        locked(out / ".run.lock", busy="trains there")
        if int(os.environ.get("RANK", "0")) == 0
        else contextlib.nullcontext()
    )
    with alone:
        return _run(job, out, settings, resume=resume, console=console, trackers=trackers, save=save)


def _run(
    job: Job, out: Path, settings: TrainSettings, *, resume: bool, console: bool, trackers: Sequence[str],
    save: Callable[[nn.Module], None] | None,
) -> RunResult:  # fmt: skip
    from accelerate import Accelerator

    refuse_compile(settings)
    if not job.validation and (settings.patience is not None or job.stop_when is not None):
        raise UserError("nothing is held out to stop early by", hint="Hold some out (holdout), or set patience=none.")
    keep_freed_memory()
    device = resolve_device(settings.device)
    # The precision is ours to choose: a launcher's own would be on top of it.
    accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision="no")
    device = accelerator.device
    main, processes = accelerator.is_main_process, accelerator.num_processes
    found = load_latest(out) if resume else None
    check_same_run(
        found, job.fingerprint, out,
        hint="Resume with the same data and settings (only the run's end may change), or start a new --out.",
    )  # fmt: skip
    precision = _precision(settings, device, found, accelerator)
    model = job.model
    optimiser = build_optimiser(model.to(device), settings)
    first = 0
    best: float | None = None
    waited, elapsed_before = 0, 0.0
    check_same_everywhere(accelerator, {**job.fingerprint, "the checkpoint": found.step if found else None})
    own_random_numbers(settings.seed, accelerator.process_index, found)
    if found is not None:
        model.load_state_dict(found.model_state)
        optimiser.load_state_dict(found.optimiser_state)
        first, best, waited = found.step, found.extra["best"], found.extra["waited"]
        elapsed_before = float(found.extra["seconds"])
    autocast = functools.partial(computing, precision.name, device)
    fitted = _fitted(job, model, settings, autocast, device, accelerator, found)
    for line in (f"computing in {precision.name}: {precision.reason}", *fitted.told()):
        sayer(console and main)(line)
    # A run that stopped early stays so until it is given another end.
    over = found is not None and found.extra.get("stopped_before") == _ending(settings)
    trained, optimiser = accelerator.prepare(torch.compile(model) if settings.compile else model, optimiser)
    clock = _Clock(settings, job.plan, elapsed_before, accelerator)
    guard = NanGuard(settings.nan_limit)

    def update(progress: float) -> tuple[float, bool]:
        norm = step(optimiser, model.parameters(), clip=settings.clip, rate=rate(progress, settings))
        applied = guard.check(norm)
        optimiser.zero_grad(set_to_none=True)
        return float(norm), applied

    def total(x: Tensor) -> Tensor:
        return x if processes == 1 else accelerator.reduce(x.clone(), "sum")

    machine = Machine(
        update=update,
        total=total,
        processes=processes,
        device=device,
        autocast=autocast,
        no_sync=lambda: accelerator.no_sync(trained),
    )
    result: dict[str, Any] = {"stopped": "early" if over else "finished", "validation": {}}
    keeper = BestWeights(out) if settings.patience is not None or job.stop_when is not None else None
    if keeper is not None:
        if found is not None:
            keeper.restore(found.extra.get("best_step"))
        elif job.stop_when is not None:  # the guard may speak at the first look
            keeper.keep(model, 0, write=main)
    validate_every = settings.validate_every
    with (
        Tracker(
            out if main else None,
            total=_ending(settings),
            console=console and main,
            trackers=trackers,
            config=vars(settings),
            resumed_step=first if found else None,
        ) as tracker,
        SignalGuard() as signals,
    ):
        if main and found is None:
            tracker.event(
                "start", precision=precision.name, reason=precision.reason, device=str(device),
                expected_memory_mb=round(fitted.expected / 1e6), micro_batches=fitted.parts,
            )  # fmt: skip

        def check(step_number: int, progress: float, *, whole: bool = False) -> dict[str, float]:
            # On the way a sample of four steps' worth of slots keeps validation under a tenth of the run.
            held = job.validation if whole else sample(job.validation, 4 * settings.batch_slots)
            metrics = _validate(model, held, job, fitted.rows, autocast, device, accelerator, total)
            shown = {f"validation_{k}": v for k, v in metrics.items()}
            for name, batches in (job.extra_validation or {}).items():
                batches = batches if whole else sample(batches, 4 * settings.batch_slots)
                more = _validate(model, batches, job, fitted.rows, autocast, device, accelerator, total)
                shown |= {f"{name}_{k}": v for k, v in more.items()}
            tracker.log(step_number, progress, kind="validation", **shown)
            if job.measure is not None and main and (probed := job.measure(model)):
                tracker.log(step_number, progress, kind="probe", **probed)
            return shown

        def checkpoint(step_number: int) -> None:
            nonlocal saved_at, pause
            began = time.monotonic()
            others = random_states(accelerator)
            if main:
                save_checkpoint(
                    out, step=step_number, model_state=model.state_dict(),
                    optimiser_state=optimiser.state_dict(), keep=settings.keep,
                    extra={
                        "best": best, "best_step": keeper.step if keeper else None, "waited": waited,
                        "next_check": next_check, "seconds": clock.elapsed(),
                        "precision": precision.name, "parts": fitted.parts, "fingerprint": job.fingerprint,
                        "stopped_before": _ending(settings) if result["stopped"] == "early" else None,
                        "random_states": others,
                    },
                )  # fmt: skip
            accelerator.wait_for_everyone()
            saved_at = time.monotonic()
            pause = max(settings.checkpoint_seconds, (saved_at - began) / CHECKPOINT_SHARE)

        saved_at, pause, slots, spent, waste = time.monotonic(), settings.checkpoint_seconds, 0, 0.0, []
        number, next_check = first, clock.progress(first) + 0.05
        if found is not None:
            next_check = min(next_check, found.extra.get("next_check", math.inf))
        steps = iter(()) if over else _steps(job, fitted.parts, first, accelerator)
        for report in pretrain(
            trained, steps, job.corruption, machine,
            seed=settings.seed, first_step=first, progress=clock.progress,
        ):  # fmt: skip
            number = report.step
            slots, spent = slots + report.slots, spent + report.seconds
            waste.append(report.padding_waste)
            if number % settings.log_every == 0 or number == first + 1:
                tracker.log(number, report.progress, **_row(report, settings, slots / max(spent, 1e-9)))
            due = number % validate_every == 0 if validate_every else report.progress >= next_check
            if due and job.validation:
                next_check = report.progress + 0.05
                metrics = result["validation"] = check(number, report.progress)
                guarded = job.stop_when is not None and job.stop_when(metrics)
                improved = not guarded and (best is None or metrics["validation_loss"] < best)
                best = metrics["validation_loss"] if improved else best
                waited = 0 if improved else waited + 1
                if improved and keeper is not None:
                    keeper.keep(model, number, write=main)
                if guarded or (settings.patience is not None and waited >= settings.patience):
                    result["stopped"] = "early"
                    break
            if bool(total(torch.tensor([float(signals.requested)], device=device)) > 0):
                result["stopped"] = "signal"
                checkpoint(number)
                break
            if settings.checkpoint_every:
                if number % settings.checkpoint_every == 0:
                    checkpoint(number)
            elif clock.agreed(time.monotonic() - saved_at - pause) > 0:
                checkpoint(number)
        kept = number
        if result["stopped"] != "signal":
            checkpoint(number)  # what a longer run would go on from
            if keeper is not None and keeper.state is not None and keeper.step != number:
                # The last weights are judged where the others were, unless they are why the run stopped.
                last = check(number, 1.0) if result["stopped"] == "finished" else None
                better = last is not None and (best is None or last["validation_loss"] < best)
                if last is None or not better or (job.stop_when is not None and job.stop_when(last)):
                    model.load_state_dict(keeper.state)
                    kept = keeper.step
                    tracker.event("kept", step=kept)
            if job.validation:
                result["validation"] = check(number, 1.0, whole=True)
            if main and save is not None:
                save(model)
        tracker.event("end", stopped=result["stopped"], skipped=guard.total)
        accelerator.wait_for_everyone()
    return RunResult(
        steps=number, kept_step=kept, seconds=clock.elapsed(), slots_per_second=slots / max(spent, 1e-9),
        padding_waste=sum(waste) / max(len(waste), 1), skipped_steps=guard.total, precision=precision.name,
        device=str(device), peak_memory_mb=peak_memory(), expected_memory_mb=round(fitted.expected / 1e6),
        micro_batches=fitted.parts, **result,
    )  # fmt: skip


def refuse_compile(settings: TrainSettings) -> None:
    """Asked before long work: compiled training does not pay on CPUs.

    Raises:
        UserError: compile=true where the run would be on a CPU, with what was measured.
    """
    if settings.compile and resolve_device(settings.device).type == "cpu":
        raise UserError(
            "compile=true on a CPU: with static shapes it trained at 0.99 to 1.03 times the speed after 4 to 30 s of compiling, "
            "with those of packed batches 8 steps took 186 s",
            hint="Leave it out; it is for GPUs. `unmask.load(..., compile=True)` compiles a model in use, where it pays.",
        )


def run_folder(out: str | Path, *, resume: bool) -> Path:
    """A run's folder, asked for before long work: one that can be made, or holds the run to continue, or neither run nor
    model.

    Raises:
        UserError: it is not such a folder.
    """
    out = check_folder(out)
    held = [name for name in ("checkpoints", "config.json", "model.safetensors") if (out / name).exists()]
    if held and not (resume and "checkpoints" in held):
        hint = "Choose another --out." if resume else "Choose another --out, or add --resume to continue a run."
        raise UserError(f"{out} already holds a run or a model", hint=hint)
    return out


def sayer(console: bool) -> Callable[[str], None]:
    """What tells people, on stderr, how long work goes; nothing where no console is asked for."""
    return (lambda text: print(text, file=sys.stderr, flush=True)) if console else (lambda text: None)


def sample(batches: Sequence[PackedBatch], slots: int) -> Sequence[PackedBatch]:
    """At most about `slots` slots of the batches, evenly spread over them, always the same; at least one batch."""
    lazy = batches if isinstance(batches, MadeWhenNeeded) else None
    size = sum(b.segment.numel() for b in batches) if lazy is None else len(lazy) * lazy.slots
    count = max(1, min(len(batches), round(len(batches) * slots / max(size, 1))))
    numbers = [int(i * len(batches) / count) for i in range(count)]
    return [batches[i] for i in numbers] if lazy is None else lazy.some(numbers)


class _Clock:
    """Fraction of the run done: by steps, epochs or minutes; minutes are agreed among the processes."""

    def __init__(self, settings: TrainSettings, plan: Plan, before: float, accelerator: Any) -> None:
        self.minutes, self.accelerator = settings.minutes, accelerator
        self.before, self.started = before, time.monotonic()
        self.steps = float(settings.steps or 0)
        if settings.epochs is not None:
            self.steps = max(1.0, round(plan.steps_per_epoch() * settings.epochs))

    def elapsed(self) -> float:
        return self.before + time.monotonic() - self.started

    def agreed(self, value: float) -> float:
        """The first process's value, on all of them."""
        if self.accelerator.num_processes == 1:
            return value
        shared = torch.tensor([value if self.accelerator.is_main_process else 0.0], device=self.accelerator.device)
        return float(self.accelerator.reduce(shared, "sum"))

    def progress(self, number: int) -> float:
        if self.minutes is not None:
            return self.agreed(self.elapsed() / (60 * self.minutes))
        return number / self.steps


def _precision(settings: TrainSettings, device: torch.device, found: Checkpoint | None, accelerator: Any) -> Precision:
    """A resumed run computes as it did before, and all processes as the first."""
    asked = settings.precision
    if found is not None and asked == "auto":
        asked = found.extra["precision"]
    if accelerator.num_processes == 1:
        return resolve_precision(asked, device)
    mine = resolve_precision(asked, device) if accelerator.is_main_process else None
    half = float(mine is not None and mine.name == "bf16")
    chosen = float(accelerator.reduce(torch.tensor([half], device=device), "sum"))
    return mine or resolve_precision("bf16" if chosen else "fp32", device)


def _fitted(
    job: Job, model: nn.Module, settings: TrainSettings, autocast: Any, device: torch.device, accelerator: Any,
    found: Checkpoint | None,
) -> Fitted:  # fmt: skip
    """What the run will need, and micro-batches that fit; all processes split a step as the first does.

    Raises:
        UserError: not even one row at a time fits.
    """
    some = job.plan.examples[: 64 * max(1, job.plan.slots // max(int(job.plan.lengths[0]), 1))]
    placed = place_best_fit(job.plan.lengths[some], job.plan.slots)
    rows = [[int(some[i]) for i in row] for row in placed]

    def make(count: int) -> PackedBatch:
        return job.make_batch((rows * count)[:count], count, *((0,) if job.by_epoch else ()))

    need = measure(
        model, make, job.corruption, device=device, autocast=autocast, waiting=job.look_ahead + bool(job.look_ahead)
    )
    free = free_memory(settings.memory, device=device)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if device.type == "cpu" else 1
    fixed = None if found is None else found.extra.get("parts", settings.accumulate)
    fitted = fit(
        need, rows=-(-job.plan.rows // accelerator.num_processes), asked=settings.accumulate,
        free=free._replace(bytes=free.bytes / here), held=held_memory() if device.type == "cpu" else 0.0, unit=job.unit,
        fixed=fixed,
    )  # fmt: skip
    if accelerator.num_processes > 1:
        mine = float(fitted.parts) if accelerator.is_main_process else 0.0
        parts = int(accelerator.reduce(torch.tensor([mine], device=device), "sum"))
        rows_each = -(-job.plan.rows // (parts * accelerator.num_processes))
        fitted = dataclasses.replace(fitted, parts=parts, rows=rows_each)
    return fitted


class _MicroBatches(Collection[PackedBatch]):
    """The micro-batches of one step, of a known number, each made when it is asked for; gone through once."""

    def __init__(self, batches: Iterator[PackedBatch], count: int) -> None:
        self._batches, self._count = batches, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PackedBatch]:
        return self._batches

    def __contains__(self, batch: object) -> bool:
        return False


def _steps(job: Job, accumulate: int, first: int, accelerator: Any) -> Iterator[tuple[int, Collection[PackedBatch]]]:
    """(epoch, this process's micro-batches) per step; only those that are in work, or made ahead, are in memory."""
    processes, rank = accelerator.num_processes, accelerator.process_index
    parts = accumulate * processes
    rows = -(-job.plan.rows // parts)

    def made() -> Iterator[tuple[int, PackedBatch]]:
        for planned in job.plan.steps(skip=first):
            about = (planned.epoch,) if job.by_epoch else ()
            for share in deal(planned.rows, parts)[rank::processes]:
                yield planned.epoch, job.make_batch(share, rows, *about)

    with contextlib.closing(ahead(made(), job.look_ahead)) as batches:
        for epoch, batch in batches:
            rest = map(operator.itemgetter(1), itertools.islice(batches, accumulate - 1))
            step = _MicroBatches(itertools.chain([batch], rest), accumulate)
            del batch
            yield epoch, step


def _validate(
    model: nn.Module, batches: Sequence[PackedBatch], job: Job, rows: int, autocast: Any,
    device: torch.device, accelerator: Any, total: Callable[[Tensor], Tensor],
) -> dict[str, float]:  # fmt: skip
    """Loss and accuracy over all processes, of at most `rows` rows at a time: as many as a micro-batch has, so that looking never
    takes more memory than a step does."""
    mine = batches[accelerator.process_index :: accelerator.num_processes]
    # Neither the chain nor the map holds on to a batch while the next one is made, as a loop would.
    parts = itertools.chain.from_iterable(map(operator.methodcaller("cut", rows), mine))
    part = validate(model, parts, job.validation_corruption, seed=0, autocast=autocast, device=device)
    n = part["hidden_slots"]
    right = part.get("accuracy", math.nan) * n
    sums = total(torch.tensor([part["loss"] * n, right, n], dtype=torch.float64, device=device))
    loss, right, hidden = (float(x) for x in sums)
    accuracy = {} if math.isnan(right) else {"accuracy": right / max(hidden, 1)}
    return {"loss": loss / max(hidden, 1), **accuracy}


def _row(report: StepReport, settings: TrainSettings, speed: float) -> dict[str, Any]:
    return {
        "loss": report.loss, "accuracy": report.accuracy, "slots_per_second": speed,
        "padding_waste": report.padding_waste, "hidden_slots": report.hidden,
        "gradient_norm": report.gradient_norm, "epoch": report.epoch, "skipped": report.skipped,
        "learning_rate": settings.learning_rate * rate(report.progress, settings),
    }  # fmt: skip


def _ending(settings: TrainSettings) -> str:
    if settings.minutes is not None:
        return f"{settings.minutes:g} minutes"
    return f"{settings.steps} steps" if settings.steps is not None else f"{settings.epochs:g} epochs"
