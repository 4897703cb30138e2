"""The additive part of the model: what each single column says of another beyond the linear part, as a sum of steps.

Many a clinical category is a threshold of a measurement (obesity: a body mass index of 30). A linear part smears such a
step out, and a network needs more rows and rounds than a small table gives it. Boosted stumps find it at once: every
round adds to each dim the one step, in the bins of one other column, that lowers its loss most (gradient boosting with
second derivatives, Friedman 2001, Chen & Guestrin 2016; it starts from what the linear part says). "Hidden" is a value
of its own, so every pattern of visible cells has its prediction, and to draw a column changes the sums by one row of a
table.

Shape letters: instances (rows, masked several times over), columns, members, dims (of the linear part: one for a
quantity, one for each frequent category), entries (all bins and levels of all columns, and "hidden" for each).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden
from unmask.kernels.threads import on_cores
from unmask.modalities.table.distribution.codec import LEVELS, Coding

RATE, RIDGE = 0.25, 2.0
"""Share of a step that a round takes, and what is added to the second derivatives it is divided by."""
PATIENCE = 8
"""Rounds a column goes on after its held-out loss was least."""
LEAST = 1e-4
"""Nats per held-out cell that a column must gain to go on."""
FAR = 4.0
"""Residuals beyond so many deviations count as this far."""
INSTANCES, MOST_ROWS, MOST_COPIES = 6000, 6000, 16
"""Rows of smaller tables are masked several times over: with half as many instances, hidden quantities are 0.6 % worse
known."""
WORK = 5e11
"""Floating-point operations that all rounds together may cost: very wide tables get fewer rounds, or none below
`FEWEST`."""
FEWEST = 10
TOGETHER = 16
"""Dims boosted in one product."""


class BoostedStumps(nn.Module):
    """The fitted sums, as constants of the model.

    Args:
        table: (entries, dims + 1) what each cell adds to the score of a quantity, in deviations of the linear part, or
            to the log-odds of a category; the last, 0, is for categories without a dim.
    """

    table: Tensor
    first: Tensor
    offset: Tensor
    level: Tensor
    ordered: Tensor

    def __init__(self, codings: list[Coding], table: Tensor | None = None) -> None:
        super().__init__()
        first, offset, ordered = [0], [], []
        level: list[int] = []
        for c in codings:
            offset.append(len(level))
            if c.scale is not None:
                own = c.size
                level += range(own)
            else:  # rare categories are one
                own = min(c.size, LEVELS + 1)
                level += np.argsort(np.argsort(-np.array(c.share), kind="stable")).clip(max=LEVELS).tolist()
            ordered += [c.scale is not None] * own + [False]
            first.append(first[-1] + own + 1)
        for name, value in (("first", first), ("offset", offset), ("level", level), ("ordered", ordered)):
            self.register_buffer(name, torch.tensor(value), persistent=False)
        self.register_buffer("table", torch.zeros(first[-1], 0) if table is None else table)

    @property
    def entries(self) -> int:
        return int(self.first[-1])

    def entry(self, number: Int[Tensor, "rows columns"], seen: Bool[Tensor, "rows columns"]) -> Tensor:
        """The entry of every cell; `number` (its bin or category) is not read where the cell is not seen."""
        known = self.first[:-1] + self.level[self.offset + torch.where(seen, number, 0)]
        return torch.where(seen, known, self.first[1:] - 1)

    def forward(
        self, number: Int[Tensor, "rows columns"], seen: Bool[Tensor, "rows columns"]
    ) -> Float[Tensor, "rows outputs"]:
        return nn.functional.embedding_bag(self.entry(number, seen), self.table, mode="sum")

    def hidden(self) -> Float[Tensor, " outputs"]:
        """The sum where nothing is seen."""
        return self.table[self.first[1:] - 1].sum(0)

    def shown(self, column: int, number: Int[Tensor, " rows"]) -> Float[Tensor, "rows outputs"]:
        """How the sums change when a column, hidden before, is seen."""
        own = self.first[column] + self.level[self.offset[column] + number]
        return self.table[own] - self.table[self.first[column + 1] - 1]


@dataclass(frozen=True, kw_only=True)
class BoostingTask:
    """What is boosted. A quantity's standardised residual has the squared loss, the categories of a column that of
    their shares.

    Attributes:
        target: the residual, or 1 for the cell's own category and 0 for others.
        base: the linear part's share of each category; 0 for quantities.
        requested: 1 where the dim's column is hidden and its value known.
        train, held: weight of an instance in a member's fit, and 1 where it is held out from the member.
        column: of each dim.
    """

    entry: Int[Tensor, "instances columns"]
    target: Float[Tensor, "instances members dims"]
    base: Float[Tensor, "instances members dims"]
    requested: Float[Tensor, "instances dims"]
    train: Float[Tensor, "instances members"]
    held: Float[Tensor, "instances members"]
    column: Int[Tensor, " dims"]
    quantity: Bool[Tensor, " dims"]

    def of(self, dims: Tensor) -> BoostingTask:
        """Some of the dims."""
        return replace(
            self,
            target=self.target[..., dims],
            base=self.base[..., dims],
            requested=self.requested[:, dims],
            column=self.column[dims],
            quantity=self.quantity[dims],
        )

    def derivatives(self, score: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the loss by every score: first and second; held-out loss of every dim's column less that at score 0, and
        cells.

        Both losses are A(score) - target * score and a constant: A is half a square, or the logarithm of the
        categories' sum.
        """
        columns, group = self.column.unique(return_inverse=True)
        together = nn.functional.one_hot(group, len(columns)).to(score.dtype)
        whole = self.base @ together
        grown = self.base * score.exp()
        total = 1 - whole + grown @ together
        share = grown / total[..., group]
        mean = torch.where(self.quantity, score, share)
        curve = torch.where(self.quantity, 1.0, share * (1 - share))
        # A category's dims have A in common: it counts once.
        once = 1 / together.sum(0)[group]
        a = torch.where(self.quantity, score.square() / 2, total.log()[..., group] * once)
        each = torch.einsum("nmd,nm,nd->d", a - self.target * score, self.held, self.requested)
        cells = torch.einsum("nm,nd->d", self.held, self.requested) * once
        loss, count = ((x @ together)[group] for x in (each, cells))
        return mean - self.target, curve, loss, count


