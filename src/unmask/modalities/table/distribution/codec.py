"""Cells in, cells back: what a table's columns bring to the masked model.

Channels of a batch: "bin" (bin or category), "score" (normal score of a quantity), "seen" (0: missing), "column".

Shape letters: rows, slots (columns of the table), members, width, dims (of the linear part).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.core.model import WantedSlots
from unmask.modalities.table.distribution.prediction import Categories, CellPrediction, Grid, Quantities
from unmask.modalities.table.distribution.scale import FINE, BinScale

FAR = 30.0
"""A normal score beyond all others."""
LEVELS = 8
"""Categories of a column that the linear part knows apart: the most frequent ones."""


@dataclass(frozen=True, kw_only=True)
class Coding:
    """How one modelled column is coded: a scale for a quantity, or the share of each category.

    `linear` (smallest, span) scores a quantity from 0 to 1 instead of by its rank, as MCM does, after the Box-Cox
    transform of x - smallest + 1 where there is one: `power` (smallest value, lambda).
    """

    scale: BinScale | None = None
    share: tuple[float, ...] = ()
    linear: tuple[float, float] | None = None
    power: tuple[float, float] | None = None

    def unscaled(self, score: np.ndarray) -> np.ndarray:
        """Values from scores made by `power` and `linear`, within the data's range."""
        assert self.scale is not None
        assert self.linear is not None
        y = np.clip(score, 0, 1) * self.linear[1] + self.linear[0]
        if self.power is not None:
            from scipy.special import inv_boxcox

            y = inv_boxcox(y, self.power[1]) - 1 + self.power[0]
        top = self.scale.knot_x[-1]
        return np.clip(np.nan_to_num(y, nan=top, posinf=top), self.scale.knot_x[0], top)

    @property
    def size(self) -> int:
        return self.scale.bins if self.scale is not None else len(self.share)

    def encode(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values without NaN -> (bin or category, normal score)."""
        if self.scale is not None:
            number, score = self.scale.encode(x)
            if self.linear is None:
                return number, score
            if self.power is not None:
                from scipy.special import boxcox

                x = boxcox(np.maximum(x - self.power[0] + 1, 1e-9), self.power[1])
            return number, np.clip((x - self.linear[0]) / self.linear[1], -8, 8)
        return x.astype(np.int64), np.zeros(len(x))

    def decode(self, number: np.ndarray, score: np.ndarray) -> np.ndarray:
        return self.scale.decode(number, score) if self.scale is not None else number.astype(np.float64)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, what a model's folder keeps."""
        if self.scale is None:
            return {"share": list(self.share)}
        return {"scale": self.scale.to_dict(), "linear": self.linear, "power": self.power}

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Coding:
        """From what `to_dict` gave."""
        if "scale" in found:
            pairs = {k: tuple(found[k]) for k in ("linear", "power") if found.get(k) is not None}
            return cls(scale=BinScale.from_dict(found["scale"]), **pairs)
        return cls(share=tuple(found["share"]))


def make_grid(scales: list[BinScale]) -> Grid:
    """The scales of several quantities as tensors, padded to the most bins."""
    from scipy.special import ndtri

    bins = max(s.bins for s in scales)
    edge = np.full((len(scales), bins + 1), np.inf)
    mass, atom, score = (
        np.zeros((len(scales), bins)),
        np.zeros((len(scales), bins), bool),
        np.zeros((len(scales), bins)),
    )
    fine, mean, border = (np.full((len(scales), bins * FINE + 1), np.inf) for _ in range(3))
    for i, s in enumerate(scales):
        k = s.bins
        edge[i, : k + 1], mass[i, :k], atom[i, :k], score[i, :k] = s.score_edge, np.diff(s.edge), s.atom, s.atom_score
        share = np.append(
            (s.edge[:-1, None] + np.diff(s.edge)[:, None] * np.arange(FINE)[None, :] / FINE).ravel(), s.edge[-1]
        )
        fine[i, : k * FINE + 1] = ndtri(share)
        border[i, : k * FINE + 1] = np.interp(share, s.knot_u, s.knot_x)
        border[i, k * FINE + 1 :] = border[i, k * FINE]
        mean[i, : k * FINE] = s.mean
        mean[i, k * FINE :] = 0.0
    # Far, not infinite: the gradient of an infinite border is 0 times infinity.
    edge, fine = np.clip(edge, -FAR, FAR), np.clip(fine, -FAR, FAR)
    as32 = {
        k: torch.tensor(v, dtype=torch.float32)
        for k, v in {
            "edge": edge,
            "mass": mass,
            "score": score,
            "fine": fine,
            "mean": mean[:, :-1],
            "border": border,
        }.items()
    }
    return Grid(**as32, atom=torch.tensor(atom))


@dataclass(frozen=True, kw_only=True)
class ColumnBlock:
    """Columns whose heads are one product: all quantities, or categories of about the same number."""

    quantity: bool
    columns: tuple[int, ...]
    size: int


def blocks_of(codings: list[Coding]) -> list[ColumnBlock]:
    """Quantities together; categories by their number, rounded up to a power of two."""
    out = []
    quantities = [i for i, c in enumerate(codings) if c.scale is not None]
    if quantities:
        out.append(ColumnBlock(quantity=True, columns=tuple(quantities), size=max(codings[i].size for i in quantities)))
    groups: dict[int, list[int]] = {}
    for i, c in enumerate(codings):
        if c.scale is None:
            groups.setdefault(max(2, 1 << (c.size - 1).bit_length()), []).append(i)
    for columns in groups.values():
        out.append(ColumnBlock(quantity=False, columns=tuple(columns), size=max(codings[i].size for i in columns)))
    return out


class TableCodec(nn.Module):
    """Embeds cells and predicts them back.

    Args:
        codings: of the modelled columns, in order.
        width: of a cell's embedding, per member.
        state: width of the state that the heads read, per member.
        members: networks side by side, each with weights of its own.
    """

    context_channels: tuple[str, ...] = ("column",)
    drops_missing = False
    offset: Tensor
    size: Tensor
    is_quantity: Tensor
    block_of: Tensor
    place_of: Tensor

    def __init__(self, codings: list[Coding], *, width: int, state: int, members: int = 1) -> None:
        super().__init__()
        self.codings, self.width, self.state, self.members = codings, width, state, members
        sizes = np.array([c.size for c in codings])
        columns = len(codings)
        self.register_buffer("offset", torch.tensor(np.r_[0, np.cumsum(sizes)[:-1]]), persistent=False)
        self.register_buffer("size", torch.tensor(sizes), persistent=False)
        self.register_buffer("is_quantity", torch.tensor([c.scale is not None for c in codings]), persistent=False)
        self.embedding = nn.Parameter(torch.randn(int(sizes.sum()), members * width) * 0.3)
        self.slope = nn.Parameter(torch.randn(columns, members * width) * 0.5)
        self.masked = nn.Parameter(torch.randn(columns, members * width) * 0.3)
        self.blocks = blocks_of(codings)
        block_of, place_of = torch.zeros(columns, dtype=torch.long), torch.zeros(columns, dtype=torch.long)
        self.head, self.head_bias = nn.ParameterList(), nn.ParameterList()
        for number, block in enumerate(self.blocks):
            block_of[list(block.columns)], place_of[list(block.columns)] = number, torch.arange(len(block.columns))
            out = len(block.columns) * (block.size + 2 * block.quantity)
            # Heads start at zero: the untrained model is the linear part.
            self.head.append(nn.Parameter(torch.zeros(members, state, out)))
            self.head_bias.append(nn.Parameter(torch.zeros(members, 1, out)))
        self.register_buffer("block_of", block_of, persistent=False)
        self.register_buffer("place_of", place_of, persistent=False)
        quantities = [c.scale for c in codings if c.scale is not None]
        self.grid = make_grid(quantities) if quantities else None
        for number, block in enumerate(self.blocks):
            if not block.quantity:
                share = torch.zeros(len(block.columns), block.size)
                for i, c in enumerate(block.columns):
                    share[i, : codings[c].size] = torch.tensor(codings[c].share)
                self.register_buffer(f"share{number}", share, persistent=False)

    def embed(
        self, values: dict[str, Tensor], masked: Bool[Tensor, "rows slots"], guess: Tensor | None = None
    ) -> Float[Tensor, "rows slots width"]:
        """(rows, slots, members * width). A missing cell is embedded as a masked one: nothing is known of either.
        `guess`: (rows, slots) the linear part's mean for quantities that are not seen."""
        column = values["column"]
        unseen = masked | (values["seen"] == 0)
        number = torch.where(unseen, 0, values["bin"]).clamp_min(0)
        score = torch.where(unseen, 0.0 if guess is None else guess, values["score"].nan_to_num())
        table = torch.cat([self.embedding, self.masked])
        which = torch.where(unseen, len(self.embedding) + column, self.offset[column] + number)
        kind, slope = nn.functional.embedding(which, table), nn.functional.embedding(column, self.slope)
        return torch.addcmul(kind, score[..., None].to(kind.dtype), slope)

    def noise(self, values: dict[str, Tensor], flat: Int[Tensor, " n"], bits: Int[Tensor, " n"]) -> dict[str, Tensor]:
        """A bin or category of the cell's own column, uniformly, with its mean score."""
        column = values["column"].flatten()[flat]
        number = (bits & (2**62 - 1)) % self.size[column]
        score = torch.zeros(len(flat), device=flat.device)
        if self.grid is not None:
            known = self.is_quantity[column]
            score[known] = self.grid.score[self.place_of[column[known]], number[known]]
        return {"bin": number, "score": score, "seen": torch.ones_like(number)}

    def targets(self, values: dict[str, Tensor], flat: Int[Tensor, " n"]) -> Float[Tensor, "n 2"]:
        return torch.stack([values["bin"].flatten()[flat].float(), values["score"].flatten()[flat].float()], -1)

    def write(self, values: dict[str, Tensor], flat: Int[Tensor, " n"], new: Float[Tensor, "n 2"]) -> dict[str, Tensor]:
        number, score, seen = values["bin"].clone(), values["score"].clone(), values["seen"].clone()
        number.view(-1)[flat] = new[:, 0].to(number.dtype)
        score.view(-1)[flat] = new[:, 1].to(score.dtype)
        seen.view(-1)[flat] = 1
        return values | {"bin": number, "score": score, "seen": seen}

    def distribution(
        self, block: int, raw: Tensor, place: Tensor, base: tuple[Tensor, Tensor] | None, share: Tensor | None
    ) -> Quantities | Categories:
        """The asked cells of one block from what the network says of them; see `Quantities` and `Categories`."""
        if self.blocks[block].quantity:
            assert self.grid is not None
            if base is None:
                zero = torch.zeros(len(place), device=place.device)
                base = (zero, zero + 1)
            return Quantities(raw.float(), base[0], base[1], place, self.grid)
        if share is None:
            share = getattr(self, f"share{block}")[place]
        return Categories(raw.float(), share)

    def predict(self, states: Float[Tensor, "wanted width"], wanted: WantedSlots) -> CellPrediction:
        """Predictions from one state per cell (the transformer's way); heads are the column's own."""
        column = wanted.context("column")
        pieces: list[tuple[Tensor, Quantities | Categories]] = []
        for number, block in enumerate(self.blocks):
            places = (self.block_of[column] == number).nonzero().flatten()
            if not len(places) and len(column):  # with nothing asked for, the empty loss still has a gradient
                continue
            place = self.place_of[column[places]]
            each = block.size + 2 * block.quantity
            weight = self.head[number][0].view(self.state, len(block.columns), each)
            raw = states.new_zeros(len(places), each)
            for c in place.unique().tolist():
                here = (place == c).nonzero().flatten()
                raw = raw.index_copy(0, here, (states[places[here]] @ weight[:, c]).to(raw.dtype))
            raw = raw + self.head_bias[number].view(len(block.columns), each)[place]
            pieces.append((places, self.distribution(number, raw[None], place, None, None)))
        return CellPrediction(pieces, len(column))
