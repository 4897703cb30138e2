"""What was fine-tuned beside simpler models, on the same held-out rows: a table with intervals, and which of them is
kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.core.inference import one_core
from unmask.modalities.text.tasks import simpler
from unmask.modalities.text.tasks.beside import Beside, Kind, fit_cosine, vectors_apart
from unmask.modalities.text.tasks.held_out import interval, judging_folds, resamples
from unmask.modalities.text.tasks.overlap import overlaps
from unmask.modalities.text.tasks.prepared import Prepared
from unmask.modalities.text.tasks.scorers import merit
from unmask.modalities.text.tasks.task import TaskModel, TextTask

DRAWS = 100
SHARES = (0.5, 1.0)
AVERAGED = ("words", "sentence")
"""Kinds whose outputs are averaged with the encoder's too."""
SENTENCE = "sentence with the most words in common"


@dataclass
class Rival:
    """A simpler model's predictions of the held-out rows.

    Attributes:
        beside: the model itself, where it can be saved in the folder.
        outputs: its outputs, for averaging with the encoder's.
        constant: it answers the same whatever the text.
    """

    name: str
    predictions: list[dict[str, Any]]
    beside: Beside | None = None
    outputs: Sequence[np.ndarray] | None = None
    constant: bool = False


def rivals(
    task: TextTask,
    model: TaskModel | None,
    training: Prepared,
    held: Prepared,
    *,
    found: Sequence[np.ndarray],
    slots: int,
    context: Callable[[], Any],
    seed: int,
) -> list[Rival]:
    """The simpler models of a task, fitted to the training rows.

    Args:
        model: the state that fine-tuning starts from; None where only `tag` and `answer` are asked for.
        found: its outputs on the held-out rows.
    """
    where: dict[str, Any] = {"slots": slots, "context": context}
    with one_core():
        out = []
        if task.name == "answer":
            out.append(Rival(SENTENCE, [_sentence(q) for q in held.items]))
        if task.name == "classify":
            assert model is not None
            out += _constants(task, model, training, held, where)
        for kind in simpler.kinds_of(task, training):
            beside = simpler.fit(kind, task, model, training, seed=seed, **where)  # type: ignore[arg-type]
            if beside is None:
                continue
            outputs = simpler.outputs(beside, task, model, held, found, **where)  # type: ignore[arg-type]
            out.append(Rival(_name(kind, task), untempered(task).decode(outputs, held), beside, outputs))
        return out


def _name(kind: Kind, task: TextTask) -> str:
    if kind == "words":
        return "TF-IDF + ridge regression" if task.problem == "regression" else "TF-IDF + logistic regression"
    if kind == "apart" and task.name == "similarity":
        return "ridge regression of the frozen vectors"
    return {
        "apart": "frozen vectors of the two texts",
        "cosine": "cosine of TF-IDF vectors",
        "tags": "most frequent tag of each word",
        "sentence": "words in common by sentence",
    }[kind]


def _constants(
    task: TextTask, model: TaskModel, training: Prepared, held: Prepared, where: dict[str, Any]
) -> list[Rival]:
    """The most frequent class (label, the mean), and of numbers for pairs the cosine, which is fitted to nothing."""
    constant = simpler.targets(task, training).mean(0)
    if task.problem != "regression":
        share = constant.clip(1e-6, 1 - 1e-6)
        constant = np.log(share) - (np.log(1 - share) if task.problem == "multi" else 0)
    often = {"single": "most frequent class", "multi": "most frequent labels", "regression": "mean"}[task.problem]
    plain = untempered(task)
    found = [Rival(often, plain.decode([constant] * len(held.items), held), constant=True)]
    if task.problem == "regression" and training.items[0].text2 is not None:
        u, v = vectors_apart(model.masked, task.encoder, held.items, **where)
        cosine = (u * v).sum(1) / np.maximum(np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1), 1e-9)
        found.append(Rival("cosine of the frozen vectors", plain.decode([np.array([x]) for x in cosine], held)))
    return found


