"""Values that may not mean what they say: codes of missing values, codes of categories, dates written as numbers.

Nothing here changes a value; each finding says what stands there and what to write in the schema if it is as it looks.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from unmask.errors import option
from unmask.given import natural, no_value
from unmask.modalities.table.reading.decimal_marks import CELL
from unmask.modalities.table.reading.findings import Finding, setting
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.parse import is_missing, text_of
from unmask.modalities.table.schema.raw_column import RawColumn
from unmask.modalities.table.schema.roles import FEWEST_INDIVIDUALS, runs_of
from unmask.modalities.table.schema.schema import Column
from unmask.modalities.table.schema.survival_pair import YES_NO
from unmask.names import repeats_individuals, words_of
from unmask.odd_numbers import SENTINELS

NO_VALUE_WORDS = re.compile(
    r"(?:unknown|unkn?\.?|missing|(?:don.?t|do not) know|no answer|\.[a-z]|"
    r"not (?:done|known|available|applicable|recorded|measured|assessed|tested|reported|"
    r"stated|given)|no (?:data|value|result|info|information)|"
    r"n\.? ?d\.?|n\.? ?a\.?|n/d|nil return|refused|declined|pending|to follow|tbd|unspecified|undetermined|"
    r"indeterminate|invalid|error|unbekannt|unbek\.|wei(?:ß|ss) nicht|fehlt|fehlend|"
    r"nicht (?:bekannt|erhoben|gemessen|durchgeführt)|keine angabe|k\.? ?a\.?|inconnue?|non (?:fait|connu|disponible)|"
    r"desconocid[oa]|no (?:consta|realizado)|"
    r"sconosciut[oa]|non noto|-+|\.\.+|\*+|\(missing\)|<missing>|leer|vacío)",
    re.IGNORECASE,
)

_U_IS_UNKNOWN = {"u", "m", "f", "male", "female", *(level for coding in YES_NO for level in coding)}

_CODED = re.compile(
    r"(?:.* )?(?:grade|stage|type|code|class|group|category|cat|level|status|race|ethnicity|ethnic|site|cent(?:er|re)|"
    r"region|arm|treatment|trt|"
    r"cause|diagnosis|dx|histology|marital|education|employment|occupation|religion|country|state|ward|department|dept|"
    r"insurance|smoking|"
    r"smoker|method|reason|outcome|sex|gender|color|colour|kind|section)(?: .*)?"
)


_OF_A_UNIT = (
    "hospital|klinik|klinikum|krankenhaus|clinic|clinique|clinica|hopital|hôpital|ospedale|ziekenhuis|sjukhus|site|"
    "cent(?:er|re)|zentrum|centro|ward|department|dept|abteilung|practice|praxis|school|schule|ecole|école|escuela|"
    "scuola|physician|doctor|arzt|surgeon|chirurg|operator|rater|reader|interviewer|zip|zipcode|plz|postleitzahl|"
    "postcode|county|district|landkreis|gemeinde|municipality|region|province|country|cluster|household|haushalt|"
    "village|batch|scanner"
)
_UNIT = re.compile(
    rf"(?:(?:treating|referring|recruiting|study|home) )?(?:{_OF_A_UNIT})(?: (?:id|ids|no|nr|num|number|nummer|code))?|"
    rf"(?:id|no|nr|num|code) (?:{_OF_A_UNIT})"
)
"""Names of what rows belong to, whose numbers measure nothing however many there are."""


def sentinels(c: RawColumn, found: Mapping[float, int], others: tuple[float, float]) -> None:
    """What `sentinel_values` found; `others` are the least and the greatest of the other values."""
    listed = ", ".join(f"{v:g} ({n} cells)" for v, n in sorted(found.items()))
    codes = [int(v) if v == int(v) else v for v in sorted(found)]
    c.warn(
        "sentinel",
        f"{c.name!r} holds {listed} apart from its other values ({others[0]:g} to {others[1]:g}): read as numbers; a "
        "code for no value, often. If so:",
        c.setting(f"missing = {json.dumps(codes)}"),
    )


def extremes(c: RawColumn, listed: Sequence[tuple[float, int]], others: tuple[float, float]) -> None:
    """Numbers that `far_off` found, each with its row; `others` are the least and the greatest of the other values."""
    cells = ", ".join(f"{v:g} (row {row})" for v, row in listed)
    c.warn(
        "extreme",
        f"{c.name!r} holds {cells}, far from its other values ({others[0]:g} to {others[1]:g}): read as they stand. A "
        "slip of the decimal point or another unit, often. If so:",
        "Correct the cells or empty them.",
    )


def no_value_words(c: RawColumn, counts: Mapping[str, int]) -> None:
    """Words such as Unknown among the categories of a column; numbers such as -99 where all others are texts; U beside
    yes and no or the sexes."""
    number = {text_of(v): float(x) for v, x, bad in zip(c.values, c.number, c.bad, strict=True) if not bad}
    coded = len(number) < len(counts) and all(x in SENTINELS and not 0 < x < 9 for x in number.values())
    none = {t for t in counts if NO_VALUE_WORDS.fullmatch(t.strip()) or (coded and t in number)}
    rest = {t.strip().lower() for t in counts if t not in none}
    if "u" in rest and len(rest) > 2 and rest <= _U_IS_UNKNOWN:
        none |= {t for t in counts if t.strip().lower() == "u"}
    found = {t: n for t, n in counts.items() if t in none}
    _kept(c, "unknown_category", found, ": kept as a category. If it means that there is no value:")


def kept_words(c: RawColumn, counts: Mapping[str, int]) -> None:
    """`None` and `Na` in a column of categories: kept as values."""
    _kept(c, "none_as_value", counts, " beside other texts: taken for a value. If it means that there is none:")


_TWO_NUMBERS = re.compile(r"\d+(?:[.,]\d+)?\s*([/+:;|x×])\s*\d+(?:[.,]\d+)?")
"""Blood pressures, weeks and days of a pregnancy; not 40-49, which is a level."""


_FRACTION = re.compile(r"(?<![\w.,])\d+[.,]\d+(?![\d.,])")
"""Not in I21.4, a diagnosis, nor in 1.2.840 or a date."""


def quantities_in_texts(c: RawColumn, texts: Sequence[str]) -> None:
    """Texts that hold quantities, which are not used then: nearly all hold two numbers with one and the same separator
    between, or a fraction, which no name has; or all are a number with one of a few words behind, such as units."""
    if len(texts) <= 12:
        return
    some = texts[:: 1 + len(texts) // 2000]
    unused = f", such as {max(some, key=len)!r}: taken for a text, of which the numbers are not used. Write"
    pairs = Counter(m[1] for t in some if (m := _TWO_NUMBERS.fullmatch(t.strip())))
    words = {m and m["suffix"] for m in map(CELL.fullmatch, some)}
    units = len(words) <= 4 and all(w is not None and re.search("[a-zµ%]", w) for w in words)
    if pairs and max(pairs.values()) >= 0.9 * len(some):
        c.warn("two_numbers", f"{c.name!r} holds two numbers in one cell{unused} each into a column of its own.")
    elif units or sum(bool(_FRACTION.search(t)) for t in some) >= 0.9 * len(some):
        c.warn(
            "quantities_among_words", f"{c.name!r} holds numbers among words{unused} the numbers alone, in one unit."
        )


def _kept(c: RawColumn, code: str, counts: Mapping[str, int], what: str) -> None:
    if counts:
        listed = ", ".join(f"{t!r} ({n} cells)" for t, n in counts.items())
        add = c.setting(f"missing = {json.dumps(list(counts), ensure_ascii=False)}")
        c.warn(code, f"{c.name!r} holds {listed}{what}", add)


def codes(c: RawColumn, values: np.ndarray) -> None:
    """Whole numbers that could be the codes of categories: few, without a gap, from 0 or 1, each many times. `values`:
    the column's distinct numbers, rising."""
    coded = bool(_CODED.fullmatch(words_of(c.name)))
    gaps = values[-1] - values[0] + 1 - len(values)
    few = 3 <= len(values) <= (30 if coded else 12) and c.rows >= (3 if coded else 5) * len(values)
    unit = len(values) >= 3 and bool(_UNIT.fullmatch(words_of(c.name)))
    if unit or (few and values[0] in (0, 1) and (gaps <= 0 or coded)):
        c.warn(
            "codes",
            f"{c.name!r} holds {len(values)} whole numbers {values[0]:g}..{values[-1]:g}: a quantity is assumed. If "
            "they are codes of categories (or ordinal, if they are ranked):",
            c.setting('kind = "nominal"'),
        )


