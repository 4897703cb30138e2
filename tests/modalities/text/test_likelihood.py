"""The bound on the likelihood of texts: what is counted, and what stands beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from text_corpus import SENTENCES
from text_corpus import made_model as make
from unmask.modalities.text.uses.evaluate import likelihood, training_frequencies, windows


def test_a_model_that_knows_nothing_gives_every_token_alike():
    model = make()
    for parameter in model.model.parameters():
        torch.nn.init.zeros_(parameter)
    texts = SENTENCES[:6]
    found = likelihood(model, texts, draws=2)
    size = model.tokenizer.vocab_size
    counted = sum(len(ids) - 2 for ids in model.tokenizer.ids(list(texts)))
    assert found["nelbo"] == pytest.approx(math.log(size), rel=1e-5)
    assert found["nelbo_perplexity"] == pytest.approx(size, rel=1e-4)
    assert found["nelbo_tokens"] + found["nelbo_unknown"] == counted
    assert found["nelbo_standard_error"] == pytest.approx(0, abs=1e-6)
    zeros = likelihood(model, texts, draws=1, frequencies=np.zeros(size))
    assert zeros["unigram_nats"] == pytest.approx(math.log(size))
    assert zeros["unigram_of"] == "training"
    assert zeros["nelbo_standard_error"] is None


def test_shares_in_these_texts_are_just_that():
    found = likelihood(make(), ["the the the the", "the the the the"], draws=1)
    assert found["unigram_of"] == "these texts"
    assert found["unigram_nats"] == pytest.approx(0)
    assert found["unigram_perplexity"] == pytest.approx(1)


def test_long_texts_are_cut_and_a_share_of_the_texts_is_enough():
    model = make()
    texts = [" ".join(SENTENCES[:9])] * 30
    whole, some = (likelihood(model, texts, most_tokens=most) for most in (None, 400))
    assert whole["nelbo_texts"] == 30
    assert 1 <= some["nelbo_texts"] < 10
    assert some["nelbo"] == pytest.approx(whole["nelbo"], rel=0.2)


def test_windows_are_as_long_as_the_pieces_of_training():
    model, text = make(), " ".join(SENTENCES[:4])
    assert len(windows(model, [text])[0]) == 1
    model.folder.settings["trained_slots"] = 16
    examples, document = windows(model, [text, text])
    assert {len(e) for e in examples[:3]} <= {15, 16}  # a word is not cut
    assert len(examples) >= 6
    assert document == sorted(document)
    assert set(document) == {0, 1}
    assert max(map(len, examples)) <= 16
    assert model.evaluate([text])["hidden_slots"] > 0


def test_unknown_words_are_not_counted_and_leave_no_bits_per_byte():
    found = likelihood(make(), ["ж ж ж", SENTENCES[0]], draws=1)
    assert found["nelbo_unknown"] >= 1
    assert found["nelbo_bits_per_byte"] is None


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_bits_are_given_where_the_tokens_are_all_that_is_in_the_texts(kind):
    model, texts = make(kind), ["The quick fox jumps.", "A  fox."]
    for parameter in model.model.parameters():
        torch.nn.init.zeros_(parameter)
    found = likelihood(model, texts, draws=1)
    bits = math.log2(model.tokenizer.vocab_size) * found["nelbo_tokens"]
    assert found["nelbo_bits_per_byte"] == pytest.approx(bits / sum(len(t.encode()) for t in texts))
    assert found["nelbo_bits_per_character"] == pytest.approx(bits / sum(map(len, texts)))
    assert likelihood(model, [*texts, "a [SEP] fox"], draws=1)["nelbo_bits_per_byte"] is None


def test_bits_are_not_given_where_case_or_white_space_is_lost():
    for text in ("the quick fox", "The quick fox.", "the  quick fox"):
        found = likelihood(make("wordpiece", folded=True), [text], draws=1)
        assert (found["nelbo_bits_per_byte"] is None) == (text != "the quick fox"), text


def test_a_text_alone_is_one_text():
    model = make()
    one, several = (model.evaluate(texts, nelbo_draws=1) for texts in (SENTENCES[0], SENTENCES[:1]))
    assert one["rows"] == 1
    assert (one["loss"], one["nelbo"]) == (several["loss"], several["nelbo"])


def test_evaluate_tells_of_special_tokens():
    said: list[str] = []
    make().evaluate([SENTENCES[0], "a [SEP] fox jumps over the dog"], nelbo_draws=0, say=said.append)
    assert said[0].startswith("warning: 1 of 2 texts hold special tokens, the first is text 2 ([SEP])")


def test_evaluate_reports_it_and_leaves_it_out():
    model = make()
    found = model.evaluate(SENTENCES[:5], nelbo_draws=2)
    assert {"nelbo", "loss"} <= set(found["intervals"])
    assert found["nelbo_draws"] == 2
    assert "nelbo" not in model.evaluate(SENTENCES[:5], nelbo_draws=0)


def test_frequencies_of_a_folder_without_a_cache_are_none(tmp_path):
    assert training_frequencies(tmp_path, 10) is None
