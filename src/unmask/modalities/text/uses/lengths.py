"""Texts that are longer than a model reads: how many, and in words."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.modalities.text.tokens.tokenizer import Tokenizer


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
