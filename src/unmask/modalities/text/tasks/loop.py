"""The fine-tuning loop: packed steps, layer-wise rates, early stopping on the task's metric, the best state kept.

A step takes `batch` items whatever their length and packs them, so that it does what the usual padded loop does (same
items, same loss) for the price of its real tokens. A step of more than `micro_slots` slots is run in parts whose gradients add up. The table of word embeddings is trained for the tokens that occur
only: a row that never occurs gets no gradient, so all it would see is weight decay, which is applied at the end in one
go. This is exact, and spares a 22-million-parameter MiniLM half of its optimiser step.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.core.batch import Example, PackedBatch, pack, place_best_fit
from unmask.core.inference import inference_mode, packed_batches
from unmask.errors import UserError
from unmask.modalities.text.tasks.model import TaskModel
from unmask.modalities.text.tasks.prepared import Prepared
from unmask.modalities.text.tasks.resume import Keeper, Progress
from unmask.modalities.text.tasks.scorers import merit
from unmask.modalities.text.tasks.settings import FinetuneSettings, settled
from unmask.modalities.text.tasks.task import TextTask
from unmask.training.memory import keep_freed_memory, peak_memory
from unmask.training.optimiser import AdamW, NanGuard, step
from unmask.training.schedule import rate
from unmask.training.settings import TrainSettings
from unmask.training.tracking import Tracker


@dataclass
class Outcome:
    """How a fine-tuning run ended: 'finished', 'early' (patience), 'time' (minutes) or 'signal' (saved, to be resumed).

    `kept_step` is the step of the state that was kept, of `total` planned ones; 0 where it is the one given.
    """

    steps: int
    seconds: float
    cpu_seconds: float
    validation_seconds: float
    stopped: str
    best: dict[str, float]
    history: list[dict[str, Any]]
    kept_step: int
    total: int
    tokens: int
    peak_memory_mb: float


def batch_of(examples: Sequence[Example], numbers: Sequence[int], slots: int, width: int) -> PackedBatch:
    """Some examples in one packed batch, in rows of the length that costs least: long rows leave less padding, and more
    attention between examples to be masked away.

    A slot costs products in step with the encoder's `width`, attention in step with the row's length: as much as the
    products at about 1.85 x `width` (384 wide, 12 heads, bf16, rows of 96 to 384: 0.206 + 0.00029 x length ms a slot).
    """
    chosen = [examples[i] for i in numbers]
    lengths = [len(e) for e in chosen]
    shortest = min(slots, max(64, -(-max(lengths) // 32) * 32))
    tried = range(shortest, min(slots, 2 * shortest) + 1, 32)
    placed = {length: place_best_fit(lengths, length) for length in tried}
    best = min(placed, key=lambda length: len(placed[length]) * length * (1 + length / (1.85 * width)))
    return pack(chosen, slots=best, placement=placed[best])


def order(items: int, batch: int, seed: int, epoch: int) -> list[np.ndarray]:
    """The items of each step of an epoch: a pure function of (seed, epoch)."""
    shuffled = np.random.default_rng([seed, epoch]).permutation(items)
    return [shuffled[i : i + batch] for i in range(0, items, batch)]


UNBOUNDED = 10**9
"""Steps of a run that ends by the clock."""
MICRO_SLOTS = (2048, 32768)
"""Slots of one forward pass, on a CPU and on a GPU, where `micro_slots` does not say: forward and backward of a MiniLM-L6 over 2 048
slots in rows of 512 held 1.2 GB, over 4 096 2.2 GB (fp32)."""


def training_items(task: TextTask, prepared: Prepared) -> list[list[int]]:
    """The numbers of the examples of each training item: of a text read in windows, every window is an item of its own.

    A question about a document of 25 windows would otherwise weigh as much in memory as 25 questions.
    """
    if getattr(task, "windowed", False):
        return [[i] for i in range(len(prepared.examples))]
    return prepared.groups


def micro_batches(
    task: TextTask, prepared: Prepared, numbers: Sequence[int], most: int
) -> Iterator[tuple[list[int], float]]:
    """The examples of a step in parts of at most `most` slots (a longer example stands alone), each with its share of the loss.

    The parts' losses times their shares add up to the loss of the whole step. A loss that compares the examples of a step
    with each other stays whole.
    """
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


def groups(model: TaskModel, settings: FinetuneSettings) -> list[dict[str, Any]]:
    """Parameter groups: matrices decay, vectors do not; each layer at `layer_decay` times the rate of the one above."""
    layers = len(model.masked.encoder.layers)
    found: dict[tuple[int, bool], list[Tensor]] = {}
    seen: set[int] = set()
    for name, p in model.named_parameters():
        if not p.requires_grad or id(p) in seen:
            continue
        seen.add(id(p))
        found.setdefault((depth(name, layers), p.ndim > 1), []).append(p)
    out = []
    for (level, decays), parameters in sorted(found.items(), key=lambda kv: kv[0]):
        assert settings.learning_rate is not None
        peak = settings.learning_rate * settings.layer_decay ** (layers + 1 - level)
        decay = settings.weight_decay if decays else 0.0
        out.append({"params": parameters, "lr": peak, "initial_lr": peak, "weight_decay": decay})
    return out


def depth(name: str, layers: int) -> int:
    """0 for embeddings, 1.. for layers, layers + 1 for everything above them.

    >>> depth("masked.codec.word.weight", 6), depth("masked.encoder.layers.2.attention.qkv.weight", 6), depth("head.x", 6)
    (0, 3, 7)
    """
    if ".encoder.layers." in name:
        return int(name.split(".encoder.layers.")[1].split(".")[0]) + 1
    return 0 if ".stem." in name or ".codec.word" in name or ".codec.token_type" in name else layers + 1


class Compact:
    """Trains the rows of the embedding table that occur, and puts the whole table back afterwards.

    Args:
        model: whose `masked.codec.word` is replaced while this is active.
        used: ascending ids that occur in training or validation data.
    """

    def __init__(self, model: TaskModel, used: np.ndarray) -> None:
        self.codec, self.used = model.masked.codec, torch.from_numpy(used)
        self.full = self.codec.word
        weight = self.full.weight.detach()
        self.lookup = torch.zeros(len(weight), dtype=torch.int64)
        self.lookup[self.used] = torch.arange(len(used))
        small = nn.Embedding(len(used), weight.shape[1], device=weight.device)
        with torch.no_grad():
            small.weight.copy_(weight[self.used.to(weight.device)])
        self.codec.word = small

    def weights(self) -> dict[str, Tensor]:
        """A copy of the rows, under the name that the model's state has for the table."""
        return {"masked.codec.word.weight": self.codec.word.weight.detach().clone()}

    def batch(self, batch: PackedBatch) -> PackedBatch:
        batch.values["token"] = self.lookup[batch.values["token"]]
        return batch

    def restore(self, shrink: float) -> None:
        """The whole table again; rows that never occurred are multiplied by `shrink`, their weight decay."""
        small = self.codec.word.weight
        with torch.no_grad():
            self.full.weight.mul_(shrink)
            self.full.weight[self.used.to(small.device)] = small
        self.codec.word = self.full


