"""Fitting a table model: codings, linear part, additive part, then the network by the core's six steps.

With several members every row is held out from exactly one of them (cross-validation for free): a member stops where
the rows it never trained on say so, and the whole table calibrates intervals. For such rows the linear part, too, is
one fitted without them. Members differ in weights and in data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.corruption import ALL_MASK, Corruption, Hidden
from unmask.core.hashing import Salt, hash_keys
from unmask.core.inference import on_cores
from unmask.core.model import MaskedModel
from unmask.core.pretrain import Machine, StepReport, pretrain
from unmask.encoder.build import make_encoder
from unmask.encoder.config import MLP, EncoderConfig, Norm, SinCos
from unmask.modalities.table.distribution.boosted_stumps import MOST_ROWS, Additive, copies_of, fit_additive
from unmask.modalities.table.distribution.cells import (
    CellMasks,
    Cells,
    batch_of,
    box_cox,
    fit_codings,
    to_cells,
    training_corruption,
)
from unmask.modalities.table.distribution.codec import Coding, TableCodec
from unmask.modalities.table.distribution.discriminant import fit_trust
from unmask.modalities.table.distribution.factor_analysis import FactorBase, Factors, fit_factors
from unmask.modalities.table.distribution.linear_dims import Dims
from unmask.modalities.table.distribution.mcm import FilterModel
from unmask.modalities.table.distribution.network import CellModel, RowModel
from unmask.modalities.table.distribution.trunk import Trunk, TrunkConfig
from unmask.modalities.table.fitting.margins import estimate_margins
from unmask.modalities.table.recipes import TableSettings
from unmask.training.optimiser import NanGuard, build_optimiser, step
from unmask.training.schedule import rate
from unmask.training.settings import TrainSettings

BASE_ROWS = 10_000
"""The linear part is fitted on at most this many rows: its parameters are few. Of 50 000 x 20 (`benchmarks/tables_scale.py sample`) 3 000,
10 000 and all rows gave an RMSE of .5947, .5915 and .5905 in 1.8, 4.2 and 19.5 s."""
HELD_OUT_ROWS = 3000
"""Up to this many rows linear parts are fitted without the rows held out from each member too."""
CHECKED_ROWS = 1024


@dataclass(kw_only=True)
class Fit:
    """A fitted network and what it took.

    Attributes:
        fold: (rows,) the member that did not train on a row.
        held_out: the network as it is for the rows held out from a member; None where nothing can be held out.
        history: (step, held-out loss) of every check; step 0 is before the network has learnt anything.
    """

    network: MaskedModel
    codings: list[Coding]
    moments: np.ndarray
    fold: np.ndarray
    held_out: HeldOut | None = None
    steps: int = 0
    seconds: float = 0.0
    history: list[tuple[int, float]] = field(default_factory=list)

    def without(self, member: int) -> contextlib.AbstractContextManager[None]:
        """Within, the network is as it is for the rows held out from a member."""
        return self.held_out(member) if self.held_out else contextlib.nullcontext()


def moments_of(cells: Cells, weight: np.ndarray | None = None) -> np.ndarray:
    """(columns, 2) mean and deviation of the seen scores.

    Args:
        weight: of each row, for bootstrap copies.
    """
    out = np.ones((cells.seen.shape[1], 2))
    for i in range(len(out)):
        here = cells.seen[:, i]
        z, w = cells.score[here, i], None if weight is None else weight[here]
        if not len(z) or (w is not None and not w.any()):
            out[i] = 0.0, 1.0
            continue
        mean = np.average(z, weights=w)
        out[i] = mean, max(float(np.sqrt(np.average((z - mean) ** 2, weights=w))), 0.05)
    return out


def _copies(x: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """A column's values as often as a bootstrap sample has them; as they are where weights are no numbers of copies, or where
    none of the values would be left."""
    if weight is None or not np.array_equal(weight, np.round(weight)):
        return x
    copied = np.repeat(x, weight.astype(np.int64))
    return x if np.isnan(copied).all() else copied


def build_network(codings: list[Coding], moments: np.ndarray, settings: TableSettings, factors: int = 0) -> MaskedModel:
    """A network with random weights made from the seed alone; its linear part, of so many factors, is empty."""
    with seeded(settings.train.seed):
        return _new_network(codings, moments, settings, factors)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's random numbers from a seed; afterwards they go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _new_network(codings: list[Coding], moments: np.ndarray, settings: TableSettings, factors: int) -> MaskedModel:
    if settings.network == "cells":
        return _cell_model(codings, settings)
    if settings.network == "filter":
        return FilterModel(codings, settings.width, "l1" if settings.loss == "l1" else "mse")
    trunk = Trunk(
        TrunkConfig(
            slots=len(codings), cell=settings.cell, width=settings.width, layers=settings.layers,
            members=settings.members, dropout=settings.dropout,
        )
    )  # fmt: skip
    codec = TableCodec(codings, width=settings.cell, state=settings.width, members=settings.members)
    dims = Dims(codings, moments)
    base = FactorBase(Factors(loading=np.zeros((len(dims), factors)), noise=np.ones(len(dims)))) if factors else None
    return RowModel(codec, trunk, dims, base)


def _cell_model(codings: list[Coding], settings: TableSettings) -> MaskedModel:
    encoder = EncoderConfig(
        width=settings.width, layers=settings.layers, feedforward=MLP(inner=4 * settings.width), heads=settings.heads,
        norm=Norm(placement="pre", epsilon=1e-5), positions=SinCos(), dropout=settings.dropout,
    )  # fmt: skip
    decoder = None
    if settings.architecture == "visible_only":
        decoder = dataclasses.replace(encoder, layers=max(1, settings.layers * 2 // 3))
    codec = TableCodec(codings, width=settings.width, state=settings.width)
    return CellModel(codec, make_encoder(encoder), decoder)


def base_factors(
    network: RowModel, cells: Cells, settings: TableSettings, rows: np.ndarray, weight: np.ndarray | None = None
) -> Factors:
    """The linear part fitted to some rows, on a sample of them where they are many."""
    if len(rows) > BASE_ROWS:
        rows = np.sort(
            rows[np.argsort(hash_keys(settings.train.seed, rows, Salt.LINEAR_PART_ROWS), kind="stable")[:BASE_ROWS]]
        )
    part = cells[rows]
    x, v = network.dims(torch.from_numpy(part.number), torch.from_numpy(part.score), torch.from_numpy(part.seen))
    count = factors_for(len(network.dims), len(rows), settings)
    return fit_factors(
        x.double().numpy(), v.numpy() > 0, factors=count, shrink=settings.shrink,
        weight=None if weight is None else weight[rows],
    )  # fmt: skip


class HeldOut:
    """The network as it is for the rows held out from a member: its linear and additive parts are then fitted without them.

    Judged by the linear part of all rows, those rows would look better known than new ones are: with 200 rows of 20
    columns "90 %" intervals held 86 % of new cells. Above HELD_OUT_ROWS rows the difference is gone, and so is this work.
    """

    additive: list[Additive]

    def __init__(
        self, network: RowModel, cells: Cells, settings: TableSettings, fold: np.ndarray, weight: np.ndarray | None
    ) -> None:
        self.network, self.additive = network, []
        self._bases: dict[int, FactorBase] = {}
        if len(cells) <= HELD_OUT_ROWS:
            found: dict[int, Factors] = {}

            def fit_without(member: int) -> None:
                found[member] = base_factors(network, cells, settings, np.flatnonzero(fold != member), weight)

            on_cores(fit_without, range(settings.members))
            self._bases = {m: FactorBase(found[m]) for m in range(settings.members)}

    def trust(self, found: Tensor) -> None:
        """(members, dims): the network is given the mean, a member's held-out rows that of the others."""
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


