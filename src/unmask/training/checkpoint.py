"""Checkpoints that are whole or absent, and weights read without running code.

A checkpoint is written to a temporary folder, every file and the folder are fsynced, and one rename makes it
visible:

    folder/checkpoints/step-00000123/model.safetensors      weights; tied tensors once
                                     optimiser.safetensors  "index.name" -> tensor, such as "0.exp_avg"
                                     state.json             step, extra, random states, size and CRC-32 of
                                     the others, and a CRC-32 of its own

There is no `latest` pointer that could lag behind: the latest is the highest step whose files match their
state.json.
"""

from __future__ import annotations

import base64
import errno
import json
import pickle
import random
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unmask.errors import UserError, option, setting
from unmask.files import fingerprint, sealed, unsealed
from unmask.writing import replace_folder

_NAME = re.compile(r"step-(\d+)(\.replaced)?")
_TEMPORARY = ".writing-"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint, read back.

    Attributes:
        model_state: for `module.load_state_dict`; tied tensors share memory again.
        optimiser_state: for `optimiser.load_state_dict`.
        random_state: as `capture_random_state` returned it.
        shards: what is known of a checkpoint in shards, whose states are empty here: `shards_checkpoint` reads them.
    """

    path: Path
    step: int
    model_state: dict[str, Tensor]
    optimiser_state: dict[str, Any]
    extra: dict[str, Any]
    random_state: dict[str, Any] = field(repr=False)
    shards: Mapping[str, Any] | None = None


def save_checkpoint(
    folder: str | Path,
    *,
    step: int,
    model_state: Mapping[str, Tensor],
    optimiser_state: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Write a checkpoint of `step` atomically, then remove all but the newest `keep`; returns its folder.

    Checkpoints of a later step are removed too: they belong to a run that was given up for an earlier state,
    and a resume must not return to it. Only one process may call this.

    Args:
        folder: the run's folder; `checkpoints/` is made inside.
        optimiser_state: `optimiser.state_dict()`, of any optimiser with tensor or JSON state.
        extra: JSON to keep with it: data position, settings, best score.
        keep: how many checkpoints stay on disk, this one included.
    """
    tensors, groups, scalars = flatten_optimiser(optimiser_state)
    try:
        temporary = begin_writing(folder, step)
        _write_tensors(temporary / "model.safetensors", model_state)
        _write_tensors(temporary / "optimiser.safetensors", tensors)
        state = {
            "step": step,
            "extra": dict(extra or {}),
            "optimiser": {"param_groups": groups, "scalars": scalars},
            "random": capture_random_state(),
            "files": {path.name: fingerprint(path) for path in sorted(temporary.iterdir())},
        }
        write_state(temporary, state)
        end_writing(folder, step, keep)
    except (OSError, SafetensorError) as error:
        raise not_written(folder, step, error) from error
    return _final(folder, step)


def begin_writing(folder: str | Path, step: int) -> Path:
    """An empty temporary folder for a checkpoint."""
    root = Path(folder) / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    for leftover in root.glob(f"{_TEMPORARY}*"):  # of a process that was killed while writing
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = temporary_place(folder, step)
    temporary.mkdir()
    return temporary


def temporary_place(folder: str | Path, step: int) -> Path:
    """Where a checkpoint is written."""
    return Path(folder) / "checkpoints" / f"{_TEMPORARY}{step:08d}"


def end_writing(folder: str | Path, step: int, keep: int) -> None:
    """Make what stands in the temporary folder the checkpoint of a step, and remove older ones."""
    final = _final(folder, step)
    replace_folder(temporary_place(folder, step), final)  # the loader also reads ".replaced"
    _prune(final.parent, step, keep)


def not_written(folder: str | Path, step: int, error: BaseException) -> UserError:
    """What to say when a checkpoint could not be written; its temporary folder is removed."""
    shutil.rmtree(temporary_place(folder, step), ignore_errors=True)
    full = getattr(error, "errno", None) == errno.ENOSPC or re.search(r"os error 28\b|No space left", str(error))
    return UserError(
        f"could not write checkpoint {_final(folder, step)}: {'disk full' if full else error}",
        hint=f"Free some space ({setting('keep', 1)} keeps fewer checkpoints) or choose another {option('out')}, "
        f"then {option('resume', True)}: earlier checkpoints are untouched.",
    )


