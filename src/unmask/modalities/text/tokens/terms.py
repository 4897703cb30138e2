"""Words, terms and sentences of texts in any script, for whatever counts or compares them.

A word is letters, digits and the marks that a script spells with (में is one). Where a script writes no spaces between
words (Chinese, Japanese, Thai, Lao, Khmer, Burmese), characters stand for words, and pairs of neighbours for terms;
so they do in Korean, whose words carry their particles.
"""

from __future__ import annotations

import itertools
import re
import unicodedata

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

_CLOSING = "[)\\]\"'\u2019\u201d\u00bb\u300d\u300f\uff09]*"
_STOP = rf"[.!?\u061f\u06d4]+{_CLOSING}(?=\s)|[\u3002\uff01\uff1f\uff61\u0964\u0965]+{_CLOSING}"
_END = rf"{_STOP}|(?<=[\u0e00-\u0eff])(?=\s+[\u0e00-\u0eff])"
"""Of a sentence: . ! ? (and the Arabic ones) before white space, Chinese and Japanese ones and the danda of Indic
scripts anywhere, and in Thai and Lao a space."""
END = re.compile(_END)
END_OR_LINE = re.compile(rf"{_END}|\n+")


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


def sentences(text: str) -> list[tuple[int, int]]:
    """(start, end) of each sentence in characters, without the white space between them; one at least.

    >>> [text[a:b] for text in ["It rains. 今天下雨。回家！"] for a, b in sentences(text)]
    ['It rains.', '今天下雨。', '回家！']
    """
    edges = [0, *(found.end() for found in END.finditer(text)), len(text)]
    found = []
    for a, b in itertools.pairwise(edges):
        inside = text[a:b].strip()
        if inside:
            start = a + text[a:b].index(inside)
            found.append((start, start + len(inside)))
    return found or [(0, len(text))]
