"""One fine-tuning run: the head's start, the steps, the state that is kept, and the baselines it is compared with."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.errors import UserError, option, setting
from unmask.modalities.text.network.folder import TextFolder
from unmask.modalities.text.tasks import compare, loop, simpler
from unmask.modalities.text.tasks.encoding import ExampleMaker
from unmask.modalities.text.tasks.model import TaskFolder, build
from unmask.modalities.text.tasks.prepared import Prepared
from unmask.modalities.text.tasks.probe import Probed
from unmask.modalities.text.tasks.settings import TaskSettings, settled
from unmask.modalities.text.tasks.start import keeps_its_head, start_head
from unmask.modalities.text.tasks.task import TextTask
from unmask.training.finetune import FinetuneResult
from unmask.training.finetune_checkpoints import Checkpointer
from unmask.training.settings import refuse_unread
from unmask.training.tracking import Tracker

TUNED = "fine-tuned"
BEFORE = {True: "linear probe of the frozen encoder", False: "the model before fine-tuning"}


@dataclass(kw_only=True)
class FittedTask:
    """A model after one run.

    Attributes:
        checked: the held-out rows, None without any.
        tokens: that were trained on; expected_memory: bytes that were foretold.
        found, predictions: the kept state's outputs on them.
        probed: how the head started; None where it was the folder's own, random, or there is none.
        verdict: the comparison, None where nothing was compared.
        compared_vectors: a linear model of the two texts' frozen vectors was fitted.
        refitted: trained on the held-out rows too, after they were scored.
    """

    folder: TaskFolder
    task: TextTask
    training: Prepared
    checked: Prepared | None
    outcome: FinetuneResult
    tokens: int = 0
    expected_memory: float = math.nan
    found: list[np.ndarray] | None = None
    predictions: list[dict[str, Any]] | None = None
    probed: Probed | None = None
    verdict: compare.Verdict | None = None
    compared_vectors: bool = False
    refitted: bool = False

    def lines(self, trained_on: int, rows: int) -> list[str]:
        """What was compared, what is kept, and on which rows it was trained, for a terminal.

        Args:
            trained_on: rows that the model was trained on, of `rows`.
        """
        verdict = self.verdict
        if verdict is None or self.checked is None:
            return []
        found = compare.lines(verdict, self.task.metric, len(self.checked.items))
        if verdict.reason is not None:
            found.append(f"{verdict.reason}: the simpler one is kept")
        if verdict.baseline is not None:
            found.append(f"saved: {verdict.kept}, in baseline.safetensors, without a head on the encoder")
        if verdict.no_better_than is not None:
            found.append(
                f"warning: on these rows it is no better than always answering {verdict.no_better_than}: nothing was "
                "learnt that shows; more rows or another model are needed"
            )
        elif verdict.barely_better_than is not None:
            found.append(
                f"warning: on these rows it is better than always answering {verdict.barely_better_than} by less than "
                "one standard error, which may be chance; more rows, to learn from and to judge by, would tell"
            )
        if verdict.better is not None:
            name, key = verdict.better
            way = f"{setting('baseline', key)} saves it" if key else "more rows or another model are needed"
            found.append(f"warning: {name} does better on these rows; {way}")
        if self.task.problem == "regression" and self.predictions is not None:
            mean, items = float(self.training.extra["target"].mean()), self.checked.items
            of_mean = self.task.score([{"value": mean}] * len(items), items)["rmse"]
            own = self.task.score(self.predictions, items)["rmse"]
            line = f"its rmse is {own:.4g}, that of the mean of the training rows {of_mean:.4g}"
            found.append(line if own < of_mean else f"warning: {line}: as numbers its answers are no better than it")
        whole = "all" if trained_on == rows else f"{trained_on:,} of"
        seen = "; the scores are of the model before it saw the held-out ones" if self.refitted else ""
        found.append(f"trained on {whole} {rows:,} rows{seen}")
        return found


@dataclass(kw_only=True)
class TaskRun:
    """What every run of one call shares.

    Attributes:
        make: (encoder, items, settings) -> the task.
        slots: longest example.
        say: called with what was guessed from the data, and what memory the run takes.
        micro_slots: slots of a forward pass, as `fit` found them to fit.
    """

    make: Callable[[ExampleMaker, Sequence[Any], TaskSettings], Any]
    settings: TaskSettings
    device: torch.device
    precision: str
    slots: int
    say: Callable[[str], None] = lambda line: None
    micro_slots: int | None = None

    def fit(
        self,
        text: TextFolder,
        items: Sequence[Any],
        held: Sequence[Any] | None,
        *,
        tracker: Tracker | None = None,
        checkpointer: Checkpointer | None = None,
    ) -> FittedTask:
        """Start, train, keep the best state by `held`, calibrate, and compare it with its baselines."""
        settings = settled(self.settings, text.model.encoder.config.width)
        fitted, random = self._begin(text, items, held)
        for guess in ("problem", "loss"):
            if guess in fitted.task.about and getattr(settings, guess) == "auto":
                self.say(f"{guess}: {fitted.task.about[guess]}, by the labels and columns ({setting(guess)} overrules)")
        task, built, training, checked = fitted.task, fitted.folder.model, fitted.training, fitted.checked
        if task.terms(training, np.arange(1)) is None:
            refuse_unread(settings, ["micro_slots"], "with a loss that compares all texts of a step")
        context = fitted.folder.context
        where: dict[str, Any] = {"slots": self.slots, "device": self.device, "context": context}
        compares = settings.start == "probe" and checked is not None
        if settings.baseline != "none" and not compares:
            raise UserError(
                f"{setting('baseline', settings.baseline)} without held-out rows to judge it by",
                hint=f"Give {option('validation', 'DATA')}, or more rows.",
            )
        if settings.start == "probe" and not keeps_its_head(text, task, random):
            fitted.probed = start_head(text, built, task, training, settings, slots=self.slots, context=context)
            built.to(self.device)
        first, before, others = None, None, []
        if compares and checked is not None:
            found = loop.outputs(built, task, checked, **where)
            before = task.decode(found, checked)
            first = task.score(before, checked.items)
            others = compare.rivals(
                task, built, training, checked, found=found, slots=self.slots, context=context, seed=settings.seed
            )
            fitted.compared_vectors = any(o.baseline is not None and o.baseline.kind == "apart" for o in others)
        if settings.baseline != "none":
            compare.rival_called(settings.baseline, others)  # refused before it is trained
        initial: dict[str, Tensor] | None = None
        if compares:
            initial = copy.deepcopy(built.state_dict())
        tuning = loop.TextFinetuning(built, task, training, checked, settings, **where)
        fitted.outcome = loop.train(
            tuning, tracker=tracker, checkpointer=checkpointer, first=first, initial=initial, say=self.say
        )
        fitted.tokens, fitted.expected_memory = tuning.tokens, tuning.expected
        self.micro_slots = tuning.micro_slots
        if fitted.outcome.stopped == "signal" or checked is None:
            return fitted
        if settings.freeze:  # stored states stand for the frozen layers only while training
            checked = fitted.checked = task.prepare(checked.items, labelled=True)
        self._judge(fitted, before, initial, others, where)
        return fitted

    def _begin(
        self, text: TextFolder, items: Sequence[Any], held: Sequence[Any] | None
    ) -> tuple[FittedTask, list[str]]:
        """The task on its examples, its model with the head as the folder has it, and what of it is random."""
        encoder = ExampleMaker(text.tokenizer, slots=self.slots, types=bool(text.model.codec.config.types))
        task = self.make(encoder, items, self.settings)
        torch.manual_seed(self.settings.seed)
        built, random = build(text, task.head, task.outputs, pooling=task.about.get("pooling"))
        built.to(self.device)
        folder = TaskFolder(
            text=text, model=built, about=task.about, device=self.device, precision=self.precision, random=random
        )
        training = task.prepare(items, labelled=True)
        checked = None if held is None else task.prepare(task.named(held), labelled=True)
        nothing: Any = None
        return FittedTask(folder=folder, task=task, training=training, checked=checked, outcome=nothing), random

    def _judge(
        self, fitted: FittedTask, before: Any, initial: Any, others: Sequence[compare.Rival], where: dict[str, Any]
    ) -> None:
        task, checked = fitted.task, fitted.checked
        assert checked is not None
        untouched = dict(task.about)
        fitted.found = loop.outputs(fitted.folder.model, task, checked, **where)
        fitted.predictions = task.judged(fitted.found, checked)
        if before is None:
            return
        name = BEFORE[fitted.probed is not None]
        tuned, reason = fitted.predictions if fitted.outcome.kept_step else None, None
        if tuned is not None:
            gain, error = compare.gain(task, tuned, before, checked.items, seed=self.settings.seed)
            # The simpler of two that the rows cannot tell apart (Breiman et al. 1984, sec. 3.4.3).
            if gain <= error or self.settings.baseline != "none":
                if gain <= error:
                    reason = (
                        f"fine-tuned is better by {gain:.3f}, no more than the standard error of that ({error:.3f})"
                    )
                fitted.folder.model.load_state_dict(initial)
                fitted.outcome.kept_step = 0
                fitted.found = loop.outputs(fitted.folder.model, task, checked, **where)
                fitted.predictions = task.judged(fitted.found, checked)
        first = fitted.predictions if not fitted.outcome.kept_step else before
        own = [(name, first), *([(TUNED, tuned)] if tuned is not None else [])]
        kept = TUNED if fitted.outcome.kept_step else name
        which: dict[str, Any] = {"seed": self.settings.seed, "baseline": self.settings.baseline}
        verdict = compare.judge(task, own, kept, others, checked, **which)
        verdict.reason = reason if verdict.baseline is None else None
        if tuned is None and fitted.outcome.history[1:]:
            verdict.table.append(
                {"model": TUNED, "value": _best_later(fitted, task), "low": None, "high": None, "kept": False}
            )
        fitted.verdict = verdict
        if verdict.baseline is not None:
            task.about.update(untouched)
            fitted.found = None
            fitted.predictions = next(o.predictions for o in others if o.baseline is verdict.baseline)

    def refit(
        self, text: TextFolder, items: Sequence[Any], fitted: FittedTask, tracker: Tracker | None = None
    ) -> FittedTask:
        """The recipe that `fitted` came to, on all rows: pooling and C, as many epochs, the baseline that is saved.

        Temperature and thresholds stay as fitted on the rows that were held out.
        """
        settings = settled(dataclasses.replace(self.settings, patience=None), text.model.encoder.config.width)
        new, _ = self._begin(text, items, None)
        context = new.folder.context
        if fitted.probed is not None:
            start_head(
                text,
                new.folder.model,
                new.task,
                new.training,
                settings,
                slots=self.slots,
                context=context,
                chosen=fitted.probed,
            )
            new.folder.model.to(self.device)
        verdict = fitted.verdict
        baseline = None if verdict is None else verdict.baseline
        if verdict is not None and baseline is not None:
            verdict.baseline = again = simpler.fit(
                baseline.kind,
                new.task,
                new.folder.model,
                new.training,
                slots=self.slots,
                context=context,
                seed=settings.seed,
                strength=baseline.model.strength,
            )
            assert again is not None  # the training rows held words
        new.outcome, new.tokens, new.expected_memory = fitted.outcome, fitted.tokens, fitted.expected_memory
        if fitted.outcome.kept_step:
            taken = fitted.outcome.kept_step / fitted.outcome.total
            settings = dataclasses.replace(settings, micro_slots=self.micro_slots)
            where: dict[str, Any] = {"slots": self.slots, "device": self.device, "context": context}
            tuning = loop.TextFinetuning(new.folder.model, new.task, new.training, None, settings, **where)
            more, old = loop.train(tuning, tracker=tracker, until=taken), fitted.outcome
            new.tokens = fitted.tokens + tuning.tokens
            new.outcome = dataclasses.replace(
                old,
                seconds=old.seconds + more.seconds,
                cpu_seconds=old.cpu_seconds + more.cpu_seconds,
                peak_memory_mb=max(old.peak_memory_mb, more.peak_memory_mb),
            )
        new.folder.model.eval()
        new.task.about.update(fitted.task.about)
        new.checked, new.found, new.predictions = fitted.checked, fitted.found, fitted.predictions
        new.probed, new.verdict, new.refitted = fitted.probed, fitted.verdict, True
        return new


def _best_later(fitted: FittedTask, task: TextTask) -> float:
    """The best value of the looks after the first."""
    from unmask.modalities.text.tasks.scorers import merit

    return max((row[task.metric] for row in fitted.outcome.history[1:]), key=lambda v: merit(task.metric, v))
