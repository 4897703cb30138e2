"""NIfTI (nibabel): volumes cut into slices, upright by the file's own affine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unmask.modalities.images.formats.picture import (
    DEFLATE,
    Choice,
    Header,
    Opened,
    Picture,
    Source,
    check_claim,
    chosen_planes,
    depth_of,
    lattice,
    not_measured,
    numbers,
    optional,
    reduce_planes,
)

ENDINGS = (".nii", ".nii.gz")
_NORMAL = {"sagittal": 0, "coronal": 1, "axial": 2}
"""Axis of a volume turned to right, front, top (RAS+) that a slice stands across."""


def is_nifti(name: str) -> bool:
    """Whether a file is named as NIfTI is."""
    return name.lower().endswith(ENDINGS)


def read(source: Source, choice: Choice) -> Opened:
    """The slices of a volume, from left to right, back to front or bottom to top; of several volumes one after the
    other.
    """
    nibabel = optional("nibabel", "a NIfTI file")
    if isinstance(source, bytes):
        raise ValueError("NIfTI within a table")
    image: Any = nibabel.load(source)
    shape = tuple(n for i, n in enumerate(image.shape) if i < 3 or n > 1)
    if len(shape) not in (3, 4) or 0 in shape or not hasattr(image, "affine"):
        raise ValueError(f"a NIfTI of shape {image.shape}, not a volume or several")
    values, stored = float(np.prod(shape, dtype=float)), image.get_data_dtype().itemsize
    # Beside the stored numbers stand those in float32, turned, for as long as a slice is cut.
    what, packing = " x ".join(map(str, shape)) + " values", DEFLATE if str(source).lower().endswith(".gz") else 1.0
    check_claim(source, what, values * max(stored, 4), stored=values * stored, packing=packing)
    turn = nibabel.io_orientation(image.affine)
    if np.isnan(turn).any():
        raise ValueError("a NIfTI whose affine has no size along one of its axes")
    stored_axis = np.argsort(turn[:, 0])  # the stored axis that runs to the right, to the front, to the top
    size = [shape[i] for i in stored_axis]
    normal = _NORMAL[choice.slice]
    across, up = (size[i] for i in range(3) if i != normal)
    volumes = shape[3] if len(shape) == 4 else 1
    slope, intercept = float(image.dataobj.slope), float(image.dataobj.inter)
    scaled = (slope, intercept) != (1.0, 0.0)
    kind = np.dtype(np.float32) if scaled else image.get_data_dtype()
    depth = depth_of(kind)
    side = "" if choice.slice == "sagittal" else ", the patient's left on the left (of DICOM on the right)"
    notes = [f"{choice.slice} slices{side}", *_lying(nibabel, image)]
    if scaled:
        notes.append(f"stored values x {slope:g} + {intercept:g}")
    elif str(kind.newbyteorder("=")) != depth:
        notes.append(f"{kind} taken as {depth}")
    width, height = (float(image.header.get_zooms()[stored_axis[i]]) for i in range(3) if i != normal)
    notes += lattice(height, width)
    if choice.nodata is not None:
        notes.append(f"nodata={choice.nodata:g} is missing")
    planes: Any = "all" if choice.planes is None else choice.planes
    if planes == "channels" and volumes == 1:
        raise ValueError("planes=channels needs several volumes in a NIfTI file")
    folded, stacked = planes in ("max", "mean"), planes == "channels"
    kept = list(range(size[normal])) if stacked else chosen_planes(planes, size[normal])
    if not stacked:
        notes.append(f"planes={planes} of {size[normal]} slices")
    places = [(v, k) for v in range(1 if stacked else volumes) for k in ([-1] if folded else kept)]
    letter = "xyz"[normal]
    headers = []
    for v, k in places:
        part = [f"volume={v}"] if volumes > 1 and not stacked else []
        part += [f"{letter}={k}"] if not folded and len(kept) > 1 else []
        headers.append(
            Header(
                height=up,
                width=across,
                channels=volumes if stacked else 1,
                depth=depth,
                part=",".join(part),
                notes=tuple(notes),
                colour=not stacked,
                group=str(Path(source).resolve()),
                axes=f"{letter}={size[normal]}" + (f" volumes={volumes}" if volumes > 1 else ""),
            )
        )

    def decode() -> list[Picture]:
        array = image.get_fdata(dtype=np.float32, caching="unchanged") if scaled else np.asarray(image.dataobj)
        whole, _ = numbers(nibabel.apply_orientation(array.reshape(*shape[:3], volumes), turn))

        def one(volume: int | slice, k: int) -> Picture:
            flat = np.take(whole, k, normal)[..., volume]
            # Rows from the top (or front) down, columns from the patient's left to their right.
            pixels = np.moveaxis(flat if flat.ndim == 3 else flat[..., None], 0, 1)[::-1]
            pixels = np.ascontiguousarray(pixels)
            return Picture(pixels=pixels, missing=not_measured(pixels, choice.nodata))

        found = []
        for v, k in places:
            if folded:
                found.append(reduce_planes([one(v, j) for j in kept], str(planes)))
            else:
                found.append(one(slice(None) if stacked else v, k))
        return found

    return Opened(headers=headers, decode=decode)


def _lying(nibabel: Any, image: Any) -> list[str]:
    """How the volume lies, and what is done about it."""
    was = "".join(nibabel.aff2axcodes(image.affine))
    if not int(image.header["qform_code"]) and not int(image.header["sform_code"]):
        return [f"the file does not say how it lies: taken as {was}, turned to RAS"]
    notes = [] if was == "RAS" else [f"turned from {was} to RAS"]
    straight = np.sort(np.abs(image.affine[:3, :3]), axis=0)
    if not np.allclose(straight[:2], 0, atol=1e-3):
        notes.append("oblique: slices follow the volume's own axes")
    return notes
