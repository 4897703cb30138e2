"""Small files of every kind that microscopists, radiologists and satellite people have, made for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def ramp(*shape: int, low: float = 0, high: float = 255, dtype: str = "uint8", seed: int = 0) -> np.ndarray:
    """Smooth pictures from low to high that differ from plane to plane."""
    y, x = np.linspace(0, 3, shape[-2]), np.linspace(0, 3, shape[-1])
    planes = int(np.prod(shape[:-2], initial=1))
    shift = np.random.default_rng(seed).random((planes, 2)) * 6
    waves = [np.sin(y[:, None] + a) * np.cos(x[None] + b) for a, b in shift]
    stack = np.stack(waves).reshape(shape)
    return (low + (stack + 1) / 2 * (high - low)).astype(dtype)


def ome(path: Path, array: np.ndarray, axes: str) -> np.ndarray:
    import tifffile

    tifffile.imwrite(path, array, ome=True, photometric="minisblack", metadata={"axes": axes})
    return array


def imagej(path: Path, array: np.ndarray, axes: str) -> np.ndarray:
    import tifffile

    tifffile.imwrite(path, array, imagej=True, metadata={"axes": axes})
    return array


GEO = [
    (33550, "d", 3, (10.0, 10.0, 0.0), True),
    (33922, "d", 6, (0, 0, 0, 5e5, 6e6, 0.0), True),
    (34735, "H", 8, (1, 1, 0, 1, 1024, 0, 1, 1), True),
]


def geotiff(path: Path, bands: np.ndarray, *, nodata: str | None = None, alpha: bool = False, **options) -> np.ndarray:
    """(height, width, bands) as GDAL writes it."""
    import tifffile

    extra = list(GEO) + ([(42113, "s", 0, nodata, True)] if nodata is not None else [])
    rgb = bands.shape[-1] in (3, 4) and bands.dtype == np.uint8
    samples = ["unassalpha" if alpha else "unspecified"] if rgb and bands.shape[-1] == 4 else None
    tifffile.imwrite(
        path,
        bands,
        photometric="rgb" if rgb else "minisblack",
        planarconfig="contig",
        extratags=extra,
        extrasamples=samples,
        metadata=None,
        **options,
    )
    return bands


def dicom_slice(
    path: Path,
    pixels: np.ndarray,
    *,
    place: float = 0.0,
    instance: int = 1,
    slope: float = 1,
    intercept: float = 0,
    kind: str = "MONOCHROME2",
    series: str = "1.2.3",
    patient: str = "P1",
    bits: int = 12,
    padding: int | None = None,
    signed: bool = False,
    syntax: str = "1.2.840.10008.1.2.1",
) -> None:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import UID

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = UID("1.2.840.10008.5.1.4.1.1.2")
    meta.MediaStorageSOPInstanceUID = UID(f"1.2.3.{instance}")
    meta.TransferSyntaxUID = UID(syntax)
    data = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    data.Modality, data.SeriesInstanceUID, data.PatientID, data.InstanceNumber = "CT", series, patient, instance
    data.SOPClassUID, data.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    data.ImagePositionPatient, data.ImageOrientationPatient = [0, 0, place], [1, 0, 0, 0, 1, 0]
    frames = pixels if pixels.ndim == 3 else pixels[None]
    if pixels.ndim == 3:
        data.NumberOfFrames = len(pixels)
    data.Rows, data.Columns = frames.shape[1:]
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, kind
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, 16 if signed else bits, (16 if signed else bits) - 1
    data.PixelRepresentation = int(signed)
    data.RescaleSlope, data.RescaleIntercept = slope, intercept
    if padding is not None:
        data.PixelPaddingValue = padding
    data.PixelData = pixels.astype("<i2" if signed else "<u2").tobytes()
    if UID(syntax).is_compressed:
        from pydicom.encaps import encapsulate

        data.PixelData = encapsulate([b"not decoded here"])
    data.save_as(path, enforce_file_format=True)


def scanned(path: Path, picture: np.ndarray) -> Any:
    """Write a (height, width) uint8 picture with the patient and geometry of pydicom's CT, and give its data set."""
    import pydicom
    from pydicom.data import get_testdata_file

    data = pydicom.dcmread(get_testdata_file("CT_small.dcm"))
    data.Rows, data.Columns = picture.shape
    data.BitsAllocated = data.BitsStored = 8
    data.HighBit, data.PixelRepresentation = 7, 0
    data.RescaleSlope, data.RescaleIntercept = 1, 0
    del data.PixelPaddingValue
    data.PixelData = picture.tobytes()
    data["PixelData"].VR = "OB"
    data.save_as(path)
    return data


def nifti_volume(path: Path, volume: np.ndarray, axes: tuple[int, int, int] = (1, 1, 1), **scaling) -> None:
    """(x, y, z[, volumes]) with an affine whose axes run the ways given (1 or -1)."""
    import nibabel

    image = nibabel.Nifti1Image(volume, np.diag([*axes, 1]).astype(float))
    if scaling:
        image.header.set_slope_inter(scaling["slope"], scaling["intercept"])
    nibabel.save(image, path)
