"""Follow-up time and event, as clinics write them: which columns they are, what the event's levels mean, late entry."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from unmask.errors import UserError, first_of, option, suggest
from unmask.given import natural
from unmask.modalities.table.reading.decimal_marks import Marks
from unmask.modalities.table.reading.findings import Finding
from unmask.modalities.table.reading.parse import is_missing, measured, text_of
from unmask.modalities.table.schema.censored import ends_of
from unmask.modalities.table.schema.schema import Column, Schema

DURATIONS = ("time", "duration", "futime", "survival_time", "followup")
EVENTS = ("event", "status", "death", "died")
"""Names, in any case, by which columns with suitable values are taken as the pair where none is given."""
_LIKE_DURATION = re.compile(
    r"(.*[_\W])?(time|duration|futime|survival|follow[_\W]?up|t?stop|os|pfs|dfs|rfs)([_\W].*)?|"
    r"((surv|fu)[_\W]?)?(days|weeks|months|years)|surv"
)
_LIKE_EVENT = re.compile(
    r"(.*[_\W])?(event|status|death|died|dead|deceased|cens(or(ed|ing)?)?|vital|outcome)([_\W].*)?"
)
_OPPOSITE = re.compile(
    r"(.*[_\W])?(is[_\W]?)?(alive|living|survived|survivor|lebt|lebend|überlebt|vivante?|viv[oa]|cnsr|censor(ed|ing)?|"
    r"zensiert|censurée?|lost[_\W]?to[_\W]?f.*|(event|progression|relapse|recurrence|disease|failure)[_\W]?free)"
    r"([_\W](at|to|on|after|bei|am|nach|à|au)[_\W].*)?"
)
"""Names of columns whose 1, true or yes may well say that the event did not come."""
_LIKE_ENTRY = re.compile(r"(.*[_\W])?(t?start|entry|t0|left[_\W]?trunc(ation)?)([_\W]?(time|age|day|days))?")

YES_NO = (
    *(("0", "1"), ("false", "true"), ("no", "yes"), ("n", "y"), ("nein", "ja"), ("n", "j"), ("non", "oui"), ("f", "t")),
)
CODINGS = (
    *YES_NO,
    *(("alive", "dead"), ("alive", "deceased"), ("alive", "died"), ("living", "deceased"), ("living", "dead")),
    *(("censored", "event"), ("censored", "dead"), ("censored", "death"), ("censored", "died"), ("no event", "event")),
    ("1", "2"),
)
"""(censored, event happened) in lower case; 1 and 2 as in R's survival."""
UNCLEAR = {level for coding in (*YES_NO, ("1", "2")) for level in coding}
"""Levels whose meaning hangs on the name of the column."""
CENSORED = ("censored", "no event", "event-free", "event free")
"""Where one of these is a level, all others are causes of the event."""
MOST_CAUSES = 9
_NUMBERS, _BEFORE = (
    "Follow-up times are numbers, 0 or more, or intervals such as 2-4.",
    "Rows enter before their follow-up ends.",
)
SHOWN = 50
"""Bad rows named in one error."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SurvivalColumns:
    """The columns that a person named. `levels`: of the event column, those at which it happened: one, or one per
    cause; `entry`: column of the times from which rows are at risk."""

    duration: str | None = None
    event: str | None = None
    levels: tuple[str, ...] = ()
    entry: str | None = None

    @classmethod
    def given(
        cls,
        override: Mapping[str, Any],
        columns: Mapping[str, Mapping[str, Any]],
        *,
        duration: str | None = None,
        event: str | None = None,
        entry: str | None = None,
        event_level: str | Sequence[str] | None = None,
    ) -> SurvivalColumns:
        """What is given, and where that is None a schema's keys. `columns`: settings of each column, of which the
        event's may hold `event = LEVEL`."""
        named = (("duration", duration), ("event", event), ("entry", entry))
        duration, event, entry = (override.get(key) if name is None else name for key, name in named)
        levels: Any = event_level or override.get("event_level")
        marked = [name for name, settings in columns.items() if settings.get("event")]
        if len(marked) > 1:
            raise UserError(f"schema: event levels in columns {', '.join(marked)}", hint="One column holds the event.")
        if marked:
            event, levels = event or marked[0], levels or columns[marked[0]]["event"]
        if (duration is None) != (event is None):
            raise UserError(f"duration={duration}, event={event}", hint="A survival pair needs both columns.")
        if duration is None and (entry is not None or levels):
            raise UserError(
                f"entry={entry}, event_level={levels} without a survival pair", hint="Give duration and event too."
            )
        found = tuple(text_of(v) for v in (levels if isinstance(levels, list | tuple) else [levels] if levels else []))
        return cls(duration=duration, event=event, levels=found, entry=entry)


