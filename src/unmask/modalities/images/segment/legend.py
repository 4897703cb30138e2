"""What the values of masks mean: numbers, colours or files of classes, and which value says that nothing is known."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from unmask.errors import UserError, first_of, option, setting
from unmask.modalities.images.segment.crops import IGNORED
from unmask.modalities.images.segment.figures import Counted, counted, segment_figures

MOST_CLASSES = 64
"""More values than this are not classes: numbers of single objects, or a continuous picture."""
RARE, MOST_RARE = 0.002, 4
"""Values of which each makes up less than this share of the pixels; more of them than this are the mixed values of
smoothed borders, unless they count up from 0."""
VOID = 255
"""The number of pixels without a class where others are numbered from 0 (PASCAL VOC, Cityscapes, ADE20K)."""

Kind = Literal["numbers", "colours", "files"]


@dataclass(frozen=True, kw_only=True)
class Legend:
    """The classes of masks.

    Attributes:
        kind: 'numbers' (grey values or entries of a palette), 'colours' or 'files' (one file per class).
        values: of the classes: numbers, or colours as 0xRRGGBB; of files 0 for what is in none, then 1, 2, ...
        names: of the classes.
        ignore: the value of pixels that are neither learnt from nor judged; None where there is none.
        palette: of masks with one: red, green, blue of each number in turn.
    """

    kind: Kind
    values: tuple[int, ...]
    names: tuple[str, ...]
    ignore: int | None = None
    palette: tuple[int, ...] | None = None

    problem: ClassVar = "segment"
    scale: ClassVar = None

    def numbers(self, values: np.ndarray, name: str) -> np.ndarray:
        """(height, width) int16 numbers of classes from values, `IGNORED` where they say nothing.

        Raises:
            UserError: a value that is no class.
        """
        order = np.argsort(self.values)
        known = np.array(self.values)[order]
        place = np.minimum(np.searchsorted(known, values), len(known) - 1)
        found = order[place].astype(np.int16)
        found[known[place] != values] = IGNORED
        other = (known[place] != values) & (values != (IGNORED if self.ignore is None else self.ignore))
        if other.any():
            shown = first_of([self.shown(v) for v in np.unique(values[other])])
            raise UserError(
                f"{name}: values {shown} are none of the classes ({', '.join(self.names)})",
                hint="Give masks with the classes of the training masks; of pixels without a class say their value: "
                f"{option('ignore', self.shown(values[other][0]))}.",
            )
        return found

    def shown(self, value: Any) -> str:
        """A value in words."""
        return value_name(int(value), self.kind)

    def fitted(self, masks: Sequence[np.ndarray]) -> Legend:
        """Nothing is learnt of classes."""
        return self

    def answer(self, answers: np.ndarray) -> np.ndarray:
        """(height, width) numbers of classes of (classes, height, width) probabilities."""
        return answers.argmax(0)

    def written(self, answer: np.ndarray) -> np.ndarray:
        """Numbers of classes as the values of the training masks: uint8 or uint16, of colours (height, width, 3)."""
        values = np.array(self.values)[answer]
        if self.kind == "colours":
            return np.stack([values >> 16, values >> 8 & 255, values & 255], -1).astype(np.uint8)
        return values.astype(np.uint8 if max(self.values) < 256 else np.uint16)

    def shares(self, masks: Sequence[np.ndarray]) -> dict[str, float]:
        """Name of a class -> its share of the pixels that have one."""
        counts = np.sum([np.bincount(mask[mask >= 0], minlength=len(self.names)) for mask in masks], 0)
        return dict(zip(self.names, (counts / max(counts.sum(), 1)).tolist(), strict=True))

    def summary(self, answer: np.ndarray) -> dict[str, Any]:
        """Of a picture: the shares of its pixels by class."""
        return {"shares": self.shares([answer])}

    def counted(self, truth: np.ndarray, predicted: np.ndarray) -> Counted:
        """What `figures` needs of a picture."""
        return counted(truth, predicted, len(self.names))

    def figures(self, parts: Sequence[Counted], groups: np.ndarray | None, seed: int) -> dict[str, Any]:
        """Figures of several pictures."""
        return segment_figures(parts, self.names, groups, seed)

    def lines(self, masks: Sequence[np.ndarray]) -> list[str]:
        """What masks hold, in words: the classes and their shares of the pixels."""
        parts = [f"{name} {share:.1%}" for name, share in self.shares(masks).items()]
        unknown = sum(int((m < 0).sum()) for m in masks) / max(sum(m.size for m in masks), 1)
        line = f"{len(masks):,} pictures with masks; classes, by their share of the pixels: {', '.join(parts)}"
        return [line + (f"; {unknown:.1%} without a class" if unknown else "")]

    def about(self) -> dict[str, Any]:
        """As JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Legend:
        """From `about`."""
        given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in about.items()}
        return cls(**given)


