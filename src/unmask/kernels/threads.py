"""Threads of matrix products: one for each, and as many products side by side as there are cores."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from threadpoolctl import ThreadpoolController

from unmask.progress import counted

Item = TypeVar("Item")

_lock = threading.Lock()
_scopes, _threads = 0, 1
"""Of the process: open `one_core` scopes, and torch's threads before the first of them."""
_own = threading.local()
"""Of a thread: its own open scopes, and whether it is a worker of `on_cores`."""


@functools.cache
def _libraries(scipy: bool) -> Any:
    """The BLAS libraries of the process, looked for anew once scipy has brought its own."""
    return ThreadpoolController().select(user_api="blas")


@contextlib.contextmanager
def one_core() -> Iterator[int]:
    """A context in which every matrix product uses one thread; yields how many cores `on_cores` may use. Also a
    decorator.

    Threads that share a product wait for each other at its end, in a busy loop. A product of a few milliseconds gains
    little from a second thread, and when another process takes the core of one of the two, the waiting costs many times
    the work. Applies to torch in this thread and in threads started within the context, and to the BLAS of numpy and
    scipy (unless another thread has set that already). The caller's settings are restored at the end.
    """
    global _scopes, _threads
    depth = getattr(_own, "depth", 0)
    if depth:
        yield 1 if getattr(_own, "works", False) else _threads
        return
    with _lock:
        if not _scopes:
            _threads = torch.get_num_threads()
        _scopes += 1
        before = _threads
    _own.depth = 1
    torch.set_num_threads(1)
    try:
        with _libraries("scipy.linalg" in sys.modules).limit(limits=1):
            yield before
    finally:
        _own.depth = 0
        torch.set_num_threads(before)
        with _lock:
            _scopes -= 1


def on_cores(work: Callable[[Item], None], items: Sequence[Item]) -> None:
    """Call work(item) for every item: as many at a time as torch has threads, each on one of them, without gradients.

    For work made of small products, where a second thread per product gains almost nothing. The items must not depend
    on each other. When `work` itself calls `on_cores`, the inner items are done one after the other. After an error no
    further item is started; the first error reaches the caller.
    """
    failed = threading.Event()

    def alone(item: Item) -> None:
        if failed.is_set():
            return
        if not getattr(_own, "works", False):
            _own.works, _own.depth = True, 1
            torch.set_num_threads(1)  # of this thread
        try:
            with torch.inference_mode():
                work(item)
        except BaseException:
            failed.set()
            raise

    with one_core() as cores:
        if min(cores, len(items)) <= 1:
            with torch.inference_mode():
                for item in counted(items, len(items)):
                    work(item)
            return
        pool = ThreadPoolExecutor(min(cores, len(items)))
        try:
            for _ in counted(pool.map(alone, items), len(items)):
                pass
        finally:
            pool.shutdown(cancel_futures=True)