def with_survival_pair(
    schema: Schema,
    columns: Sequence[np.ndarray],
    named: SurvivalColumns,
    *,
    marks: Sequence[Marks],
    source: str,
    row_name: Callable[[int], Any],
) -> tuple[Schema, list[Finding]]:
    """The schema with its survival pair, `named` or found by usual names, and findings about it.

    The levels of the event are in this order, whatever the data's: censored, then the event, or its causes. The number
    of the category is therefore the indicator, and values are written in the file's own spelling. `marks`: how each
    column writes its numbers."""
    table = RawTable(schema, columns, marks, source, row_name)
    findings: list[Finding] = []
    by_name = named.duration is None
    if named.duration is None or named.event is None:
        found, why = _by_name(table)
        if found is None:
            return schema, [_finding("warning", why)] if why else []
        named = found
        findings.append(_finding("note", why))
    assert named.duration is not None
    assert named.event is not None
    d, e = schema.number(named.duration, where="duration: "), schema.number(named.event, where="event: ")
    if d == e:
        raise UserError(f"duration and event are both {named.duration!r}", hint="They are two columns.")
    time = table.times(named.duration, d)
    rows = {text_of(columns[e][i]): row_name(int(i)) for i in np.flatnonzero(~table.empty(e))[::-1]}
    seen = sorted(rows, key=natural)
    if not seen:
        raise UserError(
            f"{source}, column {named.event!r}: no value at all", hint="Name the columns of follow-up time and event."
        )
    where = f"{source}, column {named.event!r}"
    levels, notes = event_levels(seen, named.levels, name=named.event, rows=rows, where=where)
    happened = np.array([text_of(v) in levels[1:] for v in columns[e]], bool)
    censored = ~table.empty(e) & ~happened
    for rows_, what in ((censored, "is censored"), (happened, "has the event")):
        if rows_.any() and np.isnan(time[rows_]).all():
            why = f"{named.duration!r} is empty in every row that {what}: how long these were followed is not known"
            if by_name:
                return schema, [_finding("warning", f"NO survival pair is taken of it and {named.event!r}: {why}")]
            raise UserError(f"{source}: {why}", hint="Give the time to the event or to the last contact, of all rows.")
    changed = list(schema.columns)
    changed[d] = _quantity(changed[d], time)
    changed[e] = Column(
        name=named.event,
        kind="binary" if len(levels) == 2 else "nominal",
        categories=levels,
        event=levels[1:],
        missing=changed[e].missing,
    )
    findings += [_finding("note", f"event: {named.event!r} {notes}")] if notes else []
    if named.entry is not None:
        n = schema.number(named.entry, where="entry: ")
        if n in (d, e):
            raise UserError(f"entry={named.entry!r} is the column of the pair", hint="Give a column of its own.")
        changed[n] = _quantity(changed[n], table.entries(named.entry, n, time))
    elif late := _entry_note(table):
        findings.append(_finding("warning", late))
    schema = dataclasses.replace(
        schema, columns=tuple(changed), duration=named.duration, event=named.event, entry=named.entry
    )
    return schema, findings


