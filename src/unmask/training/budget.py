"""How much memory a run will need, estimated before it starts, and micro-batches that fit into what is available.

One row and then two rows go through the model, forward and backward, while the bytes of live tensors are counted at
every operation; the peak is taken to grow linearly with the number of rows. Added to it are what every batch needs
(gradients, optimiser states) and what a checkpoint takes while it is written.
"""

from __future__ import annotations

import dataclasses
import math
import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Corruption
from unmask.core.pretrain import with_loss
from unmask.errors import UserError
from unmask.memory import Free, free_memory, held_memory

SLACK = 1.25
"""Over the counted tensors: what libraries keep for themselves while they compute, and gaps between blocks."""
LIBRARIES = 150e6
"""Bytes of kernels and their work space, whatever the size."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that a run takes beyond what the process holds now.

    Attributes:
        lasting: optimiser states.
        saving: copies made while a checkpoint is written, when the batch is gone.
        any_batch: gradients and copies of weights that every micro-batch takes, whatever its rows.
        row: of one row (a picture, a packed row of texts): its data and what backward keeps of it.
    """

    lasting: float
    saving: float
    any_batch: float
    row: float

    def shared_out(self, processes: int) -> Need:
        """Of one of several processes that share the model out, which write a checkpoint beside the steps.

        Rather too much: weights that are together for a while, and copies of them in the number format of the steps,
        count as whole.
        """
        return dataclasses.replace(self, lasting=(self.lasting + self.saving) / processes, saving=0.0)

    def of(self, rows: int) -> float:
        """The peak with micro-batches of so many rows."""
        step = SLACK * (self.any_batch + rows * self.row) + LIBRARIES
        return self.lasting + max(step, self.saving)

    def most_rows(self, free: float) -> int:
        """The largest micro-batch that stays within `free` bytes; 0 where not even one row does."""
        if self.of(1) > free:
            return 0
        return max(1, int(((free - self.lasting - LIBRARIES) / SLACK - self.any_batch) / max(self.row, 1.0)))


class _Live(TorchDispatchMode):
    """Counts the bytes of tensors made within it that are still held, and their most."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.bytes, self.most = 0, 0
        # Views of weights are no tensors of their own.
        self._seen = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here: skipping the compiler would load it, which takes 2 s."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._hold(leaf.untyped_storage())
        return out

    def _hold(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen or not size:
            return
        self._seen.add(key)
        self.bytes += size
        self.most = max(self.most, self.bytes)
        weakref.finalize(storage, self._drop, key, size).atexit = False

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.bytes -= size


def measure(
    model: nn.Module,
    make: Callable[[int], PackedBatch],
    corruption: Corruption,
    *,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
    waiting: int = 0,
) -> Need:
    """Count what training `model` takes; its weights, gradients and random states are as before.

    Args:
        make: a batch of so many rows, as the run makes them.
        corruption: of the run: what is hidden decides what is computed.
        waiting: batches in memory beside the one that is computed on; another is being made by a thread meanwhile.
    """
    one, two = (_counted(model, make, rows, corruption, device, autocast) for rows in (1, 2))
    need = _need(model, (one.forward, one.whole), (two.forward, two.whole))
    making = waiting * two.data / 2 + max(two.made - one.made, 0.0) if waiting else 0.0
    return dataclasses.replace(need, row=need.row + making)


def measure_loss(model: nn.Module, loss: Callable[[int], Tensor], *, device: torch.device) -> Need:
    """As `measure`, of training by a loss of one's own.

    Args:
        loss: of a batch of so many rows, which is made within.
    """

    def loss_of(rows: int) -> Callable[[_Live], Tensor]:
        return lambda _: loss(rows)

    one, two = (_passes(model, loss_of(rows), device) for rows in (1, 2))
    return _need(model, one, two)


class _Count(NamedTuple):
    """Most bytes held: up to the loss, over both passes, while the batch is made; and the bytes of the batch."""

    forward: float
    whole: float
    made: float
    data: float


def _counted(
    model: nn.Module,
    make: Callable[[int], PackedBatch],
    rows: int,
    corruption: Corruption,
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> _Count:
    losses = with_loss(model)
    seen = {}

    def loss(live: _Live) -> Tensor:
        batch = make(rows)
        tensors = (*batch.values.values(), *batch.extra.values(), batch.segment, batch.position, batch.unit)
        seen["data"] = float(sum(t.numel() * t.element_size() for t in tensors))
        seen["made"] = float(live.most)
        hidden = corruption.draw(batch, seed=0)
        batch, hidden = batch.to(device), hidden.to(device)
        with autocast():
            return losses(batch, hidden)[0]

    return _Count(*_passes(model, loss, device), **seen)


def _passes(model: nn.Module, loss: Callable[[_Live], Tensor], device: torch.device) -> tuple[float, float]:
    """Most bytes held up to the loss, and over both passes."""
    training = model.training
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices), _Live(model) as live:
            model.train()
            found = loss(live)
            forward = float(live.most)
            found.backward()
            return forward, float(live.most)
    finally:
        model.zero_grad(set_to_none=True)
        model.train(training)


def _need(model: nn.Module, one: tuple[float, float], two: tuple[float, float]) -> Need:
    """From the most bytes (up to the loss, over both passes) with one row and with two."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    row = max(two[0] - one[0], two[1] - one[1], 1.0)
    return Need(
        lasting=2.0 * trained, saving=weights + 2.0 * trained, any_batch=trained + max(one[0] - row, 0.0), row=row
    )


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """Micro-batches per process, the rows of each, and the memory that the run should take at its peak."""

    parts: int
    rows: int
    need: Need
    held: float
    free: Free
    requested: int
    unit: str = "rows"

    @property
    def expected(self) -> float:
        """Bytes at the peak, those that the process holds already included."""
        return self.held + self.need.of(self.rows)

    def lines(self) -> list[str]:
        """What people are told before the start."""
        n, unit = self.need, self.unit if self.rows != 1 else self.unit.removesuffix("s")
        batch = SLACK * (n.any_batch + self.rows * n.row) + LIBRARIES
        lines = [
            f"memory: about {gigabytes(self.expected)} at the peak: {gigabytes(self.held)} held already, optimiser "
            f"{gigabytes(n.lasting)}, gradients and {self.rows} {unit} at a time {gigabytes(batch)}; "
            f"{gigabytes(self.free.bytes)} are free ({self.free.by})"
        ]
        if self.parts > self.requested:
            lines += [
                f"a step is taken in {self.parts} micro-batches of {self.rows} {unit}, to fit: gradients are summed, "
                "the result is that of the whole batch"
            ]
        return lines


