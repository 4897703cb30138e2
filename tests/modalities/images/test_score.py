"""How natural pictures are to a model: what is summed, of which slots, and that it tells pictures apart."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from commands import run
from tiny_images import NO_DECODER, TINY, bars
from unmask.core.batch import Example
from unmask.core.corruption import hide
from unmask.core.score import score
from unmask.modalities.images import recipes
from unmask.modalities.images.network.batches import image_batches
from unmask.modalities.images.network.build import codec_config, new_model
from unmask.modalities.images.network.codec import standardise
from unmask.modalities.images.network.folder import ImageFolder, save_folder
from unmask.modalities.images.uses.model import ImageModel, load
from unmask.modalities.images.uses.pretrain import pretrain


def model(**more) -> ImageModel:
    settings = recipes.with_overrides(recipes.ImageSettings(), TINY | {"patch": 4} | more)
    torch.manual_seed(0)
    made = new_model(settings, codec_config(settings, (12, 12), 1, (0.3,), (0.3,)))
    return ImageModel(ImageFolder(model=made.eval(), depth="uint8"), torch.device("cpu"), "fp32")


def holed() -> np.ndarray:
    """Pictures as floats, NaN where not measured: a pixel, and a whole patch."""
    pixels = bars(5)[0].astype(np.float32) / 255
    pixels[1, 0, 0], pixels[2, 4:8, 4:8] = np.nan, np.nan
    return pixels


@pytest.mark.parametrize(
    "more", [{}, {"architecture": "in_place", **NO_DECODER}, {"statistics": 0.0, "norm_targets": False}]
)
def test_scores_are_those_of_the_core(more):
    """With each patch hidden in a copy of its picture."""
    ours = model(**more)
    ours.folder.depth = "float32"
    assert ours.scored == "pixels"
    images = ours.read(holed())
    (batch, _), *rest = image_batches(ours.model.codec, images, 8)
    assert not rest
    channels = [{name: value[i].numpy() for name, value in batch.values.items()} for i in range(5)]
    examples = [
        Example(values=v, identity=i, observed=batch.observed[i].numpy(), special=batch.special[i].numpy())
        for i, v in enumerate(channels)
    ]
    expected = score(ours.model, examples, slots=batch.shape[1], mode="slot")
    found = ours.score(images)
    assert [r["slots"] for r in found] == [s.slots for s in expected] == [9, 9, 8, 9, 9]
    np.testing.assert_allclose([r["score"] for r in found], [s.total for s in expected], rtol=1e-4)
    assert [r["name"] for r in found] == ["0", "1", "2", "3", "4"]


def test_a_model_without_statistics_tells_the_density_of_patterns():
    ours = model(statistics=0.0)
    images = ours.read(bars(2)[0])
    assert ours.scored == "patterns"
    ((batch, _),) = image_batches(ours.model.codec, images, 2)
    total = np.zeros(2)
    for slot in range(1, 10):
        flat = torch.tensor([slot, 10 + slot])
        with torch.inference_mode():
            pattern = ours.model(batch, hide(flat)).pattern
        error = pattern - standardise(batch.values["patch"][:, slot])[0]
        total += (-0.5 * (error**2 + math.log(2 * math.pi))).sum(-1).numpy()
    np.testing.assert_allclose([r["score"] for r in ours.score(images)], total, rtol=1e-4)


@pytest.mark.parametrize("seed", [0, 1])
def test_pictures_like_those_of_the_training_are_more_natural_than_noise(tmp_path, seed):
    settings = recipes.with_overrides(recipes.ImageSettings(), TINY | {"patch": 4, "steps": 40, "seed": seed})
    pretrain(bars(60, seed=seed), tmp_path, settings=settings, console=False)
    trained, new = load(tmp_path, device="cpu"), bars(12, seed=seed + 100)[0]
    noise = np.random.default_rng(seed).integers(0, 256, new.shape).astype(np.uint8)
    real, other = ([r["score"] for r in trained.score(pictures)] for pictures in (new, noise))
    assert min(real) > max(other)


def test_the_command_prints_it(tmp_path, capsys):
    ours = model()
    save_folder(tmp_path / "m", ours.model, depth="uint8")
    np.save(tmp_path / "p.npy", bars(3)[0])
    code, out, _ = run(capsys, "score", tmp_path / "m", tmp_path / "p.npy", "--precision", "fp32", "--json")
    found = json.loads(out)
    assert (code, found["rows"], found["slots"], found["scored"], found["skipped"]) == (0, 3, 27, "pixels", 0)
    expected = [r["score"] for r in ours.score(bars(3)[0])]
    np.testing.assert_allclose([r["score"] for r in found["results"]], expected, rtol=1e-4)
    assert "9 patches  0" in run(capsys, "score", tmp_path / "m", tmp_path / "p.npy", "--precision", "fp32")[1]
