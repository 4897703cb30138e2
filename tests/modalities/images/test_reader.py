"""Files that microscopists, radiologists and satellite people have: read as what they are, or refused with a reason."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from picture_files import dicom_slice, geotiff, imagej, nifti_volume, ome, ramp
from unmask.modalities.images.formats.picture import Ambiguous, Broken, Choice
from unmask.modalities.images.reading.decode import described, pictures, survey

tifffile = pytest.importorskip("tifffile")


def read(path, **choice):
    chosen = Choice(**choice)
    headers, found = survey(str(path), chosen), pictures(str(path), chosen)
    assert isinstance(headers, list), headers
    assert isinstance(found, list), found
    assert len(headers) == len(found)
    for h, p in zip(headers, found, strict=True):
        assert (h.height, h.width, h.channels) == p.pixels.shape
        assert str(p.pixels.dtype) == h.depth
        assert p.missing is None or p.missing.shape == p.pixels.shape[:2]
    return headers, found


def refused(path, **choice):
    found = survey(str(path), Choice(**choice))
    if isinstance(found, list):
        found = pictures(str(path), Choice(**choice))
    assert isinstance(found, Broken | Ambiguous)
    return found


@pytest.mark.parametrize("write", [ome, imagej])
def test_channels_that_a_file_names_are_channels(tmp_path, write):
    array = write(tmp_path / "a.tif", ramp(5, 32, 40, low=200, high=4000, dtype="uint16"), "CYX")
    headers, (found,) = read(tmp_path / "a.tif")
    assert np.array_equal(found.pixels, array.transpose(1, 2, 0))
    assert headers[0].axes == "channel=5"
    assert not headers[0].colour


@pytest.mark.parametrize("write", [ome, imagej])
def test_a_stack_is_its_planes_or_what_was_chosen_of_them(tmp_path, write):
    array = write(tmp_path / "z.tif", ramp(7, 2, 32, 40, low=100, high=60000, dtype="uint16"), "ZCYX")
    headers, found = read(tmp_path / "z.tif")
    assert [h.part for h in headers] == [f"z={k}" for k in range(7)]
    assert all(np.array_equal(p.pixels, plane.transpose(1, 2, 0)) for p, plane in zip(found, array, strict=True))
    assert described(headers) == ["7 pictures: z=7 channel=2: planes=all of 7 z"]
    for planes, expected in (("max", array.max(0)), ("mean", np.round(array.mean(0))), (3, array[3])):
        _, (one,) = read(tmp_path / "z.tif", planes=planes)
        assert np.array_equal(one.pixels, expected.transpose(1, 2, 0))
    assert "planes are 0 to 6" in refused(tmp_path / "z.tif", planes=7).reason


def test_time_and_depth_are_told_apart(tmp_path):
    imagej(tmp_path / "t.tif", ramp(2, 3, 2, 16, 16, dtype="uint8"), "TZCYX")
    headers, _ = read(tmp_path / "t.tif")
    assert [h.part for h in headers] == [f"time={t},z={z}" for t in range(2) for z in range(3)]
    assert headers[0].channels == 2


def test_pages_without_a_name_are_asked_for(tmp_path):
    array = ramp(5, 24, 24)
    with tifffile.TiffWriter(tmp_path / "p.tif") as file:
        for plane in array:
            file.write(plane, metadata=None, contiguous=False)
    asked = refused(tmp_path / "p.tif")
    assert "5 pages" in asked.what
    assert "planes='channels'" in asked.hint
    _, (found,) = read(tmp_path / "p.tif", planes="channels")
    assert np.array_equal(found.pixels, array.transpose(1, 2, 0))
    assert len(read(tmp_path / "p.tif", planes="all")[1]) == 5
    assert np.array_equal(read(tmp_path / "p.tif", planes="2")[1][0].pixels[..., 0], array[2])


def test_colour_in_16_bits_stays_in_16_bits(tmp_path):
    array = ramp(3, 24, 24, low=200, high=4000, dtype="uint16").transpose(1, 2, 0)
    tifffile.imwrite(tmp_path / "c.tif", array, photometric="rgb")
    headers, (found,) = read(tmp_path / "c.tif")
    assert np.array_equal(found.pixels, array)
    assert headers[0].colour


@pytest.mark.parametrize(
    ("bands", "kind"),
    [(2, "uint8"), (4, "uint8"), (4, "uint16"), (5, "uint8"), (13, "uint16"), (3, "int16"), (2, "float32")],
)
def test_bands_of_a_geotiff_are_channels(tmp_path, bands, kind):
    array = ramp(bands, 20, 24, low=1, high=250, dtype=kind).transpose(1, 2, 0)
    geotiff(tmp_path / "g.tif", array)
    _, (found,) = read(tmp_path / "g.tif")
    assert np.array_equal(found.pixels, array)
    assert str(found.pixels.dtype) == (kind if kind in ("uint8", "uint16") else "float32")


def test_bands_in_planes_of_their_own(tmp_path):
    array = ramp(6, 20, 24, dtype="uint16", high=3000)
    tifffile.imwrite(tmp_path / "b.tif", array, photometric="minisblack", planarconfig="separate", metadata=None)
    _, (found,) = read(tmp_path / "b.tif")
    assert np.array_equal(found.pixels, array.transpose(1, 2, 0))


def test_a_fourth_band_marked_as_transparency_is_asked_for_in_a_geotiff(tmp_path):
    array = ramp(4, 20, 24).transpose(1, 2, 0).copy()
    array[:5, :, 3] = 0
    geotiff(tmp_path / "g.tif", array, alpha=True)
    assert "alpha='band'" in refused(tmp_path / "g.tif").hint
    assert np.array_equal(read(tmp_path / "g.tif", alpha="band")[1][0].pixels, array)
    _, (found,) = read(tmp_path / "g.tif", alpha="missing")
    assert np.array_equal(found.pixels, array[..., :3])
    assert np.array_equal(found.missing, array[..., 3] == 0)
    assert np.array_equal(read(tmp_path / "g.tif", alpha="white")[1][0].pixels[0], np.full((24, 3), 255))


def test_what_was_not_measured_is_missing(tmp_path):
    array = ramp(2, 20, 24, low=1, high=9, dtype="float32").transpose(1, 2, 0).copy()
    array[:3] = np.nan
    tifffile.imwrite(tmp_path / "n.tif", array, photometric="minisblack", planarconfig="contig")
    _, (found,) = read(tmp_path / "n.tif")
    assert np.array_equal(found.missing, np.isnan(array).any(-1))
    for kind, value in (("int16", "-9999"), ("uint8", "0"), ("float32", "-3.4028234663852886e+38"), ("float32", "nan")):
        bands = ramp(3, 20, 24, low=1, high=99, dtype=kind).transpose(1, 2, 0).copy()
        bands[4:9, 2:7] = float(value)
        geotiff(tmp_path / "g.tif", bands, nodata=value)
        _, (found,) = read(tmp_path / "g.tif")
        assert found.missing.sum() == 25, (kind, value)
        assert found.missing[4:9, 2:7].all()
    geotiff(tmp_path / "g.tif", ramp(3, 20, 24).transpose(1, 2, 0), nodata="-9999")
    assert read(tmp_path / "g.tif")[1][0].missing is None  # 8 bits cannot hold it
    inf = array.copy()
    inf[9, 9] = np.inf
    tifffile.imwrite(tmp_path / "i.tif", inf, photometric="minisblack", planarconfig="contig")
    assert "infinite" in refused(tmp_path / "i.tif").reason


def test_thumbnails_are_left_out_and_said(tmp_path):
    whole = ramp(3, 64, 64).transpose(1, 2, 0)
    with tifffile.TiffWriter(tmp_path / "p.tif") as file:
        file.write(whole, photometric="rgb", metadata=None)
        file.write(whole[::2, ::2], photometric="rgb", subfiletype=1, metadata=None)
    headers, (found,) = read(tmp_path / "p.tif")
    assert np.array_equal(found.pixels, whole)
    assert "the largest of 2 levels" in headers[0].notes


def test_palettes_and_inverted_greys(tmp_path):
    index = (np.arange(400).reshape(20, 20) % 5).astype(np.uint8)
    table = np.random.default_rng(0).integers(0, 65535, (3, 256)).astype(np.uint16)
    tifffile.imwrite(
        tmp_path / "p.tif", index, photometric="palette", colormap=table, extratags=[(42113, "s", 0, "4", True)]
    )
    _, (found,) = read(tmp_path / "p.tif")
    assert np.array_equal(found.pixels, (table.T[index] >> 8).astype(np.uint8))
    assert np.array_equal(found.missing, index == 4)
    grey = ramp(20, 20, high=60000, dtype="uint16")
    tifffile.imwrite(tmp_path / "w.tif", grey, photometric="miniswhite")
    assert np.array_equal(read(tmp_path / "w.tif")[1][0].pixels[..., 0], 65535 - grey)


@pytest.mark.parametrize("kind", ["bool", "uint8", "uint16"])
@pytest.mark.parametrize("pages", [1, 2])
def test_that_white_is_zero_is_noted(tmp_path, kind, pages):
    """One page of up to 8 bits was inverted without a word: a mask that tifffile writes of booleans is one."""
    pixels = ramp(pages, 16, 16, high=200).astype(kind)
    for photometric, said in (("miniswhite", 1), ("minisblack", 0)):
        tifffile.imwrite(tmp_path / "a.tif", pixels, photometric=photometric, metadata=None)
        headers, _ = read(tmp_path / "a.tif", planes="all")
        assert [" ".join(h.notes).count("white is zero: inverted") for h in headers] == [said] * pages


def test_compression_that_needs_a_package_is_named(tmp_path, monkeypatch):
    array = ramp(5, 32, 32, dtype="uint16").transpose(1, 2, 0)
    path = tmp_path / "l.tif"
    pytest.importorskip("imagecodecs")
    tifffile.imwrite(path, array, photometric="minisblack", planarconfig="contig", compression="lzw")
    assert np.array_equal(read(path)[1][0].pixels, array)

    class Gone(dict):
        def __missing__(self, key):
            raise KeyError("LZW requires the 'imagecodecs' package")

    monkeypatch.setattr(tifffile.TIFF, "DECOMPRESSORS", Gone())
    reason = refused(path).reason
    assert "LZW" in reason
    assert "unmask[images]" in reason


def test_plain_tiffs_need_no_extra(tmp_path, monkeypatch):
    import sys

    grey = ramp(16, 16)
    Image.fromarray(grey).save(tmp_path / "a.tif", compression="tiff_lzw")
    geotiff(tmp_path / "g.tif", ramp(5, 16, 16).transpose(1, 2, 0))
    monkeypatch.setitem(sys.modules, "tifffile", None)
    assert np.array_equal(read(tmp_path / "a.tif")[1][0].pixels[..., 0], grey)
    assert "pip install 'unmask[images]'" in refused(tmp_path / "g.tif").hint


def test_a_tiff_in_a_table_is_read_too(tmp_path):
    array = ome(tmp_path / "a.tif", ramp(5, 16, 16, dtype="uint16"), "CYX")
    (found,) = pictures((tmp_path / "a.tif").read_bytes())
    assert np.array_equal(found.pixels, array.transpose(1, 2, 0))


@pytest.mark.parametrize("bits", [16, 32])
def test_a_targa_is_transparent_only_where_its_head_says_so(bits):
    """The lower four bits of byte 17 count the bits of transparency per pixel; many programs write none, and zeros."""
    rgba = np.dstack([np.stack([ramp(6, 8, seed=k) for k in range(3)], -1), np.zeros((6, 8), np.uint8)])
    stored = rgba[..., [2, 1, 0, 3]].tobytes()
    if bits == 16:  # five bits per colour, and the one that would be transparency set
        five = rgba[..., :3].astype("<u2") >> 3
        stored = (five[..., 0] << 10 | five[..., 1] << 5 | five[..., 2] | 1 << 15).astype("<u2").tobytes()
        rgba[..., :3] = five * 255 // 31
    head = bytes([0, 0, 2, *[0] * 9, 8, 0, 6, 0, bits])
    (header,), (found,) = survey(head + b"\x20" + stored), pictures(head + b"\x20" + stored)
    np.testing.assert_allclose(found.pixels, rgba[..., :3], atol=1)
    assert header.notes == ()
    if bits == 32:
        (header,), (found,) = survey(head + b"\x28" + stored), pictures(head + b"\x28" + stored)
        assert header.notes == ("an alpha channel: laid on white where it is transparent",)
        assert (found.pixels == 255).all()


def test_animations_give_their_first_frame_and_say_so(tmp_path):
    frames = [Image.fromarray(np.full((8, 9), v, np.uint8)) for v in (10, 20, 30)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    headers, (found,) = read(tmp_path / "a.gif")
    assert "first of 3 frames" in headers[0].notes[-1]
    assert len(read(tmp_path / "a.gif", planes="all")[1]) == 3
    assert read(tmp_path / "a.gif", planes=2)[1][0].pixels.max() != found.pixels.max()


# DICOM and NIfTI


def test_dicom_values_are_the_rescaled_ones(tmp_path):
    pytest.importorskip("pydicom")
    stored = ramp(24, 32, high=4000, dtype="uint16")
    dicom_slice(tmp_path / "a.dcm", stored)
    assert np.array_equal(read(tmp_path / "a.dcm")[1][0].pixels[..., 0], stored)
    dicom_slice(tmp_path / "b.dcm", stored, slope=2, intercept=-1024, padding=0)
    headers, (found,) = read(tmp_path / "b.dcm")
    np.testing.assert_array_equal(found.pixels[..., 0], stored.astype(np.float32) * 2 - 1024)
    assert np.array_equal(found.missing if found.missing is not None else stored * 0 > 0, stored == 0)
    assert "-1024" in headers[0].notes[0]
    dicom_slice(tmp_path / "c.dcm", stored, kind="MONOCHROME1")
    headers, (found,) = read(tmp_path / "c.dcm")
    assert np.array_equal(found.pixels[..., 0], 4095 - stored)
    assert "turned round" in headers[0].notes[0]
    dicom_slice(tmp_path / "d.dcm", stored.astype(np.int16) - 500, signed=True)
    assert np.array_equal(read(tmp_path / "d.dcm")[1][0].pixels[..., 0], stored.astype(np.float32) - 500)


def test_dicom_frames_and_compressed_files(tmp_path):
    pytest.importorskip("pydicom")
    stored = ramp(4, 16, 16, high=4000, dtype="uint16")
    dicom_slice(tmp_path / "m.dcm", stored)
    headers, found = read(tmp_path / "m.dcm")
    assert [h.part for h in headers] == [f"frame={k}" for k in range(4)]
    assert np.array_equal(np.stack([p.pixels[..., 0] for p in found]), stored)
    assert np.array_equal(read(tmp_path / "m.dcm", planes="max")[1][0].pixels[..., 0], stored.max(0))
    for syntax, name in (("80", "JPEG-LS"), ("90", "JPEG 2000")):
        dicom_slice(tmp_path / "j.dcm", stored[0], syntax=f"1.2.840.10008.1.2.4.{syntax}")
        assert name in refused(tmp_path / "j.dcm").reason


def test_slices_of_a_volume_stand_upright(tmp_path):
    """Rows from the top (or front) down, columns from the patient's left, whatever way the axes are stored."""
    pytest.importorskip("nibabel")
    volume = ramp(6, 7, 8, high=900, dtype="int16")
    for axes in ((1, 1, 1), (-1, 1, -1)):
        stored = volume[:: axes[0], :: axes[1], :: axes[2]]
        nifti_volume(tmp_path / "v.nii.gz", np.ascontiguousarray(stored), axes)
        for name, expected in (
            ("axial", lambda k: volume[:, :, k]),
            ("coronal", lambda k: volume[:, k, :]),
            ("sagittal", lambda k: volume[k]),
        ):
            headers, found = read(tmp_path / "v.nii.gz", slice=name)
            assert all(np.array_equal(p.pixels[..., 0], expected(k).T[::-1]) for k, p in enumerate(found))
        assert ("turned from LAI to RAS" in " ".join(headers[0].notes)) == (axes != (1, 1, 1))
    assert np.array_equal(read(tmp_path / "v.nii.gz", planes="max")[1][0].pixels[..., 0], volume.max(2).T[::-1])


