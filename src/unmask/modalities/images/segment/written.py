"""Masks, or quantities, written as their pictures are: size, format, and what says where the pixels lie."""

from __future__ import annotations

import contextlib
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unmask.errors import UserError, first_of
from unmask.modalities.images.formats.nifti import is_nifti
from unmask.modalities.images.formats.picture import Broken, Choice, Header
from unmask.modalities.images.reading.account import check_ends, picture_ends
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.decode import described, recoloured, survey_all
from unmask.modalities.images.segment.masks import without_ending
from unmask.modalities.images.segment.pairs import choice_of, listed, read_files, tags_of_place
from unmask.modalities.images.segment.quantity import Quantity
from unmask.modalities.images.segment.scenes import whole_pictures
from unmask.modalities.images.segment.tiles import answer_bands
from unmask.modalities.images.segment.windows import mapped, window_on, written_map
from unmask.progress import counted
from unmask.training.precision import computing
from unmask.writing import replace_json, written

_RESOLUTION = (282, 283, 296)
ENDINGS = {".tif": ".tif", ".tiff": ".tif", ".npy": ".npy", ".dcm": ".dcm", ".dicom": ".dcm", ".ima": ".dcm"}
"""Ending of a picture -> that of its mask; .nii stays, all else is .png, or .tif of a quantity, whose floats no PNG
holds."""
LEGEND = "classes.json"


