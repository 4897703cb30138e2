"""Looking at held-out rows while a network is trained: when to stop, which weights to keep, and how far to use each
column's."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import ALL_MASK, Corruption, Hidden
from unmask.core.hashing import Salt
from unmask.modalities.table.distribution.cells import CellMasks, Cells, batch_of, sampled
from unmask.modalities.table.distribution.table_network import TableNetwork

CHECKED_ROWS = 1024
"""Held-out rows that are looked at, of more."""
NETWORK_WEIGHTS = (0.0, 0.5, 1.0)
"""By how much what the network says of a column may be multiplied."""
LEAST_GAIN = 1e-3
"""Nats per hidden cell: less is no reason to go on. Some column or other gains a little at every check."""


@dataclass(frozen=True, kw_only=True)
class _HeldOutRows:
    """Held-out rows of one member, with the same cells hidden at every check. `judged`: those of the hidden cells that
    count. `known`: keywords of the network's forward pass: what the parts fitted without these rows say of them."""

    member: int
    batch: PackedBatch
    hidden: Hidden
    judged: Tensor
    known: dict[str, Any]


class HeldOutChecks:
    """Held-out loss of every member on the rows it never sees, and its weights at their best.

    The network's contribution to each column's prediction is multiplied by 0, a half or 1, whichever gives the smallest
    held-out loss (of all members together). So what is learnt for one column is kept even if for another the network
    adds only noise to the linear part.

    A member's losses are in nats per hidden cell, with masks that are the same at every check: the cells that other
    rows lack, as imputation finds them, and for columns that no row lacks 5 to 50 % of a row.

    Args:
        fold: (rows,) the member that does not train on a row.
        without: within `without(m)` the network is as it is for the rows held out from member m.
        corruption: of the training run.

    Attributes:
        history: (step, held-out loss) of every check.
        idle: checks since the loss fell by more than `LEAST_GAIN`.
    """

    def __init__(
        self,
        network: TableNetwork,
        cells: Cells,
        *,
        fold: np.ndarray,
        without: Callable[[int], AbstractContextManager[None]],
        corruption: Corruption,
        seed: int,
    ) -> None:
        self.network = network
        self.members = network.codec.members
        rows = np.flatnonzero(cells.seen.any(1) & (fold < self.members))
        rows = sampled(rows, CHECKED_ROWS, seed, Salt.CHECKED_ROWS)
        select = corruption.select
        whole = torch.from_numpy(cells.seen.all(0))
        masks = [(select, torch.ones_like(whole))]
        if isinstance(select, CellMasks):
            copied = dataclasses.replace(select, copied=1.0)
            masks = [(copied, ~whole), (dataclasses.replace(copied, patterns=None), whole)]
        self.parts: list[_HeldOutRows] = []
        for member, (select, columns) in itertools.product(range(self.members), masks):
            own = rows[fold[rows] == member]
            if len(own) and columns.any():
                batch = batch_of(cells[own], own)
                hidden = Corruption(select=select, replace=ALL_MASK).draw(batch, seed=seed + 1, epoch=0)
                judged = hidden.flat[columns[hidden.flat % len(columns)]]
                with without(member), torch.no_grad():
                    known = network.known(batch, hidden)
                self.parts.append(_HeldOutRows(member=member, batch=batch, hidden=hidden, judged=judged, known=known))
        self.columns = cells.seen.shape[1]
        self.best = torch.full((self.members,), torch.inf)
        self.kept: list[dict[int, Tensor]] = [{} for _ in range(self.members)]
        self.network_weight = torch.ones(self.members, self.columns)
        self.history: list[tuple[int, float]] = []
        self.idle = 0
        self._untrained: Tensor | None = None
        self._least = float("inf")
        """The loss at the last check that was not idle."""

    def _losses(self) -> Tensor:
        """(parts, columns) summed losses."""
        out = torch.zeros(len(self.parts), self.columns, dtype=torch.float64)
        for number, part in enumerate(self.parts):
            with torch.no_grad():
                prediction = self.network(part.batch, part.hidden, wanted=part.judged, **part.known)
            target = self.network.codec.targets(part.batch.values, part.judged)
            loss = -prediction.member_log_prob(target)[:, part.member % prediction.members]
            out[number].index_add_(0, part.judged % part.batch.shape[1], loss.double())
        return out

    @torch.no_grad()
    def __call__(self, step: int) -> None:
        """Look at the held-out rows after a step, and keep the members that are better than before."""
        self.network.eval()
        losses, weight = self._losses(), torch.ones(self.columns)
        if self._untrained is None:  # the first check: heads start at zero, as with a weight of 0
            self._untrained = losses
        elif self.network.weighs_heads:
            self.network.scale_heads(0.5)
            weighted = torch.stack([self._untrained, self._losses(), losses])
            self.network.scale_heads(2.0)
            chosen = weighted.sum(1).argmin(0)
            losses = weighted.gather(0, chosen.expand(1, len(self.parts), -1))[0]
            weight = torch.tensor(NETWORK_WEIGHTS)[chosen]
        for member in range(self.members):
            own = [number for number, part in enumerate(self.parts) if part.member == member]
            judged, loss = sum(len(self.parts[n].judged) for n in own), float(losses[own].sum())
            if judged and loss / judged < self.best[member]:
                self.best[member] = loss / judged
                self.kept[member] = {i: p[at].clone() for i, (p, at) in enumerate(self.network.member_parts(member))}
                self.network_weight[member] = weight
        cells = sum(len(part.judged) for part in self.parts)
        if cells:
            total = float(losses.sum()) / cells
            self.history.append((step, total))
            self.idle = 0 if total < self._least - LEAST_GAIN else self.idle + 1
            self._least = total if self.idle == 0 else self._least
        self.network.train()

    @torch.no_grad()
    def restore(self) -> None:
        """Put every member back to its best weights, its heads multiplied by the weights that suited them."""
        for member, kept in enumerate(self.kept):
            for i, (parameter, at) in enumerate(self.network.member_parts(member)):
                if i in kept:
                    parameter[at] = kept[i]
        if self.network.weighs_heads:
            self.network.scale_heads(self.network_weight)
