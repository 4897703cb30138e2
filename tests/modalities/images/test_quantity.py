"""A quantity per pixel: told from classes by its values or asked for, learnt in its own unit, written as floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage

import unmask
from picture_files import scanned
from tiny_images import CROPS, discs
from unmask.errors import UserError
from unmask.modalities.images.reading import decode
from unmask.modalities.images.segment import windows
from unmask.modalities.images.segment.baselines import FOREST, MEAN, PixelForest
from unmask.modalities.images.segment.crops import CropSource, Scene
from unmask.modalities.images.segment.figures import quantity_figures, quantity_sums
from unmask.modalities.images.segment.legend import Legend
from unmask.modalities.images.segment.masks import masks_of, raw_mask
from unmask.modalities.images.segment.quantity import Quantity
from unmask.modalities.images.segment.settings import SegmenterSettings
from unmask.modalities.images.segment.training import quantity_loss

tifffile = pytest.importorskip("tifffile")


def heights(masks: list[np.ndarray]) -> list[np.ndarray]:
    """Discs as smooth hills, some tens of units high."""
    return [(20 + ndimage.gaussian_filter((m > 0) * 40.0, 2)).astype(np.float32) for m in masks]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    root = tmp_path_factory.mktemp("quantity")
    pictures, masks = discs(8)
    for folder in ("pictures", "masks"):
        (root / folder).mkdir()
    for n, (picture, height) in enumerate(zip(pictures, heights(masks), strict=True)):
        tifffile.imwrite(root / "pictures" / f"{n}.tif", picture, metadata=None)
        height[:3] = np.nan
        tifffile.imwrite(root / "masks" / f"{n}.tif", height, metadata=None)
    base = unmask.images.pretrain(np.stack(pictures), console=False, **CROPS).model
    how = {"masks": root / "masks", "steps": 150, "precision": "fp32", "console": False, "examples": True}
    return root, unmask.images.finetune_segment(base, root / "pictures", root / "model", **how)


def test_a_quantity_is_learnt_in_its_own_unit_and_survives_its_folder(tuned, tmp_path):
    root, run = tuned
    assert run.figures["problem"] == "regression"
    assert run.figures["notes"][0].startswith("8 pictures with a quantity per pixel: 20 to ")
    assert "without a value" in run.figures["notes"][0]
    judged = run.figures["validation"]
    assert judged["r2"]["value"] > 0.6
    assert judged["rules"][MEAN]["r2"]["value"] < 0.05
    assert FOREST in judged["rules"]
    page = (root / "model" / "report.html").read_text()
    assert "quantity per pixel" in page
    assert "blue where it is too low" in page
    assert "value of a quantity" in (root / "model" / "README.md").read_text()
    assert "R2" in str(run) or "R²" in str(run)
    again = unmask.load(root / "model", precision="fp32")
    (row,) = again.predict(root / "pictures" / "7.tif", tmp_path / "out")
    written = tifffile.imread(row["file"])
    (own,) = run.model.predict([tifffile.imread(root / "pictures" / "7.tif")])
    assert written.dtype == np.float32
    np.testing.assert_array_equal(written, own["mask"])
    assert row["sum"] == pytest.approx(written.sum(dtype=np.float64))
    assert not (tmp_path / "out" / "classes.json").exists()
    found = again.evaluate(root / "pictures", root / "masks")
    assert found["pictures"] == 8
    assert found["rmse"]["value"] < found["rules"][MEAN]["rmse"]["value"]
    with pytest.raises(UserError, match="probabilities of a quantity"):
        again.predict(root / "pictures", tmp_path / "other", probabilities=True)
    assert not (tmp_path / "other").exists()


def test_a_quantity_is_written_as_its_picture_is(tuned, tmp_path, monkeypatch):
    from PIL import Image

    nibabel, pydicom = pytest.importorskip("nibabel"), pytest.importorskip("pydicom")
    _, run = tuned
    (picture,), _ = discs(1, seed=5)
    (own,) = run.model.predict([picture])
    tie = (0.0, 0.0, 0.0, 500000.0, 4100000.0, 0.0)
    scale = [(33550, 12, 3, (10.0, 10.0, 0.0), True), (33922, 12, 6, tie, True)]
    tifffile.imwrite(tmp_path / "a.tif", picture, extratags=scale, metadata=None)
    Image.fromarray(picture).save(tmp_path / "b.png")
    np.save(tmp_path / "c.npy", picture)
    nibabel.save(nibabel.Nifti1Image(picture.T[..., None], np.diag([-0.5, -0.5, 3.0, 1.0])), tmp_path / "d.nii.gz")
    scanned(tmp_path / "e.dcm", picture)
    rows = run.model.predict([tmp_path / n for n in ("a.tif", "b.png", "c.npy", "d.nii.gz", "e.dcm")], tmp_path / "out")
    files = [Path(row["file"]) for row in rows]
    assert [f.name for f in files] == ["a.tif", "b.tif", "c.npy", "d.nii.gz", "e.dcm"]
    with tifffile.TiffFile(files[0]) as file:
        assert file.pages[0].tags[33922].value == tie
    for found in (tifffile.imread(files[0]), tifffile.imread(files[1]), np.load(files[2])):
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, own["mask"])
    volume = nibabel.load(files[3])
    assert volume.get_data_dtype() == np.float32
    (cut,) = decode.pictures(str(files[3]))
    np.testing.assert_allclose(cut.pixels[..., 0], run.model.predict(tmp_path / "d.nii.gz")[0]["mask"], atol=1e-5)
    mask = pydicom.dcmread(files[4])
    values = mask.pixel_array * float(mask.RescaleSlope) + float(mask.RescaleIntercept)
    np.testing.assert_allclose(values, own["mask"], atol=np.ptp(own["mask"]) / 60000)
    monkeypatch.setattr(windows, "LARGE", 100)
    (banded,) = run.model.predict(tmp_path / "c.npy", tmp_path / "banded")
    np.testing.assert_array_equal(np.load(banded["file"]), own["mask"])
    assert (banded["mean"], banded["sum"]) == pytest.approx((own["mean"], own["sum"]))


def masks(*arrays: np.ndarray, **options) -> tuple[list[np.ndarray], Legend | Quantity]:
    raw = {str(n): [raw_mask(str(n), a if a.ndim == 3 else a[..., None])] for n, a in enumerate(arrays)}
    found = masks_of(raw, "the arrays", **options)
    return [found.of[str(n)][0] for n in range(len(arrays))], found.legend


def said(*arrays: np.ndarray, **options) -> str:
    with pytest.raises(UserError) as error:
        masks(*arrays, **options)
    return f"{error.value} {error.value.hint}"


GROUND = np.random.default_rng(0).gamma(2, 8, (30, 30)).astype(np.float32)


def test_values_say_whether_they_are_classes_or_a_quantity_or_are_asked_for():
    classes = np.tile([0.0, 1.0, 2.0], (30, 10)).astype(np.float32)
    assert isinstance(masks(GROUND)[1], Quantity)
    assert masks(classes)[1].names == ("0", "1", "2")
    assert isinstance(masks(GROUND, classes)[1], Quantity)  # a file of few values among those of many
    whole = (GROUND * 1000).astype(np.uint16)
    assert "say problem='regression'" in said(whole)
    assert "say problem='regression'" in said(classes / 255)  # classes that were divided
    assert "have fractions, such as 0.00392157, 0.00784314: 0" in said(classes / 255)
    assert "have fractions" in said(GROUND, problem="segment")
    found, quantity = masks(whole, problem="regression")
    assert isinstance(quantity, Quantity)
    np.testing.assert_array_equal(found[0], whole.astype(np.float32))
    colours = np.stack([GROUND > 9, GROUND > 3, GROUND > 5], -1).astype(np.uint8) * 255
    assert "1 of 2 masks in the arrays have colours" in said(GROUND, colours)
    with pytest.raises(UserError, match="all pixels of the training masks have the value 3"):
        masks(np.full((4, 4), 3), problem="regression")[1].fitted([np.full((4, 4), 3, np.float32)])


def test_what_was_not_measured_is_no_value_and_a_stand_in_for_it_is_asked_for():
    holes = GROUND.copy()
    holes[:5] = np.nan
    found, _ = masks(holes)
    np.testing.assert_array_equal(np.isnan(found[0]), np.isnan(holes))
    some = np.where(np.isnan(holes), -9999, holes)
    assert "16.67% of the pixels are -9999, all others" in said(some)
    assert "say ignore='-9999'" in said(some)
    np.testing.assert_array_equal(np.isnan(masks(some, ignore="-9999")[0][0]), np.isnan(holes))
    assert not np.isnan(masks(some, ignore="none")[0][0]).any()
    assert "are 65535" in said(np.where(np.isnan(holes), 65535, np.round(some)).astype(np.uint16), problem="regression")
    assert "infinite" in said(np.where(np.isnan(holes), np.inf, holes))
    classes = np.tile([0.0, 1.0, np.nan], (30, 10))
    found, legend = masks(classes)
    assert legend.names == ("0", "1")
    np.testing.assert_array_equal(found[0][0, :3], [0, 1, -1])


def test_figures_of_a_quantity_that_are_known():
    truth = np.array([[1.0, 2.0], [3.0, np.nan]])
    part = quantity_sums(truth, np.array([[2.0, 2.0], [5.0, 9.0]]), 0.5)
    found = quantity_figures([part, quantity_sums(truth, truth, 0.5)])
    assert found["mae"]["value"] == pytest.approx(0.5)
    assert found["rmse"]["value"] == pytest.approx(np.sqrt(5 / 6))
    assert found["r2"]["value"] == pytest.approx(1 - 5 / 4)
    assert (found["sum_mae"]["value"], found["sum"]["value"]) == (1.5, 6.0)
    assert found["rmse_of_pictures"] == pytest.approx([np.sqrt(5 / 3), 0])
    low, high = found["mae"]["interval"]
    assert (low, high) == (0, 1)
    blank = quantity_sums(np.full((2, 2), np.nan), np.zeros((2, 2)), 0.0)
    assert quantity_figures([blank])["rmse"]["value"] is None


def test_the_loss_is_the_squared_error_in_deviations_of_what_is_known():
    truth = torch.tensor([[[3.0, 5.0], [float("nan"), 1.0]]])
    outputs = torch.zeros(1, 1, 2, 2, requires_grad=True)
    loss = quantity_loss(outputs, truth, (3.0, 2.0))
    assert loss.item() == pytest.approx((0 + 1 + 1) / 3)
    loss.backward()
    assert outputs.grad is not None
    assert outputs.grad[0, 0, 1, 0] == 0


def test_crops_of_a_quantity_move_with_pixels_keep_their_scale_and_show_what_is_seldom():
    height = np.zeros((60, 60), np.float32)
    height[50:53, 50:53] = 9.5
    height[:2] = np.nan
    scene = Scene(pixels=np.nan_to_num(height)[..., None], mask=height)
    source = CropSource([scene], 1, (16, 16), SegmenterSettings(jitter=0, bend=0, balance=1.0))
    pixels, truth = source.crops(np.arange(40), key=(0, 0))
    assert truth.dtype == torch.float32
    known = ~truth.isnan()
    assert ((pixels[:, 0] > 4.75) == (truth > 4.75))[known].float().mean() > 0.99
    seen = (truth > 0).flatten(1).any(1)
    assert 0.3 < seen.float().mean() < 0.8
    areas = (truth > 0).flatten(1).sum(1)
    assert areas.max() <= 11  # never enlarged
    forest = PixelForest([scene])
    assert np.abs(forest.mask(scene) - height)[2:].mean() < 0.2
