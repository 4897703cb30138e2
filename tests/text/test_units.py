"""Whole words are whole for every tokenizer kind, and Chinese and Japanese go by the character."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from text_corpus import tokenizer
from unmask.text.units import entity_units

KINDS = ["wordpiece", "bpe", "unigram"]


def pieces_by_unit(kind: str, text: str) -> list[str]:
    e = tokenizer(kind).encode([text], specials=False)[0]
    spans = []
    for unit in range(int(e.units.max()) + 1):
        at = e.offsets[e.units == unit]
        spans.append(text[at[:, 0].min() : at[:, 1].max()].strip())
    return [s for s in spans if s]


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_whole(kind):
    text = "Readers rarely predict unbelievable pretraining, do they?"
    assert pieces_by_unit(kind, text) == [
        "Readers",
        "rarely",
        "predict",
        "unbelievable",
        "pretraining",
        ",",
        "do",
        "they",
        "?",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_an_apostrophe_inside_a_word_belongs_to_it(kind):
    assert pieces_by_unit(kind, "Don't stop")[0] == "Don't"


@pytest.mark.parametrize("kind", KINDS)
def test_han_text_goes_by_the_character(kind):
    assert pieces_by_unit(kind, "今天天气很好") == list("今天天气很好")


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=60))
def test_units_ascend_without_gaps(kind, text):
    e = tokenizer(kind).encode([text])[0]
    real = e.units[e.units >= 0]
    assert (np.diff(real) >= 0).all()
    assert set(real.tolist()) == set(range(len(set(real.tolist()))))
    assert (e.units[e.special] == -1).all()


def test_entities_merge_their_words():
    units = np.array([-1, 0, 0, 1, 2, -1])
    offsets = [(0, 0), (0, 2), (2, 4), (5, 8), (9, 12), (0, 0)]
    assert entity_units(units, [(3, 6)], offsets).tolist() == [-1, 0, 0, 0, 1, -1]