def _final(folder: str | Path, step: int) -> Path:
    return Path(folder) / "checkpoints" / f"step-{step:08d}"


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint's state.json."""
    (folder / "state.json").write_text(json.dumps(sealed(state)), encoding="utf-8")


def read_state(folder: Path) -> dict[str, Any]:
    """What `write_state` wrote."""
    path, hint = folder / "state.json", "The checkpoint is not whole; use an earlier one."
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if not {"step", "extra", "optimiser", "random", "files"} <= set(state):
            raise KeyError
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", hint=hint) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{path}: not the state of a checkpoint", hint=hint) from None
    return unsealed(state, path, hint=hint)


def load_checkpoint(path: str | Path, share: tuple[int, int] = (0, 1)) -> Checkpoint:
    """Read one checkpoint folder, checking the size and CRC-32 of each file first.

    Args:
        share: (this process, of how many): of the shards of a checkpoint it reads through every so manieth.
    """
    path, hint = Path(path), "The checkpoint is not whole; use an earlier one."
    state = read_state(path)
    files, optimiser, shards = state["files"], state["optimiser"], state.get("shards")
    for number, name in enumerate(("model.safetensors", "optimiser.safetensors") if shards is None else sorted(files)):
        file = path / name
        if not file.is_file():
            of = "" if shards is None else f", one of {len(files)} shards"
            raise UserError(f"{file}: missing{of}", hint=hint)
        own = shards is None or number % share[1] == share[0]
        if (fingerprint(file) if own else [file.stat().st_size, files[name][1]]) != files.get(name):
            raise UserError(f"{file}: differs from what state.json says was written", hint=hint)
    if shards is not None:
        known = {"optimiser": optimiser, **shards}
        return Checkpoint(path, state["step"], {}, {}, state["extra"], state["random"], known)
    tensors = _read_safetensors(path / "optimiser.safetensors")
    return Checkpoint(
        path=path,
        step=state["step"],
        model_state=_read_safetensors(path / "model.safetensors"),
        optimiser_state=unflatten_optimiser(tensors, optimiser["param_groups"], optimiser["scalars"]),
        extra=state["extra"],
        random_state=state["random"],
    )


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """All tensors of a model file or folder, on the CPU, by name. Never runs code from the file.

    A folder is searched for model.safetensors, model.safetensors.index.json (shards), pytorch_model.bin and
    pytorch_model.bin.index.json, in this order. A pickle is read with `weights_only=True`; one nesting its
    weights under "model" or "state_dict", as many published ones do, is unwrapped.
    """
    path = Path(path)
    if path.is_dir():
        names = ("model.safetensors", "pytorch_model.bin")
        candidates = [path / (name + ending) for name in names for ending in ("", ".index.json")]
        found = [candidate for candidate in candidates if candidate.is_file()]
        if not found:
            raise UserError(
                f"{path}: no weights here", hint=f"Expected one of {', '.join(c.name for c in candidates)}."
            )
        path = found[0]
    if not path.is_file():
        raise UserError(f"{path}: no such file", hint="Expected a model folder, a .safetensors or a .bin file.")
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)


