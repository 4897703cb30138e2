"""The verbs in Python: one order of arguments, settings as keywords, data in memory, and results without a folder."""

from __future__ import annotations

import gc

import pytest

import unmask
from tiny_folders import folder, sentiment
from unmask.errors import UserError
from unmask.modalities.text.tasks.guessed import task_for
from unmask.training.settings import TrainSettings, settings_from

ROWS = sentiment(16)
X, Y = map(list, zip(*ROWS, strict=True))
TEXTS = [f"the quick brown fox {i} jumps over the lazy dog" for i in range(40)]
SMALL = {"steps": 1, "precision": "fp32", "device": "cpu"}


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("verbs") / "lm")


def test_settings_are_keywords_a_dict_or_an_object():
    settings = unmask.text.Settings()
    change = unmask.text.with_overrides
    assert settings_from(settings, None, {}, change) is settings
    assert settings_from(settings, None, {"steps": 60, "width": 128}, change).width == 128
    assert settings_from(settings, {"width": 64}, {"steps": 60}, change).train.steps == 60
    assert settings_from(settings, unmask.text.Settings(width=64), {"seed": 1}, change).width == 64
    assert settings_from(settings, TrainSettings(steps=3), {"seed": 1}, change).train.steps == 3
    with pytest.raises(UserError, match="Did you mean 'layers'"):
        settings_from(settings, None, {"layer": 1}, change)
    with pytest.raises(UserError, match=r"a ImageSettings[\s\S]*as keywords"):
        settings_from(settings, unmask.images.Settings(), {}, change)


@pytest.mark.parametrize("data", [ROWS, (X, Y), {"text": X, "label": Y}], ids=["rows", "(X, y)", "columns"])
def test_a_task_is_known_by_its_data_and_the_folder_is_optional(lm, data):
    run = unmask.finetune(lm, data, **SMALL)
    assert run["task"] == "classify"
    assert unmask.predict(run.model, X[:2])[0]["label"] in {"good", "bad"}


def test_a_temporary_folder_lives_as_long_as_the_result_or_its_model(lm):
    run = unmask.finetune(lm, X, Y, **SMALL)
    place, model = run.folder, run.model
    del run
    gc.collect()
    assert place.is_dir()
    del model
    gc.collect()
    assert not place.exists()


def test_a_loaded_model_is_fine_tuned_and_stays_as_it_was(lm):
    model = unmask.load(lm)
    before = model.embed(X[:2])
    run = unmask.finetune(model, ROWS, **SMALL | {"learning_rate": 0.1})
    assert (model.embed(X[:2]) == before).all()
    again = unmask.finetune(run.model, ROWS, **SMALL)
    assert again["task"] == "classify"


@pytest.mark.parametrize(
    ("row", "task"),
    [
        ({"question": "who?", "context": "a fox", "answers": []}, "answer"),
        ({"tokens": ["a", "fox"], "ner_tags": ["O", "B-A"]}, "tag"),
        (("a fox", [(2, 5, "A")]), "tag"),
        (("a fox", "b"), "classify"),
        ({"premise": "a", "hypothesis": "b", "label": "entailment"}, "classify"),
        (("a", "b", "same"), "classify"),
        ({"anchor": "a", "positive": "b"}, "similarity"),
        (("a", "b", 0.5), None),
        ("a text", None),
    ],
)
def test_the_task_of_data(row, task):
    if task:
        assert task_for([row] * 2) == task
        return
    with pytest.raises(UserError, match=r"which task\?[\s\S]*task='classify', or tag, answer, similarity"):
        task_for([row] * 2)


@pytest.mark.parametrize("data", [TEXTS, {"text": TEXTS}], ids=["list", "columns"])
def test_texts_are_pretrained_in_one_call(data):
    run = unmask.text.pretrain(data, steps=1, width=32, layers=1, vocabulary=200, console=False)
    assert (run.result.steps, run.settings.width) == (1, 32)
    assert run.model.embed(["the fox"]).shape == (1, 32)