def boost(part: BoostedStumps, task: BoostingTask, rounds: int) -> Float[Tensor, "members entries dims"]:
    """Tables of sums, one per member; of every column those of the round at which its held-out loss was least."""
    instances, members, dims = task.target.shape
    first, ordered = part.first, part.ordered
    start = torch.repeat_interleave(torch.arange(len(first) - 1), first.diff())
    last = first[1:] - 1
    entries = torch.arange(part.entries)
    hidden = entries == last[start]
    hot = torch.zeros(instances, part.entries).scatter_(1, task.entry, 1.0)
    kept = torch.zeros(members, part.entries, dims)
    at, now = torch.arange(dims), task
    score, table = torch.zeros_like(task.target), torch.zeros(part.entries, members, dims)
    best, since = torch.zeros(dims), torch.zeros(dims, dtype=torch.long)
    for number in range(rounds + 1):
        slope, curve, loss, cells = now.derivatives(score)
        better = loss < best - LEAST * cells
        best, since = torch.where(better, loss, best), torch.where(better, number, since)
        kept[:, :, at[better]] = table[:, :, better].transpose(0, 1)
        alive = (number - since < PATIENCE).nonzero().flatten()
        if number == rounds or not len(alive):
            break
        if len(alive) < len(at):
            at, now, best, since = at[alive], now.of(alive), best[alive], since[alive]
            score, table, slope, curve = (x[..., alive] for x in (score, table, slope, curve))
        weight = now.train[:, :, None] * now.requested[:, None]
        both = torch.stack([slope * weight, curve * weight], 1).flatten(1)
        sums = (hot.t() @ both).view(part.entries, 2, members, len(at))
        # Of each entry as a step: cells up to it (or of it alone, where there is no order), the other visible ones,
        # hidden ones.
        upto = torch.cat([torch.zeros_like(sums[:1]), sums.cumsum(0)])
        left = torch.where(ordered[:, None, None, None], upto[1:] - upto[first[:-1]][start], sums)
        right = (upto[last] - upto[first[:-1]])[start] - left
        totals = sums[last][start]
        gain = _gain(left) + _gain(right) + _gain(totals) - _gain(left + right + totals)
        useless = hidden[:, None, None] | (left[:, 1] < 1) | (right[:, 1] < 1)
        most, step = gain.masked_fill(useless, 0.0).max(0)
        of = [x.gather(0, step[None, None].expand(1, 2, -1, -1))[0] for x in (left, right, totals)]
        leaf = [torch.where(most > 0, -RATE * x[0] / (x[1] + RIDGE), 0.0) for x in of]
        column, e = start[step], entries[:, None, None]
        below = torch.where(ordered[step], e <= step, e == step)
        add = torch.where(e == last[column], leaf[2], torch.where(below, leaf[0], leaf[1]))
        add = torch.where(start[:, None, None] == column, add, 0.0)
        table = table + add
        cell = task.entry[:, column.flatten()].view(instances, members, len(at))
        score = score + add.gather(0, cell)
    return kept