def fit(
    need: Need,
    *,
    rows: int,
    free: Free,
    held: float,
    requested: int = 1,
    share: float = 0.9,
    unit: str = "rows",
    fixed: int | None = None,
) -> MemoryPlan:
    """Split a step of `rows` rows (of one process) into micro-batches that fit.

    Args:
        requested: micro-batches that the settings ask for: not fewer are made.
        share: of the free memory that may be taken.
        fixed: the split of the run that is resumed: kept where it fits, so that the run stays the same bit for bit.
    """
    most = need.most_rows(share * free.bytes)
    if most == 0:
        if need.of(1) > free.bytes:
            one = unit.removesuffix("s")
            raise UserError(
                f"too little memory: training with one {one} at a time takes about {gigabytes(held + need.of(1))}, of "
                f"which {gigabytes(held)} are held already; {gigabytes(free.bytes)} more are free ({free.by})",
                hint="Use a smaller model or smaller examples, or free memory.",
            )
        most = 1
    parts = requested if fixed is None else fixed
    if -(-rows // parts) > most:
        parts = max(requested, math.ceil(rows / most))
    return MemoryPlan(
        parts=parts, rows=-(-rows // parts), need=need, held=held, free=free, requested=requested, unit=unit
    )


def fit_here(need: Need, *, device: torch.device, memory: float | None = None, **how: Any) -> MemoryPlan:
    """`fit` to what this process may take of the memory, which processes of one machine share on CPUs.

    Args:
        memory: gigabytes that it may hold in all.
    """
    on_cpu = device.type == "cpu"
    free = free_memory(memory, device=device)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if on_cpu else 1
    return fit(need, free=free._replace(bytes=free.bytes / here), held=held_memory() if on_cpu else 0.0, **how)


def gigabytes(size: float) -> str:
    """Bytes for people.

    >>> gigabytes(21.34e9), gigabytes(2.5e8), gigabytes(3e6)
    ('21.3 GB', '0.25 GB', '3 MB')
    """
    if size < 1e8:
        return f"{max(size, 0) / 1e6:.0f} MB"
    return f"{size / 1e9:.2f} GB" if size < 1e9 else f"{size / 1e9:.1f} GB"
