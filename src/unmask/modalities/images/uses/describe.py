"""Pictures before a run: what is there, what a run would make of it, what wants a decision; as text, JSON, a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unmask.errors import UserError, first_of, setting
from unmask.modalities.images.formats.picture import Header, Picture
from unmask.modalities.images.network.build import usual_size
from unmask.modalities.images.reading.account import class_notes, typical_ends, value_range
from unmask.modalities.images.reading.arrays import ImageSet, ReadOptions
from unmask.modalities.images.reading.copies import Alike, copy_notes, fingerprints, near_pairs, numbered
from unmask.modalities.images.reading.decode import Form, cut_shares, fitting, places
from unmask.modalities.images.reading.inspection import Inspection, Seen, seen
from unmask.modalities.images.reading.layout import masks_among
from unmask.modalities.images.reading.sources import as_they_are
from unmask.modalities.images.recipes import sides
from unmask.modalities.images.uses.describe_report import report
from unmask.modalities.images.uses.description import NAMED, Description, Finding, Kind, ends_of

NEAR_MOST = 50_000
"""Pictures among which near copies are looked for: twenty seconds on one core."""
CUT = 0.1
"""From this share of a picture cut off on it wants a decision."""
NARROW = 1 / 16
"""Pictures that span less than this share of what a typical one does, or so many times more, are of another scale."""


class ImageDescription(Description):
    """What `describe` found; printed, as JSON (`to_dict`), and as a page with thumbnails."""

    def write_report(self, path: str | Path) -> Path:
        """What was found as one HTML page with thumbnails."""
        return report(self).write(path)


def describe(data: Any, *, image_size: int | tuple[int, int] | None = None, **reading: Any) -> ImageDescription:
    """Look at pictures before a run: classes and parts, sizes and what is cut of them, channels, depths and values,
    exact and near copies, groups, masks among them, and files that cannot be read.

    Every file is decoded once, in worker processes, and a kilobyte of each picture is kept. What a run would refuse is
    an error among the findings here.

    Args:
        data: what `read_images` reads; a table of files and labels too.
        image_size: what a run would bring the pictures to; None: what `pretrain` does.
        reading: how files are read; see `read_images` (planes, alpha, nodata, slice, view, overlap, group, column,
            label_column, pictures, workers).

    Raises:
        UserError: there are no pictures, or a table names files that are not there.
    """
    size: Any = usual_size if image_size is None else sides(image_size)
    inspection = Inspection(size=size)
    how = ReadOptions(**{"problem": "auto", "size": None if callable(size) else size, **reading}, inspect=inspection)
    images = as_they_are(data, how)
    if not inspection.seen:
        for number, pixels in enumerate(images.pixels):
            inspection.seen.append(_seen_in_memory(images, number, pixels))
    if not inspection.seen and not images.skipped and not inspection.unclear:
        raise UserError("no pictures given", hint="Give a folder, files or an array.")
    form = inspection.form or _form_in_memory(images, size, how)
    kinds = _kinds(inspection.seen)
    same, near = numbered(one.digest for one in inspection.seen), np.zeros((0, 2), np.int64)
    if 0 < len(inspection.seen) <= NEAR_MOST:
        near = near_pairs(fingerprints(np.stack([one.small for one in inspection.seen])), same)
    copies = Alike(same, near)
    found = _findings(images, inspection, form, kinds, copies, tiles=how.view == "tile")
    found.sort(key=lambda f: ("error", "warning", "note").index(f.severity))
    return ImageDescription(
        source=_source(data),
        images=images,
        inspection=inspection,
        form=form,
        kinds=kinds,
        copies=copies,
        findings=found,
    )


def _source(data: Any) -> str:
    given = [data] if isinstance(data, str | Path) else data if isinstance(data, list | tuple) else []
    paths = [str(one) for one in given if isinstance(one, str | Path)]
    return first_of(paths, 3) if paths and len(paths) == len(given) else "pictures in memory"


def _seen_in_memory(images: ImageSet, number: int, pixels: np.ndarray) -> Seen:
    header = Header(height=images.size[0], width=images.size[1], channels=images.channels, depth=images.depth)
    missing = None if images.missing is None else images.missing[number]
    return seen(header, Picture(pixels=pixels, missing=missing))


def _form_in_memory(images: ImageSet, size: Any, how: ReadOptions) -> Form:
    if not len(images):
        return Form(height=0, width=0, channels=0, depth=images.depth)
    height, width = size([images.size]) if callable(size) else size
    images.notes.extend(fitting([images.size], (height, width)))
    return Form(height=height, width=width, channels=images.channels, depth=images.depth, view=how.view)


def _kinds(all_seen: Sequence[Seen]) -> list[Kind]:
    of: dict[tuple[int, str], list[int]] = {}
    for number, one in enumerate(all_seen):
        of.setdefault((one.header.channels, one.header.depth), []).append(number)
    found = []
    for (channels, depth), numbers in sorted(of.items(), key=lambda item: -len(item[1])):
        full = [n for n in numbers if not all_seen[n].blank]
        least, most = value_range(ends_of([all_seen[n] for n in numbers]))
        usual = typical_ends(ends_of([all_seen[n] for n in full or numbers]))
        span = max(usual[1] - usual[0], 1e-30)
        outliers = [
            n
            for n in full
            if (one := all_seen[n]).high - one.low >= span / NARROW
            or (one.high - one.low <= NARROW * span and (depth == "float32" or one.high < usual[0] + 2 * NARROW * span))
        ]
        found.append(
            Kind(
                channels=channels,
                depth=depth,
                which=np.array(numbers),
                range=(least, most),
                typical=(usual[0], usual[1]),
                outliers=np.array(outliers, np.int64),
            )
        )
    return found


def _findings(
    images: ImageSet, inspection: Inspection, form: Form, kinds: Sequence[Kind], copies: Alike, *, tiles: bool
) -> list[Finding]:
    """What is noticed, each with the pictures it is of."""
    names = images.names or [str(n) for n in range(len(inspection.seen))]
    out = [Finding("error", "unclear", f"{name}: {what}. {hint}", [name]) for name, what, hint in inspection.unclear]
    if inspection.refused is not None:
        out.append(Finding("error", "refused", ". ".join(filter(None, inspection.refused))))
    if images.skipped:
        reasons = Counter(reason for _, reason in images.skipped).most_common()
        listed = first_of(f"{count:,} x {reason}" for reason, count in reasons)
        unread = [name for name, _ in images.skipped]
        out.append(_named("warning", "unreadable", f"{len(unread):,} files cannot be read: {listed}", unread))
    for kind in kinds[1:]:
        what = f"{kind.channels} channel{'s' * (kind.channels > 1)} of {kind.depth}"
        first = f"{kinds[0].channels} of {kinds[0].depth}"
        text = f"{len(kind.which):,} of {len(names):,} pictures have {what}, the most have {first}"
        out.append(_named("warning", "kinds", text, [names[n] for n in kind.which]))
    for kind in kinds:
        if len(kind.outliers):
            low, high = kind.typical
            odd = [f"{names[n]} ({inspection.seen[n].low:g} to {inspection.seen[n].high:g})" for n in kind.outliers]
            text = (
                f"{len(odd):,} pictures of {kind.depth} are of another scale than a typical one ({low:g} to {high:g})"
            )
            text += f": {first_of(odd, NAMED)}"
            out.append(Finding("warning", "scale", text, [names[n] for n in kind.outliers]))
    blank = [name for name, one in zip(names, inspection.seen, strict=True) if one.blank]
    if blank:
        out.append(_named("note", "blank", f"{len(blank):,} pictures are blank (of one value)", blank))
    out += _masks(names, inspection)
    out += _of_parts(images)
    lines = class_notes(images.classes, images.labels)[1:] if images.labels is not None else []
    lines += [*copy_notes(images, copies), *images.notes]
    if tiles and inspection.files:
        count = sum(len(places(one.header.height, one.header.width, form)) for one in inspection.seen)
        lines.append(f"{count:,} tiles of {form.width} x {form.height} pixels")
    if len(inspection.seen) > NEAR_MOST:
        lines.append(f"near copies were not looked for: more than {NEAR_MOST:,} pictures")
    sizes = np.array([(one.header.height, one.header.width) for one in inspection.seen]).reshape(-1, 2)
    cut = np.zeros(0) if tiles else cut_shares(sizes, (form.height, form.width))
    for line in lines:
        of_cut = line.endswith("cut off") and cut.max(initial=0) >= CUT
        severity: Literal["warning", "note"] = "warning" if line.startswith("warning: ") or of_cut else "note"
        worst = [names[n] for n in np.argsort(-cut, kind="stable")[:NAMED]] if of_cut else []
        text = line.removeprefix("warning: ")
        if of_cut:
            text += f" to make them {form.width} x {form.height}; {setting('image_size')} says other sides"
        out.append(Finding(severity, "cut" if of_cut else "reading", text, worst))
    return out


def _named(severity: Literal["error", "warning", "note"], code: str, text: str, names: list[str]) -> Finding:
    return Finding(severity, code, f"{text}: {first_of(names, NAMED)}", names)


def _masks(names: Sequence[str], inspection: Inspection) -> list[Finding]:
    """Masks that their names do not tell: of a folder whose pictures all have few values, and stand under the same
    names in another folder."""
    named = {n for numbers in masks_among(names).values() for n in numbers}
    folders: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        folders.setdefault(name.rpartition("/")[0], []).append(number)
    out = []
    for folder, numbers in folders.items():
        own = {names[n].rpartition("/")[2].rpartition(".")[0] for n in numbers}
        few = all(inspection.seen[n].few for n in numbers)
        if named.isdisjoint(numbers) and len(numbers) > 2 and few:
            for other, theirs in folders.items():
                full = sum(not inspection.seen[n].few for n in theirs) > len(theirs) / 2
                if other != folder and full and own <= {names[n].rpartition("/")[2].rpartition(".")[0] for n in theirs}:
                    text = f"{folder}/ may hold masks of {other}/: the same names, and few values in each picture"
                    out.append(Finding("warning", "masks", text, [names[n] for n in numbers]))
    return out


def _of_parts(images: ImageSet) -> list[Finding]:
    """Classes that a part to judge on has and the training part lacks."""
    if images.labels is None or images.split is None:
        return []
    train = images.split == "train"
    lacking = np.setdiff1d(images.labels[~train], images.labels[train])
    if not len(lacking) or not train.any():
        return []
    listed = first_of((images.classes[n] for n in lacking), NAMED)
    return [Finding("warning", "classes", f"classes without a training picture: {listed}")]
