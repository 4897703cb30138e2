"""Every setting of text does something, or is refused by name where nothing reads it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json

import pytest

from text_corpus import SENTENCES, tokenizer
from unmask.errors import UserError
from unmask.modalities.text.network.pretrain import pretrain
from unmask.modalities.text.recipes import RECIPES, TextSettings, with_overrides
from unmask.modalities.text.tasks.adapt_embedding import embedding_settings

SMALL = {
    "width": 32,
    "layers": 2,
    "heads": 2,
    "slots": 32,
    "vocabulary": 300,
    "holdout": 0.1,
    "batch_slots": 512,
    "precision": "fp32",
    "device": "cpu",
    "steps": 6,
    "epochs": None,
    "clip": None,
}
OTHER = {
    "recipe": "bert",
    "objective": "detection",
    "generator": 0.5,
    "architecture": "visible_only",
    "width": 48,
    "layers": 3,
    "heads": 1,
    "inner": 40,
    "initial_attention": "random",
    "initial_embeddings": "random",
    "slots": 16,
    "vocabulary": 200,
    "tokenizer_kind": "bpe",
    "lowercase": True,
    "strip_accents": True,
    "causal": 0.5,
    "ratio": 0.4,
    "ratio_end": 0.6,
    "density": "uniform",
    "spread": 2.0,
    "loss_weight": "ratio",
    "hide": "word",
    "rarity": 0.5,
    "select": "unmask.core.corruption:Spans",
    "mask": 0.9,
    "random": 0.2,
    "keep": 0.2,
    "static": True,
    "holdout": 0.3,
    "dropout": 0.2,
    "column": "other",
    "document": "line",
    "sentences": 1.0,
}
TOGETHER = {"mask": {"random": 0.1, "keep": 0.0}, "random": {"mask": 0.7}, "keep": {"mask": 0.7}}
"""Shares that add up to 1."""
REFUSED = ("objective", "generator", "spread")
"""Without others that they need."""
ALWAYS_RANDOM = ("initial_attention", "initial_embeddings")
"""Where replaced tokens are detected, whatever is said."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    place = tmp_path_factory.mktemp("corpus")
    texts = [f"{SENTENCES[i % 8]} {SENTENCES[(i * 3 + 1) % 8]} {i}" for i in range(24)]
    (place / "a.txt").write_text("\n\n".join("\n".join((t, "and more of it")) for t in texts), encoding="utf-8")
    rows = "".join(json.dumps({"text": t, "other": t[::-1]}) + "\n" for t in texts)
    (place / "b.jsonl").write_text(rows, encoding="utf-8")
    tokenizer("wordpiece").save(place / "given")
    return place


def trained(corpus, place, **more):
    settings = with_overrides(TextSettings(), SMALL | more)
    pretrain([str(corpus / "a.txt"), str(corpus / "b.jsonl")], place, settings=settings, console=False)
    return hashlib.sha256((place / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def usual(corpus, tmp_path_factory):
    """The model of a path without any other setting."""
    return functools.cache(lambda path=None: trained(corpus, tmp_path_factory.mktemp("usual") / "run", **PATHS[path]))


def test_every_setting_has_another_value_here():
    assert set(OTHER) == {f.name for f in dataclasses.fields(TextSettings)} - {"train", "tokenizer"}


PATHS = {
    None: {},
    "visible_only": {"architecture": "visible_only"},
    "detection": {"recipe": "bert", "objective": "detection"} | dict.fromkeys(ALWAYS_RANDOM, "random"),
}
IDLE = {
    "visible_only": ("causal", "mask", "random", "keep", *REFUSED),
    "detection": ("architecture", "causal", "spread"),
}


@pytest.mark.parametrize(("path", "name"), [(p, n) for p in IDLE for n in OTHER if n not in PATHS[p]])
def test_a_setting_of_another_path_changes_the_model_or_is_refused(path, name, corpus, usual, tmp_path):
    given = PATHS[path] | TOGETHER.get(name, {}) | {name: OTHER[name]}
    if name in IDLE[path]:
        with pytest.raises(UserError, match=name):
            trained(corpus, tmp_path / "run", **given)
    else:
        assert trained(corpus, tmp_path / "run", **given) != usual(path)


@pytest.mark.parametrize("name", OTHER)
def test_a_setting_of_pretraining_changes_the_model_or_is_refused(name, corpus, usual, tmp_path):
    more = {name: OTHER[name]} | TOGETHER.get(name, {})
    if name in REFUSED:
        with pytest.raises(UserError, match=name):
            trained(corpus, tmp_path / "run", **more)
    else:
        assert trained(corpus, tmp_path / "run", **more) != usual()


def test_what_is_hidden_is_not_said_beside_a_selector_of_ones_own():
    select = OTHER["select"]
    with pytest.raises(UserError, match=r"hide='span' with select=.*nothing reads it"):
        TextSettings(hide="span", select=select)
    assert with_overrides(TextSettings(), RECIPES["modern"] | {"select": select}).select == select


@pytest.mark.parametrize(
    ("name", "value"),
    [("vocabulary", 9999), ("tokenizer_kind", "bpe"), ("lowercase", True), ("strip_accents", True)],
)
def test_a_tokenizer_that_is_brought_along_is_as_the_settings_say(name, value, corpus, tmp_path):
    from unmask.modalities.text.tokens.prepare import prepare

    given = {"tokenizer": str(corpus / "given")} | {"vocabulary": TextSettings.vocabulary}
    settings = with_overrides(TextSettings(), SMALL | given | {name: value})
    for make in (pretrain, prepare):
        with pytest.raises(UserError, match=f"{name}=.*{value}.*given has"):
            make([str(corpus / "a.txt")], tmp_path / "out", settings=settings)


def test_what_a_brought_tokenizer_has_may_be_said(corpus, tmp_path):
    place = tmp_path / "folded"
    tokenizer("wordpiece", folded=True).save(place)
    size = tokenizer("wordpiece", folded=True).vocab_size
    trained(corpus, tmp_path / "a", tokenizer=str(place), lowercase=True, strip_accents=True, vocabulary=size)
    bert = SMALL | RECIPES["bert"] | {"tokenizer": str(corpus / "given"), "vocabulary": TextSettings.vocabulary}
    pretrain([str(corpus / "a.txt")], tmp_path / "b", settings=with_overrides(TextSettings(), bert), console=False)


NOT_OF_EMBEDDING = ("spread", "hide", "select", "mask", "random", "keep", "static", "ratio", "ratio_end", "density")


@pytest.mark.parametrize("name", NOT_OF_EMBEDDING)
def test_what_vectors_are_not_learnt_by_is_refused(name):
    with pytest.raises(UserError, match="nothing reads it"):
        embedding_settings({name: OTHER[name]} | TOGETHER.get(name, {}))


def test_what_the_view_does_not_read_is_refused():
    assert embedding_settings({"view": "token", "ratio": 0.4}).ratio == 0.4
    for given in ({"view": "token", "seen": (0.2, 0.3)}, {"contrast": 0.0, "temperature": 0.1}):
        with pytest.raises(UserError, match=f"{list(given)[-1]}=.*nothing reads it"):
            embedding_settings(given)
