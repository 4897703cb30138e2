"""What a look at pictures before a run found: printed, and as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from unmask.errors import first_of
from unmask.evaluation.shown import Printed, Shown
from unmask.modalities.images.reading.account import class_notes
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.modalities.images.reading.copies import Alike
from unmask.modalities.images.reading.decode import Form
from unmask.modalities.images.reading.inspection import Inspection, Seen

NAMED = 5
"""Pictures that a line names; --json names all."""


@dataclass(frozen=True)
class Finding:
    """One thing noticed. `severity`: an error keeps a run from reading the pictures, a warning wants a decision, a note
    says what is so or was done; `code`: what kind of thing, for programs; `pictures`: the names of those it is of."""

    severity: Literal["error", "warning", "note"]
    code: str
    text: str
    pictures: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Pictures of one depth and number of channels: how many, the least and greatest value of all and of a typical one,
    and the numbers of those on another scale."""

    channels: int
    depth: str
    which: np.ndarray
    range: tuple[float, float]
    typical: tuple[float, float]
    outliers: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        counts = {"channels": self.channels, "depth": self.depth, "pictures": len(self.which)}
        return counts | {"range": list(self.range), "typical": list(self.typical)}


@dataclass(frozen=True, kw_only=True, repr=False)
class Description(Printed):
    """What `describe` found; printed, and as JSON.

    Attributes:
        images: the set, without its pixels where these are in files: names, labels, classes, parts, groups.
        inspection: what was seen of each picture, and where it is.
        form: what a run would bring the pictures to.
        kinds: by channels and depth, the most frequent first.
        copies: exact and near copies.
        findings: errors, warnings, notes, in this order.
    """

    source: str
    images: ImageSet
    inspection: Inspection
    form: Form
    kinds: list[Kind]
    copies: Alike
    findings: list[Finding]

    @property
    def sizes(self) -> Counter[tuple[int, int]]:
        """(height, width) -> pictures."""
        return Counter((one.header.height, one.header.width) for one in self.inspection.seen)

    @property
    def parts(self) -> list[str]:
        """The parts of the data set that there are, the training one first; [] where it has none."""
        found = set() if self.images.split is None else set(self.images.split.tolist())
        return [part for part in ("train", "validation", "test") if part in found]

    def class_counts(self) -> list[tuple[str, dict[str, int]]]:
        """(class, pictures in each part, or in '' where there are none)."""
        images = self.images
        if images.labels is None:
            return []
        split = np.repeat("", len(self.inspection.seen)) if images.split is None else images.split
        counts = Counter(zip(images.labels.tolist(), split.tolist(), strict=True))
        parts = self.parts or [""]
        return [(name, {part: counts[n, part] for part in parts}) for n, name in enumerate(images.classes)]

    def count(self, severity: str) -> int:
        """How many findings are of a severity."""
        return sum(f.severity == severity for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        images, ends = self.images, ends_of(self.inspection.seen)
        names = images.names or [str(n) for n in range(len(self.inspection.seen))]
        classes = [{"name": n, "pictures": sum(of.values()), "parts": of} for n, of in self.class_counts()]
        return {
            "source": self.source,
            "pictures": len(self.inspection.seen),
            "shape": list(self.form.shape),
            "depth": self.form.depth,
            "range": [] if not len(ends) else [float(np.nanmin(ends)), float(np.nanmax(ends))],
            "missing_share": float(np.mean([one.missing for one in self.inspection.seen] or [0.0])),
            "classes": [c if self.parts else {k: v for k, v in c.items() if k != "parts"} for c in classes],
            "parts": {} if images.split is None else dict(Counter(images.split.tolist())),
            "groups": None if images.groups is None else len(np.unique(images.groups)),
            "sizes": [{"height": h, "width": w, "pictures": n} for (h, w), n in self.sizes.most_common()],
            "kinds": [kind.to_dict() for kind in self.kinds],
            "exact_copies": [[names[a], names[b]] for a, b in self.copies.exact],
            "near_copies": [[names[a], names[b]] for a, b in self.copies.near],
            "skipped": len(images.skipped),
            "skipped_files": [list(one) for one in images.skipped],
            "errors": self.count("error"),
            "warnings": self.count("warning"),
            "findings": [f.to_dict() for f in self.findings],
        }

    def title(self) -> str:
        """What it is of, in one line."""
        files = len({id(file) for file in self.inspection.files})
        inside = f" in {files:,} files" if files and files != len(self.inspection.seen) else ""
        return f"{self.source}: {len(self.inspection.seen):,} pictures{inside}"

    def shown(self) -> Shown:
        """The classes, and what was found, for a notebook and as a frame."""
        parts = self.parts
        return Shown(
            title=self.title(),
            columns=("class", "pictures", *parts),
            rows=[(n, sum(of.values()), *(of[part] for part in parts)) for n, of in self.class_counts()],
            notes=[*self._facts(), *(f"{f.severity}: {f.text}" for f in self.findings)],
            next_step="write_report('look.html') to see them; unmask.images.pretrain(data)",
        )

    def lines(self) -> list[str]:
        """What was found, for a terminal."""
        return [self.title(), *self._facts(), *(f"{f.severity + ':':8} {f.text}" for f in self.findings)]

    def _facts(self) -> list[str]:
        images = self.images
        lines = [] if images.labels is None else class_notes(images.classes, images.labels)[:1]
        if self.parts:
            counts: Counter[str] = Counter(images.split.tolist())  # type: ignore[union-attr]
            lines.append("parts: " + ", ".join(f"{part} ({counts[part]:,})" for part in self.parts))
        if images.groups is not None:
            count = len(np.unique(images.groups))
            lines.append(f"{count:,} groups (patients, files, folders), kept whole in every split")
        if sizes := self.sizes:
            shown = first_of((f"{w} x {h} ({n:,})" for (h, w), n in sizes.most_common()), NAMED)
            lines.append(f"sizes, width x height: {shown}")
        for kind in self.kinds:
            channels = f"{kind.channels} channel" + "s" * (kind.channels > 1)
            line = f"{len(kind.which):,} of {kind.depth}, {channels}: values {kind.range[0]:g} to {kind.range[1]:g}"
            usual = f", of a typical picture {kind.typical[0]:g} to {kind.typical[1]:g}"
            lines.append(line + (usual if kind.typical != kind.range else ""))
        return lines


def ends_of(all_seen: Sequence[Seen]) -> np.ndarray:
    return np.array([(one.low, one.high) for one in all_seen if not np.isnan(one.low)]).reshape(-1, 2)
