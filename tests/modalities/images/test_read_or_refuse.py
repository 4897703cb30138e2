"""What files found in the wild hold (scanners, microscopes, satellites): every value as the file means it, or a reason
why not."""

from __future__ import annotations

import io
import itertools
import re
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from picture_files import dicom_slice, geotiff, imagej, nifti_volume, ramp
from unmask.modalities.images.formats.picture import Ambiguous, Broken, Choice
from unmask.modalities.images.reading.decode import pictures, survey

tifffile = pytest.importorskip("tifffile")


def read(path, **choice):
    chosen = Choice(**choice)
    headers, found = survey(str(path), chosen), pictures(str(path), chosen)
    assert isinstance(headers, list), headers
    assert isinstance(found, list), found
    for h, p in zip(headers, found, strict=True):
        assert (h.height, h.width, h.channels, h.depth) == (*p.pixels.shape, str(p.pixels.dtype))
    return headers, found


def refused(path, **choice):
    found = survey(str(path), Choice(**choice))
    found = pictures(str(path), Choice(**choice)) if isinstance(found, list) else found
    assert isinstance(found, Broken | Ambiguous)
    return found.reason if isinstance(found, Broken) else found.what


# DICOM


def change(path, **elements):
    """Set elements of a DICOM file."""
    import pydicom

    data = pydicom.dcmread(path)
    for name, value in elements.items():
        setattr(data, name, value)
    data.save_as(path)


def sequence(**elements):
    from pydicom.dataset import Dataset
    from pydicom.sequence import Sequence

    item = Dataset()
    for name, value in elements.items():
        setattr(item, name, value)
    return Sequence([item])


@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2.1", "1.2.840.10008.1.2.4.50"])
@pytest.mark.parametrize("claimed", [2**31 - 1, 10**6, 3, -5])
def test_a_dicom_that_claims_more_frames_than_it_holds_is_refused_at_once(tmp_path, syntax, claimed):
    pytest.importorskip("pydicom")
    dicom_slice(tmp_path / "a.dcm", ramp(2, 16, 20, high=3000, dtype="uint16"), syntax=syntax)
    change(tmp_path / "a.dcm", NumberOfFrames=claimed)
    if claimed == 3 and syntax.endswith("50"):
        return  # compressed frames may be as small
    tracemalloc.start()
    try:
        said = refused(tmp_path / "a.dcm")
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert re.search(r"frames of 16 x 20 in [\d,]+ bytes|nothing installed decodes|needs a decoder", said), said


def test_frames_of_an_enhanced_dicom_are_rescaled_as_its_groups_say(tmp_path):
    pytest.importorskip("pydicom")
    from pydicom.sequence import Sequence

    stored = ramp(2, 16, 20, high=3000, dtype="uint16")
    dicom_slice(tmp_path / "a.dcm", stored)
    shared = sequence(PixelValueTransformationSequence=sequence(RescaleSlope=2, RescaleIntercept=-1024))
    change(tmp_path / "a.dcm", RescaleSlope=None, RescaleIntercept=None, SharedFunctionalGroupsSequence=shared)
    headers, found = read(tmp_path / "a.dcm")
    assert headers[0].depth == "float32"
    for k in range(2):
        np.testing.assert_array_equal(found[k].pixels[..., 0], stored[k] * 2.0 - 1024)
    each = Sequence(
        [sequence(PixelValueTransformationSequence=sequence(RescaleSlope=s, RescaleIntercept=0))[0] for s in (1, 3)]
    )
    change(tmp_path / "a.dcm", SharedFunctionalGroupsSequence=None, PerFrameFunctionalGroupsSequence=each)
    headers, found = read(tmp_path / "a.dcm")
    np.testing.assert_array_equal(found[0].pixels[..., 0], stored[0])
    np.testing.assert_array_equal(found[1].pixels[..., 0], stored[1] * 3.0)
    assert "by frame" in " ".join(headers[0].notes)
    _, (one,) = read(tmp_path / "a.dcm", planes=1)
    np.testing.assert_array_equal(one.pixels, found[1].pixels)


