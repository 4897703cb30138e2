"""Fine-tuning for a text task from data to folder: rows, the head's start, the steps, the state that is kept, the
baselines it is compared with, and writing."""

from __future__ import annotations

import copy
import dataclasses
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from unmask.errors import UserError, option, setting
from unmask.evaluation.card import model_name, source_name
from unmask.kernels.threads import one_core
from unmask.modalities.text.network.folder import TextFolder
from unmask.modalities.text.tasks import compare, loop
from unmask.modalities.text.tasks import model as models
from unmask.modalities.text.tasks.analysis import write_report
from unmask.modalities.text.tasks.baselines import fit_baseline
from unmask.modalities.text.tasks.data import Problems, by_split, judged_part
from unmask.modalities.text.tasks.encoding import ExampleMaker
from unmask.modalities.text.tasks.held_out import group_notes, hold_out, several_labels
from unmask.modalities.text.tasks.missing import unread_notes
from unmask.modalities.text.tasks.model import TaskFolder
from unmask.modalities.text.tasks.probe import Probed
from unmask.modalities.text.tasks.registry import task_class
from unmask.modalities.text.tasks.results import FittedTask, TaskRows
from unmask.modalities.text.tasks.row_files import Columns
from unmask.modalities.text.tasks.scorers import merit
from unmask.modalities.text.tasks.settings import TaskSettings, refuse_of_other_tasks, settled
from unmask.modalities.text.tasks.task import TextTask
from unmask.training.finetune_checkpoints import Checkpointer
from unmask.training.launcher import check_one_process
from unmask.training.precision import precision_of, resolve_device, resolve_precision
from unmask.training.processes import Processes
from unmask.training.same_run import digest
from unmask.training.settings import refuse_unread
from unmask.training.tracking import Tracker
from unmask.writing import final_place, first_of_all, temporary_name, training_folder, written_folder

EVALUATION_SETTINGS = ("refit", "evaluate_every", "patience", "examples")
"""Settings of how held-out rows are evaluated."""
REFIT_SHARE = 0.1
"""Of the rows: where fewer were held out, training on all of them would take as long again and add little."""
TUNED = "fine-tuned"
UNTUNED = {True: "linear probe of the frozen encoder", False: "the model before fine-tuning"}


