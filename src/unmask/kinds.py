"""The four kinds of data, and which of them a model folder is of: `unmask.json` says so under "kind" (text if it does not)."""

from __future__ import annotations

import gc
import importlib
from pathlib import Path
from typing import Any

from unmask.errors import UserError, suggest
from unmask.files import read_json, read_object

KINDS = {
    "text": "unmask.modalities.text",
    "table": "unmask.modalities.table",
    "images": "unmask.modalities.images",
    "events": "unmask.modalities.events",
}
"""Kind of data -> its room. A room has `model.load(folder, device=..., precision=...)` and `demo.run_demo(out, ...)`."""


MODEL_TYPES = {"vit_mae": "images", "vit": "images"}
"""`model_type` of Hugging Face folders that are not text."""
TIMM = ("vit_", "deit_")
"""How the `architecture` of timm's folders begins where it is a vision transformer."""


WEIGHTS = (".safetensors", ".pth", ".pt", ".bin")
"""Endings of bare weights files, which are read of vision transformers alone."""


def kind_of(model: str | Path) -> str:
    """Which kind of data a model folder is of. What is not a folder here is a hub name, and so text; a folder without
    unmask.json is of the kind its config.json's model_type says.

    Raises:
        UserError: unmask.json is broken or names another kind.
    """
    path = Path(model).expanduser() / "unmask.json"
    if path.parent.suffix in WEIGHTS and path.parent.is_file():
        return "images"
    found = read_json(path)
    if found is None:
        return _published_kind(path.with_name("config.json"))
    if not isinstance(found, dict):
        raise UserError(f"{path}: {type(found).__name__} in it, not an object", hint="Copy the file again.")
    kind = found.get("kind", "text")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(f"{path}: kind {kind!r}", hint=suggest(str(kind), KINDS))
    return kind


TASK_ENDINGS = {
    "ForSequenceClassification": "classify", "ForTokenClassification": "tag", "ForQuestionAnswering": "answer",
}  # fmt: skip
"""How the names of transformers classes end, and the task that a folder of theirs is for."""


def task_of(model: str | Path) -> str | None:
    """The task that a text folder was fine-tuned for, by unmask.json or else by config.json; None for no task."""
    folder = Path(model).expanduser()
    about = _entries(folder / "unmask.json")
    task = about.get("task")
    if isinstance(task, dict) and "name" in task and about.get("kind", "text") == "text":
        return str(task["name"])
    classes = _entries(folder / "config.json").get("architectures")
    first = str(classes[0]) if isinstance(classes, list) and classes else ""
    return next((task for ending, task in TASK_ENDINGS.items() if first.endswith(ending)), None)


def _import(name: str) -> Any:
    """Import a room, and with it torch, without garbage collection: a tenth of a second sooner (of one)."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        if collecting:
            gc.enable()


def _published_kind(config: Path) -> str:
    """The kind of a folder that unmask did not write, by its model_type."""
    found = _entries(config)
    if "model_type" not in found and str(found.get("architecture", "")).startswith(TIMM):
        return "images"
    return MODEL_TYPES.get(str(found.get("model_type")), "text")


def _entries(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none: reading the folder says what is wrong with it."""
    try:
        return read_object(path) or {}
    except UserError:
        return {}


def load(model: str | Path, *, device: str = "auto", precision: str = "auto", **options: Any) -> Any:
    """The model in a folder (or under a hub name, for text), ready to use.

    Args:
        device: auto, cpu or cuda.
        precision: auto, fp32 or bf16; auto picks by a short measurement.
        options: what a bare weights file of images leaves open (heads, decoder_heads, image, norm_pix); of images alone.

    Raises:
        UserError: naming what is missing, corrupt or does not fit together.
    """
    kind = kind_of(model)
    if options and kind != "images":
        raise UserError(f"{next(iter(options))}=: not read for {kind}", hint="It is for bare weights files of images.")
    if kind == "table" and (device not in ("auto", "cpu") or precision not in ("auto", "fp32")):
        raise UserError(
            f"device={device}, precision={precision}: tables compute on the CPU in fp32", hint="Leave both out."
        )
    room = _import(f"{KINDS[kind]}.model")
    return room.load(model, device=device, precision=precision, **options)