def test_doses_and_modality_tables_are_applied(tmp_path):
    pytest.importorskip("pydicom")
    stored = ramp(16, 20, high=255, dtype="uint16")
    dicom_slice(tmp_path / "dose.dcm", stored)
    change(tmp_path / "dose.dcm", Modality="RTDOSE", DoseGridScaling=0.001, DoseUnits="GY", RescaleSlope=None)
    headers, (found,) = read(tmp_path / "dose.dcm")
    np.testing.assert_allclose(found.pixels[..., 0], stored * 0.001, rtol=1e-6)
    assert "GY" in " ".join(headers[0].notes)

    table = (np.arange(256)[::-1] * 100).astype(np.uint16)
    lut = sequence(LUTDescriptor=[256, 0, 16], ModalityLUTType="OD", LUTData=table.tobytes())
    dicom_slice(tmp_path / "lut.dcm", stored)
    change(tmp_path / "lut.dcm", ModalityLUTSequence=lut, RescaleSlope=None, RescaleIntercept=None)
    headers, (found,) = read(tmp_path / "lut.dcm")
    np.testing.assert_array_equal(found.pixels[..., 0], table[stored])
    assert "table" in " ".join(headers[0].notes)


def test_float_pixels_of_a_dicom_keep_their_fractions(tmp_path):
    pytest.importorskip("pydicom")
    import pydicom

    values = ramp(16, 20, low=-1, high=1, dtype="float32")
    dicom_slice(tmp_path / "f.dcm", ramp(16, 20, dtype="uint16"))
    data = pydicom.dcmread(tmp_path / "f.dcm")
    del data.PixelData, data.BitsStored, data.HighBit, data.PixelRepresentation
    data.BitsAllocated, data.FloatPixelData = 32, values.tobytes()
    data.save_as(tmp_path / "f.dcm")
    _, (found,) = read(tmp_path / "f.dcm")
    np.testing.assert_array_equal(found.pixels[..., 0], values)


def test_colours_of_a_dicom_beyond_16_bits_are_refused_and_its_nodata_is_missing(tmp_path):
    pytest.importorskip("pydicom")
    rgb = np.stack([ramp(16, 20, seed=k) for k in range(3)], -1)
    for name, wide in (("a", rgb), ("b", rgb.astype(np.uint32) << 20)):
        dicom_slice(tmp_path / f"{name}.dcm", ramp(16, 20, dtype="uint16"))
        bits = wide.dtype.itemsize * 8
        change(
            tmp_path / f"{name}.dcm",
            SamplesPerPixel=3,
            PhotometricInterpretation="RGB",
            PlanarConfiguration=0,
            BitsAllocated=bits,
            BitsStored=bits,
            HighBit=bits - 1,
            PixelData=wide.tobytes(),
            RescaleSlope=None,
            RescaleIntercept=None,
        )
    _, (found,) = read(tmp_path / "a.dcm", nodata=rgb.min())
    assert np.array_equal(found.missing, (rgb == rgb.min()).any(-1))
    assert "32 bits" in refused(tmp_path / "b.dcm")


def test_a_palette_in_a_big_endian_dicom_of_several_frames(tmp_path):
    pytest.importorskip("pydicom")
    import pydicom

    stored = ramp(2, 16, 20)
    table = (np.arange(256) << 8).astype(">u2")
    dicom_slice(tmp_path / "p.dcm", stored.astype("uint16"))
    data = pydicom.dcmread(tmp_path / "p.dcm")
    data.PhotometricInterpretation, data.BitsAllocated, data.BitsStored, data.HighBit = "PALETTE COLOR", 8, 8, 7
    for name in ("Red", "Green", "Blue"):
        setattr(data, f"{name}PaletteColorLookupTableDescriptor", [256, 0, 16])
        setattr(data, f"{name}PaletteColorLookupTableData", table.tobytes())
    data.PixelData = stored.tobytes()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRBigEndian
    data["PixelData"].VR = "OB"
    pydicom.dcmwrite(tmp_path / "p.dcm", data, little_endian=False, implicit_vr=False, force_encoding=True)
    _, found = read(tmp_path / "p.dcm")
    np.testing.assert_array_equal([p.pixels for p in found], np.repeat(stored[..., None], 3, -1))