def write_masks(
    model: Any,
    images: Any,
    out: str | Path,
    *,
    probabilities: bool = False,
    reading: dict[str, Any] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[dict[str, Any]]:
    """Write the masks of pictures in files into a folder, a file of pictures at a time, and `classes.json`: which value
    is which class. A row for each file: its 'name', 'file', 'pictures' in it, 'shares' of the pixels by class; of a
    quantity its 'mean' and 'sum'.

    Args:
        probabilities: write `NAME.probabilities.npy` beside each, (classes, height, width) float32; of several slices
            or frames (pictures, classes, height, width).
        say: what is done with lines on what was made of the files, such as transparency laid on white.
    """
    model.check_probabilities(probabilities)
    folder, quantity = Path(out).expanduser(), isinstance(model.legend, Quantity)
    root, names = listed(images)
    places = {name: folder / mask_name(name, quantity) for name in names}
    often = Counter(places.values())
    twice = [name for name in names if often[places[name]] > 1]
    if twice:
        raise UserError(f"{' and '.join(twice[:2])} would have the same mask", hint="Predict them one after the other.")
    if same := [n for n in names if (root / n).resolve() == places[n].resolve()]:
        raise UserError(f"{same[0]}: its mask would replace it", hint="Give another folder for the masks.")
    how, config, depth = reading or {}, model.model.config, model.model.folder.depth
    choice = choice_of(model.model, how)
    names, headers = _readable(root, names, choice, images)
    for line in [*described(headers), *recoloured([h.channels for h in headers], config.channels)]:
        say(line)
    large = {
        name: array for name in names if (array := mapped(root / name, config.channels, depth, choice)) is not None
    }
    _check(model.model, root, [name for name in names if name not in large], how, choice, quantity)
    how = {**how, "rescale": True}  # all together fit
    folder.mkdir(parents=True, exist_ok=True)
    if not quantity:
        legend = {
            name: model.legend.shown(v) if model.legend.kind == "colours" else v
            for name, v in zip(model.legend.names, model.legend.values, strict=True)
        }
        replace_json(folder / LEGEND, legend)
    for name in counted(names, len(names)):
        place = places[name]
        place.parent.mkdir(parents=True, exist_ok=True)
        if name in large:
            row = _by_bands(model, large[name], place, root / name, probabilities)
        else:
            row = _whole(model, read_files(model.model, root, [name], reading=how), place, root / name, probabilities)
        yield {"name": name, "file": str(place)} | row


def _readable(root: Path, names: Sequence[str], choice: Choice, images: Any) -> tuple[list[str], list[Header]]:
    """(the files that can be read, what is in them), looked at before anything is written.

    Raises:
        UserError: of files that were given one by one, or if none can be read.
    """
    surveyed = dict(zip(names, survey_all([str(root / name) for name in names], choice), strict=True))
    broken = {name: found.reason for name, found in surveyed.items() if isinstance(found, Broken)}
    if broken:
        shown = first_of([f"{name}: {reason}" for name, reason in broken.items()], 8, between="; ")
        what = f"{len(broken)} pictures cannot be read"
        if len(broken) == len(names) or not (isinstance(images, str | Path) and Path(images).is_dir()):
            raise UserError(f"{what}: {shown}", hint="Leave them out.")
        warnings.warn(f"{what} and get no mask: {shown}", stacklevel=2)
    headers = [header for found in surveyed.values() if isinstance(found, list) for header in found]
    return [name for name in names if name not in broken], headers


def _check(model: Any, root: Path, names: Sequence[str], how: dict[str, Any], choice: Choice, quantity: bool) -> None:
    """Decode all pictures and refuse those that are of another kind than the model's, naming the files, or whose masks
    cannot be written: no picture of a set stays without its mask for what another one lacks.

    Raises:
        UserError: see `account.check_fit`, which looks at all pictures together.
    """
    wrong: dict[str, UserError] = {}
    ends: dict[str, dict[str, np.ndarray]] = {}
    trained = model.folder.depth, model.folder.range, model.folder.typical
    for name in counted(names, len(names)):
        try:
            if is_nifti(name) and choice.slice != "axial":
                raise UserError(f"slice={choice.slice}", hint="Masks of volumes are written of their axial slices.")
            found = read_files(model, root, [name], reading={**how, "rescale": True})
            assert found.tiles is not None
            count = len(found.tiles.names)
            if count > 1 and mask_name(name, quantity).endswith(".png"):
                raise UserError(f"{count} pictures in one file", hint="Save them as TIFF or one by one: a PNG has one.")
            ends.setdefault(found.depth, {})[name] = picture_ends(found)
        except UserError as error:
            wrong[name] = error
    for depth, own in ends.items() if not how.get("rescale") else ():
        try:
            for line in check_ends(np.concatenate(list(own.values())), depth, *trained):
                warnings.warn(line, stacklevel=3)
        except UserError:
            for name, one in own.items():
                try:
                    check_ends(one, depth, *trained)
                except UserError as error:
                    wrong[name] = error
    if wrong:
        each = (e.what if e.what.startswith(f"{name}: ") else f"{name}: {e.what}" for name, e in wrong.items())
        named = first_of(each, 8, between="\n  ")
        raise UserError(named, hint=next(iter(wrong.values())).hint)


def _whole(model: Any, read: ImageSet, place: Path, picture: Path, probabilities: bool) -> dict[str, Any]:
    """Write the masks of the pictures in a file: what its row says of them."""
    rows = [model.row(whole, probabilities=probabilities) for whole in whole_pictures(read)]
    write_mask(place, picture, [row["mask"] for row in rows], model.legend.palette)
    if probabilities:
        chances = [row["probabilities"] for row in rows]
        with written(probabilities_file(place)) as new, open(new, "wb") as file:
            np.save(file, chances[0] if len(chances) == 1 else np.stack(chances))
    return {"pictures": len(rows)} | _together([(row["mask"].shape[0] * row["mask"].shape[1], row) for row in rows])


def _together(parts: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, Any]:
    """The summary of all pixels, from (how many, summary) of parts."""
    pixels, each = [n for n, _ in parts], [one for _, one in parts]
    if "sum" in each[0]:
        mean = float(np.average([one["mean"] for one in each], weights=pixels))
        return {"mean": mean, "sum": sum(one["sum"] for one in each)}
    shares = np.average([list(one["shares"].values()) for one in each], axis=0, weights=pixels)
    return {"shares": dict(zip(each[0]["shares"], shares.tolist(), strict=True))}


def _by_bands(model: Any, array: np.ndarray, place: Path, picture: Path, probabilities: bool) -> dict[str, Any]:
    """Write the mask of a picture that is mapped, not read: what its row says of it."""
    codec, (height, width), legend = model.net.masked.codec, array.shape[:2], model.legend
    window = window_on(array, codec.mean, codec.deviation)
    values = legend.written(np.zeros((1, 1), np.int64))
    parts: list[tuple[int, dict[str, Any]]] = []
    tags = [] if place.suffix == ".npy" else [t for t in tags_of_place(picture) if t[0] not in _RESOLUTION]
    with contextlib.ExitStack() as files:
        new = files.enter_context(written(place))
        shape = (height, width, *values.shape[2:])
        masks = files.enter_context(written_map(new, shape, values.dtype, place.suffix, tags))
        chances = None
        if probabilities:
            new = files.enter_context(written(probabilities_file(place)))
            shape = (len(model.names), height, width)
            chances = files.enter_context(written_map(new, shape, np.float32, ".npy"))
        with computing(model.precision, model.device):
            for top, band in answer_bands(model.net, window, (height, width)):
                found = legend.answer(band.numpy())
                masks[top : top + len(found)] = legend.written(found)
                parts.append((found.size, legend.summary(found)))
                parts = [(sum(pixels for pixels, _ in parts), _together(parts))]
                if chances is not None:
                    chances[:, top : top + len(found)] = band.numpy()
    return {"pictures": 1} | _together(parts)


def probabilities_file(place: Path) -> Path:
    """Where the probabilities of a mask go."""
    return place.with_name(f"{Path(without_ending(place.name)).name}.probabilities.npy")


def mask_name(name: str, quantity: bool = False) -> str:
    """The file of a picture's mask.

    >>> mask_name("a/b.jpg"), mask_name("v.nii.gz"), mask_name("s.tiff"), mask_name("b.png", quantity=True)
    ('a/b.png', 'v.nii.gz', 's.tif', 'b.tif')
    """
    if is_nifti(name):
        return name
    path = Path(name)
    return str(path.with_suffix(ENDINGS.get(path.suffix.lower(), ".tif" if quantity else ".png")))


def write_mask(place: Path, picture: Path, masks: Sequence[np.ndarray], palette: Sequence[int] | None) -> None:
    """Write the masks of the pictures in a file, whole or not at all, as a file of its format."""
    with written(place) as new:
        if is_nifti(place.name):
            _nifti(new, picture, masks, place.name)
        elif place.suffix == ".tif":
            _tiff(new, picture, masks)
        elif place.suffix == ".dcm":
            _dicom(new, picture, masks)
        elif place.suffix == ".npy":
            with open(new, "wb") as file:
                np.save(file, masks[0] if len(masks) == 1 else np.stack(masks))
        else:
            image = Image.fromarray(masks[0])
            if palette is not None and masks[0].ndim == 2 and masks[0].dtype == np.uint8:
                image = image.convert("L")
                image.putpalette(list(palette))
            image.save(new, "PNG")


def _tiff(new: Path, picture: Path, masks: Sequence[np.ndarray]) -> None:
    """With the tags that say where the pixels of the picture lie."""
    try:
        import tifffile
    except ImportError:
        Image.fromarray(masks[0]).save(new, "TIFF", compression="tiff_adobe_deflate")
        return
    kept = tags_of_place(picture)
    resolution = {t[0]: t[3] for t in kept if t[0] in _RESOLUTION}
    colours = masks[0].ndim == 3
    with tifffile.TiffWriter(new) as writer:
        for mask in masks:
            writer.write(
                mask,
                photometric="rgb" if colours else "minisblack",
                compression="zlib",
                metadata=None,
                extratags=[t for t in kept if t[0] not in _RESOLUTION],
                resolution=(resolution[282], resolution[283]) if {282, 283} <= resolution.keys() else None,
                resolutionunit=resolution.get(296),
            )


def _nifti(new: Path, picture: Path, masks: Sequence[np.ndarray], name: str) -> None:
    """The slices as a volume with the affine of the picture's, in the order of its voxels."""
    import nibabel

    image: Any = nibabel.load(picture)
    turn = nibabel.io_orientation(image.affine)
    # Slices stand as `formats.nifti` cuts them: rows from the top down, columns from left to right.
    volume = np.stack([mask[::-1].swapaxes(0, 1) for mask in masks], 2)
    back = nibabel.orientations.ornt_transform(nibabel.io_orientation(np.eye(4)), turn)
    stored = nibabel.apply_orientation(volume, back)
    if stored.shape[:3] != image.shape[:3]:
        raise UserError(
            f"{picture}: its slices do not make up the volume again", hint="Predict all of its axial slices."
        )
    found = nibabel.Nifti1Image(stored, image.affine, dtype=stored.dtype)
    found.header.set_xyzt_units(*image.header.get_xyzt_units())
    found.set_sform(image.affine, int(image.header["sform_code"]))
    found.set_qform(image.affine, int(image.header["qform_code"]))
    zipped = name.lower().endswith(".gz")
    content = found.to_bytes()
    if zipped:
        import gzip

        content = gzip.compress(content, 6, mtime=0)
    new.write_bytes(content)


def _dicom(new: Path, picture: Path, masks: Sequence[np.ndarray]) -> None:
    """A derived picture of class numbers (grey, unsigned) in a series of its own, with the patient, the study and the
    geometry of the picture: every viewer can lay it over. A quantity is written in 16 bits with a slope and intercept
    (PS3.3, C.11.1)."""
    import pydicom
    from pydicom.uid import ExplicitVRLittleEndian

    data: Any = pydicom.dcmread(picture)
    pixels = np.stack(masks) if len(masks) > 1 else masks[0]
    coloured, of = masks[0].ndim == 3, "numbers of classes"
    dropped = (
        "PixelData", "RescaleSlope", "RescaleIntercept", "RescaleType", "WindowCenter", "WindowWidth",
        "WindowCenterWidthExplanation", "VOILUTSequence", "VOILUTFunction", "ModalityLUTSequence", "PixelPaddingValue",
        "PixelPaddingRangeLimit", "SmallestImagePixelValue", "LargestImagePixelValue", "PlanarConfiguration",
        "RedPaletteColorLookupTableData", "GreenPaletteColorLookupTableData", "BluePaletteColorLookupTableData",
        "RedPaletteColorLookupTableDescriptor", "GreenPaletteColorLookupTableDescriptor",
        "BluePaletteColorLookupTableDescriptor", "LossyImageCompression", "LossyImageCompressionRatio",
        "LossyImageCompressionMethod", "IconImageSequence", "PresentationLUTShape",
    )  # fmt: skip
    for name in dropped:
        if name in data:
            delattr(data, name)
    if pixels.dtype.kind == "f":
        least, of = float(pixels.min()), "a quantity"
        slope = float(f"{max((float(pixels.max()) - least) / 65535, 1e-30):.9e}")
        data.RescaleSlope, data.RescaleIntercept, data.RescaleType = f"{slope:.9e}", f"{least:.9e}", "US"
        pixels = np.round((pixels - least) / slope).clip(0, 65535).astype(np.uint16)
    bits = 8 * pixels.dtype.itemsize
    data.SOPInstanceUID = _uid(f"{data.SOPInstanceUID} mask")
    if "SeriesInstanceUID" in data:
        data.SeriesInstanceUID = _uid(f"{data.SeriesInstanceUID} mask")
    data.SeriesDescription, data.ImageType = f"unmask: {of}", ["DERIVED", "SECONDARY", "OTHER"]
    data.PhotometricInterpretation = "RGB" if coloured else "MONOCHROME2"
    data.SamplesPerPixel, data.PixelRepresentation = 3 if coloured else 1, 0
    if coloured:
        data.PlanarConfiguration = 0
    data.BitsAllocated, data.BitsStored, data.HighBit = bits, bits, bits - 1
    content = np.ascontiguousarray(pixels).astype(pixels.dtype.newbyteorder("<")).tobytes()
    data.PixelData = content + b"\0" * (len(content) % 2)
    data["PixelData"].VR = "OB" if bits == 8 else "OW"
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    data.save_as(new, enforce_file_format=True)


def _uid(of: str) -> str:
    """The same identifier for the same text (PS3.5, B.2)."""
    return f"2.25.{uuid.uuid5(uuid.NAMESPACE_OID, of).int}"
