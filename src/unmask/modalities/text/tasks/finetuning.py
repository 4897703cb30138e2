"""Fine-tuning for a text task from data to folder: reading, training, what came of it, and writing."""

from __future__ import annotations

import dataclasses
import json
import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from unmask.errors import UserError, option, setting
from unmask.evaluation.card import model_name, source_name
from unmask.modalities.text.network.folder import TextFolder, load_folder
from unmask.modalities.text.tasks import loop
from unmask.modalities.text.tasks import model as models
from unmask.modalities.text.tasks.analysis import write_report
from unmask.modalities.text.tasks.data import Columns
from unmask.modalities.text.tasks.encoding import ExampleMaker
from unmask.modalities.text.tasks.fit import FittedTask, TaskRun
from unmask.modalities.text.tasks.held_out import hold_out, several_labels
from unmask.modalities.text.tasks.lenient import Problems
from unmask.modalities.text.tasks.missing import unread_notes
from unmask.modalities.text.tasks.registry import task_class
from unmask.modalities.text.tasks.settings import TaskSettings, refuse_of_other_tasks, settled
from unmask.modalities.text.tasks.task import TextTask
from unmask.training.finetune_checkpoints import Checkpointer
from unmask.training.precision import Precision, resolve_device, resolve_precision
from unmask.training.settings import refuse_unread, to_dict
from unmask.training.tracking import Tracker
from unmask.writing import final_place, temporary_name, training_folder, written_folder

Say = Callable[[str], None]
JUDGED_BY = ("refit", "evaluate_every", "patience", "examples")
"""Settings of how held-out rows are looked at."""


@dataclass(frozen=True, kw_only=True)
class TaskRows:
    """The rows of a run.

    Attributes:
        items: all training rows; classes are learnt from them.
        training: those that are trained on before the recipe is settled.
        held_out: what stops, keeps and calibrates; None without any.
        chosen: the held-out rows were taken from the training rows.
        shared: rows that are in both.
        read_from: the columns they were read from; None where the data has none.
        source: how their file is called; "" for rows in memory.
    """

    items: Sequence[Any]
    training: Sequence[Any]
    held_out: Sequence[Any] | None
    chosen: bool
    shared: int
    read_from: Columns | None
    source: str = ""

    @property
    def columns(self) -> dict[str, str]:
        """Names of the columns by their parts."""
        return self.read_from.named if self.read_from else {}


