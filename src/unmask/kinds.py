"""The four kinds of data, and which of them a model folder is of: `unmask.json` says so under "kind" (text if it does not)."""

from __future__ import annotations

import gc
import importlib
import json
from pathlib import Path
from typing import Any

from unmask.errors import UserError, suggest

KINDS = {"text": "unmask.text", "table": "unmask.table", "images": "unmask.images", "events": "unmask.events"}
"""Kind of data -> its room. A room has `model.load(folder, device=..., precision=...)` and `demo.run_demo(out, ...)`."""


def kind_of(model: str | Path) -> str:
    """Which kind of data a model folder is of. What is not a folder here is a hub name, and so text.

    Raises:
        UserError: unmask.json is broken or names another kind.
    """
    path = Path(model).expanduser() / "unmask.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return "text"
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})", hint="Copy the file again.") from None
    kind = found.get("kind", "text") if isinstance(found, dict) else "text"
    if kind not in KINDS:
        raise UserError(f"{path}: kind {kind!r}", hint=suggest(str(kind), KINDS))
    return str(kind)


def _import(name: str) -> Any:
    """Import a room, and with it torch, without garbage collection: a tenth of a second sooner (of one)."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        if collecting:
            gc.enable()


def load(model: str | Path, *, device: str = "auto", precision: str = "auto") -> Any:
    """The model in a folder (or under a hub name, for text), ready to use.

    Args:
        device: auto, cpu or cuda.
        precision: auto, fp32 or bf16; auto picks by a short measurement.

    Raises:
        UserError: naming what is missing, corrupt or does not fit together.
    """
    room = _import(f"{KINDS[kind_of(model)]}.model")
    return room.load(model, device=device, precision=precision)
