"""What benchmarks share that measure beside other work: clocks, the processor, and processes that keep
every core busy."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterator

import numpy as np

from sheets import processor
from unmask.training.precision import Precision, resolve_precision


def format_here() -> Precision:
    """The format that `precision=auto` computes in on this processor, and why: bf16 with AMX or AVX512-bf16, else fp32.

    Where bf16 is emulated every loop is ten times slower in it, and ratios of such loops say nothing.
    """
    return resolve_precision("auto", "cpu")


def clock() -> tuple[float, float]:
    """Wall and processor seconds of this process."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), spent.ru_utime + spent.ru_stime


def timed(work: Callable[[], object]) -> dict:
    """What `work` takes."""
    wall, cpu = clock()
    work()
    after = clock()
    return {"seconds": round(after[0] - wall, 2), "processor_seconds": round(after[1] - cpu, 2)}


def spin() -> None:
    x = np.ones(1000)
    while True:
        for _ in range(1000):
            x = x * 1.0000001


@contextlib.contextmanager
def busy_processes(per_core: int) -> Iterator[int]:
    """Within, so many processes per core do nothing but compute; yields how many there are."""
    others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(per_core * (os.cpu_count() or 1))]
    for p in others:
        p.start()
    try:
        yield len(others)
    finally:
        for p in others:
            p.terminate()


def quiet_and_busy(measured: Callable[[], dict], per_core: int) -> dict:
    """What `measured` gives ({"runs": [`timed`, ...]}) with nothing else running, and beside busy processes.

    Fair sharing alone costs 1 + per_core times the quiet time.
    """
    found = {"quiet": measured()}
    with busy_processes(per_core) as others:
        found["busy"] = measured()
    middle = {k: float(np.median([r["seconds"] for r in v["runs"]])) for k, v in found.items()}
    return {**found, "busy_processes": others, "busy_over_quiet": round(middle["busy"] / middle["quiet"], 2)}


__all__ = ["busy_processes", "clock", "processor", "quiet_and_busy", "spin", "timed"]
