"""Numbers that may stand for something else: codes of missing values, and slips of the decimal point or of the unit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unmask.errors import first_of

_WHOLE = frozenset(
    s * v
    for v in (9, 99, 999, 9999, 99999, 999999, 88, 888, 8888, 77, 777, 7777, 66, 666, 1, 8, 7, 98, 998, 9998, 97, 997)
    for s in (1, -1)
)
_NINES = frozenset(s * v for v in (88.8, 99.9, 99.99, 888.8, 999.9, 999.99, 9999.9, 9999.99) for s in (1, -1))
SENTINELS: frozenset[float] = _WHOLE | _NINES
"""Numbers by which people say that there is no value; looked for at a column's ends, apart from its other values."""

FEWEST_OTHERS = 10
"""Distinct numbers that must be left to tell that another is far off."""
FEW_CELLS, FEW_SHARE = 3, 0.002
"""Cells far off are slips where they are no more than so many, or this share of the column."""


def number_notes(labels: Sequence[float] | np.ndarray) -> list[str]:
    """A warning of numbers to be learnt that may be codes or slips.

    >>> print(number_notes([*range(20, 90), 999, 999])[0].partition(" and are")[0])
    warning: labels 999 (2 times) stand apart from the others (20 to 89)
    """
    values, counts = np.unique(labels, return_counts=True)
    far = far_off(values, counts)
    odd = far | np.isin(values, list(sentinel_values(values[~far], counts[~far])))
    if not odd.any():
        return []
    listed = first_of(
        f"{v:g} ({n:,} {'time' if n == 1 else 'times'})" for v, n in zip(values[odd], counts[odd], strict=True)
    )
    return [
        f"warning: labels {listed} stand apart from the others ({values[~odd][0]:g} to {values[~odd][-1]:g}) and are "
        "learnt as numbers: leave those rows out if they are codes for no value, or slips"
    ]


def sentinel_values(values: np.ndarray, counts: np.ndarray) -> dict[float, int]:
    """Numbers such as -9 and 999 at an end of a column, apart from its other values, and how often each stands there.
    `values`, `counts`: the column's distinct numbers, rising, and how often each stands there."""
    found: dict[float, int] = {}
    while len(values) > 2:
        taken = _codes_at(values, -1) or -_codes_at(-values[::-1], 1)
        if not taken:
            break
        own = slice(-taken, None) if taken > 0 else slice(None, -taken)
        found |= dict(zip(values[own].tolist(), counts[own].tolist(), strict=True))
        rest = slice(None, -taken) if taken > 0 else slice(-taken, None)
        values, counts = values[rest], counts[rest]
    if len(values) > FEWEST_OTHERS and values[0] == 0 and _far_below(values):
        found[0.0] = int(counts[0])
    return found


def _codes_at(values: np.ndarray, sign: int) -> int:
    """How many of the greatest of rising numbers are codes apart from the rest; several together are 88 and 99, say.
    `sign`: 1 where the numbers were turned over, so that their greatest are a column's least."""
    for k in range(1, min(3, len(values) - 2) + 1):
        ends, rest = values[-k:], values[:-k]
        if not all(v in SENTINELS and (k == 1 or abs(v) >= 66) for v in ends.tolist()):
            break
        gap, spread = ends[0] - rest[-1], rest[-1] - rest[0]
        below = sign > 0 and ends[0] > 0 and rest[-1] <= 0  # -9 below numbers that are 0 or more
        if below or gap > max(0.5 * spread, 3):
            return k
    return 0


def _far_below(values: np.ndarray) -> bool:
    """Whether a zero stands further below all other numbers than any of the lower half of these from the
    next, by far."""
    rest = values[1:]
    steps = np.diff(rest[: len(rest) // 2 + 1])
    return bool(rest[0] >= 0.3 * (rest[-1] - rest[0]) and rest[0] >= 6 * steps.max())


def far_off(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Which distinct numbers lie so far from all others that a slip of the decimal point or of the unit is likelier.

    A few cells at an end that are parted from the next value by more than all the others span, and of numbers above
    zero also by more than half of what the others span as logarithms; or, of these, by more than all of that. Columns
    that are skewed by nature span several powers of ten, and their greatest values are not flagged. Returns booleans,
    one per distinct number. `values`, `counts`: the column's distinct numbers, rising, and how often each stands
    there."""
    out = np.zeros(len(values), bool)
    most = max(FEW_CELLS, FEW_SHARE * counts.sum())
    while True:  # a number that is far off at one end can hide others at the other
        left = np.flatnonzero(~out)
        ends = [end[len(end) - _far_at_end(values[end], counts[end], most) :] for end in (left, left[::-1])]
        if not sum(map(len, ends)):
            return out
        out[np.concatenate(ends)] = True


def _far_at_end(x: np.ndarray, counts: np.ndarray, most: float) -> int:
    """How many of the last distinct numbers lie far from the others, which they follow rising or falling."""
    for k in range(1, len(x) - FEWEST_OTHERS + 1):
        if counts[-k:].sum() > most:
            break
        rest, gap = x[:-k], abs(x[-k] - x[-k - 1])
        far = gap > abs(rest[-1] - rest[0])
        if min(x[0], x[-1]) > 0:
            log_gap, log_span = abs(np.log(x[-k] / x[-k - 1])), abs(np.log(rest[-1] / rest[0]))
            far = (far and log_gap > 0.5 * log_span) or log_gap > log_span
        if far:
            return k
    return 0
