"""Which sentence of a context has most words in common with a question: the rule that question answering has to beat,
and as a baseline that can be saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from unmask.modalities.text.network.held_out_search import sentences, with_pairs, words
from unmask.modalities.text.tasks import linear
from unmask.modalities.text.tasks.baselines import Baseline
from unmask.modalities.text.tasks.encoding import Prepared
from unmask.modalities.text.tasks.squad import SquadQuestion

GAINS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""What overlaps may be multiplied by."""
EDGE = 0.01
"""Added to the first and the last token of a sentence, so that alone the rule answers with whole sentences."""
OUTSIDE = -1e4
"""Of slots that are no token of the context."""


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


def sentence_scores(baseline: Baseline, prepared: Prepared) -> Iterator[np.ndarray]:
    """(slots, 2) of each window: for a token, the gain times the overlap of its sentence, as start and as end."""
    gain = float(baseline.model.weight[0, 0])
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
        scores[window.shift : window.shift + window.last - window.first] = gain * found[of[here], None] + edges[here]
        yield scores
