"""Tokens as people write them: alone, written into the blanks of a text, and special ones that a text holds."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from string import whitespace

import numpy as np

from unmask.errors import first_of
from unmask.modalities.text.tokens.tokenizer import Tokenizer


def marks_spaces(tokenizer: Tokenizer) -> bool:
    """Whether tokens say themselves that a space is in front of them."""
    return any(token.startswith(("Ġ", "▁")) for token in tokenizer.backend.encode("a a").tokens)


_UNSPACED = "[\u3001-\u303f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uffef\U00020000-\U0003ffff]"
"""A character of a script without spaces (Chinese, Japanese), its punctuation included."""
_OPENING, _CLOSING = "([{\u00ab\u201c\u2018", ")]}\u00bb\u201d\u2019,.;:!?%\u2026"


def close_up(text: str) -> str:
    """The text without the single spaces that decoding puts between characters of scripts that have none.

    >>> close_up("\u4ed6 \u662f a student")
    '\u4ed6\u662f a student'
    """
    return re.sub(f"(?<={_UNSPACED}) (?={_UNSPACED})", "", text)


def space_between(before: str, after: str) -> str:
    """A space where two parts of a text would touch and people would write one; '' else."""
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return ""
    touch = before[-1] in _OPENING or after[0] in _CLOSING or re.search(_UNSPACED, before[-1] + after[0])
    return "" if touch else " "


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Tokens as one piece of text, without the mark of a piece that goes on with a word."""
    return close_up(tokenizer.decode(list(ids)).strip().removeprefix("##"))


def write_blanks(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> str:
    """A text with tokens written into its blanks (mask tokens), everything else as it was."""
    parts, marked = re.split(re.escape(tokenizer.mask_token), text), marks_spaces(tokenizer)
    out, i = parts[0], 0
    while i < len(ids):
        run = [ids[i]]  # neighbouring blanks may be pieces of one word: they are decoded together
        while i + 1 < len(ids) and not parts[i + 1].strip():
            i += 1
            run.append(ids[i])
        first = tokenizer.token(run[0])
        if first.startswith("##") or (marked and not first.startswith(("Ġ", "▁"))):
            # It goes on with the word before: the one space between them goes, other white space is the text's own.
            out = out[:-1] if out.endswith(" ") and not out[:-1].endswith(tuple(whitespace)) else out
        elif marked and out and not out[-1].isspace():
            out += " "
        out += words_of(tokenizer, run) + parts[i + 1]
        i += 1
    return out


def word_of(tokenizer: Tokenizer, number: int) -> str:
    """A vocabulary entry without the marks that tell pieces of words apart."""
    token = tokenizer.token(number)
    shown = tokenizer.decode([number]).strip()
    return token if token.startswith("##") or not shown else shown


def special_tokens_in(tokenizer: Tokenizer, text: str) -> list[str]:
    """The special tokens that a text holds as it is written, such as [SEP], each once, in order; as transformers does,
    the tokenizer reads them as the marks that they are, not as text."""
    names = [name for number in tokenizer.special_ids.tolist() if (name := tokenizer.token(number))]
    # A longer name first, where one begins with another.
    every = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    found = list(dict.fromkeys(re.findall(every, text))) if every else []
    if not found:
        return []
    ids = set(tokenizer.encode([text], specials=False)[0].ids.tolist())
    return [name for name in found if tokenizer.id(name) in ids]


def special_said(tokenizer: Tokenizer, texts: Sequence[str], *, but: Sequence[str] = (), then: str = "") -> list[str]:
    """How many texts hold special tokens, and the first of them, in words; nothing where none does.

    Args:
        but: special tokens that are expected.
        then: what follows from it, for the end of the sentence.
    """
    held = []
    for number, text in enumerate(texts, start=1):
        if names := [name for name in special_tokens_in(tokenizer, text) if name not in but]:
            held.append((number, names))
    if not held:
        return []
    number, names = held[0]
    return [
        f"warning: {len(held):,} of {len(texts):,} texts hold special tokens, the first is text {number} "
        f"({', '.join(names)}): the model reads them as its own marks{then}"
    ]


def says_something(tokenizer: Tokenizer, ids: np.ndarray) -> bool:
    """Whether any of these tokens is more than white space, and neither special nor unknown."""
    plain = ids[~np.isin(ids, tokenizer.special_ids)].tolist()
    # The first few tell nearly always; all of them, as a character may be cut into tokens that are none alone.
    return _is_seen(tokenizer.decode(plain[:8]).replace("\ufffd", "")) or _is_seen(tokenizer.decode(plain))


def _is_seen(text: str) -> bool:
    """Whether a text is more than white space and marks without a shape (zero-width spaces, byte order marks)."""
    return any(not c.isspace() and unicodedata.category(c) not in ("Cc", "Cf") for c in text)


def nothing_to_read(tokenizer: Tokenizer, read: Sequence[np.ndarray]) -> list[int]:
    """Which of the texts that were read as these tokens (from 0) are blank, or hold nothing but white space, special
    and unknown tokens."""
    return [number for number, ids in enumerate(read) if not says_something(tokenizer, ids)]


def unknown_said(tokenizer: Tokenizer, read: Sequence[np.ndarray]) -> list[str]:
    """How many of the texts that were read as these tokens hold words that the tokenizer does not know, and the first
    of them; nothing where none does."""
    if tokenizer.unk_id is None:
        return []
    held = [number for number, ids in enumerate(read, start=1) if tokenizer.unk_id in ids]
    if not held:
        return []
    return [
        f"warning: {len(held):,} of {len(read):,} texts hold words or characters that the model does not know, the "
        f"first is text {held[0]}: it reads {tokenizer.token(tokenizer.unk_id)} there"
    ]


def bare_said(bare: Sequence[int], total: int, then: str) -> list[str]:
    """How many texts there is nothing to read in, the first five, and what follows, in words; nothing without any."""
    if not bare:
        return []
    named = first_of(f"text {number + 1}" for number in bare)
    return [f"{len(bare):,} of {total:,} texts are blank or hold no token that the model knows ({named}): {then}"]


def count_longer(tokenizer: Tokenizer, texts: Sequence[str], slots: int) -> int:
    """How many of the texts have more tokens than `slots`, special ones included."""
    room = slots - len(tokenizer.ids([""])[0])
    return sum(len(ids) > slots for ids in tokenizer.ids([t for t in texts if may_be_longer(room, t)]))


def may_be_longer(room: int, *texts: str) -> bool:
    """Whether texts may have more than `room` tokens together: no token is shorter than a byte, so that most texts need
    not be tokenised to know."""
    return sum(len(text.encode("utf-8", "replace")) for text in texts) > room


def cut_said(cut: int, total: int, slots: int, what: str = "texts") -> list[str]:
    """How many are cut, in words; nothing where none is."""
    return [f"{cut:,} of {total:,} {what} are longer than {slots:,} tokens: their ends are not read"] if cut else []
