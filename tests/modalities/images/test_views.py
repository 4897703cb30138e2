"""Native resolution, whole groups held out, and pictures that a model was not made for."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import unmask
from picture_files import dicom_slice, geotiff, ome, ramp
from tiny_images import TINY
from unmask.errors import UserError
from unmask.modalities.images.network.augment import Augment
from unmask.modalities.images.reading.decode import Form, places
from unmask.modalities.images.reading.sources import read_images
from unmask.modalities.images.reading.split import held_out_by_class, held_out_pictures
from unmask.modalities.images.recipes import ImageSettings, with_overrides
from unmask.modalities.images.uses.model import fill_scenes, load
from unmask.modalities.images.uses.pretrain import pretrain


def settings(**more):
    return with_overrides(ImageSettings(), TINY | {"holdout": 0.3, "patch": 4} | more)


@pytest.mark.parametrize(("size", "overlap"), [((64, 150), 0), ((70, 65), 16), ((64, 64), 8), ((40, 200), 31)])
def test_tiles_cover_a_picture_and_share_what_was_asked(size, overlap):
    form = Form(height=64, width=64, channels=1, depth="uint8", view="tile", overlap=overlap)
    found = places(*size, form)
    covered = np.zeros(size, int)
    for top, left in found:
        covered[top : top + 64, left : left + 64] += 1
    assert covered.min() == 1
    for begins, length in zip(zip(*found, strict=True), size, strict=True):
        starts = np.unique(begins)
        assert (64 - np.diff(starts) >= overlap).all()
        assert starts[-1] + 64 == max(length, 64)


def test_tiles_are_the_pictures_own_pixels(tmp_path):
    scene = geotiff(tmp_path / "scene.tif", ramp(5, 50, 90, low=200, high=4000, dtype="uint16").transpose(1, 2, 0))
    found = read_images(tmp_path / "scene.tif", size=32, view="tile", overlap=4)
    for k, pixels in enumerate(found.pixels):
        top, left = found.tiles.top[k], found.tiles.left[k]
        assert np.array_equal(pixels, scene[top : top + 32, left : left + 32])
        assert found.names[k].endswith(f"scene.tif#y={top},x={left}")
    assert len(set(found.groups)) == 1
    small = read_images(scene[None, :20, :, :], channels=5, size=32, view="tile")
    assert small.missing[:, 20:].all()
    assert not small.missing[:, :20].any()


def test_windows_are_native_and_turns_are_quarters(seed):
    images = torch.arange(6 * 30 * 30, dtype=torch.float32).view(6, 1, 30, 30)
    augment = Augment(native=True, flip=False)
    found = augment(images, np.arange(6), key=(seed, 0), size=(12, 12))
    for whole, window in zip(images, found, strict=True):
        top, left = divmod(int(window[0, 0, 0]) - int(whole[0, 0, 0]), 30)
        assert torch.equal(window, whole[:, top : top + 12, left : left + 12])
    assert not torch.equal(found, augment(images, np.arange(6), key=(seed, 1), size=(12, 12)))
    same = images[:1].expand(400, -1, -1, -1)
    turned = Augment(scale=(1.0, 1.0), flip=False, turn=True)(same, np.arange(400), key=(seed, 0))
    counts = [int((turned == same[:1].rot90(k, (2, 3))).flatten(1).all(1).sum()) for k in range(4)]
    assert sum(counts) == 400
    assert min(counts) > 60


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Six scenes of 50 x 70 and a model of crops at native resolution."""
    root = tmp_path_factory.mktemp("scenes")
    for k in range(6):
        (root / "data" / f"site{k % 3}").mkdir(parents=True, exist_ok=True)
        pixels = ramp(2, 50, 70, low=200, high=4000, dtype="uint16", seed=k).transpose(1, 2, 0)
        geotiff(root / "data" / f"site{k % 3}" / f"{k}.tif", pixels)
    chosen = settings(view="crop", image_size=16, group="1", turn=True, examples=True)
    run = pretrain(root / "data", root / "model", settings=chosen, console=False)
    return root, run


def test_a_run_on_crops_keeps_sites_apart(scenes):
    root, run = scenes
    assert run.data["groups_on_both_sides"] == 0
    assert run.data["training_groups"] + run.data["held_out_groups"] == 3
    assert run.data["whole_pictures"] == 6
    assert run.data["shape"] == [32, 32, 2]
    assert run.model.model.codec.config.image == (16, 16)
    page = (root / "model" / "report.html").read_text()
    assert "cut from 6 pictures" in page
    assert "Channels 1 and 2 are drawn red and green" in page