def rule(task: TextTask, items: Sequence[Any]) -> Rival | None:
    """What a rule without a model answers for labelled rows, knowing no others: of tags each word's most frequent one
    in the other folds of the rows, of numbers their mean, of pairs the cosine of the counts of their words, of
    questions the sentence with the most words in common, or "no answer" where that scores more.

    None for a task without such a rule, and for pairs that hold no words.
    """
    if task.name == "tag":
        said: list[dict[str, Any]] = [{"entities": []}] * len(items)
        where: dict[str, Any] = {"found": (), "slots": task.encoder.slots, "context": nullcontext, "seed": 0}
        for outside, here in judging_folds(items) if len(items) > 1 else ():
            parts = [task.prepare([items[i] for i in part], labelled=True) for part in (outside, here) if len(part)]
            told = rivals(task, None, *parts, **where)[0].predictions if len(parts) == 2 else []
            for i, row in zip(here.tolist(), told, strict=False):
                said[i] = row
        return Rival(_name("tags", task), said)
    if task.name == "answer":
        found = [Rival(SENTENCE, [_sentence(q) for q in items])]
        found.append(Rival("no answer", [{"answer": {"text": ""}}] * len(items), constant=True))
        return max(found, key=lambda rival: task.value(rival.predictions, items))
    if task.name == "similarity":
        cosine = fit_cosine(items)
        told = [] if cosine is None else [{"score": float(x)} for x in cosine.outputs(items)[:, 0]]
        return Rival(_name("cosine", task), told) if told else None
    if task.problem == "regression":
        mean = float(np.mean([float(str(item.label)) for item in items]))
        return Rival("mean", [{"value": mean}] * len(items), constant=True)
    return None


def untempered(task: TextTask) -> TextTask:
    """The task with a temperature of 1, which is what is fitted for the outputs of one model alone; the task itself
    stays as it is."""
    if task.name != "classify":
        return task
    plain = copy.copy(task)
    plain.about = {**task.about, "temperature": 1.0}
    return plain


def _sentence(question: Any) -> dict[str, Any]:
    """The sentence of the context that shares most words with the question, longer ones at a discount."""
    spans, found = overlaps(question.question, question.context)
    start, end = spans[int(found.argmax())]
    return {"answer": {"text": question.context[start:end]}}


@dataclass
class Verdict:
    """What the comparison came to.

    Attributes:
        table: rows of `model`, `value`, `low`, `high` (95 %, over the held-out rows or their groups) and `kept`.
        beside: a simpler model that goes into the folder, its share set.
        kept: name of the row that is kept.
        better: name of a simpler model that did better and cannot be kept in the folder.
        reason: why a state that scored higher is not kept.
        no_better_than: the answer that scores as much or more where it is given to every text; None where what is kept
            is better than any.
        barely_better_than: the same, where what is kept is better by less than one standard error of the difference.
    """

    table: list[dict[str, Any]]
    kept: str
    beside: Beside | None = None
    better: str | None = None
    reason: str | None = None
    no_better_than: str | None = None
    barely_better_than: str | None = None