def factors_for(dims: int, rows: int, settings: TableSettings) -> int:
    """As many factors as asked, fewer for few dims or rows; 0 where there is nothing to relate."""
    if not settings.factors or dims < 2 or rows < 8:
        return 0
    return max(1, min(settings.factors, dims - 1, rows // 4))


def steps_for(rows: int, settings: TableSettings) -> int:
    """Optimiser steps by the size of the table: about 40 passes over a small one, fewer over a large one."""
    if settings.steps is not None:
        return settings.steps
    if settings.train.epochs is not None:
        return max(1, round(rows * settings.train.epochs / settings.rows))
    return int(np.clip(rows * 40 / settings.rows, 60, 500))


def fit_cells(
    columns: Sequence[np.ndarray],
    categories: Sequence[int],
    settings: TableSettings,
    *,
    weight: np.ndarray | None = None,
    linear: Collection[int] = (),
    calibrate: bool = True,
    watch: Callable[[StepReport, int], None] | None = None,
) -> Fit:
    """Fit a network to coded columns (see `values.encode`).

    Args:
        categories: of each column, 0 for a quantity.
        weight: (rows,) of each row in the fit, for bootstrap members.
        linear: quantities scored by their distance from the mean; see `codec.Coding`.
        calibrate: held-out rows will be asked for after the fit too.
        watch: called after every step with its report and the number of steps.
    """
    start = time.perf_counter()
    codings = fit_codings([_copies(x, weight) for x in columns], categories, settings.bins, linear)
    if settings.network == "filter":
        codings = [box_cox(c, x) for c, x in zip(codings, columns, strict=True)]
    cells = to_cells(columns, codings)
    moments = moments_of(cells, weight)
    network = build_network(codings, moments, settings)
    count = factors_for(len(network.dims), len(cells), settings) if isinstance(network, RowModel) else 0
    if isinstance(network, RowModel) and count and not cells.seen.all():
        codings, moments = estimate_margins(
            network.dims, moments, cells, factors=count, shrink=settings.shrink, seed=settings.train.seed, weight=weight
        )
        network = build_network(codings, moments, settings)
    fold = folds(len(cells), settings)
    fit = Fit(network=network, codings=codings, moments=moments, fold=fold)
    steps = steps_for(len(cells), settings) if len(cells) >= 10 else 0
    if isinstance(network, RowModel) and factors_for(len(network.dims), len(cells), settings):
        network.base = FactorBase(base_factors(network, cells, settings, np.arange(len(cells)), weight))
        if steps or calibrate:
            fit.held_out = HeldOut(network, cells, settings, fold, weight)
        if steps:
            _refine(fit, cells, settings, weight)
    if steps:
        with seeded(settings.train.seed):  # dropout
            fit.steps = _train(fit, cells, settings, steps, weight, watch)
    network.eval()
    if isinstance(network, RowModel):
        network.settle()
    fit.seconds = time.perf_counter() - start
    return fit


def _refine(fit: Fit, cells: Cells, settings: TableSettings, weight: np.ndarray | None) -> None:
    """The trust in the linear part's categories, then the additive part: of each the mean of one a member, which its held-out
    rows keep."""
    rows = np.flatnonzero(cells.seen.any(1))
    if len(rows) > MOST_ROWS:
        rows = np.sort(
            rows[np.argsort(hash_keys(settings.train.seed, rows, Salt.MOST_ROWS), kind="stable")[:MOST_ROWS]]
        )
    network, seed, held_out = fit.network, settings.train.seed + 3, fit.held_out
    assert isinstance(network, RowModel)
    assert held_out is not None
    corruption = training_corruption(settings.low, settings.high, settings.copied, cells.seen, settings.select)
    batch = batch_of(cells[rows], rows)
    masked = [(batch, corruption.draw(batch, seed=seed, epoch=copy)) for copy in range(copies_of(len(rows)))]
    held = torch.from_numpy(fit.fold[rows, None] == np.arange(settings.members)).float()
    held_out.trust(fit_trust(network, masked, held_out, held > 0))
    if not settings.stumps:
        return
    train = (1 - held) * (1.0 if weight is None else torch.from_numpy(weight[rows]).float()[:, None])
    held_out.additive = fit_additive(network, masked, held_out, train, held, settings.stumps)
    if held_out.additive:
        network.additive = Additive(fit.codings, torch.stack([a.table for a in held_out.additive]).mean(0))


def folds(rows: int, settings: TableSettings) -> np.ndarray:
    """Which member a row is held out from: about equal shares, decided by the row alone. One member: a sixth of the
    rows is held out from it (fold 0), the others are marked 1."""
    count = settings.members if settings.members > 1 else 6
    number = (hash_keys(settings.train.seed, np.arange(rows), Salt.FOLD) % np.uint64(count)).astype(np.int64)
    return number if settings.members > 1 else np.minimum(number, 1)


def _train(fit: Fit, cells: Cells, settings: TableSettings, steps: int, weight: np.ndarray | None, watch: Any) -> int:
    train = dataclasses.replace(
        settings.train, steps=steps, epochs=None, minutes=None, learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
    )  # fmt: skip
    members = settings.members
    network = fit.network
    share = member_weights(fit.fold, members, weight)
    usable = np.flatnonzero(cells.seen.any(1) & (share.numpy().sum(1) > 0))
    corruption = training_corruption(settings.low, settings.high, settings.copied, cells.seen, settings.select)
    optimiser = build_optimiser(network, train)
    guard = NanGuard(train.nan_limit)
    parameters = list(network.parameters())

    def update(progress: float) -> tuple[float, bool]:
        norm = step(optimiser, parameters, clip=train.clip, rate=rate(progress, train))
        applied = guard.check(norm)
        optimiser.zero_grad(set_to_none=True)
        return float(norm), applied

    check = Checker(fit, cells, corruption, train.seed)
    check(0)
    every = max(10, steps // 16)
    batches = row_batches(cells, usable, min(settings.rows, len(usable)), train.seed, share)
    for report in pretrain(
        network, batches, corruption, Machine(update=update), seed=train.seed, progress=lambda s: s / steps
    ):
        if watch is not None:
            watch(report, steps)
        if report.step % every == 0 or report.step == steps:
            check(report.step)
            if check.idle >= settings.patience:
                break
    check.restore()
    fit.history = check.history
    return report.step


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


VOICES = (0.0, 0.5, 1.0)
"""How much of what the network says of a column may be heard."""
TELLING = 1e-3
"""Nats per hidden cell: less is no reason to go on. Some column or other gains a little at every check."""


class Checker:
    """Held-out loss of every member on the rows it never sees, and its weights at their best.

    What the network says of a column is heard as far as it helps there: each column has a voice of 0, a half or 1, the one of
    least held-out loss (all members' together). So what is learnt of one column is kept where another has nothing but
    noise beyond the linear part.

    A member's losses are in nats per hidden cell, with masks that are the same at every check.
    """

    def __init__(self, fit: Fit, cells: Cells, corruption: Corruption, seed: int) -> None:
        self.fit, self.network = fit, fit.network
        held = fit.fold < self.members
        rows = np.flatnonzero(cells.seen.any(1) & held)
        if len(rows) > CHECKED_ROWS:
            rows = np.sort(np.argsort(hash_keys(seed, rows, Salt.CHECKED_ROWS), kind="stable")[:CHECKED_ROWS])
            rows = np.flatnonzero(cells.seen.any(1) & held)[rows]
        select: Any = corruption.select
        imputing = dataclasses.replace(select, copied=1.0) if isinstance(select, CellMasks) else select
        mask = Corruption(select=imputing, replace=ALL_MASK)
        self.parts: list[tuple[int, PackedBatch, Hidden, dict[str, Any]]] = []
        for member in range(self.members):
            own = rows[fit.fold[rows] == member]
            if len(own):
                batch = batch_of(cells[own], own)
                hidden = mask.draw(batch, seed=seed + 1, epoch=0)
                self.parts.append((member, batch, hidden, self._given(member, batch, hidden)))
        self.columns = cells.seen.shape[1]
        self.best = torch.full((self.members,), torch.inf)
        self.kept: list[dict[int, Tensor]] = [{} for _ in range(self.members)]
        self.voice = torch.ones(self.members, self.columns)
        self._silent: Tensor | None = None
        self.history: list[tuple[int, float]] = []
        self.idle, self._told = 0, float("inf")
        """Checks since the loss fell by more than TELLING."""

    @property
    def members(self) -> int:
        return int(self.network.codec.members)

    @property
    def _has_voice(self) -> bool:
        return isinstance(self.network, RowModel)

    @torch.no_grad()
    def _given(self, member: int, batch: PackedBatch, hidden: Hidden) -> dict[str, Any]:
        """What the parts fitted without the member's rows say of them: the same at every check."""
        if not isinstance(self.network, RowModel):
            return {}
        with self.fit.without(member):
            return {"given": self.network.given(batch, hidden)}

    def _losses(self) -> Tensor:
        """(parts, columns) summed losses."""
        out = torch.zeros(len(self.parts), self.columns, dtype=torch.float64)
        for part, (member, batch, hidden, given) in enumerate(self.parts):
            with torch.no_grad():
                prediction = self.network(batch, hidden, **given)
            target = self.network.codec.targets(batch.values, hidden.flat)
            loss = -prediction.member_log_prob(target)[:, member % prediction.members]
            out[part].index_add_(0, hidden.flat % batch.shape[1], loss.double())
        return out

    @torch.no_grad()
    def __call__(self, number: int) -> None:
        self.network.eval()
        losses, voice = self._losses(), torch.ones(self.columns)
        if self._silent is None:  # the first check: heads start at zero
            self._silent = losses
        elif self._has_voice:
            scale_heads(self.network, 0.5)
            heard = torch.stack([self._silent, self._losses(), losses])
            scale_heads(self.network, 2.0)
            chosen = heard.sum(1).argmin(0)
            losses = heard.gather(0, chosen.expand(1, len(self.parts), -1))[0]
            voice = torch.tensor(VOICES)[chosen]
        for (member, _, hidden, _), loss in zip(self.parts, losses.sum(1).tolist(), strict=True):
            if len(hidden) and loss / len(hidden) < self.best[member]:
                self.best[member] = loss / len(hidden)
                self.kept[member] = {i: p[at].clone() for i, (p, at) in enumerate(member_parts(self.network, member))}
                self.voice[member] = voice
        cells = sum(len(hidden) for _, _, hidden, _ in self.parts)
        if cells:
            total = float(losses.sum()) / cells
            self.history.append((number, total))
            self.idle = 0 if total < self._told - TELLING else self.idle + 1
            self._told = total if self.idle == 0 else self._told
        self.network.train()

    @torch.no_grad()
    def restore(self) -> None:
        """Every member as it was at its best, its heads as loud as they were found to help."""
        for member, kept in enumerate(self.kept):
            for i, (parameter, at) in enumerate(member_parts(self.network, member)):
                if i in kept:
                    parameter[at] = kept[i]
        if self._has_voice:
            scale_heads(self.network, self.voice)


def scale_heads(network: MaskedModel, voice: float | Tensor) -> None:
    """Multiply what the network says beyond the linear part: by one number, or one for each (member, column)."""
    codec: Any = network.codec
    for block, head, bias in zip(codec.blocks, codec.head, codec.head_bias, strict=True):
        factor: Any = voice
        if isinstance(voice, Tensor):
            each = head.shape[-1] // len(block.columns)
            factor = voice[:, list(block.columns)].repeat_interleave(each, 1)[:, None]
        for parameter in (head, bias):
            parameter.data.mul_(factor)


def member_parts(network: MaskedModel, member: int) -> list[tuple[nn.Parameter, Any]]:
    """Every parameter and where in it a member's own weights are."""
    codec: Any = network.codec
    if codec.members == 1:
        return [(p, ...) for p in network.parameters()]
    wide = {id(codec.embedding), id(codec.slope), id(codec.masked)}
    columns = slice(member * codec.width, (member + 1) * codec.width)
    return [(p, (slice(None), columns) if id(p) in wide else member) for p in network.parameters()]


__all__ = ["Checker", "Fit", "TrainSettings", "build_network", "fit_cells", "folds", "row_batches"]
