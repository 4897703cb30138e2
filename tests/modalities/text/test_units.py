"""Whole words are whole for every tokenizer kind, and Chinese and Japanese go by the character."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from text_corpus import tokenizer
from unmask.modalities.text.tokens.units import entity_units

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


@pytest.mark.parametrize("kind", KINDS)
def test_japanese_goes_by_the_character(kind):
    text = "日本語の文章"
    if kind != "bpe":
        assert pieces_by_unit(kind, text) == list(text)
    # Byte-level BPE may merge the bytes of two neighbours into one token: only then is a unit more than a character.
    e = tokenizer(kind).encode([text], specials=False)[0]
    for unit in set(e.units.tolist()):
        at = e.offsets[e.units == unit]
        crossing = (at[:, 1] - at[:, 0] - 1).sum()
        assert at[:, 1].max() - at[:, 0].min() <= 1 + crossing


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_lone_space_piece_belongs_to_the_word_after_it(kind):
    """Else a space nobody would ask for is hidden and predicted, and the word is not hidden whole."""
    e = tokenizer(kind).encode(["the xyzzy 今"], specials=False)[0]
    assert e.offsets[e.units == 1].tolist()[0] == [3, 4]
    assert pieces_by_unit(kind, "the xyzzy 今") == ["the", "xyzzy", "今"]
    assert len(set(e.units.tolist())) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_piece_and_a_combining_mark_stay_in_their_word(kind):
    assert pieces_by_unit(kind, "Qqz cafe\u0301s") == ["Qqz", "cafe\u0301s"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_mask_is_its_own_unit(kind):
    made = tokenizer(kind)
    e = made.encode(["xyz[MASK]xyz [MASK]"])[0]
    for at in np.flatnonzero(e.ids == made.mask_id):
        assert (e.units == e.units[at]).sum() == 1


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(st.text(alphabet="ab' \u0301今の.!\u200d🙂", max_size=20), min_size=1, max_size=5))
def test_a_batch_is_its_texts_one_by_one(kind, texts):
    made = tokenizer(kind)
    for one, e in zip([made.encode([t])[0] for t in texts], made.encode(texts), strict=True):
        assert one.units.tolist() == e.units.tolist()


def test_an_entity_takes_what_lies_between_its_outermost_units():
    units, offsets = np.array([0, 1, 2, 3]), [(0, 3), (3, 3), (4, 8), (9, 12)]
    assert entity_units(units, [(0, 8)], offsets).tolist() == [0, 0, 0, 1]


def test_the_bytes_of_a_wide_space_are_one_unit():
    e = tokenizer("bpe").encode(["a\u3000b"], specials=False)[0]
    assert len(e) > 3
    assert e.units.tolist() == [0] + [1] * (len(e) - 2) + [2]
