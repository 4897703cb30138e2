"""Units: which tokens are hidden together. From the tokenizer's own word ids and Unicode script, not from '##'.

Right for WordPiece, byte-level BPE and Unigram alike: a token continues the one before it when no white space lies
between them and both touch with word characters; where a script writes no spaces (Chinese, Japanese, Thai), each
token is a unit; the bytes of one character and a combining mark stay with it; a lone space piece belongs to the word it
stands before.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import numpy as np

_SPACE, _WORD, _UNSPACED, _OTHER, _MARK = 0, 1, 2, 3, 4
UNSPACED = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x2E80, 0x2FDF),
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3031, 0x3035),
    (0x303B, 0x303B),
    (0x3040, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9D),
    (0x1AFF0, 0x1B16F),
    (0x20000, 0x323AF),
)
"""Scripts without spaces between words, as ranges of code points: Thai, Lao, Burmese, Khmer, Chinese, Japanese."""
_FIRST_MARK = 0x300
_JOINERS = (0xAD, 0x200C, 0x200D)
"""Soft hyphen and the two zero-width joiners: inside a word (Persian) or an emoji, never its edge."""


@lru_cache(maxsize=1 << 16)
def _kind(character: str) -> int:
    code = ord(character)
    if character.isspace():
        return _SPACE
    if unicodedata.category(character)[0] == "M" or code in _JOINERS:
        return _MARK
    if any(low <= code <= high for low, high in UNSPACED):
        return _UNSPACED
    return _WORD if character.isalnum() or character == "_" else _OTHER


def inside_word(character: str) -> bool:
    """Whether a character can continue a word: a letter, digit or mark of a script that writes spaces."""
    return _kind(character) in (_WORD, _MARK)


def can_continue(character: str) -> bool:
    """Whether a WordPiece entry can go on with it: what is inside a word, and what has no spaces around it but for the
    ideographs that BERT's tokenizer parts."""
    ideograph = "\u3400" <= character <= "\u9fff" or "\uf900" <= character <= "\ufaff" or character >= "\U00020000"
    return inside_word(character) or (_kind(character) == _UNSPACED and not ideograph)


def _joins(text: str, index: int) -> bool:
    """An apostrophe between letters belongs to the word: don't."""
    return (
        text[index] in "'’"
        and 0 < index < len(text) - 1
        and inside_word(text[index - 1])
        and _kind(text[index + 1]) == _WORD
    )


def word_units(
    text: str,
    offsets: Sequence[tuple[int, int]] | np.ndarray,
    word_ids: Sequence[int | None],
    *,
    alone: Sequence[bool] | np.ndarray | None = None,
) -> np.ndarray:
    """Unit number of every token, ascending from 0; -1 for tokens without a word id (special tokens).

    Args:
        offsets: character offsets of each token in `text`.
        word_ids: the tokenizer's own word number of each token, None for special ones.
        alone: True at tokens that are always a unit of their own, as a mask token written in the text.

    >>> word_units("unmasking it", [(0, 2), (2, 9), (10, 12)], [0, 0, 1]).tolist()
    [0, 0, 1]
    """
    out = np.full(len(word_ids), -1, np.int32)
    unit = carry = last_end = blank_end = -1  # ends of the last token, by what it was; -1 where it was not that
    last_word: int | None = None
    last_alone = False
    shown = _OTHER  # the kind of the last token's last character, marks overlooked
    for number, ((begin, end), word) in enumerate(zip(offsets, word_ids, strict=True)):
        if word is None:
            carry = last_end = blank_end = -1
            continue
        # Unigram and byte-level pieces may carry the space in front of them.
        start = begin
        while start < end and text[start].isspace():
            start += 1
        if start >= end:
            # A lone space goes with the word after it; an indent or a line break is a unit of its own.
            unit += begin >= blank_end  # not at the second byte of a wide space
            out[number] = unit
            carry = end if begin == end or text[begin:end] == " " else -1
            last_end, blank_end, last_alone = -1, end, False
            continue
        if last_end < start:
            # Marks the normaliser dropped stand between the pieces of one word.
            while -1 < last_end < start and _kind(text[last_end]) == _MARK:
                last_end += 1
        touches = last_end == start
        separate = alone is not None and bool(alone[number])
        if separate or last_alone:
            joined = False
        elif touches:
            here, before = _kind(text[start]), shown
            if here == _OTHER and _joins(text, start):
                here = _WORD
            if before == _OTHER and _joins(text, start - 1):
                before = _WORD
            if here == _MARK:
                joined = before != _SPACE
            else:
                # Word to word, or a run of punctuation the tokenizer itself calls one word.
                joined = here == before and (here == _WORD or (here == _OTHER and word == last_word))
        else:
            joined = last_end > start or carry == start  # several bytes of one character, or the space before
        if not joined:
            unit += 1
        out[number] = unit
        final = end - 1
        last = _kind(text[final])
        while last == _MARK and final > start:
            final -= 1
            last = _kind(text[final])
        if last != _MARK:
            shown = last
        elif not joined:
            shown = _OTHER
        carry, last_end, blank_end, last_word, last_alone = -1, end, -1, word, separate
    return out


def with_marks(text: str, offsets: np.ndarray) -> np.ndarray:
    """(slots, 2) offsets whose ends take in the combining marks behind them that no token has: of a tokenizer that
    drops marks.

    >>> with_marks("Zoe\u0301", np.array([[0, 3]])).tolist()
    [[0, 4]]
    """
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    begin, end = offsets.T
    follows = np.flatnonzero((begin < end) & (end < len(text)))
    follows = follows[codes[end[follows]] >= _FIRST_MARK]
    if not len(follows):
        return offsets
    out, starts = offsets.copy(), set(begin.tolist())
    for slot in follows.tolist():
        last = int(end[slot])
        while last < len(text) and last not in starts and unicodedata.category(text[last])[0] == "M":
            last += 1
        out[slot, 1] = last
    return out


def entity_units(
    units: np.ndarray, spans: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]] | np.ndarray
) -> np.ndarray:
    """Merge the units touched by each character span into one, for whole-entity masking; order is kept.

    Args:
        spans: (start, end) characters of each entity; spans that share a unit become one entity.

    >>> entity_units(np.array([0, 1, 2]), [(0, 8)], [(0, 3), (4, 8), (9, 12)]).tolist()
    [0, 0, 1]
    """
    out = np.asarray(units, np.int32).copy()
    flat = np.fromiter(chain.from_iterable(offsets), np.int64) if not isinstance(offsets, np.ndarray) else offsets
    begin, end = flat.reshape(-1, 2).T
    for low, high in spans:
        touched = (begin < high) & (end > low) & (out >= 0)
        if touched.any():
            # Units between the outermost ones belong to the entity too: a unit is one stretch.
            out[(out >= out[touched].min()) & (out <= out[touched].max())] = out[touched].min()
    real = out >= 0
    out[real] = np.unique(out[real], return_inverse=True)[1].reshape(-1)
    return out
