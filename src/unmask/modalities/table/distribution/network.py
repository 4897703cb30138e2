"""The networks over a row of cells: a compact ensemble for whole rows (the default), or the core's transformer.

Both are masked models of the core: the same batches, corruption, loss and loop. `RowModel` adds the linear part.

Shape letters: rows, slots (columns), members, width, state, dims.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden
from unmask.core.model import corrupt
from unmask.encoder.build import make_encoder
from unmask.encoder.config import MLP, EncoderConfig, Norm, SinCos
from unmask.modalities.table.distribution.boosted_stumps import BoostedStumps
from unmask.modalities.table.distribution.codec import Coding, TableCodec
from unmask.modalities.table.distribution.discriminant import SURE, discriminant, log_odds
from unmask.modalities.table.distribution.factor_analysis import Dims, FactorAnalysis, FactorModel
from unmask.modalities.table.distribution.mcm import FilterModel
from unmask.modalities.table.distribution.prediction import Categories, CellPrediction, Quantities
from unmask.modalities.table.distribution.table_network import TableNetwork, Trunk
from unmask.modalities.table.recipes import TableSettings


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the parts fitted before the network predict for a corrupted batch: inputs of the network.

    Attributes:
        values: of the cells after corruption.
        masked: (rows, columns).
        linear: (rows, dims) mean and variance by the linear part.
        lift: (rows, dims + 1) sums of the additive part.
    """

    values: dict[str, Tensor]
    masked: Tensor
    linear: tuple[Tensor, Tensor] | None
    lift: Tensor | None


