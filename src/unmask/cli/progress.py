"""How far a command is, on a terminal: a line on stderr every few seconds."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from unmask.progress import told_to

TRAINING = ("demo", "pretrain", "adapt", "finetune")
"""Commands that show the steps of a run instead (`training.tracking`)."""
SECONDS = 5.0
"""Between two lines."""


class OnTerminal:
    """Prints "fill: 40 %, 12 s left".

    Args:
        name: of the command.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.begin()

    def begin(self) -> None:
        """A loop begins that is part of no other."""
        self.started = self.shown = time.monotonic()
        self.done = 0.0

    def __call__(self, done: float, *, whole: bool) -> None:
        """Say it, where that is due and news; see `unmask.progress.Listener`."""
        now = time.monotonic()
        if now - self.shown < SECONDS or done <= self.done or (whole and done >= 1):
            return
        spent, self.shown, self.done = now - self.started, now, done
        said = f"{done:.0%}, {spent / done * (1 - done):,.0f} s left" if whole else f"{done:,.0f} in {spent:,.0f} s"
        print(f"{self.name}: {said}", file=sys.stderr, flush=True)


def shown_for(arguments: Sequence[str]) -> AbstractContextManager[None]:
    """Progress of the command that these words call: on a terminal alone, and not of one that trains."""
    name = next((word for word in arguments if not word.startswith("-")), "")
    if name in TRAINING or not sys.stderr.isatty():
        return contextlib.nullcontext()
    return told_to(OnTerminal(name))
