"""The steps of a run, each as the micro-batches of this process, made when they are needed or a little ahead."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Collection, Iterator

from unmask.core.batch import PackedBatch
from unmask.core.plan import deal
from unmask.training.ahead import ahead
from unmask.training.compute import Compute
from unmask.training.job import Job

AHEAD_OF_A_GPU = 2
"""Micro-batches that a thread makes while a GPU computes, at least: it never waits for the next one to be packed."""


class MicroBatches(Collection[PackedBatch]):
    """The micro-batches of one step, of a known number, each made when it is asked for; gone through once."""

    def __init__(self, batches: Iterator[PackedBatch], count: int) -> None:
        self._batches, self._count = batches, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[PackedBatch]:
        return self._batches

    def __contains__(self, batch: object) -> bool:
        return False


def planned_steps(
    job: Job, parts: int, first_step: int, compute: Compute
) -> Iterator[tuple[int, Collection[PackedBatch]]]:
    """(epoch, this process's micro-batches) per step; only those that are in work, or made ahead, are in memory.

    Args:
        parts: micro-batches per step and process.
        first_step: steps of the plan that are done already.
    """
    shares = parts * compute.processes
    rows = -(-job.plan.rows // shares)

    def made() -> Iterator[tuple[int, PackedBatch]]:
        for planned in job.plan.steps(skip=first_step):
            about = (planned.epoch,) if job.by_epoch else ()
            for share in deal(planned.rows, shares)[compute.rank :: compute.processes]:
                yield planned.epoch, job.make_batch(share, rows, *about)

    on_gpu = compute.device.type != "cpu"
    with contextlib.closing(ahead(made(), max(job.look_ahead, AHEAD_OF_A_GPU * on_gpu))) as batches:
        for epoch, batch in batches:
            rest = map(operator.itemgetter(1), itertools.islice(batches, parts - 1))
            step = MicroBatches(itertools.chain([batch], rest), parts)
            del batch
            yield epoch, step
