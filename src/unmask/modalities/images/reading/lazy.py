"""Examples that are not in memory, indexed along the first axis like an array."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np


class LazyArray(ABC):
    """Examples of one shape and type, or some of them; what is asked for is fetched by `fetch` of a subclass.

    Args:
        which: numbers of the examples.
        kind: type of their values.
        each: shape of one of them.
    """

    def __init__(self, which: np.ndarray, kind: np.dtype, each: tuple[int, ...]) -> None:
        self.which, self.dtype, self.each = which, kind, each

    def __len__(self) -> int:
        return len(self.which)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.each)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes it would take in memory."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def __getitem__(self, which: Any) -> np.ndarray:
        """A copy of some examples (a number, a slice, numbers or booleans), in memory."""
        chosen = self.which[which]
        numbers = np.atleast_1d(chosen)
        following = np.zeros(0, int)
        if isinstance(which, slice) and which.step in (None, 1):
            _, stop, _ = which.indices(len(self))
            following = self.which[stop : stop + len(numbers)]
        out = np.zeros((len(numbers), *self.each), self.dtype)
        self.fetch(numbers, following, out)
        return out[0] if np.ndim(chosen) == 0 else out

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))

    @abstractmethod
    def fetch(self, numbers: np.ndarray, following: np.ndarray, out: np.ndarray) -> None:
        """Write some examples into `out`, which holds zeros.

        Args:
            following: those that will be asked for next, as far as that can be guessed.
        """

    @abstractmethod
    def part(self, which: np.ndarray) -> Self:
        """Some of the examples, not in memory either."""
