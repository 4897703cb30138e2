"""The page of `describe`: classes, sizes, values, copies and what cannot be read, with thumbnails."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from markupsafe import Markup

from unmask.errors import either
from unmask.evaluation.card import Use
from unmask.evaluation.charts import drawn, table
from unmask.evaluation.report import Report
from unmask.modalities.images.network.batches import evenly
from unmask.modalities.images.reading.copies import crossing, name_at
from unmask.modalities.images.reading.decode import cut_shares, pictures
from unmask.modalities.images.reading.inspection import Seen
from unmask.modalities.images.uses.description import Description
from unmask.modalities.images.uses.drawing import THUMB, Thumbnail, small, strip

WORST = 0.1
"""Share of a picture cut off from which on it is drawn."""
OF_CLASS, CLASSES, ROWS, PAIRS, ODD = 8, 40, 12, 16, 12
"""Thumbnails of a class; classes, sizes, pairs of copies and pictures of another scale that are drawn."""


def report(found: Description) -> Report:
    """The page."""
    page = Report("Pictures before a run", found.title())
    exact, near = len(found.copies.exact), len(np.unique(found.copies.near[:, 1]))
    facts = {
        "Pictures": len(found.inspection.seen),
        "Classes": len(found.images.classes) or None,
        "Parts": ", ".join(found.parts) or None,
        "Errors": found.count("error"),
        "Warnings": found.count("warning"),
        "Cannot be read": len(found.images.skipped),
        "Exact copies": exact,
        "Near copies": near,
    }
    page.facts({name: value for name, value in facts.items() if value is not None})
    for severity, heading in (
        ("error", "What a run would refuse"),
        ("warning", "What wants a decision"),
        ("note", "What is so, or is done"),
    ):
        if some := [f for f in found.findings if f.severity == severity]:
            page.section(heading, drawn("findings", [(f.severity, f.text) for f in some]))
    _classes(page, found)
    _sizes(page, found)
    _values(page, found)
    _copies(page, found)
    if found.images.skipped:
        page.section("Files that cannot be read", table(("file", "why"), found.images.skipped))
    commands = [("learn from them without labels", "unmask pretrain images MODEL --out model --minutes 10")]
    if found.images.labels is not None:
        commands.append(("learn their classes", "unmask finetune classify model MODEL --out classifier"))
    return page.use(Use(commands=tuple(commands), python="").of(found.source).html(), "What to do next")


def _thumbnails(found: Description, numbers: Iterable[int], side: int = THUMB) -> dict[int, np.ndarray]:
    """Small pictures by number, each file decoded once; those that can be decoded no more are left out."""
    inspection, out = found.inspection, {}
    wanted = sorted(set(numbers))
    if not inspection.files:
        return {n: small(found.images.pixels[n], None, side) for n in wanted}
    by_file: dict[int, list[int]] = {}
    for n in wanted:
        by_file.setdefault(id(inspection.files[n]), []).append(n)
    for some in by_file.values():
        decoded = pictures(inspection.files[some[0]].source, inspection.choice)
        if isinstance(decoded, list):
            for n in some:
                picture = decoded[inspection.part[n]]
                out[n] = small(picture.pixels, picture.missing, side)
    return out


def _classes(page: Report, found: Description) -> None:
    images, counts = found.images, found.class_counts()
    if not counts:
        some = [int(n) for n in evenly(np.arange(len(found.inspection.seen)), 2 * OF_CLASS)]
        drawn_ = _thumbnails(found, some)
        page.section(
            "Some of the pictures", strip([Thumbnail(drawn_[n], _name(found, n)) for n in some if n in drawn_])
        )
        return
    assert images.labels is not None
    largest = sorted(range(len(counts)), key=lambda n: -sum(counts[n][1].values()))[:CLASSES]
    some_of = {n: evenly(np.flatnonzero(images.labels == n), OF_CLASS).tolist() for n in largest}
    small_ones = _thumbnails(found, [i for some in some_of.values() for i in some], side=64)
    rows = []
    for n in largest:
        name, of = counts[n]
        each = "".join(f", {part} {of[part]:,}" for part in found.parts)
        thumbs = strip([Thumbnail(small_ones[i], "") for i in some_of[n] if i in small_ones])
        rows.append((name, f"{sum(of.values()):,} pictures{each}", thumbs))
    note = f"The largest {CLASSES} of {len(counts):,} classes." if len(counts) > CLASSES else ""
    page.section("Classes", drawn("strips", rows), note=note)


def _sizes(page: Report, found: Description) -> None:
    most = found.sizes.most_common(ROWS)
    form, left = found.form, len(found.sizes) - len(most)
    size = (form.height, form.width)
    rows = [(f"{w} x {h}", n, f"{cut_shares(np.array([[h, w]]), size)[0]:.0%}") for (h, w), n in most]
    body = table(("width x height", "pictures", "cut off"), rows)
    cut = cut_shares(np.array([(s.header.height, s.header.width) for s in found.inspection.seen]).reshape(-1, 2), size)
    worst = (
        [int(n) for n in np.argsort(-cut, kind="stable")[:OF_CLASS] if cut[n] >= WORST] if form.view != "tile" else []
    )
    thumbs = _thumbnails(found, worst)
    shown = [
        Thumbnail(_cut_away(thumbs[n], form.height / form.width), f"{_name(found, n)}: {cut[n]:.0%} cut off")
        for n in worst
        if n in thumbs
    ]
    note = f"A run brings them to {form.width} x {form.height} pixels" + (
        ": what is grey is cut off." if shown else "."
    )
    note += f" {left:,} more sizes." if left else ""
    page.section("Sizes", Markup("{}{}").format(body, strip(shown) if shown else ""), note=note)


def _cut_away(rgb: np.ndarray, shape: float) -> np.ndarray:
    """A thumbnail whose parts beyond the middle of `shape` (height per width) are grey."""
    height, width = rgb.shape[:2]
    high, wide = min(height, round(width * shape)), min(width, round(height / shape))
    top, left = (height - high) // 2, (width - wide) // 2
    out = (rgb // 4 + 144).astype(np.uint8)
    out[:] = out.mean(-1, keepdims=True)
    out[top : top + high, left : left + wide] = rgb[top : top + high, left : left + wide]
    return out


def _values(page: Report, found: Description) -> None:
    rows = [
        (
            k.channels,
            k.depth,
            len(k.which),
            f"{k.range[0]:g} to {k.range[1]:g}",
            f"{k.typical[0]:g} to {k.typical[1]:g}",
            len(k.outliers),
        )
        for k in found.kinds
    ]
    odd = [int(n) for k in found.kinds for n in k.outliers][:ODD]
    rare = [int(n) for k in found.kinds[1:] for n in k.which][: ODD - len(odd)]
    thumbs = _thumbnails(found, [*odd, *rare])
    shown = [
        Thumbnail(thumbs[n], f"{_name(found, n)}: {_valued(found.inspection.seen[n])}")
        for n in [*odd, *rare]
        if n in thumbs
    ]
    body = table(("channels", "depth", "pictures", "values", "of a typical one", "of another scale"), rows)
    page.section("Channels and values", Markup("{}{}").format(body, strip(shown) if shown else ""))


def _valued(one: Seen) -> str:
    """Channels, depth and values of a picture."""
    return f"{one.header.channels} of {one.header.depth}, {one.low:g} to {one.high:g}"


def _copies(page: Report, found: Description) -> None:
    """Pairs of copies, those across parts first, then those of two classes."""
    images, done = found.images, set()
    sides = [] if images.split is None else [("in two parts", images.split == "train")]
    sides += [] if images.labels is None else [("of two classes", images.labels)]
    ranked: list[tuple[int, int, str]] = []
    for pairs, what in ((found.copies.exact, "exact"), (found.copies.near, "near")):
        for where, side in [*sides, ("", None)]:
            for a, b in (pairs if side is None else crossing(pairs, side)).tolist():
                if (a, b) not in done:
                    done.add((a, b))
                    ranked.append((a, b, f"{what} copies {where}".strip()))
    if not ranked:
        return
    ranked.sort(key=lambda row: ("parts" not in row[2], "classes" not in row[2]))
    shown = ranked[:PAIRS]
    thumbs = _thumbnails(found, [n for a, b, _ in shown for n in (a, b)])
    rows = [
        (what, "", strip([Thumbnail(thumbs[n], _name(found, n)) for n in (a, b) if n in thumbs]))
        for a, b, what in shown
    ]
    note = (
        f"{len(ranked) - len(shown):,} more pairs; {either('--json', 'to_dict()')} names all."
        if len(ranked) > len(shown)
        else ""
    )
    page.section("Copies", drawn("strips", rows), note=note)


def _name(found: Description, number: int) -> str:
    return name_at(found.images, number)