class RowModel(TableNetwork):
    """The default: factor analysis + boosted stumps + ensemble of row networks, in place. One example per row, a slot
    per column.

    `base` and `additive` are called so in saved models.

    Attributes:
        base: the factor analysis (the linear part), or None.
        additive: the boosted stumps (the additive part), or None.
    """

    draws_columns = weighs_heads = True

    def __init__(self, codec: TableCodec, trunk: Trunk, dims: Dims) -> None:
        super().__init__(codec, trunk)
        self.dims = dims
        self.base: FactorAnalysis | None = None
        self.additive: BoostedStumps | None = None
        self.linear_only = False
        for number, block in enumerate(codec.blocks):
            if block.quantity:
                self.register_buffer(f"own{number}", dims.of_quantity[list(block.columns)], persistent=False)
                continue
            dim, sign, marginal = dims.table(block.columns, block.size)
            own = torch.where((dim >= 0) & (sign > 0), dim, len(dims))  # the additive part's last is always 0
            for name, value in (("dim", dim), ("sign", sign), ("marginal", marginal), ("own", own)):
                self.register_buffer(f"{name}{number}", value, persistent=False)

    def forward(
        self, batch: PackedBatch, hidden: Hidden, wanted: Tensor | None = None, given: Given | None = None
    ) -> CellPrediction:
        """Predict hidden cells; `given` is what `self.given` says of the same batch and hidden cells, where it is
        known."""
        wanted = hidden.flat if wanted is None else wanted
        g = self.given(batch, hidden) if given is None else given
        silent = self.linear_only and not torch.is_grad_enabled()
        state = None if silent else self.rows(g.values, g.masked, g.linear)
        return self.heads(state, g.linear, g.lift, wanted, batch.shape[1], batch.extra.get("weight"))

    def given(self, batch: PackedBatch, hidden: Hidden) -> Given:
        masked = torch.zeros(batch.segment.numel(), dtype=torch.bool, device=batch.segment.device)
        masked[hidden.masked] = True
        masked = masked.view(batch.shape)
        values = corrupt(self.codec, batch.values, hidden)
        lift = None if self.additive is None else self.additive(values["bin"], ~masked & (values["seen"] != 0))
        return Given(values=values, masked=masked, linear=self.linear(values, masked), lift=lift)

    def known(self, batch: PackedBatch, hidden: Hidden) -> dict[str, Any]:
        return {"given": self.given(batch, hidden)}

    def take_parts(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        state = dict(state)
        if "base.loading" in state:
            self.base = FactorAnalysis(
                FactorModel(loading=state["base.loading"].numpy(), noise=state["base.noise"].numpy())
            )
        if "additive.table" in state:
            self.additive = BoostedStumps(self.codec.codings, state["additive.table"])
        return state

    def finished(self) -> None:
        super().finished()
        # Where no head has learnt anything, the other parts alone are the very same prediction, sooner.
        self.linear_only = self.base is not None and all(not h.any() for h in (*self.codec.head, *self.codec.head_bias))

    def rows(
        self, values: dict[str, Tensor], masked: Tensor, linear: tuple[Tensor, Tensor] | None
    ) -> Float[Tensor, "members rows state"]:
        """The state of every row, from its cells and the linear part's guesses of those that are not seen."""
        guess = None
        if linear is not None:
            dim = self.dims.of_quantity
            guess = torch.where(
                self.codec.is_quantity, self.dims.center[dim] + self.dims.scale[dim] * linear[0][:, dim], 0.0
            )
        return self.encoder(self.codec.embed(values, masked, guess))

    def linear(self, values: dict[str, Tensor], masked: Tensor) -> tuple[Tensor, Tensor] | None:
        """(rows, dims) mean and variance of every dim, by the linear part."""
        if self.base is None:
            return None
        seen = ~masked & (values["seen"] != 0)
        x, v = self.dims(values["bin"], values["score"], seen)
        mean, variance = self.base(x, v)
        return mean, variance

    def heads(
        self,
        state: Tensor | None,
        linear: tuple[Tensor, Tensor] | None,
        lift: Float[Tensor, "rows outputs"] | None,
        wanted: Tensor,
        slots: int,
        weight: Tensor | None = None,
    ) -> CellPrediction:
        """Predictions of the asked cells; all columns of a block in one product."""
        row, column = wanted // slots, wanted % slots
        block_of = self.codec.block_of[column]
        slots_of = {n: (block_of == n).nonzero().flatten() for n in range(len(self.codec.blocks))}
        if len(wanted):  # with nothing asked for, the empty loss still has a gradient
            slots_of = {n: places for n, places in slots_of.items() if len(places)}
        whole = {} if state is None else self.whole_blocks(state, slots_of)
        pieces = []
        for number, places in slots_of.items():
            block = self.codec.blocks[number]
            place, r = self.codec.place_of[column[places]], row[places]
            each = block.size + 2 * block.quantity
            if state is None:
                raw = torch.zeros((1, len(places), each), device=wanted.device)
            else:
                head, bias = self.codec.head[number], self.codec.head_bias[number]
                if number in whole:
                    raw = whole[number].reshape(len(head), -1, each).index_select(1, r * len(block.columns) + place)
                else:
                    raw = by_column(state, head.view(len(head), head.shape[1], -1, each), r, place)
                raw = raw + bias.view(len(head), -1, each).index_select(1, place)
            pieces.append((places, self.distribution(number, raw, r, place, linear, lift)))
        return CellPrediction(pieces, len(wanted), None if weight is None else weight[row])

    def distribution(
        self,
        block: int,
        raw: Float[Tensor, "members wanted each"],
        row: Tensor,
        place: Tensor,
        linear: tuple[Tensor, Tensor] | None,
        lift: Float[Tensor, "rows outputs"] | None,
    ) -> Quantities | Categories:
        """The distributions of some cells of a block, from all three parts.

        Args:
            raw: what the network says of them.
            row, place: of each cell: its row in `linear` and `lift`, its column's place in the block.
        """
        if lift is not None:
            raw = self.lifted(raw, block, row, place, lift)
        normal = share = None
        if linear is not None and self.codec.blocks[block].quantity:
            normal = self.dims.normal(*linear, row, getattr(self, f"own{block}")[place])
        elif linear is not None:
            share = self.shares(block, linear, row, place)
        return self.codec.distribution(block, raw, place, normal, share)

    def whole_blocks(
        self, state: Float[Tensor, "members rows state"], blocks: Iterable[int]
    ) -> dict[int, Float[Tensor, "members rows out"]]:
        """All columns of a block for every row: of narrow blocks, whose heads go through one product together, and in
        training.

        A product with a handful of outputs costs as much as one with a hundred. All narrow blocks are in it if any is
        asked for, so that its shape stays the same.
        """
        heads = self.codec.head
        narrow = [n for n, head in enumerate(heads) if head.shape[-1] < 4 * AT_ONCE]
        found: dict[int, Tensor] = {}
        if not set(narrow).isdisjoint(blocks):
            product = torch.bmm(state, torch.cat([heads[n] for n in narrow], -1))
            found.update(zip(narrow, product.split([heads[n].shape[-1] for n in narrow], -1), strict=True))
        if torch.is_grad_enabled():
            found.update({n: torch.bmm(state, heads[n]) for n in blocks if n not in found})
        return found

    def lifted(
        self,
        raw: Float[Tensor, "*members wanted each"],
        block: int,
        row: Tensor,
        place: Tensor,
        lift: Float[Tensor, "rows outputs"],
    ) -> Float[Tensor, "*members wanted each"]:
        """What the network says of some cells of a block and, added in place, the additive part: a shift,
        or log-odds."""
        own = getattr(self, f"own{block}")[place]
        if self.codec.blocks[block].quantity:
            raw[..., -2] += lift[row, own]
        else:
            raw += lift[row[:, None], own]
        return raw

    def level_shares(self, linear: tuple[Tensor, Tensor]) -> Float[Tensor, "rows dims"]:
        """The linear part's share of every category that has a dim of its own; 0 for quantities."""
        rows = len(linear[0])
        out = torch.zeros(rows, len(self.dims) + 1)
        for number, block in enumerate(self.codec.blocks):
            if not block.quantity:
                for place in range(len(block.columns)):
                    share = self.shares(number, linear, torch.arange(rows), torch.full((rows,), place))
                    out[:, getattr(self, f"own{number}")[place]] = share
        return out[:, :-1]

    def shares(self, block: int, linear: tuple[Tensor, Tensor], row: Tensor, place: Tensor) -> Tensor:
        """The linear part's share of every category: linear discriminant analysis, by its identity with regression.

        See `discriminant.py`. Levels too rare to have a dim keep their marginal share.
        """
        dim, sign, marginal = (getattr(self, f"{n}{block}")[place] for n in ("dim", "sign", "marginal"))
        at = dim.clamp_min(0)
        p = marginal.clamp(1e-4, 1 - 1e-4)
        move = self.dims.scale[at] * linear[0][row[:, None], at] * sign
        direction, curvature = discriminant(move, linear[1][row[:, None], at], p)
        assert self.base is not None
        known = log_odds(p.logit(), direction, curvature, self.base.trust[at])
        odds = torch.where(dim >= 0, known, p.logit())
        share = torch.where(marginal > 0, odds.clamp(-SURE, SURE).sigmoid(), 0.0)
        return share / share.sum(-1, keepdim=True)

    def states(self, batch: PackedBatch, wanted: Tensor | None = None) -> Tensor:
        """One state a row, the members' side by side: (rows, 1, members * state)."""
        nothing = torch.zeros(batch.shape, dtype=torch.bool, device=batch.segment.device)
        state = self.rows(batch.values, nothing, self.linear(batch.values, nothing))
        return state.transpose(0, 1).flatten(1)[:, None]

    def column_by_column(self, rows: int, member: int) -> ColumnByColumn:
        """One member's predictions of rows that are filled column by column, with nothing visible yet."""
        return ColumnByColumn(self, rows, member)


class ColumnByColumn:
    """One member's predictions of a block of rows while their columns become visible one after the other.

    Says what `RowModel.forward` says of the same rows, and costs less: as all rows see the same columns, the factor
    analysis is one small solve, and the first layer's sums change by the one column that was shown (30 columns: a sixth
    of the work).

    Args:
        rows: in the block; every argument and result has as many.
        member: of the ensemble.
    """

    def __init__(self, network: RowModel, rows: int, member: int) -> None:
        self.network, self.member, self.rows = network, member, rows
        codec, trunk, base = network.codec, network.encoder, network.base
        columns = len(codec.codings)
        self._width = slice(member * codec.width, (member + 1) * codec.width)
        self._visible = torch.zeros(columns, dtype=torch.bool)
        enter = trunk.enter[member].view(columns, trunk.cell, -1)
        first = torch.einsum("cw,cwh->h", codec.masked[:, self._width], enter) + trunk.enter_bias[member]
        self._sum = first.expand(rows, -1).clone()
        """(rows, state) what enters the first layer."""
        self._guess = torch.zeros((rows, columns))
        """What the network is shown of hidden quantities: the mean of the linear part."""
        self._guess_weight = torch.einsum("cw,cwh->ch", codec.slope[:, self._width], enter)
        """What one unit of a column's guess adds to the first layer."""
        if base is not None:
            self._scaled = base.loading / base.noise[:, None]
            self._precision = torch.eye(base.factors)
            self._evidence = torch.zeros((rows, base.factors))
            dim, dims = network.dims.of_quantity, network.dims
            self._guess_loading = base.loading[dim].t() * dims.scale[dim] * codec.is_quantity
            self._guess_center = dims.center[dim] * codec.is_quantity
        self.linear = self._solve()
        self.lift = None if network.additive is None else network.additive.hidden().expand(rows, -1).clone()

    def _solve(self) -> tuple[Tensor, Tensor] | None:
        """Mean and variance (rows, dims) of the linear part; brings what the network is shown of hidden quantities up
        to date."""
        base = self.network.base
        if base is None:
            return None
        spread = torch.cholesky_inverse(torch.linalg.cholesky(self._precision))
        factor = self._evidence @ spread
        variance = ((base.loading @ spread) * base.loading).sum(-1) + base.noise
        guess = (factor @ self._guess_loading + self._guess_center) * ~self._visible
        self._sum += (guess - self._guess) @ self._guess_weight
        self._guess = guess
        return factor @ base.loading.t(), variance.expand(self.rows, -1)

    def show(self, column: int, number: Int[Tensor, " rows"], score: Float[Tensor, " rows"]) -> None:
        """A hidden column becomes visible. `number`, `score`: bin or category, and normal score (0 for a category) of
        every row."""
        codec, trunk, base, dims = self.network.codec, self.network.encoder, self.network.base, self.network.dims
        slope = codec.slope[column, self._width]
        new = codec.embedding[codec.offset[column] + number][:, self._width] + score[:, None] * slope
        old = codec.masked[column, self._width] + self._guess[:, column, None] * slope
        self._sum += trunk.enter_part(new - old, column, self.member)
        self._guess[:, column] = 0.0
        self._visible[column] = True
        if base is not None:
            own = (dims.column == column).nonzero().flatten()
            self._evidence += dims.standardised(own, number, score) @ self._scaled[own]
            self._precision = self._precision + self._scaled[own].t() @ base.loading[own]
        self.linear = self._solve()
        if self.lift is not None and self.network.additive is not None:
            self.lift += self.network.additive.shown(column, number)

    def predict(self, column: int, nothing_known: bool = False) -> Quantities | Categories:
        """The distributions of a hidden column's cells, of this member alone; where nothing is known of the rows, the
        column's own distribution: the linear part's normal is narrower than it where a value that many cells have (0 of
        no pack-years) stands for its whole share."""
        codec = self.network.codec
        member = slice(self.member, self.member + 1)
        block, place = int(codec.block_of[column]), int(codec.place_of[column])
        each = codec.blocks[block].size + 2 * codec.blocks[block].quantity
        row, places = torch.arange(self.rows), torch.full((self.rows,), place)
        if nothing_known:
            own = None if codec.blocks[block].quantity else self.linear
            return self.network.distribution(block, torch.zeros(1, self.rows, each), row, places, own, None)
        state = self.network.encoder.finish(self._sum[None], member)
        at = slice(place * each, (place + 1) * each)
        raw = state @ codec.head[block][member, :, at] + codec.head_bias[block][member, :, at]
        return self.network.distribution(block, raw, row, places, self.linear, self.lift)


AT_ONCE = 64
"""Asked cells of a column in one product, always as many: shapes stay few."""


def by_column(
    state: Float[Tensor, "members rows state"],
    head: Float[Tensor, "members state columns each"],
    row: Tensor,
    column: Tensor,
) -> Float[Tensor, "members wanted each"]:
    """Each asked cell's state times its column's head: of the few cells that are asked, not of all.

    With a tenth of 20 columns x 512 rows asked, 0.9 ms instead of 2.4 ms.
    """
    members, _, columns, each = head.shape
    order = torch.argsort(column, stable=True)
    count = torch.bincount(column, minlength=columns)
    chunks = -(-count // AT_ONCE)
    first = (chunks.cumsum(0) - chunks) * AT_ONCE - (count.cumsum(0) - count)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device) + first[column[order]]
    rows = torch.zeros(int(chunks.sum()) * AT_ONCE, dtype=torch.long, device=row.device)
    rows[place] = row
    which = torch.repeat_interleave(torch.arange(columns, device=row.device), chunks)
    states = state.index_select(1, rows).view(members * len(which), AT_ONCE, state.shape[-1])
    heads = head.permute(0, 2, 1, 3)[:, which].flatten(0, 1)
    return torch.bmm(states, heads).view(members, len(rows), each).index_select(1, place)


def build_network(codings: list[Coding], moments: np.ndarray, settings: TableSettings) -> TableNetwork:
    """A network with random weights made from the seed alone; it has no linear part yet."""
    with seeded(settings.train.seed):
        if settings.network == "cells":
            return _cell_model(codings, settings)
        if settings.network == "filter":
            return FilterModel(codings, settings.width, "l1" if settings.loss == "l1" else "mse")
        trunk = Trunk(len(codings), settings)
        codec = TableCodec(codings, width=settings.cell, state=settings.width, members=settings.members)
        return RowModel(codec, trunk, Dims(codings, moments))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's random numbers from a seed; afterwards they go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _cell_model(codings: list[Coding], settings: TableSettings) -> TableNetwork:
    encoder = EncoderConfig(
        width=settings.width,
        layers=settings.layers,
        feedforward=MLP(inner=4 * settings.width),
        heads=settings.heads,
        norm=Norm(placement="pre", epsilon=1e-5),
        positions=SinCos(),
        dropout=settings.dropout,
    )
    decoder = None
    if settings.architecture == "visible_only":
        decoder = dataclasses.replace(encoder, layers=max(1, settings.layers * 2 // 3))
    codec = TableCodec(codings, width=settings.width, state=settings.width)
    return TableNetwork(codec, make_encoder(encoder), decoder)
