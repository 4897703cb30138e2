"""Pixels that were not measured: missing patches are never hidden, never a target, and nothing reads what stands in
them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import unmask
from tiny_images import NO_DECODER, TINY, bars
from unmask.core.corruption import hide
from unmask.errors import UserError
from unmask.modalities.images.classify.classifier_settings import ClassifierSettings
from unmask.modalities.images.classify.classifier_settings import with_overrides as finetune_with
from unmask.modalities.images.network.augment import Augment, at_scale
from unmask.modalities.images.network.batches import channel_statistics, image_batch
from unmask.modalities.images.network.build import codec_config, new_model
from unmask.modalities.images.network.codec import PatchPrediction
from unmask.modalities.images.network.features import features
from unmask.modalities.images.network.masking import image_corruption
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.sources import read_images
from unmask.modalities.images.recipes import ImageSettings, with_overrides
from unmask.modalities.images.uses.finetune import finetune_classify
from unmask.modalities.images.uses.pretrain import pretrain

ARCHITECTURES = ("visible_only", "in_place")


def settings(**more):
    decoder = NO_DECODER if more.get("architecture") == "in_place" else {}
    return with_overrides(ImageSettings(), TINY | decoder | more)


def holed(count=24, seed=0):
    """Pictures of 12 x 12 with a missing border of 3 rows, a missing patch and a few missing pixels."""
    pixels, labels = bars(count, seed=seed)
    pixels = pixels.astype(np.float32) / 255
    pixels[:, :3] = np.nan
    pixels[::2, 6:9, 3:6] = np.nan
    pixels[1::2, 10, 10] = np.nan
    return pixels, labels


def model_of(architecture, seed, patch=3):
    s = settings(architecture=architecture, patch=patch, seed=seed)
    return new_model(s, codec_config(s, (12, 12), 1, (0.3,), (0.2,)))


def batch_of(model, pixels):
    seen = (torch.from_numpy(pixels)[:, None] - model.codec.mean) / model.codec.deviation
    return image_batch(model.codec.config, seen, np.arange(len(pixels)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_missing_patches_are_never_hidden_and_counts_are_of_the_observed(architecture, seed):
    model = model_of(architecture, seed)
    batch = batch_of(model, holed(8, seed)[0])
    assert batch.observed[:, 1:].sum(1).tolist() == [11, 12] * 4
    drawn = image_corruption(model.codec.config, ratio=0.75).draw(batch, seed=seed)
    grid = drawn.grid(batch.shape)
    assert not (grid & ~batch.observed).any()
    assert set(grid.sum(1).tolist()) <= {8, 9}
    target = model.codec.targets(batch.values, drawn.flat)
    assert not target.isnan().all(-1).any()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nothing_reads_what_stands_in_missing_pixels(architecture, seed):
    """Predictions and embeddings are the same whatever the raw pixels are: they are NaN before the model sees them; and
    a missing patch changes what is predicted elsewhere as if it were not there."""
    model = model_of(architecture, seed).eval()
    pixels, _ = holed(4, seed)
    missing = np.isnan(pixels)
    sets = [
        ImageSet(pixels=np.where(missing, fill, pixels)[..., None].astype(np.float32), missing=missing)
        for fill in (0.0, 9.0)
    ]
    one, two = (features(model, s, torch.autocast("cpu", enabled=False)) for s in sets)
    np.testing.assert_array_equal(one, two)
    assert np.isfinite(one).all()
    assert channel_statistics(sets[0]) == channel_statistics(sets[1])
    batch = batch_of(model, pixels)
    hidden = hide(batch.observed.flatten().nonzero().flatten()[3::5])
    with torch.inference_mode():
        assert torch.isfinite(model(batch, hidden).pattern).all()


def test_a_picture_with_missing_patches_is_encoded_as_its_other_patches_alone(seed):
    """Visible only: the states are those of a model that is given the observed slots and their positions,
    nothing else."""
    model = model_of("visible_only", seed).eval()
    batch = batch_of(model, holed(1, seed)[0])
    there = batch.observed[0].nonzero().flatten()
    alone = dataclasses.replace(
        batch,
        values={k: v[:, there] for k, v in batch.values.items()},
        **{
            n: getattr(batch, n)[:, there]
            for n in ("segment", "position", "observed", "special", "unit", "identity", "index")
        },
    )
    with torch.inference_mode():
        torch.testing.assert_close(model.states(batch)[:, there], model.states(alone), atol=1e-5, rtol=1e-5)


def test_missing_numbers_are_left_out_of_the_loss(seed):
    config = model_of("in_place", seed).codec.config
    for normalised in (True, False):
        c = dataclasses.replace(config, normalised=normalised)
        target, pattern = torch.randn(5, 9), torch.randn(5, 9)
        target[1, :4] = torch.nan
        found = PatchPrediction(pattern, None, c).loss(target)
        some = target[1, 4:]
        if normalised:
            some = (some - some.mean()) / (some.var() + 1e-6).sqrt()
        expected = PatchPrediction(pattern[[0, 2, 3, 4]], None, c).loss(target[[0, 2, 3, 4]])
        torch.testing.assert_close(found, expected + ((pattern[1, 4:] - some) ** 2).mean())


def test_no_gradient_is_lost_to_missing_pixels(seed):
    for architecture in ARCHITECTURES:
        model = model_of(architecture, seed)
        batch = batch_of(model, holed(6, seed)[0])
        drawn = image_corruption(model.codec.config).draw(batch, seed=seed)
        model(batch, drawn).loss(model.codec.targets(batch.values, drawn.flat)).backward()
        grown = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(torch.isfinite(g).all() for g in grown)
        assert any(float(g.abs().sum()) > 0 for g in grown)


def test_resampling_is_of_measured_pixels_alone(seed):
    """A constant picture stays constant beside missing pixels, whatever stands in them, shrunk on reading
    or cropped."""
    pixels = np.full((3, 24, 24), 0.7, np.float32)
    pixels[:, 5:14, 3:9] = np.nan
    shrunk = read_images(pixels, size=8)
    np.testing.assert_allclose(shrunk.pixels[~shrunk.missing], 0.7, atol=1e-5)
    assert 0 < shrunk.missing.mean() < 0.25
    whole = torch.from_numpy(pixels)[:, None]
    for found in (at_scale(whole, (8, 8)), Augment()(whole, np.arange(3), key=(0, seed))):
        known = ~found.isnan()
        assert 0 < known.float().mean() < 1
        torch.testing.assert_close(found[known], torch.full_like(found[known], 0.7))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_run_on_pictures_with_holes(tmp_path, architecture):
    run = pretrain(
        holed(60), tmp_path / "m", settings=settings(architecture=architecture, patch=3, examples=True), console=False
    )
    assert np.isfinite(run.result.validation["validation_loss"])
    assert run.data["missing_share"] == pytest.approx(0.25 + 0.5 * (9 + 1) / 144)
    assert "missing: never hidden" in (tmp_path / "m" / "report.html").read_text()
    model = unmask.load(tmp_path / "m")
    pixels, labels = holed(9, seed=3)
    r = model.reconstruct(pixels, ratio=0.5)
    assert not (r.hidden & np.isnan(pixels))[:, :3].any()
    assert np.isnan(r.filled[:, :3]).all()
    filled = model.reconstruct(pixels, gaps=True)
    assert np.isfinite(filled.filled).all()
    assert np.array_equal(filled.filled[~filled.hidden], pixels[~filled.hidden][..., None])
    assert np.isfinite(model.embed(pixels)).all()
    assert np.isfinite(model.attention(pixels)).all()
    assert (model.attention(pixels)[:, :, 0] == 0).all() or architecture == "in_place"
    assert np.isfinite(model.evaluate((pixels, labels), k=2)["loss"])
    with pytest.raises(UserError, match="no pixel is missing"):
        model.reconstruct(np.nan_to_num(pixels), gaps=True)
    done = finetune_classify(
        tmp_path / "m",
        holed(30),
        tmp_path / "c",
        console=False,
        settings=finetune_with(ClassifierSettings(), {"steps": 2, "precision": "fp32", "batch": 8}),
    )
    assert np.isfinite(done.model.probabilities(pixels)).all()


HIDDEN = np.zeros((3, 12, 12), bool)
HIDDEN[1, 2:5, 3:9] = True


@pytest.mark.parametrize("kind", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("listed", [False, True])
def test_what_a_masked_array_hides_is_missing(kind, listed):
    """As rasterio gives bands with nodata: beneath the mask stands a number that was never measured."""
    pixels = np.arange(3 * 12 * 12).reshape(3, 12, 12).astype(kind) % 251
    beneath = np.where(HIDDEN, np.asarray(255 if kind == "uint8" else -9999, kind), pixels)
    masked = np.ma.masked_array(beneath, HIDDEN)
    read = read_images(list(masked) if listed else masked)
    np.testing.assert_array_equal(read.missing, HIDDEN)
    np.testing.assert_array_equal(read.pixels[..., 0], np.where(HIDDEN, 0, pixels))
    few = read_images([masked[1], *np.zeros((1, 12, 12, 3), kind)])
    np.testing.assert_array_equal(few.missing[0], HIDDEN[1])


def test_a_masked_label_is_none():
    labels = np.ma.masked_array([1, 0, 1], [False, True, False])
    with pytest.raises(UserError, match="1 of 3 pictures have no label: row 1"):
        read_images((np.zeros((3, 12, 12), np.uint8), labels))
