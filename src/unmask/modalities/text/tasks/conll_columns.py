"""Which columns of a CoNLL file hold the words and the tags: told by number, or found by what the columns hold.

Words are in the first column that does not count them and changes within sentences, tags in the last one. What was
found is said; where a file does not tell, it is refused with the option that does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from unmask.errors import UserError
from unmask.files import split_lines
from unmask.modalities.text.tasks.data import Columns, naming

OF_NO_WORD = re.compile(r"[0-9]+(-[0-9]+|\.[0-9]+)")
"""How CoNLL-U numbers a line that stands for several words, or for none."""
EXAMINED = 400
"""Lines of a .txt that tell whether it has columns."""


class Line(NamedTuple):
    """A line of a file, its number from 1, and its cells."""

    number: int
    text: str
    cells: list[str]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where things are in a CoNLL file.

    Attributes:
        word, tag: columns from 0; the tag's is None where tags are not read.
        width: how many columns there are.
        count: the column that counts the words, None without one.
        constant: columns that do not change within sentences.
    """

    word: int
    tag: int | None
    width: int
    count: int | None = None
    constant: tuple[int, ...] = ()

    def said(self) -> str:
        """One line for people."""
        tags = "" if self.tag is None else f", tags in column {self.tag + 1}"
        passed = [f"column {k + 1} does not change within sentences" for k in self.constant]
        if self.count is not None:
            passed.append(f"column {self.count + 1} counts the words")
        return "; ".join([f"words in column {self.word + 1}{tags} of {self.width}", *passed])


def is_tag(tag: Any) -> bool:
    """Whether this is O or a tag of a known scheme."""
    return tag == "O" or (isinstance(tag, str) and tag[:1] in "BIESLU" and tag[1:2] == "-" and bool(tag[2:]))


def sentences_of(text: str) -> tuple[list[list[Line]], int]:
    """(sentences as lines, how many comments were left out).

    Blank lines and -DOCSTART- part sentences. A comment is a line in front of a sentence that begins with `# ` (or a
    tab instead of the blank, #begin or #end) and has not the columns and the tag of the other lines.
    """
    sentences: list[list[Line]] = [[]]
    for n, line in enumerate(text.split("\n"), start=1):
        line = line.rstrip("\r")
        if not line.strip() or line.startswith("-DOCSTART-"):
            sentences.append([])
            continue
        # Tabs only where there are some: a word may hold a no-break space.
        tabs = "\t" in line
        cells = [c.strip(" ") for c in line.split("\t")] if tabs else [c.strip() for c in line.split(" ") if c.strip()]
        sentences[-1].append(Line(n, line, cells))
    width = width_of(sentences)
    comments = 0
    for sentence in sentences:
        behind = next((i for i, line in enumerate(sentence) if not _is_comment(line, width)), len(sentence))
        comments += behind
        del sentence[:behind]
    return [sentence for sentence in sentences if sentence], comments


def _is_comment(line: Line, width: int) -> bool:
    marked = line.text.startswith(("# ", "#\t", "#begin ", "#end "))
    return marked and not (len(line.cells) == width and is_tag(line.cells[-1]))


def width_of(sentences: Sequence[Sequence[Line]]) -> int:
    """How many cells most lines have, but 2 at least."""
    widths = Counter(len(line.cells) for sentence in sentences for line in sentence)
    return max(2, widths.most_common(1)[0][0] if widths else 0)


def layout_of(sentences: Sequence[Sequence[Line]], path: Path, columns: Columns, *, labelled: bool) -> Layout:
    """Which columns to read.

    Args:
        columns: `text` and `label` as numbers from 1, where a person said them.
        labelled: with tags.
    """
    width = width_of(sentences)
    rows = [[line.cells for line in sentence if len(line.cells) == width] for sentence in sentences]
    rows = [sentence for sentence in rows if sentence]
    word, tag = (_requested(getattr(columns, part), part, path, width) for part in ("text", "label"))
    if word is not None and word == tag:
        raise UserError(
            f"{path}: both words and tags in column {word + 1}",
            hint=f"Say which ones: {naming(text=1, label=2)}, by their numbers.",
        )
    count, constant = None, []
    before = [k for k in range(width if word is None else word) if k != tag]
    for k in before:
        counted, known = _counted(rows, k)
        if 0 < counted == known:
            count = k
        elif word is None and known and 2 * counted >= known:
            raise UserError(
                f"{path}: column {k + 1} counts the words of {counted:,} of {known:,} sentences and not of the others",
                hint=f"Say which column holds the words, by its number: {naming(text=k + 1)} or {naming(text=k + 2)}.",
            )
        elif _stays(rows, k):
            constant.append(k)
        elif word is None:
            word = k
            break
    last = width - 1
    if word is None or (word == last and columns.text is None):
        what = "counts the words" if count is not None else "does not change within sentences"
        seen = 1 + (constant[0] if count is None else count)
        raise UserError(
            f"{path}: column {seen} {what}, and there is no column of words",
            hint=f"If the words are in column {seen}, say {naming(text=seen)}.",
        )
    if not labelled and columns.text is not None:
        return Layout(word=word, tag=None, width=width, count=count, constant=tuple(constant))
    if tag is None:
        _check_last(rows, path, word, last, labelled=labelled)
        tag = last
    if word == tag:
        raise UserError(
            f"{path}: both words and tags in column {word + 1}", hint=f"Say {naming(label='COLUMN')}, by its number."
        )
    return Layout(word=word, tag=tag, width=width, count=count, constant=tuple(constant))


