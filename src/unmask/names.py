"""What names say: those of columns that tell individuals apart, and those of values that are spelt in several ways."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from unmask.errors import UserError, first_of, quoted, setting
from unmask.given import no_value

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
ID = re.compile(r"id|ids|pid|identifier")
"""A name that can mean nothing else, however often its values repeat."""
_ONE = "patient|subject|subj|participant|proband(?:en)?|person|personal"
INDIVIDUAL = re.compile(
    rf"(?:study |trial )?(?:{_ONE})(?: (?:{_NUMBER}))?|(?:id|nr|num|no) (?:{_ONE})|id|ids|identifier|mrn|pid|ptid|"
    rf"subjid|usubjid|{_COMPOUND}"
)
"""Names of one who is measured, however often: a visit, a stay or a sample has a number of its own."""
ANIMAL = re.compile(
    r"(?:animal|rat|mouse|dog|rabbit|monkey|chick|child|baby|volunteer)(?: (?:id|no|nr|num|number|code))?"
)
_WRITTEN = re.compile(
    rf"(?:author|writer|speaker|user|document|doc|article|paper|slide|plate)(?: (?:{_NUMBER}))?|pmid|pmcid|doi|"
    rf"pubmed (?:{_NUMBER})"
)


def words_of(name: str) -> str:
    """A column's name as words in small letters: `PatientID`, `patient_id` and `Patient-Id` are one.

    >>> words_of("PatientID"), words_of("patient_id "), words_of("Unnamed: 0")
    ('patient id', 'patient id', 'unnamed 0')
    """
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return " ".join(re.findall(r"[^\W_]+", spaced.lower()))


def named_like_person(name: str) -> bool:
    """Whether a name says that the column tells persons, visits or samples apart.

    >>> [named_like_person(n) for n in ("MRN", "subject_id", "Surname", "Pat.-Nr.", "ID")]
    [True, True, True, True, True]
    >>> [named_like_person(n) for n in ("site_id", "drug name", "age")]
    [False, False, False]
    """
    words = words_of(name)
    named = _STRONG.fullmatch(words) or _PERSONAL.fullmatch(words) or ID.fullmatch(words)
    return not _GROUP.fullmatch(words) and bool(named)


def repeats_individuals(name: str) -> bool:
    """Whether values that repeat under this name are several rows of one individual.

    >>> [repeats_individuals(n) for n in ("Subject", "pat_id", "surname", "Chick", "visit")]
    [True, True, True, True, False]
    """
    return named_like_person(name) or bool(ANIMAL.fullmatch(words_of(name)))


def names_individuals(name: str) -> bool:
    """Whether a column of this name may say whose a row is: a person's, an author's, a document's.

    >>> [names_individuals(n) for n in ("patient_id", "Author", "docId", "pmid", "site_id", "label")]
    [True, True, True, True, False, False]
    """
    return repeats_individuals(name) or bool(_WRITTEN.fullmatch(words_of(name)))


def individuals_unread(columns: Mapping[str, Sequence[Any]], labels: Sequence[Any] = ()) -> list[str]:
    """A warning of rows that belong together by a column that nothing reads: it `names_individuals`, and its values
    stand in several rows each. Another name of the classes is none, and of several columns the
    one of fewest values is named.

    Args:
        columns: those that nothing reads.
        labels: of the rows.

    >>> print(individuals_unread({"patient_id": ["a", "a", "b"], "site": [1, 1, 1]})[0].split(":")[1].strip())
    column 'patient_id' names 2 individuals in 3 rows, and nothing reads it
    """
    found = []
    for name, cells in columns.items():
        if names_individuals(name):
            values = ["" if no_value(cell) else str(cell).strip() for cell in cells]
            distinct, rows = len(set(values) - {""}), len(values) - values.count("")
            pairs = set(zip(values, map(str, labels), strict=False))
            if 1 < distinct < rows and not len(pairs) == len({label for _, label in pairs}) == distinct:
                found.append((distinct, name, rows))
    if not found:
        return []
    distinct, name, rows = min(found)
    return [
        f"warning: column {name!r} names {distinct:,} individuals in {rows:,} rows, and nothing reads it: rows of one "
        "stand on both sides of every split and count as independent, so that scores are too good and intervals too "
        f"narrow; where they belong together, {setting('group', name)} keeps them so"
    ]


def alike(names: Iterable[str]) -> list[list[str]]:
    """Names that differ in case, blanks, zeros in front, or in characters that look alike (dashes, apostrophes,
    composed letters, those of no width) alone: those of each such set.

    >>> alike(["P3", "p3 ", "P4", "01", "1"])
    [['P3', 'p3 '], ['01', '1']]
    """
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(_bare(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def listed_alike(names: Iterable[str]) -> str:
    """The sets of `alike` for a message; '' where there are none."""
    return first_of((" and ".join(map(distinguishing(group), group)) for group in alike(sorted(names))), between="; ")


def refuse_decimals_alike(places: Mapping[str, str]) -> None:
    """Refuse labels (label -> where it stands) such as 1.1 and 1.10: two classes, as of sections, or one amount."""
    for first, second, *_ in alike(sorted(label for label in places if re.fullmatch(r"[+-]?[0-9]+\.[0-9]+", label))):
        raise UserError(
            f"{places[first]}: label {first!r}, and {places[second]}: {second!r}: two classes, or one number?",
            hint=f"Say {setting('problem', 'single')} or {setting('problem', 'regression')}.",
        )


def several_in_one(names: Iterable[str], unit: str) -> list[str]:
    """A warning of names that hold the same part between semicolons or bars, and may be several names each."""
    counts = Counter(part for name in names for part in {p.strip() for p in re.split("[;|]", name)} if part)
    shared = sorted(part for part, count in counts.items() if count > 1)
    several = f"several labels per {unit} are parted by |, with {setting('problem', 'multi')}"
    return [f"warning: {quoted(part)} stands in several classes, between ; or |: {several}" for part in shared[:1]]


def distinguishing(names: Sequence[str]) -> Callable[[str], str]:
    """How names are written so that a reader can tell them apart: by codes where letters look the same."""
    return ascii if len({unicodedata.normalize("NFC", name) for name in names}) < len(names) else repr


def groups_alike(groups: Iterable[str]) -> list[str]:
    """A warning of groups (patients, authors) that may be one by their names."""
    found = listed_alike(groups)
    kept = "they are kept apart, and rows of both may stand on two sides of a split; write them alike if they are one"
    return [f"warning: groups that differ in case or spelling alone: {found}: {kept}"] if found else []


_ALIKE = str.maketrans(
    dict.fromkeys("\u2018\u2019\u02bc\u00b4`", "'") | dict.fromkeys("\u201c\u201d", '"') | {"\u2212": "-"}
)


def _bare(text: str) -> str:
    """A value without what spellings differ in."""
    seen = ("" if kind == "Cf" else "-" if kind == "Pd" else c for c in text for kind in [unicodedata.category(c)])
    bare = " ".join(unicodedata.normalize("NFKC", "".join(seen).translate(_ALIKE)).split()).casefold()
    return str(Decimal(bare).normalize()) if re.fullmatch(r"[+-]?[0-9]+(?:\.[0-9]*)?", bare) else bare
