"""Checkpoints in shards: torch.distributed.checkpoint, as safetensors, written by a thread while the run goes on.

    folder/checkpoints/step-00000123/shard-00001-model-00001-of-00001.safetensors     of the first process
                                     shard-00002-...                                  of the second, ...
                                     state.json    as of any checkpoint, and "shards": what the names stand for

Names are those of a checkpoint in one piece, "model/<name>" and "optimiser/<index.name>", and each file says which part
of a tensor it holds: so any number of processes reads them, each its own share, and one process reads all. No pickle is
written or read. `state.json` and the rename that makes the folder visible come last, when all files are on the disk.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from unmask.errors import UserError
from unmask.files import fingerprint, fsync
from unmask.training.checkpoint import (
    Checkpoint,
    begin_writing,
    capture_random_state,
    end_writing,
    flatten_optimiser,
    not_written,
    temporary_place,
    unflatten_optimiser,
    write_state,
)

MODEL, OPTIMISER = "model/", "optimiser/"


class ShardWriter:
    """Writes checkpoints of one run, one at a time; every process has one, and all call the same.

    Args:
        folder: the run's, on a disk that all processes see.
        group: processes that write, for this alone: its operations are those of a thread.
        keep: how many checkpoints stay on disk.
    """

    def __init__(self, folder: Path, group: Any, *, keep: int) -> None:
        self.folder, self.group, self.keep = folder, group, keep
        self.first = distributed.get_rank() == 0
        self.thread: threading.Thread | None = None
        self.failed: UserError | None = None

    def begin(self, step: int) -> None:
        """Wait for the last checkpoint, then make room for the next; an operation of all processes has to follow before
        `write`, so that none writes before there is room."""
        self.wait()
        if self.first:
            try:
                begin_writing(self.folder, step)
            except OSError as error:
                raise not_written(self.folder, step, error) from error

    def write(self, step: int, model: nn.Module, optimiser_state: Mapping[str, Any], extra: dict[str, Any]) -> None:
        """Copy this process's share to memory, and have it written."""
        tensors, tied = _once(model)
        flat, groups, scalars = flatten_optimiser(optimiser_state)
        state = {
            "step": step,
            "extra": extra,
            "optimiser": {"param_groups": groups, "scalars": scalars},
            "random": capture_random_state(),
            "shards": {"processes": distributed.get_world_size(), "tied": tied, "torch": torch.__version__},
        }
        shared = {MODEL + name: t for name, t in tensors.items()} | {OPTIMISER + name: t for name, t in flat.items()}
        place = temporary_place(self.folder, step)
        files = HuggingFaceStorageWriter(path=str(place), save_distributed=True)
        written: Any = async_save(shared, storage_writer=files, process_group=self.group)
        self.thread = threading.Thread(target=self._end, args=(step, written, state), name="checkpoint", daemon=True)
        self.thread.start()

    def _end(self, step: int, written: Future[Any], state: dict[str, Any]) -> None:
        """When all processes have written: say that the checkpoint is whole."""
        outcome: list[Any] = [None]
        try:
            written.result()
            place, rank = temporary_place(self.folder, step), distributed.get_rank()
            own_files = {path.name: fingerprint(path) for path in place.glob(f"shard-{rank + 1:05d}-*")}
            for name in own_files:
                fsync(place / name)
            everyone: list[Any] = [None] * state["shards"]["processes"]
            distributed.all_gather_object(everyone, own_files, group=self.group)
            if self.first:
                outcome = [self._commit(step, state | {"files": {k: v for of in everyone for k, v in of.items()}})]
            distributed.broadcast_object_list(outcome, 0, group=self.group)
        except BaseException as error:  # raised in the loop, at the next checkpoint
            outcome = [str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__]
        if outcome[0] is not None:
            self.failed = not_written(self.folder, step, OSError(outcome[0]))

    def _commit(self, step: int, state: dict[str, Any]) -> str | None:
        """Make the checkpoint visible; why that failed, or None."""
        place = temporary_place(self.folder, step)
        try:
            absent = [name for name in state["files"] if not (place / name).is_file()]
            if absent:
                return (
                    f"{absent[0]} of another process is not there: all of them need the run folder on one shared disk"
                )
            write_state(place, state)
            end_writing(self.folder, step, self.keep)
        except OSError as error:
            return str(error)
        return None

    def wait(self) -> None:
        """Until what was begun is on the disk."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        if self.failed is not None:
            failed, self.failed = self.failed, None
            raise failed


def _once(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(the tensors of a model, those with several names once; other name -> name)."""
    seen: dict[int, str] = {}
    tied: dict[str, str] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in seen:
            tied[name] = seen[id(tensor)]
            continue
        seen[id(tensor)] = name
        tensors[name] = tensor.detach()
    return tensors, tied


def read_shards(found: Checkpoint, model: nn.Module, optimiser: Any) -> None:
    """Load a sharded checkpoint into a sharded model and its optimiser: each process reads its share."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]

    def like(index: int, size: torch.Size, kind: torch.dtype) -> Tensor:
        parameter = parameters[index].detach()
        return torch.zeros_like(parameter, dtype=kind) if size == parameter.shape else torch.zeros(size, dtype=kind)

    flat = _read(found, _once(model)[0], like)
    optimiser.load_state_dict(_optimiser_state(found, flat))


def read_whole(found: Checkpoint) -> Checkpoint:
    """A checkpoint in shards as one in one piece is: all of it, on the CPU."""
    weights: dict[str, Tensor] = {}
    flat = _read(found, weights, lambda _, size, kind: torch.zeros(size, dtype=kind))
    known = found.shards or {}
    weights |= {alias: weights[name] for alias, name in known["tied"].items()}
    return replace(found, model_state=weights, optimiser_state=_optimiser_state(found, flat), shards=None)


def _optimiser_state(found: Checkpoint, flat: dict[str, Tensor]) -> dict[str, Any]:
    known = (found.shards or {})["optimiser"]
    return unflatten_optimiser(flat, known["param_groups"], known["scalars"])


def _read(
    found: Checkpoint, weights: dict[str, Tensor], like: Callable[[int, torch.Size, torch.dtype], Tensor]
) -> dict[str, Tensor]:
    """Fill `weights`, or make them where there are none; the optimiser's tensors.

    Args:
        like: a tensor for a state of this parameter, of this shape and type.
    """
    reader = HuggingFaceStorageReader(path=str(found.path))
    wanted: dict[str, Tensor] = {MODEL + name: tensor for name, tensor in weights.items()}
    try:
        for name, about in reader.read_metadata().state_dict_metadata.items():
            assert isinstance(about, TensorStorageMetadata)
            size, kind = about.size, about.properties.dtype
            if name.startswith(OPTIMISER):
                wanted[name] = like(int(name.removeprefix(OPTIMISER).partition(".")[0]), size, kind)
            elif not weights:
                wanted[name] = torch.zeros(size, dtype=kind)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # each process reads by itself, as asked
            load(dict(wanted), storage_reader=reader, no_dist=True)
    except Exception as error:  # torch raises many kinds for names and shapes that differ
        reason = str(error).strip().splitlines()
        raise UserError(
            f"{found.path}: not a checkpoint of this model ({reason[-1][:300] if reason else type(error).__name__})",
            hint=f"torch {(found.shards or {}).get('torch')} wrote it, this is {torch.__version__}.",
        ) from error
    weights.update({n.removeprefix(MODEL): t for n, t in wanted.items() if n.startswith(MODEL)})
    return {n.removeprefix(OPTIMISER): t for n, t in wanted.items() if n.startswith(OPTIMISER)}
