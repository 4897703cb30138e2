"""Columns that do not describe a patient but name one: identifiers and free text, told by what they hold and are
called."""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal

import numpy as np

from unmask.modalities.table.reading.findings import Finding, named
from unmask.modalities.table.reading.parse import numbers
from unmask.modalities.table.schema.raw_column import RawColumn

_PERSON = (
    "patient|patienten|pat|subject|subj|participant|proband(?:en)?|person|personal|case|fall|record|study|studien|chart|"
    "medical|admission|encounter|visit|stay|hadm|icustay|sample|specimen|accession|insurance|versicherten|"
    "social|security|national|hospital|unit|nhs|row"
)
_NUMBER = "id|ids|no|nr|num|number|nummer|code|key|identifier|index|seq|kennung|k(?:ü|ue)rzel"
_COMPOUND = "(?:patient(?:en)?|pat|proband(?:en)?|personen|teilnehmer|studien)(?:nummer|nr|id|kennung)"
"""One word, as German writes them."""
_STRONG = re.compile(
    rf"(?:(?:{_PERSON})(?: (?:{_PERSON}))*(?: (?:{_NUMBER}))+|(?:id|nr|num|no) (?:{_PERSON})|mrn|pid|uid|uuid|guid|ssn|"
    rf"nhs|nhs number|"
    rf"subject|patient|participant|proband|subjid|usubjid|ptid|hadm|eid|fallnr|fallnummer|{_COMPOUND}|hospital number)"
)
_PERSONAL = re.compile(
    r"(?:(?:patient|family|last|first|middle|maiden|given|full|sur|fore) ?name|surname|forename|nachname|vorname|"
    r"familienname|nom|"
    r"prenom|nom de famille|apellidos?|nombre|cognome|name|initials|e ?mail|phone|telephone|telefon|mobile|address|"
    r"adresse|street)"
)
_GROUP = re.compile(
    r"(?:.* )?(?:site|center|centre|hospital|clinic|klinik|ward|region|country|drug|group|arm|study) (?:id|code|no|nr|"
    r"number)"
)
_ID = re.compile(r"id|ids|pid|identifier")
"""A name that can mean nothing else, however often its values repeat."""
_WEAK = re.compile(r"(?:.* )?(?:id|pid|mrn|uid|uuid|identifier|index)|unnamed(?: \d+)?|rownames?")


_ONE = "patient|subject|subj|participant|proband(?:en)?|person|personal"
_INDIVIDUAL = re.compile(
    rf"(?:study |trial )?(?:{_ONE})(?: (?:{_NUMBER}))?|(?:id|nr|num|no) (?:{_ONE})|id|ids|identifier|mrn|pid|ptid|"
    rf"subjid|usubjid|{_COMPOUND}"
)
"""Names of one who is measured, however often: a visit, a stay or a sample has a number of its own."""
_ANIMAL = re.compile(
    r"(?:animal|rat|mouse|dog|rabbit|monkey|chick|child|baby|volunteer)(?: (?:id|no|nr|num|number|code))?"
)
FEWEST_INDIVIDUALS = 20
"""With at least this many individuals the name decides, even if the rows of each are not consecutive."""


def words_of(name: str) -> str:
    """A column's name as words in small letters: `PatientID`, `patient_id` and `Patient-Id` are one.

    >>> words_of("PatientID"), words_of("patient_id "), words_of("Unnamed: 0")
    ('patient id', 'patient id', 'unnamed 0')
    """
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return " ".join(re.findall(r"[^\W_]+", parted.lower()))


def named_like_person(name: str) -> bool:
    """Whether a name says that the column tells persons, visits or samples apart.

    >>> [named_like_person(n) for n in ("MRN", "subject_id", "Surname", "Pat.-Nr.", "ID")]
    [True, True, True, True, True]
    >>> [named_like_person(n) for n in ("site_id", "drug name", "age")]
    [False, False, False]
    """
    words = words_of(name)
    named = _STRONG.fullmatch(words) or _PERSONAL.fullmatch(words) or _ID.fullmatch(words)
    return not _GROUP.fullmatch(words) and bool(named)


def _told_by_name(c: RawColumn, values: Sequence[str] | np.ndarray) -> bool:
    """Whether the name of a column and how its distinct values, whole numbers or texts, repeat make it an
    identifier."""
    name, rows = c.name, c.rows
    distinct = len(values)
    if named_like_person(name):
        least = 0.02 if _ID.fullmatch(words_of(name)) else 0.1
        if distinct == rows or (distinct > 5 and distinct >= least * rows):
            return True
    words = words_of(name)
    if distinct < 3 or not (_INDIVIDUAL.fullmatch(words) or _ANIMAL.fullmatch(words)):
        return False
    # Many rows of each. Names without a digit may be those of anything: a subject taught at school.
    runs = runs_of(c.raw[~c.empty]) if repeats_individuals(name) else rows
    coded = all(not isinstance(v, str) or any(c.isdigit() for c in v) for v in values)
    together = runs <= 1.2 * distinct and rows >= 2 * distinct
    many = distinct >= FEWEST_INDIVIDUALS and bool(_INDIVIDUAL.fullmatch(words))
    return many or (coded and together)


def runs_of(cells: np.ndarray) -> int:
    """How many runs of equal cells there are.

    >>> runs_of(np.array([1, 1, 2, 2, 2, 1]))
    3
    """
    return int((cells[1:] != cells[:-1]).sum()) + 1 if len(cells) else 0


def repeats_individuals(name: str) -> bool:
    """Whether values that repeat under this name are several rows of one individual.

    >>> [repeats_individuals(n) for n in ("Subject", "pat_id", "surname", "Chick", "visit")]
    [True, True, True, True, False]
    """
    return named_like_person(name) or bool(_ANIMAL.fullmatch(words_of(name)))


def numbers_are_ids(c: RawColumn, values: np.ndarray, whole: bool) -> str | None:
    """Why a column of numbers is an identifier; None where it is not. `values`: its distinct values; `whole`: all of
    them are whole numbers."""
    name, distinct = c.name, len(values)
    if not whole or c.rows < 2:
        return None
    if _told_by_name(c, values):
        return "its name says so"
    if distinct < c.rows or len(c.raw) < 20:
        return None
    if c.rows >= 20 and (np.diff(numbers(c.raw[~c.empty], c.spelling.marks)[0]) == 1).all():
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
    if rows >= 2 and _told_by_name(c, values):
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
    """Categories that differ in case, blanks, zeros in front, or in characters that look alike (dashes, apostrophes,
    composed letters, those of no width) alone: they stay different categories, until the user says that they are one.

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
    text = f"{name!r} holds spellings that may mean the same: {listed}. They are kept apart, as categories of their own"
    add = f"Write one of them in the file ({named([g[0] for g in found])})."
    return [Finding("warning", name, "spelt_alike", text, add)]


_ALIKE = str.maketrans(
    dict.fromkeys("\u2018\u2019\u02bc\u00b4`", "'") | dict.fromkeys("\u201c\u201d", '"') | {"\u2212": "-"}
)


def _bare(text: str) -> str:
    seen = ("" if kind == "Cf" else "-" if kind == "Pd" else c for c in text for kind in [unicodedata.category(c)])
    bare = " ".join(unicodedata.normalize("NFKC", "".join(seen).translate(_ALIKE)).split()).casefold()
    return str(Decimal(bare).normalize()) if re.fullmatch(r"[+-]?[0-9]+(?:\.[0-9]*)?", bare) else bare
