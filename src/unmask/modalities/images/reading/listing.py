"""What a set of picture files becomes, known before a pixel is decoded: its examples, their form, what is left out and
why."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError, first_of, option
from unmask.modalities.images.formats.picture import Ambiguous, Broken, Header, Source
from unmask.modalities.images.reading.arrays import ImageSet, ReadOptions, Tiles, common_size, tile_size
from unmask.modalities.images.reading.decode import (
    Form,
    PictureFiles,
    described,
    fitting,
    name_of,
    places,
    recoloured,
    survey_all,
)
from unmask.modalities.images.reading.targets import number_classes


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of a set that are read, and all that is known of their examples before pixels are decoded; an example's
    name is the file's, '#' and which part of it."""

    files: PictureFiles
    examples: ImageSet


@dataclass(frozen=True, kw_only=True)
class File:
    """A file (or the content of one) of a set.

    Attributes:
        split: the part of a data set it is of (train, validation, test); None where there are no parts.
        group: what it belongs to (patient, plate, slide) where that was asked for, else None.
        found: in a folder, where slices of a series are put in their order in space; files that were named stay in
            the order given.
    """

    source: Source
    name: str
    label: Any = None
    split: str | None = None
    group: str | None = None
    found: bool = False


def list_files(files: Sequence[File], how: ReadOptions) -> Listing:
    """Survey files and settle what all their pictures are brought to."""
    surveyed = survey_all([f.source for f in files], how.choice, how.workers)
    skipped: list[tuple[str, str]] = []
    good: list[tuple[File, list[Header]]] = []
    unclear = [(file.name, found) for file, found in zip(files, surveyed, strict=True) if isinstance(found, Ambiguous)]
    if unclear:
        named = first_of((f"{name}: {found.what}" for name, found in unclear), 8, between="\n  ")
        raise UserError(named, hint=unclear[0][1].hint)
    for file, found in zip(files, surveyed, strict=True):
        if isinstance(found, Broken):
            skip(file.name, found.reason, how.strict, skipped)
        elif isinstance(found, list):
            good.append((file, found))
    if not good:
        first = f" ({skipped[0][0]}: {skipped[0][1]})" if skipped else ""
        raise UserError(f"none of {len(files)} pictures could be read{first}", hint="Check the files.")
    good = in_order(good)
    form = form_of([(file.name, header) for file, headers in good for header in headers], how)
    return listed(good, form, skipped, how)


def skip(name: str, reason: str, strict: bool, skipped: list[tuple[str, str]]) -> None:
    """Note a picture that cannot be read."""
    if strict:
        raise UserError(f"{name}: {reason}", hint=f"Remove the file, or leave out {option('strict', True)} to skip it.")
    skipped.append((name, reason))


def reasons(skipped: Sequence[tuple[str, str]]) -> dict[str, int]:
    """How many pictures were skipped for each reason, the most frequent first."""
    return dict(Counter(reason for _, reason in skipped).most_common())


def in_order(good: list[tuple[File, list[Header]]]) -> list[tuple[File, list[Header]]]:
    """Slices of a series (files found in one folder that say where they stand) by their place in space; all else as it
    is."""
    runs: dict[tuple[str, Any], list[int]] = {}
    for number, (file, headers) in enumerate(good):
        if file.found and headers[0].order is not None:
            runs.setdefault((str(Path(file.name).parent), headers[0].order[0]), []).append(number)
    out = list(good)
    for numbers in runs.values():
        by_place = sorted(numbers, key=lambda n: good[n][1][0].order or ())
        for here, there in zip(numbers, by_place, strict=True):
            out[here] = good[there]
    return out


def form_of(found: Sequence[tuple[str, Header]], how: ReadOptions) -> Form:
    tiles = how.view == "tile"
    height, width = tile_size(how) if tiles else common_size([(n, h.height, h.width) for n, h in found], how.size)
    return Form(
        height=height,
        width=width,
        channels=_channels(found, how.channels),
        depth=_depth(found),
        view=how.view,
        overlap=how.overlap,
    )


