"""Links between the pages: every file and every heading that a link names is there.

python docs/make/doc_links.py        prints the broken ones, and how many links there are
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<!\\)\]\(([^()\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
OUTSIDE = ("http://", "https://", "mailto:")


def pages() -> dict[str, str]:
    """Path from the root -> text of README.md, CONTRIBUTING.md and every page below docs."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in found}


def prose(text: str) -> str:
    """A page without its code, in which brackets are no links."""
    text = re.sub(r"^( *)(```+|~~~+).*?^\1\2 *$", "", text, flags=re.M | re.S)
    return re.sub(r"(`+)(?!`).+?\1", "", text)


def slug(heading: str) -> str:
    """The anchor of a heading, as Python-Markdown makes it.

    >>> slug("Is it good, and what does it give away?")
    'is-it-good-and-what-does-it-give-away'
    """
    plain = (
        unicodedata.normalize("NFKD", re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading)).encode("ascii", "ignore").decode()
    )
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings."""
    without = re.sub(r"^( *)(```+|~~~+).*?^\1\2 *$", "", text, flags=re.M | re.S)
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", without, flags=re.M):
        name, number = slug(heading), 1
        while (mine := name if number == 1 else f"{name}_{number - 1}") in found:
            number += 1
        found.add(mine)
    return found


def links(text: str) -> list[str]:
    """The targets of a page's links to the project's own files."""
    found = ["".join(m.groups("")) for m in LINK.finditer(prose(text))]
    return [target for target in found if not target.startswith(OUTSIDE)]


def broken(texts: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the links of pages: path -> text. Pages that are made, not kept, are in it too."""
    for page, text in texts.items():
        for target in links(text):
            name, _, anchor = target.partition("#")
            path = _joined(PurePosixPath(page).parent / name) if name else page
            if path not in texts and not (ROOT / path).exists():
                yield f"{page}: {target}: no such file"
            elif anchor and path in texts and anchor not in anchors(texts[path]):
                yield f"{page}: {target}: no such heading"


def _joined(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            if parts:
                parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def main() -> int:
    """Print broken links and how many there are in all."""
    from doc_reference import made

    texts = pages() | made()
    wrong = list(broken(texts))
    print(*wrong, sep="\n")
    print(f"{sum(len(links(text)) for text in texts.values())} links, {len(wrong)} broken")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