def _entry_note(table: RawTable) -> str:
    """A note on a column whose name is that of late entry; "" where there is none."""
    numbers = (c.name for c in table.schema.columns if c.kind in ("numeric", "integer"))
    name = next((n for n in numbers if _LIKE_ENTRY.fullmatch(n.strip().lower())), None)
    return f"{name!r} may be the time from which a row is at risk: {option('entry', name)} if so" if name else ""


def _finding(severity: Literal["warning", "note"], text: str) -> Finding:
    return Finding(severity, None, "survival_pair", text)


def event_levels(
    seen: Sequence[str],
    declared: Sequence[str] = (),
    *,
    name: str = "",
    rows: Mapping[str, int] | None = None,
    where: str = "event",
) -> tuple[tuple[str, ...], str]:
    """The levels of an event, censored first, and a note on how they were understood ("" where it is plain).

    >>> event_levels(["Yes", "No"])
    (('No', 'Yes'), "is censored where it is 'No'; the event is 'Yes'")
    >>> event_levels(["0", "1", "2"])[0]
    ('0', '1', '2')

    Args:
        seen: the levels in the data.
        declared: those at which the event happened, in their order as causes.
        name: of the column, which may turn numbers and yes or no round; `CNSR` of CDISC's ADaM is 0 at the event.
        rows: the first row of each level, for errors.
    """
    hint = (
        f"Say at which level the event happened: {option('event_level', 'LEVEL')}, or event = 'LEVEL' under the "
        "column in the schema."
    )
    shown = ", ".join(f"{v!r} (row {rows[v]})" if rows else repr(v) for v in seen[:12])
    shown += ", ..." if len(seen) > 12 else ""
    lower = {v.lower(): v for v in seen}
    if len(lower) < len(seen):
        raise UserError(f"{where}: {shown}: one level spelled in several ways", hint="Spell each level in one way.")
    if len(seen) > MOST_CAUSES + 1:
        raise UserError(
            f"{where}: {len(seen)} levels ({shown}) in an event column", hint="Expected 0 (censored) or 1 (happened)."
        )
    name, unclear = name.strip().lower(), all(v in UNCLEAR or v.isdigit() for v in lower)
    if not declared and unclear and name == "cnsr" and "0" in seen:
        declared = ("0",)
    if declared:
        return _declared(seen, declared, where)
    if unclear and _OPPOSITE.fullmatch(name):
        raise UserError(
            f"{where} holds {first_of(map(repr, seen), 4)}: which of them is the event?",
            hint=f"By its name the last may say that it did not come. Say at which level it happened: "
            f"{option('event_level', seen[0])} or {option('event_level', seen[-1])}.",
        )
    for censored, happened in CODINGS:
        if lower.keys() <= {censored, happened} and list(lower) != ["2"]:
            example = seen[0]
            levels = tuple(lower.get(v, spelled(v, example)) for v in (censored, happened))
            plain = (censored, happened) in (("0", "1"), ("false", "true")) and name != "cens"
            r = ", as in R's survival" if (censored, happened) == ("1", "2") else ""
            return levels, "" if plain else _coding_note(levels) + r
    first = next((lower[v] for v in ("0", *CENSORED) if v in lower), None)
    others = [v for v in seen if v != first]
    if first == "0" and not all(re.fullmatch(r"[1-9]\d*", v) for v in others):
        first = None
    if first is None or not others:
        raise UserError(f"{where}: {shown}: which of them is the event?", hint=hint)
    levels = (first, *others)
    return levels, _coding_note(levels)