def capture_random_state() -> dict[str, Any]:
    """The state of Python's, NumPy's and torch's global generators (CUDA's where in use), as JSON."""
    version, numbers, gauss = random.getstate()
    legacy: Any = np.random.get_state(legacy=False)
    captured: dict[str, Any] = {
        "python": [version, list(numbers), gauss],
        "numpy": {**legacy, "state": {**legacy["state"], "key": _encode(legacy["state"]["key"])}},
        "torch": _encode(torch.get_rng_state().numpy()),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        captured["cuda"] = [_encode(state.numpy()) for state in torch.cuda.get_rng_state_all()]
    return captured


def restore_random_state(captured: Mapping[str, Any]) -> None:
    """Undo to what `capture_random_state` saw; CUDA's only if as many devices are there."""
    version, numbers, gauss = captured["python"]
    random.setstate((version, tuple(numbers), gauss))
    state = captured["numpy"]
    key = np.frombuffer(base64.b64decode(state["state"]["key"]), dtype=np.uint32)
    np.random.set_state({**state, "state": {**state["state"], "key": key}})
    torch.set_rng_state(_decode(captured["torch"]))
    if len(captured.get("cuda", [])) == torch.cuda.device_count() > 0:
        torch.cuda.set_rng_state_all([_decode(state) for state in captured["cuda"]])


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Save tensors, those that are one and the same once; the metadata says which names are aliases."""
    seen: dict[tuple[Any, ...], str] = {}
    unique: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        key = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        if tensor.numel() and key in seen:
            tied[name] = seen[key]
            continue
        seen[key] = name
        # A view into a larger tensor would be refused for sharing memory: store the view's values alone.
        whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        unique[name] = tensor if whole else tensor.clone(memory_format=torch.contiguous_format)
    save_file(unique, path, metadata={"format": "pt", "tied": json.dumps(tied)})


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            tied = json.loads((file.metadata() or {}).get("tied", "{}"))
        return tensors | {alias: tensors[name] for alias, name in tied.items()}
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"{path}: not a whole safetensors file ({error})", hint="Copy or download the file again."
        ) from None


def _read_shards(index: Path) -> dict[str, Tensor]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
        if not all(isinstance(name, str) for name in names):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{index}: not an index of shards", hint='Expected JSON with a "weight_map".') from None
    for name in names:
        if name != Path(name).name:  # an index must not point outside its folder
            raise UserError(f"{index}: shard {name!r} is not a plain file name", hint="Do not use this file.")
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise UserError(
            f"{index}: {len(missing)} of {len(names)} shards are missing: {', '.join(missing)}",
            hint=f"Copy them into {index.parent}.",
        )
    tensors: dict[str, Tensor] = {}
    for name in names:
        shard = index.parent / name
        tensors |= _read_safetensors(shard) if shard.suffix == ".safetensors" else _read_pickle(shard)
    absent = sorted(set(weight_map) - set(tensors))
    if absent:
        raise UserError(f"{index}: {absent[0]} is not in {weight_map[absent[0]]}", hint="Copy the files again.")
    return tensors


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path}: refused, it is no plain weights file ({str(error).strip().splitlines()[0]})",
            hint="A pickle can run code when opened. Ask for a .safetensors file.",
        ) from None
    except Exception as error:  # torch.load raises many kinds for a damaged file
        raise UserError(
            f"{path}: cannot be read as PyTorch weights ({error})", hint="Copy or download the file again."
        ) from None
    for key in ("model", "state_dict"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{path}: holds more than named tensors", hint="Expected a state dict.")
    return {str(name): tensor for name, tensor in content.items()}


def flatten_optimiser(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[dict[str, Any]], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Any] = {}
    for index, entries in state.get("state", {}).items():
        for name, value in entries.items():
            (tensors if isinstance(value, Tensor) else scalars)[f"{index}.{name}"] = value
    groups = [
        {key: value.item() if isinstance(value, Tensor) else value for key, value in group.items()}
        for group in state.get("param_groups", [])
    ]
    return tensors, groups, scalars


def unflatten_optimiser(
    tensors: dict[str, Tensor], groups: list[dict[str, Any]], scalars: dict[str, Any]
) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {}
    for key, value in {**tensors, **scalars}.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    for group in groups:
        if "betas" in group:
            group["betas"] = tuple(group["betas"])  # JSON has no tuples
    return {"state": state, "param_groups": groups}


def checkpoints(folder: str | Path) -> list[Path]:
    """A run's checkpoint folders, whole or not, newest first; of one step the current before the one it replaced."""
    root = Path(folder) / "checkpoints"
    found = [(match, path) for path in root.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    return [path for match, path in sorted(found, key=lambda f: (-int(f[0][1]), f[0][2] or ""))]


def _prune(root: Path, step: int, keep: int) -> None:
    kept = 0
    for path in checkpoints(root.parent):
        match = _NAME.fullmatch(path.name)
        assert match is not None
        whole = int(match[1]) <= step and match[2] is None and (path / "state.json").is_file()
        kept += whole
        if not whole or kept > max(keep, 1):
            shutil.rmtree(path, ignore_errors=True)


def _encode(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def _decode(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
