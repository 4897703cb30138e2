"""Oriented gradients beside pixels; heads that read a grid of cells and start as a probe."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import unmask
from tiny_images import TINY, bars
from unmask.errors import UserError
from unmask.modalities.images.classify.classifier_settings import ClassifierSettings, with_overrides
from unmask.modalities.images.network.batches import image_batch
from unmask.modalities.images.network.build import codec_config, new_model
from unmask.modalities.images.network.codec import DIRECTIONS, cells_of, gradient_numbers, oriented_gradients, patchify
from unmask.modalities.images.network.folder import load_folder, published, save_folder
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.recipes import ImageSettings
from unmask.modalities.images.recipes import with_overrides as settings_with
from unmask.modalities.images.uses.finetune import finetune_classify


def ramp(across: float, down: float, patch: int = 4) -> torch.Tensor:
    row, column = torch.meshgrid(torch.arange(patch), torch.arange(patch), indexing="ij")
    return (across * column + down * row).float().flatten()


@pytest.mark.parametrize(("across", "down", "direction"), [(1, 0, 0), (1, 1, 1), (0, 1, 2), (-1, 0, 4), (0, -1, 6)])
def test_a_ramp_rises_most_in_its_own_direction(across, down, direction):
    cells = cells_of(4)
    found = oriented_gradients(ramp(across, down)[None], 4, 1).view(DIRECTIONS, cells, cells)
    assert (found.argmax(0) == direction).all()
    assert torch.allclose(found, found[:, :1, :1].expand_as(found))  # everywhere alike


def test_gradients_of_a_patch_ignore_brightness_and_nearly_contrast():
    x = ramp(1, 0.5)[None]
    found = oriented_gradients(x, 4, 1)
    assert torch.allclose(oriented_gradients(x + 3, 4, 1), found, atol=1e-5)
    assert torch.allclose(oriented_gradients(x * 10, 4, 1), found, rtol=0.05)
    assert oriented_gradients(torch.full((1, 16), 7.0), 4, 1).abs().max() < 1e-4
    assert oriented_gradients(torch.zeros(2, 3, 1), 1, 1).shape == (2, 3, gradient_numbers(1, 1))


def test_gradients_of_a_patch_read_no_other_patch(seed: int):
    torch.manual_seed(seed)
    pictures = torch.rand(1, 2, 8, 8)
    changed = pictures.clone()
    changed[..., 4:] = torch.rand(1, 2, 8, 4)
    before, after = (oriented_gradients(patchify(p, 4), 4, 2) for p in (pictures, changed))
    assert torch.equal(before[:, [0, 2]], after[:, [0, 2]])
    assert not torch.equal(before, after)


def made(**more):
    settings = settings_with(ImageSettings(), TINY | {"patch": 4, "gradients": True} | more)
    return new_model(settings, codec_config(settings, (12, 12), 1, (0.2,), (0.3,)))


def pictures(count: int = 60, seed: int = 0) -> ImageSet:
    pixels, labels = bars(count, seed=seed)
    return ImageSet(pixels=pixels[..., None], labels=labels, classes=["across", "down", "square"])


def test_a_folder_keeps_the_gradients_and_is_no_vit_mae(tmp_path):
    model = made().eval()
    batch = image_batch(model.codec.config, torch.randn(3, 1, 12, 12), np.arange(3))
    save_folder(tmp_path / "m", model)
    again = load_folder(tmp_path / "m").model
    assert torch.equal(again.states(batch), model.states(batch))
    with torch.no_grad():
        again.codec.edges.weight.zero_()
    assert not torch.allclose(again.states(batch), model.states(batch))
    # transformers would leave the gradients out and give other vectors without a word.
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "unmask_images"
    with pytest.raises(UserError, match="gradients"):
        published(model, "mae")


@pytest.mark.parametrize("pooling", ["mean", "grid", "first"])
def test_a_head_starts_as_the_probe_of_what_it_reads(tmp_path, pooling):
    save_folder(tmp_path / "m", made())
    still = {"steps": 1, "learning_rate": 1e-12, "holdout": 0.0, "precision": "fp32", "pooling": pooling}
    train, test = pictures(), pictures(90, seed=1)
    right = {}
    for start in ("probe", "zero"):
        settings = with_overrides(ClassifierSettings(), still | {"start": start})
        done = finetune_classify(tmp_path / "m", train, tmp_path / start, settings=settings, console=False)
        right[start] = float((done.model.probabilities(test).argmax(-1) == test.labels).mean())
        loaded = unmask.load(tmp_path / start)
        assert np.allclose(loaded.probabilities(test), done.model.probabilities(test), atol=1e-6)
    assert right["probe"] > max(0.6, right["zero"] + 0.1), right


def test_a_grid_head_reads_what_embed_gives(tmp_path):
    save_folder(tmp_path / "m", made())
    settings = with_overrides(
        ClassifierSettings(),
        {"steps": 2, "holdout": 0.0, "precision": "fp32", "pooling": "grid", "gradients": False, "batch": 16},
    )
    done = finetune_classify(tmp_path / "m", pictures(), tmp_path / "c", settings=settings, console=False)
    vectors = unmask.load(tmp_path / "c").embed(pictures(), pooling="grid")
    with torch.no_grad():
        logits = done.model.net.head(torch.from_numpy(vectors).to(done.model.device)).cpu()
    assert np.allclose(logits.softmax(-1).numpy(), done.model.probabilities(pictures()), atol=1e-4)


def test_a_probe_is_refused_where_there_is_none(tmp_path):
    save_folder(tmp_path / "m", made())
    with pytest.raises(UserError, match="from_scratch"):
        with_overrides(ClassifierSettings(), {"start": "probe", "from_scratch": True})
    numbers = (pictures().pixels, np.linspace(0.1, 0.9, 60))
    settings = with_overrides(ClassifierSettings(), {"start": "probe", "problem": "regression", "steps": 1})
    with pytest.raises(UserError, match="problem=regression"):
        finetune_classify(tmp_path / "m", numbers, tmp_path / "c", settings=settings, console=False)


def test_a_class_without_a_training_picture_is_not_predicted(tmp_path):
    save_folder(tmp_path / "m", made())
    some = pictures()
    some.classes.append("never seen")
    still = {"steps": 1, "learning_rate": 1e-12, "holdout": 0.0, "precision": "fp32", "start": "probe"}
    settings = with_overrides(ClassifierSettings(), still)
    done = finetune_classify(tmp_path / "m", some, tmp_path / "c", settings=settings, console=False)
    assert (done.model.probabilities(some).argmax(-1) < 3).all()
