"""Units: which tokens are hidden together. From the tokenizer's own word ids and Unicode script, not from '##'.

Right for WordPiece, byte-level BPE and Unigram alike: a token continues the word before it when no white space lies
between them and both touch with word characters; Chinese and Japanese text is taken character by character.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

_SPACE, _WORD, _APART, _OTHER = 0, 1, 2, 3
_HAN_LIKE = ((0x2E80, 0x2FDF), (0x3040, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF),
             (0xF900, 0xFAFF), (0xFF66, 0xFF9D), (0x20000, 0x323AF))  # fmt: skip


@lru_cache(maxsize=1 << 16)
def _kind(character: str) -> int:
    code = ord(character)
    if character.isspace():
        return _SPACE
    if any(low <= code <= high for low, high in _HAN_LIKE):
        return _APART
    if character.isalnum() or character == "_" or unicodedata.category(character).startswith("M") or code == 0x200D:
        return _WORD
    return _OTHER


def inside_word(character: str) -> bool:
    """Whether a character can continue a word: a letter, digit or mark of a script that writes spaces."""
    return _kind(character) == _WORD


def _joins(text: str, index: int) -> bool:
    """An apostrophe between letters belongs to the word: don't."""
    return (
        text[index] in "'’"
        and 0 < index < len(text) - 1
        and _kind(text[index - 1]) == _WORD
        and _kind(text[index + 1]) == _WORD
    )


def word_units(
    text: str, offsets: Sequence[tuple[int, int]] | np.ndarray, word_ids: Sequence[int | None]
) -> np.ndarray:
    """Unit number of every token, ascending from 0; -1 for tokens without a word id (special tokens).

    Args:
        offsets: character offsets of each token in `text`.
        word_ids: the tokenizer's own word number of each token, None for special ones.

    >>> word_units("unmasking it", [(0, 2), (2, 9), (10, 12)], [0, 0, 1]).tolist()
    [0, 0, 1]
    """
    out = np.full(len(word_ids), -1, np.int32)
    unit = -1
    last_start = last_end = -1
    last_word: int | None = None
    size = len(text)
    for number, ((start, end), word) in enumerate(zip(offsets, word_ids, strict=True)):
        if word is None:
            last_end, last_word = -1, None
            continue
        # Unigram and byte-level pieces may carry the space in front of them.
        while start < end and start < size and text[start].isspace():
            start += 1
        if start >= end:
            # A piece of nothing but space (or an empty one) goes with what follows: its own unit.
            unit += 1
            last_start, last_end, last_word = end, -1, word
            out[number] = unit
            continue
        overlaps = last_end > start and last_start >= 0  # several bytes of one character
        joined = False
        if last_end == start:
            before, here = _kind(text[start - 1]), _kind(text[start])
            before = _WORD if _joins(text, start - 1) else before
            here = _WORD if _joins(text, start) else here
            if before == _WORD and here == _WORD:
                joined = True
            elif word == last_word and _APART not in (before, here) and before == here:
                joined = True  # a run of punctuation the tokenizer itself calls one word
        if not (overlaps or joined):
            unit += 1
        out[number] = unit
        last_start, last_end, last_word = start, end, word
    return out


def entity_units(
    units: np.ndarray, spans: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]] | np.ndarray
) -> np.ndarray:
    """Merge the units touched by each character span into one, for whole-entity masking; order is kept.

    >>> entity_units(np.array([0, 1, 2]), [(0, 8)], [(0, 3), (4, 8), (9, 12)]).tolist()
    [0, 0, 1]
    """
    out = np.asarray(units).copy()
    offsets = np.asarray(offsets).reshape(-1, 2)
    for start, end in spans:
        touched = (offsets[:, 0] < end) & (offsets[:, 1] > start) & (out >= 0)
        if touched.any():
            out[np.isin(out, np.unique(out[touched]))] = out[touched].min()
    real = out >= 0
    out[real] = np.unique(out[real], return_inverse=True)[1].reshape(-1)
    return out.astype(np.int32)
