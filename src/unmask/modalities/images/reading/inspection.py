"""One look at every picture as its file has it: what it is, its values, and what tells copies. Nothing is refused: what
a run would refuse is told."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.modalities.images.formats.picture import PLAIN, Ambiguous, Broken, Choice, Header, Picture, Source
from unmask.modalities.images.reading.arrays import ImageSet, ReadOptions, common_size
from unmask.modalities.images.reading.copies import digest, shrunk
from unmask.modalities.images.reading.decode import Form, broken, mapper, opened
from unmask.modalities.images.reading.listing import File, form_of, in_order, listed
from unmask.progress import counted

FEW_VALUES = 16
"""A picture of at most so many values may be a mask of classes."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a look at one picture gives.

    Attributes:
        low, high: the least and the greatest value that was measured, in the file's own numbers; NaN where none was.
        missing: share of the pixels that were not measured.
        few: it has at most `FEW_VALUES` values.
        digest: of its pixels; None of a blank one.
        small: see `copies.shrunk`.
    """

    header: Header
    low: float
    high: float
    missing: float
    few: bool
    digest: bytes | None
    small: np.ndarray

    @property
    def blank(self) -> bool:
        """Whether it has one value, or none was measured."""
        return not self.high > self.low


def seen(header: Header, picture: Picture) -> Seen:
    """Look at a picture; its channels last."""
    pixels, missing = picture.pixels, picture.missing
    known = pixels if missing is None else pixels[~missing]
    some = known.reshape(-1)[:: max(1, known.size // 65536)]
    return Seen(
        header=header,
        low=float(known.min()) if known.size else np.nan,
        high=float(known.max()) if known.size else np.nan,
        missing=0.0 if missing is None else float(missing.mean()),
        few=len(np.unique(some)) <= FEW_VALUES,
        digest=digest(pixels),
        small=shrunk(pixels, missing),
    )


def inspect(source: Source, choice: Choice) -> list[Seen] | Broken | Ambiguous:
    """Look at the pictures of a file."""
    found = opened(source, choice)
    if isinstance(found, Broken | Ambiguous):
        return found
    try:
        return [seen(header, picture) for header, picture in zip(found.headers, found.decode(), strict=True)]
    except Exception as error:  # whatever a broken file makes a decoder raise
        return broken(error, source)


@dataclass
class Inspection:
    """Called by the readers in place of decoding: it looks at the files, and keeps what it saw.

    Attributes:
        size: a function of the (height, width) that there are: what a run would bring them to.
        seen: of every picture, in the order of the set.
        files: of every picture.
        part: of every picture, which of its file it is, from 0.
        unclear: (name, what is open, the setting that answers it) of files that can be read in several ways.
        refused: why a run would refuse the pictures together: (what, what to do).
        form: what a run would bring them to.
        choice: how the files are read.
    """

    size: Any
    seen: list[Seen] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    part: list[int] = field(default_factory=list)
    unclear: list[tuple[str, str, str]] = field(default_factory=list)
    refused: tuple[str, str] | None = None
    form: Form | None = None
    choice: Choice = PLAIN

    def __call__(self, files: Sequence[File], how: ReadOptions) -> ImageSet:
        """The set without its pixels: names, labels, groups, parts, notes, and what cannot be read."""
        self.choice = how.choice
        with mapper(how.workers, len(files)) as mapped:
            looking = functools.partial(inspect, choice=how.choice)
            results = list(counted(mapped(looking, (f.source for f in files)), len(files)))
        skipped = [(f.name, found.reason) for f, found in zip(files, results, strict=True) if isinstance(found, Broken)]
        self.unclear = [
            (f.name, found.what, found.hint)
            for f, found in zip(files, results, strict=True)
            if isinstance(found, Ambiguous)
        ]
        read = [(f, found) for f, found in zip(files, results, strict=True) if isinstance(found, list)]
        listing = [(f, [one.header for one in found]) for f, found in read]
        by_headers = {id(headers): found for (_, headers), (_, found) in zip(listing, read, strict=True)}
        good = in_order(listing)
        for file, headers in good:
            self.seen += by_headers[id(headers)]
            self.files += [file] * len(headers)
            self.part += range(len(headers))
        if not self.seen:
            return ImageSet(pixels=np.empty((0, 0, 0, 0)), skipped=skipped)
        self.form = self._form([(file.name, header) for file, headers in good for header in headers], how)
        whole = replace(self.form, view="shrink")
        return listed(good, whole, skipped, how).examples

    def _form(self, found: list[tuple[str, Header]], how: ReadOptions) -> Form:
        size = how.size or self.size
        try:
            return form_of(found, replace(how, size=size))
        except UserError as error:
            self.refused = (error.what, error.hint)
            height, width = common_size([(name, h.height, h.width) for name, h in found], size)
            first = found[0][1]
            return Form(height=height, width=width, channels=first.channels, depth=first.depth)
