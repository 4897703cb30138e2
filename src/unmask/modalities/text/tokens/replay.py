"""Some of another corpus among what is learnt from, so that a model does not forget what it knew (replay; Ibrahim et
al. 2024, "Simple and Scalable Strategies to Continually Pre-train Large Language Models", section 5)."""

from __future__ import annotations

import zlib

import numpy as np

from unmask.core.hashing import Salt, hash_keys
from unmask.errors import UserError
from unmask.modalities.text.tokens.cache import TokenCache


class Replayed:
    """A corpus with some examples of another behind its own, as training reads it; its counts are the corpus's.

    Attributes:
        train: the corpus's training examples, and those drawn of the other's, by the numbers `example` takes.
        validation: the corpus's held-out examples.
        lengths: slots of each example of both.
        share: of the slots learnt from, that are of the other: less than was asked for where the other has not so many.
    """

    def __init__(self, corpus: TokenCache, other: TokenCache, share: float, *, seed: int) -> None:
        self._corpus, self._other, self.validation = corpus, other, corpus.validation
        slots = float(corpus.lengths[corpus.train].sum())
        order = other.train[np.argsort(hash_keys(seed, other.train, Salt.REPLAY), kind="stable")]
        taken = np.sort(order[np.cumsum(other.lengths[order]) <= slots * share / (1 - share)])
        if not len(taken):
            raise UserError(
                f"replay={share}: no general text to learn from beside what forgetting is measured on",
                hint="Give more general text, of several documents, or a larger share.",
            )
        self.train = np.concatenate([corpus.train, len(corpus) + taken])
        self.lengths = np.concatenate([corpus.lengths, other.lengths])
        replayed = float(other.lengths[taken].sum())
        self.share = replayed / (slots + replayed)

    def __len__(self) -> int:
        return len(self._corpus) + len(self._other)

    def example(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """See `TokenCache.example`; the other's examples are numbered on from the corpus's."""
        first = len(self._corpus)
        return self._corpus.example(number) if number < first else self._other.example(number - first)

    def frequencies(self) -> np.ndarray:
        """See `TokenCache.frequencies`."""
        return self._corpus.frequencies()

    def digest(self) -> int:
        """Of both corpora and of what is drawn."""
        both = f"{self._corpus.digest()} {self._other.digest()}"
        return zlib.crc32(self.train.tobytes(), zlib.crc32(both.encode()))
