"""Columns that do not describe a patient but name one: identifiers and free text, told by what they hold and are
called."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence

import numpy as np

from unmask.modalities.table.reading.findings import Finding, named
from unmask.modalities.table.schema.raw_column import RawColumn
from unmask.names import ANIMAL, ID, INDIVIDUAL, alike, distinguishing, named_like_person, repeats_individuals, words_of

_WEAK = re.compile(r"(?:.* )?(?:id|pid|mrn|uid|uuid|identifier|index)|unnamed(?: \d+)?|rownames?")


FEWEST_INDIVIDUALS = 20
"""With at least this many individuals the name decides, even if the rows of each are not consecutive."""


def _id_by_name(c: RawColumn, values: Sequence[str] | np.ndarray) -> bool:
    """Whether the name of a column and how its distinct values, whole numbers or texts, repeat make it an
    identifier."""
    name, rows = c.name, c.rows
    distinct = len(values)
    if named_like_person(name):
        least = 0.02 if ID.fullmatch(words_of(name)) else 0.1
        if distinct == rows or (distinct > 5 and distinct >= least * rows):
            return True
    words = words_of(name)
    if distinct < 3 or not (INDIVIDUAL.fullmatch(words) or ANIMAL.fullmatch(words)):
        return False
    # Many rows of each. Names without a digit may be those of anything: a subject taught at school.
    runs = runs_of(c.raw[~c.empty]) if repeats_individuals(name) else rows
    coded = all(not isinstance(v, str) or any(c.isdigit() for c in v) for v in values)
    together = runs <= 1.2 * distinct and rows >= 2 * distinct
    many = distinct >= FEWEST_INDIVIDUALS and bool(INDIVIDUAL.fullmatch(words))
    return many or (coded and together)


def runs_of(cells: np.ndarray) -> int:
    """How many runs of equal cells there are.

    >>> runs_of(np.array([1, 1, 2, 2, 2, 1]))
    3
    """
    return int((cells[1:] != cells[:-1]).sum()) + 1 if len(cells) else 0


def numbers_are_ids(c: RawColumn, values: np.ndarray, whole: bool) -> str | None:
    """Why a column of numbers is an identifier; None where it is not. `values`: its distinct values; `whole`: all of
    them are whole numbers."""
    name, distinct = c.name, len(values)
    if not whole or c.rows < 2:
        return None
    if _id_by_name(c, values):
        return "its name says so"
    if distinct < c.rows or len(c.raw) < 20:
        return None
    if c.rows >= 20 and not c.empty.any() and (np.diff(values) == 1).all():  # in whatever order
        return "it counts the rows"
    if not name.strip():
        return "it has no name, as row names have none, and no value repeats"
    if _WEAK.fullmatch(words_of(name)):
        return "its name says so and no value repeats"
    digits = {len(str(int(abs(v)))) for v in values}
    if len(digits) == 1 and digits.pop() >= 7:
        return "whole numbers of seven or more digits, none twice"
    return None


def texts_are_ids(c: RawColumn, values: Sequence[str]) -> str | None:
    """Why a column of texts with these distinct values is an identifier; None where it is not.

    Nearly no value twice, or so many values that a category has fewer than three rows: nothing can be learnt of those,
    and such categories name people. A few cells of many rows tell people apart as well as many cells do.
    """
    distinct, rows = len(values), c.rows
    if rows >= 2 and _id_by_name(c, values):
        return "its name says so"
    if rows >= 2 and len(c.raw) >= 20 and distinct > 0.9 * rows:
        return "hardly a value repeats"
    if rows >= 20 and distinct > 12 and distinct * 3 > rows:
        return f"{distinct} values in {rows} cells: fewer than three rows per value"
    return None


def is_free_text(values: Sequence[str], rows: int, table: int) -> bool:
    """Whether texts are sentences: three words or more on average, and mostly not repeated.

    Args:
        values: the distinct ones.
        rows: cells that hold one.
        table: rows of the table.

    >>> notes = ["seen in clinic, no complaints", "fell at home, X-ray normal"]
    >>> is_free_text([*notes, *(f"note {i} on a fall" for i in range(20))], 22, 22), is_free_text(notes, 4, 200)
    (True, True)
    """
    if table < 20 or (rows >= 20 and len(values) <= 12):
        return False
    words = sum(len(v.split()) for v in values) / len(values)
    letters = sum(len(v) for v in values) / len(values)
    return len(values) > 0.3 * rows and words >= 3 and letters >= 15


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


def zeros_in_front(c: RawColumn, texts: Sequence[str]) -> None:
    """Codes that `are_codes` found, or dates written as such."""
    holds = f"{c.name!r} holds texts such as {next(t for t in texts if t[0] == '0' and len(t) > 1)!r}"
    forms = [form for form in _DAYS if all(_reads(t, form) for t in texts)]
    if forms:
        add = [c.setting(f'kind = "datetime", format = "{form}"').replace('", f', '"\nf') for form in forms]
        what = f"{holds}, which read as dates: kept as codes. If they are dates:"
        c.warn("date_as_number", what, " or ".join(add))
    else:
        what = f"{holds}, with zeros in front: kept as codes, not as numbers. If they are numbers:"
        c.warn("zeros_in_front", what, c.setting('kind = "integer"'))


def _reads(text: str, form: str) -> bool:
    try:
        return len(text) == 8 and 1900 <= dt.datetime.strptime(text, form).year <= 2100
    except ValueError:
        return False


def spelt_alike(name: str, counts: Mapping[str, int]) -> list[Finding]:
    """Categories that are spelt `alike`: they stay different categories, until the user says that they are one.

    Args:
        counts: category -> cells.

    >>> print(*(f.text.partition(".")[0] for f in spelt_alike("sex", {"Male": 3, "male": 1, "F": 2})))
    'sex' holds spellings that may mean the same: 'Male' (3 cells) and 'male' (1)
    """
    found = [sorted(group, key=lambda t: -counts[t]) for group in alike(counts)]
    if not found:
        return []
    listed = "; ".join(
        f"{show(g[0])} ({counts[g[0]]} cells) and " + ", ".join(f"{show(t)} ({counts[t]})" for t in g[1:])
        for g in found[:5]
        for show in [distinguishing(g)]
    ) + ("; ..." if len(found) > 5 else "")
    text = f"{name!r} holds spellings that may mean the same: {listed}. They are kept apart, each a category."
    add = f"Write one of them in the file ({named([g[0] for g in found])})."
    return [Finding("warning", name, "spelt_alike", text, add)]
