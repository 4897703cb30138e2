"""Remaking results and comparing them with those that are recorded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unmask.errors import UserError, suggest
from unmask.plugins import resolve
from unmask.verify import declared, provenance
from unmask.verify.draw import draw, table
from unmask.verify.result import Record, Result, read, recorded


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
    """The declared results of these names, or all, or all quick ones.

    Raises:
        UserError: an unknown name.
    """
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
    """What is declared, and how its record stands: name, quick, command, date, commit, seconds, older."""
    out: list[dict[str, object]] = []
    for result in declared.RESULTS if known is None else known:
        record = read(root, result.name)
        state: dict[str, object] = {"name": result.name, "quick": result.quick, "command": result.command}
        if record is None:
            state |= {"recorded": False, "older": "never measured"}
        else:
            about = dict(record.about)
            state |= {"recorded": True, **{k: about.get(k) for k in ("date", "commit", "seconds")}}
            state["older"] = provenance.older(root, about, result.sources)
        out.append(state)
    return out


def list_lines(found: Sequence[dict[str, object]]) -> list[str]:
    """The list for a terminal."""
    lines = []
    for one in found:
        size = "quick" if one["quick"] else "full"
        when = f"{one['date']}, {one['seconds']:.0f} s" if one["recorded"] else "-"
        state = f"older than the code: {one['older']}" if one["recorded"] and one["older"] else one["older"]
        lines.append(f"{one['name']:24} {size:6} {when:22} {state or 'of this code'}")
    return lines


def table_of(root: Path, known: Sequence[Result] | None = None) -> Callable[[str], str]:
    """A function from a name to its table as Markdown, marked where it is older than its code; where it was not
    measured yet a line that says so.

    Raises:
        UserError: (the function) no such result.
    """
    by_name = {r.name: r for r in (declared.RESULTS if known is None else known)}

    def find(name: str) -> str:
        if name not in by_name:
            raise UserError(f"no result {name!r}", hint=suggest(name, by_name))
        record = read(root, name)
        if record is None:
            return f"*Not measured yet: `{by_name[name].command} --write`.*\n"
        return table(record, older=provenance.older(root, dict(record.about), by_name[name].sources))

    return find


def draw_pages(root: Path, known: Sequence[Result] | None = None) -> list[Path]:
    """Draw the tables of all pages from the files."""
    return draw(root, table_of(root, known))


__all__ = ["Moved", "chosen", "draw_pages", "list_lines", "listed", "moved", "moved_lines", "remade", "table_of"]
