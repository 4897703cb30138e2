"""What was fine-tuned and its baselines on the same held-out rows: a table with intervals, and what is kept."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.errors import UserError, setting
from unmask.kernels.threads import one_core
from unmask.modalities.text.tasks.baselines import (
    KINDS,
    Baseline,
    Kind,
    fit_baseline,
    fit_cosine,
    kinds_of,
    overlaps,
    pair_vectors,
    targets,
)
from unmask.modalities.text.tasks.encoding import Prepared
from unmask.modalities.text.tasks.held_out import interval, judging_folds, resamples
from unmask.modalities.text.tasks.network import TaskModel
from unmask.modalities.text.tasks.scorers import merit
from unmask.modalities.text.tasks.task import TextTask

DRAWS = 100
SENTENCE = "sentence with the most words in common"


@dataclass
class Rival:
    """A simpler model's predictions of the held-out rows, and the model itself, where it can be saved; `constant`: it
    answers the same whatever the text."""

    name: str
    predictions: list[dict[str, Any]]
    baseline: Baseline | None = None
    constant: bool = False


def rivals(
    task: TextTask,
    model: TaskModel | None,
    training: Prepared,
    held: Prepared,
    *,
    found: Sequence[np.ndarray],
    seed: int,
) -> list[Rival]:
    """The simpler models of a task, fitted to the training rows. `model`: the state that fine-tuning starts from (None
    where only `tag` and `answer` are asked for); `found`: its outputs on the held-out rows."""
    with one_core():
        out = []
        if task.name == "answer":
            out += _of_questions(held.items, any(not q.answers for q in [*training.items, *held.items]))
        if task.name == "classify":
            assert model is not None
            out += _constants(task, model, training, held)
        for kind in kinds_of(task, training):
            baseline = fit_baseline(kind, task, model, training, seed=seed)
            if baseline is not None:
                outputs = baseline.outputs(task, model, held, found)
                out.append(Rival(_name(kind, task), untempered(task).decode(outputs, held), baseline))
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


def _constants(task: TextTask, model: TaskModel, training: Prepared, held: Prepared) -> list[Rival]:
    """The most frequent class (label, the mean), and of numbers for pairs the cosine, which is fitted to nothing."""
    constant = targets(task, training).mean(0)
    if task.problem != "regression":
        share = constant.clip(1e-6, 1 - 1e-6)
        constant = np.log(share) - (np.log(1 - share) if task.problem == "multi" else 0)
    if task.problem == "multi":  # a rule that gives no label scores nothing: the most frequent one is given
        threshold = float(task.about.get("threshold", 0.5))
        top = constant.argmax()
        constant[top] = max(constant[top], np.log(threshold / (1 - threshold)) + 1e-6)
    often = {"single": "most frequent class", "multi": "most frequent labels", "regression": "mean"}[task.problem]
    plain = untempered(task)
    found = [Rival(often, plain.decode([constant] * len(held.items), held), constant=True)]
    if task.problem == "regression" and training.items[0].text2 is not None:
        u, v = pair_vectors(model, task.encoder, held.items)
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
        predicted: list[dict[str, Any]] = [{"entities": []}] * len(items)
        for outside, here in judging_folds(items) if len(items) > 1 else ():
            parts = [task.prepare([items[i] for i in part], labelled=True) for part in (outside, here) if len(part)]
            answers = rivals(task, None, *parts, found=(), seed=0)[0].predictions if len(parts) == 2 else []
            for i, row in zip(here.tolist(), answers, strict=False):
                predicted[i] = row
        return Rival(_name("tags", task), predicted)
    if task.name == "answer":
        return max(_of_questions(items, True), key=lambda rival: task.value(rival.predictions, items))
    if task.name == "similarity":
        cosine = fit_cosine(items)
        answers = [] if cosine is None else [{"score": float(x)} for x in cosine.of_texts(items)[:, 0]]
        return Rival(_name("cosine", task), answers) if answers else None
    if task.problem == "regression":
        mean = float(np.mean([float(str(item.label)) for item in items]))
        return Rival("mean", [{"value": mean}] * len(items), constant=True)
    return None


def untempered(task: TextTask) -> TextTask:
    """The task with a temperature of 1, which is fitted for the outputs of one model alone; the task itself stays as it
    is."""
    if task.name != "classify":
        return task
    plain = copy.copy(task)
    plain.about = {**task.about, "temperature": 1.0}
    return plain


def _of_questions(items: Sequence[Any], no_answer: bool) -> list[Rival]:
    """Rules for questions; `no_answer`: that some have none is one of them."""
    found = [Rival(SENTENCE, [_sentence(q) for q in items])]
    nothing = {"answer": {"text": ""}}
    return [*found, Rival("no answer", [nothing] * len(items), constant=True)] if no_answer else found


def _sentence(question: Any) -> dict[str, Any]:
    """The sentence of the context that shares most words with the question, longer ones at a discount."""
    spans, found = overlaps(question.question, question.context)
    start, end = spans[int(found.argmax())]
    return {"answer": {"text": question.context[start:end]}}


@dataclass
class Comparison:
    """What the comparison came to. `table` has rows of `model`, `value`, `low`, `high` (95 %, over the held-out rows or
    their groups) and `kept`; `baseline` is the one that was asked for, and is saved; `better`: the name of a baseline
    that did better than what is kept, and what `baseline` calls it ("" where it cannot be saved); `reason`: why a state
    that scored higher is not kept. `no_better_than`: an answer that scores as much or more where it is given to every
    text; `barely_better_than`: one than which what is kept is better by less than one standard error of the
    difference."""

    table: list[dict[str, Any]]
    kept: str
    baseline: Baseline | None = None
    better: tuple[str, str] | None = None
    reason: str | None = None
    no_better_than: str | None = None
    barely_better_than: str | None = None

    def lines(self, metric: str, rows: int) -> list[str]:
        """The table and what it says, for a terminal."""
        found = [f"{metric} on {rows:,} held-out rows:"]
        for row in self.table:
            span = "" if row["low"] is None else f" [{row['low']:.3f}, {row['high']:.3f}]"
            found.append(f"  {row['model']:52}{row['value']:.3f}{span}{'  kept' if row['kept'] else ''}")
        if self.reason is not None:
            found.append(f"{self.reason}: the simpler one is kept")
        if self.baseline is not None:
            found.append(f"saved: {self.kept}, in baseline.safetensors, without a head on the encoder")
        if self.no_better_than is not None:
            found.append(
                f"warning: on these rows it is no better than always answering {self.no_better_than}: nothing was "
                "learnt that shows; more rows or another model are needed"
            )
        elif self.barely_better_than is not None:
            found.append(
                f"warning: on these rows it is better than always answering {self.barely_better_than} by less than "
                "one standard error, which may be chance; more rows, to learn from and to judge by, would tell"
            )
        if self.better is not None:
            name, key = self.better
            way = f"{setting('baseline', key)} saves it" if key else "more rows or another model are needed"
            way += ", `finetune similarity` trains it" if key == "frozen" and metric == "pearson" else ""
            found.append(f"warning: {name} does better on these rows; {way}")
        return found


def rival_called(baseline: str, others: Sequence[Rival]) -> Rival:
    """The rival that the setting `baseline` names, refused where the task has none of that name."""
    for rival in others:
        if rival.baseline is not None and rival.baseline.kind in KINDS[baseline]:
            return rival
    there = [name for name, kinds in KINDS.items() for r in others if r.baseline and r.baseline.kind in kinds]
    raise UserError(
        f"{setting('baseline', baseline)}: this task has no such baseline",
        hint=f"It has: {', '.join(there) or 'none that can be saved'}.",
    )


def judge(
    task: TextTask,
    own: list[tuple[str, list[dict[str, Any]]]],
    kept: str,
    others: Sequence[Rival],
    held: Prepared,
    *,
    seed: int,
    baseline: str = "none",
) -> Comparison:
    """Set the candidates side by side: `own` are (name, predictions) of the states of encoder and head, `kept` names
    the one that is kept, unless a `baseline` is asked for (one of `baselines.KINDS`)."""

    def worth(predictions: list[dict[str, Any]]) -> float:
        return merit(task.metric, task.value(predictions, held.items))

    saved = None if baseline == "none" else rival_called(baseline, others)
    kept = kept if saved is None else saved.name
    rows = [*((r.name, r.predictions) for r in others), *own]
    best = worth(dict(rows)[kept])
    first = max((r for r in others if not r.constant), key=lambda r: worth(r.predictions), default=None)
    better = None
    if first is not None and worth(first.predictions) > best:
        kind = None if first.baseline is None else first.baseline.kind
        better = first.name, next((name for name, kinds in KINDS.items() if kind in kinds), "")
    table = []
    for name, predicted in rows:
        low, high = metric_interval(task, predicted, held.items, draws=DRAWS, seed=seed)
        value = task.value(predicted, held.items)
        table.append({"model": name, "value": value, "low": low, "high": high, "kept": name == kept})
    constants = [r for r in others if r.constant]
    equal = [r for r in constants if worth(r.predictions) >= best]
    gains = [gain(task, dict(rows)[kept], r.predictions, held.items, seed=seed) for r in constants if not equal]
    close = [r for r, (found, error) in zip(constants, gains, strict=False) if found < error]
    return Comparison(
        table,
        kept,
        None if saved is None else saved.baseline,
        better,
        no_better_than=_answer(equal[0].predictions[0]) if equal else None,
        barely_better_than=_answer(close[0].predictions[0]) if close else None,
    )


def _answer(prediction: dict[str, Any]) -> str:
    """What a prediction says, in words."""
    if "answer" in prediction:
        return prediction["answer"]["text"] or "no answer"
    if "value" in prediction:
        return f"{prediction['value']:.4g}"
    labels = prediction.get("labels", [prediction.get("label")])
    return ", ".join(repr(label) for label in labels) or "nothing"


def gain(
    task: TextTask, one: list[dict[str, Any]], other: list[dict[str, Any]], items: Sequence[Any], *, seed: int
) -> tuple[float, float]:
    """By how much `one` is better than `other` (of an error too: more is better), and the standard error of that over
    the rows, or their groups."""

    def difference(chosen: Sequence[int]) -> float:
        merits = [
            merit(task.metric, task.value([p[i] for i in chosen], [items[i] for i in chosen])) for p in (one, other)
        ]
        return merits[0] - merits[1]

    drawn = [difference(rows) for rows in resamples(items, np.random.default_rng([seed, 29]), DRAWS)]
    return difference(range(len(items))), float(np.std(drawn)) if drawn else 0.0


def metric_interval(
    task: TextTask, predictions: Sequence[dict[str, Any]], items: Sequence[Any], *, draws: int, seed: int
) -> tuple[float | None, ...]:
    """(low, high): the 95 % interval of a task's own metric over its rows, or their groups."""
    values = [
        task.value([predictions[i] for i in drawn], [items[i] for i in drawn])
        for drawn in resamples(items, np.random.default_rng(seed), draws)
    ]
    return interval(values, task.metric, task.value(list(predictions), items), items, task.top)
