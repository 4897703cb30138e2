"""Pictures that tables name or hold: paths and labels, a column of encoded pictures, Hugging Face datasets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError, setting
from unmask.modalities.images.formats.picture import Source
from unmask.modalities.images.reading.arrays import ImageSet, ReadOptions, number_classes, refuse_unread
from unmask.modalities.images.reading.from_files import decode_files, folder_group
from unmask.modalities.images.reading.label_table import read_label_table
from unmask.modalities.images.reading.listing import File
from unmask.modalities.images.reading.targets import Parsed, parse_cells


def from_table(path: Path, how: ReadOptions, columns: dict[str, list[Any]] | None = None) -> ImageSet:
    """Pictures that a table (a file, or the columns of a frame) names, with their labels."""
    if how.problem is None:
        raise UserError(
            f"{path}: a table of pictures and labels",
            hint="Tables are for fine-tuning and what follows it; give the folder of the pictures.",
        )
    if how.problem == "none":
        refuse_unread(how, f"{path}, of which labels are not read", "label_column")
    table = read_label_table(path, how, lambda file, root: folder_group(file, root, how.group), columns)
    found = decode_files(table.files, how)
    return replace(_labelled(found, table.parsed), notes=[*found.notes, *table.notes])


def _labelled(found: ImageSet, parsed: Parsed) -> ImageSet:
    """Pictures whose classes are the numbers of their rows, with the labels of these rows."""
    assert found.labels is not None
    row = np.array([int(name) for name in found.classes])[found.labels]
    labels, classes = number_classes(None if parsed.classes is None else np.array(parsed.classes)[row])
    return replace(
        found, labels=labels, classes=classes, targets=None if parsed.targets is None else parsed.targets.take(row)
    )


def from_parquet(path: Path, how: ReadOptions) -> ImageSet:
    """Encoded pictures of a parquet file."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return from_encoded({name: table[name].to_pylist() for name in table.column_names}, str(path), how)


def from_encoded(columns: dict[str, list[Any]], name: str, how: ReadOptions) -> ImageSet:
    """Pictures that a column of a table holds."""
    refuse_unread(how, f"{name}, which holds its pictures", "pictures")
    column = how.column or next((n for n in ("image", "img", "picture", "bytes") if n in columns), None)
    if column is None or column not in columns:
        raise UserError(
            f"{name}: no column {column or 'image'!r}",
            hint=f"Name it with {setting('column')}; there are {', '.join(columns)}.",
        )
    label_column = how.label_column or next((n for n in ("label", "labels", "class", "target") if n in columns), None)
    if label_column is not None and label_column not in columns:
        raise UserError(f"{name}: no column {label_column!r}", hint=f"There are {', '.join(columns)}.")
    if how.group is not None and how.group not in columns:
        raise UserError(
            f"{name}: no column {how.group!r}",
            hint=f"{setting('group')} names a column; there are {', '.join(columns)}.",
        )
    labels = None if label_column is None else columns[label_column]
    return from_cells(columns[column], labels, None if how.group is None else columns[how.group], name, how)


def from_cells(
    cells: list[Any], labels: list[Any] | None, groups: list[Any] | None, name: str, how: ReadOptions
) -> ImageSet:
    """Encoded pictures as bytes, or as Hugging Face writes them: {'bytes': ..., 'path': ...}."""
    sources: list[Source] = []
    for number, cell in enumerate(cells):
        if isinstance(cell, dict):
            cell = cell.get("bytes") or cell.get("path")
        if not isinstance(cell, bytes | str):
            raise UserError(
                f"{name}: row {number} holds {type(cell).__name__}", hint="Expected an encoded picture (bytes)."
            )
        sources.append(cell)
    parsed = None
    if labels is not None and how.problem in ("auto", "multi", "regression"):
        parsed = parse_cells(labels, how.label_column or "label", how.problem)
        parsed = None if parsed.targets is None else parsed
    if parsed is not None:
        if parsed.bad:
            reasons = "; ".join(f"row {row}: {what}" for row, what in parsed.bad.items())
            raise UserError(
                f"{name}: {len(parsed.bad)} rows have no proper label: {reasons}", hint="Leave such rows out."
            )
        labels = list(range(len(cells)))
    if labels is not None and (empty := next((i for i, label in enumerate(labels) if label is None), None)) is not None:
        raise UserError(
            f"{name}: row {empty} has no label",
            hint=f"Leave such rows out, or name another column: {setting('label_column')}.",
        )
    files = [
        File(
            source=source,
            name=f"row {i}",
            label=None if labels is None else labels[i],
            group=None if groups is None else str(groups[i]),
        )
        for i, source in enumerate(sources)
    ]
    found = decode_files(files, how)
    return found if parsed is None else replace(_labelled(found, parsed), notes=[*found.notes, *parsed.notes])


def from_dataset(name: str, how: ReadOptions) -> ImageSet:
    """Pictures of a Hugging Face dataset, `NAME` or `NAME:SPLIT`."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"hf:{name} needs the package 'datasets'", hint="Run: pip install 'unmask[datasets]'") from None
    name, _, split = name.partition(":")
    table = datasets.load_dataset(name, split=split or "train")
    column = how.column or next((k for k, v in table.features.items() if type(v).__name__ == "Image"), None)
    if column is None:
        raise UserError(
            f"hf:{name}: no column of pictures",
            hint=f"Name it with {setting('column')}; there are {list(table.features)}.",
        )
    label_column = how.label_column or next((n for n in ("label", "labels", "fine_label") if n in table.features), None)
    cells = table.cast_column(column, datasets.Image(decode=False))[column]
    labels = None if label_column is None else list(table[label_column])
    if how.group is not None and how.group not in table.features:
        raise UserError(f"hf:{name}: no column {how.group!r}", hint=f"There are {list(table.features)}.")
    groups = None if how.group is None else list(table[how.group])
    return from_cells(list(cells), labels, groups, f"hf:{name}", how)
