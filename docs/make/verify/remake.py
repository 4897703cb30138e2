"""Remaking results and comparing them with those that are recorded."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import UserError, suggest
from unmask.plugins import resolve
from verify import declared, provenance
from verify import sheet as sheet_
from verify.draw import HERE, draw, table, told
from verify.result import Record, Result, read, recorded


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A figure then and now.

    Attributes:
        old: None where it was not recorded.
        within: whether the new value lies in the old interval; None without one.
    """

    result: str
    model: str
    figure: str
    old: float | None
    low: float | None
    high: float | None
    new: float
    within: bool | None

    @property
    def by(self) -> float | None:
        """How far it moved."""
        return None if self.old is None else self.new - self.old


def chosen(names: Sequence[str], *, quick: bool, known: Sequence[Result] | None = None) -> list[Result]:
    """The declared results of these names, or all, or all quick ones."""
    known = declared.RESULTS if known is None else known
    by_name = {r.name: r for r in known}
    for name in names:
        if name not in by_name:
            raise UserError(f"no result {name!r}", hint=suggest(name, by_name))
    found = [by_name[name] for name in names] or list(known)
    return [r for r in found if r.quick or not quick]


def remade(result: Result, root: Path, say: Callable[[str], None] = lambda line: None) -> Record:
    """Measure a result with each of its seeds."""
    measure = resolve(result.measure)
    wall, cpu = time.perf_counter(), time.process_time()
    by_seed = []
    for number, seed in enumerate(result.seeds, 1):
        by_seed.append(measure(seed=seed, **result.given))
        say(f"{result.name}: seed {seed} ({number} of {len(result.seeds)}), {time.perf_counter() - wall:.0f} s")
    spent = {"seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - cpu}
    return recorded(result, by_seed, provenance.about(root, result.sources, **spent))


def moved(old: Record | None, new: Record) -> list[Moved]:
    """Every figure of the new record beside the old one."""
    out = []
    for row in new.rows:
        was = None if old is None else old.row(row.model, row.figure)
        ends = (None, None) if was is None else (was.low, was.high)
        within = None
        if was is not None and was.low is not None and was.high is not None:
            # The same number is within, also where all seeds agreed and the interval is a point.
            within = was.low <= row.value <= was.high or math.isclose(row.value, was.value, rel_tol=1e-9)
        out.append(
            Moved(
                result=new.name,
                model=row.model,
                figure=row.figure,
                old=None if was is None else was.value,
                low=ends[0],
                high=ends[1],
                new=row.value,
                within=within,
            )
        )
    return out


def moved_lines(found: Iterable[Moved]) -> list[str]:
    """For a terminal: old, new, by how much, and whether within the interval."""
    rows = [("result", "of", "figure", "old", "new", "moved", "")]
    for m in found:
        ends = "" if m.low is None or m.high is None else f" [{m.low:.4f}, {m.high:.4f}]"
        said = {None: "not recorded" if m.old is None else "no interval", True: "within", False: "OUTSIDE"}[m.within]
        old, by = ("-", "-") if m.old is None or m.by is None else (f"{m.old:.4f}{ends}", f"{m.by:+.4f}")
        rows.append((m.result, m.model, m.figure, old, f"{m.new:.4f}", by, said))
    widths = [max(len(row[i]) for row in rows) for i in range(7)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def listed(root: Path, known: Sequence[Result] | None = None) -> list[dict[str, object]]:
    """What is declared, then the sheets, and how each record stands: name, quick, remade (whether it is declared),
    command, date, commit, seconds, older."""
    out: list[dict[str, object]] = []
    for result in declared.RESULTS if known is None else known:
        record = read(root, result.name)
        state: dict[str, object] = {"name": result.name, "quick": result.quick, "remade": True}
        state["command"] = result.command
        if record is None:
            state |= {"recorded": False, "older": "never measured"}
        else:
            about = dict(record.about)
            state |= {"recorded": True, **{k: about.get(k) for k in ("date", "commit", "seconds")}}
            state["older"] = provenance.older(root, about, result.sources)
        out.append(state)
    for one in sheet_.sheets(root).values():
        state = {"name": one.name, "quick": False, "remade": False, "command": one.command, "recorded": True}
        state |= {"date": one.date, "commit": one.commit or one.since, "seconds": None, "older": age(root, one)}
        out.append(state)
    return out


def age(root: Path, one: sheet_.Sheet) -> str:
    """What has changed in the code that a sheet measured, in words; "" where nothing has."""
    return provenance.changed_since(root, one.commit or one.since, one.sources)


def list_lines(found: Sequence[dict[str, object]]) -> list[str]:
    """The list for a terminal."""
    lines = []
    for one in found:
        size = ("quick" if one["quick"] else "full") if one["remade"] else "sheet"
        when = "-" if not one["recorded"] else str(one["date"] or sheet_.UNKNOWN)
        when += "" if one.get("seconds") is None else f", {one['seconds']:.0f} s"
        state = f"older than the code: {one['older']}" if one["recorded"] and one["older"] else one["older"]
        lines.append(f"{one['name']:24} {size:6} {when:22} {state or 'of this code'}")
    return lines


def table_of(root: Path, known: Sequence[Result] | None = None) -> Callable[[str], str]:
    """A function from a name to its table as Markdown, marked where it is older than its code; where it was not
    measured yet a line that says so. The name `not-remade` is that of the list of sheets, and
    `figures-of-this-page:A,B` of where the figures of these sheets come from.
    """
    by_name = {r.name: r for r in (declared.RESULTS if known is None else known)}
    copied = sheet_.sheets(root)

    def find(name: str) -> str:
        if name == "not-remade":
            return not_remade(root, copied)
        if name.startswith(HERE):
            named = [one for one in name.removeprefix(HERE).split(",") if one in copied]
            return "\n".join(sheet_.origin(copied[one], older=_in_pages(age(root, copied[one]))) for one in named)
        if name in copied:
            return sheet_.table(copied[name], older=_in_pages(age(root, copied[name])))
        if name not in by_name:
            raise UserError(f"no result {name!r}", hint=suggest(name, [*by_name, *copied]))
        record = read(root, name)
        if record is None:
            return f"*Not measured yet: `{by_name[name].command} --write`.*\n"
        return table(record, older=_in_pages(provenance.older(root, dict(record.about), by_name[name].sources)))

    return find


def _in_pages(older: str) -> str:
    """An age as the pages have it: without the number of commits, which is another after each (`--list` has it)."""
    return re.sub(r"^\d+ commits? to the code it measured since", "the code it measured has changed since", older)


def figure_of(root: Path) -> Callable[[str, str, str], str]:
    """A function from a result's name, a row and a column to the figure there."""
    copied = sheet_.sheets(root)

    def figure(name: str, row: str, column: str) -> str:
        if name in copied:
            return copied[name].cell(row, column)
        record = read(root, name)
        if record is None or record.row(row, column) is None:
            raise UserError(f"no figure {name} | {row} | {column}", hint="Name the file, the row and the column.")
        return told(record.row(row, column))

    return figure


def not_remade(root: Path, copied: Mapping[str, sheet_.Sheet]) -> str:
    """The sheets by the command that measures them, and the scripts of benchmarks/ that none of them names."""
    by_command: dict[str, list[str]] = {}
    for one in sorted(copied.values(), key=lambda one: (one.command is None, one.name)):
        by_command.setdefault(one.command or "", []).append(one.title)
    lines = ["| command | tables and figures |", "|---|---|"]
    for command, titles in by_command.items():
        lines.append(f"| {f'`{command}`' if command else sheet_.UNKNOWN} | {'; '.join(titles)} |")
    scripts = [path for path in sorted((root / "benchmarks").glob("*.py")) if "__main__" in path.read_text("utf-8")]
    bare = [f"`benchmarks/{path.name}`" for path in scripts if path.name not in " ".join(by_command)]
    lines += ["", f"Benchmarks without a table in the pages: {', '.join(bare)}."] if bare else []
    return "\n".join(lines) + "\n"


def draw_pages(root: Path, known: Sequence[Result] | None = None) -> list[Path]:
    """Draw the tables and figures of all pages from the files."""
    return draw(root, table_of(root, known), figure_of(root))


__all__ = [
    "Moved",
    "chosen",
    "draw_pages",
    "figure_of",
    "list_lines",
    "listed",
    "moved",
    "moved_lines",
    "not_remade",
    "remade",
    "table_of",
]
