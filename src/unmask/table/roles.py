"""Columns that do not describe a patient but name one: identifiers and free text, told by what they hold and are called."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

_PERSON = (
    "patient|patienten|pat|subject|subj|participant|proband|person|personal|case|fall|record|study|studien|chart|medical|admission|"
    "encounter|visit|stay|hadm|icustay|sample|specimen|accession|insurance|versicherten|social|security|national|hospital|unit|nhs|row"
)
_NUMBER = "id|ids|no|nr|num|number|nummer|code|key|identifier|index|seq"
_STRONG = re.compile(
    rf"(?:(?:{_PERSON})(?: (?:{_PERSON}))*(?: (?:{_NUMBER}))+|(?:id|nr|num|no) (?:{_PERSON})|mrn|pid|uid|uuid|guid|ssn|"
    rf"nhs|nhs number|"
    r"subject|patient|participant|patid|subjid|usubjid|ptid|hadm|eid|fallnr|patnr|patientid|patientnummer|fallnummer|"
    r"hospital number)"
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


def words_of(name: str) -> str:
    """A column's name as words in small letters: `PatientID`, `patient_id` and `Patient-Id` are one.

    >>> words_of("PatientID"), words_of("patient_id "), words_of("Unnamed: 0")
    ('patient id', 'patient id', 'unnamed 0')
    """
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return " ".join(re.findall(r"[^\W_]+", parted.lower()))


def named_like_person(name: str) -> bool:
    """Whether a name says that the column tells persons, visits or samples apart.

    >>> [named_like_person(n) for n in ("MRN", "subject_id", "Surname", "Pat.-Nr.", "ID", "site_id", "drug name", "age")]
    [True, True, True, True, True, False, False, False]
    """
    words = words_of(name)
    named = _STRONG.fullmatch(words) or _PERSONAL.fullmatch(words) or _ID.fullmatch(words)
    return not _GROUP.fullmatch(words) and bool(named)


def _told_by_name(name: str, distinct: int, rows: int) -> bool:
    """Whether the name of a column and how often its values repeat make it an identifier."""
    if not named_like_person(name):
        return False
    least = 0.02 if _ID.fullmatch(words_of(name)) else 0.1
    return distinct == rows or (distinct > 5 and distinct >= least * rows)


def numbers_are_ids(
    name: str, values: Sequence[float] | np.ndarray, rows: int, whole: bool, counting: bool
) -> str | None:
    """Why a column of numbers is an identifier; None where it is not.

    Args:
        values: its distinct values.
        rows: cells that hold a value.
        whole: all of them are whole numbers.
        counting: from row to row it goes up by one.
    """
    if not whole or rows < 2:
        return None
    distinct = len(values)
    if _told_by_name(name, distinct, rows):
        return "its name says so"
    if distinct < rows or rows < 20:
        return None
    if counting:
        return "it counts the rows"
    if not name.strip():
        return "it has no name, as row names have none, and no value repeats"
    if _WEAK.fullmatch(words_of(name)):
        return "its name says so and no value repeats"
    digits = {len(str(int(abs(v)))) for v in values}
    if len(digits) == 1 and digits.pop() >= 7:
        return "whole numbers of seven or more digits, none twice"
    return None


def texts_are_ids(name: str, values: Sequence[str], rows: int) -> str | None:
    """Why a column of texts is an identifier; None where it is not.

    Nearly no value twice, or so many values that a category has fewer than three rows: nothing can be learnt of those,
    and such categories name people.

    >>> texts_are_ids("surname", ["Meyer", "Smith", "Li", "Kaya", "Roy", "Ito"], 12)
    'its name says so'
    """
    distinct = len(values)
    if rows >= 2 and _told_by_name(name, distinct, rows):
        return "its name says so"
    if rows >= 20 and distinct > 0.9 * rows:
        return "hardly a value repeats"
    if rows >= 20 and distinct > 12 and distinct * 3 > rows:
        return f"{distinct} values in {rows} cells: fewer than three rows per value"
    return None


def is_free_text(values: Sequence[str], rows: int) -> bool:
    """Whether texts are sentences: three words or more on average, and mostly not repeated.

    >>> is_free_text(["seen in clinic, no complaints", "fell at home, X-ray normal"] + [f"note {i} on a fall" for i in range(20)], 22)
    True
    """
    if rows < 20 or len(values) <= 12:
        return False
    words = sum(len(v.split()) for v in values) / len(values)
    letters = sum(len(v) for v in values) / len(values)
    return len(values) > 0.3 * rows and words >= 3 and letters >= 15