def value_name(value: int, kind: Kind) -> str:
    """The name of a value that has no other.

    >>> value_name(255, "numbers"), value_name(0xFF8000, "colours")
    ('255', '#ff8000')
    """
    return f"#{value:06x}" if kind == "colours" else str(value)


def value_of(text: str | int) -> int:
    """A value as a person writes it: a number, or a colour such as #ff8000.

    >>> value_of("255"), value_of("#ff8000") == 0xFF8000
    (255, True)
    """
    try:
        return int(text[1:], 16) if isinstance(text, str) and text.startswith("#") else int(text)
    except ValueError:
        raise UserError(
            f"ignore {text}",
            hint="Expected the value of pixels without a class: a number, a colour (#ff8000), or none.",
        ) from None


def legend_of(
    holding: Mapping[str, Counter[int]],
    kind: Kind,
    ignore: str | int | None,
    palette: tuple[int, ...] | None,
    where: str,
) -> tuple[Legend, list[str]]:
    """The classes of masks that hold these values, and what is to be said of them.

    Args:
        holding: name of a picture -> how many pixels of its masks have each value.
        ignore: 'auto', 'none', or the value without a class.
        where: the masks, for messages.

    Raises:
        UserError: so many values that borders are smoothed, that objects are numbered one by one, or one value alone.
    """
    notes = []
    counts = sum(holding.values(), Counter[int]())
    total = sum(counts.values())
    chosen = None if ignore in ("auto", "none", None) else value_of(ignore)
    if chosen is not None and chosen not in counts:
        raise UserError(
            f"{option('ignore', ignore)}: no pixel of {where} has this value",
            hint=f"There are {first_of([value_name(v, kind) for v in sorted(counts)], 12)}.",
        )
    values = sorted(v for v in counts if v != chosen)
    others = [v for v in values if v != VOID]
    if (
        ignore == "auto"
        and kind == "numbers"
        and VOID in values
        and len(others) > 1
        and others == list(range(others[0], others[0] + len(others)))
        and others[0] in (0, 1)
    ):
        chosen, values = VOID, others
        notes.append(
            f"pixels of value 255 ({counts[VOID] / total:.1%}) have no class: neither learnt from nor judged "
            f"({option('ignore', 'none')} makes them one)"
        )
    rare = [v for v in values if counts[v] < RARE * total]
    in_order = values == list(range(values[0], values[0] + len(values))) and values[0] in (0, 1)
    if len(values) > MOST_CLASSES or (len(rare) > MOST_RARE and not in_order):
        raise _too_many(holding, values, rare, kind, where, in_order)
    if len(values) < 2:
        raise UserError(
            f"{where}: all pixels are of one class ({first_of([value_name(v, kind) for v in values])})",
            hint="Give masks in which there are two classes or more. What a file calls nodata is none.",
        )
    names = tuple(value_name(v, kind) for v in values)
    return Legend(kind=kind, values=tuple(values), names=names, ignore=chosen, palette=palette), notes


def _too_many(
    held: Mapping[str, Counter[int]], values: Sequence[int], rare: Sequence[int], kind: Kind, where: str, ordered: bool
) -> UserError:
    counts = sum(held.values(), Counter[int]())
    total = sum(counts.values())
    often = sorted(values, key=lambda v: -counts[v])[:5]
    listed = ", ".join(f"{value_name(v, kind)} {counts[v] / total:.1%}" for v in often)
    what = f"{where}: {len(values):,} {'colours' if kind == 'colours' else 'values'} ({listed}, ...)"
    if (ordered and sum(counts[v] for v in often) < 0.98 * total) or (kind == "numbers" and max(values) > VOID):
        return UserError(
            f"{what}: more than {MOST_CLASSES} classes",
            hint="Where each object has a number of its own, save which pixels are in any: (mask > 0) as 0 and 255; "
            f"where they are a quantity, such as a height, say {setting('problem', 'regression')}.",
        )
    mixed = [name for name, own in held.items() if not own.keys().isdisjoint(rare)]
    return UserError(
        f"{what}: {len(rare):,} of them make up less than {RARE:.1%} each, as of smoothed borders or JPEG; they are in "
        f"the masks of {len(mixed):,} of {len(held):,} pictures: {first_of(mixed, 10)}",
        hint="Save masks with one value per class: without antialiasing, as PNG or TIFF; or give every pixel the "
        "nearest of the frequent values first.",
    )
