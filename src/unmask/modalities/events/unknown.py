"""Events of codes that a model does not know: how many, which, and in words."""

from __future__ import annotations

from typing import Any

from unmask.modalities.events.histories import Histories

SHOWN = 5
"""Codes named."""


def unknown_of(histories: Histories) -> dict[str, Any]:
    """unknown_share of the events, unknown_events, and unknown_codes: the most frequent, with counts.

    Codes too rare to be learnt count too: they share one number with those never seen.
    """
    count, events = sum(histories.unknown.values()), len(histories.events.time)
    return {
        "unknown_share": count / max(1, events),
        "unknown_events": count,
        "unknown_codes": dict(list(histories.unknown.items())[:SHOWN]),
    }


def unknown_line(found: dict[str, Any]) -> str:
    """One line about them."""
    named = ", ".join(f"{code} ({count:,})" for code, count in found["unknown_codes"].items())
    line = (
        f"{found['unknown_share']:.1%} of the events ({found['unknown_events']:,}) have codes that the model does not "
        "know"
    )
    return f"{line}: {named}" if named else line
