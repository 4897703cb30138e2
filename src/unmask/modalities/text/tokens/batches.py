"""From the token cache to packed batches and corruption: the text side of the loop."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

from unmask.core.batch import Example, PackedBatch, packer, place_best_fit
from unmask.core.corruption import (
    ALL_MASK,
    Corruption,
    Ratio,
    Replacement,
    Selector,
    Spans,
    Uniform,
    Units,
    Weighted,
    own_selector,
)
from unmask.core.density import make_density, make_loss_weights
from unmask.core.hashing import Salt, hash_keys
from unmask.errors import UserError
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens.cache import TokenCache


def text_example(ids: np.ndarray, units: np.ndarray, special: np.ndarray, identity: int) -> Example:
    """One text example; `special` marks [CLS], [SEP] and whatever else is never hidden."""
    return Example(values={"token": ids}, identity=identity, unit=units, special=special)


def batch_maker(
    cache: TokenCache, slots: int, special_ids: np.ndarray
) -> Callable[[list[list[int]], int], PackedBatch]:
    """A function from rows of example numbers to a packed batch with a fixed number of rows."""
    special = np.asarray(special_ids)

    def example(number: int) -> Example:
        ids, units = cache.example(number)
        return text_example(ids, units, np.isin(ids, special), number)

    return packer(example, slots)


def validation_batches(
    cache: TokenCache,
    numbers: np.ndarray,
    *,
    slots: int,
    special_ids: np.ndarray,
    batch_slots: int | None = None,
    most: int = 2048,
) -> list[PackedBatch]:
    """Held-out examples (at most `most`, spread evenly over the split) in packed batches, always the same.

    Args:
        batch_slots: of a training step: a held-out batch has no more slots, and 32 rows at most.
    """
    rows = 32 if batch_slots is None else max(1, min(32, batch_slots // slots))
    if len(numbers) > most:
        numbers = numbers[np.linspace(0, len(numbers) - 1, most).astype(int)]
    placed = place_best_fit(cache.lengths[numbers], slots)
    # Best fit puts the longest examples first: mix the rows, so that every batch is like the others.
    mixed = np.random.default_rng(0).permutation(len(placed))
    named = [[int(numbers[i]) for i in placed[row]] for row in mixed]
    make = batch_maker(cache, slots, special_ids)
    return [make(named[i : i + rows], rows) for i in range(0, len(named), rows)]


def corruption_of(settings: TextSettings, cache: TokenCache | None = None) -> Corruption:
    """The training corruption the settings ask for."""
    from unmask.training.schedule import Ramp

    fixed = settings.ratio if settings.ratio_end is None else Ramp(settings.ratio, settings.ratio_end)
    density = make_density(settings.density, fixed, settings.spread)
    ratio: Ratio = fixed if density is None else density
    weight = None
    if settings.rarity:
        if cache is None:
            raise ValueError("rarity needs a corpus to count tokens in")
        counts = cache.frequencies() + 1.0  # once more than they occur
        weight = (counts / counts.max()) ** -settings.rarity
    kinds: dict[str, Callable[[Ratio], Selector]] = {
        "token": lambda r: Uniform(ratio=r) if weight is None else Weighted(ratio=r, weight=weight),
        "word": lambda r: Units(ratio=r),
        "span": lambda r: Spans(ratio=r),
        "entity": lambda r: Units(ratio=r),
    }
    replacement = Replacement(mask=settings.mask, random=settings.random, keep=settings.keep)
    select = own_selector(settings.select, ratio) if settings.select is not None else kinds[settings.hide](ratio)
    return Corruption(
        select=select,
        replace=replacement,
        static=settings.static,
        weigh=make_loss_weights(settings.loss_weight, density),
    )


def measuring_corruption(ratio: float = 0.15) -> Corruption:
    """What held-out loss and accuracy are measured with: 15 % of the tokens, all behind the mask, fixed.

    Independent of the training recipe, so that runs with different ratios can be compared.
    """
    return Corruption(select=Uniform(ratio=ratio), replace=ALL_MASK, static=True)


class Replayed:
    """A corpus with some examples of another behind its own, as training reads it; its counts are the corpus's.

    Attributes:
        train: the corpus's training examples, and those drawn of the other's, by the numbers `example` takes.
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