@pytest.mark.parametrize(
    ("syntax", "codec", "options"),
    [
        ("1.2.840.10008.1.2.4.80", "jpegls_encode", {}),
        ("1.2.840.10008.1.2.4.70", "ljpeg_encode", {"bitspersample": 16}),
    ],
)
def test_lossless_jpeg_and_jpeg_ls_are_decoded_by_imagecodecs(tmp_path, syntax, codec, options):
    pytest.importorskip("pydicom")
    codecs = pytest.importorskip("imagecodecs")
    from pydicom.encaps import encapsulate

    stored = ramp(16, 20, high=4000, dtype="uint16")
    dicom_slice(tmp_path / "j.dcm", stored, intercept=-1024, bits=16, syntax=syntax)
    change(tmp_path / "j.dcm", PixelData=encapsulate([getattr(codecs, codec)(stored, **options)]))
    _, (found,) = read(tmp_path / "j.dcm")
    np.testing.assert_array_equal(found.pixels[..., 0], stored.astype(float) - 1024)


@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
def test_a_dicom_of_one_bit_is_black_and_white(tmp_path, kind):
    """As segmentations are stored; 0 and 1 of 255 are all but black."""
    pytest.importorskip("pydicom")
    marked = ramp(16, 24) > 100
    dicom_slice(tmp_path / "s.dcm", ramp(16, 24, dtype="uint16"))
    packed = np.packbits(marked.ravel(), bitorder="little").tobytes()
    about = {"BitsAllocated": 1, "BitsStored": 1, "HighBit": 0, "PhotometricInterpretation": kind}
    change(tmp_path / "s.dcm", PixelData=packed, RescaleSlope=None, RescaleIntercept=None, **about)
    headers, (found,) = read(tmp_path / "s.dcm")
    white = marked if kind == "MONOCHROME2" else ~marked
    np.testing.assert_array_equal(found.pixels[..., 0], np.where(white, 255, 0))
    assert "1 bit spread" in " ".join(headers[0].notes)


def test_a_dicom_without_its_mark_says_so(tmp_path):
    pytest.importorskip("pydicom")
    dicom_slice(tmp_path / "a.dcm", ramp(16, 20, dtype="uint16"))
    (tmp_path / "b.dcm").write_bytes((tmp_path / "a.dcm").read_bytes()[132:])
    assert "DICM" in refused(tmp_path / "b.dcm")


# NIfTI


def test_a_volume_of_bytes_with_a_scale_is_its_scaled_values(tmp_path):
    pytest.importorskip("nibabel")
    volume = ramp(3, 6, 5).transpose(2, 1, 0).copy()
    nifti_volume(tmp_path / "v.nii", volume, slope=10, intercept=-100)
    headers, found = read(tmp_path / "v.nii")
    assert headers[0].depth == "float32"
    assert "stored values x 10 + -100" in " ".join(headers[0].notes)
    np.testing.assert_array_equal(found[1].pixels[..., 0], volume[:, ::-1, 1].T * 10.0 - 100)


def test_a_survey_of_a_turned_volume_does_not_read_it(tmp_path, monkeypatch):
    nibabel = pytest.importorskip("nibabel")
    nifti_volume(tmp_path / "v.nii.gz", ramp(3, 6, 5).transpose(2, 1, 0).copy(), (-1, -1, 1))
    whole = pictures(str(tmp_path / "v.nii.gz"))
    monkeypatch.setattr(nibabel.arrayproxy.ArrayProxy, "__array__", None)
    monkeypatch.setattr(nibabel.arrayproxy.ArrayProxy, "_get_unscaled", None)
    headers = survey(str(tmp_path / "v.nii.gz"))
    assert [(h.height, h.width) for h in headers] == [p.pixels.shape[:2] for p in whole]


