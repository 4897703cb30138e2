"""What labelled texts hold that is not what it seems: texts that are blank, missing values that are spelled out,
numbers with commas, labels that are spelled in two ways."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError, setting
from unmask.evaluation.classes import is_number, is_spelled, label_notes
from unmask.modalities.text.tasks.data import Item
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.uses.filling import bare_notes, nothing_to_read, unknown_notes

_NUMBER = re.compile(r"[+-]?[0-9]+(,[0-9]+)*(\.[0-9]+)?")


def spelling_notes(items: Sequence[Item], *, labelled: bool) -> list[str]:
    """In words, how many texts and labels are spelled as missing."""

    texts = [item.text.strip() for item in items if is_spelled(item.text)]
    out = []
    if texts:
        out.append(
            f"warning: {len(texts):,} of {len(items):,} texts are {', '.join(map(repr, sorted(set(texts))))}, as "
            "missing values are written: they are read as words"
        )
    labels = [item.label for item in items] if labelled else []
    amounts = all(is_number(label) and not is_spelled(label) for label in labels)
    return out if amounts and any(float(label) % 1 for label in labels) else out + label_notes(labels)  # type: ignore[arg-type]


def refuse_joined(items: Sequence[Item], separators: str = "[|;,]") -> None:
    """Labels of which all parts between bars, semicolons or commas stand in other labels too are several labels, not
    one."""
    names = {item.label.strip() for item in items if isinstance(item.label, str)}
    parts = {name: {part.strip() for part in re.split(separators, name)} for name in names}
    labels_with = Counter(part for some in parts.values() for part in some)
    joined = {name for name, some in parts.items() if len(some) > 1 and all(labels_with[part] > 1 for part in some)}
    found = next((item for item in items if isinstance(item.label, str) and item.label.strip() in joined), None)
    if found is not None:
        raise UserError(
            f"{found.where}: label {found.label!r} holds several of the other labels",
            hint="Several labels per text are lists of names in .jsonl or .parquet, or cells with bars between: "
            f"a|b, with {setting('problem', 'multi')}; {setting('problem', 'single')} takes it for a class.",
        )


def refuse_commas(items: Sequence[Item]) -> None:
    """Labels that are all numbers, some with a comma, are no classes."""
    if all(isinstance(item.label, str) and _NUMBER.fullmatch(item.label.strip()) for item in items):
        found = next((item for item in items if "," in str(item.label)), None)
        if found is not None:
            raise UserError(
                f"{found.where}: label {found.label!r}: a number with a comma",
                hint=f"Write it without, a decimal with a point; {setting('problem', 'single')} takes it for a class.",
            )


def refuse_among_numbers(items: Sequence[Item]) -> None:
    """Refuse labels that are numbers but for missing ones (neither classes nor numbers), and missing ones alone."""
    missing = [item for item in items if is_spelled(item.label)]
    others = [item.label for item in items if not is_spelled(item.label)]
    if missing and not others:
        raise UserError(
            f"all {len(items):,} labels are how missing values are written", hint="Is this the label column?"
        )
    if not missing or not all(is_number(label) for label in others):
        return
    more = f", and in {len(missing) - 1:,} more rows" if len(missing) > 1 else ""
    raise UserError(
        f"{missing[0].where}: label {missing[0].label!r} among numbers{more}",
        hint=f"Leave out rows whose label is missing; {setting('problem', 'single')} takes it for a class.",
    )


PARTS = ("text", "text2", "negative", "question", "context")
"""Attributes of an item that hold what a model reads."""


def _texts_of(item: Any) -> list[str]:
    return [text for part in PARTS if isinstance(text := getattr(item, part, None), str)]


def has_no_text(item: Any) -> bool:
    """Whether a text, one of a pair, a question or its context is blank."""
    return not all(text.strip() for text in _texts_of(item))


def unread_notes(tokenizer: Tokenizer, items: Sequence[Any]) -> list[str]:
    """In words, how many rows hold words that the tokenizer does not know, and in how many a text that is not blank
    holds nothing else."""
    texts = [[text for text in _texts_of(item) if text.strip()] for item in items]
    owner = [number for number, own in enumerate(texts) for _ in own]
    read = tokenizer.ids([text for own in texts for text in own])
    together = [np.zeros(0, np.int64) for _ in items]
    for number, ids in zip(owner, read, strict=True):
        together[number] = np.concatenate([together[number], ids])
    bare = sorted({owner[number] for number in nothing_to_read(tokenizer, read)})
    lines = bare_notes(bare, len(items), "predictions say nothing of them")
    return [*unknown_notes(tokenizer, together), *(f"warning: {line}" for line in lines)]
