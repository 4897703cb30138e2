"""Baselines of fine-tuning: linear models of TF-IDF counts and of the frozen vectors of the two texts of a pair, the
cosine of TF-IDF vectors, each word's most frequent tag, and the sentence that has most words of a question.

They are what fine-tuning has to beat, and stand in its comparison on held-out rows. `baseline=` saves one of them, by
name, in place of encoder and head (`baseline.safetensors`, `baseline.json`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unmask.core.embed import embed
from unmask.errors import UserError
from unmask.modalities.text.tasks import linear, loop
from unmask.modalities.text.tasks.answer import SquadQuestion
from unmask.modalities.text.tasks.classify import KINDS as LOSSES
from unmask.modalities.text.tasks.classify import Classify
from unmask.modalities.text.tasks.encoding import ExampleMaker, Prepared
from unmask.modalities.text.tasks.held_out import kept_together
from unmask.modalities.text.tasks.network import TaskModel
from unmask.modalities.text.tasks.task import TextTask
from unmask.modalities.text.tokens.words import pieces, sentences, with_pairs, words

NAME = "baseline"
KINDS: dict[str, tuple[str, ...]] = {
    "tfidf": ("words", "cosine"),
    "frozen": ("apart",),
    "lookup": ("tags", "sentence"),
}
"""What the setting `baseline` calls them."""
MOST_TERMS, MOST_WORDS = 20_000, 100_000
"""Words and pairs of words of a linear model; words of a cosine, which needs the rare ones."""
MOST_PAIRS = 20_000
"""Pairs that a linear model of frozen vectors is fitted to, drawn by the seed: a pair of 768 wide vectors takes 12 kB.
"""
GAINS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""What overlaps of sentences may be multiplied by."""
EDGE = 0.01
"""Added to the first and the last token of a sentence, so that alone the rule answers with whole sentences."""
OUTSIDE = -1e4
"""Of slots that are no token of the context."""

