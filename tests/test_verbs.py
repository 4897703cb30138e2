"""The verbs in Python: one order of arguments, settings as keywords, data in memory, and results without a folder."""

from __future__ import annotations

import gc
import importlib
import json

import numpy as np
import pytest

import unmask
from tiny_folders import folder, sentiment
from unmask.errors import UserError
from unmask.modalities.text.tasks.guessed import task_for
from unmask.training.settings import TrainSettings, settings_from
from unmask.verbs import kind_of_data

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


def test_labels_stand_behind_the_data_where_the_folder_has_its_name_too(lm, tmp_path):
    assert unmask.finetune(lm, X, Y, out=tmp_path / "a", **SMALL).folder == tmp_path / "a"
    assert unmask.load(lm).finetune(X, Y, out=tmp_path / "b", **SMALL).folder == tmp_path / "b"
    with pytest.raises(UserError, match=r"the model comes first\n.*task='classify'"):
        unmask.finetune("classify", lm, ROWS, out=tmp_path / "c")


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


def test_a_model_is_adapted_to_texts_in_memory(lm):
    adapted = unmask.adapt(lm, TEXTS, steps=1, console=False)
    assert adapted.run.result.steps == 1
    assert "before" in str(adapted)
    assert adapted.model.embed(["the fox"]).shape == (1, 32)
    again = unmask.adapt(adapted.model, TEXTS, steps=1, console=False)
    assert again.run.result.steps == 1
    with pytest.raises(UserError, match="the model to adapt has its own"):
        unmask.adapt(lm, TEXTS, width=8)


def test_results_print_themselves(lm):
    run = unmask.finetune(lm, ROWS, **SMALL)
    assert str(run).startswith("Fine-tuned for classify, ")
    assert "next: run.model.save('classify')" in str(run)
    found = run.model.predict(X)
    assert str(found).startswith("16 predictions\n")
    assert "and 6 more" in str(found)
    assert "probabilities" not in str(found)
    assert (len(found.to_frame()), "probabilities" in found.to_frame()) == (16, True)
    assert "<td>good</td>" in found._repr_html_() or "<td>bad</td>" in found._repr_html_()


def test_what_a_text_model_says_prints_itself(lm):
    model = unmask.load(lm)
    for found, first in (
        (model.fill(["the [MASK] fox", "a [MASK]"]), "Blanks filled in 2 texts"),
        (model.score(X[:3]), "Pseudo-log-likelihood of 3 texts"),
        (model.generate("the", length=2), "1 new texts"),
        (unmask.zero_shot(model, X[:2], ["fox", "dog"]), "2 texts, labelled without training"),
    ):
        assert str(found).startswith(first)
        assert isinstance(found, list)
        assert len(found.to_frame()) == len(found)
        assert json.loads(json.dumps(found)) == found
    judged = unmask.evaluate(model, TEXTS)
    assert isinstance(judged, dict)
    rows, rule = judged.to_frame().set_index("figure"), f"always {judged['most_frequent']!r}"
    assert f"accuracy at 1 {judged['accuracy_at_1']:.2f}" in " ".join(str(judged).split())
    assert rows.loc["accuracy at 1", ["model", rule]].tolist() == [
        judged["accuracy_at_1"],
        judged["most_frequent_accuracy"],
    ]
    assert rows.loc["perplexity", "model"] == judged["perplexity"]
    tuned = unmask.finetune(lm, ROWS, **SMALL)
    found = unmask.evaluate(tuned.model, ROWS)
    assert f"always {found['figures']['most_frequent']!r}" in str(found)
    assert found.to_frame()["model"].iloc[0] == found["accuracy"]


def test_fine_tuning_shows_how_far_it_is_unless_asked_not_to(lm, capsys):
    unmask.finetune(lm, ROWS, **SMALL)
    assert "step 1 " in capsys.readouterr().err
    unmask.finetune(lm, ROWS, console=False, **SMALL)
    assert capsys.readouterr().err == ""


def test_predictions_are_written_too(lm, tmp_path):
    model = unmask.finetune(lm, ROWS, **SMALL).model
    found = unmask.predict(model, X[:2], tmp_path / "p.jsonl")
    assert [json.loads(line)["label"] for line in (tmp_path / "p.jsonl").open()] == [row["label"] for row in found]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (TEXTS, "text"),
        ({"text": TEXTS}, "text"),
        ({"text": X, "label": Y}, "text"),
        ({"age": [1.0, 2.0], "sex": ["f", "m"]}, "table"),
        ({"subject_id": [1], "time": [None], "code": ["A"]}, "events"),
        (np.zeros((4, 8, 8)), "images"),
        ((np.zeros((4, 8, 8, 3)), [0, 1, 0, 1]), "images"),
        ([np.zeros((8, 8))], "images"),
        (np.zeros((4, 8)), None),
        ({"text": X, "age": Y}, None),
    ],
)
def test_the_kind_of_data_in_memory(data, kind):
    if kind:
        assert kind_of_data(data) == kind
        return
    with pytest.raises(UserError, match=r"of which kind\?[\s\S]*kind=, one of text, table, images, events"):
        kind_of_data(data)


def test_the_kind_of_files(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a fox")
    (tmp_path / "cohort.csv").write_text("age;sex\n1;f\n")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.PNG").write_bytes(b"")
    (tmp_path / "meds" / "data").mkdir(parents=True)
    (tmp_path / "meds" / "metadata").mkdir()
    kinds = {"texts": "text", "cohort.csv": "table", "pictures": "images", "meds": "events"}
    assert {name: kind_of_data(tmp_path / name) for name in kinds} == kinds


@pytest.mark.parametrize("data", [TEXTS, {"text": TEXTS}], ids=["list", "columns"])
def test_texts_are_pretrained_in_one_call(data):
    run = unmask.text.pretrain(data, steps=1, width=32, layers=1, vocabulary=200, console=False)
    assert (run.result.steps, run.settings.width) == (1, 32)
    assert run.model.embed(["the fox"]).shape == (1, 32)


@pytest.mark.parametrize("kind", ["text", "images", "events"])
def test_a_recipe_as_a_keyword_is_the_published_one(kind: str):
    module = importlib.import_module(f"unmask.modalities.{kind}.recipes")
    default = getattr(unmask, kind).Settings()
    for name, values in module.RECIPES.items():
        found = settings_from(default, None, {"recipe": name, "seed": 7}, module.with_overrides, module.RECIPES)
        assert found == module.with_overrides(module.with_overrides(default, values), {"seed": 7})
    with pytest.raises(UserError, match="recipe='robert'"):
        settings_from(default, None, {"recipe": "robert"}, module.with_overrides, module.RECIPES)


def test_what_is_not_there_is_not_there():
    assert not hasattr(unmask, "load_model")
    with pytest.raises(AttributeError, match="here it is unmask"):
        unmask.load_model  # noqa: B018


def test_what_evaluate_does_not_read_is_refused(lm):
    with pytest.raises(UserError, match="labels of a model without a task"):
        unmask.load(lm).evaluate(X, Y)
    with pytest.raises(UserError, match="ratio"):
        unmask.finetune(lm, ROWS, **SMALL).model.evaluate(X, Y, ratio=0.3)
