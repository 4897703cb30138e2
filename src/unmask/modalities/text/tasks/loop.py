"""Fine-tuning on text: packed steps, layer-wise rates, the task's metric; the loop itself is `training.finetune`.

A step takes `batch` items whatever their length and packs them, so that it does what the usual padded loop does (same
items, same loss) for the price of its real tokens. A step of more than `micro_slots` slots is run in parts whose
gradients add up. The table of word embeddings is trained for the tokens that occur only: a row that never occurs gets
no gradient, so all it would see is weight decay, which is applied at the end in one go. This is exact, and spares a
22-million-parameter MiniLM half of its optimiser step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import Example, PackedBatch, pack, place_best_fit
from unmask.core.inference import inference_mode, packed_batches
from unmask.modalities.text.tasks.encoding import Prepared
from unmask.modalities.text.tasks.network import Compact, Prefix, TaskModel, recompute
from unmask.modalities.text.tasks.scorers import merit
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.modalities.text.tasks.task import TextTask
from unmask.training.budget import fit_here, gigabytes, measure_loss
from unmask.training.finetune import (
    Evaluation,
    Finetunable,
    FinetuneResult,
    finetune,
    planned_steps,
    shuffled,
)
from unmask.training.finetune_checkpoints import Checkpointer
from unmask.training.launcher import process_count, rank_range
from unmask.training.optimiser import AdamW, layer_groups
from unmask.training.precision import computing
from unmask.training.settings import RunSettings, TrainSettings
from unmask.training.tracking import Tracker


def batch_of(examples: Sequence[Example], numbers: Sequence[int], slots: int, width: int) -> PackedBatch:
    """Some examples in one packed batch, in rows of the length that costs least: long rows leave less padding, and more
    attention between examples to be masked away.

    A slot costs products in step with the encoder's `width`, attention in step with the row's length: as much as the
    products at about 1.85 x `width` (384 wide, 12 heads, bf16, rows of 96 to 384: 0.206 + 0.00029 x length ms per
    slot).
    """
    chosen = [examples[i] for i in numbers]
    lengths = [len(e) for e in chosen]
    shortest = min(slots, max(64, -(-max(lengths) // 32) * 32))
    tried = range(shortest, min(slots, 2 * shortest) + 1, 32)
    placed = {length: place_best_fit(lengths, length) for length in tried}
    best = min(placed, key=lambda length: len(placed[length]) * length * (1 + length / (1.85 * width)))
    return pack(chosen, slots=best, placement=placed[best])


MICRO_SLOTS = (2048, 32768)
"""Slots of one forward pass, on a CPU and on a GPU, where `micro_slots` does not say: forward and backward of a
MiniLM-L6 over 2 048 slots in rows of 512 held 1.2 GB, over 4 096 2.2 GB (fp32)."""


def training_items(task: TextTask, prepared: Prepared) -> list[list[int]]:
    """The numbers of the examples of each training item: of a text read in windows, every window is an item of its own.

    A question about a document of 25 windows would otherwise weigh as much in memory as 25 questions.
    """
    if task.windowed:
        return [[i] for i in range(len(prepared.examples))]
    return prepared.groups


def micro_batches(
    task: TextTask, prepared: Prepared, numbers: Sequence[int], most: int
) -> Iterator[tuple[list[int], float]]:
    """The examples of a step in parts of at most `most` slots (a longer example stands alone), each with its share of
    the loss: the parts' losses times their shares add up to the loss of the whole step. A loss that compares the
    examples of a step with each other stays whole."""
    parts: list[list[int]] = [[]]
    filled = 0
    for number in numbers:
        length = len(prepared.examples[number])
        if parts[-1] and filled + length > most:
            parts.append([])
            filled = 0
        parts[-1].append(number)
        filled += length
    if len(parts) == 1:
        yield parts[0], 1.0
        return
    terms = [task.terms(prepared, np.array(part)) for part in parts]
    total = float(sum(t or 0.0 for t in terms))
    if any(t is None for t in terms) or not total:
        yield list(numbers), 1.0
        return
    for part, count in zip(parts, terms, strict=True):
        if count:
            yield part, count / total


EMBEDDINGS = (".stem.", ".codec.word", ".codec.token_type")
"""In the names of parameters below the first layer."""


def groups(model: TaskModel, settings: TaskSettings) -> list[dict[str, Any]]:
    """Parameter groups: each layer at `layer_decay` times the rate of the one above."""
    assert settings.learning_rate is not None
    return layer_groups(
        model.named_parameters(),
        layers=len(model.masked.encoder.layers),
        embeddings=EMBEDDINGS,
        rate=settings.learning_rate,
        layer_decay=settings.layer_decay,
        weight_decay=settings.weight_decay,
    )


def outputs(
    model: TaskModel,
    task: TextTask,
    prepared: Prepared,
    *,
    compact: Compact | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> list[np.ndarray]:
    """What the model says about every example, sorted into packed batches; order as prepared. `watch` is called after
    every batch with how many examples are done, of how many."""
    done = 0
    found: list[np.ndarray] = [np.zeros(0)] * len(prepared.examples)
    with inference_mode(model), model.context():
        for batch, numbers in packed_batches(prepared.examples, task.encoder.slots):
            batch = compact.batch(batch) if compact else batch
            batch = batch.to(model.device)
            parts = task.collect(model(batch, len(numbers)).float(), batch, prepared, numbers)
            for number, part in zip(numbers.tolist(), parts, strict=True):
                found[number] = part
            done += len(numbers)
            if watch is not None:
                watch(done, len(found))
    return found


class TextFinetuning(Finetunable):
    """A text model and a task's data, as `training.finetune` trains them. `validation`: rows that the best state is
    chosen by, if any; `settings` have a learning rate; `precision` is that of the steps: what is judged computes as the
    model says."""

    evaluations_count = False

    def __init__(
        self,
        model: TaskModel,
        task: TextTask,
        training: Prepared,
        validation: Prepared | None,
        settings: TaskSettings,
        precision: str,
    ) -> None:
        super().__init__(model)
        assert settings.learning_rate is not None
        self.precision, self.rate = precision, settings.learning_rate
        self.model, self.task, self.training, self.validation = model, task, training, validation
        self.settings, self.slots, self.device = settings, task.encoder.slots, model.device
        self.items, self.width = training_items(task, training), model.masked.encoder.config.width
        self.micro_slots = settings.micro_slots or MICRO_SLOTS[self.device.type == "cuda"]
        self.tokens, self.expected = 0, math.nan
        self.shrink = 1.0
        """What weight decay leaves of embedding rows that never occur."""
        share = settings.dropout
        if share is None and self.task.about.get("loss") == "simcse" and not _has_dropout(model):
            share = SIMCSE_DROPOUT
        _set_dropout(model, share)
        if settings.checkpointing:
            recompute(model)
        self.prefix = Prefix(model, settings.freeze) if settings.freeze else None
        self.compact: Compact | None = None
        if self.prefix is not None:
            for part in (training, validation):
                if part is not None:
                    part.examples = self.prefix.compute(part.examples, self.slots)
        elif not task.uses_vocabulary:
            self.compact = Compact(model, [*training.examples, *(validation.examples if validation else ())])

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """Around the steps: frozen layers are cut off; afterwards the whole table of embeddings is there again."""
        try:
            with self.prefix.cut() if self.prefix else contextlib.nullcontext():
                yield
        finally:
            if self.compact is not None:
                self.compact.restore(self.shrink)

    def schedule(self) -> TrainSettings:
        """How long and how fast the settings ask it to be trained."""
        settings = self.settings
        steps = planned_steps(steps=settings.steps, epochs=settings.epochs or 3.0, per_epoch=self.per_epoch)
        return TrainSettings(
            steps=steps if settings.minutes is None else None,
            minutes=settings.minutes,
            validate_every=None if self.validation is None else settings.evaluate_every or self.per_epoch,
            **{field.name: getattr(settings, field.name) for field in dataclasses.fields(RunSettings)},
        )

    def batches(self, epoch: int) -> list[np.ndarray]:
        return shuffled(len(self.items), self.settings.batch, self.settings.seed, epoch)

    def backward(self, items: np.ndarray, *, step: int, epoch: int) -> Tensor:
        numbers = [number for item in items.tolist() for number in self.items[item]]
        self.tokens += sum(len(self.training.examples[number]) for number in numbers)
        own, loss = [numbers[i] for i in rank_range(len(numbers))], torch.zeros((), device=self.device)
        weight = self._terms(own) / (self._terms(numbers) or 1.0) if len(own) < len(numbers) else 1.0
        for part, share in micro_batches(self.task, self.training, own, self.micro_slots) if weight else ():
            partial = self._loss(part) * (share * weight)
            partial.backward()
            loss += partial.detach()
        return loss

    def _terms(self, numbers: Sequence[int]) -> float:
        """Over how many terms the loss of some examples is a mean."""
        return (self.task.terms(self.training, np.array(numbers)) or 0.0) if numbers else 0.0

    def _loss(self, numbers: Sequence[int]) -> Tensor:
        """Of some examples, which go through the encoder together."""
        batch = batch_of(self.training.examples, numbers, self.slots, self.width)
        batch = (self.compact.batch(batch) if self.compact else batch).to(self.device)
        with computing(self.precision, self.device):
            return self.task.loss(self.model, batch, self.training, np.array(numbers))

    def evaluate(self) -> Evaluation:
        assert self.validation is not None
        found = outputs(self.model, self.task, self.validation, compact=self.compact)
        return self._scored(self.task.score(self.task.decode(found, self.validation), self.validation.items))

    def _scored(self, metrics: dict[str, float]) -> Evaluation:
        return Evaluation.of(merit(self.task.metric, metrics[self.task.metric]), metrics)

    def place(self, step: int, steps: int) -> float:
        return step / (steps + 1) if self.settings.warmup else super().place(step, steps)

    def stepped(self, factor: float, *, applied: bool) -> None:
        if applied:
            bottom = self.rate * self.settings.layer_decay ** (len(self.model.masked.encoder.layers) + 1)
            self.shrink *= 1 - bottom * factor * self.settings.weight_decay

    def row(self, factor: float, seconds: float) -> dict[str, Any]:
        return {"learning_rate": self.rate * factor, "slots_per_second": self.tokens / max(seconds, 1e-9)}

    def saved(self) -> dict[str, Any]:
        return {"shrink": self.shrink, "micro_slots": self.micro_slots}

    def restore(self, saved: dict[str, Any]) -> None:
        self.shrink, self.micro_slots = float(saved["shrink"]), int(saved["micro_slots"])

    def forecast(self) -> tuple[float, list[str]]:
        """(bytes that the run should hold at its peak, what to tell people); no more slots go through a forward pass
        than fit, unless the loss keeps a step whole."""
        longest = sorted(self.items, key=lambda item: -sum(len(self.training.examples[n]) for n in item))
        length = max(1, sum(len(self.training.examples[n]) for n in longest[0]))
        step_slots = sum(len(self.training.examples[n]) for item in longest[: self.settings.batch] for n in item)
        step_slots = -(-step_slots // process_count())
        whole = self.task.terms(self.training, np.array(longest[0])) is None
        pass_slots = step_slots if whole else min(step_slots, self.micro_slots)

        def loss(rows: int) -> Tensor:
            return self._loss([n for i in range(rows) for n in longest[i % len(longest)]])

        need = measure_loss(self.model, loss, device=self.device)
        rows = max(1, -(-pass_slots // length))
        fitted = fit_here(need, rows=rows, device=self.device, memory=self.settings.memory, unit="texts")
        lines = fitted.lines()[:1]
        if fitted.parts > 1 and not whole:
            self.micro_slots = fitted.rows * length
            lines.append(f"no more than {self.micro_slots:,} slots go through the encoder at a time, to fit")
        elif fitted.parts > 1:
            needed = gigabytes(fitted.held + need.of(fitted.rows * fitted.parts))
            lines = [f"warning: the loss compares all texts of a step, which takes about {needed}: more than is free"]
        return fitted.expected, lines

    def train(
        self,
        *,
        tracker: Tracker | None = None,
        checkpointer: Checkpointer | None = None,
        first: dict[str, float] | None = None,
        initial: Mapping[str, Tensor] | None = None,
        until: float = 1.0,
        say: Callable[[str], None] | None = None,
    ) -> FinetuneResult:
        """Fine-tune; the model ends in its best state by the task's metric on the validation data. `first`: metrics of
        the model as given, where that state may be kept too, with `initial`, a copy of its weights; `until`: the share
        of the steps to take, on the schedule of all; `say` is called with the memory that the run will take, which is
        measured then."""
        settings = self.settings
        betas = (settings.beta1, settings.beta2)
        optimiser = AdamW(groups(self.model, settings), lr=self.rate, betas=betas, eps=settings.epsilon, fused=True)
        if initial is not None and self.compact is not None:
            initial = dict(initial) | self.compact.weights()
        with self.ready():
            if say is not None:
                self.expected, lines = self.forecast()
                for line in lines:
                    say(line)
            torch.manual_seed(settings.seed)
            how: dict[str, Any] = {"until": until, "tracker": tracker, "checkpointer": checkpointer}
            start = None if first is None else self._scored(first)
            return finetune(self, optimiser, self.schedule(), first=start, initial=initial, **how)


SIMCSE_DROPOUT = 0.1
"""Of a model that has none: two views of a text differ by it alone (Gao et al. 2021, section 3)."""


def _has_dropout(model: TaskModel) -> bool:
    configs = [module.config for module in model.modules() if hasattr(module, "config")]
    return any(getattr(c, n, None) for c in configs for n in ("dropout", "attention_dropout", "embedding_dropout"))


def _set_dropout(model: TaskModel, share: float | None) -> None:
    if share is None:
        return
    module: Any
    for module in model.modules():
        if hasattr(module, "config") and hasattr(module.config, "attention_dropout"):
            module.config = dataclasses.replace(
                module.config, dropout=share, attention_dropout=share, embedding_dropout=None
            )
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = share
