"""Tokens as people write them: alone, and written into the blanks of a text."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unmask.modalities.text.tokenizer import Tokenizer


def marks_spaces(tokenizer: Tokenizer) -> bool:
    """Whether tokens say themselves that a space is in front of them."""
    return any(token.startswith(("Ġ", "▁")) for token in tokenizer.backend.encode("a a").tokens)


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
            out = out.rstrip()
        elif marked and out and not out[-1].isspace():
            out += " "
        out += tokenizer.decode(run).strip().removeprefix("##") + parts[i + 1]
        i += 1
    return out


def word_of(tokenizer: Tokenizer, number: int) -> str:
    """A vocabulary entry without the marks that tell pieces of words apart."""
    token = tokenizer.token(number)
    shown = tokenizer.decode([number]).strip()
    return token if token.startswith("##") or not shown else shown