def _declared(seen: Sequence[str], declared: Sequence[str], where: str) -> tuple[tuple[str, ...], str]:
    if unknown := [v for v in declared if v not in seen]:
        raise UserError(f"{where}: no level {unknown[0]!r}", hint=suggest(unknown[0], seen))
    rest = [v for v in seen if v not in declared]
    if len(rest) > 1:
        raise UserError(
            f"{where}: {', '.join(map(repr, rest))} would all be censored",
            hint="Give every cause as a level of the event, and write censored rows in one way.",
        )
    known = {happened: censored for censored, happened in reversed(CODINGS)}
    censored = rest[0] if rest else spelled(known.get(declared[0].lower(), "censored"), declared[0])
    levels = (censored, *declared)
    return levels, "" if levels in (("0", "1"), ("False", "True")) else _coding_note(levels)


def _coding_note(levels: Sequence[str]) -> str:
    happened = ", ".join(repr(v) for v in levels[1:])
    return f"is censored where it is {levels[0]!r}; {'the event is' if len(levels) == 2 else 'causes are'} {happened}"


def spelled(word: str, example: str) -> str:
    """A word in capitals as an example has them."""
    if example.isupper():
        return word.upper()
    return word.capitalize() if example[:1].isupper() else word


def _quantity(column: Column, values: np.ndarray) -> Column:
    if column.kind in ("numeric", "integer"):
        return column
    known = values[~np.isnan(values)]
    kind: Literal["integer", "numeric"] = "integer" if np.array_equal(known, np.round(known)) else "numeric"
    return dataclasses.replace(
        column,
        kind=kind,
        categories=(),
        low=float(known.min()),
        high=float(known.max()),
        decimals=0 if kind == "integer" else None,
    )


