"""What labelled texts hold that is not what it seems: texts that are blank, missing values that are spelled out,
numbers with commas, labels that are spelled in two ways."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from unmask.errors import UserError, first_of, setting
from unmask.modalities.text.tasks.data import Item

SPELLINGS = frozenset({"NA", "N/A", "n/a", "#N/A", "#NA", "NaN", "nan", "NULL", "null", "<NA>", "None"})
"""How R, pandas, databases and spreadsheets write a missing value."""

SHOWN = 5
"""Groups of labels that are named."""
_NUMBER = re.compile(r"[+-]?[0-9]+(,[0-9]+)?")


def is_spelled(value: Any) -> bool:
    """Whether a text or label is how a missing value is written."""
    return isinstance(value, str) and value.strip() in SPELLINGS


def spelled_said(items: Sequence[Item], *, labelled: bool) -> list[str]:
    """In words, how many texts and labels are spelled as missing."""

    def counted(values: Iterable[Any]) -> tuple[int, str]:
        found = Counter(str(value).strip() for value in values if is_spelled(value))
        return found.total(), ", ".join(repr(name) for name in sorted(found))

    out = []
    texts, named = counted(item.text for item in items)
    if texts:
        out.append(
            f"warning: {texts:,} of {len(items):,} texts are {named}, as missing values are written: they are read as "
            "words"
        )
    labels, named = counted(item.label for item in items if labelled)
    if labels:
        out.append(
            f"warning: {labels:,} of {len(items):,} labels are {named}, as missing values are written: they count as a "
            "class; leave those rows out if they are none"
        )
    return [*out, *_alike(items)] if labelled else out


def _alike(items: Sequence[Item]) -> list[str]:
    """In words, which labels differ in case, blanks or the spelling of a number alone."""
    groups: dict[Any, set[str]] = {}
    for name in {str(item.label).strip() for item in items if isinstance(item.label, str)}:
        key = float(name) if _is_number(name) and not is_spelled(name) else " ".join(name.split()).casefold()
        groups.setdefault(key, set()).add(name)
    found = sorted(sorted(names) for names in groups.values() if len(names) > 1)
    shown = first_of((" and ".join(repr(name) for name in names) for names in found), SHOWN, between="; ")
    line = f"warning: labels that differ in case or spelling alone count as classes apart: {shown}"
    return [line] if found else []


def refuse_commas(items: Sequence[Item]) -> None:
    """Labels that are all numbers, some with a comma, are no classes.

    Raises:
        UserError: naming the first row of such a one.
    """
    if all(isinstance(item.label, str) and _NUMBER.fullmatch(item.label.strip()) for item in items):
        found = next((item for item in items if "," in str(item.label)), None)
        if found is not None:
            raise UserError(
                f"{found.where}: label {found.label!r}: a number with a decimal comma",
                hint=f"Write it with a point; {setting('problem', 'single')} takes it for a class.",
            )


def refuse_among_numbers(items: Sequence[Item]) -> None:
    """Labels that are numbers but for missing ones are no classes, and no numbers either; nor are missing ones alone.

    Raises:
        UserError: naming the first row of a missing one.
    """
    missing = [item for item in items if is_spelled(item.label)]
    others = [item.label for item in items if not is_spelled(item.label)]
    if missing and not others:
        raise UserError(
            f"all {len(items):,} labels are how missing values are written", hint="Is this the label column?"
        )
    if not missing or not all(_is_number(label) for label in others):
        return
    more = f", and in {len(missing) - 1:,} more rows" if len(missing) > 1 else ""
    raise UserError(
        f"{missing[0].where}: label {missing[0].label!r} among numbers{more}",
        hint=f"Leave out rows whose label is missing; {setting('problem', 'single')} takes it for a class.",
    )


def _is_number(label: Any) -> bool:
    try:
        float(label)
    except (TypeError, ValueError):
        return False
    return True


def has_no_text(item: Any) -> bool:
    """Whether a text, one of a pair, a question or its context is blank."""
    texts = (getattr(item, part, None) for part in ("text", "text2", "question", "context"))
    return any(isinstance(t, str) and not t.strip() for t in texts)
