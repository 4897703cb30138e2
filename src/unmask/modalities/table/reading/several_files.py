"""A table in several files: which they are, whether they are alike, and rows drawn from all of them for a fit."""

from __future__ import annotations

import dataclasses
import glob
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unmask.core.hashing import Salt, uniform
from unmask.errors import UserError
from unmask.files import are_files, files_below, not_there
from unmask.modalities.table.reading.frame import Frame, frame_of
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.reading.sheets import SHEETS, STATISTICS
from unmask.progress import counted

SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", *SHEETS, *STATISTICS)
DRAWN = 100_000
"""Rows that a fit to several files is made of, where they have more: a minute's work, and memory for them alone."""
LISTED = 10
"""Files that an error names."""


class Shard(NamedTuple):
    """One file of several; `name`: its path below the folder that holds them all."""

    name: str
    path: Path


class Summary(NamedTuple):
    """What is compared of the files of one table: their rows, and per column what its type holds ("": any)."""

    rows: int
    holds: dict[str, str]


def shards_of(data: str | Path | Sequence[str | Path]) -> list[Shard]:
    """The files that are meant by paths, folders and patterns, sorted by name."""
    found: list[Path] = []
    for one in [data] if isinstance(data, str | Path) else data:
        if os.path.isdir(one):
            inside = [p for p in files_below(one, hidden=[]) if p.suffix.lower() in SUFFIXES]
        else:
            there = [one] if os.path.exists(one) else sorted(glob.glob(str(one), recursive=True))
            inside = [Path(p) for p in there if not os.path.isdir(p)]
        if not inside:
            if os.path.isdir(one):
                raise UserError(f"{one}: no table in this folder", hint=f"Expected files {', '.join(SUFFIXES)}.")
            raise not_there(one, f"Expected files {', '.join(SUFFIXES)}, a folder of them, or a pattern.")
        found += inside
    if double := [str(p) for p, count in Counter(p.resolve() for p in found).items() if count > 1]:
        raise UserError(f"{double[0]}: named twice", hint="Its rows would count twice: name each file once.")
    above = Path(os.path.commonpath([p.absolute().parent for p in found]))
    return sorted(Shard(p.absolute().relative_to(above).as_posix(), p) for p in found)


def summary_of(frame: Frame) -> Summary:
    """What of a file is compared with the others."""
    names, kinds = frame.names, [""] * len(frame.names)
    if frame.source.endswith(
        ".parquet"
    ):  # its types are declared; those of texts and sheets are found out cell by cell
        kinds = [_holds(frame.native[:, i].dtype) for i in range(len(names))]
    return Summary(len(frame), dict(zip(names, kinds, strict=True)))


def _holds(kind: Any) -> str:
    import polars as pl

    if kind.is_numeric():
        return "numbers"
    if kind.is_temporal():
        return "dates"
    return {pl.Boolean: "true and false", pl.Null: ""}.get(kind.base_type(), "texts")


def refuse_unlike(found: Mapping[str, Summary | str]) -> None:
    """Refuse files whose columns, or types of columns, are not those of most of the others, all at once.

    Args:
        found: name of each file -> what is compared of it, or what is wrong with it.
    """
    summaries = {name: one for name, one in found.items() if not isinstance(one, str)}
    wrong = {name: one for name, one in found.items() if isinstance(one, str)}
    columns = Counter(tuple(sorted(one.holds)) for one in summaries.values())
    usual = columns.most_common(1)[0][0] if columns else ()
    like = next((name for name, one in summaries.items() if tuple(sorted(one.holds)) == usual), "")
    kinds = {c: Counter(k for one in summaries.values() if (k := one.holds.get(c))).most_common(1) for c in usual}
    for name, one in summaries.items():
        own = [f"no column {c!r}, which {like} has" for c in usual if c not in one.holds]
        own += [f"column {c!r}, which {like} does not have" for c in one.holds if c not in usual]
        own += [
            f"column {c!r} holds {one.holds[c]}, and {kinds[c][0][0]} in most files"
            for c in usual
            if one.holds.get(c) and one.holds[c] != kinds[c][0][0]
        ]
        if own:
            wrong[name] = "; ".join(f"{name}: {text}" for text in own)
    if wrong:
        texts = list(dict.fromkeys(wrong[name] for name in found if name in wrong))  # an option is wrong for all alike
        more = [f"and {len(texts) - LISTED} more files"] if len(texts) > LISTED else []
        raise UserError(
            "\n".join([*texts[:LISTED], *more]),
            hint=f"{len(texts)} of {len(found)} files do not fit, and nothing was written. Correct them, or leave them "
            "out.",
        )


