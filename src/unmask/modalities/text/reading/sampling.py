"""A share of a stream of texts that does not depend on their order: for a tokenizer that hears every file
and language."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from unmask.modalities.text.reading.documents import pieces

PIECE = 20_000
"""Characters of the pieces that are kept or left: a book is sampled as evenly as many short texts."""


def sampled(texts: Iterable[str], most: int) -> list[str]:
    """Pieces of the texts, about `most` characters at most and half as many at least where there are more; all where
    there are less.

    A piece is kept if a hash of it lies below a threshold, which is halved whenever too much is kept. So what is kept
    is the same whatever the order of files and texts, and each file has its share. Texts come in the order of their
    hashes.

    >>> sampled(["b", "a"], 10) == sampled(["a", "b"], 10)
    True
    """
    kept: list[tuple[int, str]] = []
    size, threshold = 0, 1 << 64
    for text in texts:
        for piece in pieces(text, PIECE):
            number = number_of(piece)
            if number >= threshold:
                continue
            kept.append((number, piece))
            size += len(piece)
            while size > most and len(kept) > 1:
                threshold //= 2
                kept = [k for k in kept if k[0] < threshold]
                size = sum(len(piece) for _, piece in kept)
    return [piece for _, piece in sorted(kept)]


def number_of(piece: str) -> int:
    """What decides whether a piece is kept: 64 bits of a hash of it."""
    return int.from_bytes(hashlib.blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
