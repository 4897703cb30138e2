"""Texts, pairs and windows of long texts as examples, with the tokenizer's own special tokens around them.

Texts are tokenised in batches without special tokens; the pieces that stand in front, between and behind are read off
the tokenizer's template once. Offsets are characters of the original text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unmask.core.batch import Example
from unmask.errors import UserError
from unmask.modalities.text.tokens.tokenizer import Encoded, Tokenizer
from unmask.modalities.text.uses.filling import cut_notes, may_be_longer


@dataclass
class Prepared:
    """Items made into examples, one or more per item, in the items' order. `groups`: for each item the numbers of its
    examples (a step takes whole items); `extra`: whatever the task remembers about them (targets, windows)."""

    items: Sequence[Any]
    examples: list[Example]
    groups: list[list[int]]
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Template:
    """What stands around one text, or around two: lists of (id, type), and the types of the texts themselves."""

    front: tuple[tuple[int, int], ...]
    middle: tuple[tuple[int, int], ...]
    back: tuple[tuple[int, int], ...]
    types: tuple[int, int]

    @property
    def size(self) -> int:
        """How many special tokens stand around the texts."""
        return len(self.front) + len(self.middle) + len(self.back)


def template(tokenizer: Tokenizer, *, pair: bool) -> Template:
    """Read the template off an encoding of ordinary letters."""
    encoding = tokenizer.backend.encode("a", "a") if pair else tokenizer.backend.encode("a")
    parts: list[list[tuple[int, int]]] = [[], [], []]
    types, seen = [0, 0], -1
    for number, kind, which, special in zip(
        encoding.ids, encoding.type_ids, encoding.sequence_ids, encoding.special_tokens_mask, strict=True
    ):
        if which is None or special:
            parts[0 if seen < 0 else (1 if pair and seen == 0 else 2)].append((number, kind))
        else:
            seen = which
            types[which] = kind
    if pair and seen == 0:  # the second text came out empty: what follows the first cannot be told apart
        parts[1], parts[2] = parts[1][:1], parts[1][1:]
    front, middle, back = (tuple(p) for p in parts)
    return Template(front, middle, back, (types[0], types[1]))


@dataclass(frozen=True)
class Window:
    """One example of a text: which text, which of its tokens, and where they stand in the example."""

    owner: int
    first: int
    last: int
    shift: int
    """Slot of token `first`: token t of the text stands in slot t - first + shift."""


class ExampleMaker:
    """Makes examples for one model."""

    def __init__(self, tokenizer: Tokenizer, *, slots: int, types: bool) -> None:
        self.tokenizer, self.slots, self.types = tokenizer, slots, types
        self.single, self.pair = template(tokenizer, pair=False), template(tokenizer, pair=True)

    def texts(self, texts: Sequence[str]) -> list[Encoded]:
        """Tokens of texts, nothing added."""
        return self.tokenizer.encode(list(texts), specials=False)

    def example(self, ids: Sequence[np.ndarray], identity: int) -> Example:
        """An example of one or two token sequences that fit."""
        plan = self.single if len(ids) == 1 else self.pair
        parts: list[Any] = [_pieces(plan.front), (ids[0], plan.types[0])]
        if len(ids) == 2:
            parts += [_pieces(plan.middle), (ids[1], plan.types[1])]
        parts.append(_pieces(plan.back))
        tokens = np.concatenate([p[0] for p in parts]).astype(np.int64)
        values = {"token": tokens}
        if self.types:
            values["type"] = np.concatenate([np.broadcast_to(p[1], len(p[0])) for p in parts]).astype(np.int64)
        special = np.ones(len(tokens), bool)
        start = len(plan.front)
        special[start : start + len(ids[0])] = False
        if len(ids) == 2:
            second = start + len(ids[0]) + len(plan.middle)
            special[second : second + len(ids[1])] = False
        return Example(values=values, identity=identity, special=special)

    def whole(self, first: Sequence[str], second: Sequence[str | None] | None = None) -> list[Example]:
        """One example an item; of what is too long the longer text is cut at its end."""
        one = self.texts(first)
        if second is None or second[0] is None:
            room = self.slots - self.single.size
            return [self.example([e.ids[:room]], i) for i, e in enumerate(one)]
        two = self.texts([t or "" for t in second])
        room = self.slots - self.pair.size
        out = []
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            keep_a, keep_b = share(len(a), len(b), room)
            out.append(self.example([a.ids[:keep_a], b.ids[:keep_b]], i))
        return out

    def lengths(self, first: Sequence[str], second: Sequence[str | None] | None = None) -> list[int]:
        """Tokens of each item, special ones included, before `whole` cuts it."""
        pair = second is not None and len(second) > 0 and second[0] is not None
        one = [len(e) + (self.pair if pair else self.single).size for e in self.texts(first)]
        two = [len(e) for e in self.texts([t or "" for t in second])] if pair and second is not None else [0] * len(one)
        return [a + b for a, b in zip(one, two, strict=True)]

    def too_long(self, first: Sequence[str], second: Sequence[str | None] | None = None) -> int:
        """How many items `whole` cuts."""
        room = self.slots - self.pair.size
        both = zip(first, [None] * len(first) if second is None else second, strict=True)
        long = [(a, b) for a, b in both if may_be_longer(room, a, b or "")]
        return sum(length > self.slots for length in self.lengths([a for a, _ in long], [b for _, b in long]))

    @property
    def most_before(self) -> int:
        """Longest first text of a window, which leaves the second a quarter of the room."""
        room = self.slots - self.pair.size
        return max(1, room - max(1, room // 4))

    def windows(
        self, encoded: Sequence[Encoded], *, stride: int, before: Sequence[Encoded] | None = None
    ) -> tuple[list[Example], list[Window]]:
        """Overlapping windows over texts that may be too long; with `before`, each behind its own first text, of at
        most `most_before` tokens.
        """
        plan = self.single if before is None else self.pair
        examples: list[Example] = []
        windows: list[Window] = []
        for owner, e in enumerate(encoded):
            room = self.slots - plan.size
            head = None
            if before is not None:
                head = before[owner].ids
                room -= len(head)
            overlap = min(stride, room // 2)
            if room < 1:
                raise UserError(f"slots={self.slots}: no room for a text", hint="Use more slots.")
            shift = len(plan.front) + (0 if head is None else len(head) + len(plan.middle))
            start = 0
            while True:
                end = min(start + room, len(e))
                ids = e.ids[start:end]
                examples.append(self.example([ids] if head is None else [head, ids], len(examples)))
                windows.append(Window(owner, start, end, shift))
                if end >= len(e):
                    break
                start = end - overlap
        return examples, windows


def cut_line(encoder: ExampleMaker, first: Sequence[str], second: Sequence[str | None] | None = None) -> list[str]:
    """In words, how many texts (or pairs) are cut to the model's length; nothing where none is."""
    cut = encoder.too_long(first, second)
    what = "pairs" if second is not None and len(second) > 0 and second[0] is not None else "texts"
    return cut_notes(cut, len(first), encoder.slots, what)


