"""Which modalities there are, which of them a model folder is of, and `load`.

Modalities are found by entry points of the group `unmask.modalities`, so an installed package adds one without an edit
here. Those of unmask are known without metadata too, so that it runs from a source tree. Nothing is imported before
it is asked for.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from pathlib import Path
from typing import Any

from unmask.errors import UserError, suggest
from unmask.files import read_json, read_object
from unmask.modality import Modality
from unmask.plugins import Plugins, installed_model, resolve
from unmask.remote import check_on_hub
from unmask.writing import SAVED, brought_to_an_end

MODALITIES = Plugins(
    group="unmask.modalities",
    noun="modality",
    built_in={n: f"unmask.modalities.{n}.registration:MODALITY" for n in ("text", "table", "images", "events")},
)
"""Those of unmask itself stand in pyproject.toml as well, as anybody's do."""

DEFAULT = "text"
"""What a folder is of where nothing says otherwise: published models, and names on the Hugging Face hub."""


def names() -> list[str]:
    """The names of all modalities that are announced: those of unmask first, then the others by name."""
    return MODALITIES.names()


def modality(name: str) -> Modality:
    """The modality of that name."""
    found = MODALITIES.load(name)
    if not isinstance(found, Modality) or found.name != name:
        what = f"the modality {found.name!r}" if isinstance(found, Modality) else f"a {type(found).__name__}"
        raise UserError(
            f"modality {name!r} of {MODALITIES.origin(name)} is {what}",
            hint=f"Expected an unmask.Modality named {name!r}.",
        )
    return found


def modalities() -> dict[str, Modality]:
    """All modalities by name; one that cannot be had is left out, with a warning of one line."""
    found = {}
    for name in names():
        try:
            found[name] = modality(name)
        except UserError as error:
            _warn(f"{error.what}; it is left out ({error.hint.rstrip('.')})")
    for line in MODALITIES.left_out():
        _warn(line)
    return found


@functools.cache
def _warn(line: str) -> None:
    """Say it, once."""
    warnings.warn(line, stacklevel=3)


def kind_of(model: str | Path) -> str:
    """The name of the modality that a model folder is of.

    What is neither a folder here nor the name of a model that a package brings is a hub name, and so text. A folder
    without unmask.json is of the modality that knows the model_type (or architecture) in its config.json.
    """
    path = Path(installed_model(model) or model).expanduser() / "unmask.json"
    if path.parent.suffix and path.parent.is_file():
        return next((m.name for m in modalities().values() if path.parent.suffix in m.weights), DEFAULT)
    brought_to_an_end(path.parent)
    found = read_json(path)
    if found is None:
        return _published_kind(path.with_name("config.json"))
    if not isinstance(found, dict):
        raise UserError(f"{path}: {type(found).__name__} in it, not an object", hint="Copy the file again.")
    kind = found.get("kind", DEFAULT)
    if not isinstance(kind, str) or kind not in names():
        raise UserError(
            f"{path}: kind {kind!r}",
            hint=f"{suggest(str(kind), names())} Others come with packages: is the one of this folder installed?",
        )
    return kind


def _published_kind(config: Path) -> str:
    """The modality of a folder that unmask did not write, by its config.json.

    The default where that cannot be read: loading says what is wrong with it.
    """
    if not config.is_file():
        return DEFAULT
    try:
        found = read_object(config) or {}
    except UserError:
        return DEFAULT
    for one in modalities().values():
        if "model_type" in found:
            if found["model_type"] in one.model_types:
                return one.name
        elif one.architectures and str(found.get("architecture", "")).startswith(one.architectures):
            return one.name
    return DEFAULT


def is_model(place: str | Path) -> bool:
    """Whether a model is there: a folder with its config, or a file of bare weights."""
    path = Path(place).expanduser()
    if os.path.isdir(path):
        return any((path / name).exists() for name in ("unmask.json", "config.json", "modules.json", SAVED))
    return os.path.isfile(path) and any(path.suffix in one.weights for one in modalities().values())


def check_model(model: str | Path) -> None:
    """Refuse what can be no model, before anything is imported to load it: of a name on the hub one small file."""
    path, name = Path(model).expanduser(), str(model)
    if is_model(path) or installed_model(model) is not None:
        return
    if os.path.isdir(path):
        inside = sorted(p.parent.name for p in path.glob("*/*.json") if is_model(p.parent))
        hint = f"Did you mean {path / inside[0]}?" if inside else "Expected config.json or unmask.json in it."
        raise UserError(f"{name}: no model in this folder", hint=hint)
    if os.path.exists(path):
        raise UserError(f"{name}: a file, not the folder of a model", hint="Give a folder with config.json.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or ("/" in name and path.parent.is_dir()):
        raise UserError(f"{name}: no such model folder", hint="Give a folder with config.json, or a hub name.")
    check_on_hub(name)


def load(
    model: str | Path, *, kind: str | None = None, device: str = "auto", precision: str = "auto", **options: Any
) -> Any:
    """The model in a folder (or under a hub name, for text; or that an installed package brings), ready to use.

    Args:
        kind: which modality it must be of, so that editors know its class: text, table, images, events, or another
            package's.
        device: auto, cpu or cuda.
        precision: auto, fp32 or bf16; auto picks by a short measurement.
        options: what the modality's own `load` reads besides; for images what a bare weights file leaves open (heads,
            decoder_heads, image, norm_pix).

    Raises:
        UserError: naming what is missing, corrupt or does not fit together; a model of another kind.
    """
    found = kind_of(model)
    if kind not in (None, found):
        raise UserError(f"{model}: a model of {modality(found).plural}", hint=f"kind={kind!r} was asked for.")
    kind, model = found, installed_model(model) or model
    loader = resolve(modality(kind).load)
    parameters = inspect.signature(loader).parameters
    if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
        for name in options:
            if name not in parameters:
                raise UserError(
                    f"{name}=: not read for {kind}", hint=f"Models of {modality(kind).plural} have no such option."
                )
    return loader(model, device=device, precision=precision, **options)
