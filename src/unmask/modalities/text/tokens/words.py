"""Words and sentences of texts in any script."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator

from unmask.modalities.text.tokens.units import UNSPACED as RANGES

_MARKS = "".join(c for c in map(chr, range(0x300, 0x1E8D8)) if unicodedata.category(c)[0] == "M") + "\u200c\u200d"
"""Combining marks, and the two joiners within a word: Python's \\w has none of them."""

UNSPACED = "".join(f"{chr(low)}-{chr(high)}" for low, high in RANGES)
"""Characters of scripts without spaces between words, for a class of a regular expression."""

_CHARACTER = f"[{UNSPACED}\u1100-\u11ff\uac00-\ud7a3]"
_WORD = rf"{_CHARACTER}|(?:(?!{_CHARACTER})[\w{_MARKS}])+"
WORD = re.compile(_WORD)
PIECE = re.compile(rf"{_WORD}|[^\w\s]")
"""Words, and marks one by one."""

STOPS = ".!?\u061f\u06d4", "\u3002\uff01\uff1f\uff61\u0964\u0965"
"""Characters that end a sentence: where white space follows, and without."""

_CLOSING = "[)\\]\"'\u2019\u201d\u00bb\u300d\u300f\uff09]*"
_OPENING = "[(\\[\"'\u2018\u201c\u00ab\u00bf\u00a1]*"
_STOP = rf"[{STOPS[0]}]+{_CLOSING}(?=\s+{_OPENING}(\w)?)|[{STOPS[1]}]+{_CLOSING}"
_END = re.compile(rf"(?:{_STOP}|(?<=[\u0e00-\u0eff])(?=\s+[\u0e00-\u0eff]))(?:\s*\n)?|\n+")
_ABBREVIATED = re.compile(r"\b(?:[A-Za-z]|[A-Z][a-z]|\d{1,2}|Mrs|Prof|Gen|Col|Capt|Rev|Inc|Ltd|Corp|vs|etc|No|Vol)\.$")


def words(text: str) -> list[str]:
    """Words of a text in small letters; characters one by one where a script writes no spaces.

    >>> words("A fox, 今天, में")
    ['a', 'fox', '今', '天', 'में']
    """
    return WORD.findall(text.lower())


def pieces(text: str) -> list[str]:
    """`words`, and the marks between them one by one.

    >>> pieces("A fox, 今天。")
    ['a', 'fox', ',', '今', '天', '。']
    """
    return PIECE.findall(text.lower())


def with_pairs(found: list[str]) -> list[str]:
    """Words, and behind them the pairs of neighbouring characters where a script writes no spaces: what TF-IDF of
    single words counts.

    >>> with_pairs(words("A fox, 今天"))
    ['a', 'fox', '今', '天', '今天']
    """
    single = re.compile(_CHARACTER)
    return found + [a + b for a, b in itertools.pairwise(found) if single.match(a) and single.match(b)]


def sentence_ends(text: str, *, lines: bool = False) -> Iterator[int]:
    """Where sentences end, in characters, with the ends of lines that follow, but for the last: after . ! ? (and the
    Arabic ones) before white space, where no small letter (in a text with capitals) or digit follows, and no initial,
    abbreviation or ordinal (3. Mai) stood before; after Chinese and Japanese stops and the danda of Indic scripts; in
    Thai and Lao at a space.

    Args:
        lines: whether each line ends one.

    >>> list(sentence_ends("It rains. So Dr. Who (b. 1963) stays in! Good."))
    [9, 40]
    """
    small = text.islower()
    for found in _END.finditer(text):
        follows, stop = found[1], found.start() + 1
        inside = follows and (
            (follows.islower() and not small) or follows.isdigit() or _ABBREVIATED.search(text, max(0, stop - 9), stop)
        )
        if (lines and "\n" in found[0]) or not (inside or found[0].startswith("\n")):
            yield found.end()


def sentences(text: str) -> list[tuple[int, int]]:
    """(start, end) of each sentence in characters, without the white space between them; one at least.

    >>> [text[a:b] for text in ["It rains. 今天下雨。回家！"] for a, b in sentences(text)]
    ['It rains.', '今天下雨。', '回家！']
    """
    edges = [0, *sentence_ends(text), len(text)]
    found = []
    for a, b in itertools.pairwise(edges):
        inside = text[a:b].strip()
        if inside:
            start = a + text[a:b].index(inside)
            found.append((start, start + len(inside)))
    return found or [(0, len(text))]
