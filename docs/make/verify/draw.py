"""Tables and figures of the pages, drawn from the files of results between two marks:

<!-- results: NAME -->
(what stands here is drawn: `python docs/make/doc_verify.py --draw`)
<!-- end -->

and within a sentence <!-- figure: NAME | ROW | COLUMN -->(drawn)<!-- end -->.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from unmask.errors import UserError
from unmask.evaluation.meanings import legend, meaning
from unmask.writing import written
from verify.result import Record, Row

MARKED = re.compile(r"(<!-- results: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
INLINE = re.compile(r"(<!-- figure: ([^|]+?) \| ([^|]+?) \| ([^|]+?) -->)(.*?)(<!-- end -->)", re.DOTALL)
HERE = "figures-of-this-page:"
"""What a page has for a name where it wants to be told where the figures of its sentences come from."""
OLDER = "**Older than the code.**"
"""How the line begins that says so: a page may have it or not, whatever its table says."""


def table(record: Record, *, older: str = "") -> str:
    """A record as Markdown: a row per model or rule, a column per figure, and a line on where it comes from.

    Args:
        older: what has changed in the code it measured (`provenance.older`).
    """
    figures = record.figures
    labels = [known.label if (known := meaning(name)) else name.replace("_", " ") for name in figures]
    lines = [f"| {record.title} | {' | '.join(labels)} |", "|---" * (len(figures) + 1) + "|"]
    for model in record.models:
        cells = [told(record.row(model, name)) for name in figures]
        name = f"**{model}**" if model == record.models[0] else model
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if record.gains:
        at = {row.figure: row for row in record.gains}
        cells = [told(at[name], signed=True) if name in at else "" for name in figures]
        lines.append(f"| *{record.models[0]} less {record.rule}, by seed* | {' | '.join(cells)} |")
    told_of = record.about
    cpu = told_of.get("processor", {})
    features = "+".join(cpu.get("features") or ()) or "plain"
    spread = f"mean of {len(record.seeds)} seeds, in brackets its 95 % interval over seeds"
    note = f"{record.says} {_upper(spread if len(record.seeds) > 1 else 'one seed')}. {_upper(legend(figures))}."
    where = f"{cpu.get('cores')} cores ({cpu.get('model') or 'unknown'}, {features})"
    commit = str(told_of.get("commit") or "unknown")[:9]
    by = f"`{record.command}`: {told_of.get('processor_seconds', 0):,.0f} s of processor time on {where}, "
    by += f"{told_of.get('date')}, commit {commit}" + (" and changes" * bool(told_of.get("changed_since_commit"))) + "."
    lines += ["", note, "", by]
    if older:
        lines += ["", f"{OLDER} {_upper(older)}."]
    return "\n".join(lines) + "\n"


def told(row: Row | None, *, signed: bool = False) -> str:
    """A figure and its interval.

    >>> told(Row(model="a", figure="rmse", value=0.5, low=0.4, high=0.6, values=(0.5,)))
    '0.500 (0.400 to 0.600)'
    """
    if row is None:
        return ""
    sign = "+" if signed else ""
    ends = "" if row.low is None or row.high is None else f" ({row.low:{sign}.3f} to {row.high:{sign}.3f})"
    return f"{row.value:{sign}.3f}{ends}"


def redrawn(
    text: str, find: Callable[[str], str], figure: Callable[[str, str, str], str] | None = None, *, place: str = ""
) -> str:
    """A page with every marked table and figure drawn anew.

    Args:
        find: name -> table.
        figure: name, row, column -> figure; needed where the page has one.
    """
    for kind, pattern in (("results", MARKED), ("figure", INLINE)):
        if (opened := text.count(f"<!-- {kind}:")) != len(pattern.findall(text)):
            raise UserError(f"{place}: {opened} marks of {kind}, some without an end", hint="Close each: <!-- end -->.")
    named = ",".join(dict.fromkeys(m[2] for m in INLINE.finditer(text)))
    text = MARKED.sub(lambda m: f"{m[1]}{find(f'{HERE}{named}' if m[2] == HERE else m[2])}{m[4]}", text)
    if figure is None:
        return text
    return INLINE.sub(lambda m: f"{m[1]}{figure(m[2], m[3], m[4])}{m[6]}", text)


def pages(root: Path) -> list[Path]:
    """The pages with a mark."""
    found = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    marked = re.compile(f"{MARKED.pattern}|{INLINE.pattern}", re.DOTALL)
    return [path for path in found if path.is_file() and marked.search(path.read_text(encoding="utf-8"))]


def without_age(text: str) -> str:
    """A page without the lines that say that a table is older than its code: those depend on when one looks."""
    return re.sub(rf"\n{re.escape(OLDER)}[^\n]*\n", "", text)


def draw(root: Path, find: Callable[[str], str], figure: Callable[[str, str, str], str] | None = None) -> list[Path]:
    """Draw the tables and figures of all pages; returns the pages that changed."""
    changed = []
    for path in pages(root):
        text = path.read_text(encoding="utf-8")
        new = redrawn(text, find, figure, place=str(path))
        if new != text:
            with written(path) as temporary:
                temporary.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


__all__ = ["draw", "pages", "redrawn", "table", "told", "without_age"]