def test_crops_are_validated_at_native_resolution(scenes):
    from unmask.modalities.images.uses.pretrain import make_job, prepare

    root, run = scenes
    images = prepare(root / "data", run.settings)
    numbers = np.arange(len(images))
    job, _ = make_job(run.model.model, images, numbers[3:], numbers[:3], run.settings)
    patch = run.model.model.codec.config.patch
    batch = job.validation[0]
    corner = (
        batch.values["patch"][0, 1].view(patch, patch, 2) * run.model.model.codec.deviation[:, 0, 0]
        + run.model.model.codec.mean[:, 0, 0]
    )
    np.testing.assert_allclose(corner.numpy() * 65535, images.pixels[0, 8 : 8 + patch, 8 : 8 + patch], atol=0.1)
    seen = unmask.load(root / "model").read(run.drawn)
    assert np.array_equal(seen.pixels, run.drawn.pixels[:][:, 8:24, 8:24])


def test_fill_and_embed_put_tiles_together(scenes):
    root, _ = scenes
    model = unmask.load(root / "model")
    one = root / "data" / "site0" / "0.tif"
    truth = read_images(one).pixels[0]
    (found,) = fill_scenes(model, one, box=(20, 10, 9, 8), reading={"overlap": 6})
    assert found.filled.shape == (1, 50, 70, 2)
    assert np.array_equal(found.original[0], truth)
    assert found.hidden[0, 10:18, 20:29].all()
    assert np.array_equal(found.filled[~found.hidden], found.original[~found.hidden])
    assert not np.array_equal(found.filled[found.hidden], found.original[found.hidden])
    # What stands in the hidden part does not matter.
    other = truth.copy()
    other[found.hidden[0]] = 3000
    (again,) = fill_scenes(model, other[None], box=(20, 10, 9, 8), reading={"overlap": 6})
    assert np.array_equal(again.filled, found.filled)
    vectors = model.embed(root / "data")
    assert vectors.shape == (6, 32)
    tiles = model.embed(model.read(one))
    np.testing.assert_allclose(tiles, vectors[:1], atol=1e-5)


def test_how_files_are_read_is_said_on_the_command_line(scenes, tmp_path):
    from unmask.cli.images import reading

    assert reading(["overlap=4", "nodata=-1", "planes=max"]) == {"overlap": 4, "nodata": -1.0, "planes": "max"}
    assert reading(["rescale=true"]) == {"rescale": True}
    for pair, match in (
        ("planez=1", "Did you mean 'planes'"),
        ("view=crop", "for training"),
        ("rescale=1", "true or false"),
    ):
        with pytest.raises(UserError, match=match):
            reading([pair])
    with pytest.raises(UserError, match="read whole"):
        read_images(scenes[0] / "data", size=16, overlap=4)


@pytest.mark.parametrize("overlap", [16, 20])
@pytest.mark.parametrize("in_memory", [True, False])
def test_tiles_that_overlap_by_a_whole_side_are_refused(tmp_path, overlap, in_memory):
    Image.fromarray(ramp(64, 64)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match=f"overlap={overlap} of tiles of 16 x 16"):
        read_images(ramp(64, 64)[None] if in_memory else tmp_path, size=16, view="tile", overlap=overlap)


def test_groups_are_whole_on_either_side(seed):
    from unmask.modalities.images.reading.arrays import ImageSet

    rng = np.random.default_rng(seed)
    groups = rng.integers(0, 12, 200)
    images = ImageSet(pixels=np.zeros((200, 2, 2, 1), np.uint8), groups=groups, labels=groups % 3)
    for held in (held_out_pictures(images, 0.2, seed), held_out_by_class(images, 0.25, seed)):
        assert not set(groups[held]) & set(groups[~held])
        assert 0.05 < held.mean() < 0.5
    assert set((groups % 3)[held].tolist()) == {0, 1, 2}
    with pytest.raises(UserError, match="one group"):
        held_out_pictures(ImageSet(pixels=images.pixels, groups=groups * 0), 0.2, seed)


def test_groups_of_files_folders_and_patients(tmp_path):
    pytest.importorskip("pydicom")
    for patient in ("A", "B"):
        for k in range(3):
            (tmp_path / patient).mkdir(exist_ok=True)
            pixels = np.full((16, 16), 100 * k, np.uint16)
            dicom_slice(
                tmp_path / patient / f"IM{(7 * k) % 3}",
                pixels,
                place=-2.0 * k,
                instance=k + 1,
                series=patient,
                patient=patient,
            )
    found = read_images(tmp_path)
    assert found.groups[:3].tolist() == [found.groups[0]] * 3 != found.groups[3:].tolist() == [found.groups[3]] * 3
    # Slices go by their place in space, not by their names.
    assert found.pixels[:3, 0, 0, 0].tolist() == [200, 100, 0]
    assert len(set(read_images(tmp_path, group="file").groups)) == 6
    with pytest.raises(UserError, match="group=3"):
        read_images(tmp_path, group="3")


