"""The code blocks of the pages: found here, run by tests/docs (quick pages) and by `make docs-slow` (tutorials).

    python docs/make/doc_blocks.py        how many blocks are run, and why the others are not

A page says in comments what its blocks need:

    <!-- files: tables -->         the files and models of tests/docs/page_files.py that it speaks of
    <!-- data: PATH NAME -->       a folder of the shared data (UNMASK_SHARED/data/PATH), which it calls NAME; where it
                                   is not there the page's test is skipped, and says so
    <!-- tutorial -->              its blocks take minutes: `make docs-slow` runs them, whole and in an empty folder
    <!-- slow -->                  the next block takes long in a quick page: `make docs-slow` runs it, and those before
    <!-- printed as shown -->      its blocks print, to the letter, what the text blocks behind them show
    <!-- not run: REASON -->       the next block cannot run in a test, and why
    <!-- no block is run: REASON -->
"""

from __future__ import annotations

import re
import shlex
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", flags=re.M | re.S)
RUN = ("python", "console")
"""Languages whose blocks are run."""
PARSED = ("toml", "yaml")
"""Languages whose blocks are read, which is all that can be done with them."""
SHOWN = ("text", "json", "r")
"""Languages of outputs, of messages, and of other tools."""


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        line: where its code begins, from 1.
        name: file that the code is written to before it runs, behind the language: ```python my_module.py.
        reason: why it is not run; "" where it is.
        slow: run by `make docs-slow`.
        output: (start, end) in the page of the text block right behind it, which shows what it printed; None where
            there is none.
    """

    line: int
    language: str
    name: str
    code: str
    reason: str
    slow: bool
    output: tuple[int, int] | None

    @property
    def runs(self) -> bool:
        """Whether a test runs it, or writes its file for those behind it."""
        return (self.language in RUN or (self.language == "yaml" and bool(self.name))) and not self.reason


@dataclass(frozen=True)
class Page:
    """A page with its blocks.

    Args:
        path: from the root.
        files: names of functions of tests/docs/page_files.py.
        data: (path below the shared data, name of the folder in the page).
        tutorial: all of it is run by `make docs-slow`.
        exact: what its blocks print is what it shows.
    """

    path: str
    text: str
    files: tuple[str, ...]
    data: tuple[tuple[str, str], ...]
    tutorial: bool
    exact: bool
    blocks: tuple[Block, ...]


def read(path: str, text: str) -> Page:
    """The blocks of a page.

    >>> page = read("x.md", "<!-- not run: R -->\\n```r\\n1\\n```\\n```python\\nprint(2)\\n```\\n")
    >>> [(b.language, b.runs, b.reason) for b in page.blocks]
    [('r', False, 'R'), ('python', True, '')]
    """
    found = list(FENCE.finditer(text))
    none = re.search(r"<!-- no block is run: (.*?) -->", text)
    blocks = []
    for number, m in enumerate(found):
        before = re.search(r"<!-- not run: (.*?) -->\s*\Z", text[: m.start()])
        behind = found[number + 1] if number + 1 < len(found) else None
        shows = behind and behind[1] == "text" and not text[m.end() : behind.start()].strip()
        blocks.append(
            Block(
                line=text.count("\n", 0, m.start(3)) + 1,
                language=m[1],
                name=m[2].strip(),
                code=m[3],
                slow=bool(re.search(r"<!-- slow -->\s*\Z", text[: m.start()])),
                reason=before[1] if before else none[1] if none else "",
                output=behind.span(3) if behind and shows else None,
            )
        )
    files = tuple(name for m in re.finditer(r"<!-- files: (.*?) -->", text) for name in m[1].split())
    data = tuple((m[1], m[2]) for m in re.finditer(r"<!-- data: (\S+) (\S+) -->", text))
    tutorial = "<!-- tutorial -->" in text
    exact = "<!-- printed as shown -->" in text
    return Page(path=path, text=text, files=files, data=data, tutorial=tutorial, exact=exact, blocks=tuple(blocks))


def all_pages() -> list[Page]:
    """README.md, CONTRIBUTING.md and the pages below docs that hold blocks."""
    from doc_links import pages

    found = [read(path, text) for path, text in pages().items()]
    return [page for page in found if page.blocks]


def commands(code: str) -> list[list[str]]:
    """The words of each command of a console block.

    >>> commands("unmask fill m 'a [MASK]' \\\\\\n  --top 5   # five\\n")
    [['unmask', 'fill', 'm', 'a [MASK]', '--top', '5']]
    """
    lines = code.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def main() -> int:
    """Print how many blocks are run, how many are read alone, and the reasons of those that are neither."""
    every = [(page, block) for page in all_pages() for block in page.blocks]
    code = [(page, block) for page, block in every if block.language in (*RUN, "r")]
    slow = sum(block.runs and (page.tutorial or block.slow) for page, block in code)
    quick = sum(block.runs for _, block in code) - slow
    print(f"{quick + slow} of {len(code)} blocks of code are run: {quick} by make test, {slow} by make docs-slow")
    print(f"{sum(block.language in PARSED for _, block in every)} blocks of settings are read")
    for reason, count in Counter(block.reason for _, block in code if not block.runs).most_common():
        print(f"  {count} not run: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
