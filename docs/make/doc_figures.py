"""Figures that are typed into the pages, which should be none: measured ones are drawn from docs/results.

    python docs/make/doc_figures.py        how many are drawn, and those that are typed

A figure is a number with decimals or a unit of measurement, and on the pages of measurements every number. What a
command draws, code, and outputs are left out. `not_measured.toml` holds the phrases with numbers that nobody measured:
settings, definitions, examples, versions, what a test guarantees. A whole number without a unit is seen on the pages of
measurements alone.
"""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from doc_links import pages

LEFT_OUT = re.compile(
    r"<!-- results: .*?<!-- end -->|<!-- figure: .*?<!-- end -->|^```.*?^```$|<!--.*?-->|`[^`\n]+`|\]\([^)\s]*\)",
    flags=re.M | re.S,
)
UNITS = r"%|x|times|s|ms|seconds?|minutes?|hours?|[KMG]i?B|GFLOP/s|nats|\w+/s"
NUMBER = r"(?<![\w./-])[+-]?(?:\d+(?:[ ,]\d{3})*)?(?:\.\d+)?(?:e-?\d+)?"
FIGURE = re.compile(rf"{NUMBER}(?:\s(?:{UNITS})(?!\w)|(?:%|x)(?!\w))?")
MEASURED = re.compile(r"explanation/(measured-[\w-]+|verified)\.md$")
SHOWN = re.compile(r"<!-- figure: .*?<!-- end -->|<!-- results: .*?<!-- end -->", flags=re.S)


@dataclass(frozen=True)
class Typed:
    """A figure in a page.

    Args:
        line: from 1.
        near: the words around it.
    """

    page: str
    line: int
    figure: str
    near: str


def typed(page: str, text: str, allowed: tuple[str, ...] = ()) -> list[Typed]:
    """The figures that are typed into a page.

    Args:
        allowed: phrases with numbers that were not measured.

    >>> [t.figure for t in typed("docs/a.md", "A step took 0.4 s, `width=0.5`, 95 % intervals.", ("95 %",))]
    ['0.4 s']
    """
    left = prose(text)
    spans = [m.span() for phrase in allowed for m in occurrences(phrase, left)]
    every = bool(MEASURED.search(page))
    found = []
    for m in FIGURE.finditer(left):
        if not re.search(r"\d", m[0]) or not (every or re.search(r"\.\d|e-|[^\d\s,.+-]", m[0])):
            continue
        if any(start <= m.start() and m.end() <= end for start, end in spans):
            continue
        near = " ".join(left[max(0, m.start() - 40) : m.end() + 30].split())
        found.append(
            Typed(page=page, line=text.count("\n", 0, m.start()) + 1, figure=" ".join(m[0].split()), near=near)
        )
    return found


def prose(text: str) -> str:
    """A page whose code, comments, links and drawn figures are blanks."""
    return LEFT_OUT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def occurrences(phrase: str, text: str) -> list[re.Match[str]]:
    """Where a phrase stands in a page, whatever its line breaks."""
    return list(re.finditer(r"\s+".join(map(re.escape, phrase.split())), text))


def allowances() -> dict[str, tuple[str, ...]]:
    """Page -> phrases with numbers that were not measured, of all kinds."""
    kinds = tomllib.loads((Path(__file__).parent / "not_measured.toml").read_text(encoding="utf-8"))
    found: dict[str, tuple[str, ...]] = {}
    for by_page in kinds.values():
        for page, phrases in by_page.items():
            found[page] = (*found.get(page, ()), *phrases)
    return found


def all_typed() -> list[Typed]:
    """The figures typed into any page."""
    allowed = allowances()
    return [t for path, text in pages().items() for t in typed(path, text, allowed.get(path, ()))]


def stale() -> list[str]:
    """Allowances of phrases that no page has any more."""
    texts = pages()
    return [
        f"{page}: {phrase}"
        for page, phrases in allowances().items()
        for phrase in phrases
        if not occurrences(phrase, prose(texts.get(page, "")))
    ]


def drawn() -> int:
    """How many numbers the pages show that are drawn from files."""
    return sum(len(re.findall(r"\d+(?:\.\d+)?", m[0])) for text in pages().values() for m in SHOWN.finditer(text))


def main() -> int:
    """Print them."""
    found = all_typed()
    for one in found:
        print(f"{one.page}:{one.line}: {one.figure}   ({one.near})")
    print(*(f"no longer there: {one}" for one in stale()), sep="\n")
    print(f"{len(found)} figures are typed; {drawn():,} numbers are drawn from docs/results")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
