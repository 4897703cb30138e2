"""Metrics by their official rules, as pure functions of labels, spans and texts.

Where a metric is not defined (one class only, constant values) it is 0, as in scikit-learn with `zero_division=0`; a
correlation with a constant is 0 as well, where scipy warns and gives NaN.
"""

from __future__ import annotations

import collections
import functools
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from unicodedata import category

import numpy as np
from numpy.typing import ArrayLike

from unmask.modalities.text.tokens.words import UNSPACED

Span = tuple[int, int, str]
"""(start, end, label): characters or tokens, end exclusive."""
LESS_IS_BETTER = ("rmse", "calibration_error")
"""Metrics that measure an error; of all others more is better."""


def merit(metric: str, value: float) -> float:
    """A metric's value, signed so that more is better; what is not a number is the worst.

    >>> merit("accuracy", 0.9), merit("rmse", 0.9), merit("accuracy", float("nan"))
    (0.9, -0.9, -inf)
    """
    if not np.isfinite(value):
        return -np.inf
    return -value if metric in LESS_IS_BETTER else value


def accuracy(truth: Sequence[Any], guess: Sequence[Any]) -> float:
    """Share of the predictions that are right."""
    return float(np.mean([t == g for t, g in zip(truth, guess, strict=True)])) if len(truth) else 0.0


def matthews(truth: Sequence[Any], guess: Sequence[Any]) -> float:
    """Matthews' correlation, any number of classes (Gorodkin 2004)."""
    from sklearn.metrics import matthews_corrcoef

    if len({*truth, *guess}) < 2:  # a fold of one class: not defined
        return 0.0
    return float(matthews_corrcoef(list(truth), list(guess)))


def f1(truth: Sequence[Any], guess: Sequence[Any], *, average: str = "macro", positive: object = None) -> float:
    """F1 over the labels that occur in truth or guess ('macro', 'micro'), or of one label ('binary', `positive`)."""
    if len(truth) != len(guess):
        raise ValueError(f"{len(truth)} labels, {len(guess)} guesses")
    guessed, there = collections.Counter(guess), collections.Counter(truth)
    right = collections.Counter(t for t, g in zip(truth, guess, strict=True) if t == g)
    if average == "binary":
        return _f(right[positive], guessed[positive], there[positive])[2]
    return _averaged(right, guessed, there, average)


def multilabel_f1(truth: Sequence[Iterable[str]], guess: Sequence[Iterable[str]], *, average: str = "micro") -> float:
    """F1 of sets of labels, 'micro' over all decisions or 'macro' over labels."""
    right, guessed, there = _counts(truth, guess, lambda label: label)
    return _averaged(right, guessed, there, average)


def _counts(
    truth: Sequence[Iterable[Any]], guess: Sequence[Iterable[Any]], label: Callable[[Any], str]
) -> tuple[collections.Counter[str], ...]:
    """By label, how many of sets are in both, were guessed, and are there."""
    right, guessed, there = (collections.Counter[str]() for _ in range(3))
    for t, g in zip(map(set, truth), map(set, guess), strict=True):
        for found, some in ((right, t & g), (guessed, g), (there, t)):
            found.update(map(label, some))
    return right, guessed, there


def _averaged(
    right: collections.Counter[Any], guessed: collections.Counter[Any], there: collections.Counter[Any], average: str
) -> float:
    """F1 over all decisions ('micro'), or the mean over labels."""
    if average == "micro":
        return _f(right.total(), guessed.total(), there.total())[2]
    return float(np.mean([_f(right[x], guessed[x], there[x])[2] for x in there | guessed])) if there | guessed else 0.0


def _f(right: int, guessed: int, there: int) -> tuple[float, float, float]:
    precision = right / guessed if guessed else 0.0
    recall = right / there if there else 0.0
    return precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0


def pearson(x: ArrayLike, y: ArrayLike) -> float:
    """Correlation of two series; 0 where one is constant or there are fewer than two values."""
    a, b = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    return float((a / np.linalg.norm(a)) @ (b / np.linalg.norm(b)))


def spearman(x: ArrayLike, y: ArrayLike) -> float:
    """Pearson's correlation of ranks; ties share their mean rank."""
    from scipy.stats import rankdata

    return pearson(rankdata(x), rankdata(y))


def calibration_error(probability: ArrayLike, right: ArrayLike, *, bins: int = 15) -> float:
    """Expected calibration error over equal-width bins (Guo et al. 2017, sec. 2)."""
    p, r = np.asarray(probability, np.float64), np.asarray(right, np.float64)
    if not len(p):
        return 0.0
    which = np.minimum((p * bins).astype(int), bins - 1)
    return float(sum(abs(p[which == b].sum() - r[which == b].sum()) for b in range(bins)) / len(p))


# --- entities ---------------------------------------------------------------------------------------------------------


def spans_of(tags: Sequence[str]) -> list[Span]:
    """Token spans of a tag sequence, any of IO, BIO (IOB2), IOB1, BILOU, BIOES, read as conlleval (and seqeval) do.

    A chunk ends before B, S, U, O or another type, and after E, L, S, U; it begins at B, S, U, and at an I, E or L that
    follows O, an ended chunk or another type.

    >>> spans_of(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [(0, 2, 'PER'), (3, 4, 'LOC'), (4, 5, 'LOC')]
    """
    spans: list[Span] = []
    start, kind, last = 0, "", "O"
    for i, tag in enumerate([*tags, "O"]):
        mark, _, label = tag.partition("-")
        label = label or "_"
        inside = last != "O"
        ended = inside and (mark in "BSUO" or last in "ESLU" or label != kind)
        begins = mark in "BSU" or (mark in "IEL" and (not inside or last in "ESLU" or label != kind))
        if mark == "O":
            begins = False
        if ended:
            spans.append((start, i, kind))
        if begins:
            start = i
        kind, last = (label, mark) if mark != "O" else ("", "O")
    return spans


