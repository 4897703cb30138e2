"""Training the network of a table: the core's six steps, with every member's own rows held out from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Corruption
from unmask.core.hashing import Salt, hash_keys
from unmask.core.pretrain import StepContext, StepReport, pretrain
from unmask.modalities.table.distribution.build import seeded
from unmask.modalities.table.distribution.cells import Cells, batch_of
from unmask.modalities.table.distribution.table_network import TableNetwork
from unmask.modalities.table.fitting.held_out_checks import HeldOutChecks
from unmask.modalities.table.recipes import TableSettings
from unmask.training.optimiser import NanGuard, build_optimiser, step
from unmask.training.schedule import rate

Watch = Callable[[StepReport, int], None]
"""Called after every step with its report and the number of steps of the run."""


def train_network(
    network: TableNetwork,
    cells: Cells,
    corruption: Corruption,
    settings: TableSettings,
    *,
    steps: int,
    fold: np.ndarray,
    without: Callable[[int], AbstractContextManager[None]],
    weight: np.ndarray | None = None,
    watch: Watch | None = None,
) -> tuple[int, list[tuple[int, float]]]:
    """Train in place; every member ends at its best weights.

    Args:
        fold: (rows,) the member that does not train on a row.
        without: within `without(m)` the network is as it is for the rows held out from member m.
        weight: (rows,) of each row in the fit, for bootstrap members.

    Returns:
        Steps taken, and (step, held-out loss) of every check; step 0 is before the network has learnt anything.
    """
    train = dataclasses.replace(
        settings.train,
        steps=steps,
        epochs=None,
        minutes=None,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    share = member_weights(fold, settings.members, weight)
    usable = np.flatnonzero(cells.seen.any(1) & (share.numpy().sum(1) > 0))
    optimiser = build_optimiser(network, train)
    guard = NanGuard(train.nan_limit)
    parameters = list(network.parameters())

    def update(progress: float) -> tuple[Tensor, Tensor]:
        norm = step(optimiser, parameters, clip=train.clip, rate=rate(progress, train))
        guard.check(norm)
        optimiser.zero_grad(set_to_none=True)
        return norm, torch.isfinite(norm)

    checks = HeldOutChecks(network, cells, fold=fold, without=without, corruption=corruption, seed=train.seed)
    checks(0)
    every = max(10, steps // 16)
    batches = row_batches(cells, usable, min(settings.rows, len(usable)), train.seed, share)
    with seeded(train.seed):  # dropout
        for report in pretrain(
            network, batches, corruption, StepContext(update=update), seed=train.seed, progress=lambda s: s / steps
        ):
            if watch is not None:
                watch(report, steps)
            if report.step % every == 0 or report.step == steps:
                checks(report.step)
                if checks.idle >= settings.patience:
                    break
    checks.restore()
    return report.step, checks.history


def member_weights(fold: np.ndarray, members: int, weight: np.ndarray | None) -> Tensor:
    """(rows, members) of a row in each member's loss: none in the member it is held out from."""
    held = fold[:, None] == np.arange(members)[None, :]
    share = np.where(held, 0.0, 1.0 / max(1, members - 1) if members > 1 else 1.0)
    if weight is not None:
        share = share * weight[:, None]
    return torch.tensor(share, dtype=torch.float32)


def row_batches(
    cells: Cells, usable: np.ndarray, rows: int, seed: int, share: Tensor
) -> Iterator[tuple[int, list[PackedBatch]]]:
    """Endless batches of rows, a fresh order every epoch; (epoch, [batch]). A short rest of an epoch is left out."""
    epoch = 0
    while True:
        order = usable[np.argsort(hash_keys(seed, epoch, usable, Salt.BATCH_ORDER), kind="stable")]
        for start in range(0, max(len(order) - rows + 1, 1), rows):
            take = order[start : start + rows]
            yield epoch, [batch_of(cells[take], take, extra={"weight": share[take]})]
        epoch += 1
