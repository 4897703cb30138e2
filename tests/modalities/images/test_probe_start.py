"""Heads that start as a probe: what they read is compared, small sets are no trap, and the start is not lost."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch

import unmask
from tiny_images import TINY, bars
from unmask.errors import UserError
from unmask.modalities.images.classify import probe_start
from unmask.modalities.images.classify.classifier import ClassifierNet
from unmask.modalities.images.classify.classifier_settings import ClassifierSettings, with_overrides
from unmask.modalities.images.network.batches import image_batch
from unmask.modalities.images.network.build import codec_config, new_model
from unmask.modalities.images.network.codec import picture_cells, picture_gradients, picture_numbers
from unmask.modalities.images.network.folder import save_folder
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.recipes import ImageSettings
from unmask.modalities.images.recipes import with_overrides as settings_with
from unmask.modalities.images.uses import finetune as finetuning
from unmask.modalities.images.uses.finetune import finetune_classify

STILL = {"steps": 1, "learning_rate": 1e-12, "holdout": 0.0, "precision": "fp32"}


def pictures(count: int = 60, seed: int = 0) -> ImageSet:
    pixels, labels = bars(count, seed=seed)
    return ImageSet(pixels=pixels[..., None], labels=labels, classes=["across", "down", "square"])


def untrained():
    settings = settings_with(ImageSettings(), TINY | {"patch": 4})
    return new_model(settings, codec_config(settings, (12, 12), 1, (0.2,), (0.3,)))


@pytest.fixture
def base(tmp_path):
    save_folder(tmp_path / "m", untrained())
    return tmp_path / "m"


def tuned(base, train, out, **changes):
    settings = with_overrides(ClassifierSettings(), changes)
    return finetune_classify(base, train, out, settings=settings, console=False)


def right(classifier, test: ImageSet) -> float:
    return float((classifier.probabilities(test).argmax(-1) == test.labels).mean())


@pytest.mark.parametrize(("down", "across"), [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, -1.0)])
def test_gradients_of_a_picture_lie_in_its_orientation(down: float, across: float):
    row, column = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    found = picture_gradients((down * row + across * column)[None, None])
    by_orientation = found.view(4, 8, -1).sum((0, 2))
    assert by_orientation.argmax() == round(math.atan2(down, across) % math.pi * 8 / math.pi) % 8
    assert by_orientation.max() > 0.99 * by_orientation.sum()
    assert found.shape == (1, picture_numbers((28, 28)))


def test_gradients_of_a_picture_take_the_channel_that_changes_most_and_ignore_brightness(seed: int):
    torch.manual_seed(seed)
    grey = torch.randn(2, 1, 20, 20)
    assert torch.allclose(picture_gradients(torch.cat([grey, 0.5 * grey + 3], 1)), picture_gradients(grey))
    assert torch.allclose(picture_gradients(grey + 5), picture_gradients(grey), atol=1e-5)
    assert picture_gradients(torch.full((1, 2, 9, 9), 7.0)).abs().max() == 0


def test_pixels_that_were_not_measured_make_no_edges(seed: int):
    torch.manual_seed(seed)
    whole = torch.randn(1, 1, 16, 16)
    holed = whole.clone()
    holed[..., :8, :8] = torch.nan
    assert not picture_gradients(holed).isnan().any()
    flat = torch.ones(1, 1, 16, 16)
    flat[..., 4:9, 4:9] = torch.nan
    assert picture_gradients(flat).abs().max() == 0
    assert not picture_gradients(torch.full((1, 1, 16, 16), torch.nan)).isnan().any()


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (2, 2), (3, 3), (5, 40), (8, 8), (64, 64)])
def test_pictures_of_any_size_have_as_many_numbers_as_said(size: tuple[int, int]):
    found = picture_gradients(torch.randn(3, 2, *size))
    assert found.shape == (3, picture_numbers(size))
    assert max(picture_cells(size)) <= 7


def test_by_default_the_features_are_those_that_a_probe_tells_apart_best(base, tmp_path, monkeypatch):
    asked = {}

    def compared(net, train, labels, readings, seed):
        asked["readings"] = readings
        return {r: probe_start.Compared(-0.1 if r == ("grid", True) else -0.5, 0.5) for r in readings}

    monkeypatch.setattr("unmask.modalities.images.uses.finetune.choose_reading", compared)
    done = tuned(base, pictures(), tmp_path / "c", **STILL)
    assert asked["readings"] == [(p, g) for g in (False, True) for p in ("mean", "first", "grid")]
    assert (done.figures["pooling"], done.figures["gradients"], done.figures["start"]) == ("grid", True, "probe")
    again = unmask.load(tmp_path / "c")
    assert (again.net.pooling, again.net.gradients) == ("grid", True)
    assert np.allclose(again.probabilities(pictures()), done.model.probabilities(pictures()), atol=1e-5)


def test_the_features_that_are_right_most_often_in_the_folds_are_read(base, tmp_path):
    train, test = pictures(90), pictures(120, seed=1)
    asked = probe_start.readings("auto", None, class_token=True)
    found = probe_start.choose_reading(ClassifierNet(untrained(), 3), train, train.labels, asked, 0)
    best = max(asked, key=lambda reading: found[reading].likelihood)
    assert min(c.right for c in found.values()) < found[best].right
    done = tuned(base, train, tmp_path / "c", **STILL)
    assert (done.figures["pooling"], done.figures["gradients"]) == best
    assert right(done.model, test) >= 0.9


@pytest.mark.parametrize("count", [2, 3, 4, 7, 12])
def test_few_pictures_are_no_trap(base, tmp_path, count: int):
    """Folds of one picture, of one class, and classes that a fold lacks: numbers stay numbers."""
    train = pictures(60)
    some = np.concatenate([np.flatnonzero(train.labels == k % 3)[k // 3 : k // 3 + 1] for k in range(count)])
    done = tuned(base, train.take(some), tmp_path / "c", **STILL)
    found = done.model.probabilities(pictures(20, seed=2))
    assert np.isfinite(found).all()
    assert np.allclose(found.sum(1), 1, atol=1e-4)
    assert done.figures["start"] == "probe"


def test_the_probe_itself_is_kept_where_training_spoils_it(base, tmp_path):
    train = pictures(90)
    still = tuned(base, train, tmp_path / "still", **STILL | {"holdout": 0.2})
    spoilt = tuned(
        base, train, tmp_path / "c", epochs=2, learning_rate=100.0, probe_rate=1.0, holdout=0.2, precision="fp32",
        warmup=0.0, nan_limit=100,
    )  # fmt: skip
    assert spoilt.figures["kept_step"] == 0
    assert spoilt.figures["validation_accuracy"] == still.figures["validation_accuracy"]
    assert np.allclose(
        spoilt.model.probabilities(train), still.model.probabilities(train), atol=1e-4
    )  # the mean of the start and the start


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_trained_weights_are_averaged_with_those_of_the_start(base, tmp_path, share: float):
    train = pictures(60)
    run = {"steps": 4, "holdout": 0.0, "precision": "fp32", "pooling": "grid", "gradients": True}
    start = tuned(base, train, tmp_path / "start", **run | {"steps": 1, "learning_rate": 1e-12})
    whole = tuned(base, train, tmp_path / "whole", **run, average=1.0)
    part = tuned(base, train, tmp_path / "part", **run, average=share)
    assert part.figures["averaged"] == (share < 1)
    for name, found in part.model.net.state_dict().items():
        a, b = start.model.net.state_dict()[name], whole.model.net.state_dict()[name]
        assert torch.allclose(found, a + share * (b - a), atol=1e-5), name


def test_averages_that_are_wrong_more_often_on_held_out_pictures_are_not_kept(base, tmp_path, monkeypatch):
    from unmask.modalities.images.classify.classifier_training import PictureFinetuning
    from unmask.training.finetune import Evaluation

    looks = iter([0.1, 0.5, 0.5, 0.4, 0.5])  # the start, after the epoch, before and after averaging
    monkeypatch.setattr(
        PictureFinetuning, "evaluate", lambda self: Evaluation.of(found := next(looks), {"accuracy": found})
    )
    done = tuned(base, pictures(60), tmp_path / "c", epochs=1, holdout=0.2, precision="fp32", pooling="mean")
    assert not done.figures["averaged"]
    assert done.figures["validation_accuracy"] == 0.5


def test_labels_without_a_probe_start_at_zero_by_default_and_scratch_does_too(base, tmp_path):
    done = tuned(base, pictures(60), tmp_path / "c", steps=1, holdout=0.0, precision="fp32", from_scratch=True)
    found = {name: done.figures[name] for name in ("start", "pooling", "gradients", "averaged")}
    assert found == {"start": "zero", "pooling": "mean", "gradients": False, "averaged": False}
    with pytest.raises(UserError, match="from_scratch"):
        with_overrides(ClassifierSettings(), {"start": "probe", "from_scratch": True})
    for name in ("probe_rate", "average"):
        with pytest.raises(UserError, match=name):
            with_overrides(ClassifierSettings(), {name: 0.0})


def test_a_folder_from_before_gradients_reads_none(base, tmp_path):
    import json

    tuned(base, pictures(), tmp_path / "c", **STILL, pooling="mean", gradients=False)
    path = tmp_path / "c" / "unmask.json"
    about = json.loads(path.read_text())
    before = unmask.load(tmp_path / "c").probabilities(pictures())
    del about["classifier"]["gradients"]
    path.write_text(json.dumps(about))
    assert np.array_equal(unmask.load(tmp_path / "c").probabilities(pictures()), before)


def test_a_network_reads_what_embed_gives(base):
    net = ClassifierNet(untrained(), 3, "grid", gradients=True).eval()
    seen = torch.randn(2, 1, 12, 12)
    batch = image_batch(net.config, seen, np.arange(2))
    found = net.features(batch)
    assert found.shape[1] == net.head.in_features
    assert torch.allclose(found[:, -picture_numbers((12, 12)) :], picture_gradients(seen), atol=1e-6)


def test_choosing_the_head_is_part_of_the_seconds(base, tmp_path, monkeypatch):
    choose = finetuning._let_read
    monkeypatch.setattr(finetuning, "_let_read", lambda *given: time.sleep(3) or choose(*given))
    assert tuned(base, pictures(), tmp_path / "c", **STILL).figures["seconds"] >= 3