def test_what_a_volume_leaves_open_is_said(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Nifti1Image(np.zeros((4, 5, 6), np.uint8), None)
    image.header.set_zooms((1, 2, 3))
    nibabel.save(image, tmp_path / "v.nii")
    told = " ".join(survey(str(tmp_path / "v.nii"))[0].notes)
    assert "axial slices, the patient's left on the left" in told
    assert "does not say how it lies" in told
    assert "pixels of 1 x 2" in told


# TIFF


def test_planes_of_an_image_depth_are_all_read(tmp_path):
    volume = ramp(5, 16, 32)
    tifffile.imwrite(tmp_path / "d.tif", volume, volumetric=True, tile=(5, 16, 16), metadata=None)
    _, found = read(tmp_path / "d.tif")
    np.testing.assert_array_equal(np.stack([p.pixels[..., 0] for p in found]), volume)


def test_black_on_white_pages_are_0_and_255(tmp_path):
    black = ramp(2, 16, 24) > 100
    tifffile.imwrite(tmp_path / "b.tif", black, photometric="miniswhite", metadata=None)
    _, found = read(tmp_path / "b.tif", planes="all")
    np.testing.assert_array_equal(np.stack([p.pixels[..., 0] for p in found]), np.where(black, 0, 255))
    tifffile.imwrite(
        tmp_path / "s.tif", ramp(2, 16, 24, low=-9, dtype="int16"), photometric="miniswhite", metadata=None
    )
    headers, _ = read(tmp_path / "s.tif", planes="all")
    assert "left as stored" in " ".join(headers[0].notes)


@pytest.mark.parametrize("pages", [1, 2])
@pytest.mark.parametrize("turned", range(1, 9))
def test_turned_tiffs_are_set_upright(tmp_path, turned, pages):
    upright = ramp(12, 20, seed=3)
    back = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.T,
        6: lambda a: a.T[::-1],
        7: lambda a: a[::-1, ::-1].T,
        8: lambda a: a.T[:, ::-1],
    }[turned]
    stored = np.ascontiguousarray(back(upright))
    with tifffile.TiffWriter(tmp_path / "o.tif") as file:
        for _ in range(pages):
            file.write(stored, metadata=None, extratags=[(274, "H", 1, turned, True)], contiguous=False)
    _, found = read(tmp_path / "o.tif", planes="all")
    np.testing.assert_array_equal(found[-1].pixels[..., 0], upright)


def test_a_mask_within_a_geotiff_marks_missing_pixels(tmp_path):
    pixels, inside = np.stack([ramp(16, 32, seed=k) for k in range(3)], -1), ramp(16, 32, seed=5) > 90
    with tifffile.TiffWriter(tmp_path / "m.tif") as file:
        file.write(pixels, photometric="rgb", metadata=None)
        file.write(inside, photometric="mask", subfiletype=4, metadata=None)
    headers, (found,) = read(tmp_path / "m.tif")
    np.testing.assert_array_equal(found.pixels, pixels)
    np.testing.assert_array_equal(found.missing, ~inside)
    assert "mask" in " ".join(headers[0].notes)


@pytest.mark.parametrize("extra", ["assocalpha", "unassalpha"])
def test_transparency_is_laid_on_white_as_it_is_stored(tmp_path, extra):
    share = ramp(16, 20, low=0, high=65535, dtype="uint16", seed=9)
    colour = np.stack([ramp(16, 20, high=65535, dtype="uint16", seed=k) for k in range(3)], -1).astype(float)
    part = share[..., None] / 65535
    stored = np.round(colour * part if extra == "assocalpha" else colour).astype(np.uint16)
    samples = np.concatenate([stored, share[..., None]], -1)
    tifffile.imwrite(tmp_path / "a.tif", samples, photometric="rgb", extrasamples=[extra], metadata=None)
    _, (found,) = read(tmp_path / "a.tif")
    np.testing.assert_allclose(found.pixels, colour * part + 65535 * (1 - part), atol=2)


def test_alpha_is_the_sample_marked_so(tmp_path):
    samples = np.stack([ramp(16, 20, low=1, seed=k) for k in range(5)], -1)
    samples[:4, :, 3] = 0
    tifffile.imwrite(
        tmp_path / "a.tif", samples, photometric="rgb", extrasamples=["unassalpha", "unspecified"], metadata=None
    )
    headers, (found,) = read(tmp_path / "a.tif", alpha="missing")
    np.testing.assert_array_equal(found.pixels, samples[..., [0, 1, 2, 4]])
    np.testing.assert_array_equal(found.missing, samples[..., 3] == 0)
    assert not headers[0].colour


def test_palettes_of_pages(tmp_path):
    index = ramp(16, 20, high=1) > 0
    table = np.zeros((3, 256), np.uint16)
    table[0, 1] = 65535
    with tifffile.TiffWriter(tmp_path / "same.tif") as file:
        for _ in range(2):
            file.write(index.astype("uint8"), photometric="palette", colormap=table, metadata=None, contiguous=False)
    _, found = read(tmp_path / "same.tif", planes="all")
    np.testing.assert_array_equal(found[1].pixels[..., 0], np.where(index, 255, 0))
    with tifffile.TiffWriter(tmp_path / "other.tif") as file:
        for colours in (table, table[::-1].copy()):
            file.write(index.astype("uint8"), photometric="palette", colormap=colours, metadata=None, contiguous=False)
    assert "palettes" in refused(tmp_path / "other.tif", planes="all")


