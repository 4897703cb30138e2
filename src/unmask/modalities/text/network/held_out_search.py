"""A retrieval test made of held-out texts alone: given the opening of a text, find the rest of it among all rests.

With it, training on texts without labels can be judged: did the vectors become better or worse? The opening and the
rest are different parts of the text, so that copying does not help; near copies are left out. For other searches
(questions, titles) the result is only a guide: docs/explanation/measured-text.md compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from unmask.evaluation.metrics import Estimate, bootstrap_mean
from unmask.modalities.text.tokens.words import WORD, sentence_ends, with_pairs, words

FEWEST = 30
"""Held-out texts that can be parted, below which nothing is said."""

CHOSEN_ON, JUDGED_ON = 256, 1000
"""Texts at most that weights are chosen by, and that the chosen ones are judged on."""

DEEPEST = 10

LEARNT_BY_WORDS = 20_000
"""Texts at most that the counts of words are taken from."""

_OPENING, _REST = 4, 8
"""Words at least, before and after the cut."""


def halves(text: str) -> tuple[str, str] | None:
    """The first sentence and the rest; halves where no sentence ends well; None where there is too little text.

    >>> halves("Rivers carry sand to the sea. There it settles slowly, and over many years it turns to stone.")
    ('Rivers carry sand to the sea.', 'There it settles slowly, and over many years it turns to stone.')
    >>> halves("Too short a text.") is None
    True
    """
    starts = [found.start() for found in WORD.finditer(text)]
    if len(starts) < _OPENING + _REST:
        return None
    first, last = starts[_OPENING - 1], starts[len(starts) - _REST]
    cut = next((end for end in sentence_ends(text, lines=True) if first < end <= last), None)
    if cut is None:
        cut = starts[min(len(starts) // 2, len(starts) - _REST)]
    return text[:cut].strip(), text[cut:].strip()


@dataclass(frozen=True)
class Search:
    """Openings, and for each, at the same place, what follows."""

    queries: list[str]
    documents: list[str]

    def __len__(self) -> int:
        return len(self.queries)


@dataclass(frozen=True)
class HeldOutSearch:
    """Two searches with no text in common, that weights are `chosen` by and `judged` on, and none of the texts `learnt`
    from, which counts of words are taken of."""

    chosen: Search
    judged: Search
    learnt: list[str]


def held_out_search(held: Iterable[str], learnt: Iterable[str]) -> HeldOutSearch:
    """The searches that can be made of held-out texts.

    Args:
        held: held-out texts; of those with the same opening or the same rest, and of those that a training text equals
            but for case and punctuation, none but the first is taken, or none at all.
        learnt: training texts.
    """
    some, known = list[str](), set[int]()
    for text in learnt:
        known.add(_alike(text))
        if len(some) < LEARNT_BY_WORDS:
            some.append(text)
    pairs = list[tuple[str, str]]()
    for text in held:
        found = halves(text)
        if found is None:
            continue
        marks = {_alike(text), _alike("opening " + found[0]), _alike("rest " + found[1])}
        if marks & known:
            continue
        known |= marks
        pairs.append(found)
    order = np.random.default_rng(0).permutation(len(pairs))
    few = min(CHOSEN_ON, len(pairs) // 3)
    chosen, judged = order[:few], order[few : few + JUDGED_ON]
    searches = [Search([pairs[i][0] for i in part], [pairs[i][1] for i in part]) for part in (chosen, judged)]
    return HeldOutSearch(searches[0], searches[1], some)


def _alike(text: str) -> int:
    return hash(" ".join(words(text)))


def ranks(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """How many documents stand before or beside the right one, for each query; ties go against it.

    Args:
        queries, documents: (n, width) vectors, whose products say how near they are; or sparse matrices.
    """
    near = queries @ documents.T
    near = near.toarray() if hasattr(near, "toarray") else near
    return (near >= near.diagonal()[:, None]).sum(1) - 1


def gains(rank: np.ndarray) -> np.ndarray:
    """nDCG@10 of each query, of which one document is right."""
    return np.where(rank < DEEPEST, 1 / np.log2(rank + 2), 0.0)


def ranks_by_words(search: Search, learnt: Sequence[str]) -> np.ndarray:
    """`ranks` of TF-IDF, counted in training texts and those searched: the rule that needs no model."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    counted = TfidfVectorizer(analyzer=lambda text: with_pairs(words(text)), sublinear_tf=True).fit(
        [*learnt, *search.documents]
    )
    return ranks(counted.transform(search.queries), counted.transform(search.documents))


@dataclass(frozen=True, kw_only=True)
class SearchVerdict:
    """Whether training has made the vectors better, by texts that neither it nor the choice of weights has seen.

    Attributes:
        share: of the way from the start to the trained weights, at which the chosen ones lie; 0 for the start's own.
        before, after, by_words: `ranks` of the start, of the chosen weights and of TF-IDF on the judged search.
    """

    share: float
    before: np.ndarray
    after: np.ndarray
    by_words: np.ndarray

    @property
    def gain(self) -> Estimate:
        """Of nDCG@10, paired; the interval resamples texts."""
        return bootstrap_mean(gains(self.after) - gains(self.before), np.arange(len(self.after)))

    @property
    def helped(self) -> bool:
        """Whether the gain is above 0 by more than its interval."""
        return self.share > 0 and self.gain.low > 0

    def to_dict(self) -> dict[str, object]:
        """As plain data, for --json and unmask.json."""
        measured = {"before": self.before, "after": self.after, "by_words": self.by_words}
        return {
            "helped": self.helped,
            "kept": "adapted" if self.helped else "start",
            "share": self.share,
            "texts": len(self.before),
            "ndcg@10": {name: float(gains(rank).mean()) for name, rank in measured.items()},
            "mrr@10": {
                name: float(np.where(rank < DEEPEST, 1 / (rank + 1), 0.0).mean()) for name, rank in measured.items()
            },
            "gain": self.gain.to_dict(),
        }

    def lines(self, out: object) -> list[str]:
        """What came of it, in sentences for people."""
        texts = f"nDCG@10 of finding {len(self.before)} held-out texts by their openings"
        before, after, by_words = (float(gains(rank).mean()) for rank in (self.before, self.after, self.by_words))
        gain = self.gain
        change = f"{before:.3f} -> {after:.3f}, {gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
        if self.helped:
            lines = [f"adaptation helped: {texts}: {change}"]
        elif self.share == 0:
            lines = [f"adaptation did not help: {texts}: {before:.3f}, and no state of the training was better"]
        else:
            lines = [f"adaptation did not help by more than its interval: {texts}: {change}"]
        if not self.helped:
            lines.append(f"{out} holds the weights of the model as it was")
        written = after if self.helped else before
        if by_words >= written:
            lines.append(
                f"counts of words (TF-IDF) find more: {by_words:.3f} beside {written:.3f}; a search by words serves "
                "these texts better, alone or beside the vectors"
            )
        else:
            lines.append(f"counts of words (TF-IDF): {by_words:.3f}")
        return lines