def test_slices_in_a_list_a_pair_a_table_or_as_bytes_stay_in_the_order_given(tmp_path):
    """Their place in space orders those that are found in a folder: an answer was that of another file."""
    pytest.importorskip("pydicom")
    for k in range(3):
        pixels = np.full((16, 16), 100 * k, np.uint16)
        dicom_slice(tmp_path / f"IM{k}.dcm", pixels, place=-2.0 * k, instance=k + 1)
    paths = [str(tmp_path / f"IM{k}.dcm") for k in (1, 0, 2)]
    labels = ["b", "a", "c"]
    given = {
        "list": paths,
        "pair": (paths, labels),
        "table": {"file": paths, "label": labels},
        "bytes": [Path(p).read_bytes() for p in paths],
        "a folder among files": [str(tmp_path), *paths],
    }
    values = {name: read_images(data, problem="single").pixels[-3:, 0, 0, 0].tolist() for name, data in given.items()}
    assert values == {name: [100, 0, 200] for name in given}
    assert read_images(tmp_path).pixels[:, 0, 0, 0].tolist() == [200, 100, 0]
    assert read_images([str(tmp_path), paths[0]]).pixels[:3, 0, 0, 0].tolist() == [200, 100, 0]


def test_a_model_refuses_pictures_of_another_depth_or_range(tmp_path):
    deep = ramp(24, 16, 16, low=200, high=4000, dtype="uint16")
    pretrain(deep, tmp_path / "m", settings=settings(), console=False)
    model = unmask.load(tmp_path / "m")
    assert model.folder.range == (deep.min(), deep.max())
    assert model.embed(deep).shape == (24, 32)
    with pytest.raises(UserError, match="pictures of uint8, for a model of uint16") as error:
        model.embed((deep // 16).astype(np.uint8))
    assert "rescale" in str(error.value)
    for factor in (16, 1 / 60):
        with pytest.raises(UserError, match="trained on 200 to"):
            model.embed((deep * factor).astype(np.uint16))
        again = model.read((deep * factor).astype(np.uint16), rescale=True)
        assert model.embed(again).shape == (24, 32)
    with pytest.raises(UserError, match=r"13 channels|channels"):
        model.embed(np.zeros((2, 16, 16, 13), np.uint16))


def test_what_does_not_go_together_is_refused(tmp_path):
    ome(tmp_path / "a.tif", ramp(5, 16, 16, dtype="uint16"), "CYX")
    ome(tmp_path / "b.tif", ramp(4, 16, 16, dtype="uint16"), "CYX")
    with pytest.raises(UserError, match=r"a\.tif has 5, b\.tif has 4"):
        read_images(tmp_path)
    (tmp_path / "b.tif").unlink()
    with pytest.raises(UserError, match=r"channels=3, but a\.tif has 5"):
        read_images(tmp_path, channels=3)
    (tmp_path / "a.tif").unlink()
    Image.fromarray(ramp(16, 16)).save(tmp_path / "a.png")
    Image.fromarray(ramp(16, 16, dtype="float32")).save(tmp_path / "b.tif")
    with pytest.raises(UserError, match=r"a\.png holds uint8, b\.tif floats"):
        read_images(tmp_path)
    for change, match in (
        ({"view": "tile"}, "without image_size"),
        ({"overlap": 3}, "view=shrink"),
        ({"planes": "most"}, "planes=most"),
        ({"view": "crop", "image_size": 16, "crop": "0.2,1"}, "native resolution"),
        ({"view": "crop", "image_size": 16, "store_size": 8}, "below image_size"),
    ):
        with pytest.raises(UserError, match=match):
            settings(**change)


@pytest.mark.parametrize(("channels", "patch"), [(12, 16), (2, 8), (13, 4), (3, 8)])
def test_a_vision_transformer_of_many_bands_loads_as_what_it_is(tmp_path, channels, patch):
    width, slots = 24, 1 + 4
    tensors = {
        "cls_token": torch.randn(1, 1, width),
        "pos_embed": torch.randn(1, slots, width),
        "patch_embed.proj.weight": torch.randn(width, channels, patch, patch),
        "patch_embed.proj.bias": torch.zeros(width),
        "norm.weight": torch.ones(width),
        "norm.bias": torch.zeros(width),
    }
    for name, shape in (
        ("attn.qkv", (3 * width, width)),
        ("attn.proj", (width, width)),
        ("mlp.fc1", (2 * width, width)),
        ("mlp.fc2", (width, 2 * width)),
        ("norm1", (width,)),
        ("norm2", (width,)),
    ):
        tensors[f"blocks.0.{name}.weight"] = torch.randn(*shape) * 0.1
        tensors[f"blocks.0.{name}.bias"] = torch.zeros(shape[0])
    save_file({k: v.contiguous() for k, v in tensors.items()}, tmp_path / "vit.safetensors")
    model = unmask.load(tmp_path / "vit.safetensors", heads=2)
    assert (model.config.channels, model.config.patch, model.config.image) == (channels, patch, (2 * patch, 2 * patch))
    pixels = np.random.default_rng(0).integers(0, 255, (2, 2 * patch, 2 * patch, channels)).astype(np.uint8)
    assert model.embed(pixels).shape == (2, width)
    # A folder of timm's says its architecture in config.json.
    (tmp_path / "timm").mkdir()
    (tmp_path / "vit.safetensors").rename(tmp_path / "timm" / "model.safetensors")
    (tmp_path / "timm" / "config.json").write_text(
        json.dumps(
            {
                "architecture": "vit_tiny_patch16_224",
                "num_channels": channels,
                "pretrained_cfg": {"mean": [0.1] * channels, "std": [0.5] * channels},
            }
        )
    )
    again = unmask.load(tmp_path / "timm")
    assert (again.config.channels, again.config.mean) == (channels, (pytest.approx(0.1),) * channels)
    (tmp_path / "timm" / "config.json").write_text(json.dumps({"model_type": "vit", "num_channels": channels + 1}))
    with pytest.raises(UserError, match="num_channels"):
        load(tmp_path / "timm")


def test_a_bare_file_with_a_decoder_is_asked_for_its_targets(tmp_path):
    from unmask.modalities.images.network.folder import published

    run = pretrain(ramp(12, 16, 16), tmp_path / "m", settings=settings(holdout=0.0, steps=1), console=False)
    tensors = published(run.model.model, "mae")
    torch.save({"model": tensors}, tmp_path / "mae.pth")
    with pytest.raises(UserError, match="norm_pix"):
        unmask.load(tmp_path / "mae.pth", heads=2, decoder_heads=1)
    for said in (True, False):
        assert unmask.load(tmp_path / "mae.pth", heads=2, decoder_heads=1, norm_pix=said).config.normalised is said
    (tmp_path / "mae.json").write_text(
        json.dumps({"norm_pix_loss": False, "num_attention_heads": 2, "decoder_num_attention_heads": 1})
    )
    assert unmask.load(tmp_path / "mae.pth").config.normalised is False
    with pytest.raises(UserError, match="heads="):
        unmask.load("no-such-model-folder", heads=2)


def test_a_picture_in_tiles_is_judged_once_by_the_mean_of_its_tiles(scenes, tmp_path):
    from unmask.modalities.images.classify.classifier_settings import ClassifierSettings, with_overrides
    from unmask.modalities.images.uses.finetune import finetune_classify

    root, _ = scenes
    settings = with_overrides(ClassifierSettings(holdout=0.5, batch=8), {"epochs": 2, "precision": "fp32"})
    done = finetune_classify(root / "model", root / "data", tmp_path / "c", settings=settings, console=False)
    assert done.figures["validation"]["n"] + done.figures["whole_pictures"] == 6
    model = done.model
    found = model.evaluate(root / "data")
    said = [row["label"] == row["name"].split("/")[0] for row in model.predict(root / "data")]
    assert (found["n"], found["accuracy"]) == (6, np.mean(said))
    assert model.evaluate(root / "data", most=4)["n"] == 4
    one = model.read(root / "data")
    truth, answers, groups = model.judged(one.take(np.arange(len(one))[::-1]))
    np.testing.assert_array_equal(truth, one.labels[np.unique(one.tiles.scene, return_index=True)[1]])
    assert answers.shape[0] == len(groups) == 6


def test_intervals_of_probes_resample_whole_pictures(scenes, monkeypatch):
    from unmask.evaluation import metrics

    root, _ = scenes
    model, seen = unmask.load(root / "model"), []
    whole = metrics.bootstrap_mean
    monkeypatch.setattr(metrics, "bootstrap_mean", lambda v, units, **o: seen.append(units) or whole(v, units, **o))
    tiles = model.read(root / "data", view="tile")
    tiles = dataclasses.replace(tiles, split=np.where(np.isin(tiles.tiles.scene, [1, 3, 5]), "test", "train"))
    found = model.evaluate(tiles, baselines=False)
    assert found["test_pictures"] == len(seen[0]) > 3
    assert {len(np.unique(units)) for units in seen} == {3}