def _pieces(pieces: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([p[0] for p in pieces], np.int64), np.array([p[1] for p in pieces], np.int64)


def share(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of two lengths to keep in `room`: the longer one is cut first.

    >>> share(10, 4, 8), share(3, 4, 8), share(9, 9, 8)
    ((4, 4), (3, 4), (4, 4))
    """
    if first + second <= room:
        return first, second
    half = room // 2
    if second <= half:
        return room - second, second
    if first <= room - half:
        return first, room - first
    return room - half, half


def by_owner(windows: Sequence[Window], texts: int) -> list[list[int]]:
    """For each text the numbers of its windows."""
    found: list[list[int]] = [[] for _ in range(texts)]
    for number, window in enumerate(windows):
        found[window.owner].append(number)
    return found


def trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """A span of a text without the white space at its ends."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def best_window(windows: Sequence[Window], lengths: Sequence[int]) -> list[np.ndarray]:
    """For each token of each text, the window in which it stands farthest from a cut edge (Devlin et al. 2018, QA
    code).

    A text's own beginning and end are no cut edges.
    """
    best = [np.full(n, -1, np.int64) for n in lengths]
    context = [np.full(n, -1.0) for n in lengths]
    for number, w in enumerate(windows):
        place = np.arange(w.first, w.last)
        left = place - w.first + (1e6 if w.first == 0 else 0)
        right = w.last - 1 - place + (1e6 if w.last == lengths[w.owner] else 0)
        here = np.minimum(left, right) + 0.01 * (w.last - w.first)
        better = here > context[w.owner][w.first : w.last]
        context[w.owner][w.first : w.last][better] = here[better]
        best[w.owner][w.first : w.last][better] = number
    return best
