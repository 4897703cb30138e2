"""Segmentation: masks are read or refused, a tile's neighbours leave no seams, and what is learnt beats the rules."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import unmask
from tiny_images import CROPS, TINY, discs
from unmask.errors import UserError
from unmask.modalities.images.formats.picture import PLAIN
from unmask.modalities.images.network.build import codec_config, new_model
from unmask.modalities.images.recipes import ImageSettings, with_overrides
from unmask.modalities.images.segment.baselines import OTSU, PixelForest, otsu_threshold, pixel_features
from unmask.modalities.images.segment.crops import CropSource, Scene
from unmask.modalities.images.segment.figures import counted, scores, segment_figures, segment_lines
from unmask.modalities.images.segment.masks import find_masks, read_masks
from unmask.modalities.images.segment.network import SegmentNet
from unmask.modalities.images.segment.pairs import read_pairs
from unmask.modalities.images.segment.settings import SegmenterSettings
from unmask.modalities.images.segment.tiles import answer_bands, picture_answers, window_of
from unmask.modalities.images.segment.training import SegmentFinetuning, segment_loss
from unmask.training import precision


def saved(where: Path, arrays: list[np.ndarray], ending: str = ".png") -> Path:
    where.mkdir(parents=True, exist_ok=True)
    for number, array in enumerate(arrays):
        Image.fromarray(array).save(where / f"{number}{ending}")
    return where


@pytest.fixture(scope="module")
def model():
    pictures, _ = discs(8)
    return unmask.images.pretrain(np.stack(pictures), console=False, **CROPS).model


@pytest.fixture(scope="module")
def tuned(model, tmp_path_factory):
    root = tmp_path_factory.mktemp("segment")
    pictures, masks = discs(8)
    run = unmask.images.finetune_segment(
        model,
        saved(root / "pictures", pictures),
        root / "segmenter",
        masks=saved(root / "masks", masks[:7]),
        steps=60,
        precision="fp32",
        console=False,
    )
    return root, run


def net_of(image: tuple[int, int] = (16, 16), classes: int = 2, channels: int = 1) -> SegmentNet:
    settings = with_overrides(ImageSettings(), TINY | {"patch": 4, "image_size": image[0]})
    torch.manual_seed(0)
    codec = codec_config(settings, image, channels, (0.5,) * channels, (0.2,) * channels)
    return SegmentNet(new_model(settings, codec), classes).eval()


def test_what_is_learnt_beats_the_rules_and_survives_its_folder(tuned, tmp_path):
    root, run = tuned
    judged = run.figures["validation"]
    assert judged["pictures"] == 1
    assert judged["macro_dice"]["value"] > max(0.8, judged["rules"][OTSU]["macro_dice"]["value"])
    assert {p.name for p in (root / "segmenter").iterdir()} >= {"config.json", "model.safetensors", "report.html"}
    page = (root / "segmenter" / "report.html").read_text()
    assert "random forest" in page
    assert "data:image/png" not in page  # pictures of the data are shown where that is asked for
    assert "image-segmentation" in (root / "segmenter" / "README.md").read_text()
    again = unmask.load(root / "segmenter", precision="fp32")
    picture = np.asarray(Image.open(root / "pictures" / "7.png"))
    (row,) = run.model.predict([picture])
    np.testing.assert_array_equal(again.predict([picture])[0]["mask"], row["mask"])
    assert row["mask"].shape == picture.shape
    assert set(np.unique(row["mask"])) <= {0, 255}
    rows = again.predict(root / "pictures", tmp_path / "out", probabilities=True)
    assert [r["name"] for r in rows] == [f"{n}.png" for n in range(8)]
    np.testing.assert_array_equal(np.asarray(Image.open(tmp_path / "out" / "7.png")), row["mask"])
    chances = np.load(tmp_path / "out" / "7.probabilities.npy")
    assert chances.shape == (2, *picture.shape)
    np.testing.assert_allclose(chances.sum(0), 1, atol=1e-5)
    assert json.loads((tmp_path / "out" / "classes.json").read_text()) == {"0": 0, "255": 255}
    found = again.evaluate(root / "pictures", root / "masks")
    assert found["pictures"] == 7
    assert "1 pictures without a mask are left out" in " ".join(found["notes"])
    assert "warning: 6 of 7 pictures were learnt from: figures on them flatter the model" in found["notes"]
    new = np.random.default_rng(3).integers(0, 255, (2, 48, 48), np.uint8)
    assert not any("learnt from" in note for note in again.evaluate(new, (new > 99).astype(np.uint8) * 255)["notes"])
    assert unmask.evaluate(root / "segmenter", root / "pictures", root / "masks")["pictures"] == 7


@pytest.mark.parametrize("fast", [True, False])
def test_a_segmenter_is_used_in_the_precision_it_was_trained_in(tuned, monkeypatch, fast):
    root, _ = tuned
    monkeypatch.setattr(precision, "bf16_features", lambda: ["AMX"] if fast else [])
    assert unmask.load(root / "segmenter").precision == ("bf16" if fast else "fp32")
    assert unmask.load(root / "segmenter", precision="fp32").precision == "fp32"


def test_where_tiles_begin_does_not_show(tuned):
    _, run = tuned
    (picture,), (truth,) = discs(1, seed=9, size=(120, 140))
    whole = run.model.predict([picture])[0]["mask"]
    for down, across in ((3, 5), (8, 1)):
        moved = run.model.predict([picture[down:, across:]])[0]["mask"]
        inner = (slice(16, -16), slice(16, -16))  # away from the picture's own border
        differs = (whole[down:, across:][inner] != moved[inner]).mean()
        wrong = (moved[inner] != truth[down:, across:][inner]).mean()
        assert differs < max(0.003, wrong / 3)


def test_lists_of_arrays_are_what_their_files_are(tuned):
    root, run = tuned
    pictures = [np.asarray(Image.open(root / "pictures" / f"{n}.png")) for n in range(2)]
    pictures[1] = pictures[1][:30, :20]
    rows = run.model.predict(pictures)
    assert [r["mask"].shape for r in rows] == [(44, 52), (30, 20)]
    np.testing.assert_array_equal(rows[0]["mask"], run.model.predict(root / "pictures" / "0.png")[0]["mask"])


def test_a_run_is_the_same_again_and_few_pictures_are_all_learnt_from(model):
    pictures, masks = discs(4)
    runs = [
        unmask.images.finetune_segment(model, pictures, masks=masks, steps=3, precision="fp32", console=False)
        for _ in range(2)
    ]
    first, second = (run.model.net.state_dict() for run in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert runs[0].figures["pictures"] == 4
    assert "validation" not in runs[0].figures
    assert any("no picture is held out" in note for note in runs[0].figures["notes"])


def test_groups_are_held_out_whole(model, tmp_path):
    pictures, masks = discs(12)
    for n, (picture, mask) in enumerate(zip(pictures, masks, strict=True)):
        for folder, array in (("p", picture), ("m", mask)):
            place = tmp_path / folder / f"patient{n // 2}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(place / f"{n}.png")
    run = unmask.images.finetune_segment(
        model,
        tmp_path / "p",
        masks=tmp_path / "m",
        group="folder",
        steps=1,
        precision="fp32",
        console=False,
        examples=True,
    )
    assert "data:image/png" in (run.folder / "report.html").read_text()
    assert not any("names begin alike" in note or "folders, such as" in note for note in run.figures["notes"])
    unsaid = unmask.images.finetune_segment(
        model, tmp_path / "p", masks=tmp_path / "m", steps=1, precision="fp32", console=False
    )
    assert any("12 pictures lie in 6 folders, such as patient0/" in note for note in unsaid.figures["notes"])
    names = [Path(name).parent.name for name in run.figures["validation"]["names"]]
    assert len(names) == 2
    assert len(set(names)) == 1


def masks_in(folder: Path, pictures: list[str], **options):
    return read_masks(find_masks(pictures, folder), folder, choice=PLAIN, **options)


def test_near_copies_are_held_out_together_and_copies_across_are_told(model):
    pictures, masks = discs(6)
    again = [(p * 0.9).astype(np.uint8) for p in pictures]  # of other brightness
    how = {"steps": 1, "precision": "fp32", "console": False, "seed": 1}
    run = unmask.images.finetune_segment(model, [*pictures, *again], masks=masks * 2, **how)
    held = {int(name) % 6 for name in run.figures["validation"]["names"]}
    assert (run.figures["validation"]["pictures"], len(held)) == (2, 1)
    assert any(n.startswith("6 pictures are near copies") and "on one side" in n for n in run.figures["notes"])
    judged = {"validation": again[:2], "validation_masks": masks[:2]}
    run = unmask.images.finetune_segment(model, pictures, masks=masks, **judged, **how)
    assert any(n.startswith("warning: 2 of 2 pictures to judge on are near copies") for n in run.figures["notes"])


def test_a_resumed_segmentation_ends_in_the_same_bytes(model, tmp_path, monkeypatch):
    pictures, masks = discs(6)
    how = {"masks": masks, "steps": 12, "precision": "fp32", "console": False, "checkpoints": True}
    unmask.images.finetune_segment(model, pictures, tmp_path / "whole", **how)
    really, calls = SegmentFinetuning.backward, []

    def backward(self, *items, **about):
        calls.append(about["step"])
        if len(calls) == 8:
            os.kill(os.getpid(), signal.SIGTERM)
        return really(self, *items, **about)

    monkeypatch.setattr(SegmentFinetuning, "backward", backward)
    out = tmp_path / "parts"
    stopped = unmask.images.finetune_segment(model, pictures, out, **how).figures
    assert (stopped["stopped"], stopped["steps"]) == ("signal", 8)
    assert not (out / "model.safetensors").exists()
    with pytest.raises(UserError, match="the pictures: not the same"):
        unmask.images.finetune_segment(model, pictures[::-1], out, resume=True, **how)
    unmask.images.finetune_segment(model, pictures, out, resume=True, **how)
    assert calls == [*range(1, 13)]
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert not list(tmp_path.glob(".parts*"))


def test_masks_of_every_kind_are_the_same_classes(tmp_path):
    numbers = np.zeros((6, 8), np.uint8)
    numbers[2:4], numbers[4:] = 1, 2
    palette = Image.fromarray(numbers).convert("L")
    palette.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0])
    colours = np.array([(0, 0, 0), (255, 0, 0), (0, 0, 255)], np.uint8)[numbers]
    wanted = {
        "numbers": Image.fromarray(numbers),
        "deep": Image.fromarray(numbers.astype(np.uint16)),
        "palette": palette,
        "colours": Image.fromarray(colours[..., ::-1].copy()),
    }
    for name, image in wanted.items():
        (tmp_path / name).mkdir()
        image.save(tmp_path / name / "a.png")
        found = masks_in(tmp_path / name, ["a.jpg"])
        expected = numbers if name != "colours" else np.array([0, 1, 2])[numbers]
        np.testing.assert_array_equal(found.of["a.jpg"][0], expected, err_msg=name)
    assert masks_in(tmp_path / "colours", ["a.jpg"]).legend.names == ("#000000", "#0000ff", "#ff0000")
    assert masks_in(tmp_path / "palette", ["a.jpg"]).legend.palette[3:6] == (200, 0, 0)
    for number, name in ((1, "cell"), (2, "nucleus")):
        (tmp_path / "files" / name).mkdir(parents=True)
        Image.fromarray(((numbers == number) * 255).astype(np.uint8)).save(tmp_path / "files" / name / "a.png")
    found = masks_in(tmp_path / "files", ["a.jpg"])
    np.testing.assert_array_equal(found.of["a.jpg"][0], numbers)
    assert found.legend.names == ("background", "cell", "nucleus")
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "a.npy", numbers.astype(np.int64))
    np.testing.assert_array_equal(masks_in(tmp_path / "npy", ["a.jpg"]).of["a.jpg"][0], numbers)


def test_255_beside_classes_from_0_says_nothing_unless_told(tmp_path):
    numbers = np.zeros((6, 8), np.uint8)
    numbers[2:4], numbers[4:] = 1, 255
    saved(tmp_path, [numbers])
    found = masks_in(tmp_path, ["0.png"])
    assert found.legend.names == ("0", "1")
    assert (found.of["0.png"][0][4:] == -1).all()
    assert "255" in found.notes[0]
    assert masks_in(tmp_path, ["0.png"], ignore="none").legend.names == ("0", "1", "255")
    assert masks_in(tmp_path, ["0.png"], ignore="1").legend.names == ("0", "255")
    numbers[numbers == 1] = 0  # two values are two classes
    assert masks_in(saved(tmp_path / "two", [numbers]), ["0.png"]).legend.names == ("0", "255")


def test_masks_that_cannot_be_meant_are_refused(model, tmp_path):
    pictures, masks = discs(3)
    folder = saved(tmp_path / "p", pictures)

    def refused(masks_folder: Path, **options) -> str:
        with pytest.raises(UserError) as error:
            unmask.images.finetune_segment(
                model, folder, tmp_path / "out", masks=masks_folder, console=False, **options
            )
        assert not (tmp_path / "out").exists()
        return str(error.value)

    smaller = [m[:-1] for m in masks[:2]]
    said_both = refused(saved(tmp_path / "smaller", smaller))
    assert "0.png has 52 x 44 pixels, its mask 52 x 43; 1.png" in said_both
    other = saved(tmp_path / "other", masks)
    for n in (1, 2):
        (other / f"{n}.png").rename(other / f"x{n}.png")
    assert f"2 of 3 masks in {other} belong to no picture: x1.png, x2.png" in refused(other)
    soft = (
        Image.fromarray(masks[0])
        .resize((208, 176), Image.Resampling.BICUBIC)
        .resize((52, 44), Image.Resampling.BICUBIC)
    )
    assert "smoothed borders" in refused(saved(tmp_path / "soft", [np.asarray(soft)]))
    tinted = np.stack([np.asarray(soft), np.zeros_like(masks[0]), 255 - np.asarray(soft)], -1)
    red = [np.stack([m, m * 0, m * 0], -1) for m in masks]
    for some, name in (([tinted, *red[1:]], "tinted"), ([red[0], tinted, red[2]], "tinted1")):
        said = refused(saved(tmp_path / name, some))
        assert "colours (" in said
        assert f"they are in the masks of 1 of 3 pictures: {name == 'tinted1':d}.png" in said
    for name in ("cell", "dirt"):
        saved(tmp_path / "classes" / name, [m * (name == "cell") for m in masks])
    assert f"no pixel is marked in any file of {tmp_path}/classes/dirt" in refused(tmp_path / "classes")
    judged = saved(tmp_path / "judged", [np.where(m, 7, m) for m in masks])
    two = saved(tmp_path / "learnt", masks)
    assert "the mask of 0.png: values 7 are none" in refused(two, validation=folder, validation_masks=judged)
    assert "all pixels are of one class (0)" in refused(saved(tmp_path / "empty", [m * 0 for m in masks]))
    instances = (np.arange(52 * 44) // 16).reshape(44, 52).astype(np.uint16)
    assert "(mask > 0)" in refused(saved(tmp_path / "instances", [instances]))
    assert "no pixel of" in refused(saved(tmp_path / "plain", masks), ignore="7")
    two = [(m > 0) * 1 + (np.arange(52) > 40) * (m == 0) * 2 for m in masks]
    mixed = [(two[0] > 0) * 255, *two[1:]]
    assert "1 of 3 masks have the values 0 and 255 alone" in refused(
        saved(tmp_path / "mixed", [m.astype(np.uint8) for m in mixed])
    )
    palettes = tmp_path / "palettes"
    palettes.mkdir()
    for n, m in enumerate(masks):
        image = Image.fromarray((m > 0).astype(np.uint8), "P")
        image.putpalette([0, 0, 0, 255, 0, 0] if n else [0, 0, 0, 0, 255, 0])
        image.save(palettes / f"{n}.png")
    assert "number 1 is of colour (0, 255, 0)" in refused(palettes)
    broken = saved(tmp_path / "broken", masks)
    for n in (0, 2):
        (broken / f"{n}.png").write_bytes(b"no picture")
    said = refused(broken)
    assert [text in said for text in ("2 masks cannot be taken", "0.png", "2.png")] == [True] * 3


def test_an_ending_that_all_masks_have_is_taken_off(tmp_path):
    _, masks = discs(2)
    for n, mask in enumerate(masks):
        Image.fromarray(mask).save(tmp_path / f"{n}_mask.png")
    assert sorted(find_masks(["0.png", "1.png", "2.png"], tmp_path).files) == ["0.png", "1.png"]


def test_crops_are_drawn_anew_by_their_numbers_alone_and_masks_move_with_pixels():
    _, masks = discs(3)
    scenes = [Scene(pixels=(m[..., None] > 0).astype(np.float32), mask=(m > 0).astype(np.int16)) for m in masks]
    source = CropSource(scenes, 2, (16, 20), SegmenterSettings(jitter=0.0))
    pixels, truth = source.crops(np.arange(24), key=(0, 0))
    assert pixels.shape == (24, 1, 16, 20)
    # A pixel is near 1 where the mask says so, whatever was turned and bent: off at borders alone.
    assert ((pixels[:, 0] > 0.5) == (truth == 1)).float().mean() > 0.97
    own = [set(crop.unique().tolist()) <= {0.0, 1.0} for crop in pixels]  # not resampled
    assert 6 <= sum(own) <= 18
    assert all(torch.equal((crop[0] > 0.5).long(), mask) for crop, mask, o in zip(pixels, truth, own, strict=True) if o)
    again, _ = source.crops(np.array([7]), key=(0, 0))
    assert torch.equal(again[0], pixels[7])
    assert not torch.equal(source.crops(np.array([7]), key=(1, 0))[0], again)
    still, own = CropSource(
        scenes[:1], 2, (44, 52), SegmenterSettings(scale=(1, 1), flip=False, turn=False, bend=0, jitter=0)
    ).crops(np.array([0]), key=(0, 0))
    np.testing.assert_allclose(still[0, 0].numpy(), scenes[0].pixels[..., 0], atol=1e-5)
    np.testing.assert_array_equal(own[0].numpy(), scenes[0].mask)


def test_bands_of_a_large_picture_are_its_probabilities_and_tiles_leave_no_seams():
    net = net_of()
    rng = np.random.default_rng(0)
    for size in ((50, 37), (16, 16), (9, 40), (7, 5)):
        pixels = rng.normal(size=(*size, 1)).astype(np.float32)
        whole = picture_answers(net, pixels)
        assert whole.shape == (2, *size)
        torch.testing.assert_close(whole.sum(0), torch.ones(size))
        bands = list(answer_bands(net, window_of(pixels), size))
        assert [top for top, _ in bands] == np.cumsum([0, *(b.shape[1] for _, b in bands)])[:-1].tolist()
    flat = picture_answers(net, np.full((50, 37, 1), 0.3, np.float32))
    inner = picture_answers(net, np.full((16, 16, 1), 0.3, np.float32))
    assert (flat.amax((1, 2)) - flat.amin((1, 2))).max() <= (inner.amax((1, 2)) - inner.amin((1, 2))).max() + 1e-5


def test_loss_leaves_out_pixels_without_a_class():
    logits = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    truth = torch.randint(0, 3, (2, 4, 4), generator=torch.Generator().manual_seed(1))
    truth[0, :2] = -1
    segment_loss(logits, truth, torch.ones(3), 1.0).backward()
    assert logits.grad is not None
    assert (logits.grad[0, :, :2] == 0).all()
    assert (logits.grad[0, :, 2:] != 0).any()
    right = torch.nn.functional.one_hot(truth.clamp_min(0), 3).permute(0, 3, 1, 2) * 40.0
    assert segment_loss(right, truth, torch.ones(3), 1.0) < 1e-3


def test_figures_of_masks_that_are_known():
    truth = np.zeros((20, 20), np.int64)
    truth[:, 10:] = 1
    shifted = np.roll(truth, 1, 1)
    shifted[:, 0] = 0
    part = counted(truth, shifted, 2)
    found = scores(part.confusion, part.border)
    np.testing.assert_allclose(found["dice"], [400 / 420, 360 / 380])
    np.testing.assert_allclose(found["iou"], [200 / 220, 180 / 200])
    np.testing.assert_allclose(found["border_f"], 1)  # off by one pixel, two are allowed
    far = counted(truth, np.roll(truth, 4, 1) * (np.arange(20) >= 4), 2)
    assert scores(far.confusion, far.border)["border_f"].max() == 0
    unknown = truth.copy()
    unknown[:, 10] = -1
    assert counted(unknown, shifted, 2).confusion.sum() == 380
    several = segment_figures([part, counted(truth, truth, 2)], ["a", "b"])
    low, high = several["macro_dice"]["interval"]
    assert low < several["macro_dice"]["value"] < high


def test_the_forest_takes_pictures_of_one_pixel_and_absent_classes_are_told():
    thin = Scene(pixels=np.ones((1, 1, 1), np.float32), mask=np.zeros((1, 1), np.int16))
    assert pixel_features(thin.pixels).shape[:2] == (1, 1)
    some = np.zeros((6, 6), np.int16)
    found = segment_figures([counted(some, some, 2)], ["a", "b"])
    lines = segment_lines(found | {"rules": {}})
    assert "in no mask that was judged, nor predicted: b; means are over the other classes" in lines


def test_rules_know_bright_from_dark():
    assert abs(otsu_threshold(np.r_[np.zeros(50), np.ones(50)]) - 0.5) < 0.01
    pictures, masks = discs(2, size=(60, 60))
    scenes = [
        Scene(pixels=((p[..., None] - 100.0) / 40).astype(np.float32), mask=(m > 0).astype(np.int16))
        for p, m in zip(pictures, masks, strict=True)
    ]
    forest = PixelForest(scenes[:1])
    assert (forest.mask(scenes[1]) == scenes[1].mask).mean() > 0.9


def test_the_network_takes_other_sizes_channels_and_classes():
    for image, channels, classes in (((16, 16), 1, 2), ((12, 20), 4, 5), ((8, 8), 2, 3)):
        net = net_of(image, classes, channels)
        assert net(torch.randn(2, channels, *image)).shape == (2, classes, *image)


def said_of(model, pictures: Path, masks: Path) -> list[str]:
    return read_pairs(model, pictures, masks).notes


def turned_by(folder: Path, array: np.ndarray, name: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(array).save(folder / name, exif=exif)


def test_masks_of_pictures_that_exif_turns_are_told(model, tmp_path):
    """Sizes tell whether they were drawn on the turned pictures, but those of square ones."""
    pictures, masks = discs(4, size=(48, 48))
    folder, where = saved(tmp_path / "p", pictures), saved(tmp_path / "m", masks)
    assert not any("EXIF" in line for line in said_of(model, folder, where))
    turned_by(folder, pictures[1], "1.png", 6)
    (told,) = [line for line in said_of(model, folder, where) if "their EXIF data" in line]
    assert told.startswith("warning: 1 pictures are turned")
    assert told.endswith("(1.png)")
    (wide,), (mask,) = discs(1, size=(44, 52))
    turned_by(folder, wide, "0.png", 6)
    Image.fromarray(mask).save(where / "0.png")
    with pytest.raises(UserError, match=r"0.png has 44 x 52 pixels, its mask 52 x 44, the size before .* EXIF"):
        said_of(model, folder, where)
    Image.fromarray(np.rot90(mask, 3)).save(where / "0.png")
    assert not any("their EXIF data" in line for line in said_of(model, folder, where))


def test_inverted_masks_and_transparent_pictures_are_told_by_finetune(model, tmp_path):
    pictures, masks = discs(5)
    folder = saved(tmp_path / "p", pictures)
    assert not any("inverted" in line for line in said_of(model, folder, saved(tmp_path / "m", masks)))
    masks[2] = 255 - masks[2]
    (told,) = [line for line in said_of(model, folder, saved(tmp_path / "m", masks)) if "inverted" in line]
    assert told.startswith("warning: 1 masks may be inverted: 255 is ")
    assert "2.png (" in told
    Image.fromarray(np.stack([pictures[0], masks[0]], -1), "LA").save(folder / "0.png")
    assert "1 pictures: an alpha channel: laid on white where it is transparent" in said_of(
        model, folder, tmp_path / "m"
    )


def test_names_that_differ_in_case_and_unknown_values_are_said_to(model, tmp_path):
    pictures, masks = discs(2)
    folder, where = saved(tmp_path / "p", pictures), saved(tmp_path / "m", masks)
    for name in ("p", "m"):
        (tmp_path / name / "1.png").rename(tmp_path / name / f"{name.upper()}a.png")
    (where / "Ma.png").rename(where / "pA.png")
    with pytest.raises(UserError, match=r"in upper and lower case alone pA.png differ"):
        said_of(model, folder, where)
    legend = read_pairs(model, pictures, masks).legend
    with pytest.raises(UserError, match="values 7 are none") as error:
        read_pairs(model, pictures, [np.where(m, 255, 7) for m in masks], legend=legend)
    assert "ignore='7'" in str(error.value.hint)
