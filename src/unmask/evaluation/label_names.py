"""Names of labels that may be none, or the same: missing values that are spelled out, one name in two spellings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from unmask.errors import first_of

SPELLINGS = frozenset({"NA", "N/A", "n/a", "#N/A", "#NA", "NaN", "nan", "NULL", "null", "<NA>", "None"})
"""How R, pandas, databases and spreadsheets write a missing value."""


def is_spelled(value: Any) -> bool:
    """Whether a text or label is how a missing value is written."""
    return isinstance(value, str) and value.strip() in SPELLINGS


def is_number(value: Any) -> bool:
    """Whether a value is a number, or a text that is one."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def labels_said(labels: Iterable[Any]) -> list[str]:
    """In words, how many labels are spelled as missing, and which differ in case, blanks or the spelling of a number
    alone."""
    counts = Counter(label.strip() for label in labels if isinstance(label, str))
    missing = sorted(name for name in counts if is_spelled(name))
    out = []
    if missing:
        out.append(
            f"warning: {sum(counts[name] for name in missing):,} of {counts.total():,} labels are "
            f"{', '.join(map(repr, missing))}, as missing values are written: they count as a class; leave those rows "
            "out if they are none"
        )
    groups: dict[Any, set[str]] = {}
    for name in counts:
        key = float(name) if is_number(name) and not is_spelled(name) else " ".join(name.split()).casefold()
        groups.setdefault(key, set()).add(name)
    found = sorted(sorted(names) for names in groups.values() if len(names) > 1)
    shown = first_of((" and ".join(repr(name) for name in names) for names in found), between="; ")
    line = f"warning: labels that differ in case or spelling alone count as classes apart: {shown}"
    return [*out, line] if found else out
