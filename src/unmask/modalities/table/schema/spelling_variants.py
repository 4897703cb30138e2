"""Texts that are more than their letters: codes with zeros in front, and one category spelt in several ways."""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal

import numpy as np

from unmask.modalities.table.reading.findings import Finding, named, setting

MOST_CODES = 12
"""Up to so many distinct texts, those that spell one number in two ways (01 and 1) are categories still."""
_DAYS = ("%d%m%Y", "%m%d%Y")


def are_codes(values: np.ndarray) -> bool:
    """Whether texts of digits are codes rather than numbers: some begin with a zero that a number would not have.

    Where many texts spell one number in two ways, as 5 and 05, they are numbers.

    Args:
        values: a column's distinct cells.

    >>> are_codes(np.array(["02345", "80331", "10115"], object)), are_codes(np.array(["0", "5", "10"], object))
    (True, False)
    """
    if values.dtype != object or len(values) < 3:
        return False
    texts = [v.strip() if isinstance(v, str) else "" for v in values.tolist()]
    if not any(len(t) > 1 and t[0] == "0" for t in texts) or not all(t.isascii() and t.isdigit() for t in texts):
        return False
    distinct = set(texts)
    return len(distinct) <= MOST_CODES or len({int(t) for t in distinct}) == len(distinct)


def zeros_in_front(name: str, texts: Sequence[str]) -> list[Finding]:
    """Codes that `are_codes` found, or dates written as such."""
    example = next(t for t in texts if t[0] == "0" and len(t) > 1)
    forms = [form for form in _DAYS if all(_reads(t, form) for t in texts)]
    if forms:
        add = " or ".join(
            setting(name, f'kind = "datetime", format = "{form}"').replace('", f', '"\nf') for form in forms
        )
        return [
            Finding(
                severity="warning",
                column=name,
                code="date_as_number",
                text=f"{name!r} holds texts such as {example!r}, which read as dates: kept as codes. If they are "
                "dates:",
                add=add,
            )
        ]
    return [
        Finding(
            severity="warning",
            column=name,
            code="zeros_in_front",
            text=f"{name!r} holds texts such as {example!r}, with zeros in front: kept as codes, not as numbers. If "
            "they are numbers:",
            add=setting(name, 'kind = "integer"'),
        )
    ]


def _reads(text: str, form: str) -> bool:
    try:
        return len(text) == 8 and 1900 <= dt.datetime.strptime(text, form).year <= 2100
    except ValueError:
        return False


def spelt_alike(name: str, counts: Mapping[str, int]) -> list[Finding]:
    """Categories that differ in case, blanks, zeros in front, or in characters that look alike (dashes, apostrophes,
    composed letters, those of no width) alone: kept apart, for nobody said that they are one.

    Args:
        counts: category -> cells.

    >>> print(*(f.text.partition(".")[0] for f in spelt_alike("sex", {"Male": 3, "male": 1, "F": 2})))
    'sex' holds spellings that may mean the same: 'Male' (3 cells) and 'male' (1)
    """
    groups: dict[str, list[str]] = {}
    for text in counts:
        groups.setdefault(_bare(text), []).append(text)
    found = [sorted(g, key=lambda t: -counts[t]) for g in groups.values() if len(g) > 1]
    if not found:
        return []
    listed = "; ".join(
        f"{show(g[0])} ({counts[g[0]]} cells) and " + ", ".join(f"{show(t)} ({counts[t]})" for t in g[1:])
        for g in found[:5]
        for show in [ascii if len({unicodedata.normalize("NFC", t) for t in g}) < len(g) else repr]
    ) + ("; ..." if len(found) > 5 else "")
    return [
        Finding(
            severity="warning",
            column=name,
            code="spelt_alike",
            text=f"{name!r} holds spellings that may mean the same: {listed}. They are kept apart, as categories of "
            "their own",
            add=f"Write one of them in the file ({named([g[0] for g in found])}).",
        )
    ]


_ALIKE = str.maketrans(
    dict.fromkeys("\u2018\u2019\u02bc\u00b4`", "'") | dict.fromkeys("\u201c\u201d", '"') | {"\u2212": "-"}
)


def _bare(text: str) -> str:
    seen = ("" if kind == "Cf" else "-" if kind == "Pd" else c for c in text for kind in [unicodedata.category(c)])
    bare = " ".join(unicodedata.normalize("NFKC", "".join(seen).translate(_ALIKE)).split()).casefold()
    return str(Decimal(bare).normalize()) if re.fullmatch(r"[+-]?[0-9]+(?:\.[0-9]*)?", bare) else bare


__all__ = ["are_codes", "spelt_alike", "zeros_in_front"]
