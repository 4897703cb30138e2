"""`unmask events audit`: looks for the future in the past of a MEDS folder, before a model finds it.

Each check gives at most one finding: what was seen, how often, in which codes, and what to do. A warning is what may
let a model know what it should predict, or count a patient twice; a note explains what was seen and harms no model of
ours.
"""

from __future__ import annotations

from typing import Any

from unmask.modalities.events.audit.audit_events import CHECKS, Finding
from unmask.modalities.events.audit.audit_points import TASK_CHECKS
from unmask.modalities.events.records.meds import as_events, read_labels
from unmask.progress import counted


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
