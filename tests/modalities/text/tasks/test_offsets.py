"""Offsets: text[start:end] is always exactly the entity or the answer, whatever the script."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from text_corpus import tokenizer
from unmask.modalities.text.tasks.answer import Answer, SquadQuestion
from unmask.modalities.text.tasks.conll import Sentence, joined
from unmask.modalities.text.tasks.encoding import ExampleMaker, best_window
from unmask.modalities.text.tasks.tag import Tag

KINDS = ("wordpiece", "bpe", "unigram")
ALPHABET = "abc ABéö\u0301\u200d\ufe0f👍🏽👩‍🚀 שלום مرحبا 今天\t\r\n.,-'ß\u00a0İ"
TEXT = st.text(alphabet=ALPHABET, min_size=1, max_size=60)
WORD = st.text(alphabet="abcéöß👍שם今天\u0301-'.", min_size=1, max_size=8)


def encoder(kind: str, slots: int = 24) -> ExampleMaker:
    return ExampleMaker(tokenizer(kind), slots=slots, types=True)


@pytest.mark.parametrize("kind", KINDS)
@given(words=st.lists(WORD, min_size=1, max_size=30), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_tagged_words_come_back(kind, words, seed):
    """Targets of a CoNLL sentence, decoded as if they were predictions, are its entities, across windows."""
    rng = np.random.default_rng(seed)
    tags = [("O", "B-X", "I-X", "B-Y")[i] for i in rng.integers(0, 4, len(words))]
    item = joined(words, tags)
    task = Tag(encoder(kind), {"labels": ["O", "B-X", "I-X", "B-Y", "I-Y"], "stride": 6})
    prepared = task.prepare([item], labelled=True)
    found = [_log_one_hot(e.values["target"], 5) for e in prepared.examples]
    entities = task.decode(found, prepared)[0]["entities"]
    for e in entities:
        assert item.text[e["start"] : e["end"]] == e["text"]
    readable = all(token >= 0 for token, *_ in prepared.extra["words"][0])
    if readable:  # a tokenizer may make no token of a lone combining mark
        assert [(e["start"], e["end"], e["label"]) for e in entities] == list(item.spans)


def _log_one_hot(target: np.ndarray, labels: int) -> np.ndarray:
    out = np.full((len(target), labels), -20.0)
    out[np.arange(len(target)), np.maximum(target - 1, 0)] = 0.0
    return out


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXT)
@example(text="\r\ufe0f")  # two tokens of one character
@settings(max_examples=40, deadline=None)
def test_words_of_raw_text_are_clean(kind, text):
    task = Tag(encoder(kind), {"labels": ["O", "B-X", "I-X"], "stride": 4})
    words = task.prepare([Sentence(text=text)], labelled=False).extra["words"][0]
    for _, start, end in words:
        assert 0 <= start < end <= len(text)
        assert text[start:end] == text[start:end].strip()
    assert all(a[2] <= b[1] for a, b in itertools.pairwise(words))


@pytest.mark.parametrize("kind", KINDS)
@given(context=TEXT, seed=st.integers(0, 999))
@settings(max_examples=40, deadline=None)
def test_answers_are_slices_of_the_context(kind, context, seed):
    """Whatever the model says, an answer is exactly a slice of the context, and probabilities add up to at most 1."""
    rng = np.random.default_rng(seed)
    task = Answer(encoder(kind), {"stride": 4, "no_answer": bool(seed % 2)})
    prepared = task.prepare([SquadQuestion(name="q", question="who?", context=context)], labelled=False)
    found = [rng.normal(size=(len(e), 2)) * 3 for e in prepared.examples]
    row = task.decode(found, prepared)[0]
    for a in [row["answer"], *row["nbest"]]:
        assert context[a["start"] : a["end"]] == a["text"]
    assert sum(a["probability"] for a in row["nbest"]) <= 1 + 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_true_answers_come_back_from_far_windows(kind):
    context = "Es war kalt. 👩‍🚀 Anna wohnt in\tÇatalhöyük, שלום.\r\n" * 6 + "Der Schlüssel liegt im Käsefach."
    answer = "Käsefach"
    q = SquadQuestion(name="q", question="wo?", context=context, answers=((answer, context.index(answer)),))
    task = Answer(encoder(kind, slots=48), {"stride": 12, "no_answer": False})
    prepared = task.prepare([q], labelled=True)
    assert len(prepared.examples) > 2
    found = []
    for e, (start, end) in zip(prepared.examples, prepared.extra["target"].tolist(), strict=True):
        logits = np.zeros((len(e), 2))
        if start:
            logits[start, 0] = logits[end, 1] = 9.0
        found.append(logits)
    assert task.decode(found, prepared)[0]["answer"]["text"].strip(".") == answer


def test_a_token_is_believed_where_it_has_most_context():
    made = encoder("wordpiece", slots=12)
    examples, windows = made.windows(made.texts(["one two three four five six seven eight nine ten " * 2]), stride=4)
    assert len(examples) > 2
    length = windows[-1].last
    best = best_window(windows, [length])[0]
    assert best[0] == 0
    assert best[-1] == len(windows) - 1
    for t, number in enumerate(best):
        assert windows[number].first <= t < windows[number].last