Kind = Literal["words", "apart", "cosine", "tags", "sentence"]
ARRAYS = ("idf", "mean", "deviation", "tags", "chance")
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
    """A simpler model, of a kind: 'words' (a linear model of TF-IDF of words and pairs of words), 'apart' (one of |u -
    v|, u * v and the cosine of two texts' vectors), 'cosine' (of the TF-IDF vectors of two texts), 'tags' (the tag that
    a word has most often) or 'sentence' (which sentence of a context shares words with the question: see `overlaps`,
    whose gain is the weight). `problem` says how the outputs are meant: single, multi, regression (classify), pair
    (similarity), tag or answer. `terms` are what is counted, weighed by `idf`, or (tags) the words that most often have
    a tag other than O, in lower case, with the number of that tag, and the chance that they have it. `mean` and
    `deviation` are of the features of 'apart'."""

    kind: Kind
    problem: str
    model: linear.Linear = field(default_factory=lambda: linear.Linear(np.zeros((0, 1)), np.zeros(1)))
    terms: list[str] = field(default_factory=list)
    idf: np.ndarray = field(default_factory=lambda: np.zeros(0))
    mean: np.ndarray = field(default_factory=lambda: np.zeros(0))
    deviation: np.ndarray = field(default_factory=lambda: np.ones(0))
    tags: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    chance: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def outputs(
        self, task: TextTask, model: TaskModel | None, prepared: Prepared, found: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """What it says about every example, in the form of the model's own outputs; `found` is what encoder and head
        say (similarity: the vectors), `model` the one whose vectors 'apart' takes. The score of a pair of similarity
        stands as two vectors of one number whose product it is; a text alone keeps its vector."""
        if self.kind == "tags":
            return list(self._tag_scores(task, prepared))
        if self.kind == "sentence":
            return list(self.sentence_scores(prepared))
        if task.name != "similarity":
            if self.kind == "words":
                return list(self.of_texts(prepared.items))
            assert model is not None
            return list(self.of_vectors(pair_vectors(model, task.encoder, prepared.items)))
        out = list(found)
        pairs = [i for i, group in enumerate(prepared.groups) if len(group) > 1]
        if pairs:
            groups, items = [prepared.groups[i] for i in pairs], [prepared.items[i] for i in pairs]
            scores = self.of_texts(items) if self.kind == "cosine" else self.of_vectors(_both(found, groups))
            for group, score in zip(groups, scores, strict=True):
                out[group[0]], out[group[1]] = np.asarray(score, np.float64), np.ones(1)
        return out

    def of_texts(self, items: Sequence[Any]) -> np.ndarray:
        """(n, k) logits or numbers of 'words', (n, 1) cosines of 'cosine'."""
        counter = _tfidf(self.kind, vocabulary={term: i for i, term in enumerate(self.terms)})
        counter.idf_ = self.idf
        if self.kind == "words":
            return self.model(_counts(counter, items))
        first, second = (counter.transform([getattr(i, name) for i in items]) for name in ("text", "text2"))
        return np.asarray(first.multiply(second).sum(1)).reshape(-1, 1)

    def of_vectors(self, vectors: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """(n, k) logits or numbers of 'apart', of the vectors of first and second texts."""
        return self.model((pair_features(*vectors) - self.mean) / self.deviation)

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

    def _tag_scores(self, task: TextTask, prepared: Prepared) -> Iterator[np.ndarray]:
        for number, window in enumerate(prepared.extra["windows"]):
            text = prepared.items[window.owner].text
            here = [w for w in prepared.extra["words"][window.owner] if window.first <= w[0] < window.last]
            scores = np.zeros((len(prepared.examples[number]), task.outputs))
            places = [token - window.first + window.shift for token, _, _ in here]
            scores[places] = self.tag_log_probabilities((text[a:b] for _, a, b in here), task.outputs)
            yield scores

    def sentence_scores(self, prepared: Prepared) -> Iterator[np.ndarray]:
        """(slots, 2) of each window: for a token, the gain times the overlap of its sentence, as start and as end."""
        gain = float(self.model.weight[0, 0])
        known = [overlaps(q.question, q.context) for q in prepared.items]
        for number, window in enumerate(prepared.extra["windows"]):
            spans, found = known[window.owner]
            offsets = prepared.extra["offsets"][window.owner]
            starts = np.array([a for a, _ in spans])
            of = (np.searchsorted(starts, offsets[:, 0], side="right") - 1).clip(0)
            turn = np.flatnonzero(np.diff(of)) + 1
            edges = np.zeros((len(of), 2))
            edges[np.append(0, turn) if len(of) else turn, 0] = EDGE
            edges[np.append(turn - 1, len(of) - 1) if len(of) else turn, 1] = EDGE
            scores = np.full((len(prepared.examples[number]), 2), OUTSIDE)
            here = slice(window.first, window.last)
            scores[window.shift : window.shift + window.last - window.first] = (
                gain * found[of[here], None] + edges[here]
            )
            yield scores

    def save(self, folder: Path) -> None:
        """Write it into a model folder."""
        from safetensors.numpy import save_file

        arrays = {"weight": self.model.weight, "bias": self.model.bias} | {name: getattr(self, name) for name in ARRAYS}
        save_file({k: np.ascontiguousarray(v, np.float32) for k, v in arrays.items()}, folder / f"{NAME}.safetensors")
        about = {"kind": self.kind, "problem": self.problem, "terms": self.terms}
        (folder / f"{NAME}.json").write_text(json.dumps(about), encoding="utf-8")


def load_baseline(folder: Path, problem: str, outputs: int) -> Baseline:
    """What `save` wrote."""
    from safetensors.numpy import load_file

    hint = f"Copy {NAME}.json and {NAME}.safetensors again: predictions of this folder need both."
    try:
        about = json.loads((folder / f"{NAME}.json").read_text(encoding="utf-8"))
        arrays = load_file(folder / f"{NAME}.safetensors")
        model = linear.Linear(arrays["weight"], arrays["bias"])
        terms, more = [str(t) for t in about["terms"]], {name: arrays[name] for name in ARRAYS}
        found = Baseline(about["kind"], about["problem"], model, terms, **more)
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


def kinds_of(task: TextTask, training: Prepared) -> list[Kind]:
    """Which baselines can be fitted for a task, and kept in its folder."""
    if task.name == "classify":
        return ["words"] if training.items[0].text2 is None else ["words", "apart"]
    if task.name == "similarity":
        graded = training.items[0].text2 is not None and "target" in training.extra
        return ["cosine", "apart"] if graded else ["cosine"]
    if task.name == "answer":  # of no answer the rule knows nothing
        return [] if task.about.get("no_answer") else ["sentence"]
    return ["tags"] if task.name == "tag" else []


def fit_baseline(
    kind: Kind,
    task: TextTask,
    model: TaskModel | None,
    training: Prepared,
    *,
    seed: int = 0,
    strength: float | None = None,
) -> Baseline | None:
    """A baseline of the training rows; None where their texts hold no words. Of pairs 'apart' is a linear model (ridge
    regression where numbers are predicted) of |u - v|, u * v and the cosine of the frozen vectors of the two texts (Tai
    et al. 2015, sec. 4.2; as in SentEval, Conneau & Kiela 2018), as `model` has them now. `strength` is C; None chooses
    it by cross-validation."""
    if kind == "tags":
        return fit_tags(_tagged(training), task.outputs)
    if kind == "sentence":
        return fit_overlap(training.items)
    if kind == "cosine":
        return fit_cosine(training.items)
    target, weights, problem = targets(task, training), None, "pair"
    if isinstance(task, Classify):
        weights, problem = task.row_weights(training), task.problem
    options: dict[str, Any] = {"seed": seed, "strength": strength}
    if kind == "words":
        return fit_words(training.items, target, problem, weights=weights, **options)
    chosen = np.arange(len(target))
    if len(chosen) > MOST_PAIRS:
        chosen = np.sort(np.random.default_rng([seed, 31]).permutation(len(chosen))[:MOST_PAIRS])
    items = [training.items[i] for i in chosen.tolist()]
    assert model is not None
    if task.name == "similarity":
        prepared = task.prepare(items, labelled=False)
        vectors = _both(loop.outputs(model, task, prepared), prepared.groups)
    else:
        vectors = pair_vectors(model, task.encoder, items)
    weights = None if weights is None else weights[chosen]
    return fit_pair_vectors(vectors, items, target[chosen], problem, weights=weights, **options)


def targets(task: TextTask, prepared: Prepared) -> np.ndarray:
    """(n, k) targets of classify and similarity as a linear model takes them."""
    target = prepared.extra["target"].numpy()
    if task.name == "classify" and task.problem == "single":
        return np.eye(task.outputs, dtype=np.float32)[target]
    return target.reshape(len(target), -1).astype(np.float32)


def fit_words(items: Sequence[Any], target: np.ndarray, problem: str, **options: Any) -> Baseline | None:
    """TF-IDF of words and pairs of words (sublinear counts, pairs that occur twice), then a linear model; None where
    the texts hold no words. `options`: see `_linear`."""
    counter = _fitted("words", items, most=MOST_TERMS)
    if counter is None:
        return None
    features, strengths = _counts(counter, items), (100.0, 10.0, 1.0, 0.1)
    found = _linear(features, target, LOSSES[problem], items, strengths, most=2000, steps=60, **options)
    return Baseline("words", problem, found, terms=list(counter.get_feature_names_out()), idf=counter.idf_)


def fit_pair_vectors(
    vectors: tuple[np.ndarray, np.ndarray], items: Sequence[Any], target: np.ndarray, problem: str, **options: Any
) -> Baseline:
    """A linear model of how the vectors of two texts differ and agree. `options`: see `_linear`."""
    x = pair_features(*vectors)
    mean, deviation = x.mean(0), np.maximum(x.std(0), 1e-6)
    x, loss = ((x - mean) / deviation).astype(np.float32), LOSSES.get(problem, LOSSES["regression"])
    found = _linear(x, target, loss, items, (0.001, 0.01, 0.1, 1.0), **options)
    return Baseline("apart", problem, found, mean=mean, deviation=deviation)


def _linear(
    features: Any,
    target: np.ndarray,
    loss: linear.Kind,
    items: Sequence[Any],
    strengths: Sequence[float],
    *,
    weights: np.ndarray | None = None,
    seed: int = 0,
    strength: float | None = None,
    most: int = linear.ENOUGH,
    steps: int = 200,
) -> linear.Linear:
    """A linear model of the features of `items`; C by cross-validation among `strengths`, unless `strength` says it."""
    if strength is None:
        options: dict[str, Any] = {"weights": weights, "groups": kept_together(items), "seed": seed, "most": most}
        strength = linear.cross_validated([features], target, loss, strengths=strengths, **options)[1]
    return linear.fit(features, target, loss, strength, weights=weights, steps=steps)


def fit_cosine(items: Sequence[Any]) -> Baseline | None:
    """TF-IDF of single words (sublinear counts); None where the texts hold no words."""
    counter = _fitted("cosine", items, most=MOST_WORDS)
    if counter is None:
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


def overlaps(question: str, context: str) -> tuple[list[tuple[int, int]], np.ndarray]:
    """Sentences of a context, and for each how many of its words the question has, long sentences at a discount."""
    question_words, spans = set(with_pairs(words(question))), sentences(context)
    held = [with_pairs(words(context[a:b])) for a, b in spans]
    return spans, np.array([len(question_words & set(found)) / (1 + len(found)) ** 0.5 for found in held])


def fit_overlap(items: Sequence[SquadQuestion]) -> Baseline:
    """How much overlap tells of where answers are: the gain with which the sentences of the training answers are
    likeliest, in a softmax over each context's sentences."""
    log_likelihood = np.zeros(len(GAINS))
    for q in items:
        if q.answers:
            spans, found = overlaps(q.question, q.context)
            start = q.answers[0][1]
            right = max((i for i, (a, _) in enumerate(spans) if a <= start), default=0)
            scores = np.outer(GAINS, found)
            log_likelihood += scores[:, right] - np.logaddexp.reduce(scores, 1)
    gain = GAINS[int(log_likelihood.argmax())]
    return Baseline("sentence", "answer", linear.Linear(np.array([[gain]]), np.zeros(1)))


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


def _both(found: Sequence[np.ndarray], groups: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the first and of the second texts of pairs."""
    return np.stack([found[g[0]] for g in groups]), np.stack([found[g[1]] for g in groups])


def _tagged(training: Prepared) -> Iterator[tuple[str, int]]:
    """Every word of the training rows with its tag; where windows overlap, as often as it is read."""
    for number, window in enumerate(training.extra["windows"]):
        item, here = training.items[window.owner], training.examples[number].values["target"]
        for token, start, end in training.extra["words"][window.owner]:
            if window.first <= token < window.last and (tag := int(here[token - window.first + window.shift])):
                yield item.text[start:end], tag - 1


def _tfidf(kind: Kind, **options: Any) -> Any:
    """Counts of words and pairs of words (words), or of words and of the pairs of characters of scripts without spaces
    (cosine)."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    if kind == "words":
        options |= {"tokenizer": pieces, "token_pattern": None, "ngram_range": (1, 2)}
    else:
        options["analyzer"] = lambda text: with_pairs(pieces(text))
    return TfidfVectorizer(sublinear_tf=True, dtype=np.float32, **options)


def _fitted(kind: Kind, items: Sequence[Any], *, most: int) -> Any:
    """`_tfidf` of at most so many terms of some items; None where their texts hold no words."""
    texts = [t for item in items for t in (item.text, item.text2) if t is not None]
    counter = _tfidf(kind, max_features=most, min_df=2 if kind == "words" and len(texts) >= 200 else 1)
    try:
        return counter.fit(texts)
    except ValueError:  # no word in any text
        return None


def _counts(counter: Any, items: Sequence[Any]) -> Any:
    """Counts of a text; of a pair both texts', what they share, and how alike they are."""
    from scipy import sparse

    first = counter.transform([item.text for item in items])
    if items[0].text2 is None:
        return first.tocsr()
    second = counter.transform([item.text2 for item in items])
    both = first.multiply(second)
    return sparse.hstack([abs(first - second), both, sparse.csr_matrix(both.sum(1))]).tocsr()