def entity_scores(truth: Sequence[Iterable[Span]], guess: Sequence[Iterable[Span]]) -> dict[str, float]:
    """Exact-match precision, recall and F1 over all entities, and `f1_TYPE` for each type that occurs.

    Two entities match where start, end and label are equal (Tjong Kim Sang & De Meulder 2003).
    """
    right, guessed, there = _counts(truth, guess, lambda span: span[-1])
    precision, recall, value = _f(right.total(), guessed.total(), there.total())
    per = {f"f1_{k}": _f(right[k], guessed[k], there[k])[2] for k in sorted({*guessed, *there})}
    return {"f1": value, "precision": precision, "recall": recall} | per


# --- SQuAD ------------------------------------------------------------------------------------------------------------


_OTHER_SCRIPTS = "".join(
    c for c in map(chr, [*range(0x590, 0xE80), *range(0x3000, 0x3040), *range(0xFF00, 0xFFF0)]) if category(c)[0] == "P"
)
_PUNCTUATION = str.maketrans("", "", string.punctuation + _OTHER_SCRIPTS)
_ARTICLES, _PART = re.compile(r"\b(a|an|the)\b"), re.compile(rf"[{UNSPACED}]|[^{UNSPACED}\s]+")


@functools.lru_cache(maxsize=1 << 17)
def normalise_answer(text: str) -> str:
    """Lower case, no punctuation (ASCII's, and that of Arabic, Indic, Chinese and Japanese), no articles, single
    spaces: the SQuAD scripts' rule, and MLQA's (Lewis et al. 2020) for those scripts."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def squad_exact(guess: str, truths: Sequence[str]) -> float:
    """1 where the guess equals one of the true answers after normalisation; no true answer means ''."""
    return float(max(normalise_answer(guess) == normalise_answer(t) for t in (_answers(truths))))


def squad_f1(guess: str, truths: Sequence[str]) -> float:
    """Best word overlap F1 with one of the true answers, of characters where a script writes no spaces (MLQA's rule);
    where either is empty, 1 if both are (SQuAD 2.0's rule).

    >>> round(squad_f1("\u4e09\u767e\u4e03\u5341\u4e07", ["\u7ea6\u4e09\u767e\u4e03\u5341\u4e07"]), 3)
    0.909
    """
    return max(_overlap(guess, t) for t in _answers(truths))


@functools.lru_cache(maxsize=1 << 17)
def _squad_pair(guess: str, truths: tuple[str, ...]) -> tuple[float, float]:
    """(exact, F1), remembered: an interval scores the same answers hundreds of times."""
    return squad_exact(guess, truths), squad_f1(guess, truths)


def _answers(truths: Sequence[str]) -> list[str]:
    # As in the v2 script: answers that normalise to nothing are dropped; none left means "no answer".
    return [t for t in truths if normalise_answer(t)] or [""]


def _overlap(guess: str, truth: str) -> float:
    a, b = (_PART.findall(normalise_answer(text)) for text in (guess, truth))
    if not a or not b:
        return float(a == b)
    return _f(sum((collections.Counter(a) & collections.Counter(b)).values()), len(a), len(b))[2]


def squad_scores(guesses: Mapping[str, str], truths: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """`f1`, `exact` (percent, as the scripts print) over questions, and apart for those with and without an answer.

    A question without a guess counts as wrong, as in the v1.1 script (the v2.0 script leaves it out of the mean).
    """
    rows = []
    for name, answers in truths.items():
        guess = guesses.get(name)
        scores = (0.0, 0.0) if guess is None else _squad_pair(guess, tuple(answers))
        rows.append((*scores, any(normalise_answer(a) for a in answers)))
    table = np.array(rows, np.float64).reshape(-1, 3)
    out = {"f1": 100 * _mean(table[:, 1]), "exact": 100 * _mean(table[:, 0])}
    for name, wanted in (("has_answer", 1.0), ("no_answer", 0.0)):
        part = table[table[:, 2] == wanted]
        if len(part) and len(part) < len(table):
            out |= {f"{name}_f1": 100 * _mean(part[:, 1]), f"{name}_exact": 100 * _mean(part[:, 0])}
    return out


def _mean(x: np.ndarray) -> float:
    return float(x.mean()) if len(x) else 0.0


# --- retrieval --------------------------------------------------------------------------------------------------------


def retrieval_scores(
    ranked: Sequence[Sequence[int]], relevant: Sequence[Mapping[int, float]], *, k: int = 10
) -> dict[str, float]:
    """nDCG@k (gain = relevance, Järvelin & Kekäläinen 2002), MRR@k and recall@k, averaged over queries with something
    relevant.
    """
    ndcg, mrr, recall = [], [], []
    for found, truth in zip(ranked, relevant, strict=True):
        if not truth:
            continue
        top = list(found)[:k]
        gain = sum(truth.get(d, 0.0) / np.log2(i + 2) for i, d in enumerate(top))
        ideal = sum(g / np.log2(i + 2) for i, g in enumerate(sorted(truth.values(), reverse=True)[:k]))
        ndcg.append(gain / ideal)
        mrr.append(next((1 / (i + 1) for i, d in enumerate(top) if d in truth), 0.0))
        recall.append(sum(d in truth for d in top) / len(truth))
    return {
        f"ndcg@{k}": _mean(np.array(ndcg)),
        f"mrr@{k}": _mean(np.array(mrr)),
        f"recall@{k}": _mean(np.array(recall)),
    }
