"""Batches that are made when they are needed, or a little before, while the loop computes."""

from __future__ import annotations

import operator
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar, overload

from unmask.core.batch import PackedBatch

Item = TypeVar("Item")


class MadeWhenNeeded(Sequence[PackedBatch]):
    """Batches of one size that are made anew for every evaluation, for sets that would not fit in memory.

    Args:
        makers: one function per batch.
        slots: slots of a batch, padding included.
    """

    def __init__(self, makers: Sequence[Callable[[], PackedBatch]], slots: int) -> None:
        self.makers, self.slots = list(makers), slots

    def __len__(self) -> int:
        return len(self.makers)

    @overload
    def __getitem__(self, which: int) -> PackedBatch: ...

    @overload
    def __getitem__(self, which: slice) -> MadeWhenNeeded: ...

    def __getitem__(self, which: int | slice) -> PackedBatch | MadeWhenNeeded:
        if isinstance(which, slice):
            return MadeWhenNeeded(self.makers[which], self.slots)
        return self.makers[which]()

    def __iter__(self) -> Iterator[PackedBatch]:
        """One after the other, none kept while the next is made."""
        return map(operator.call, self.makers)


def ahead(items: Iterable[Item], count: int) -> Generator[Item, None, None]:
    """The items in order, up to `count` of them made by a thread before they are asked for; 0 makes each when asked.

    What raises in the thread is raised here, in its turn. Closing the generator ends the thread.
    """
    if count < 1:
        yield from items
        return
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=count)
    ended = threading.Event()

    def put(kind: str, value: Any) -> bool:
        while not ended.is_set():
            try:
                ready.put((kind, value), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
                del item  # not kept while the next one is made
        except BaseException as error:
            put("error", error)
        else:
            put("end", None)

    thread = threading.Thread(target=work, name="ahead", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = ready.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
            del value
    finally:
        ended.set()
        thread.join()
