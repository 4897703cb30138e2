"""The order of a run's data: a pure function of lengths and seed, so that a run resumes at any step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from unmask.core.batch import place_best_fit
from unmask.core.hashing import Salt, hash_keys


@dataclass(frozen=True, kw_only=True)
class SampledStep:
    """One optimiser step's data: rows of example numbers."""

    epoch: int
    rows: list[list[int]]


@dataclass(frozen=True, kw_only=True)
class PackedSampler:
    """Samples all examples once per epoch, in random order, into steps of `rows` packed rows of `slots` slots.

    Args:
        lengths: slots of each example, special ones included.
        examples: which of them to use (the training split).
        slots: of a packed row.
        rows: packed rows of a step.
        seed: of the order of examples and rows.
        pool: steps that are packed together: the more, the less padding and the better shuffled.
    """

    lengths: np.ndarray
    examples: np.ndarray
    slots: int
    rows: int
    seed: int = 0
    pool: int = 16

    def steps(self, *, skip: int = 0) -> Iterator[SampledStep]:
        """Endless steps, epoch after epoch, starting after the first `skip`. An epoch's last step may be short."""
        if not len(self.examples):
            raise ValueError("no examples to sample from")
        steps = (SampledStep(epoch=epoch, rows=rows) for epoch in itertools.count() for rows in self._epoch(epoch))
        return itertools.islice(steps, skip, None)

    def _epoch(self, epoch: int) -> Iterator[list[list[int]]]:
        order = self.examples[np.argsort(hash_keys(self.seed, epoch, self.examples, Salt.PLAN_EXAMPLES), kind="stable")]
        budget = self.pool * self.rows * self.slots
        pools = np.cumsum(self.lengths[order]) // max(budget, 1)
        waiting: list[list[int]] = []
        for number in range(int(pools[-1]) + 1 if len(pools) else 0):
            members = order[np.searchsorted(pools, number) : np.searchsorted(pools, number, side="right")]
            placed = place_best_fit(self.lengths[members], self.slots)
            order_of_rows = hash_keys(self.seed, epoch, number, np.arange(len(placed)), Salt.PLAN_ROWS).argsort()
            placed = [placed[i] for i in order_of_rows]
            waiting += [[int(members[i]) for i in row] for row in placed]
            while len(waiting) >= self.rows:
                yield waiting[: self.rows]
                waiting = waiting[self.rows :]
        if waiting:
            yield waiting

    def steps_per_epoch(self) -> int:
        """Steps of the first epoch (others differ by a few, as rows pack differently)."""
        return sum(1 for _ in self._epoch(0))


def split_rows(rows: list[list[int]], parts: int) -> list[list[list[int]]]:
    """Split a step's rows into `parts` shares of nearly equal size (micro-batches x processes), in a fixed order.

    >>> split_rows([[1], [2], [3]], 2)
    [[[1], [3]], [[2]]]
    """
    return [rows[i::parts] for i in range(parts)]
