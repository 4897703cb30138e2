"""What the commands of patient events share: the model made ready, and what is said of labels and figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.errors import UserError


def outside_line(count: int) -> list[str]:
    """What to say of labels of subjects without events, a line or none."""
    return [f"{count:,} labels left out: their subjects have no events in the data"] if count else []


def odd_points(found: Mapping[str, Any]) -> list[str]:
    """What to say of points before the first event of their patient, and after the death; a line each, or none."""
    lines = []
    for name, where in (("without_events", "before the first event"), ("after_death", "after the death")):
        count = sum(found[name].values()) if isinstance(found[name], dict) else found[name]
        if count:
            lines.append(f"warning: {count:,} points lie {where} of their patient")
    return lines


def trained_line(count: int | None, warnings: list[str]) -> list[str]:
    """What to say of points left out because their patients trained the head, or of not knowing who did."""
    if count is None:
        return [f"warning: {text}: these figures may be of training patients" for text in warnings]
    return [f"{count:,} points left out: their patients trained the head"] if count else []


def ready(model: str, device: str, precision: str, most_unknown: float) -> Any:
    """The model, which refuses data with more unknown codes."""
    from unmask.modalities.events.uses.model import load

    if not 0 <= most_unknown <= 1:
        raise UserError(f"--most-unknown {most_unknown}", hint="Expected a share between 0 and 1.")
    loaded = load(model, device=device, precision=precision)
    loaded.most_unknown = most_unknown
    return loaded


def interval_text(result: dict[str, Any], name: str) -> str:
    """The interval of a figure, in brackets; "" where it has none."""
    low_high = result.get("intervals", {}).get(name)
    from unmask.modalities.events.uses.outcome_report import figure_text

    return f" ({figure_text(name, low_high[0])} to {figure_text(name, low_high[1])})" if low_high else ""


def legend_line(results: dict[str, dict[str, Any]]) -> list[str]:
    """Which direction of the figures shown is good, and what stands beside the model."""
    from unmask.evaluation.meanings import legend
    from unmask.modalities.events.uses.outcome_report import SHOWN

    told = legend(k for k in SHOWN if any(k in r for r in results.values()))
    return [told] if told else []
