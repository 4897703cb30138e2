"""Events of one time stamp are a set: MEDS defines no order of their rows, so nothing here depends on it.

Rows of one time stamp get one order of their own before anything is drawn or cut (`canonical`), and all slots of one
time stamp share one position, its rank (`ranks`). A history that is too long is cut between time stamps
(`first_fitting`).
"""

from __future__ import annotations

import numpy as np


def canonical(time: np.ndarray, *keys: np.ndarray) -> np.ndarray:
    """The order by time, and within a time stamp by the keys, first key first; NaN stands behind all numbers.

    Rows that agree in all keys are the same event to the model, and may stand in any order.

    >>> canonical(np.array([1, 1, 0]), np.array([5, 4, 9])).tolist()
    [2, 1, 0]
    """
    return np.lexsort((*keys[::-1], time))


def ranks(time: np.ndarray) -> np.ndarray:
    """Rank of each time stamp among those of `time` (ascending), from 1.

    >>> ranks(np.array([3, 3, 8, 9, 9])).tolist()
    [1, 1, 2, 3, 3]
    """
    return np.cumsum(np.r_[np.ones(min(1, len(time)), np.int64), time[1:] != time[:-1]]).astype(np.int64)


def first_fitting(time: np.ndarray, room: int) -> int:
    """Where the latest whole time stamps of `time` (ascending) begin that fit into `room` slots.

    Where the last time stamp alone is larger, its last `room` slots in canonical order are kept (of codes, the rarest).

    >>> first_fitting(np.array([1, 1, 2, 2, 3]), 4), first_fitting(np.array([1, 3, 3, 3]), 2)
    (2, 2)
    """
    start = max(0, len(time) - room)
    if start in (0, len(time)) or time[start] != time[start - 1]:
        return start
    after = int(np.searchsorted(time, time[start], side="right"))
    return after if after < len(time) else start
