"""Masks in the formats of their pictures: sizes, georeference, affine and geometry are kept; large pictures are not
read whole, and their masks are the same."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import unmask
from picture_files import scanned
from tiny_images import CROPS, discs
from unmask.errors import UserError
from unmask.modalities.images.segment import windows, written
from unmask.modalities.images.segment.pairs import read_pairs
from unmask.modalities.images.segment.written import write_masks

tifffile = pytest.importorskip("tifffile")
nibabel = pytest.importorskip("nibabel")
pydicom = pytest.importorskip("pydicom")


@pytest.fixture(scope="module")
def tuned():
    pictures, masks = discs(4)
    model = unmask.images.pretrain(np.stack(pictures), console=False, **CROPS).model
    how = {"steps": 25, "precision": "fp32", "console": False}
    return unmask.images.finetune_segment(model, pictures, masks=masks, **how).model


def test_a_geotiff_keeps_where_it_lies(tuned, tmp_path):
    (picture,), _ = discs(1, seed=5)
    scale, tie = (10.0, 10.0, 0.0), (0.0, 0.0, 0.0, 500000.0, 4100000.0, 0.0)
    keys = (1, 1, 0, 1, 3072, 0, 1, 32633)
    tags = [(33550, 12, 3, scale, True), (33922, 12, 6, tie, True), (34735, 3, 8, keys, True)]
    (tmp_path / "in").mkdir()
    tifffile.imwrite(tmp_path / "in" / "a.tif", picture, extratags=tags, resolution=(72, 72), metadata=None)
    (row,) = tuned.predict(tmp_path / "in", tmp_path / "out")
    with tifffile.TiffFile(row["file"]) as file:
        page = file.pages[0]
        assert page.tags[33550].value == scale
        assert page.tags[33922].value == tie
        assert tuple(page.tags[34735].value) == keys
        assert page.tags[282].value[0] / page.tags[282].value[1] == 72
        np.testing.assert_array_equal(page.asarray(), tuned.predict([picture])[0]["mask"])


@pytest.mark.parametrize("turned", [False, True])
def test_a_volume_keeps_its_affine_and_the_order_of_its_voxels(tuned, tmp_path, turned):
    slices, _ = discs(3, seed=6)
    volume = np.stack([s.T for s in slices], 2)
    affine = np.diag([0.5, 0.5, 3.0, 1.0])
    if turned:  # stored from right to left, front to back, as scanners do
        affine[:2] *= -1
    image = nibabel.Nifti1Image(volume, affine)
    image.header.set_xyzt_units("mm", "sec")
    nibabel.save(image, tmp_path / "v.nii.gz")
    (row,) = tuned.predict(tmp_path / "v.nii.gz", tmp_path / "out")
    mask = nibabel.load(row["file"])
    np.testing.assert_allclose(mask.affine, affine)
    assert mask.shape == volume.shape
    assert mask.header.get_xyzt_units()[0] == "mm"
    assert row["pictures"] == 3
    # Discs are brighter: where the mask is, the volume must be.
    voxels, found = np.asarray(image.dataobj), np.asarray(mask.dataobj) > 0
    assert voxels[found].mean() > voxels[~found].mean() + 25


def test_a_dicom_mask_keeps_patient_and_geometry(tuned, tmp_path):
    (picture,), _ = discs(1, seed=7)
    data = scanned(tmp_path / "a.dcm", picture)
    (row,) = tuned.predict(tmp_path / "a.dcm", tmp_path / "out")
    mask = pydicom.dcmread(row["file"])
    for name in ("PatientID", "StudyInstanceUID", "PixelSpacing", "ImagePositionPatient", "ImageOrientationPatient"):
        assert mask[name].value == data[name].value
    assert mask.SeriesInstanceUID != data.SeriesInstanceUID
    assert mask.SOPInstanceUID == mask.file_meta.MediaStorageSOPInstanceUID != data.SOPInstanceUID
    np.testing.assert_array_equal(mask.pixel_array, tuned.predict([picture])[0]["mask"])


def test_masks_never_replace_pictures_nor_each_other(tuned, tmp_path):
    (picture,), _ = discs(1)
    Image.fromarray(picture).save(tmp_path / "a.png")
    with pytest.raises(UserError, match="would replace it"):
        tuned.predict(tmp_path, tmp_path)
    Image.fromarray(picture).save(tmp_path / "a.bmp")
    with pytest.raises(UserError, match="the same mask"):
        tuned.predict(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pictures_that_cannot_be_read_are_named_before_a_mask_is_written(tuned, tmp_path):
    (picture,), _ = discs(1)
    Image.fromarray(picture).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"")
    with pytest.raises(UserError, match=r"b.png: empty \(0 bytes\)"):
        tuned.predict([tmp_path / "a.png", tmp_path / "b.png"], tmp_path / "out")
    with pytest.warns(UserWarning, match=r"b.png: empty"):
        rows = tuned.predict(tmp_path, tmp_path / "out")
    assert [row["name"] for row in rows] == ["a.png"]


def saved(path: Path, array: np.ndarray) -> Path:
    np.save(path, array) if path.suffix == ".npy" else tifffile.imwrite(path, array, metadata=None)
    return path


@pytest.mark.parametrize("ending", ["npy", "tif"])
def test_a_large_picture_is_read_by_windows_and_its_mask_is_the_same(tuned, tmp_path, monkeypatch, ending):
    (picture,), _ = discs(1, size=(150, 90))
    path = saved(tmp_path / f"a.{ending}", picture)
    (whole,) = tuned.predict(path, tmp_path / "whole", probabilities=True)
    monkeypatch.setattr(windows, "LARGE", 100)
    assert windows.mapped(path, 1, "uint8", unmask.modalities.images.formats.picture.PLAIN) is not None
    (banded,) = tuned.predict(path, tmp_path / "banded", probabilities=True)
    read = np.load if ending == "npy" else tifffile.imread
    np.testing.assert_array_equal(read(whole["file"]), read(banded["file"]))
    assert whole["shares"] == pytest.approx(banded["shares"], abs=1e-6)
    chances = [np.load(tmp_path / folder / "a.probabilities.npy") for folder in ("whole", "banded")]
    np.testing.assert_allclose(*chances, atol=1e-6)


def test_memory_does_not_grow_with_the_height_of_a_picture(tuned, tmp_path, monkeypatch):
    monkeypatch.setattr(windows, "LARGE", 100)
    together = written._together  # after each band: what nobody holds any more is no growth
    monkeypatch.setattr(written, "_together", lambda parts: (gc.collect(), together(parts))[1])
    peaks = []
    for height in (200, 1600):
        path = saved(tmp_path / f"{height}.npy", np.resize(discs(1)[0][0], (height, 64)))
        tuned.predict(path, tmp_path / "warm")
        tracemalloc.start()
        tuned.predict(path, tmp_path / "out")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_what_is_made_of_files_is_said_before_their_masks(tuned, tmp_path):
    (picture,), _ = discs(1)
    Image.fromarray(np.stack([picture, picture], -1), "LA").save(tmp_path / "a.png")
    said = []
    list(write_masks(tuned, tmp_path, tmp_path / "out", say=said.append))
    assert said == ["1 pictures: an alpha channel: laid on white where it is transparent"]


def test_pictures_of_another_kind_are_named_before_a_mask_is_written(tuned, tmp_path):
    (picture,), _ = discs(1)
    Image.fromarray(picture).save(tmp_path / "a.png")
    Image.fromarray(picture.astype(np.uint16) * 257).save(tmp_path / "b.png")
    Image.fromarray((picture > 99).astype(np.uint8)).save(tmp_path / "c.png")
    with pytest.raises(UserError, match=r"b.png: pictures of uint16"):
        tuned.predict(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "b.png").unlink()
    assert len(tuned.predict(tmp_path, tmp_path / "out")) == 2  # together they span what the model's pictures do
    with pytest.raises(UserError, match=r"c.png: pictures with values 0 to 1"):
        tuned.predict(tmp_path / "c.png", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_pale_picture_is_no_picture_of_another_scale(tuned, tmp_path):
    Image.fromarray(np.arange(174, 183, dtype=np.uint8).reshape(3, 3)).save(tmp_path / "a.png")
    (row,) = tuned.predict(tmp_path, tmp_path / "out")
    assert np.asarray(Image.open(row["file"])).shape == (3, 3)


def with_masks(tuned, root: Path, **how):
    """Pairs of pictures in a folder with masks in TIFF files, written with these options of tifffile."""
    pictures, masks = discs(2)
    for folder, arrays in (("p", pictures), ("m", how.pop("masks", lambda own: own)(masks))):
        (root / folder).mkdir(parents=True)
        for n, array in enumerate(arrays):
            given = how.get(folder, {})
            tifffile.imwrite(root / folder / f"{n}.tif", array, metadata=None, **given)
    return read_pairs(tuned.model, root / "p", root / "m")


@pytest.mark.parametrize("channels", [1, 3])
def test_masks_that_are_transparent_in_places_are_refused_and_opaque_ones_read(tuned, tmp_path, channels):
    """Laid on white, what is transparent would be a class."""
    how = {"m": {"photometric": "rgb" if channels == 3 else "minisblack", "extrasamples": ["unassalpha"]}}

    def banded(alpha: int):
        colours = [0] * (channels - 1)

        def made(masks):
            found = [np.stack([m, *(m * 0 for _ in colours), np.full_like(m, 255)], -1) for m in masks]
            for mask in found:
                mask[:4, :, -1] = alpha
            return found

        return made

    found = with_masks(tuned, tmp_path / "opaque", masks=banded(255), **how)
    assert len(found.legend.names) == 2
    with pytest.raises(UserError, match="transparent"):
        with_masks(tuned, tmp_path / "clear", masks=banded(0), **how)


def test_nodata_of_a_mask_is_no_class(tuned, tmp_path):
    nodata = {"m": {"extratags": [(42113, 2, 2, "0", True)]}}
    found = with_masks(
        tuned, tmp_path / "three", masks=lambda own: [(m > 0) + np.tri(*m.shape, dtype=np.uint8) for m in own], **nodata
    )
    assert found.legend.names == ("1", "2")
    assert "without a class" in found.notes[0]
    with pytest.raises(UserError, match="all pixels are of one class") as error:
        with_masks(tuned, tmp_path / "one", masks=lambda own: [(m > 0).astype(np.uint8) for m in own], **nodata)
    assert "nodata" in str(error.value.hint)


def test_masks_that_lie_elsewhere_than_their_pictures_are_refused(tuned, tmp_path):
    def lying(east: float, side: float = 10.0):
        tie = (0.0, 0.0, 0.0, east, 4100000.0, 0.0)
        return {"extratags": [(33550, 12, 3, (side, side, 0.0), True), (33922, 12, 6, tie, True)]}

    with_masks(tuned, tmp_path / "same", p=lying(5e5), m=lying(5e5 + 1e-6))
    with_masks(tuned, tmp_path / "unsaid", p=lying(5e5), m={})
    for name, mask in (("moved", lying(5e5 + 20)), ("coarser", lying(5e5, 30.0))):
        with pytest.raises(UserError, match=r"2 masks lie elsewhere .*: 0.tif, 1.tif"):
            with_masks(tuned, tmp_path / name, p=lying(5e5), m=mask)