class Prefix:
    """Frozen lower layers: their states are computed once and stand in for the embeddings afterwards."""

    def __init__(self, model: TaskModel, layers: int) -> None:
        encoder = model.masked.encoder
        if layers > len(encoder.layers) - 1:
            raise UserError(f"freeze={layers}", hint=f"The model has {len(encoder.layers)} layers: freeze fewer.")
        if getattr(encoder.config, "sharing", None) is not None:
            raise UserError(
                f"freeze={layers}", hint="The model's layers share their weights: none can be frozen alone."
            )
        self.model, self.layers = model, layers
        for module in (model.masked.codec, encoder.stem, *encoder.layers[:layers]):
            for p in module.parameters():
                p.requires_grad_(False)
        if any(name.startswith("=") for name, _ in (model.head.head.steps if model.head else ())):
            for p in (*model.masked.codec.transform.parameters(), *model.masked.codec.norm.parameters()):
                p.requires_grad_(True)

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Within, the encoder starts above the frozen layers and the codec hands on stored states."""
        encoder, codec = self.model.masked.encoder, self.model.masked.codec
        whole, stem, config = encoder.layers, encoder.stem, encoder.config
        encoder.layers = whole[self.layers :]
        encoder.config = dataclasses.replace(config, layers=len(encoder.layers))
        encoder.stem = _PassOn()
        codec.embed = lambda values, masked: values["state"]
        try:
            yield
        finally:
            encoder.layers, encoder.stem, encoder.config = whole, stem, config
            del codec.embed  # the instance's own; the class's is back

    def compute(
        self, examples: Sequence[Example], slots: int, device: torch.device, context: Callable[[], Any]
    ) -> list[Example]:
        """The examples with their states below the cut, fp32 in memory."""
        encoder = self.model.masked.encoder
        whole = encoder.layers
        out: list[Example | None] = [None] * len(examples)
        norm, config = encoder.final_norm, encoder.config
        encoder.layers, encoder.final_norm = whole[: self.layers], nn.Identity()
        encoder.config = dataclasses.replace(config, layers=self.layers)
        try:
            with inference_mode(self.model), context():
                for batch, numbers in packed_batches(examples, slots):
                    states = self.model.masked.states(batch.to(device)).float().cpu().numpy()
                    states = states.reshape(-1, states.shape[-1])
                    index = batch.index.flatten().numpy()
                    for i, number in enumerate(numbers.tolist()):
                        e = examples[number]
                        values = {**e.values, "state": states[index == i]}
                        out[number] = Example(values=values, identity=e.identity, special=e.special)
        finally:
            encoder.layers, encoder.final_norm, encoder.config = whole, norm, config
        return [e for e in out if e is not None]


class _PassOn(nn.Module):
    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        return x


def used_ids(*parts: Prepared) -> np.ndarray:
    """Ascending token ids that occur in examples."""
    return np.unique(np.concatenate([e.values["token"] for part in parts for e in part.examples]))


def recompute(model: TaskModel) -> None:
    """Gradient checkpointing: each layer keeps its input only and runs again in the backward pass."""
    for layer in model.masked.encoder.layers:
        inner = layer.forward
        layer.forward = lambda *a, _inner=inner, **k: checkpoint(_inner, *a, use_reentrant=False, **k)


def outputs(
    model: TaskModel, task: TextTask, prepared: Prepared, *, slots: int, device: torch.device, context: Callable[[], Any],
    compact: Compact | None = None, watch: Callable[[int, int], None] | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """What the model says about every example, sorted into packed batches; order as prepared.

    Args:
        watch: called after every batch with how many examples are done, of how many.
    """
    done = 0
    found: list[np.ndarray] = [np.zeros(0)] * len(prepared.examples)
    with inference_mode(model), context():
        for batch, numbers in packed_batches(prepared.examples, slots):
            batch = compact.batch(batch) if compact else batch
            batch = batch.to(device)
            parts = task.collect(model(batch, len(numbers)).float(), batch, prepared, numbers)
            for number, part in zip(numbers.tolist(), parts, strict=True):
                found[number] = part
            done += len(numbers)
            if watch is not None:
                watch(done, len(found))
    return found


def train(
    model: TaskModel, task: TextTask, training: Prepared, validation: Prepared | None, settings: FinetuneSettings, *,
    slots: int, device: torch.device, context: Callable[[], Any], tracker: Tracker | None = None, keeper: Keeper | None = None,
    first: dict[str, float] | None = None, begun: Mapping[str, Tensor] | None = None, until: float = 1.0,
) -> Outcome:  # fmt: skip
    """Fine-tune; the model ends in its best state by the task's metric on the validation data.

    Args:
        first: metrics of the model as given, where that state may be kept too; with `begun`, a copy of its weights.
        until: the share of the steps to take, on the schedule of all of them.
        keeper: keeps checkpoints, one of them at SIGTERM and SIGINT, and goes on with the one it found.
    """
    started, worked = time.perf_counter(), time.process_time()
    keep_freed_memory()
    settings = settled(settings, model.masked.encoder.config.width)
    assert settings.learning_rate is not None
    items = training_items(task, training)
    per_epoch = -(-len(items) // settings.batch)
    by_clock = settings.minutes is not None
    total = UNBOUNDED if by_clock else settings.steps or max(1, round(per_epoch * (settings.epochs or 3.0)))
    every = settings.evaluate_every or per_epoch
    _set_dropout(model, settings.dropout)
    if settings.checkpointing:
        recompute(model)
    shares_table = bool(getattr(task, "uses_vocabulary", False))
    prefix = Prefix(model, settings.freeze) if settings.freeze else None
    compact = None
    if prefix is not None:
        training.examples = prefix.compute(training.examples, slots, device, context)
        if validation is not None:
            validation.examples = prefix.compute(validation.examples, slots, device, context)
    elif not shares_table:
        compact = Compact(model, used_ids(training, *([validation] if validation else [])))
    parameter_groups = groups(model, settings)
    optimiser = AdamW(
        parameter_groups,
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )
    trained = [p for g in parameter_groups for p in g["params"]]
    plan = TrainSettings(
        steps=total, learning_rate=settings.learning_rate, schedule=settings.schedule, warmup=settings.warmup,
        decay=settings.decay, minimum_rate=settings.minimum_rate,
    )  # fmt: skip
    guard, run = NanGuard(), Progress()
    best: dict[str, Tensor] | None = None
    bottom = settings.learning_rate * settings.layer_decay ** (len(model.masked.encoder.layers) + 1)
    tokens, looking, stopped = 0, 0.0, "finished"
    if first is not None:
        assert begun is not None
        best = dict(begun) | (compact.weights() if compact else {})
        run.history.append({"step": 0, **first})
        run.merit, run.metrics = merit(task.metric, first[task.metric]), first
    torch.manual_seed(settings.seed)
    model.train()
    with prefix.cut() if prefix else contextlib.nullcontext(), keeper.signals if keeper else contextlib.nullcontext():
        if keeper and keeper.found is not None:
            run, best = keeper.restore(model, optimiser)
        last = round(until * total)
        if run.ended:
            stopped, last = run.ended, run.step
        for chosen in itertools.islice(_stream(len(items), settings, total), run.step, last):
            run.step = done = run.step + 1
            numbers = [n for item in chosen.tolist() for n in items[item]]
            loss = torch.zeros((), device=device)
            for part, share in micro_batches(
                task, training, numbers, settings.micro_slots or MICRO_SLOTS[device.type == "cuda"]
            ):
                batch = batch_of(training.examples, part, slots, model.masked.encoder.config.width)
                tokens += batch.real_slots
                batch = (compact.batch(batch) if compact else batch).to(device)
                with context():
                    partial = task.loss(model, batch, training, np.array(part)) * share
                partial.backward()
                loss += partial.detach()
            factor = rate((done - 1) / total, plan) if settings.warmup == 0 else rate(done / (total + 1), plan)
            progress = done / total
            if settings.minutes is not None:
                progress = min(1.0, (time.perf_counter() - started - looking) / (60 * settings.minutes))
                factor = rate(progress, plan)
            out_of_time = by_clock and progress >= 1
            norm = step(optimiser, trained, clip=settings.clip, rate=factor)
            applied = guard.check(norm)
            if applied and settings.weight_decay:
                run.shrink *= 1 - bottom * factor * settings.weight_decay
            optimiser.zero_grad(set_to_none=True)
            if tracker and (done % 10 == 0 or done == 1):
                spent = time.perf_counter() - started
                tracker.log(done, progress, loss=float(loss), gradient_norm=float(norm),
                            learning_rate=settings.learning_rate * factor, slots_per_second=tokens / max(spent, 1e-9))  # fmt: skip
            if validation is not None and (done % every == 0 or done == total or out_of_time):
                looked, working = time.perf_counter(), time.process_time()
                found = outputs(model, task, validation, slots=slots, device=device, context=context, compact=compact)
                metrics = task.score(task.decode(found, validation), validation.items)
                run.history.append({"step": done, **metrics})
                if tracker:
                    tracker.log(done, progress, kind="validation", **{f"validation_{k}": v for k, v in metrics.items()})
                value = merit(task.metric, metrics[task.metric])
                if value > run.merit or best is None:
                    best = {} if done == total or out_of_time else copy.deepcopy(model.state_dict())
                    run.merit, run.metrics, run.best_shrink, run.waited = value, metrics, run.shrink, 0
                    run.kept_step = done
                else:
                    run.waited += 1
                    if settings.patience is not None and run.waited >= settings.patience:
                        stopped = "early"
                        break
                model.train()
                looking += time.perf_counter() - looked
                worked += time.process_time() - working
            if out_of_time:
                stopped = "time"
                break
            if keeper and keeper.due():
                keeper.save(run, model, best, optimiser)
                if keeper.signals.requested:
                    stopped = "signal"
                    break
        if keeper and keeper.more and stopped != "signal" and not run.ended and keeper.kept():
            run.ended = stopped
            keeper.save(run, model, best, optimiser)
        if best:
            model.load_state_dict(best)
    if compact:
        compact.restore(run.best_shrink if best else run.shrink)
    model.eval()
    return Outcome(
        steps=run.step, seconds=time.perf_counter() - started, cpu_seconds=time.process_time() - worked,
        validation_seconds=looking, stopped=stopped, best=run.metrics, history=run.history, tokens=tokens,
        kept_step=run.kept_step, total=run.step if by_clock else total, peak_memory_mb=peak_memory(),
    )  # fmt: skip


def _stream(items: int, settings: FinetuneSettings, total: int) -> Iterator[np.ndarray]:
    epoch, given = 0, 0
    while True:
        for chosen in order(items, settings.batch, settings.seed, epoch):
            if given == total:
                return
            given += 1
            yield chosen
        epoch += 1


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
