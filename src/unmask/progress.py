"""How far long work is: loops count what they have done (`counted`), and the command line says it (`reporting_to`).

Nothing is counted, and nothing costs time, where nobody listens, as in Python.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Listener(Protocol):
    """Who is told how far work is."""

    def begin(self) -> None:
        """A loop begins that is part of no other."""
        ...

    def __call__(self, done: float, *, whole: bool) -> None:
        """`done` is a share of the loop that began; where nobody knows what the whole is, a count."""
        ...


_listener: Listener | None = None
_span: tuple[float, float] | None = None
"""What share of the outermost loop the loop at hand is; None outside of any."""


@contextlib.contextmanager
def reporting_to(listener: Listener) -> Iterator[None]:
    """Tell the listener how far the loops within are."""
    global _listener, _span
    before, _listener, _span = (_listener, _span), listener, None
    try:
        yield
    finally:
        _listener, _span = before


def counted(items: Iterable[T], total: int | None = None, size: Callable[[T], int] = lambda _: 1) -> Iterator[T]:
    """The items as they are; the listener is told after each how much is done. Loops within count as parts of an item.

    Args:
        total: sum of the sizes of all items; None where nobody knows.
        size: of an item.
    """
    global _span
    tell, outer = _listener, _span
    if tell is None or threading.current_thread() is not threading.main_thread():
        yield from items
        return
    low, high = outer or (0.0, 1.0)
    if outer is None:
        tell.begin()
    done = 0

    def share() -> float:
        return low + (high - low) * min(1.0, done / total) if total else low

    try:
        for item in items:
            before, step = share(), size(item)
            done += step
            _span = (before, share())
            yield item
            if total or outer is not None:
                tell(share(), whole=True)
            else:
                tell(done, whole=False)
    finally:
        _span = outer


def counts(size: Callable[[Any], int]) -> Callable[[Callable[P, Iterator[T]]], Callable[P, Iterator[T]]]:
    """For functions that yield batches of their first argument: `counted`, by the size of a batch."""

    def counting(batches: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
        @functools.wraps(batches)
        def wrapped(*args: P.args, **options: P.kwargs) -> Iterator[T]:
            first = args[0]
            assert isinstance(first, Sized)
            return counted(batches(*args, **options), len(first), size)

        return wrapped

    return counting