def _channels(found: Sequence[tuple[str, Header]], requested: int | None) -> int:
    """How many channels all pictures have; grey ones go with coloured ones, and nothing else with another number."""
    kinds = {(h.channels, h.colour) for _, h in found}
    most = max(channels for channels, _ in kinds)
    mixed = len({channels for channels, _ in kinds}) > 1
    if mixed and not all(colour and channels in (1, 3) for channels, colour in kinds):
        first = found[0]
        name, other = next((n, h) for n, h in found if h.channels != first[1].channels)
        raise UserError(
            f"channels differ: {first[0]} has {first[1].channels}, {name} has {other.channels}",
            hint="Give files of one kind.",
        )
    if requested is None or requested == most:
        return most
    if requested in (1, 3) and all(colour for _, colour in kinds):
        return requested
    name, header = found[0]
    raise UserError(
        f"channels={requested}, but {name} has {header.channels}{f' ({header.axes})' if header.axes else ''}",
        hint="Give pictures with as many channels, or leave channels out.",
    )


def _depth(found: Sequence[tuple[str, Header]]) -> str:
    """The depth of all pictures; 8 and 16 bits together become floats of 0 to 1."""
    depths = {h.depth for _, h in found}
    if len(depths) == 1:
        return depths.pop()
    if "float32" in depths:
        whole = next((n, h) for n, h in found if h.depth != "float32")
        real = next(n for n, h in found if h.depth == "float32")
        raise UserError(
            f"depths differ: {whole[0]} holds {whole[1].depth}, {real} floats",
            hint="Whole numbers and floats have no common scale: give pictures of one kind.",
        )
    return "float32"


def listed(
    good: list[tuple[File, list[Header]]], form: Form, skipped: list[tuple[str, str]], how: ReadOptions
) -> Listing:
    names: list[str] = []
    scene_names: list[str] = []
    groups: list[str] = []
    sizes: list[tuple[int, int]] = []
    spots: list[tuple[int, int, int]] = []
    counts, of_file = [], []
    for number, (file, headers) in enumerate(good):
        before = len(names)
        for header in headers:
            found = places(header.height, header.width, form)
            for top, left in found:
                where = f"y={top},x={left}" if len(found) > 1 else ""
                names.append(name_of(file.name, ",".join(p for p in (header.part, where) if p)))
                spots.append((len(scene_names), top, left))
                groups.append(file.group if file.group is not None else header.group or _own(file))
            scene_names.append(name_of(file.name, header.part))
            sizes.append((header.height, header.width))
        counts.append(len(names) - before)
        of_file += [number] * counts[-1]
    files = [good[n][0] for n in of_file]
    labels, classes = number_classes(None if files[0].label is None else np.array([f.label for f in files], object))
    tiles = None
    if form.view == "tile":
        scene, top_of, left_of = np.array(spots).T
        tiles = Tiles(scene=scene, top=top_of, left=left_of, names=scene_names, sizes=sizes)
    depths = {h.depth for _, headers in good for h in headers}
    notes = described([h for _, headers in good for h in headers])
    if form.view == "shrink":
        notes += fitting(sizes, (form.height, form.width))
    notes += recoloured([h.channels for _, headers in good for h in headers], form.channels)
    if depths == {"uint8", "uint16"}:
        notes.append("8 and 16 bits together: each divided by its own full range")
    return Listing(
        files=PictureFiles(
            sources=[f.source for f, _ in good],
            counts=np.array(counts),
            form=form,
            choice=how.choice,
            workers=how.workers,
        ),
        examples=ImageSet(
            pixels=np.empty((len(names), 0, 0, 0)),
            names=names,
            labels=labels,
            classes=classes,
            split=None if files[0].split is None else np.array([f.split for f in files]),
            groups=np.array(groups) if len(set(groups)) < len(groups) or files[0].group is not None else None,
            tiles=tiles,
            skipped=skipped,
            notes=notes,
        ),
    )


def _own(file: File) -> str:
    """A name for the group of one file, which no file of another set has."""
    return file.source if isinstance(file.source, str) else f"{file.name} {zlib.crc32(file.source)}"
