"""What was fine-tuned beside simpler models, on the same held-out rows: a table with intervals, and which of them is kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.core.inference import one_core
from unmask.tasks.beside import WORD, Beside, fit_apart, fit_words, vectors_apart
from unmask.tasks.start import KINDS, row_weights
from unmask.tasks.task import Prepared, merit

DRAWS = 100
SHARES = (0.5, 1.0)


@dataclass
class Rival:
    """A simpler model's predictions of the held-out rows.

    Attributes:
        beside: the model itself, where it can be saved in the folder.
        outputs: its outputs, for averaging with the encoder's.
    """

    name: str
    predictions: list[dict[str, Any]]
    beside: Beside | None = None
    outputs: np.ndarray | None = None


def rivals(
    work: Any, model: Any, training: Prepared, held: Prepared, *, slots: int, context: Callable, seed: int
) -> list[Rival]:
    """The simpler models of a task, fitted to the training rows."""
    with one_core():
        if work.name == "classify":
            return _of_classify(work, model, training, held, slots, context, seed)
        if work.name == "tag":
            return [Rival("most frequent tag of each word", _looked_up(work, training, held))]
        if work.name == "answer":
            return [Rival("sentence with the most words in common", [_sentence(q) for q in held.items])]
        return _of_pairs(training, held)


def _of_classify(
    work: Any, model: Any, training: Prepared, held: Prepared, slots: int, context: Callable, seed: int
) -> list[Rival]:
    target, kind = targets(work, training), KINDS[work.problem]
    weights = row_weights(work, training)
    constant = target.mean(0)
    if work.problem != "regression":
        share = constant.clip(1e-6, 1 - 1e-6)
        constant = np.log(share) - (np.log(1 - share) if work.problem == "multi" else 0)
    often = {"single": "most frequent class", "multi": "most frequent labels", "regression": "mean"}[work.problem]
    found = [Rival(often, _decoded(work, [constant] * len(held.items), held))]
    words = fit_words(training.items, target, kind, work.problem, weights=weights, seed=seed)
    if words is not None:
        outputs = words.outputs(held.items)
        name = "TF-IDF + ridge regression" if work.problem == "regression" else "TF-IDF + logistic regression"
        found.append(Rival(name, _decoded(work, list(outputs), held), words, outputs))
    if training.items[0].text2 is not None:
        both = [
            vectors_apart(model, work.encoder, part.items, slots=slots, context=context) for part in (training, held)
        ]
        cosine = [np.array([x]) for x in _cosine(*both[1])]
        if work.problem == "regression":
            found.append(Rival("cosine of the frozen vectors", _decoded(work, cosine, held)))
        apart = fit_apart(both[0], target, kind, work.problem, weights=weights, seed=seed)
        outputs = apart.outputs(held.items, both[1])
        found.append(Rival("frozen vectors of the two texts", _decoded(work, list(outputs), held), apart, outputs))
    return found


def targets(work: Any, prepared: Prepared) -> np.ndarray:
    """(n, k) targets of classify as a linear model takes them."""
    target = prepared.extra["target"].numpy()
    if work.problem == "single":
        return np.eye(work.outputs, dtype=np.float32)[target]
    return target.reshape(len(target), -1).astype(np.float32)


def _decoded(work: Any, outputs: list[np.ndarray], held: Prepared) -> list[dict[str, Any]]:
    """Predictions at temperature 1: the model's own is fitted for it alone."""
    kept = work.about.get("temperature", 1.0)
    work.about["temperature"] = 1.0
    found = work.decode(outputs, held)
    work.about["temperature"] = kept
    return found


def _cosine(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return (u * v).sum(1) / np.maximum(np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1), 1e-9)


def _of_pairs(training: Prepared, held: Prepared) -> list[Rival]:
    from sklearn.feature_extraction.text import TfidfVectorizer

    counter = TfidfVectorizer(sublinear_tf=True, token_pattern=WORD)
    counter.fit([t for i in training.items for t in (i.text, i.text2) if t is not None])
    u, v = (counter.transform([getattr(i, name) for i in held.items]) for name in ("text", "text2"))
    scores = np.asarray(u.multiply(v).sum(1)).ravel()
    return [Rival("cosine of TF-IDF vectors", [{"score": float(s)} for s in scores])]


def _looked_up(work: Any, training: Prepared, held: Prepared) -> list[dict[str, Any]]:
    """Each word gets the tag it has most often in the training rows, O where it does not occur."""
    seen: dict[str, Counter[int]] = {}
    for number, window in enumerate(training.extra["windows"]):
        item, here = training.items[window.owner], training.examples[number].values["target"]
        for token, start, end in training.extra["words"][window.owner]:
            if window.first <= token < window.last and (tag := int(here[token - window.first + window.shift])):
                seen.setdefault(item.text[start:end].lower(), Counter())[tag - 1] += 1
    out = []
    for item, words in zip(held.items, held.extra["words"], strict=True):
        scores = np.full((len(words), work.outputs), -30.0)
        for i, (_, start, end) in enumerate(words):
            scores[i, seen.get(item.text[start:end].lower(), Counter({0: 1})).most_common(1)[0][0]] = 0.0
        out.append({"entities": work._entities(item.text, words, scores)})
    return out


