"""Shapes that requests about texts share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError, first_of
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.uses.blanks import bare_said, nothing_to_read, special_said, unknown_said
from unmask.serving.limits import Limits
from unmask.serving.shapes import Either, Field, ListOf, Shape, Text


def one_or_more(limits: Limits) -> Shape:
    """A text, or a list of them."""
    return Either((Text(), ListOf(Text(), most=limits.items)), "a text or a list of texts")


def texts_field(limits: Limits, about: str = "A text, or a list of them.") -> Field:
    return Field(one_or_more(limits), about)


def listed(texts: Any, limits: Limits) -> list[str]:
    """A text or a list of them as a list."""
    found = [texts] if isinstance(texts, str) else list(texts)
    characters = sum(map(len, found))
    if characters > limits.characters:
        raise UserError(
            f"{characters:,} characters, at most {limits.characters:,} per request", hint="Send the texts in parts."
        )
    return found


WARNINGS = Field(
    ListOf(Text()), "In words: how many texts hold special tokens, or words that are unknown; texts are counted from 1."
)


def warnings_of(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    read: Sequence[np.ndarray],
    *,
    but: Sequence[str] = (),
    then: str = "",
    bare: str = "",
) -> list[str]:
    """What the command line warns of texts that are read as these tokens, for `WARNINGS`.

    Args:
        but: special tokens that are expected.
        then: what follows from the special ones, for the end of the sentence.
        bare: what follows where there is nothing to read in a text; without it that is not told.
    """
    said = [*special_said(tokenizer, texts, but=but, then=then), *unknown_said(tokenizer, read)]
    if bare:
        said += bare_said(nothing_to_read(tokenizer, read), len(texts), bare)
    return [line.removeprefix("warning: ") for line in said]


def check_lengths(lengths: list[int], most: int) -> None:
    """Refuse texts that are longer than the model takes."""
    long = [(number, length) for number, length in enumerate(lengths) if length > most]
    if long:
        named = first_of(f"texts[{number}] has {length:,}" for number, length in long)
        raise UserError(f"{named} tokens, the model takes {most:,}", hint="Split them into shorter texts.")
