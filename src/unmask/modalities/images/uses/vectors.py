"""Which picture each row of `embed` is of, and vectors as files: .parquet, .csv, or .npy with the rows beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unmask.modalities.images.network.features import settled
from unmask.modalities.images.reading.arrays import ImageSet
from unmask.writing import written


def row_names(images: ImageSet) -> list[str]:
    """What each row of `embed` is of: the path of a picture (and its part, such as a frame), of tiles the picture that
    they were cut from; its number where it has no name."""
    names = images.names or [str(number) for number in range(len(images))]
    if images.tiles is None:
        return names
    return [names[number].rpartition("#y=")[0] or names[number] for number in row_pictures(images)]


def readable(images: ImageSet) -> ImageSet:
    """The pictures that `embed` has rows of, once it looked at all: those whose files could be read."""
    whole = settled(images)
    return images if whole.all() else images.take(np.flatnonzero(whole))


def row_pictures(images: ImageSet) -> np.ndarray:
    """(rows,) the number of the example that stands for each row: itself, of tiles the first of their picture."""
    if images.tiles is None:
        return np.arange(len(images))
    return np.unique(images.tiles.scene, return_index=True)[1]


def row_groups(images: ImageSet) -> np.ndarray | None:
    """(rows,) what each row's picture belongs to; None where each is for itself."""
    return None if images.groups is None else images.groups[row_pictures(images)]


def rows_of(images: ImageSet) -> dict[str, list[Any]]:
    """Columns that say what each row is of: `path`, `frame` (which part of the file: 'z=3', 'frame=2') and `group`
    (patient, slide, file); None where there is none."""
    parts = [name.partition("#") for name in row_names(images)]
    groups = row_groups(images)
    return {
        "path": [path for path, _, _ in parts],
        "frame": [frame or None for _, _, frame in parts],
        "group": [None] * len(parts) if groups is None else [str(group) for group in groups],
    }


def write_vectors(images: ImageSet, vectors: np.ndarray, out: str | Path) -> str:
    """Write vectors (rows, width), whole or not at all, and what each row is of.

    Args:
        out: .parquet, with `vector` as lists of one length, float32; .csv, with columns v0, v1, ...; under any other
            name a NumPy array, with the rows beside it as NAME.ids.parquet, in the same order.

    Returns:
        The file that says what each row is of.
    """
    import polars as pl

    rows, path = pl.DataFrame(rows_of(images), schema=dict.fromkeys(("path", "frame", "group"), pl.String)), str(out)
    if path.endswith(".parquet"):
        kind = pl.Array(pl.Float32, vectors.shape[1])
        with written(path) as temporary:
            rows.with_columns(pl.Series("vector", vectors.astype(np.float32), dtype=kind)).write_parquet(temporary)
        return path
    if path.endswith(".csv"):
        with written(path) as temporary:
            columns = [pl.Series(f"v{i}", column) for i, column in enumerate(vectors.T)]
            rows.with_columns(columns).write_csv(temporary)
        return path
    with written(path) as temporary, temporary.open("wb") as file:
        np.save(file, vectors)
    with written(ids := ids_file(path)) as temporary:
        rows.write_parquet(temporary)
    return ids


def ids_file(out: str) -> str:
    """The file that says what each row of `out` is of; itself where it holds that."""
    return out if out.endswith((".parquet", ".csv")) else f"{out.removesuffix('.npy')}.ids.parquet"
