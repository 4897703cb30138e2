"""What the checks of `audit` give and count with, a block of whole subjects at a time: memory does not grow with the
number of events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from unmask.errors import either
from unmask.evaluation.charts import number
from unmask.modalities.events.records.meds import HOUR, STATIC, Events
from unmask.progress import counted

LATEST = np.iinfo(np.int64).max
DAY = 24 * HOUR
MIDNIGHT = 0.5
"""Share of events (of a code) at 00:00:00 from which on they are dates, not times."""
SHOWN = 20
"""Codes listed with a finding."""


@dataclass(frozen=True, kw_only=True)
class AuditFinding:
    """What one check saw: a sentence with figures, what to do about it, and under `columns` and `rows` the codes (or
    patients) concerned, those most so first, `SHOWN` at most. The level is "warning" or "note"."""

    check: str
    level: str
    sentence: str
    todo: str
    columns: tuple[str, ...] = ()
    rows: list[tuple[Any, ...]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json: the rows by the names of their columns."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"check": self.check, "level": self.level, "sentence": self.sentence, "todo": self.todo, "rows": rows}


warning, remark = partial(AuditFinding, level="warning"), partial(AuditFinding, level="note")


class EventBlock(NamedTuple):
    """Some whole subjects' events: number of each one's subject, time, code and value."""

    subject: np.ndarray
    time: np.ndarray
    code: np.ndarray
    value: np.ndarray


def block_of(events: Events, owners: slice, here: slice) -> EventBlock:
    """The events `here` of the subjects `owners`, as `Events.blocks` gives both."""
    return EventBlock(events.owner(owners), events.time[here], events.code[here], events.value[here])


def blocks(events: Events) -> Iterator[EventBlock]:
    """All events, about a million at a time, so that memory does not grow with their number."""
    parts = counted(events.blocks(), len(events), lambda both: both[0].stop - both[0].start)
    return (block_of(events, *both) for both in parts)


def matching(events: Events, pattern: re.Pattern[str]) -> np.ndarray:
    """(codes,) whether a code matches."""
    return np.array([bool(pattern.search(c)) for c in events.codes], bool)


@dataclass
class Tally:
    """Events that a check hits: how many, of which codes, of how many subjects. Blocks hold whole subjects."""

    codes: int
    events: int = 0
    subjects: int = 0

    def __post_init__(self) -> None:
        self.count = np.zeros(self.codes, np.int64)

    def add(self, block: EventBlock, hit: np.ndarray) -> None:
        """The events of a block that are hit: booleans, or numbers within it."""
        code = block.code[hit]
        self.events += len(code)
        self.subjects += len(np.unique(block.subject[hit]))
        self.count += np.bincount(code, minlength=self.codes)


@dataclass
class DatedTally(Tally):
    """A tally that knows the first and the last date of each code."""

    COLUMNS = ("code", "events", "from", "to")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.low, self.high = np.full(self.codes, LATEST), np.full(self.codes, STATIC)

    def add(self, block: EventBlock, hit: np.ndarray) -> None:
        super().add(block, hit)
        np.minimum.at(self.low, block.code[hit], block.time[hit])
        np.maximum.at(self.high, block.code[hit], block.time[hit])

    def rows(self, events: Events) -> list[tuple[Any, ...]]:
        """Code, events, first and last date of the most frequent codes."""
        rows = ranked(events, self.count, self.low, self.high)
        return [(*row, day_of(low), day_of(high)) for *row, low, high in rows]


def ranked(events: Events, count: np.ndarray, *columns: np.ndarray) -> list[tuple[Any, ...]]:
    """Code, count and further numbers of the `SHOWN` codes with the highest counts; none of a code with 0."""
    order = [i for i in np.argsort(-count, kind="stable")[:SHOWN].tolist() if count[i]]
    return [(events.codes[i], *(column[i].item() for column in (count, *columns))) for i in order]


def most_frequent(events: Events, count: np.ndarray, what: str = "events") -> dict[str, Any]:
    """`columns` and `rows` of a finding: the codes with the highest counts of something."""
    return {"columns": ("code", what), "rows": ranked(events, count)}


def day_of(time: int) -> str:
    """A time in microseconds as YYYY-MM-DD."""
    return str(np.datetime64(int(time), "us").astype("datetime64[D]"))


ON_SCREEN = 5
"""Codes listed with a finding on the screen."""


def lines_of(found: Sequence[AuditFinding]) -> list[str]:
    """Of each finding its sentence, what to do, and the first codes."""
    out = list[str]()
    for f in found:
        out += [f"{f.level.upper()} {f.check}: {f.sentence}", f"    {f.todo}"]
        for row in f.rows[:ON_SCREEN]:
            out.append("    " + "  ".join(f"{n}: {shown_cell(v)}" for n, v in zip(f.columns, row, strict=True)))
        if len(f.rows) > ON_SCREEN:
            out.append(
                f"    and {len(f.rows) - ON_SCREEN} more in {either('--json and --out', 'the rows of the finding')}"
            )
    return out


def shown_cell(value: Any) -> str:
    """A cell of a finding; a value, which is kept in single precision, in four digits."""
    return number(value) if isinstance(value, float) else str(value)
