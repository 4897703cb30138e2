"""Which models are served, under which names: from what the command was given."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from unmask.errors import UserError, option
from unmask.files import files_below, fingerprint
from unmask.plugins import resolve
from unmask.registry import kind_of, modality
from unmask.serving.kserve import infer
from unmask.serving.limits import Limits
from unmask.serving.verbs import Served

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
LOADED = (".json", ".safetensors", ".onnx", ".bin", ".txt", ".model")
"""Suffixes of the files that a model is loaded from."""


def named(given: Sequence[str]) -> dict[str, str]:
    """Name -> folder, from folders and NAME=FOLDER.

    >>> named(["models/a", "b=models/other"])
    {'a': 'models/a', 'b': 'models/other'}
    """
    found: dict[str, str] = {}
    for one in given:
        name, equals, folder = one.partition("=")
        if not equals or "/" in name:
            name, folder = Path(one).expanduser().resolve().name if Path(one).exists() else one.rsplit("/", 1)[-1], one
        if not NAME.fullmatch(name):
            raise UserError(f"{one}: served as {name!r}", hint="Name it, with letters and digits: NAME=FOLDER.")
        if name in found:
            raise UserError(f"two models named {name!r}: {found[name]} and {folder}", hint="Name one: NAME=FOLDER.")
        found[name] = folder
    return found


def contents(models: Mapping[str, str]) -> dict[str, Any]:
    """Folder -> size and CRC-32 of each file that a model is loaded from; of what is no folder here, nothing."""
    found: dict[str, Any] = {}
    for folder in models.values():
        files = [
            one for one in files_below(folder, hidden=[]) if one.suffix in LOADED and "checkpoints" not in one.parts
        ]
        found[folder] = {str(one): fingerprint(one) for one in files}
    return found


def check_contents(models: Mapping[str, str], began: Mapping[str, Any]) -> None:
    """Compare folders with what they held when the server began: all its processes answer from the same models."""
    try:
        now = contents(models)
    except OSError:  # a file that is being replaced
        now = {}
    for name, folder in models.items():
        if now.get(folder) != began[folder]:
            raise UserError(
                f"{name}: its folder was replaced since the server began", hint="End the server, and start it again."
            )


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Within, no garbage is looked for; what was made within, modules and models, is never looked through again.

    It all stays as long as the process: looking through it takes a tenth of a second, in the middle of an answer.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collecting:
            gc.enable()


def load_served(models: Mapping[str, str], limits: Limits, *, device: str, precision: str) -> dict[str, Served]:
    """Load models as their modalities serve them, in a thread of its own that ends with that.

    The threads of OpenMP that its products are shared out to end with it. Kept beside those of the threads that answer,
    they would be more than there are cores, and then none of them (in GNU's OpenMP) wait awake for the next product:
    one text through MiniLM-L6 takes 16.5 ms on two cores, and 11 without them.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="loading") as loading:
        how = {"device": device, "precision": precision}
        found = {name: loading.submit(serve, folder, limits, **how).result() for name, folder in models.items()}
    return {
        name: dataclasses.replace(one, dialects={**one.dialects, "v2/infer": infer(name, one.verbs)})
        for name, one in found.items()
    }


def serve(folder: str, limits: Limits, *, device: str = "auto", precision: str = "auto") -> Served:
    """One model as its modality serves it; see `Modality.serves`."""
    inside = [str(one) for one in Path(folder).glob("*/") if (one / "config.json").is_file()]
    if inside and not (Path(folder) / "config.json").exists():
        raise UserError(f"{folder}: no model, but {', '.join(sorted(inside)[:5])} in it", hint="Name that folder.")
    kind = modality(kind_of(folder))
    if kind.serves is None:
        raise UserError(
            f"{folder}: models of {kind.plural} are not served", hint="Their package would have to say how."
        )
    made = resolve(kind.serves)
    wished = {name: value for name, value in (("device", device), ("precision", precision)) if value != "auto"}
    known = inspect.signature(made).parameters
    for name in wished:
        if name not in known:
            raise UserError(f"{option(name, wished[name])}: not read for {kind.plural}", hint="Leave it out.")
    found = made(folder, limits=limits, **wished)
    assert isinstance(found, Served)
    return found