class TaskTraining:
    """One call of `finetune`: see there for the arguments."""

    def __init__(
        self, task: str, model: str | Path, settings: TaskSettings, *, out: Path | None, metric: str | None, say: Say
    ) -> None:
        self.task = task
        self.kind = task_class(task)
        self.model, self.settings, self.out, self.metric, self.say = model, settings, out, metric, say
        if metric is not None and "metric" not in self.kind.options:
            raise UserError(f"metric={metric}", hint=f"Only classify has a choice of metrics, {task} has its own.")
        refuse_of_other_tasks(task, settings, windowed=self.kind.windowed)
        self.work_ratio: float | None = None

    def read(self, train: Any, validation: Any, columns: Columns | None, *, lenient: bool) -> TaskRows:
        """The rows to train on and those held out."""
        problems = Problems(lenient=lenient, say=self.say)
        columns = dataclasses.replace(columns or Columns(), group=self.settings.group)
        items, read_from = self.kind.read(train, columns, labelled=True, problems=problems)
        held = None
        if validation is not None:
            refuse_unread(self.settings, ["held", "refit"], "with validation data")
            named = (read_from.named if read_from else {}) | ({"group": columns.group} if columns.group else {})
            wanted = dataclasses.replace(columns, group=None).trained_on(named)
            held, held_from = self.kind.read(validation, wanted, labelled=True, problems=problems)
            if held_from and (warning := held_from.not_there()):
                self.say(f"validation data: {warning}")
        if read_from:
            self.say(f"columns: {read_from.said()}")
        self.text = self._open()
        self.settings = settled(self.settings, self.text.model.encoder.config.width)
        shared, taken = hold_out(items, held, self.settings, self.say)
        rest, held = taken or (items, held)
        if held is None:
            refuse_unread(self.settings, JUDGED_BY, "without validation data, and no rows are held out")
        return TaskRows(
            items=items,
            training=rest,
            held_out=held,
            chosen=taken is not None,
            shared=shared,
            read_from=read_from,
            source=source_name(train),
        )

    def _open(self) -> TextFolder:
        text = load_folder(self.model)
        if text.model.visible_only:
            self.say("the decoder of the visible-only model is left out: tasks stand on its encoder")
        if self.task == "similarity":
            text.sentences.refuse_unless_plain("finetune similarity")
            if self.settings.pooling == "auto":
                pooling = cast(Any, text.sentences.pooling)
                self.settings = dataclasses.replace(self.settings, pooling=pooling)
        return text

    def checkpointer(self, rows: TaskRows, *, resume: bool) -> Checkpointer:
        """Of checkpoints beside the folder to come."""
        assert self.out is not None
        chosen = {k: v for k, v in to_dict(self.settings).items() if k not in ("memory", "examples")}
        return Checkpointer(
            training_folder(self.out),
            seconds=self.settings.checkpoint_seconds,
            resume=resume,
            fingerprint={
                "settings": {"task": self.task, "metric": self.metric, **chosen},
                "the training data": _digest(rows.items),
                "the validation data": _digest(rows.held_out),
            },
        )

    def train(self, rows: TaskRows, *, checkpoints: bool, resume: bool, console: bool) -> dict[str, Any]:
        """Train, and write the folder; what `finetune` returns."""
        settings, out = self.settings, self.out
        checkpointer = self.checkpointer(rows, resume=resume) if out is not None and (checkpoints or resume) else None
        if checkpointer is None:
            refuse_unread(settings, ["checkpoint_seconds"], "without checkpoints")
        if resume and settings.minutes is not None:
            raise UserError(
                f"{option('resume', True)} with {option('minutes')}",
                hint=f"A run that ends by the clock starts anew: give {option('epochs')} to resume.",
            )
        resumed = checkpointer.found if checkpointer else None
        self.device = resolve_device(settings.device)
        self.precision: Precision = resolve_precision(
            resumed.extra["precision"] if resumed else settings.precision, self.device
        )
        run = self._run(rows)
        again = rows.chosen and settings.refit is not False and settings.minutes is None and out is not None
        scratch = None if out is None else temporary_name(training_folder(final_place(out)))
        if checkpointer is not None:
            scratch, checkpointer.about["precision"], checkpointer.more = (
                checkpointer.folder,
                self.precision.name,
                again,
            )
        done = False
        try:
            with Tracker(
                scratch, total="fine-tuning", console=console, resumed_step=resumed.step if resumed else None
            ) as tracker:
                if not resumed:
                    about = {"precision": self.precision.name, "reason": self.precision.reason}
                    tracker.event("start", **about, device=str(self.device), task=self.task)
                watched = tracker if out is not None or console else None
                fitted = run.fit(self.text, rows.training, rows.held_out, checkpointer=checkpointer, tracker=watched)
                trained_on = len(rows.training)
                if fitted.outcome.stopped != "signal" and again and self._worth_it(fitted, rows):
                    fitted, trained_on = run.refit(load_folder(self.model), rows.items, fitted), len(rows.items)
            result = self._result(rows, fitted, trained_on)
            if out is not None and scratch is not None and fitted.outcome.stopped != "signal":
                self._write(out, scratch, rows, fitted, trained_on, result)
            done = fitted.outcome.stopped != "signal"
        finally:
            if scratch is not None and (checkpointer is None or done or not checkpointer.kept()):
                shutil.rmtree(scratch, ignore_errors=True)
        return result

    def _run(self, rows: TaskRows) -> TaskRun:
        """The run, with what is said of its rows said."""
        text, kind = self.text, self.kind
        slots = min(self.settings.slots or 10**9, text.model.encoder.config.longest or 512)
        reader = ExampleMaker(text.tokenizer, slots=slots, types=bool(text.model.codec.config.types))
        for what, part in (("", rows.items), ("validation data: ", None if rows.chosen else rows.held_out)):
            given = part or []
            notes = [*kind.remarks(reader, given, labelled=True), *unread_notes(text.tokenizer, given)]
            for line in [*notes, *several_labels(given)]:
                self.say(f"{what}{line}")
        options = {"metric": self.metric} if "metric" in kind.options else {}

        def make(encoder: ExampleMaker, _: Sequence[Any], given: TaskSettings) -> TextTask:
            begin: Callable[..., TextTask] = kind.from_items
            return begin(encoder, rows.items, given, **options)

        device: torch.device = self.device
        return TaskRun(
            make=make, settings=self.settings, device=device, precision=self.precision.name, slots=slots, say=self.say
        )

    def _worth_it(self, fitted: FittedTask, rows: TaskRows) -> bool:
        """Whether to train anew on the held-out rows too; where it is, or is too much work, it is said."""
        if fitted.outcome.kept_step:
            self.work_ratio = beyond(fitted, self.settings)
            if not self.settings.refit and self.work_ratio > 1:
                self.say(
                    f"not trained again on all {len(rows.items):,} rows: with choosing that would be "
                    f"{self.work_ratio:.1f} times the work of as many epochs in padded steps of 8 rows "
                    f"({setting('refit', True)} does it)"
                )
                return False
        held = rows.held_out or []
        self.say(f"chosen on {len(held):,} rows held out; training on all {len(rows.items):,} by the same recipe")
        return True

    def _result(self, rows: TaskRows, fitted: FittedTask, trained_on: int) -> dict[str, Any]:
        task, outcome, verdict = fitted.task, fitted.outcome, fitted.verdict
        metrics = outcome.metrics
        if outcome.stopped == "signal":
            metrics = {}
        elif fitted.checked is not None and fitted.predictions is not None:
            metrics = task.score(fitted.predictions, fitted.checked.items)
        return {
            "task": self.task,
            "metric": task.metric,
            "value": metrics.get(task.metric),
            "metrics": metrics,
            "steps": outcome.steps,
            "kept_step": outcome.kept_step,
            "train_seconds": round(outcome.seconds, 3),
            "cpu_seconds": round(outcome.cpu_seconds, 3),
            "validation_seconds": round(outcome.validation_seconds, 3),
            "stopped": outcome.stopped,
            "tokens_per_second": fitted.tokens / max(outcome.seconds, 1e-9),
            "rows": len(rows.items),
            "rows_held_out": len(rows.held_out or []) if rows.chosen else 0,
            "rows_trained_on": trained_on,
            "rows_in_both": rows.shared,
            "work_ratio": self.work_ratio,
            "expected_memory_mb": round(fitted.expected_memory / 1e6),
            "peak_memory_mb": outcome.peak_memory_mb,
            "seed": self.settings.seed,
            "device": str(self.device),
            "precision": self.precision.name,
            "history": outcome.history,
            "probe": None if fitted.probed is None else fitted.probed.to_dict(),
            "comparison": None if verdict is None else verdict.table,
            "kept": None if verdict is None else verdict.kept,
        }

    def _write(
        self, out: Path, scratch: Path, rows: TaskRows, fitted: FittedTask, trained_on: int, result: dict[str, Any]
    ) -> None:
        """The folder and its report; `result` gets where it is and what is to be said."""
        result["lines"], task = fitted.lines(trained_on, len(rows.items)), fitted.task
        if rows.columns:
            task.about["columns"] = rows.columns
        recorded = ("metrics", "comparison", "kept", "rows_trained_on", "rows_held_out")
        task.about |= {"settings": to_dict(self.settings), "base": model_name(self.model)}
        task.about |= {"source": rows.source} if rows.source else {}
        task.about |= {name: result[name] for name in recorded}
        baseline = None if fitted.verdict is None else fitted.verdict.baseline
        task.about |= {} if baseline is None else {"baseline": baseline.kind}
        with written_folder(out) as new:
            models.save(
                new,
                fitted.folder.text,
                fitted.folder.model,
                kind=task.head if baseline is None else None,
                about=task.about,
                config=task.config() if baseline is None else {},
                baseline=baseline,
            )
            shutil.copyfile(scratch / "metrics.jsonl", new / "metrics.jsonl")
            write_report(
                new, fitted.folder, task, fitted.checked, fitted.predictions, result, examples=self.settings.examples
            )
        result["out"] = str(out)


