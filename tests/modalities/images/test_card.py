"""The model cards of image folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from tiny_images import TINY, class_folder
from unmask.evaluation.card import is_ours
from unmask.modalities.images.classify.classifier_settings import ClassifierSettings, with_overrides
from unmask.modalities.images.recipes import ImageSettings
from unmask.modalities.images.recipes import with_overrides as image_settings
from unmask.modalities.images.uses.finetune import finetune_classify
from unmask.modalities.images.uses.model import load
from unmask.modalities.images.uses.pretrain import pretrain


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures, and a model of them after a few steps."""
    home = tmp_path_factory.mktemp("card")
    class_folder(home / "secret-pictures")
    settings = image_settings(ImageSettings(), TINY | {"probe": False})
    pretrain(home / "secret-pictures", home / "model", settings=settings, console=False)
    return home


def read(folder: Path) -> ModelCard:
    assert is_ours(folder / "README.md")
    return ModelCard.load(folder / "README.md")


def test_a_pretrained_folder(place: Path):
    made = read(place / "model")
    assert (made.data.to_dict()["library_name"], made.data.pipeline_tag) == ("transformers", "image-feature-extraction")
    assert "60 pictures of 12 x 12" in made.text
    assert "| loss | " in made.text
    assert 'ViTMAEForPreTraining.from_pretrained("model")' in made.text
    assert "From secret-pictures." in made.text
    assert str(place) not in made.text
    page = (place / "model" / "report.html").read_text()
    assert f"unmask embed {place / 'model'} photos/" in page


def test_a_classifier_stands_beside_the_rule_that_looks_at_nothing(place: Path, tmp_path: Path):
    settings = with_overrides(ClassifierSettings(), {"epochs": 1, "precision": "fp32", "batch": 16})
    done = finetune_classify(
        place / "model", place / "secret-pictures", tmp_path / "tuned", settings=settings, console=False
    )
    made, judged = read(tmp_path / "tuned"), done.figures["validation"]
    low, high = judged["intervals"]["accuracy"]
    assert (made.data.to_dict()["library_name"], made.data.pipeline_tag) == ("unmask", "image-classification")
    rules = " | ".join(f"{judged[name]:.3f}" for name in ("most_frequent_accuracy", "raw_probe_accuracy"))
    row = f"| accuracy | {judged['accuracy']:.3f} [{low:.3f}, {high:.3f}] | {rules} | higher is better |"
    assert row in made.text
    assert f"Fine-tuned on {done.figures['pictures']} labelled pictures" in made.text
    assert "3 classes: across, down, square" in made.text
    assert f"unmask predict {tmp_path / 'tuned'} photos/" in (tmp_path / "tuned" / "report.html").read_text()
    load(tmp_path / "tuned").save(tmp_path / "copy")
    table = [line for line in (tmp_path / "copy" / "README.md").read_text().splitlines() if line.startswith("| ")]
    assert table == [line for line in made.content.splitlines() if line.startswith("| ")]