def _sentence(question: Any) -> dict[str, Any]:
    """The sentence of the context that shares most words with the question, longer ones at a discount."""
    asked = set(re.findall(r"\w+", question.question.lower()))
    sentences = [s for s in re.split(r"(?<=[.!?])\s+", question.context) if s.strip()] or [""]
    found = [len(asked & set(re.findall(r"\w+", s.lower()))) / (1 + len(s.split())) ** 0.5 for s in sentences]
    return {"answer": {"text": sentences[int(np.argmax(found))]}}


@dataclass
class Verdict:
    """What the comparison came to.

    Attributes:
        table: rows of `model`, `value`, `low`, `high` (95 %, over the held-out rows) and `kept`.
        beside: a simpler model that goes into the folder, its share set.
        kept: name of the row that is kept.
        better: name of a simpler model that did better and cannot be kept in the folder.
        reason: why a state that scored higher is not kept.
    """

    table: list[dict[str, Any]]
    kept: str
    beside: Beside | None = None
    better: str | None = None
    reason: str | None = None


def judge(
    work: Any, own: list[tuple[str, list[dict[str, Any]]]], kept: str, found: Sequence[np.ndarray], others: Sequence[Rival],
    held: Prepared, *, seed: int,
) -> Verdict:  # fmt: skip
    """Set the candidates side by side.

    Args:
        own: (name, predictions) of the states of encoder and head.
        kept: which of them is kept.
        found: the kept state's outputs.
    """

    def value(predictions: list[dict[str, Any]]) -> float:
        return float(work.score(predictions, held.items)[work.metric])

    best = merit(work.metric, value(dict(own)[kept]))
    beside, better, extra = None, None, []
    for rival in sorted(others, key=lambda r: -merit(work.metric, value(r.predictions))):
        if merit(work.metric, value(rival.predictions)) <= best:
            break
        if rival.beside is None:
            better = better or rival.name
            continue
        assert rival.outputs is not None
        for share in SHARES if rival.beside.kind == "words" else SHARES[-1:]:
            rival.beside.share = share
            said = _decoded(work, rival.beside.mixed(found, rival.outputs), held)
            name = rival.name if share == 1 else f"{rival.name}, averaged with the encoder"
            if share < 1:
                extra.append((name, said))
            if merit(work.metric, value(said)) > best or (beside is None and share == 1):
                best, beside, kept, chosen_share = merit(work.metric, value(said)), rival.beside, name, share
        if beside is not None:
            beside.share = chosen_share
        break
    if better is not None and beside is not None:
        better = None
    rows = [*((r.name, r.predictions) for r in others), *own, *extra]
    table = [{"model": name, **_interval(work, said, held.items, seed), "kept": name == kept} for name, said in rows]
    return Verdict(table, kept, beside, better)


def gain(
    work: Any, one: list[dict[str, Any]], other: list[dict[str, Any]], items: Sequence[Any], *, seed: int
) -> tuple[float, float]:
    """By how much `one` is better than `other` (of an error too: more is better), and the standard error of that over the rows."""

    def difference(chosen: Sequence[int]) -> float:
        told = [
            merit(work.metric, work.score([p[i] for i in chosen], [items[i] for i in chosen])[work.metric])
            for p in (one, other)
        ]
        return told[0] - told[1]

    rng, n = np.random.default_rng([seed, 29]), len(items)
    drawn = [difference(rng.integers(n, size=n).tolist()) for _ in range(DRAWS if n > 1 else 0)]
    return difference(range(n)), float(np.std(drawn)) if drawn else 0.0


def _interval(work: Any, predictions: list[dict[str, Any]], items: Sequence[Any], seed: int) -> dict[str, Any]:
    rng, n = np.random.default_rng(seed), len(items)
    values = []
    for _ in range(DRAWS if n > 1 else 0):
        drawn = rng.integers(n, size=n)
        values.append(work.score([predictions[i] for i in drawn], [items[i] for i in drawn])[work.metric])
    low, high = np.quantile(values, [0.025, 0.975]) if values else (None, None)
    value = float(work.score(predictions, items)[work.metric])
    return {"value": value, "low": None if low is None else float(low), "high": None if high is None else float(high)}


def lines(verdict: Verdict, metric: str, rows: int) -> list[str]:
    """The table in words, for a terminal."""
    out = [f"{metric} on {rows:,} held-out rows:"]
    for row in verdict.table:
        span = "" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]"
        out.append(f"  {row['model']:52}{row['value']:.3f}{span}{'  kept' if row['kept'] else ''}")
    return out
