"""Masks of pictures: found by the names of the pictures, read as values, never as colours to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import ImageOps

from unmask.errors import UserError, first_of, option, setting
from unmask.modalities.images.formats.everyday import open_image, raw_modes
from unmask.modalities.images.formats.picture import Ambiguous, Broken, Choice, either
from unmask.modalities.images.reading import decode
from unmask.modalities.images.reading.layout import pictures_below
from unmask.modalities.images.segment.crops import without
from unmask.modalities.images.segment.legend import MOST_CLASSES, VOID, Kind, Legend, legend_of
from unmask.modalities.images.segment.quantity import Quantity, quantity_of

Problem = Literal["auto", "segment", "regression"]

_FOLDED = {"L;2": 85, "L;4": 17}
"""Grey of two and four bits, which Pillow spreads over 0 to 255."""


@dataclass(frozen=True, kw_only=True)
class MaskFiles:
    """Where masks are: name of a picture -> its files; `classes`: names of the folders, where there is a file per
    class, else empty. `without`: pictures without a mask."""

    files: dict[str, list[Path]]
    classes: list[str]
    without: list[str]


def without_ending(name: str) -> str:
    """A relative path without its ending.

    >>> without_ending("a/b.nii.gz"), without_ending("c.d.png")
    ('a/b', 'c.d')
    """
    path = Path(name)
    known = path.name.removesuffix(".gz") if path.name.endswith(".nii.gz") else path.name
    return str(path.with_name(Path(known).stem))


def find_masks(pictures: Sequence[str], folder: str | Path) -> MaskFiles:
    """The masks of pictures (relative paths), by equal paths without the ending, or with an ending that all of them
    have in common, such as _mask; or a folder per class that holds such files.

    Raises:
        UserError: no folder; masks of no picture, two of one, all of them at once.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise UserError(
            f"{root}: no folder of masks", hint=f"{option('masks')} is a folder with files named as pictures."
        )
    found = [p.relative_to(root) for p in pictures_below(root)[0]]
    if not found:
        raise UserError(f"{root}: no masks in it", hint="Expected pictures of classes, named as the pictures are.")
    known: dict[str, str] = {}
    for name in pictures:
        if (other := known.setdefault(without_ending(name), name)) != name:
            raise UserError(
                f"{other} and {name} differ in their ending alone", hint="A mask could be of either: rename one."
            )
    folders = sorted({p.parts[0] for p in found if len(p.parts) > 1})
    plain = [p for p in found if without_ending(str(p)) in known]
    inner = {p: str(Path(*p.parts[1:])) for p in found if len(p.parts) > 1}
    by_class = (
        len(folders) > 0
        and len(inner) == len(found)
        and sum(without_ending(n) in known for n in inner.values()) > len(plain)
    )
    names = {p: without_ending(inner[p]) if by_class else without_ending(str(p)) for p in found}
    if not any(name in known for name in names.values()):
        names = _without_common_end(names, known)
    files: dict[str, list[Path]] = {}
    lost = [str(p) for p in found if names[p] not in known]
    for path in found:
        if names[path] in known:
            files.setdefault(known[names[path]], []).append(root / path)
    if lost:
        cases = {name.casefold() for name in known}
        alike = [p for p in lost if names[Path(p)].casefold() in cases]
        end = f"; in upper and lower case alone {first_of(alike, 10)} differ from names of pictures" if alike else ""
        raise UserError(
            f"{len(lost)} of {len(found)} masks in {root} belong to no picture: {first_of(lost, 10)}{end}",
            hint=f"A mask has its picture's name, such as {first_of(pictures, 2)}; the ending may differ. Rename "
            "these, or take them away.",
        )
    twice = [f"{name}: {' and '.join(p.name for p in some)}" for name, some in files.items() if len(some) > 1]
    if twice and not by_class:
        raise UserError(f"two masks of a picture: {first_of(twice)}", hint="Leave one mask for each picture.")
    without = [name for name in pictures if name not in files]
    return MaskFiles(files=files, classes=folders if by_class else [], without=without)


def _without_common_end(names: dict[Path, str], known: dict[str, str]) -> dict[Path, str]:
    """Names less what all of them end in beyond a picture's name; as they are where there is no such end."""
    first = next(iter(names.values()))
    for picture in filter(first.startswith, known):
        end = first.removeprefix(picture)
        if end[:1] in "_-." and all(n.endswith(end) for n in names.values()):
            return {p: n.removesuffix(end) for p, n in names.items()}
    return names


