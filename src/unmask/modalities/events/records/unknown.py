"""What a model does not know of some events: codes, and values far from those it was trained on; in words too."""

from __future__ import annotations

from typing import Any

import numpy as np

from unmask.modalities.events.records.histories import Histories

FEWEST = 20
"""Events, points or patients below which a check says nothing of a code."""
SHOWN = 5
"""Codes named."""


def unknown_of(histories: Histories) -> dict[str, Any]:
    """unknown_share of the events, unknown_events, unknown_codes: the most frequent, with counts; and beyond_codes, see
    `beyond_of`.

    Codes too rare to be learnt count too: they share one number with those never seen.
    """
    count, events = sum(histories.unknown.values()), len(histories.events.time)
    return {
        "unknown_share": count / max(1, events),
        "unknown_events": count,
        "unknown_codes": dict(list(histories.unknown.items())[:SHOWN]),
        "beyond_codes": beyond_of(histories),
    }


def beyond_of(histories: Histories) -> dict[str, float]:
    """Known codes of which more than half of the values (20 of them at least) lie outside the .1 to 99.9 % of those
    that the model was trained on, as values in another unit do; with the share that does."""
    events, vocabulary = histories.events, histories.vocabulary
    number = vocabulary.numbers(events.codes)
    low, high = (vocabulary.knots[number, end] for end in (0, -1))  # NaN where there is no scale: nothing is beyond it
    low[number < 0] = high[number < 0] = np.nan
    told, beyond = np.zeros((2, len(number)))
    for _, here in events.blocks():
        code, value = events.code[here], events.value[here]
        told += np.bincount(code[np.isfinite(value)], minlength=len(number))
        beyond += np.bincount(code[(value < low[code]) | (value > high[code])], minlength=len(number))
    hit = np.flatnonzero((told >= FEWEST) & (2 * beyond > told))
    return {events.codes[i]: float(beyond[i] / told[i]) for i in hit}


def beyond_line(found: dict[str, Any]) -> str | None:
    """What to say of such codes; None without any."""
    codes = found["beyond_codes"]
    if not codes:
        return None
    named = ", ".join(f"{code} ({share:.0%})" for code, share in list(codes.items())[:SHOWN])
    return f"most values of {len(codes)} codes lie beyond those that the model was trained on (another unit?): {named}"


def unknown_line(found: dict[str, Any]) -> str:
    """One line about them."""
    named = ", ".join(f"{code} ({count:,})" for code, count in found["unknown_codes"].items())
    line = (
        f"{found['unknown_share']:.1%} of the events ({found['unknown_events']:,}) have codes that the model does not "
        "know"
    )
    return f"{line}: {named}" if named else line