def test_four_bits_are_spread_in_pages_as_in_single_pictures(tmp_path):
    pytest.importorskip("imagecodecs", minversion="2026.3.6")  # writes them
    values = ramp(2, 16, 20, high=15.9)
    tifffile.imwrite(tmp_path / "f.tif", values, bitspersample=4, metadata=None)
    headers, found = read(tmp_path / "f.tif", planes="all")
    np.testing.assert_array_equal(np.stack([p.pixels[..., 0] for p in found]), values * 17)
    tifffile.imwrite(tmp_path / "g.tif", values[0], bitspersample=4, metadata=None)
    single, (one,) = read(tmp_path / "g.tif")
    np.testing.assert_array_equal(one.pixels[..., 0], values[0] * 17)
    assert "4 bits" in " ".join(headers[0].notes)
    assert "4 bits" in " ".join(single[0].notes)


def test_colours_that_are_not_rgb_are_said_or_refused(tmp_path):
    inks = np.stack([ramp(16, 20, high=60000, dtype="uint16", seed=k) for k in range(4)], -1)
    tifffile.imwrite(tmp_path / "cmyk.tif", inks, photometric="separated", metadata=None)
    headers, (found,) = read(tmp_path / "cmyk.tif")
    np.testing.assert_array_equal(found.pixels, inks)
    assert "inks" in " ".join(headers[0].notes)
    tifffile.imwrite(tmp_path / "lab.tif", inks[..., :3], photometric="cielab", metadata=None)
    assert "CIELAB" in refused(tmp_path / "lab.tif")
    tifffile.imwrite(tmp_path / "raw.tif", inks[..., 0], photometric="cfa", metadata=None)
    assert "CFA" in refused(tmp_path / "raw.tif")


def ome_set(folder, planes):
    text = "".join(
        f'<TiffData FirstZ="{z}" FirstC="0" FirstT="0" IFD="0" PlaneCount="1"><UUID FileName="z{z}.ome.tif">'
        f"urn:uuid:0000000{z}-0000-0000-0000-000000000000</UUID></TiffData>"
        for z in range(len(planes))
    )
    for z, plane in enumerate(planes):
        about = (
            '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" '
            f'UUID="urn:uuid:0000000{z}-0000-0000-0000-000000000000"><Image ID="Image:0"><Pixels ID="Pixels:0" '
            f'DimensionOrder="XYZCT" Type="uint16" SizeX="{plane.shape[1]}" SizeY="{plane.shape[0]}" '
            f'SizeZ="{len(planes)}" SizeC="1" SizeT="1"><Channel ID="Channel:0:0" '
            f'SamplesPerPixel="1"/>{text}</Pixels></Image></OME>'
        )
        tifffile.imwrite(folder / f"z{z}.ome.tif", plane, description=about, metadata=None, photometric="minisblack")


def test_a_set_of_ome_files_is_read_once(tmp_path):
    planes = ramp(3, 16, 20, high=900, dtype="uint16")
    ome_set(tmp_path, planes)
    _, found = read(tmp_path / "z0.ome.tif")
    np.testing.assert_array_equal(np.stack([p.pixels[..., 0] for p in found]), planes)
    assert "read with z0.ome.tif" in refused(tmp_path / "z1.ome.tif")
    (tmp_path / "z2.ome.tif").unlink()
    assert "not there" in refused(tmp_path / "z0.ome.tif")


def test_imagej_calibrations_are_applied(tmp_path):
    stored = ramp(2, 16, 20, high=60000, dtype="uint16")
    imagej(tmp_path / "i.tif", stored, "ZYX")
    tifffile.imwrite(
        tmp_path / "c.tif",
        stored,
        imagej=True,
        metadata={"axes": "ZYX", "cf": 0, "c0": -32768.0, "c1": 1.0, "vunit": "HU"},
    )
    headers, found = read(tmp_path / "c.tif")
    np.testing.assert_array_equal(found[1].pixels[..., 0], stored[1].astype(float) - 32768)
    assert "stored values x 1 + -32768" in " ".join(headers[0].notes)
    assert read(tmp_path / "i.tif")[0][0].depth == "uint16"


# Everyday formats


