"""When each event was known, by source and table: one table, made of the declarations that the conversion itself reads.

docs/reference/when-a-fact-was-known.md prints `markdown()`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from unmask.modalities.events.sources.fhir_kinds import KINDS
from unmask.modalities.events.sources.folders import FOLDERS
from unmask.modalities.events.sources.tables import Event, Table


def rows() -> Iterator[tuple[str, str, str, str]]:
    """(source, table, event, columns that say when it was known: the first that is given)."""
    for name, kind in KINDS.items():
        behind = f"; with --onset {', '.join(kind.onset)}" if kind.onset else ""
        taken = f"; not before {', '.join(kind.taken)}" if kind.taken else ""
        ended = ", the end of its encounter" if kind.encounter else ""
        yield "FHIR", name, kind.prefix, ", ".join(kind.times) + ended + taken + behind
    yield "FHIR", "Encounter", "ENCOUNTER_END", "period.end, actualPeriod.end"
    yield "FHIR", "Patient", "MEDS_BIRTH", "birthDate (start of its day)"
    yield "FHIR", "Patient", "MEDS_DEATH", "deceasedDateTime"
    for folder in FOLDERS:
        for table in folder.tables:
            for event in table.events:
                yield folder.name, table.name, event.codes[0].split("//")[0], _when(event, table)


def _when(event: Event, table: Table) -> str:
    if not event.times:
        return "no time: a static fact"
    columns = ", ".join(f"{name} (a date)" if name in table.dates else name for name in event.times)
    if event.latest:
        return f"the latest of {columns}"
    if event.taken is not None:
        return f"{columns}; not before {event.taken}"
    return f"{columns} (start of its day)" if event.start else columns


def markdown() -> str:
    """The table as docs/reference/when-a-fact-was-known.md has it."""
    lines = ["| source | table | event | known at: the first of these that is given |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows()]
    return "\n".join(lines)