def test_scaled_and_several_volumes(tmp_path):
    pytest.importorskip("nibabel")
    volume = ramp(6, 7, 3, 2, high=900, dtype="int16")
    nifti_volume(tmp_path / "v.nii", volume, slope=0.5, intercept=10)
    headers, found = read(tmp_path / "v.nii")
    assert [h.part for h in headers] == [f"volume={v},z={z}" for v in range(2) for z in range(3)]
    np.testing.assert_allclose(found[4].pixels[..., 0], (volume[:, :, 1, 1] * 0.5 + 10).T[::-1], rtol=1e-6)
    headers, found = read(tmp_path / "v.nii", planes="channels")
    assert [p.pixels.shape for p in found] == [(7, 6, 2)] * 3


def test_arrays_in_files(tmp_path):
    for shape, channels, expected in (
        ((9, 8), None, (9, 8, 1)),
        ((9, 8, 3), None, (9, 8, 3)),
        ((3, 9, 8), None, (9, 8, 3)),
        ((13, 9, 8), 13, (9, 8, 13)),
        ((9, 8, 13), 13, (9, 8, 13)),
    ):
        array = np.arange(np.prod(shape)).reshape(shape).astype(np.uint16)
        np.save(tmp_path / "a.npy", array)
        _, (found,) = read(tmp_path / "a.npy", channels=channels)
        assert found.pixels.shape == expected
        assert found.pixels.sum() == array.sum()
    np.save(tmp_path / "a.npy", np.zeros((13, 9, 8)))
    assert "13 or 8 channels" in refused(tmp_path / "a.npy").what
    np.save(tmp_path / "a.npy", np.zeros((3, 9, 3)))
    assert "channels=" in refused(tmp_path / "a.npy").hint
    np.save(tmp_path / "a.npy", np.zeros(9))
    assert "not a picture" in refused(tmp_path / "a.npy").reason


def test_numbers_that_floats_do_not_hold_are_refused(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.full((8, 8), 2**31 + 1, np.uint32))
    assert "more than 32-bit floats hold" in refused(tmp_path / "a.tif").reason


def test_broken_files_say_why(tmp_path):
    out = io.BytesIO()
    tifffile.imwrite(
        out, ramp(5, 32, 32, dtype="uint16").transpose(1, 2, 0), photometric="minisblack", planarconfig="contig"
    )
    (tmp_path / "cut.tif").write_bytes(out.getvalue()[:3000])
    assert refused(tmp_path / "cut.tif").reason
    for name in ("e.dcm", "e.nii.gz", "e.npy", "e.tif"):
        (tmp_path / name).write_bytes(b"")
        assert refused(tmp_path / name).reason == "empty (0 bytes)"