_DAY_NAMES = re.compile(
    r"(?:.* )?(?:date|datum|dates|dt|dob|doa|dod|datetime)(?: .*)?|"
    r"(?:(?:first|last|hospital|icu|next) )?(?:visit|admission|discharge|birth|surgery|entry|onset|"
    r"enrol+ment|randomi[sz]ation|diagnosis|death|exam|admit|follow up|aufnahme|entlassung|geburt)"
)
_TIME_NAMES = re.compile(rf"(?:.* )?(?:time|timestamp|epoch|unix|ts|zeit)(?: .*)?|{_DAY_NAMES.pattern}")
"""Names of days, and of moments, as numbers of a file's own."""


def dates_as_numbers(name: str, values: np.ndarray) -> list[Finding]:
    """Numbers that read as dates: whole ones as YYYYMMDD, DDMMYYYY, MMDDYYYY; under the name of a day or a moment also
    days since 1900, as spreadsheets count, and seconds since 1970. `values`: the column's distinct numbers."""
    if len(values) < 3:
        return []
    first = f"{name!r} holds numbers such as {values[0]:.0f}, which read as"
    parts = values // 1_000_000, values // 10_000 % 100, values % 10_000
    orders = {
        "YYYYMMDD": (values // 10_000, values // 100 % 100, values % 100),
        "DDMMYYYY": (parts[2], parts[1], parts[0]),
        "MMDDYYYY": (parts[2], parts[0], parts[1]),
    }
    words, low, high = words_of(name), values.min(), values.max()
    whole = bool((values == np.round(values)).all())
    written = [k for k, order in orders.items() if whole and _are_days(*order)]
    add = "Write them as dates in the file, 2020-01-31."
    if written:
        what = f"dates ({' or '.join(written)})"
        if written[0] == "YYYYMMDD":
            add = setting(name, 'kind = "datetime", format = "%Y%m%d"').replace('", f', '"\nf')
    elif low >= 10_000 and high <= 80_000 and _DAY_NAMES.fullmatch(words):
        what = "dates as spreadsheets count them, in days since 1900"
    elif _TIME_NAMES.fullmatch(words) and any(low >= 3e8 * k and high <= 2.5e9 * k for k in (1, 1000)):
        what = f"moments in {'seconds' if high <= 2.5e9 else 'milliseconds'} since 1970"
    else:
        return []
    return [Finding("warning", name, "date_as_number", f"{first} {what}: not taken for such. If they are:", add)]


def _are_days(year: np.ndarray, month: np.ndarray, day: np.ndarray) -> bool:
    good = (year >= 1900) & (year <= 2100) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    return bool(good.all())


def _dependent(name: str) -> str:
    return (
        "The rows are taken for independent, which they are not: intervals come out too narrow, held-out figures too "
        "good, and rows of one individual can stand on both sides of a split. Name the column, "
        f"{option('cluster', name)}, for two-level multiple imputation and such a split; or fit one row per individual "
        "(the first visit, or visits side by side as columns)"
    )


def repeated_ids(name: str, distinct: int, rows: int) -> list[Finding]:
    """Several rows per patient."""
    if not distinct or distinct == rows or not repeats_individuals(name):
        return []
    text = f"{name!r} names {distinct} individuals in {rows} rows: several rows per individual. {_dependent(name)}"
    return [Finding("warning", name, "repeated_ids", text)]


def repeated_rows(
    columns: Sequence[Column], cells: Sequence[np.ndarray], numbers: Sequence[np.ndarray]
) -> list[Finding]:
    """The column of most values that tells individuals apart, whatever its name: most values stand in several rows, and
    within these other columns never change. In rows of any order these must be two that do not determine each other, as
    sex and year of birth: a code has a name and a chapter in all of its rows, too.

    A column that rises or falls with it (an age group of ages) says nothing.

    Args:
        numbers: of the columns' cells, as `numbered` gives them.
    """
    best: tuple[int, str, list[str]] | None = None
    for column, raw, x in zip(columns, cells, numbers, strict=True):
        count = np.bincount(x)
        distinct, rows = len(count), len(x)
        if column.kind == "datetime" or distinct < FEWEST_INDIVIDUALS or 2 * distinct > rows:
            continue
        if distinct <= (best or (0,))[0] or (count > 1).mean() <= 0.5:
            continue
        starts = np.unique(x, return_index=True)[1]
        within = [  # the last rows first: most columns change among them
            (other.name, y)
            for other, y in zip(columns, numbers, strict=True)
            if other is not column
            and (y[-SOME:] == y[starts[x[-SOME:]]]).all()
            and (y == y[starts[x]]).all()
            and (np.diff(y[np.argsort(x, kind="stable")]) != 0).sum() >= LEAST_CHANGES
        ]
        if not within:
            continue
        ranks = [natural(text_of(v)) for v in raw[starts]]
        in_order = starts[sorted(range(distinct), key=ranks.__getitem__)]
        same = [(name, y) for name, y in within if (np.diff(y[in_order]) != 0).sum() >= y.max() + 1]
        together = runs_of(x) <= 1.05 * distinct
        if same and (together or any(_undetermined(y, z) for _, y in same for _, z in same)):
            best = distinct, column.name, [name for name, _ in same]
    if best is None:
        return []
    distinct, name, same_in_all = best
    others = ", ".join(map(repr, same_in_all[:3])) + (f" and {n} more" if (n := len(same_in_all) - 3) > 0 else "")
    text = (
        f"{name!r} holds {distinct} values, most in several rows, within which {others} never "
        f"{'changes' if len(same_in_all) == 1 else 'change'}: individuals (or centres) with several rows each, by all "
        f"appearances. {_dependent(name)}, and declare the column an identifier:"
    )
    return [Finding("warning", name, "repeated_rows", text, setting(name, 'kind = "id"'))]


def numbered(cells: np.ndarray) -> np.ndarray:
    """Equal cells as equal numbers from 0. Of objects by their texts: a pd.NA or a list equals nothing."""
    if cells.dtype != object:
        return np.unique(cells, return_inverse=True)[1]
    texts = cells.tolist()
    if {*map(type, texts)} != {str}:
        texts = [v if isinstance(v, str) else repr(v) for v in texts]
    number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return np.fromiter(map(number.__getitem__, texts), np.int64, len(texts))


def _undetermined(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether neither of two numbered columns determines the other."""
    pairs = len(np.unique(x * (y.max() + 1) + y))
    return bool(pairs > x.max() + 1 and pairs > y.max() + 1)


def copied_rows(numbers: Sequence[np.ndarray], few: Literal["warning", "note"]) -> list[Finding]:
    """Rows that are copies of others: a few, or a file that stands there several times, most rows equally often.

    Rows of a few categories, which repeat of themselves, do so unequally often. `few`: severity of a few, which rounded
    values give by chance; a repeated file is a warning."""
    if len(numbers) < 2 or not len(numbers[0]):
        return []
    row = np.zeros(len(numbers[0]), np.int64)
    for x in numbers:
        row = np.unique(row * (x.max() + 1) + x, return_inverse=True)[1]
    count = np.bincount(row)
    copies, often = len(row) - len(count), np.bincount(count)
    whole = len(count) >= FEWEST_INDIVIDUALS and 2 * often[2:].max(initial=0) > len(count)
    if not copies or (2 * copies >= len(row) and not whole):
        return []
    text = f"{copies} {'row is a copy of another' if copies == 1 else 'rows are copies of others'}, in every column"
    if whole:
        text += f": most stand there {often.argmax()} times, as if a file was appended to itself"
    return [Finding("warning" if whole else few, None, "duplicate_rows", text)]


def summary_cell(c: RawColumn) -> None:
    """Find whether the last cell is the mean or the sum of the others, to its digits (`summary_row`)."""
    if c.empty[-1] or c.rows < 4 or len(c.values) < 3:
        return
    last = float(c.number[c.values == c.raw[-1]][0])
    others = float(c.number @ c.counts) - last
    digit = 10.0 ** -max(1, len(text_of(last).partition(".")[2]))  # a whole number may be one by chance
    for name, value in (("sum", others), ("mean", others / (c.rows - 1))):
        if abs(last - value) <= max(0.51 * digit, 1e-9 * abs(value)):
            c.note("summary_cell", name)
            return


def summary_row(columns: Sequence[Column], findings: Sequence[Finding], frame: Frame) -> list[Finding]:
    """A row of means or sums below the others: all its numbers are that, of three columns or more."""
    found = [f.text for f in findings if f.code == "summary_cell"]
    numbers = [c for c in columns if c.kind in ("numeric", "integer") and c.low != c.high]
    if len(found) < max(3, len(numbers)) or len({*found}) > 1:
        return []
    text = f"row {frame.row_name(len(frame) - 1)}, the last, holds the {found[0]} of the others in all {len(found)} "
    return [Finding("warning", None, "summary_row", f"{text}columns of numbers.", "If it is no patient, take it out.")]


TAIL = 8
"""Rows at a table's end among which notes and summaries are looked for."""
_NOTE = re.compile(r"[\s*†‡§=:%]")
_STATISTIC = re.compile(
    r"(?:mean|average|avg|mittel(?:wert)?|moyenne|media|m[eé]diane?|mediana|s\.?d\.?|std|min(?:imum)?|max(?:imum)?|n|count|"
    r"anzahl|total|sum(?:me)?|gesamt|missing|fehlend|iqr)[\s:.%()=\d]*",
    re.IGNORECASE,
)


def below_table(
    columns: Sequence[Column], cells: Sequence[np.ndarray], missing: Sequence[str], frame: Frame
) -> list[Finding]:
    """The last rows that hold one text alone, beside numbers at most, which is unlike the others of its column (a blank
    or sign that none has, no digit where all have one, or a statistic's name): footnotes, and statistics of the rows
    above."""
    filled = np.array([~is_missing(x[-TAIL:], (*missing, *c.missing)) for c, x in zip(columns, cells, strict=True)])
    quantity = np.array([c.is_quantity for c in columns])
    levels, rows = sum(c.kind in ("nominal", "ordinal") for c in columns), []
    for row in reversed(range(len(filled.T) * (len(frame) > 2 * TAIL))):
        (held,) = np.nonzero(filled[:, row] & ~quantity)
        if not filled[:, row].any():
            continue
        if len(held) != 1:
            break
        place, alone = held[0], filled[:, row].sum() == 1
        at = len(frame) - TAIL + row
        text = text_of(cells[place][at])
        sign, digits, statistic = {*_NOTE.findall(text)}, re.search(r"\d", text), _STATISTIC.fullmatch(text)
        if digits and not sign:  # as identifiers are: the cells above need no look
            break
        above = {text_of(v) for v in cells[place][:-TAIL] if not no_value(v)}
        note = sign - {s for v in above for s in _NOTE.findall(v)}
        named = statistic is not None and len(text) > 1 and text not in above  # N alone may be a no
        word = named or (not digits and all(re.search(r"\d", v) for v in above))
        several = levels - (columns[place].kind in ("nominal", "ordinal")) >= 2
        if not above or not (note or word) or not (alone or several or statistic):
            break
        rows.append(f"row {frame.row_name(at)} ({columns[place].name!r}: {text[:40]!r})")
    text = f"{', '.join(reversed(rows))}: the table's last, unlike the cells above; read as patients. If it is none:"
    return [Finding("warning", None, "below_table", text, "Take it out.")] if rows else []


SOME = 1000
"""Rows in which a column that changes shows it, mostly."""
LEAST_CHANGES = 10
"""Times that a column changes, always with another one, before that is no chance."""


def no_header(columns: Sequence[Column]) -> list[Finding]:
    """Names that are a row: each a number in the range of its column, or one of its categories; 0, 1, ... are names
    that tables have in memory."""

    def fits(c: Column) -> bool:
        if c.is_quantity and c.low is not None and c.high is not None:
            return bool(re.fullmatch(r"[+-]?\d+(\.\d+)?", c.name)) and c.low <= float(c.name) <= c.high
        return c.name in c.categories

    names = [c.name for c in columns if c.modelled]
    if len(names) < 2 or names == list(map(str, range(len(names)))) or not all(fits(c) for c in columns if c.modelled):
        return []
    text = f"the first line looks like a row, not like names of columns: {', '.join(map(repr, names[:5]))}"
    return [Finding("warning", None, "no_header", text, "Write names in a line of their own.")]


def same_names(columns: Sequence[Column]) -> list[Finding]:
    """Columns of one name, which nothing that is said by name can tell apart; those without a name that are left out
    aside."""
    places: dict[str, list[int]] = {}
    for i, c in enumerate(columns):
        places.setdefault(c.name, []).append(i)
    add = "Give every column a name of its own, or take out those that are not wanted."
    return [
        Finding("error", name, "duplicate_name", f"columns {listed} and {own[-1] + 1} are called {name!r}", add)
        for name, own in places.items()
        if len(own) > 1 and (name.strip() or any(columns[i].modelled for i in own))
        for listed in [", ".join(str(i + 1) for i in own[:-1])]
    ]


def spelt_missing(found: Mapping[str, Mapping[str, int]]) -> list[Finding]:
    """Which spellings were taken for missing (column -> spelling -> cells); empty cells need no word."""
    out = []
    for name, spelt in found.items():
        if listed := ", ".join(f"{t!r} ({n} cells)" for t, n in spelt.items() if t.strip()):
            out.append(Finding("note", name, "missing_spelling", f"{name!r}: taken for missing: {listed}"))
    return out
