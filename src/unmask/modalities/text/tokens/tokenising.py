"""Documents into token arrays, group by group."""

from __future__ import annotations

import bisect
import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from unmask.modalities.text.reading.documents import Document, moved, pieces
from unmask.modalities.text.tokens.chunks import Chunks, of_runs, unit_starts
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.tokens.units import entity_units
from unmask.modalities.text.tokens.words import sentence_ends

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
        sentences: share of the pieces that are cut into sentences.
        holdout, seed: see `is_held_out`.
    """

    tokenizer: Tokenizer
    room: int
    least: int
    stops: np.ndarray
    sentences: float
    holdout: float
    seed: int

    @property
    def key(self) -> str:
        """Of what decides the tokens, besides the reading."""
        parts = (self.tokenizer.fingerprint(), self.tokenizer.tokens, self.room, self.least, self.sentences or "")
        return " ".join(map(str, parts)).strip()

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
        short: pieces that are left out.
        cuts: where pieces were cut into sentences.
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
    cuts: int


def tokenise(group: list[Document], recipe: Recipe, chunks: Chunks | None = None) -> Tokenised:
    """Tokenise documents and cut them into examples.

    Args:
        chunks: what is remembered of the groups before; without it everything is tokenised, with the same result.
    """
    tokens: list[np.ndarray] = [np.zeros(0, recipe.dtype)]
    starts: list[np.ndarray] = [np.zeros(0, np.uint8)]
    lengths: list[int] = []
    held: list[bool] = []
    unknown = read = short = cuts = 0
    for d, (ids, first, ends) in zip(group, _remembered(group, recipe, chunks), strict=True):
        out = is_held_out(d.text, recipe.holdout, recipe.seed)
        read += len(ids)
        if recipe.tokenizer.unk_id is not None:
            unknown += int(np.count_nonzero(ids == recipe.tokenizer.unk_id))
        ranges = cut(ids, first, recipe.room, recipe.stops)
        if recipe.sentences:
            starting = np.searchsorted(ends, list(sentence_ends(d.text, lines=True)), side="right")
            starting = np.intersect1d(starting, np.flatnonzero(first))
            phase = _share_of(d.text, recipe.seed, b"sentences")
            whole = len(ranges)
            ranges = into_sentences(ranges, starting, share=recipe.sentences, phase=phase, least=recipe.least)
            cuts += len(ranges) - whole
        for begin, end in ranges:
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
        cuts=cuts,
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


def _remembered(
    group: list[Document], recipe: Recipe, chunks: Chunks | None
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """`_encoded`, by runs between white space where that gives the same."""
    most = PIECE_CHARACTERS
    by_run = [chunks is not None and len(d.text) <= most and not d.entities and of_runs(d.text) for d in group]
    texts = [d.text for d, runs in zip(group, by_run, strict=True) if runs]
    quick = iter(()) if chunks is None else chunks.encode(texts, ends=recipe.sentences > 0)
    slow = _encoded([d for d, runs in zip(group, by_run, strict=True) if not runs], recipe.tokenizer)
    for runs in by_run:
        yield next(quick if runs else slow)


def _encoded(group: list[Document], tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(ids, unit starts, where each token ends in the text) of each document; a long one is tokenised in pieces, cut at
    white space."""
    parts = [list(pieces(d.text, PIECE_CHARACTERS)) for d in group]
    encoded = iter(tokenizer.encode([text for part in parts for text in part], specials=False))
    for d, part in zip(group, parts, strict=True):
        ids, starts, ends, begin = [], [], [], 0
        for text in part:
            e, here = next(encoded), moved(d.entities, begin)
            units = entity_units(e.units, here, e.offsets) if here else e.units
            ids.append(e.ids)
            ends.append(e.offsets[:, 1] + begin)
            starts.append(unit_starts(units))
            begin += len(text)
        yield np.concatenate(ids), np.concatenate(starts), np.concatenate(ends)


def cut(ids: np.ndarray, starts: np.ndarray, room: int, stops: np.ndarray) -> list[tuple[int, int]]:
    """Cut a document into pieces of at most `room` tokens, between units, after a stop in the last fifth if there is
    one.

    The pieces, one after another, are the document.

    >>> cut(np.arange(5), np.array([1, 1, 1, 0, 1]), 3, np.array([]))
    [(0, 2), (2, 5)]
    """
    edges = np.flatnonzero(starts).tolist()
    # A stop inside a unit ("...", 3.14 in one piece) is not an end.
    ends = (np.flatnonzero(np.isin(ids[:-1], stops) & (starts[1:] == 1)) + 1).tolist()
    pieces, begin, size = [], 0, len(ids)
    while size - begin > room:
        end, late = begin + room, begin + max(1, int(room * 0.8))
        last = bisect.bisect_right(ends, end) - 1
        if last >= 0 and ends[last] >= late:
            end = ends[last]
        else:
            last = bisect.bisect_right(edges, end) - 1
            # A single unit longer than a row can only be cut inside.
            end = edges[last] if last >= 0 and edges[last] > begin else end
        pieces.append((begin, end))
        begin = end
    if begin < size:
        pieces.append((begin, size))
    return pieces


def into_sentences(
    ranges: list[tuple[int, int]], starts: np.ndarray, *, share: float, phase: float, least: int
) -> list[tuple[int, int]]:
    """Ranges of tokens, a share of them cut where sentences start.

    Args:
        phase: from 0 to 1, of the document: which of its ranges are cut.
        least: a sentence of fewer tokens stays with the next one, or at the end of a range with the one before.

    >>> into_sentences([(0, 9), (9, 20)], np.array([4, 12, 13, 16]), share=0.5, phase=0.0, least=2)
    [(0, 9), (9, 12), (12, 16), (16, 20)]
    """
    found = []
    for number, (begin, end) in enumerate(ranges):
        if math.floor((number + 1) * share + phase) > math.floor(number * share + phase):
            for start in starts[(starts > begin) & (starts < end)].tolist():
                if min(start - begin, end - start) >= least:
                    found.append((begin, start))
                    begin = start
        found.append((begin, end))
    return found


def is_held_out(text: str, holdout: float, seed: int) -> bool:
    """Whether a document is held out: by a hash of its text, so that it is stable."""
    return _share_of(text, seed) < holdout


def _share_of(text: str, seed: int, purpose: bytes = b"") -> float:
    """From 0 to 1, by a hash of a text."""
    salt = seed.to_bytes(8, "little")
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, salt=salt, person=purpose)
    return int.from_bytes(digest.digest(), "little") / 2**64