class TaskTraining:
    """One call of `finetune`: see there for the arguments."""

    def __init__(
        self,
        task: str,
        model: Any,
        settings: TaskSettings,
        *,
        out: Path,
        metric: str | None,
        say: Callable[[str], None],
    ) -> None:
        self.task, self.kind = task, task_class(task)
        self.model, self.settings, self.out, self.metric, self.say = model, settings, out, metric, say
        if metric is not None and "metric" not in self.kind.options:
            raise UserError(f"metric={metric}", hint=f"Only classify has a choice of metrics, {task} has its own.")
        refuse_of_other_tasks(task, settings, windowed=self.kind.windowed)
        self.micro_slots: int | None = None
        """Slots of a forward pass, as the first run found them to fit."""

    def read(self, train: Any, validation: Any, columns: Columns | None, *, lenient: bool) -> TaskRows:
        """The rows to train on and those held out."""
        problems = Problems(lenient=lenient, say=self.say)
        columns = columns or Columns()
        if columns.group and self.settings.group not in (None, columns.group):
            raise UserError(
                f"{setting('group', self.settings.group)} and columns with group={columns.group!r}: two columns",
                hint="Say it once: they are the same.",
            )
        # One thing by two names: what is kept in the folder is the setting.
        self.settings = dataclasses.replace(self.settings, group=self.settings.group or columns.group)
        columns = dataclasses.replace(columns, group=self.settings.group)
        items, read_from = self.kind.read(train, columns, labelled=True, problems=problems)
        named = read_from.named if read_from else {}
        held = None
        if parts := by_split(items):
            counts = ", ".join(f"{len(rows):,} {name}" for name, rows in parts.items())
            unread = "" if "test" not in parts else "; test rows are left out"
            self.say(f"a column says what the rows are for: {counts}{unread}")
            items, held = parts.get("train", []), parts.get("validation")
            if not items:
                raise UserError(f"no training rows: {counts}", hint="Call them train in the column, or leave it out.")
            if held is not None and validation is None:
                refuse_unread(self.settings, ["held", "refit"], "with validation rows in the data")
        if validation is not None:
            refuse_unread(self.settings, ["held", "refit"], "with validation data")
            learnt = named | ({"group": columns.group} if columns.group else {})
            wanted = dataclasses.replace(columns, group=None).trained_on(learnt)
            held, held_from = self.kind.read(validation, wanted, labelled=True, problems=problems)
            held = judged_part(held)
            if held_from and (warning := held_from.differing()):
                self.say(f"validation data: {warning}")
        if read_from:
            self.say(f"columns: {read_from.line()}")
        self.text = self._open()
        self.slots = min(self.settings.slots or 10**9, self.text.slots)
        self.settings = settled(self.settings, self.text.model.encoder.config.width)
        shared, taken = hold_out(items, held, self.settings, self.say)
        rest, held = taken or (items, held)
        if held is None:
            refuse_unread(self.settings, EVALUATION_SETTINGS, "without validation data, and no rows are held out")
        return TaskRows(
            items=items,
            training=rest,
            held_out=held,
            chosen=taken is not None,
            shared=shared,
            columns=named,
            source=source_name(train),
        )

    def _open(self) -> TextFolder:
        torch.manual_seed(self.settings.seed)  # of a masked-LM head that the model lacks
        text = models.text_folder(self.model)
        if text.model.visible_only:
            self.say("the decoder of the visible-only model is left out: tasks stand on its encoder")
        if self.task == "similarity":
            text.sentences.refuse_unless_plain("finetune similarity")
            if self.settings.pooling == "auto":
                pooling = cast(Any, text.sentences.pooling)
                self.settings = dataclasses.replace(self.settings, pooling=pooling)
        return text

    def checkpointer(self, rows: TaskRows, *, resume: bool) -> Checkpointer:
        """The checkpoints of this run, in the training folder of `out`."""
        chosen = {k: v for k, v in asdict(self.settings).items() if k not in ("memory", "examples")}
        return Checkpointer(
            training_folder(self.out),
            seconds=self.settings.checkpoint_seconds,
            resume=resume,
            fingerprint={
                "settings": {"task": self.task, "metric": self.metric, **chosen},
                "the training data": digest(rows.items),
                "the validation data": digest(rows.held_out),
            },
        )

    def train(self, rows: TaskRows, *, checkpoints: bool, resume: bool, console: bool) -> dict[str, Any]:
        """Train and write the folder; returns what `finetune` does."""
        settings, out = self.settings, self.out
        checkpointer = self.checkpointer(rows, resume=resume) if checkpoints or resume else None
        if checkpointer is None:
            refuse_unread(settings, ["checkpoint_seconds"], "without checkpoints")
        resumed = checkpointer.found if checkpointer else None
        self.device = resolve_device(settings.device)
        self.precision = resolve_precision(resumed.extra["precision"] if resumed else settings.precision, self.device)
        self._say_notes(rows)
        refit = rows.chosen and settings.refit is not False and settings.minutes is None
        scratch = temporary_name(training_folder(final_place(out)))
        if checkpointer is not None:
            scratch, checkpointer.more = checkpointer.folder, refit
            checkpointer.about["precision"] = self.precision.name
        done = False
        try:
            with Tracker(
                scratch, total="fine-tuning", console=console, resumed_step=resumed.step if resumed else None
            ) as tracker:
                if not resumed:
                    about = {"precision": self.precision.name, "reason": self.precision.reason}
                    tracker.event("start", **about, device=str(self.device), task=self.task)
                fitted = self.fit(rows, tracker=tracker, checkpointer=checkpointer)
                refit = fitted.outcome.stopped != "signal" and refit and self._should_refit(fitted, rows)
                if Processes.of_launcher().from_first(refit):
                    fitted = self.refit(rows, fitted)
            result = self._result(rows, fitted)
            if fitted.outcome.stopped != "signal" and first_of_all():
                self._write(out, scratch, rows, fitted, result)
            done = fitted.outcome.stopped != "signal"
        finally:
            if (checkpointer is None or done or not checkpointer.kept()) and first_of_all():
                shutil.rmtree(scratch, ignore_errors=True)
        return result

    def _say_notes(self, rows: TaskRows) -> None:
        reader = self._encoder(self.text)
        for line in group_notes([*rows.items, *(rows.held_out or ())]):
            self.say(line)
        for what, part in (("", rows.items), ("validation data: ", None if rows.chosen else rows.held_out)):
            given = part or []
            notes = [*self.kind.remarks(reader, given, labelled=True), *unread_notes(self.text.tokenizer, given)]
            for line in [*notes, *several_labels(given)]:
                self.say(f"{what}{line}")

    def _encoder(self, text: TextFolder) -> ExampleMaker:
        return ExampleMaker(text.tokenizer, slots=self.slots, types=bool(text.model.codec.config.types))

    def _new_model(self, text: TextFolder, rows: TaskRows, items: Sequence[Any]) -> tuple[FittedTask, list[str]]:
        """The task on some of the rows, with the folder's model before any step; and names of its random parameters."""
        options = {"metric": self.metric} if "metric" in self.kind.options else {}
        begin: Callable[..., TextTask] = self.kind.from_items
        task = begin(self._encoder(text), rows.items, self.settings, **options)
        torch.manual_seed(self.settings.seed)
        built, random = models.build(text, task.head, task.outputs, pooling=task.about.get("pooling"))
        built.to(self.device)
        built.precision = precision_of(built, self.settings.precision, self.device)  # as the saved folder will compute
        folder = TaskFolder(text=text, model=built, about=task.about)
        training, nothing = task.prepare(task.named(list(items)), labelled=True), cast(Any, None)
        return FittedTask(folder=folder, task=task, training=training, held_out=None, outcome=nothing), random

    def start_head(self, fitted: FittedTask, chosen: Probed | None = None) -> Probed | None:
        """Make the task's head a linear probe of the frozen encoder; None for a task without a head, or that does not
        start so."""
        built, seed = fitted.folder.model, self.settings.seed
        if built.head is None:
            return None
        with one_core():
            found = fitted.task.start_head(
                fitted.folder.text, built, fitted.training, slots=self.slots, seed=seed, chosen=chosen
            )
        torch.manual_seed(seed)
        built.to(self.device)
        return found

    def fit(
        self, rows: TaskRows, *, tracker: Tracker | None = None, checkpointer: Checkpointer | None = None
    ) -> FittedTask:
        """Start, train, keep the best state by the held-out rows, calibrate, and compare it with its baselines."""
        settings, text = self.settings, self.text
        fitted, random = self._new_model(text, rows, rows.training)
        task, built, training = fitted.task, fitted.folder.model, fitted.training
        if rows.held_out is not None:
            fitted.held_out = task.prepare(task.named(list(rows.held_out)), labelled=True)
        held_out = fitted.held_out
        for guess in ("problem", "loss"):
            if guess in task.about and getattr(settings, guess) == "auto":
                self.say(f"{guess}: {task.about[guess]}, by the labels and columns ({setting(guess)} overrules)")
        for line in task.label_remarks(task.named(list(rows.items))):
            self.say(line)
        if task.uses_vocabulary and text.why_not_masked():
            self.say(f"{self.model}: no masked-LM head; that of mlm_weight is learnt from scratch and not kept")
        if task.terms(training, np.arange(1)) is None:
            check_one_process("a loss that compares all texts of a step")
            refuse_unread(settings, ["micro_slots"], "with a loss that compares all texts of a step")
        compares = settings.start == "probe" and held_out is not None
        if settings.baseline != "none" and not compares:
            raise UserError(
                f"{setting('baseline', settings.baseline)} without held-out rows to judge it by",
                hint=f"Give {option('validation', 'DATA')}, or more rows.",
            )
        if settings.start == "probe" and not _head_fits(text, task, random):
            fitted.probed = self.start_head(fitted)
        first, before, initial, others = None, None, None, list[compare.Rival]()
        if compares and held_out is not None:
            found = loop.outputs(built, task, held_out)
            before = task.decode(found, held_out)
            first = task.score(before, held_out.items)
            rho = first.get("spearman", 0.0) if task.head is None else 0.0
            if rho * math.sqrt(len(held_out.items)) < -3:  # standard errors of no correlation
                self.say(
                    f"warning: before training, cosines of held-out pairs go against their labels (Spearman {rho:.2f}, "
                    f"{len(held_out.items):,} pairs): a higher label must mean more alike; turn distances round"
                )
            others = compare.rivals(task, built, training, held_out, found=found, seed=settings.seed)
            if settings.baseline != "none":
                compare.rival_called(settings.baseline, others)  # refused before it is trained
            initial = copy.deepcopy(built.state_dict())
        tuning = loop.TextFinetuning(built, task, training, held_out, settings, self.precision.name)
        fitted.outcome = tuning.train(
            tracker=tracker, checkpointer=checkpointer, first=first, initial=initial, say=self.say
        )
        fitted.tokens, fitted.expected_memory = tuning.tokens, tuning.expected
        self.micro_slots = tuning.micro_slots
        if fitted.outcome.stopped == "signal" or held_out is None:
            return fitted
        if settings.freeze:  # stored states stand for the frozen layers only while training
            fitted.held_out = task.prepare(held_out.items, labelled=True)
        if before is None or initial is None:
            self._predict(fitted)
        else:
            self._judge(fitted, before, initial, others)
        return fitted

    def _predict(self, fitted: FittedTask) -> list[dict[str, Any]]:
        """Calibrate the state as it is; its predictions of the held-out rows."""
        task, held_out = fitted.task, fitted.held_out
        assert held_out is not None
        fitted.predictions = task.judged(loop.outputs(fitted.folder.model, task, held_out), held_out)
        return fitted.predictions

    def _judge(
        self,
        fitted: FittedTask,
        before: list[dict[str, Any]],
        initial: dict[str, Tensor],
        others: Sequence[compare.Rival],
    ) -> None:
        """Keep the better of the states before and after training, and compare it with the baselines."""
        task, held_out, outcome, settings = fitted.task, fitted.held_out, fitted.outcome, self.settings
        assert held_out is not None
        untouched = dict(task.about)
        kept = self._predict(fitted)
        tuned, reason = kept if outcome.kept_step else None, None
        if tuned is not None:
            gain, error = compare.gain(task, tuned, before, held_out.items, seed=settings.seed)
            # The simpler of two that the rows cannot tell apart (Breiman et al. 1984, sec. 3.4.3).
            if gain <= error or settings.baseline != "none":
                if gain <= error:
                    reason = (
                        f"fine-tuned is better by {gain:.3f}, no more than the standard error of that ({error:.3f})"
                    )
                fitted.folder.model.load_state_dict(initial)
                outcome.kept_step = 0
                kept = self._predict(fitted)
        name = UNTUNED[fitted.probed is not None]
        own = [(name, before if outcome.kept_step else kept), *([(TUNED, tuned)] if tuned is not None else [])]
        comparison = compare.judge(
            task,
            own,
            TUNED if outcome.kept_step else name,
            others,
            held_out,
            seed=settings.seed,
            baseline=settings.baseline,
        )
        comparison.reason = reason if comparison.baseline is None else None
        if tuned is None and outcome.history[1:]:
            best = max((row[task.metric] for row in outcome.history[1:]), key=lambda v: merit(task.metric, v))
            comparison.table.append({"model": TUNED, "value": best, "low": None, "high": None, "kept": False})
        fitted.comparison = comparison
        if comparison.baseline is not None:
            task.about.update(untouched)
            fitted.predictions = next(o.predictions for o in others if o.baseline is comparison.baseline)

    def _should_refit(self, fitted: FittedTask, rows: TaskRows) -> bool:
        """Whether to train again on all rows; that it is done, or is not worth its time, is printed."""
        held, every = len(rows.held_out or []), len(rows.items)
        if fitted.outcome.kept_step and not self.settings.refit and held < REFIT_SHARE * every:
            self.say(f"{held:,} of {every:,} rows were held out: not trained again on all ({setting('refit', True)})")
            return False
        self.say(f"chosen on {held:,} rows held out; training on all {every:,} by the same recipe")
        return True

    def refit(self, rows: TaskRows, fitted: FittedTask) -> FittedTask:
        """The recipe that `fitted` came to, on all rows: pooling and C, as many epochs, the baseline that is saved.

        Temperature and thresholds stay as fitted on the rows that were held out.
        """
        new, _ = self._new_model(models.text_folder(self.model), rows, rows.items)
        task, built, old = new.task, new.folder.model, fitted.outcome
        if fitted.probed is not None:
            self.start_head(new, fitted.probed)
        comparison = fitted.comparison
        if comparison is not None and (baseline := comparison.baseline) is not None:
            comparison.baseline = fit_baseline(
                baseline.kind, task, built, new.training, seed=self.settings.seed, strength=baseline.model.strength
            )
            assert comparison.baseline is not None  # the training rows held words
        new = dataclasses.replace(
            fitted, folder=new.folder, task=task, training=new.training, comparison=comparison, refitted=True
        )
        if old.kept_step:
            settings = dataclasses.replace(self.settings, patience=None, micro_slots=self.micro_slots)
            tuning = loop.TextFinetuning(built, task, new.training, None, settings, self.precision.name)
            more = tuning.train(until=old.kept_step / old.total)
            new.tokens += tuning.tokens
            new.outcome = dataclasses.replace(
                old,
                seconds=old.seconds + more.seconds,
                cpu_seconds=old.cpu_seconds + more.cpu_seconds,
                peak_memory_mb=max(old.peak_memory_mb, more.peak_memory_mb),
            )
        built.eval()
        task.about.update(fitted.task.about)
        return new

    def _result(self, rows: TaskRows, fitted: FittedTask) -> dict[str, Any]:
        task, outcome, comparison = fitted.task, fitted.outcome, fitted.comparison
        metrics = outcome.metrics
        if outcome.stopped == "signal":
            metrics = {}
        elif fitted.held_out is not None and fitted.predictions is not None:
            metrics = task.score(fitted.predictions, fitted.held_out.items)
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
            "rows_trained_on": fitted.trained_on,
            "rows_in_both": rows.shared,
            "expected_memory_mb": round(fitted.expected_memory / 1e6),
            "peak_memory_mb": outcome.peak_memory_mb,
            "seed": self.settings.seed,
            "device": str(self.device),
            "precision": self.precision.name,
            "history": outcome.history,
            "probe": None if fitted.probed is None else fitted.probed.to_dict(),
            "comparison": None if comparison is None else comparison.table,
            "kept": None if comparison is None else comparison.kept,
        }

    def _write(self, out: Path, scratch: Path, rows: TaskRows, fitted: FittedTask, result: dict[str, Any]) -> None:
        """Write the folder and its report; adds `lines`, for a terminal, to `result`."""
        result["lines"], task = fitted.lines(len(rows.items)), fitted.task
        if rows.columns:
            task.about["columns"] = rows.columns
        recorded = ("metrics", "comparison", "kept", "rows_trained_on", "rows_held_out")
        task.about |= {"settings": asdict(self.settings), "base": model_name(models.place_of(self.model))}
        task.about |= {"source": rows.source} if rows.source else {}
        task.about |= {name: result[name] for name in recorded}
        baseline = None if fitted.comparison is None else fitted.comparison.baseline
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
                new, fitted.folder, task, fitted.held_out, fitted.predictions, result, examples=self.settings.examples
            )


def _head_fits(text: TextFolder, task: TextTask, random: list[str]) -> bool:
    """Whether the folder's own head was made for these very outputs."""
    if random or task.head is None:
        return not random
    names = text.hf_config.get("id2label") or {}
    labels = task.about.get("labels")
    return not labels or [names.get(str(i)) for i in range(len(labels))] == [str(n) for n in labels]