def _digest(items: Any) -> int:
    return zlib.crc32(json.dumps(items, default=str).encode())


USUAL = 8
"""Rows per step of the usual loop, padded to the longest of them: the defaults of transformers' Trainer."""
TRAINING = 3.0
"""Forward passes that a forward and a backward pass take as long as."""
PADDING = 1.07
"""Slots of packed steps for each slot of their texts (1.04 to 1.10 on five sets, steps of 32)."""


def beyond(fitted: FittedTask, settings: TaskSettings) -> float:
    """What choosing took and training again would take, for each unit that the usual loop takes over all rows, for as
    many epochs.

    Args:
        fitted: with rows held out, a state after some training kept.
    """
    checked, outcome = fitted.checked, fitted.outcome
    assert checked is not None
    width = fitted.folder.text.model.encoder.config.width
    rest, held = (cost(np.array([len(e) for e in part.examples]), width) for part in (fitted.training, checked))
    everything = np.concatenate([rest, held])
    items = len(loop.training_items(fitted.task, fitted.training))
    epochs = outcome.steps / -(-items // settings.batch)
    passes = int(fitted.probed is not None) + int(fitted.compared_vectors)
    spent = rest.sum() * (passes + TRAINING * PADDING * epochs) + held.sum() * (passes + 2 + len(outcome.history))
    share = outcome.kept_step / outcome.total
    again = everything.sum() * (passes + TRAINING * PADDING * epochs * share)
    return float((spent + again) / usual(everything, epochs, settings.seed))


def usual(costs: np.ndarray, epochs: float, seed: int) -> float:
    """Work of the usual loop over examples of these costs: every one costs as much as the longest of its step."""
    order = np.random.default_rng([seed, 37]).permutation(len(costs))
    steps = np.split(costs[order], range(USUAL, len(costs), USUAL))
    return float(TRAINING * epochs * sum(len(step) * step.max() for step in steps))


def cost(lengths: np.ndarray, width: int) -> np.ndarray:
    """Work of a forward pass over examples, in slots of a very short one."""
    return lengths * (1 + lengths / (1.85 * width))