def _requested(given: str | None, part: str, path: Path, width: int) -> int | None:
    """A column that a person named by its number, from 0."""
    if given is None:
        return None
    if not given.isdecimal():
        raise UserError(
            f"{path}: column {given!r}",
            hint=f"CoNLL columns have no names: {naming(**{part: 1})} is the first, of {width}.",
        )
    if not 1 <= int(given) <= width:
        raise UserError(
            f"{path}: no column {given}", hint=f"The lines have {width} columns: {naming(**{part: 1})} to {width}."
        )
    return int(given) - 1


def _counted(rows: Sequence[Sequence[Sequence[str]]], column: int) -> tuple[int, int]:
    """(sentences whose words a column counts, sentences that tell): from 0 or 1, or on from the sentence before.

    Sentences of several words tell, and where there are none those of one word beside two columns or more.
    """
    fitting: dict[bool, list[bool]] = {True: [], False: []}
    last = -2
    for sentence in rows:
        cells = [c[column] for c in sentence if not OF_NO_WORD.fullmatch(c[column])]
        numbers = [int(c) for c in cells if c.isascii() and c.isdecimal()]
        fits = len(numbers) == len(cells) and all(b == a + 1 for a, b in pairwise(numbers))
        fits = fits and (not numbers or numbers[0] in (0, 1, last + 1))
        last = numbers[-1] if numbers else last
        fitting[len(cells) > 1].append(fits)
    several, single = fitting[True], fitting[False]
    if not several and rows and len(rows[0][0]) > 2:
        several, single = single, []
    if several and all(several):
        several = several + single
    return sum(several), len(several)


def _stays(rows: Sequence[Sequence[Sequence[str]]], column: int) -> bool:
    """Whether a column is the same throughout every sentence, as a name of the document is."""
    longer = [{cells[column] for cells in sentence} for sentence in rows if len(sentence) > 1]
    return len(longer) > 1 and all(len(found) == 1 for found in longer)


def _check_last(rows: Sequence[Sequence[Sequence[str]]], path: Path, word: int, last: int, *, labelled: bool) -> None:
    """The last column must be the one of the tags."""
    cells = [c for sentence in rows for c in sentence]
    types: dict[int, set[str]] = {}
    for k in range(last + 1):
        found = Counter(c[k] for c in cells)
        if k != word and sum(n for tag, n in found.items() if is_tag(tag)) > len(cells) / 2:
            types[k] = {tag[2:] for tag in found if is_tag(tag) and tag != "O"}
    others = [k for k in types if k != last and types[k]]
    if last not in types and others:
        hint = naming(label=others[0] + 1) if labelled else naming(text=word + 1)
        raise UserError(f"{path}: column {last + 1} holds no tags, column {others[0] + 1} does", hint=f"Say {hint}.")
    if not labelled or last not in types:
        return
    for k in others:
        if not types[last] or types[last] & types[k]:
            raise UserError(
                f"{path}: columns {k + 1} and {last + 1} both hold tags of entities",
                hint=f"Say which ones are meant: {naming(label=k + 1)} or {naming(label=last + 1)}.",
            )


def has_columns(text: str) -> bool | None:
    """Whether a .txt holds words with tags and no plain texts, by its first lines; None where it may be either."""
    lines = split_lines(text)[:EXAMINED]
    while lines and not lines[-1].strip():
        lines.pop()
    rows = [line.split() for line in lines if line.strip() and not line.startswith(("-DOCSTART-", "# ", "#\t"))]
    if not rows:
        return False
    width, _ = Counter(map(len, rows)).most_common(1)[0]
    fitting = sum(len(cells) == width and width > 1 and is_tag(cells[-1]) for cells in rows) / len(rows)
    tabs = all("\t" in line for line in lines if line.strip())
    if fitting <= 0.5 or (len(rows) == 1 and width > 2 and not tabs):
        return False
    parted = any(not line.strip() for line in lines)
    return True if fitting >= 0.95 and (tabs or parted or (width == 2 and len(rows) > 1)) else None