def judge(
    task: TextTask,
    own: list[tuple[str, list[dict[str, Any]]]],
    kept: str,
    found: Sequence[np.ndarray],
    others: Sequence[Rival],
    held: Prepared,
    *,
    seed: int,
) -> Verdict:
    """Set the candidates side by side.

    Args:
        own: (name, predictions) of the states of encoder and head.
        kept: which of them is kept.
        found: the kept state's outputs.
    """

    def value(predictions: list[dict[str, Any]]) -> float:
        return task.value(predictions, held.items)

    best = merit(task.metric, value(dict(own)[kept]))
    beside, better, extra = None, None, []
    for rival in sorted(others, key=lambda r: -merit(task.metric, value(r.predictions))):
        kind = None if rival.beside is None else rival.beside.kind
        # A rule about sentences says nothing of which words in them: with the encoder it may be better than either.
        if merit(task.metric, value(rival.predictions)) <= best and kind != "sentence":
            continue
        if rival.beside is None:
            better = better or rival.name
            continue
        assert rival.outputs is not None
        for share in SHARES if kind in AVERAGED else SHARES[-1:]:
            rival.beside.share = share
            said = untempered(task).decode(rival.beside.mixed(found, rival.outputs), held)
            name = rival.name if share == 1 else f"{rival.name}, averaged with the encoder"
            if share < 1:
                extra.append((name, said))
            if merit(task.metric, value(said)) > best:
                best, beside, kept, chosen_share = merit(task.metric, value(said)), rival.beside, name, share
        if beside is not None:
            beside.share = chosen_share
        break
    if better is not None and beside is not None:
        better = None
    rows = [*((r.name, r.predictions) for r in others), *own, *extra]
    table = [{"model": name, **_interval(task, said, held.items, seed), "kept": name == kept} for name, said in rows]
    constants = [r for r in others if r.constant]
    equal = [r for r in constants if merit(task.metric, value(r.predictions)) >= best]
    close = [
        r
        for r in constants
        if not equal and _barely(gain(task, dict(rows)[kept], r.predictions, held.items, seed=seed))
    ]
    return Verdict(
        table,
        kept,
        beside,
        better,
        no_better_than=_answer(equal[0].predictions[0]) if equal else None,
        barely_better_than=_answer(close[0].predictions[0]) if close else None,
    )


def best_frozen(
    task: TextTask, before: list[dict[str, Any]], others: Sequence[Rival], held: Prepared
) -> list[dict[str, Any]]:
    """Predictions of the best model that leaves the encoder as it was: the state `before` fine-tuning, or a rival made
    of its vectors."""
    found = [before, *(r.predictions for r in others if r.beside is not None and r.beside.kind == "apart")]
    return max(found, key=lambda said: merit(task.metric, task.value(said, held.items)))


def _barely(found: tuple[float, float]) -> bool:
    """Whether a gain is less than its standard error."""
    return found[0] < found[1]


def _answer(prediction: dict[str, Any]) -> str:
    """What a prediction says, in words."""
    if "value" in prediction:
        return f"{prediction['value']:.4g}"
    said = prediction.get("labels", [prediction.get("label")])
    return ", ".join(repr(label) for label in said) or "nothing"


def gain(
    task: TextTask, one: list[dict[str, Any]], other: list[dict[str, Any]], items: Sequence[Any], *, seed: int
) -> tuple[float, float]:
    """By how much `one` is better than `other` (of an error too: more is better), and the standard error of that over
    the rows, or their groups."""

    def difference(chosen: Sequence[int]) -> float:
        told = [
            merit(task.metric, task.value([p[i] for i in chosen], [items[i] for i in chosen])) for p in (one, other)
        ]
        return told[0] - told[1]

    drawn = [difference(rows) for rows in resamples(items, np.random.default_rng([seed, 29]), DRAWS)]
    return difference(range(len(items))), float(np.std(drawn)) if drawn else 0.0


def _interval(task: TextTask, predictions: list[dict[str, Any]], items: Sequence[Any], seed: int) -> dict[str, Any]:
    values = [
        task.value([predictions[i] for i in drawn], [items[i] for i in drawn])
        for drawn in resamples(items, np.random.default_rng(seed), DRAWS)
    ]
    value = task.value(predictions, items)
    low, high = interval(values, task.metric, value, items)
    return {"value": value, "low": low, "high": high}


def lines(verdict: Verdict, metric: str, rows: int) -> list[str]:
    """The table in words, for a terminal."""
    out = [f"{metric} on {rows:,} held-out rows:"]
    for row in verdict.table:
        span = "" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]"
        out.append(f"  {row['model']:52}{row['value']:.3f}{span}{'  kept' if row['kept'] else ''}")
    return out
