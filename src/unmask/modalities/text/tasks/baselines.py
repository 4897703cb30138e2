"""Baselines of fine-tuning: linear models of TF-IDF counts and of the frozen vectors of the two texts of a pair, the
cosine of TF-IDF vectors, each word's most frequent tag, and the sentence that has most words of a question.

They are what fine-tuning has to beat, and stand in its comparison on held-out rows. `baseline=` saves one of them, by
name, in place of encoder and head (`baseline.safetensors`, `baseline.json`). `simpler.py` fits them to a task's rows
and predicts with them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unmask.core.embed import embed
from unmask.errors import UserError
from unmask.modalities.text.network.held_out_search import pieces, with_pairs
from unmask.modalities.text.tasks import linear
from unmask.modalities.text.tasks.encoding import ExampleMaker
from unmask.modalities.text.tasks.held_out import kept_together
from unmask.modalities.text.tasks.network import TaskModel

NAME = "baseline"
KINDS: dict[str, tuple[str, ...]] = {
    "tfidf": ("words", "cosine"),
    "frozen": ("apart",),
    "lookup": ("tags", "sentence"),
}
"""What the setting `baseline` calls them."""
MOST_TERMS, MOST_WORDS = 20_000, 100_000
"""Words and pairs of words of a linear model; words of a cosine, which needs the rare ones."""
STRENGTHS = (0.1, 1.0, 10.0, 100.0)

Kind = Literal["words", "apart", "cosine", "tags", "sentence"]
PROBLEMS: dict[str, tuple[str, ...]] = {
    "words": ("single", "multi", "regression"),
    "apart": ("single", "multi", "regression", "pair"),
    "cosine": ("pair",),
    "tags": ("tag",),
    "sentence": ("answer",),
}
"""Of each kind, the problems that it is for."""


@dataclass
class Baseline:
    """A simpler model.

    Attributes:
        kind: 'words' (a linear model of TF-IDF of words and pairs of words), 'apart' (one of |u - v|, u * v and the
            cosine of two texts' vectors), 'cosine' (of the TF-IDF vectors of two texts), 'tags' (the tag that a word
            has most often) or 'sentence' (which sentence of a context shares words with the question: see `overlap`).
        problem: how the outputs are meant: single, multi, regression (classify), pair (similarity), tag or answer.
        model: words, apart; sentence: the gain of overlaps.
        terms: what is counted, or (tags) the words that most often have a tag other than O, in lower case.
        idf: words, cosine: inverse document frequencies of the terms.
        mean, deviation: apart: of the features.
        tags, chance: tags: number of each term's tag, and how often it has that one.
    """

    kind: Kind
    problem: str
    model: linear.Linear = field(default_factory=lambda: linear.Linear(np.zeros((0, 1)), np.zeros(1)))
    terms: list[str] = field(default_factory=list)
    idf: np.ndarray = field(default_factory=lambda: np.zeros(0))
    mean: np.ndarray = field(default_factory=lambda: np.zeros(0))
    deviation: np.ndarray = field(default_factory=lambda: np.ones(0))
    tags: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    chance: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def outputs(self, items: Sequence[Any], vectors: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
        """(n, k) logits or numbers; not of 'tags', see `tag_log_probabilities`.

        Args:
            vectors: apart: of first and second texts.
        """
        if self.kind == "cosine":
            counter = _single(vocabulary={term: i for i, term in enumerate(self.terms)})
            counter.idf_ = self.idf
            first, second = (counter.transform([getattr(i, name) for i in items]) for name in ("text", "text2"))
            return np.asarray(first.multiply(second).sum(1)).reshape(-1, 1)
        if self.kind == "words":
            counter = _counter(vocabulary={term: i for i, term in enumerate(self.terms)})
            counter.idf_ = self.idf
            return self.model(_counts(counter, items))
        assert vectors is not None
        return self.model((pair_features(*vectors) - self.mean) / self.deviation)

    def save(self, folder: Path) -> None:
        """Write it into a model folder."""
        from safetensors.numpy import save_file

        arrays = {
            "weight": self.model.weight,
            "bias": self.model.bias,
            "idf": self.idf,
            "mean": self.mean,
            "deviation": self.deviation,
            "tags": self.tags,
            "chance": self.chance,
        }
        save_file({k: np.ascontiguousarray(v, np.float32) for k, v in arrays.items()}, folder / f"{NAME}.safetensors")
        about = {"kind": self.kind, "problem": self.problem, "terms": self.terms}
        (folder / f"{NAME}.json").write_text(json.dumps(about), encoding="utf-8")

    def tag_log_probabilities(self, words: Iterable[str], labels: int) -> np.ndarray:
        """(words, labels) log-probabilities of tags; a word that is not there has tag 0, which is O."""
        place = {term: i for i, term in enumerate(self.terms)}
        at = np.array([place.get(word.lower(), -1) for word in words], np.int64)
        out = np.full((len(at), labels), np.log(1e-6))
        out[at < 0, 0] = 0.0
        known = np.flatnonzero(at >= 0)
        chance = self.chance[at[known]].astype(np.float64)
        out[known] = np.log((1 - chance) / (labels - 1))[:, None]
        out[known, self.tags[at[known]]] = np.log(chance)
        return out


def load_baseline(folder: Path, problem: str, outputs: int) -> Baseline:
    """What `save` wrote.

    Args:
        problem, outputs: of the folder's task: what the model must be for, and how many numbers it gives.
    """
    from safetensors.numpy import load_file

    hint = f"Copy {NAME}.json and {NAME}.safetensors again: predictions of this folder need both."
    try:
        about = json.loads((folder / f"{NAME}.json").read_text(encoding="utf-8"))
        arrays = load_file(folder / f"{NAME}.safetensors")
        more = {name: arrays[name] for name in ("tags", "chance") if name in arrays}
        found = Baseline(
            kind=about["kind"],
            problem=about["problem"],
            terms=[str(t) for t in about["terms"]],
            model=linear.Linear(arrays["weight"], arrays["bias"]),
            idf=arrays["idf"],
            mean=arrays["mean"],
            deviation=arrays["deviation"],
            **more,
        )
        found.tags = found.tags.astype(np.int64)
        fits = found.problem in PROBLEMS[found.kind]
    except Exception as error:  # safetensors raises its own kinds
        raise UserError(f"{folder}: the saved baseline cannot be read ({error})", hint=hint) from None
    if not fits or found.problem != problem:
        raise UserError(
            f"{folder}/{NAME}.json: kind {found.kind!r} of problem {found.problem!r}, the folder's task is {problem!r}",
            hint=hint,
        )
    if found.kind in ("words", "apart") and found.model.weight.shape[1:] != (outputs,):
        raise UserError(
            f"{folder}/{NAME}.safetensors: weight {list(found.model.weight.shape)}, expected {outputs} columns",
            hint=hint,
        )
    weighed = {"tags": (len(found.tags), len(found.chance)), "apart": ()}.get(found.kind, (len(found.idf),))
    if any(n != len(found.terms) for n in weighed):
        raise UserError(f"{folder}/{NAME}.json: {len(found.terms)} terms, {weighed[0]} weights", hint=hint)
    if len(found.tags) and not (found.tags.min() > 0 and found.tags.max() < outputs):
        raise UserError(f"{folder}/{NAME}.safetensors: tags beyond the {outputs} of the model", hint=hint)
    return found


def fit_words(
    items: Sequence[Any],
    target: np.ndarray,
    kind: linear.Kind,
    problem: str,
    *,
    weights: np.ndarray | None = None,
    seed: int = 0,
    strength: float | None = None,
) -> Baseline | None:
    """TF-IDF of words and pairs of words (sublinear counts, pairs that occur twice), then a linear model; C by
    cross-validation.

    None where the texts hold no words.
    """
    texts = [t for item in items for t in (item.text, item.text2) if t is not None]
    counter = _counter(max_features=MOST_TERMS, min_df=2 if len(texts) >= 200 else 1)
    try:
        counter.fit(texts)
    except ValueError:  # no word in any text
        return None
    features = _counts(counter, items)
    if strength is None:
        _, strength, _ = linear.cross_validated(
            [features],
            target,
            kind,
            seed=seed,
            weights=weights,
            groups=kept_together(items),
            strengths=STRENGTHS[::-1],
            most=2000,
        )
    found = linear.fit(features, target, kind, strength, weights=weights, steps=60)
    return Baseline("words", problem, found, terms=list(counter.get_feature_names_out()), idf=counter.idf_)


def fit_pair_vectors(
    vectors: tuple[np.ndarray, np.ndarray],
    items: Sequence[Any],
    target: np.ndarray,
    kind: linear.Kind,
    problem: str,
    *,
    weights: np.ndarray | None = None,
    seed: int = 0,
    strength: float | None = None,
) -> Baseline:
    """A linear model of how the vectors of two texts differ and agree; C by cross-validation."""
    x = pair_features(*vectors)
    mean, deviation = x.mean(0), np.maximum(x.std(0), 1e-6)
    x = ((x - mean) / deviation).astype(np.float32)
    if strength is None:
        _, strength, _ = linear.cross_validated(
            [x],
            target,
            kind,
            seed=seed,
            weights=weights,
            groups=kept_together(items),
            strengths=(0.001, 0.01, 0.1, 1.0),
        )
    return Baseline(
        "apart", problem, linear.fit(x, target, kind, strength, weights=weights), mean=mean, deviation=deviation
    )


def fit_cosine(items: Sequence[Any]) -> Baseline | None:
    """TF-IDF of single words (sublinear counts); None where the texts hold no words."""
    counter = _single(max_features=MOST_WORDS)
    try:
        counter.fit([t for item in items for t in (item.text, item.text2) if t is not None])
    except ValueError:  # no word in any text
        return None
    return Baseline("cosine", "pair", terms=list(counter.get_feature_names_out()), idf=counter.idf_)


def fit_tags(tagged: Iterable[tuple[str, int]], labels: int) -> Baseline:
    """Each word's most frequent tag, of (word, number of its tag).

    How often it has that tag is counted with one look more, spread over all tags: a word seen once is no certainty.
    """
    seen: dict[str, Counter[int]] = {}
    for word, tag in tagged:
        seen.setdefault(word.lower(), Counter())[tag] += 1
    most = {word: (count.most_common(1)[0], count.total()) for word, count in seen.items()}
    kept = {word: (tag, (n + 1 / labels) / (all_ + 1)) for word, ((tag, n), all_) in most.items() if tag != 0}
    return Baseline(
        "tags",
        "tag",
        terms=list(kept),
        tags=np.array([tag for tag, _ in kept.values()], np.int64),
        chance=np.array([chance for _, chance in kept.values()]),
    )


def pair_features(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """(n, 2 width + 1): |u - v|, u * v and the cosine, of vectors of length 1."""
    u, v = (a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-9) for a in (u, v))
    return np.concatenate([np.abs(u - v), u * v, (u * v).sum(1, keepdims=True)], 1).astype(np.float32)


def pair_vectors(model: TaskModel, encoder: ExampleMaker, items: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Mean states of the first and of the second texts, each read alone."""
    texts = list(dict.fromkeys(t for item in items for t in (item.text, item.text2)))
    place = {t: i for i, t in enumerate(texts)}
    with model.context():
        found = embed(model.masked, encoder.whole(texts), slots=encoder.slots)
    return found[[place[i.text] for i in items]], found[[place[i.text2] for i in items]]


def _counter(**options: Any) -> Any:
    return _vectorizer(tokenizer=pieces, token_pattern=None, ngram_range=(1, 2), **options)


def _single(**options: Any) -> Any:
    return _vectorizer(analyzer=lambda text: with_pairs(pieces(text)), **options)


def _vectorizer(**options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(sublinear_tf=True, dtype=np.float32, **options)


def _counts(counter: Any, items: Sequence[Any]) -> Any:
    """Counts of a text; of a pair both texts', what they share, and how alike they are."""
    from scipy import sparse

    first = counter.transform([item.text for item in items])
    if items[0].text2 is None:
        return first.tocsr()
    second = counter.transform([item.text2 for item in items])
    both = first.multiply(second)
    return sparse.hstack([abs(first - second), both, sparse.csr_matrix(both.sum(1))]).tocsr()