@dataclass(frozen=True, kw_only=True)
class RawMask:
    """A mask as its file has it: (height, width) numbers, or colours as 0xRRGGBB; its palette, if it has one; booleans
    of pixels that it says nothing of (NaN, nodata), if there are any."""

    values: np.ndarray
    kind: Kind = "numbers"
    palette: tuple[int, ...] | None = None
    missing: np.ndarray | None = None

    @property
    def known(self) -> np.ndarray:
        """(pixels,) the values of those that it says something of."""
        return self.values.ravel() if self.missing is None else self.values[~self.missing]


def read_mask(path: Path, choice: Choice) -> list[RawMask]:
    """The masks in a file: one, or one for each slice or frame.

    Raises:
        UserError: it cannot be read, or is transparent in places.
    """
    if (plain := _by_pillow(path)) is not None:
        return [plain]
    found = decode.pictures(str(path), choice)
    if isinstance(found, Ambiguous):
        raise UserError(f"{path}: {found.what}", hint=found.hint)
    if isinstance(found, Broken):
        raise UserError(f"{path}: {found.reason}", hint="Save the mask anew.")
    return [raw_mask(path, picture.pixels, missing=picture.missing) for picture in found]


def _by_pillow(path: Path) -> RawMask | None:
    """A mask of the everyday formats, whose numbers are not to be turned into colours; None of others."""
    if path.suffix.lower() in (".tif", ".tiff", ".nii", ".gz", ".dcm", ".dicom", ".ima", ".npy", ""):
        try:
            with open_image(str(path)) as image:
                if image.mode != "P" or getattr(image, "n_frames", 1) > 1:
                    return None
        except Exception:  # whatever Pillow does not know, the readers of formats may
            return None
    try:
        with open_image(str(path)) as image:
            folded = next((by for mode, by in _FOLDED.items() if mode in raw_modes(image)), 1)
            palette = tuple(image.getpalette() or ()) if image.mode == "P" else None
            pixels = np.asarray(ImageOps.exif_transpose(image))
            if pixels.dtype == bool:
                pixels = pixels.astype(np.uint8) * 255
    except Exception as error:  # whatever a broken file makes a decoder raise
        raise UserError(f"{path}: {error or type(error).__name__}", hint="Save the mask anew.") from None
    return raw_mask(path, pixels if pixels.ndim == 3 else pixels[..., None] // folded, palette)


def raw_mask(
    name: Any, pixels: np.ndarray, palette: tuple[int, ...] | None = None, missing: np.ndarray | None = None
) -> RawMask:
    """Values of (height, width, channels) pixels; `missing` as decoding found it, NaN is so too."""
    if pixels.dtype == bool:
        pixels = pixels.astype(np.uint8) * 255
    if pixels.shape[-1] in (2, 4) and pixels.dtype.kind == "u":  # of which the last is its transparency
        if (pixels[..., -1] != np.iinfo(pixels.dtype).max).any():
            what = f"a mask of {pixels.shape[-1]} channels, or transparent in places"
            raise UserError(f"{name}: {what}", hint="Expected a number or a colour in every pixel.")
        pixels = pixels[..., :-1]
    if pixels.shape[-1] == 3 and (pixels == pixels[..., :1]).all():
        pixels = pixels[..., :1]
    if pixels.shape[-1] == 1:
        values = pixels[..., 0]
        if values.dtype.kind == "f":
            missing = either(missing, np.isnan(values))
            values = values if missing is None else np.where(missing, 0, values)
        whole = values.dtype.kind in "iu" or bool((np.isfinite(values) & (values == np.round(values))).all())
        return RawMask(values=values.astype(np.int64 if whole else np.float64), palette=palette, missing=missing)
    if pixels.shape[-1] != 3 or pixels.dtype != np.uint8:
        raise UserError(
            f"{name}: a mask of {pixels.shape[-1]} channels of {pixels.dtype}",
            hint="Expected one channel of class numbers, or colours of 8 bits.",
        )
    wide = pixels.astype(np.int64)
    return RawMask(values=wide[..., 0] << 16 | wide[..., 1] << 8 | wide[..., 2], kind="colours")


def _of_class_files(paths: Sequence[Path], classes: Sequence[str], choice: Choice, root: int) -> list[RawMask]:
    """One file per class as numbers: 0 where none has a mark, else the class's number from 1."""
    found: list[np.ndarray] = []
    for path in paths:
        number = 1 + classes.index(path.parts[root])
        for place, mask in enumerate(read_mask(path, choice)):
            values = np.unique(mask.known)
            if len(values) > 2 or mask.kind == "colours":
                raise UserError(
                    f"{path}: {len(values):,} values in the mask of one class",
                    hint="Expected two: 0, and another where the class is.",
                )
            marked = mask.values > (values[0] if len(values) > 1 else 0)
            if place == len(found):
                found.append(np.zeros(marked.shape, np.int64))
            if found[place].shape != marked.shape:
                raise UserError(
                    f"{path}: {marked.shape[1]} x {marked.shape[0]} pixels, the masks of other classes "
                    f"{found[place].shape[1]} x {found[place].shape[0]}",
                    hint="Give masks of one size.",
                )
            if both := int((marked & (found[place] > 0)).sum()):
                raise UserError(
                    f"{path}: {both:,} pixels are marked in the file of another class too",
                    hint="A pixel is of one class: leave it in one of the files.",
                )
            found[place][marked] = number
    return [RawMask(values=values, kind="files") for values in found]


@dataclass(frozen=True, kw_only=True)
class Masks:
    """Masks of pictures, by the pictures' names: numbers of classes, (height, width) int16, or a quantity, float32;
    what they mean, and what is to be said of them."""

    of: dict[str, list[np.ndarray]]
    legend: Legend | Quantity
    notes: list[str]


def read_masks(
    where: MaskFiles,
    folder: str | Path,
    *,
    choice: Choice,
    ignore: str | int | None = "auto",
    legend: Legend | Quantity | None = None,
    problem: Problem = "auto",
) -> Masks:
    """Read masks.

    Args:
        choice: how files are read that can be read in more than one way, as the pictures are; but what says that
            nothing was measured in a picture does not say it of a mask, and none is laid on white.
        ignore: the value of pixels without a class, 'none', or 'auto': 255 beside classes numbered from 0 or 1.
        legend: what masks read before hold: their classes, which these must have, or a quantity.
        problem: 'segment' for classes, 'regression' for a quantity; 'auto': what they are by their values.
    """
    choice = replace(choice, nodata=None, alpha="band")
    root = len(Path(folder).expanduser().parts)

    def read(name: str) -> list[RawMask]:
        paths = where.files[name]
        return _of_class_files(paths, where.classes, choice, root) if where.classes else read_mask(paths[0], choice)

    raw = _each(where.files, read)
    return masks_of(raw, str(folder), where.classes, ignore=ignore, legend=legend, problem=problem)


def masks_of(
    raw: dict[str, list[RawMask]],
    where: str,
    classes: Sequence[str] = (),
    *,
    ignore: str | int | None = "auto",
    legend: Legend | Quantity | None = None,
    problem: Problem = "auto",
) -> Masks:
    """`read_masks` of masks that are in memory; `where`: what they are called in messages."""
    every = [(name, mask) for name, masks in raw.items() for mask in masks]
    if _hold_a_quantity(every, where, problem if legend is None else legend.problem):
        if not isinstance(legend, Quantity):
            legend = quantity_of([mask.known for _, mask in every], ignore, f"the masks in {where}")
        return _as_targets(raw, legend, [])
    assert not isinstance(legend, Quantity)
    coloured = [name for name, mask in every if mask.kind == "colours"]
    if coloured:  # black, white and grey ones among them are colours too
        raw = {
            name: [m if m.kind == "colours" else replace(m, values=m.values * 0x10101, kind="colours") for m in masks]
            for name, masks in raw.items()
        }
    notes: list[str] = []
    if legend is None:
        holding = {name: sum(map(_counts, masks), Counter[int]()) for name, masks in raw.items()}
        if classes:
            legend = _of_files(holding, classes, where)
        else:
            palette = next((mask.palette for _, mask in every if mask.palette), None)
            legend, notes = legend_of(
                holding, "colours" if coloured else "numbers", ignore, palette, f"the masks in {where}"
            )
    if ignore == "auto" and legend.ignore == VOID:
        _check_alike(raw)
    _check_palettes(raw)
    return _as_targets(raw, legend, notes)


def _as_targets(raw: dict[str, list[RawMask]], legend: Legend | Quantity, notes: list[str]) -> Masks:
    """Masks as they are learnt from."""
    blank = legend.values[0] if isinstance(legend, Legend) else 0

    def target(mask: RawMask, name: str) -> np.ndarray:
        if mask.missing is None:
            return legend.numbers(mask.values, name)
        return without(legend.numbers(np.where(mask.missing, blank, mask.values), name), mask.missing)

    of = _each(raw, lambda name: [target(mask, f"the mask of {name}") for mask in raw[name]])
    return Masks(of=of, legend=legend, notes=notes)


def _hold_a_quantity(every: Sequence[tuple[str, RawMask]], where: str, problem: str) -> bool:
    """Whether masks hold a quantity: what is neither many fractions nor few whole numbers is asked for.

    Raises:
        UserError: naming the setting that says what the numbers are, or the masks that are none.
    """
    fractions = [name for name, mask in every if mask.values.dtype.kind == "f"]
    other = [name for name, mask in every if mask.kind != "numbers" or mask.palette]
    if not fractions and problem != "regression":
        return False
    if other:
        raise UserError(
            f"a quantity per pixel, but {len(other):,} of {len(every):,} masks in {where} have colours, a palette or a "
            f"folder per class: {first_of(other, 10)}",
            hint="Expected one channel of numbers.",
        )
    few = set[float]()
    for _, mask in every:
        few |= set(np.unique(mask.known).tolist())
        if len(few) > MOST_CLASSES:
            break
    if problem == "segment" or (problem == "auto" and len(few) <= MOST_CLASSES):
        some = [v for v in sorted(few) if v != round(v)]
        raise UserError(
            f"{len(fractions):,} of {len(every):,} masks in {where} have fractions"
            + (f", such as {first_of([f'{v:g}' for v in some], 3)}" if some else "")
            + f": {first_of(fractions, 10)}",
            hint="Expected whole numbers, one per class; probabilities need a threshold first. Where they are a "
            f"quantity, say {setting('problem', 'regression')}.",
        )
    return True


def _check_alike(raw: dict[str, list[RawMask]]) -> None:
    """Refuse masks of 0 and 255 alone among those in which 255 stands beside other classes: there it may be the class
    that the others call 1."""
    alone = [name for name, masks in raw.items() if any(set(np.unique(m.known)) == {0, VOID} for m in masks)]
    if alone:
        raise UserError(
            f"{len(alone):,} of {len(raw):,} masks have the values 0 and 255 alone, where others have other classes: "
            f"{first_of(alone, 10)}",
            hint=f"If 255 is a class in them, give it the number that it has in the others; if no class is known "
            f"there, say {option('ignore', '255')}.",
        )


def _check_palettes(raw: dict[str, list[RawMask]]) -> None:
    """Refuse palettes in which a number that occurs has two colours: they may be two classes."""
    seen: dict[int, tuple[tuple[int, ...], str]] = {}
    for name, masks in raw.items():
        for mask in masks:
            for value in np.unique(mask.known).tolist() if mask.palette else ():
                colour = tuple((mask.palette or ())[3 * value : 3 * value + 3])
                first, other = seen.setdefault(value, (colour, name))
                if first != colour:
                    raise UserError(
                        f"the masks of {other} and {name}: number {value} is of colour {first} in the palette of one "
                        f"and {colour} in that of the other",
                        hint="Save masks with one palette, or as colours (RGB), or as numbers without a palette.",
                    )


def _each(names: Iterable[str], made: Callable[[str], Any]) -> dict[str, Any]:
    """What is made of each name; all that are refused are named at once."""
    found, wrong = dict[str, Any](), list[UserError]()
    for name in names:
        try:
            found[name] = made(name)
        except UserError as error:
            wrong.append(error)
    if len(wrong) > 1:
        listed = first_of((error.what for error in wrong), 10, between="\n  ")
        raise UserError(f"{len(wrong):,} masks cannot be taken:\n  {listed}", hint=wrong[0].hint)
    if wrong:
        raise wrong[0]
    return found


def _counts(mask: RawMask) -> Counter[int]:
    """Value -> how many pixels have it."""
    values, often = np.unique(mask.known, return_counts=True)
    return Counter(dict(zip(values.tolist(), often.tolist(), strict=True)))


def _of_files(holding: Mapping[str, Counter[int]], classes: Sequence[str], where: str) -> Legend:
    absent = [f"{where}/{c}" for number, c in enumerate(classes, 1) if not any(own[number] for own in holding.values())]
    if absent:
        raise UserError(
            f"no pixel is marked in any file of {first_of(absent, 10)}",
            hint="Take the folder away, or give masks that have its class.",
        )
    return Legend(kind="files", values=tuple(range(len(classes) + 1)), names=("background", *classes))
