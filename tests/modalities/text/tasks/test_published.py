"""Classifiers that transformers and sentence-transformers wrote say what these libraries say of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import unmask
from published import CASES, SMALL
from text_corpus import tokenizer
from unmask.errors import UserError

transformers = pytest.importorskip("transformers")

TEXTS = ["the quick brown fox", "readers check the sources"]
ST = "sentence_transformers"
NLI = ["contradiction", "neutral", "entailment"]


@pytest.fixture
def published(tmp_path):
    """Make a folder as others write it: names of its labels -> folder."""

    def made(labels, **config):
        names = dict(enumerate(labels))
        transformers.set_seed(0)
        kept = transformers.BertConfig(**SMALL, **CASES["bert"][1], id2label=names, initializer_range=0.5, **config)
        transformers.BertForSequenceClassification(kept).save_pretrained(tmp_path)
        tokenizer("wordpiece").save(tmp_path)
        return tmp_path

    return made


def theirs(folder, texts, **how):
    return transformers.pipeline("text-classification", str(folder), **how)(texts)


@pytest.mark.parametrize("config", [{}, {"problem_type": "multi_label_classification"}], ids=["single", "multi"])
def test_probabilities_are_those_of_transformers_in_the_order_of_its_labels(published, config):
    folder = published(["neg", "neu", "pos"], **config)
    model = unmask.load(folder)
    assert model.classes_ == ["neg", "neu", "pos"]
    expected = [{one["label"]: one["score"] for one in row} for row in theirs(folder, TEXTS, top_k=None)]
    found = model.predict_proba(TEXTS)
    np.testing.assert_allclose(found, [[row[name] for name in model.classes_] for row in expected], atol=1e-5)


def test_a_text_and_its_label_are_not_taken_for_a_pair(published):
    folder = published(["neg", "neu", "pos"])
    for rows in (list(zip(TEXTS, ["good", "bad"], strict=True)), (TEXTS, ["neg", "pos"])):
        with pytest.raises(UserError, match="a pair of texts, or a text and its label"):
            unmask.predict(folder, rows)
    pairs = [{"text": text, "text2": "the dog"} for text in TEXTS]
    given = [{"text": text, "text_pair": "the dog"} for text in TEXTS]
    assert [row["label"] for row in unmask.predict(folder, pairs)] == [row["label"] for row in theirs(folder, given)]


def test_labels_of_a_model_of_pairs_are_no_second_texts(published):
    folder = published(NLI)
    assert len(unmask.predict(folder, [(text, "the dog") for text in TEXTS])) == 2
    with pytest.raises(UserError, match="the second text is 'neutral', one of the model's labels"):
        unmask.predict(folder, [(text, "neutral") for text in TEXTS])


SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
ONE = {
    "nothing": ({}, "sigmoid"),
    "a regression": ({"problem_type": "regression"}, "identity"),
    "sigmoid": ({ST: {"activation_fn": SIGMOID, "version": "4.1.0"}}, "sigmoid"),
    "identity": ({ST: {"activation_fn": IDENTITY, "version": "4.1.0"}}, "identity"),
    "an old sigmoid": ({"sbert_ce_default_activation_function": SIGMOID}, "sigmoid"),
    "an old identity": ({"sbert_ce_default_activation_function": IDENTITY}, "identity"),
    "a function": ({"function_to_apply": "none"}, "identity"),
}


@pytest.mark.parametrize("case", ONE)
def test_one_output_is_what_its_config_applies_and_the_pipeline_what_transformers_gives(published, case):
    config, applied = ONE[case]
    folder = published(["LABEL_0"], **config)
    (raw,) = theirs(folder, [TEXTS[0]], function_to_apply="none")
    value = unmask.predict(folder, TEXTS[:1])[0]["value"]
    assert value == pytest.approx(raw["score"] if applied == "identity" else 1 / (1 + np.exp(-raw["score"])), abs=1e-4)
    expected, found = theirs(folder, TEXTS), unmask.pipeline("text-classification", folder)(TEXTS)
    assert [row["label"] for row in found] == [row["label"] for row in expected] == ["LABEL_0"] * 2
    np.testing.assert_allclose([row["score"] for row in found], [row["score"] for row in expected], atol=1e-4)
    assert unmask.load(folder).classes_ == []


def test_what_else_is_applied_to_an_output_is_refused(published):
    folder = published(["LABEL_0"], **{ST: {"activation_fn": "torch.nn.modules.activation.Tanh"}})
    with pytest.raises(UserError, match=r"config.json applies torch.nn.modules.activation.Tanh to the output"):
        unmask.predict(folder, TEXTS)
    about = json.loads((folder / "config.json").read_text())
    about |= {"problem_type": "regression", "id2label": {"0": "a", "1": "b"}}
    (folder / "config.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="2 numbers"):
        unmask.predict(folder, TEXTS)


def test_a_loaded_nli_model_labels_without_training_as_its_folder_does(published):
    folder = published(NLI)
    expected = unmask.zero_shot(folder, TEXTS, ["good", "bad"])
    assert list(unmask.load(folder).zero_shot(TEXTS, ["good", "bad"])) == list(expected)
    (row, _) = unmask.pipeline("zero-shot-classification", folder)(TEXTS, ["good", "bad"])
    assert row["labels"][0] == expected[0]["label"]


def test_a_pipeline_takes_a_dict_of_one_text(published):
    folder = published(["neg", "pos"])
    (found,) = unmask.pipeline("text-classification", folder)({"text": TEXTS[0]})
    assert found["label"] == theirs(folder, {"text": TEXTS[0]})["label"]
