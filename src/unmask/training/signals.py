"""A clean stop on signals: the loop that is asked to end saves and leaves."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, ClassVar


class SignalGuard:
    """Turns the first SIGTERM or SIGINT into a flag, so that the loop can save and leave.

    A second one acts as usual. Of guards within each other all are told.
    Previous handlers are back on exit. Outside the main thread, where Python allows no handlers, it does
    nothing.

    Attributes:
        requested: whether a signal came.
        received: the number of the signal that came to a guard of this process most recently; None before any.

    >>> with SignalGuard() as guard:
    ...     guard.requested
    False
    """

    received: ClassVar[int | None] = None

    def __init__(self, signals: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGINT)) -> None:
        self.signals, self.requested = signals, False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> SignalGuard:
        try:
            for number in self.signals:
                self._previous[number] = signal.signal(number, self._handle)
        except ValueError:
            pass
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested, SignalGuard.received = True, number
        around = self._previous.get(signal.Signals(number))
        self._restore()
        guard = getattr(around, "__self__", None)
        if isinstance(guard, SignalGuard):  # the one around this one is to know too
            guard._handle(number, frame)

    def _restore(self) -> None:
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def interrupt_if(stopped: str) -> None:
    """Raise KeyboardInterrupt after a run that a signal stopped, where nothing is worth going on with, as in a demo.

    Args:
        stopped: what the run says of its end.
    """
    if stopped == "signal":
        raise KeyboardInterrupt