def _gain(sums: Tensor) -> Tensor:
    return sums[:, 0] ** 2 / (sums[:, 1] + RIDGE)


def rounds_within(part: BoostedStumps, instances: int, outs: int, rounds: int) -> int:
    """As many rounds as `WORK` allows."""
    possible = int(WORK / max(1.0, 4.0 * instances * part.entries * outs))
    return min(rounds, possible) if possible >= FEWEST else 0


def copies_of(rows: int) -> int:
    """How often rows are masked."""
    return int(np.clip(-(-INSTANCES // max(1, rows)), 1, MOST_COPIES))


def fit_stumps(
    network: Any,
    masked: list[tuple[PackedBatch, Hidden]],
    without: Callable[[int], AbstractContextManager[None]],
    train: Float[Tensor, "rows members"],
    held: Float[Tensor, "rows members"],
    rounds: int,
) -> list[BoostedStumps]:
    """Boosted stumps for every member, fitted to its rows from what the linear part without its held-out rows says;
    none where that would take too long.

    Args:
        network: a `RowModel` with its linear part.
        masked: the same rows, masked several times over.
        without: within `without(m)` the network has the linear part for member m's held-out rows.
    """
    part = BoostedStumps(network.codec.codings)
    members, dims = train.shape[1], len(network.dims)
    rounds = rounds_within(part, sum(len(b.segment) for b, _ in masked), members * dims, rounds)
    if not rounds:
        return []
    quantity = network.dims.level < 0
    entry, target, base, wanted = [], [], [], []
    for batch, hidden in masked:
        hidden_cells = hidden.grid(batch.shape)
        seen = batch.observed & ~hidden_cells
        entry.append(part.entry(batch.values["bin"], seen))
        wanted.append((hidden_cells & batch.observed)[:, network.dims.column].float())
        known, _ = network.dims(batch.values["bin"], batch.values["score"], batch.observed)
        own = (batch.values["bin"][:, network.dims.column] == network.dims.level).float()
        targets, bases = [], []
        for member in range(members):
            with without(member):
                linear = network.linear(batch.values, hidden_cells)
            residual = ((known - linear[0]) / linear[1].sqrt()).clamp(-FAR, FAR)
            targets.append(torch.where(quantity, residual, own))
            bases.append(network.level_shares(linear))
        target.append(torch.stack(targets, 1))
        base.append(torch.stack(bases, 1))
    copies = len(masked)
    task = BoostingTask(
        entry=torch.cat(entry),
        target=torch.cat(target),
        base=torch.cat(base),
        requested=torch.cat(wanted),
        train=train.repeat(copies, 1),
        held=held.repeat(copies, 1),
        column=network.dims.column,
        quantity=quantity,
    )
    table = torch.zeros(members, part.entries, dims + 1)

    def work(some: Tensor) -> None:
        table[..., some] = boost(part, task.of(some), rounds)

    on_cores(work, groups_of(task.column))
    return [BoostedStumps(network.codec.codings, t) for t in table]


def groups_of(column: Int[Tensor, " dims"]) -> list[Tensor]:
    """Dims in groups of whole columns, boosted side by side: about `TOGETHER` each, whatever the number of cores."""
    size = torch.bincount(column)
    number = ((size.cumsum(0) - size) // TOGETHER)[column]
    return [(number == n).nonzero().flatten() for n in number.unique()]
