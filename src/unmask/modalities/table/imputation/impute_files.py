"""Filling the missing cells of a table in several files, file by file with one fitted model.

All files are checked before one is written. They are filled side by side into a hidden folder beside the result, which
takes its name once all are there. What a file becomes depends on the model, the options and that file alone: the bytes
are the same whatever the engine and the number of workers.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unmask.core.hashing import Salt, hash_keys
from unmask.engines import engine as engine_of
from unmask.engines.folder import PLAN, begin_or_resume, check_seen, preparing
from unmask.errors import UserError, option
from unmask.modalities.table.fitting.cell_table import FittedTable
from unmask.modalities.table.imputation.complete import check_draws, complete, read_incomplete
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.reading.several_files import Shard, Summary, refuse_unlike, shards_of, summary_of
from unmask.modalities.table.writing.writers import WRITTEN, write_table
from unmask.progress import counted
from unmask.version import __version__
from unmask.writing import check_absent, filling_folder, remove, replace_folder, replace_json


@dataclass(frozen=True, kw_only=True)
class FilledFiles:
    """A table in several files that was filled.

    Attributes:
        folder: where the filled files lie, under the names of those that were read; draws in folders 1, 2, ...
        files, rows, cells: how many there are, and cells that were filled (in each draw).
        kept: files that an earlier run, which was ended, had filled.
        workers: how many worked side by side.
        seconds: that this call took.
        notes, warnings: what should be said of the files that this call filled.
    """

    folder: Path
    files: int
    rows: int
    cells: int
    kept: int
    workers: int
    seconds: float
    notes: list[str]
    warnings: list[str]


class Common(NamedTuple):
    """What all workers are told; `filling` and `drawing` are options of `complete`, `reading` of `read_frame`."""

    folder: str
    key: str
    model: FittedTable
    reading: Mapping[str, Any]
    filling: Mapping[str, Any]
    drawing: Mapping[str, Any]
    escape_formulas: bool
    alone: bool


def check_file(common: Common, shard: Shard) -> str | tuple[Summary, int]:
    """What is wrong with a file; or what is compared with the others, and how many cells are to be filled."""
    try:
        frame = read_frame(shard.path, **common.reading)
        read = read_incomplete(common.model, frame, **common.filling)
    except UserError as error:
        return str(error)
    return summary_of(frame), int(sum(gap.sum() for gap in read.gaps))


def fill_file(common: Common, shard: Shard) -> tuple[list[str], list[str]]:
    """Fill a file and write it; notes and warnings."""
    check_seen(common.folder, common.key)
    if not common.alone:
        torch.set_num_threads(1)  # of this worker: each has a core
    seed = int(hash_keys(common.drawing["seed"], zlib.crc32(shard.name.encode()), Salt.SEED_OF_FILE) >> 33)
    frame = read_frame(shard.path, **common.reading)
    done = complete(common.model, frame, **common.filling, **{**common.drawing, "seed": seed})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        for name, table in zip(_results(shard, common.drawing["draws"]), done.tables, strict=True):
            write_table(table, Path(common.folder) / name, escape_formulas=common.escape_formulas)
    return done.notes, [*done.warnings, *(str(w.message) for w in caught)]


def _results(shard: Shard, draws: int) -> list[str]:
    """What a file becomes, below the folder of the result: of its own format, .csv where that is not written."""
    path = Path(shard.name)
    name = (path if path.suffix in WRITTEN else path.with_suffix(".csv")).as_posix()
    return [f"{m + 1}/{name}" for m in range(draws)] or [name]


def impute_files(
    model: FittedTable,
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    draws: int = 0,
    seed: int = 0,
    unseen: str = "error",
    shift: Mapping[str, float | Mapping[str, float]] | None = None,
    censored: str | None = None,
    absent: Sequence[str] | str = (),
    add_absent: bool = False,
    constraints: Sequence[str] | str = (),
    decimal: str | None = None,
    encoding: str | None = None,
    sheet: str | None = None,
    escape_formulas: bool = False,
    workers: int | None = None,
    engine: str = "local",
    say: Callable[[str], None] | None = None,
) -> FilledFiles:
    """Fill the missing cells of a table in several files, such as one too large for memory; the same bytes whatever the
    number of workers. Started again after it was ended, however that was, it goes on where it stood.

    Args:
        data: paths, a folder, or a pattern.
        out: a new folder; every file keeps its name in it, and its format where that is .csv, .tsv or .parquet (others
            become .csv). It is there when all files are. With engine='ray' all machines must see it, and the files.
        draws: 0 for best values; m for m completed tables, in folders 1, 2, ... of `out`. Each file draws by the seed
            and its name.
        unseen, shift, censored, absent, add_absent, constraints: as in `TableModel.impute`.
        decimal, encoding, sheet: how files are read, as in `read_frame`.
        escape_formulas: as in `write_table`.
        workers: processes side by side; default the cores there are. Each holds one file at a time.
        engine: 'local', or 'ray' (the cluster that RAY_ADDRESS names, or one on this machine).
        say: called with lines on the progress; default none.

    Raises:
        UserError: files that do not fit the model or each other, all at once, and nothing is written; or what is wrong
            with the options, the folder or the engine.
    """
    tell, began = say or (lambda text: None), time.perf_counter()
    check_draws(model, draws, shift)
    shards, out = shards_of(data), check_absent(out)
    _check_outside(out, data)
    results = [name for shard in shards for name in _results(shard, draws)]
    if double := [name for name, count in Counter(results).items() if count > 1]:
        raise UserError(f"{out / double[0]}: two files would become it", hint="Rename one of them.")
    filling = {"unseen": unseen, "absent": absent, "add_absent": add_absent, "constraints": constraints}
    filling["censored"] = censored or ("drawn" if draws else "kept")
    drawing = {"draws": draws, "seed": seed, "shift": shift}
    reading = {"decimal": decimal, "encoding": encoding, "sheet": sheet}
    key = _key(model, shards, [filling, drawing, reading, escape_formulas])
    folder = filling_folder(out)
    staged = [p.name for p in folder.iterdir()] if (folder / PLAN).exists() else []
    own = sorted({*staged, *(Path(name).parts[0] for name in results)} - {PLAN})
    notes: list[str] = []
    warned: list[str] = []
    with engine_of(engine, workers, tell) as work, preparing(folder, own):
        above = {parent.as_posix() for name in results for parent in Path(name).parents}
        plan = begin_or_resume(folder, key, own, sorted(above), tell)
        common = Common(
            folder=str(folder),
            key=key,
            model=model,
            reading=reading,
            filling=filling,
            drawing=drawing,
            escape_formulas=escape_formulas,
            alone=work.alone,
        )
        tasks = [Shard(shard.name, shard.path.absolute()) for shard in shards]
        if "cells" not in plan:
            tell(f"checking {len(shards):,} files")
            plan |= _checked(work.run(f"{__name__}:check_file", common, tasks), shards)
            replace_json(folder / PLAN, plan)
        left = [t for t in tasks if not all((folder / name).exists() for name in _results(t, draws))]
        kept = len(tasks) - len(left)
        tell(f"filling {len(left):,} of {len(shards):,} files" + f"; {kept:,} are there" * (kept > 0))
        texts: dict[int, tuple[list[str], list[str]]] = {}
        for number, found in counted(work.run(f"{__name__}:fill_file", common, left), len(left)):
            texts[number] = found
        for number, one in sorted(texts.items()):
            notes += [f"{left[number].name}: {text}" for text in one[0]]
            warned += [f"{left[number].name}: {text}" for text in one[1]]
    replace_folder(folder, out)
    remove(out / PLAN)
    return FilledFiles(
        folder=out,
        files=len(shards),
        rows=plan["rows"],
        cells=plan["cells"],
        kept=kept,
        workers=work.workers,
        seconds=round(time.perf_counter() - began, 3),
        notes=notes,
        warnings=warned,
    )


def _checked(found: Iterator[tuple[int, Any]], shards: Sequence[Shard]) -> dict[str, int]:
    """Rows of all files and cells that are to be filled, once all were looked at and found alike."""
    checked = dict(counted(found, len(shards)))
    given = [(str(shard.path), str(shard.path.absolute()), checked[i]) for i, shard in enumerate(shards)]
    refuse_unlike({name: one.replace(whole, name) if isinstance(one, str) else one[0] for name, whole, one in given})
    return {"rows": sum(one.rows for one, _ in checked.values()), "cells": sum(cells for _, cells in checked.values())}


def _check_outside(out: Path, data: Any) -> None:
    """Refuse a result inside a folder that is read, where the next run would read it too."""
    for one in [data] if isinstance(data, str | Path) else data:
        if Path(one).is_dir() and Path(one).resolve() in (out.resolve(), *out.resolve().parents):
            raise UserError(f"{out}: inside {one}, which is read", hint=f"Choose another {option('out')}.")


def _key(model: FittedTable, shards: Sequence[Shard], options: Any) -> str:
    """What decides the bytes of the result: the model, the options, and the files by name, size and time."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.table.network.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    stats = [(shard.name, (about := shard.path.stat()).st_size, about.st_mtime_ns) for shard in shards]
    made_of = [__version__, model.schema.to_dict(), [c.to_dict() for c in model.table.codings], stats, options]
    digest.update(json.dumps(made_of, default=str).encode())
    return digest.hexdigest()
