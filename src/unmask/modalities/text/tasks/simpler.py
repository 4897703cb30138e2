"""The simpler models of each task: fitted to its training rows, and asked for outputs in the form in which its own
model gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from unmask.modalities.text.tasks import loop
from unmask.modalities.text.tasks.baselines import (
    Baseline,
    Kind,
    fit_cosine,
    fit_pair_vectors,
    fit_tags,
    fit_words,
    pair_vectors,
)
from unmask.modalities.text.tasks.classify import KINDS, Classify
from unmask.modalities.text.tasks.encoding import Prepared
from unmask.modalities.text.tasks.network import TaskModel
from unmask.modalities.text.tasks.overlap import fit_overlap, sentence_scores
from unmask.modalities.text.tasks.task import TextTask

MOST_PAIRS = 20_000
"""Pairs that a linear model of frozen vectors is fitted to, drawn by the seed: a pair of 768 wide vectors takes 12 kB.
"""


def kinds_of(task: TextTask, training: Prepared) -> list[Kind]:
    """Which simpler models can be fitted for a task, and kept in its folder."""
    if task.name == "classify":
        return ["words"] if training.items[0].text2 is None else ["words", "apart"]
    if task.name == "similarity":
        graded = training.items[0].text2 is not None and "target" in training.extra
        return ["cosine", "apart"] if graded else ["cosine"]
    if task.name == "answer":  # of no answer the rule knows nothing
        return [] if task.about.get("no_answer") else ["sentence"]
    return ["tags"] if task.name == "tag" else []


def fit(
    kind: Kind,
    task: TextTask,
    model: TaskModel,
    training: Prepared,
    *,
    seed: int = 0,
    strength: float | None = None,
) -> Baseline | None:
    """A simpler model of the training rows; None where their texts hold no words.

    Of pairs 'apart' is a linear model (ridge regression where numbers are predicted) of |u - v|, u * v and the cosine
    of the frozen vectors of the two texts (Tai et al. 2015, sec. 4.2; as in SentEval, Conneau & Kiela 2018).

    Args:
        model: whose vectors 'apart' takes, as they are now.
        strength: C; None chooses it by cross-validation.
    """
    if kind == "tags":
        return fit_tags(_tagged(task, training), task.outputs)
    if kind == "sentence":
        return fit_overlap(training.items)
    if kind == "cosine":
        return fit_cosine(training.items)
    target, weights = targets(task, training), None
    problem, loss = ("pair", KINDS["regression"])
    if isinstance(task, Classify):
        weights, problem, loss = task.row_weights(training), task.problem, KINDS[task.problem]
    options: dict[str, Any] = {"seed": seed, "strength": strength}
    if kind == "words":
        return fit_words(training.items, target, loss, problem, weights=weights, **options)
    chosen = np.arange(len(target))
    if len(chosen) > MOST_PAIRS:
        chosen = np.sort(np.random.default_rng([seed, 31]).permutation(len(chosen))[:MOST_PAIRS])
    items = [training.items[i] for i in chosen.tolist()]
    if task.name == "similarity":
        prepared = task.prepare(items, labelled=False)
        vectors = _both(loop.outputs(model, task, prepared), prepared.groups)
    else:
        vectors = pair_vectors(model, task.encoder, items)
    weights = None if weights is None else weights[chosen]
    return fit_pair_vectors(vectors, items, target[chosen], loss, problem, weights=weights, **options)


def outputs(
    baseline: Baseline,
    task: TextTask,
    model: TaskModel,
    prepared: Prepared,
    found: Sequence[np.ndarray],
) -> list[np.ndarray]:
    """What a simpler model says about every example, in the form of the model's own outputs.

    The score of a pair of similarity stands as two vectors of one number whose product it is; a text alone keeps its
    vector.

    Args:
        found: what encoder and head say (similarity: the vectors).
    """
    if baseline.kind == "tags":
        return list(_tag_scores(baseline, task, prepared))
    if baseline.kind == "sentence":
        return list(sentence_scores(baseline, prepared))
    if task.name != "similarity":
        vectors = None
        if baseline.kind == "apart":
            vectors = pair_vectors(model, task.encoder, prepared.items)
        return list(baseline.outputs(prepared.items, vectors))
    pairs = [i for i, group in enumerate(prepared.groups) if len(group) > 1]
    out = list(found)
    if pairs:
        groups = [prepared.groups[i] for i in pairs]
        vectors = _both(found, groups) if baseline.kind == "apart" else None
        for group, score in zip(groups, baseline.outputs([prepared.items[i] for i in pairs], vectors), strict=True):
            out[group[0]], out[group[1]] = np.asarray(score, np.float64), np.ones(1)
    return out


def targets(task: TextTask, prepared: Prepared) -> np.ndarray:
    """(n, k) targets of classify and similarity as a linear model takes them."""
    target = prepared.extra["target"].numpy()
    if task.name == "classify" and task.problem == "single":
        return np.eye(task.outputs, dtype=np.float32)[target]
    return target.reshape(len(target), -1).astype(np.float32)


def _both(found: Sequence[np.ndarray], groups: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of the first and of the second texts of pairs."""
    return np.stack([found[g[0]] for g in groups]), np.stack([found[g[1]] for g in groups])


def _tagged(task: TextTask, training: Prepared) -> Iterator[tuple[str, int]]:
    """Every word of the training rows with its tag; where windows overlap, as often as it is read."""
    for number, window in enumerate(training.extra["windows"]):
        item, here = training.items[window.owner], training.examples[number].values["target"]
        for token, start, end in training.extra["words"][window.owner]:
            if window.first <= token < window.last and (tag := int(here[token - window.first + window.shift])):
                yield item.text[start:end], tag - 1


def _tag_scores(baseline: Baseline, task: TextTask, prepared: Prepared) -> Iterator[np.ndarray]:
    for number, window in enumerate(prepared.extra["windows"]):
        text = prepared.items[window.owner].text
        here = [w for w in prepared.extra["words"][window.owner] if window.first <= w[0] < window.last]
        scores = np.zeros((len(prepared.examples[number]), task.outputs))
        places = [token - window.first + window.shift for token, _, _ in here]
        scores[places] = baseline.tag_log_probabilities((text[a:b] for _, a, b in here), task.outputs)
        yield scores
