"""Documents into token arrays, group by group."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from unmask.modalities.text.reading.documents import Document, moved, pieces
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.tokens.units import entity_units

GROUP_DOCUMENTS, GROUP_CHARACTERS = 1000, 1_000_000
PIECE_CHARACTERS = 500_000
"""Encodings take far more memory than text: documents go through the tokenizer in groups and pieces of bounded size."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How documents become examples.

    Attributes:
        room: tokens of an example, those that stand around every text not counted.
        least: pieces of fewer tokens are left out.
        stops: ids after which a piece may well end.
        holdout, seed: see `is_held_out`.
    """

    tokenizer: Tokenizer
    room: int
    least: int
    stops: np.ndarray
    holdout: float
    seed: int

    @property
    def key(self) -> str:
        """Of what decides the tokens, besides the reading."""
        return f"{self.tokenizer.fingerprint()} {self.tokenizer.tokens} {self.room} {self.least}"

    @property
    def dtype(self) -> str:
        """The smallest type of whole numbers that holds every token."""
        return "uint16" if self.tokenizer.vocab_size <= 1 << 16 else "uint32"


@dataclass(frozen=True, kw_only=True)
class Tokenised:
    """The examples of a group of documents, one after another.

    Attributes:
        tokens, starts: ids, and 1 where a unit starts.
        lengths, held: tokens of each example, and whether it is held out.
        read, unknown: tokens of all pieces, and those that the tokenizer does not know.
    """

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    held: np.ndarray
    documents: int
    entities: int
    read: int
    unknown: int
    short: int


def tokenise(group: list[Document], recipe: Recipe) -> Tokenised:
    """Tokenise documents and cut them into examples."""
    tokens: list[np.ndarray] = [np.zeros(0, recipe.dtype)]
    starts: list[np.ndarray] = [np.zeros(0, np.uint8)]
    lengths: list[int] = []
    held: list[bool] = []
    unknown = read = short = 0
    for d, (ids, first) in zip(group, _encoded(group, recipe.tokenizer), strict=True):
        out = is_held_out(d.text, recipe.holdout, recipe.seed)
        read += len(ids)
        if recipe.tokenizer.unk_id is not None:
            unknown += int(np.count_nonzero(ids == recipe.tokenizer.unk_id))
        for begin, end in cut(ids, first, recipe.room, recipe.stops):
            if end - begin < recipe.least:
                short += 1
                continue
            tokens.append(ids[begin:end].astype(recipe.dtype))
            starts.append(first[begin:end])
            lengths.append(end - begin)
            held.append(out)
    return Tokenised(
        tokens=np.concatenate(tokens),
        starts=np.concatenate(starts),
        lengths=np.array(lengths, np.int64),
        held=np.array(held, np.uint8),
        documents=len(group),
        entities=sum(len(d.entities) for d in group),
        read=read,
        unknown=unknown,
        short=short,
    )


def groups(stream: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in groups bounded by number and by characters: memory stays the same for many short and few long."""
    group: list[Document] = []
    size = 0
    for d in stream:
        group.append(d)
        size += len(d.text)
        if len(group) == GROUP_DOCUMENTS or size >= GROUP_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _encoded(group: list[Document], tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(ids, unit starts) of each document; a long one is tokenised in pieces, cut at white space."""
    parts = [list(pieces(d.text, PIECE_CHARACTERS)) for d in group]
    encoded = iter(tokenizer.encode([text for part in parts for text in part], specials=False))
    for d, part in zip(group, parts, strict=True):
        ids, starts, begin = [], [], 0
        for text in part:
            e, here = next(encoded), moved(d.entities, begin)
            units = entity_units(e.units, here, e.offsets) if here else e.units
            ids.append(e.ids)
            starts.append(np.append(1, np.diff(units) != 0).astype(np.uint8)[: len(e)])
            begin += len(text)
        yield np.concatenate(ids), np.concatenate(starts)


def cut(ids: np.ndarray, starts: np.ndarray, room: int, stops: np.ndarray) -> list[tuple[int, int]]:
    """Cut a document into pieces of at most `room` tokens, between units, after a stop in the last fifth if there is
    one.

    The pieces, one after another, are the document.

    >>> cut(np.arange(5), np.array([1, 1, 1, 0, 1]), 3, np.array([]))
    [(0, 2), (2, 5)]
    """
    pieces, begin, size = [], 0, len(ids)
    while size - begin > room:
        end = begin + room
        late = begin + max(1, int(room * 0.8))
        # A stop inside a unit ("...", 3.14 in one piece) is not an end.
        ends = np.flatnonzero(np.isin(ids[late - 1 : end], stops) & (starts[late : end + 1] == 1))
        if len(ends):
            end = late + int(ends[-1])
        else:
            edges = np.flatnonzero(starts[begin + 1 : end + 1])
            # A single unit longer than a row can only be cut inside.
            end = begin + 1 + int(edges[-1]) if len(edges) else end
        pieces.append((begin, end))
        begin = end
    if begin < size:
        pieces.append((begin, size))
    return pieces


def is_held_out(text: str, holdout: float, seed: int) -> bool:
    """Whether a document is held out: by a hash of its text, so that it is stable."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, salt=seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little") < holdout * 2**64