def test_deep_pictures_keep_their_depth(tmp_path):
    codecs = pytest.importorskip("imagecodecs")
    grey = ramp(16, 20, high=4000, dtype="uint16")
    rgb = np.stack([ramp(16, 20, high=4000, dtype="uint16", seed=k) for k in range(3)], -1)
    clear = np.concatenate([rgb, np.full((16, 20, 1), 65535, np.uint16)], -1)
    for name, content, expected in (
        ("rgb.png", codecs.png_encode(rgb), rgb),
        ("rgba.png", codecs.png_encode(clear), rgb),
        ("a12.jp2", codecs.jpeg2k_encode(grey, level=0, bitspersample=12), grey[..., None]),
        ("rgb.jp2", codecs.jpeg2k_encode(rgb, level=0), rgb),
        ("grey.png", codecs.png_encode(grey), grey[..., None]),
    ):
        (tmp_path / name).write_bytes(content)
        headers, (found,) = read(tmp_path / name)
        assert headers[0].depth == "uint16", name
        np.testing.assert_array_equal(found.pixels, expected, err_msg=name)
    (tmp_path / "signed.jp2").write_bytes(codecs.jpeg2k_encode(grey.astype("int16") - 2000, level=0))
    _, (found,) = read(tmp_path / "signed.jp2")
    np.testing.assert_array_equal(found.pixels[..., 0], grey.astype(float) - 2000)


def test_what_pillow_would_cut_or_stretch_is_said_or_refused(tmp_path):
    grey = ramp(16, 20, high=4000, dtype="uint16")
    (tmp_path / "a.ppm").write_bytes(b"P6 20 16 65535\n" + np.repeat(grey[..., None], 3, -1).astype(">u2").tobytes())
    assert "16 bits" in refused(tmp_path / "a.ppm")
    (tmp_path / "a.pgm").write_bytes(b"P5 20 16 4095\n" + grey.astype(">u2").tobytes())
    headers, (found,) = read(tmp_path / "a.pgm")
    np.testing.assert_allclose(found.pixels[..., 0], grey / 4095 * 65535, atol=1)
    assert "4095" in " ".join(headers[0].notes)


def test_fits_files_are_refused(tmp_path):
    cards = [
        "SIMPLE  =                    T",
        "BITPIX  =                   16",
        "NAXIS   =                    2",
        "NAXIS1  =                   20",
        "NAXIS2  =                   16",
        "END",
    ]
    head = "".join(c.ljust(80) for c in cards).ljust(2880).encode()
    (tmp_path / "a.fits").write_bytes(
        head + (ramp(16, 20, low=-900, dtype="int16")).astype(">i2").tobytes().ljust(2880)
    )
    assert "FITS" in refused(tmp_path / "a.fits")


def test_geotiffs_without_marks_stay_as_they_are(tmp_path):
    bands = np.stack([ramp(16, 20, seed=k) for k in range(4)], -1)
    geotiff(tmp_path / "g.tif", bands)
    headers, (found,) = read(tmp_path / "g.tif")
    np.testing.assert_array_equal(found.pixels, bands)
    assert found.missing is None
    assert headers[0].notes == ()


@pytest.mark.parametrize("kind", ["uint8", "uint16", "int16", "float32"])
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("compression", [None, "zlib", "lzw"])
def test_tiffs_of_every_layout_are_read_bit_for_bit(tmp_path, kind, order, compression):
    made = np.random.default_rng(0).normal(0, 100, (32, 48, 3))
    made = (np.abs(made) if kind[0] == "u" else made).clip(-300, 255).astype(kind)
    for channels, planar, tile in itertools.product((1, 3), ("contig", "separate"), (None, (16, 16))):
        stored = made[..., :channels]
        options = {"photometric": "rgb" if channels == 3 and kind[0] == "u" else "minisblack", "metadata": None}
        if channels == 3:
            options["planarconfig"] = planar
        written = stored[..., 0] if channels == 1 else np.moveaxis(stored, -1, 0) if planar == "separate" else stored
        path = tmp_path / "a.tif"
        tifffile.imwrite(path, written, byteorder=order, compression=compression, tile=tile, **options)
        _, found = read(path)
        np.testing.assert_array_equal(found[0].pixels, stored, err_msg=f"{channels} {planar} {tile}")


def chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_the_number_that_a_grey_png_calls_transparent_lies_on_white(tmp_path, bits):
    """Pillow compares the number as stored with pixels that it spread over 0 to 255."""
    stored = ramp(16, 16, high=2**bits - 1, dtype="uint16")
    clear = int(stored[3, 5])
    packed = [np.unpackbits(row.astype(">u2").view(np.uint8)).reshape(-1, 16)[:, 16 - bits :] for row in stored]
    rows = b"".join(b"\0" + np.packbits(row).tobytes() for row in packed)
    head = struct.pack(">IIBBBBB", 16, 16, bits, 0, 0, 0, 0)
    parts = ((b"IHDR", head), (b"tRNS", struct.pack(">H", clear)), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts))
    full = 65535 if bits == 16 else 255
    headers, (found,) = read(tmp_path / "a.png")
    expected = np.where(stored == clear, full, stored.astype(int) * (full // (2**bits - 1)))
    np.testing.assert_array_equal(found.pixels[..., 0], expected)
    assert "an alpha channel: laid on white where it is transparent" in headers[0].notes


def test_a_jpeg_whose_second_frame_is_missing_is_its_first(tmp_path):
    first, second = (Image.fromarray(np.stack([ramp(64, 64, seed=k + j) for k in range(3)], -1)) for j in (0, 9))
    buffer = io.BytesIO()
    first.save(buffer, "MPO", save_all=True, append_images=[second])
    whole = buffer.getvalue()
    (tmp_path / "whole.jpg").write_bytes(whole)
    (tmp_path / "cut.jpg").write_bytes(whole[: whole.find(b"\xff\xd8", 100)])
    _, (expected,) = read(tmp_path / "whole.jpg")
    headers, (found,) = read(tmp_path / "cut.jpg")
    np.testing.assert_array_equal(found.pixels, expected.pixels)
    assert "the first of 2 frames" in headers[0].notes[0]
    assert "frame" in refused(tmp_path / "cut.jpg", planes="all")


def test_a_bmp_of_5_6_5_bits_is_read(tmp_path):
    values = np.random.default_rng(0).integers(0, 2**16, (8, 8)).astype("<u2")
    head = struct.pack("<IiiHHIIiiII", 40, 8, 8, 1, 16, 3, 128, 0, 0, 0, 0) + struct.pack("<III", 0xF800, 0x7E0, 0x1F)
    body = values[::-1].tobytes()
    (tmp_path / "a.bmp").write_bytes(b"BM" + struct.pack("<IHHI", 66 + len(body), 0, 0, 66) + head + body)
    _, (found,) = read(tmp_path / "a.bmp")
    parts = [((values >> at) & (2**bits - 1)) * 255 // (2**bits - 1) for at, bits in ((11, 5), (5, 6), (0, 5))]
    np.testing.assert_array_equal(found.pixels, np.stack(parts, -1))


def test_large_pictures_are_compared_with_memory_not_with_a_fixed_number(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    Image.fromarray(ramp(16, 20)).save(tmp_path / "a.png")
    _, (found,) = read(tmp_path / "a.png")
    np.testing.assert_array_equal(found.pixels[..., 0], ramp(16, 20))
    assert Image.MAX_IMAGE_PIXELS == 100


@pytest.mark.parametrize("planar", [1, 2])
def test_a_tiff_of_4_bits_in_planes_of_their_own_is_read(tmp_path, planar):
    """As GDAL writes one band with INTERLEAVE=BAND and NBITS=4; Pillow calls it truncated."""
    stored = ramp(16, 32, high=15)
    body = (stored[:, ::2] << 4 | stored[:, 1::2]).astype(np.uint8).tobytes()
    tags = {256: 32, 257: 16, 258: 4, 259: 1, 262: 1, 273: 8, 277: 1, 278: 16, 279: len(body), 284: planar}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    head = struct.pack("<2sHI", b"II", 42, 8 + len(body))
    (tmp_path / "a.tif").write_bytes(head + body + struct.pack("<H", len(tags)) + entries + bytes(4))
    _, (found,) = read(tmp_path / "a.tif")
    np.testing.assert_array_equal(found.pixels[..., 0], stored * 17)


def test_uncompressed_ycbcr_of_a_tiff_is_refused(tmp_path):
    """Its coefficients are the file's own (here BT.709); Pillow takes JPEG's whatever they are."""
    stored = np.stack([ramp(16, 20, seed=k) for k in range(3)], -1)
    weights = [(529, "2I", 3, (2126, 10000, 7152, 10000, 722, 10000), True), (530, "H", 2, (1, 1), True)]
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="ycbcr", extratags=weights, metadata=None)
    assert "YCBCR" in refused(tmp_path / "a.tif")