def frame_to_fit(data: Any, *, seed: int = 0, **reading: Any) -> Frame:
    """The table that a model is fitted to: the one given, or rows drawn from all files of one (`drawn_frame`).

    Args:
        reading: of `read_frame`.
    """
    return drawn_frame(data, seed=seed, **reading) if are_files(data) else read_frame(data, **reading)


def drawn_frame(
    data: str | Path | Sequence[str | Path], *, seed: int = 0, rows: int = DRAWN, **reading: str | None
) -> Frame:
    """Rows of all files of a table, for a fit; all of them, where there are no more than `rows`.

    Each is drawn with the same probability, by a hash of the seed, the place of its file among the others and its own.

    One file is in memory at a time, and the rows that were drawn. Errors and warnings name a row as FILE:ROW.

    Args:
        reading: of `read_frame`.
    """
    shards = shards_of(data)
    about = sum(_about(shard.path, reading) for shard in shards)
    found: dict[str, Summary | str] = {}
    parts: list[tuple[Shard, Frame, np.ndarray]] = []
    for number, shard in enumerate(counted(shards, len(shards))):
        try:
            frame = read_frame(shard.path, **reading)
        except UserError as error:
            found[str(shard.path)] = str(error)
            continue
        found[str(shard.path)] = summary_of(frame)
        chosen = np.arange(len(frame))
        chosen = chosen[uniform(seed, number, chosen, Salt.DRAWN_ROW) < rows / about]
        parts.append(
            (shard, _taken(frame, chosen), np.array([f"{shard.name}:{frame.row_name(int(i))}" for i in chosen], object))
        )
    refuse_unlike(found)
    out = _joined([part for _, part, _ in parts])
    out.lines = np.concatenate([names for *_, names in parts])
    out.source = f"{len(shards)} files"
    every = sum(one.rows for one in found.values() if not isinstance(one, str))
    out.notes = (
        f"fitted to {len(out):,} of {every:,} rows, drawn from all {len(shards):,} files"
        if len(out) < every
        else f"fitted to all {every:,} rows of {len(shards):,} files",
    )
    return out


def _about(path: Path, reading: Mapping[str, Any]) -> int:
    """How many rows a file has, in texts at most: a quick look."""
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet as pq

        try:
            return int(pq.read_metadata(path).num_rows)
        except Exception:  # what is wrong with it is said when it is read
            return 0
    if path.suffix.lower() in (".csv", ".tsv", ".txt"):
        with path.open("rb") as file:
            return sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))
    try:
        return len(read_frame(path, **reading))
    except UserError:
        return 0


def _taken(frame: Frame, rows: np.ndarray) -> Frame:
    """Some rows of a frame of a file."""
    native = None if frame.native is None else frame.native[rows]
    return dataclasses.replace(frame, columns=[c[rows] for c in frame.columns], native=native, lines=None, spellings=[])


def _joined(parts: Sequence[Frame]) -> Frame:
    """Frames of the same columns, in any order, one below the other; of the type of the files where that is one."""
    import polars as pl

    first = parts[0]
    if first.native is not None and all(p.native is not None and p.native.schema == first.native.schema for p in parts):
        return frame_of(pl.concat([p.native for p in parts]))
    places = [
        range(len(first.names)) if p.names == first.names else [p.names.index(n) for n in first.names] for p in parts
    ]
    columns = []
    for i in range(len(first.names)):
        own = [p.columns[place[i]] for p, place in zip(parts, places, strict=True)]
        columns.append(np.concatenate(own if len({c.dtype for c in own}) == 1 else [c.astype(object) for c in own]))
    return dataclasses.replace(first, columns=columns, native=None, levels=[])
