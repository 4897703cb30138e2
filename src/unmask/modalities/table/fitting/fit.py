"""Fitting a table model: codings, then the parts before the network, then the network.

With several members every row is held out from exactly one of them, which gives cross-validation for free: the rows
held out from a member decide when its training stops, and taken together, which is the whole table, they calibrate the
intervals. Members differ in weights and in data.

What is fitted before the network (the factor analysis, the trust in its discriminants, and the boosted stumps) is each
the mean of one fit per member, made without the rows that are held out from that member; those rows are judged by that
fit alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Corruption
from unmask.core.hashing import Salt, hash_keys
from unmask.core.pretrain import StepContext, StepReport, pretrain
from unmask.kernels.threads import on_cores
from unmask.modalities.table.distribution.boosted_stumps import MOST_ROWS, BoostedStumps, copies_of, fit_stumps
from unmask.modalities.table.distribution.cells import (
    Cells,
    batch_of,
    box_cox,
    fit_codings,
    moments_of,
    sampled,
    to_cells,
    training_corruption,
)
from unmask.modalities.table.distribution.codec import Coding
from unmask.modalities.table.distribution.discriminant import fit_trust
from unmask.modalities.table.distribution.factor_analysis import Dims, FactorAnalysis, FactorModel
from unmask.modalities.table.distribution.network import RowModel, build_network, seeded
from unmask.modalities.table.distribution.table_network import TableNetwork
from unmask.modalities.table.fitting.held_out_checks import HeldOutChecks
from unmask.modalities.table.fitting.margins import FactorFit, estimate_margins, scales_of_all_rows
from unmask.modalities.table.recipes import TableSettings
from unmask.training.optimiser import NanGuard, build_optimiser, step
from unmask.training.schedule import rate


@dataclass(kw_only=True)
class Fit:
    """A fitted network and what it took.

    Attributes:
        fold: (rows,) the member that did not train on a row.
        held_out: the network as it is for the rows held out from a member; None where nothing can be held out.
        history: (step, held-out loss) of every check; step 0 is before the network has learnt anything.
    """

    network: TableNetwork
    settings: TableSettings
    codings: list[Coding]
    moments: np.ndarray
    fold: np.ndarray
    held_out: HeldOut | None = None
    steps: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)

    def without(self, member: int) -> contextlib.AbstractContextManager[None]:
        """Within, the network is as it is for the rows held out from a member."""
        return self.held_out(member) if self.held_out else contextlib.nullcontext()


def _copies(x: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """A column's values as often as a bootstrap sample has them; as they are where weights are no numbers of copies, or
    where none of the values would be left."""
    if weight is None or not np.array_equal(weight, np.round(weight)):
        return x
    copied = np.repeat(x, weight.astype(np.int64))
    return x if np.isnan(copied).all() else copied


def steps_for(rows: int, settings: TableSettings) -> int:
    """Optimiser steps by the size of the table: about 40 passes over a small one, fewer over a large one."""
    if settings.steps is not None:
        return settings.steps
    if settings.train.epochs is not None:
        return max(1, round(rows * settings.train.epochs / settings.rows))
    return int(np.clip(rows * 40 / settings.rows, 60, 500))


def folds(rows: int, settings: TableSettings, groups: np.ndarray | None = None) -> np.ndarray:
    """Which member a row is held out from: about equal shares, decided by the row alone, or its group. One
    member: a sixth of the rows is held out from it (fold 0), the others are marked 1."""
    count = settings.members if settings.members > 1 else 6
    number = (
        hash_keys(settings.train.seed, np.arange(rows) if groups is None else groups, Salt.FOLD) % np.uint64(count)
    ).astype(np.int64)
    return number if settings.members > 1 else np.minimum(number, 1)


def fit_cells(
    columns: Sequence[np.ndarray],
    categories: Sequence[int],
    settings: TableSettings,
    *,
    weight: np.ndarray | None = None,
    groups: np.ndarray | None = None,
    calibrate: bool = True,
    watch: Watch | None = None,
) -> Fit:
    """Fit a network to coded columns (see `values.encode`).

    Args:
        categories: of each column, 0 for a quantity.
        weight: (rows,) of each row in the fit, for bootstrap members.
        groups: (rows,) numbers of clusters, whose rows are held out together.
        calibrate: held-out rows will be asked for after the fit too.
        watch: called after every step with its report and the number of steps.
    """
    rows = len(columns[0]) if len(columns) else 0
    codings = fit_codings([_copies(x, weight) for x in columns], categories, settings.bins)
    if settings.network == "rows":
        codings = scales_of_all_rows(codings, columns, settings, weight)
    elif settings.network == "filter":  # Box-Cox transformed, as MCM does
        codings = [box_cox(c, x) for c, x in zip(codings, columns, strict=True)]
    cells = to_cells(columns, codings)
    moments, steps = moments_of(cells, weight), steps_for(rows, settings) if rows >= 10 else 0
    corruption = training_corruption(settings.low, settings.high, settings.copied, cells.seen, settings.select)
    fold = folds(rows, settings, groups)
    network: TableNetwork
    held_out = None
    if settings.network == "rows":
        network, moments, held_out = fit_linear_parts(
            codings,
            moments,
            cells,
            settings,
            corruption=corruption,
            fold=fold,
            weight=weight,
            training=steps > 0,
            calibrate=calibrate,
        )
    else:  # from random weights alone
        network = build_network(codings, moments, settings)
    fit = Fit(
        network=network,
        settings=settings,
        codings=network.codec.codings,
        moments=moments,
        fold=fold,
        held_out=held_out,
    )
    if steps:
        train(fit, cells, corruption, steps, weight=weight, watch=watch)
    network.finished()
    return fit


Watch = Callable[[StepReport, int], None]
"""Called after every step with its report and the number of steps of the run."""


def train(
    fit: Fit,
    cells: Cells,
    corruption: Corruption,
    steps: int,
    *,
    weight: np.ndarray | None = None,
    watch: Watch | None = None,
) -> None:
    """Train the network of a fit in place, and note the steps taken and the history; every member ends at its best
    weights. `weight`: (rows,) of each row in the fit, for bootstrap members."""
    network, settings, fold = fit.network, fit.settings, fit.fold
    run = dataclasses.replace(
        settings.train,
        steps=steps,
        epochs=None,
        minutes=None,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )
    share = member_weights(fold, settings.members, weight)
    usable = np.flatnonzero(cells.seen.any(1) & (share.numpy().sum(1) > 0))
    optimiser = build_optimiser(network, run)
    guard = NanGuard(run.nan_limit)
    parameters = list(network.parameters())

    def update(progress: float) -> tuple[Tensor, Tensor]:
        norm = step(optimiser, parameters, clip=run.clip, rate=rate(progress, run))
        guard.check(norm)
        optimiser.zero_grad(set_to_none=True)
        return norm, torch.isfinite(norm)

    checks = HeldOutChecks(network, cells, fold=fold, without=fit.without, corruption=corruption, seed=run.seed)
    checks(0)
    every = max(10, steps // 16)
    batches = row_batches(cells, usable, min(settings.rows, len(usable)), run.seed, share)
    with seeded(run.seed):  # dropout
        for report in pretrain(
            network, batches, corruption, StepContext(update=update), seed=run.seed, progress=lambda s: s / steps
        ):
            if watch is not None:
                watch(report, steps)
            if report.step % every == 0 or report.step == steps:
                checks(report.step)
                if checks.idle >= settings.patience:
                    break
    checks.restore()
    fit.steps, fit.history = report.step, checks.history


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


HELD_OUT_ROWS = 3000
"""Up to this many rows factor analyses are fitted without the rows held out from each member too."""


class HeldOut:
    """The network as it is for the rows held out from a member: the parts before it are then fitted without these rows.

    With the factor analysis of all rows, errors on held-out rows would be smaller than on new rows, and intervals too
    narrow: with 200 rows of 20 columns "90 %" intervals held 86 % of new cells. Above HELD_OUT_ROWS rows there is no
    difference, and this is skipped.

    Args:
        fold: (rows,) the member that does not train on a row.

    Attributes:
        additive: the boosted stumps of each member; empty where there are none.
    """

    def __init__(self, network: RowModel, factors: FactorFit, fold: np.ndarray) -> None:
        self.network = network
        self.additive: list[BoostedStumps] = []
        self._bases: dict[int, FactorAnalysis] = {}
        if len(fold) <= HELD_OUT_ROWS:
            found: dict[int, FactorModel] = {}

            def fit_without(member: int) -> None:
                found[member] = factors.of(np.flatnonzero(fold != member))

            members = range(network.codec.members)
            on_cores(fit_without, members)
            self._bases = {member: FactorAnalysis(found[member]) for member in members}

    def trust(self, found: Tensor) -> None:
        """Use the trust in discriminants (members, dims) that suits each member's held-out rows.

        The network gets the mean over members; for the held-out rows of one member it is the mean over the others.
        """
        assert self.network.base is not None
        self.network.base.trust = found.mean(0)
        for member, base in self._bases.items():
            base.trust = found[torch.arange(len(found)) != member].mean(0) if len(found) > 1 else found[0]

    @contextlib.contextmanager
    def __call__(self, member: int) -> Iterator[None]:
        whole = self.network.base, self.network.additive
        self.network.base = self._bases.get(member, whole[0])
        self.network.additive = self.additive[member] if self.additive else None
        try:
            yield
        finally:
            self.network.base, self.network.additive = whole


def fit_linear_parts(
    codings: list[Coding],
    moments: np.ndarray,
    cells: Cells,
    settings: TableSettings,
    *,
    corruption: Corruption,
    fold: np.ndarray,
    weight: np.ndarray | None,
    training: bool,
    calibrate: bool,
) -> tuple[RowModel, np.ndarray, HeldOut | None]:
    """A network that has learnt nothing yet, with what stands before it fitted: the factor analysis, then the trust in
    its discriminants and the boosted stumps, on rows masked several times over.

    Args:
        moments: (columns, 2) mean and deviation of the seen scores.
        corruption: of the training run.
        fold: (rows,) the member that does not train on a row.
        weight: (rows,) of each row, for bootstrap copies.
        training: the network will be trained; without, the factor analysis stands alone.
        calibrate: held-out rows will be asked for after the fit too.

    Returns:
        The network; (columns, 2) mean and deviation of the scores, as they would be without holes; and the network as
        it is for the rows held out from a member, None where it is the same for all, or nobody will ask for these.
    """
    seed = settings.train.seed
    factors = FactorFit(dims=Dims(codings, moments), cells=cells, settings=settings, weight=weight)
    related = factors.count(len(cells)) > 0
    if related and not cells.seen.all():
        codings, moments = estimate_margins(factors, moments)
        factors = dataclasses.replace(factors, dims=Dims(codings, moments))
    network = build_network(codings, moments, settings)
    assert isinstance(network, RowModel)
    if related:
        network.base = FactorAnalysis(factors.of(np.arange(len(cells))))
    if not related or not (training or calibrate):
        return network, moments, None
    held_out = HeldOut(network, factors, fold)
    if training:
        rows = sampled(np.flatnonzero(cells.seen.any(1)), MOST_ROWS, seed, Salt.MOST_ROWS)
        batch = batch_of(cells[rows], rows)
        masked = [(batch, corruption.draw(batch, seed=seed + 3, epoch=copy)) for copy in range(copies_of(len(rows)))]
        held = torch.from_numpy(fold[rows, None] == np.arange(settings.members)).float()
        held_out.trust(fit_trust(network, masked, held_out, held > 0))
        if settings.stumps:
            train = (1 - held) * (1.0 if weight is None else torch.from_numpy(weight[rows]).float()[:, None])
            held_out.additive = fit_stumps(network, masked, held_out, train, held, settings.stumps)
        if held_out.additive:
            tables = torch.stack([part.table for part in held_out.additive])
            network.additive = BoostedStumps(network.codec.codings, tables.mean(0))
    return network, moments, held_out