@dataclasses.dataclass(frozen=True)
class RawTable:
    """Raw columns, how they write their numbers, and how errors name their rows."""

    schema: Schema
    columns: Sequence[np.ndarray]
    marks: Sequence[Marks]
    source: str
    row_name: Callable[[int], Any]

    def empty(self, number: int) -> np.ndarray:
        """Which cells of a column hold no value."""
        return is_missing(self.columns[number], (*self.schema.missing, *self.schema.columns[number].missing))

    def numbers(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """A column's values as numbers, NaN where missing, and which are none. A cell that is only bounded ("2-4") has
        its upper end."""
        raw, missing, column = self.columns[number], self.empty(number), self.schema.columns[number]
        out, bad = np.full(len(raw), np.nan), np.zeros(len(raw), bool)
        suffixes = (*column.suffixes, *([column.unit] if column.unit else []))
        out[~missing], bad[~missing] = measured(raw[~missing], self.marks[number], column.limits, suffixes)
        low, high = ends_of(raw, out, bad, self.marks[number], suffixes)
        inside = low <= high
        out[inside] = np.where(np.isfinite(high), high, low)[inside]
        return out, bad & ~inside

    def levels(self, number: int) -> list[str]:
        return sorted({text_of(v) for v in self.columns[number][~self.empty(number)]}, key=natural)

    def times(self, name: str, number: int) -> np.ndarray:
        """A column of times as numbers, NaN where missing."""
        raw = self.columns[number]
        missing = self.empty(number)
        if missing.all():
            raise UserError(
                f"{self.source}, column {name!r}: no value at all", hint="Name the columns of follow-up time and event."
            )
        time, bad = self.numbers(number)
        hint = _NUMBERS
        if self.schema.columns[number].kind == "datetime":
            hint = "These are dates: write the days from the start to the end of follow-up into a column of numbers."
        with np.errstate(invalid="ignore"):
            self._refuse(bad | (time < 0), name, lambda i: f"{np.asarray(raw[i]).item()!r} as a duration", hint)
        return time

    def entries(self, name: str, number: int, time: np.ndarray) -> np.ndarray:
        """A column of entries as numbers."""
        raw = self.columns[number]
        entry = self.times(name, number)
        empty = np.isnan(entry) & ~np.isnan(time)
        self._refuse(empty, name, lambda i: "no entry", "Fill in 0 where rows enter at once.")
        with np.errstate(invalid="ignore"):
            late = entry >= time
        self._refuse(late, name, lambda i: f"entry {raw[i]} at follow-up time {time[i]:g}", _BEFORE)
        return entry

    def _refuse(self, bad: np.ndarray, name: str, what: Callable[[int], str], hint: str) -> None:
        if sentence := _bad_rows(bad, name, what, self.row_name):
            raise UserError(f"{self.source}, {sentence}", hint=hint)


def _bad_rows(bad: np.ndarray, name: str, what: Callable[[int], str], row_name: Callable[[int], Any]) -> str:
    """A column's bad rows and what each holds; "" where there is none."""
    rows = np.flatnonzero(bad)
    named = first_of((f"row {row_name(int(i))}: {what(int(i))}" for i in rows), SHOWN, between="; ")
    return f"column {name!r}, {named}" if named else ""


def refuse_impossible(
    schema: Schema, columns: Sequence[np.ndarray], *, source: str, row_name: Callable[[int], Any]
) -> None:
    """Refuse follow-up that cannot be, in a table read under a schema that has a survival pair. `columns`: the modelled
    ones, coded, NaN where missing: an unknown time or entry is not refused."""
    if schema.duration is None:
        return
    time = columns[schema.place(schema.duration)]
    problems: dict[str, str] = {}

    def check(bad: np.ndarray, name: str, what: Callable[[int], str], hint: str) -> None:
        if sentence := _bad_rows(bad, name, what, row_name):
            problems[sentence] = hint

    def check_time(name: str) -> None:
        x = columns[schema.place(name)]
        check(x < 0, name, lambda i: f"{x[i]:g} as a duration", _NUMBERS)

    with np.errstate(invalid="ignore"):
        check_time(schema.duration)
        if schema.entry is not None:
            check_time(schema.entry)
            entry = columns[schema.place(schema.entry)]
            late = (entry >= time) & (time >= 0)
            check(late, schema.entry, lambda i: f"entry {entry[i]:g} at follow-up time {time[i]:g}", _BEFORE)
    if problems:
        raise UserError(f"{source}, {'; '.join(problems)}", hint=" ".join(dict.fromkeys(problems.values())))


def _by_name(table: RawTable) -> tuple[SurvivalColumns | None, str]:
    """The pair by its usual names, where the values leave no doubt; else why there is none though names suggest one."""
    schema = table.schema
    exact = [next((n for n in schema.names if n.lower() in known), None) for known in (DURATIONS, EVENTS)]
    like = [
        name or next((n for n in schema.names if pattern.fullmatch(n.strip().lower())), None)
        for name, pattern in zip(exact, (_LIKE_DURATION, _LIKE_EVENT), strict=True)
    ]
    duration, event = like
    if duration is None or event is None or duration == event:
        return None, ""
    d, levels = schema.number(duration), table.levels(schema.number(event))
    if len(levels) > MOST_CAUSES + 1:
        return None, ""  # a quantity, or anything but an event
    time, why = schema.columns[d], ""
    if time.kind == "datetime":
        why = f"{duration!r} holds dates, not times"
    elif time.kind not in ("numeric", "integer") or not time.modelled:
        why = f"{duration!r} is {time.kind}"
    elif time.low is not None and time.low < 0:
        why = f"{int((table.numbers(d)[0] < 0).sum())} follow-up times in {duration!r} are negative"
    elif not (levels and (set(levels) <= {"0", "1"} or set(levels) <= {"False", "True"})):
        why = f"{event!r} is coded {', '.join(map(repr, levels)) or 'nothing'}, not 0 and 1"
    elif None in exact:
        why = "the names are not certain"
    if not why:
        found = SurvivalColumns(duration=duration, event=event)
        return found, f"{duration!r} and {event!r} are taken for follow-up time and event"
    late = _entry_note(table)
    return None, (
        f"{duration!r} and {event!r} look like follow-up time and event, but NO survival pair is taken: {why}. If "
        f"they are one, say {option('duration', duration)} {option('event', event)} (and "
        f"{option('event_level', 'LEVEL')}, when it happened, where coding or name are not plain){late and f'; {late}'}"
    )
