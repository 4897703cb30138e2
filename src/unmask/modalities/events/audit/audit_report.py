"""An audit's findings for people: lines on the screen, and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from unmask.errors import either
from unmask.evaluation.card import Use
from unmask.evaluation.charts import table
from unmask.evaluation.report import Report
from unmask.modalities.events.audit.audit_events import CHECKS, SHOWN, Finding
from unmask.modalities.events.audit.audit_points import TASK_CHECKS
from unmask.modalities.events.records.meds import as_events, read_labels
from unmask.progress import counted

ON_SCREEN = 5
"""Codes listed with a finding on the screen."""


def lines(found: Sequence[Finding], about: dict[str, Any]) -> list[str]:
    """A heading, then of each finding its sentence, what to do, and the first codes."""
    warnings = sum(f.level == "warning" for f in found)
    looked = ", ".join(f"{count:,} {name}" for name, count in about.items())
    out = [f"{looked}: {warnings} warnings, {len(found) - warnings} notes"]
    for f in found:
        out += [f"{f.level.upper()} {f.check}: {f.sentence}", f"    {f.todo}"]
        for row in f.rows[:ON_SCREEN]:
            out.append("    " + "  ".join(f"{n}: {v}" for n, v in zip(f.columns, row, strict=True)))
        if len(f.rows) > ON_SCREEN:
            out.append(
                f"    and {len(f.rows) - ON_SCREEN} more in {either('--json and --out', 'the rows of the finding')}"
            )
    return out


def page(
    found: Sequence[Finding], about: dict[str, Any], data: str, out: str | Path, *, examples: bool = False
) -> Path:
    """Write the findings as one HTML page.

    Args:
        examples: list the patients of a finding by their ids.
    """
    report = Report("Audit of patient events", data)
    report.facts({name.capitalize(): count for name, count in about.items()})
    report.facts({"Warnings": sum(f.level == "warning" for f in found)})
    if not any(f.level == "warning" for f in found):
        report.section("No warning", "No check saw anything that would let a model know the future.")
    for f in found:
        said = Markup("<p>{}</p><p>{}</p>").format(f.sentence, f.todo)
        rows = [[str(cell) for cell in row] for row in f.rows] if examples or "subject" not in f.columns else []
        note = f"The first {len(rows)}." if len(rows) == SHOWN else ""
        heading = f"{f.level.capitalize()}: {f.check}"
        report.section(heading, said + table(list(f.columns), rows) if rows else said, note=note)
    return report.use(_next(data), heading="What to do next").write(out)


def _next(data: str) -> Markup:
    """What comes after an audit: what it cannot see, and the commands to go on with."""
    commands = (
        ("after a change of the data, once more", "unmask events audit MODEL --labels task --out audit.html"),
        ("pretrain", "unmask pretrain events MODEL --out model"),
        (
            "predict the outcome, beside age and number of events",
            "unmask finetune outcome model MODEL --labels task --out outcome",
        ),
    )
    seen = Markup("<p>{}</p>").format(
        "An audit without warnings is no proof: it looks at single codes within 24 hours before the prediction time, "
        "not at several together nor further back."
    )
    return seen + Use(commands=commands, python="").of(data).html()


def audit(data: Any, labels: Any = None) -> tuple[list[Finding], dict[str, Any]]:
    """All findings, warnings first, and what was looked at (events, subjects, points).

    Args:
        labels: as `read_labels` takes them; without, what concerns prediction times is not looked at.

    Raises:
        UserError: data or labels are not MEDS.
    """
    events = as_events(data)
    points = None if labels is None else read_labels(labels, events)
    found = [f for check in counted(CHECKS, len(CHECKS)) for f in check(events)]
    if points is not None:
        found += [f for task_check in counted(TASK_CHECKS, len(TASK_CHECKS)) for f in task_check(events, points)]
    about: dict[str, Any] = {"events": len(events.time), "subjects": len(events), "codes": len(events.codes)}
    about |= {} if points is None else {"points": len(points)}
    return sorted(found, key=lambda f: f.level != "warning"), about
