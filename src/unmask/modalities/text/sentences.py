"""What a folder says of embedding (sentence-transformers' files, or ours of a similarity model): pooling,
normalisation, length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unmask.errors import UserError
from unmask.files import read_json, read_object

WAYS = {"mean": "mean_tokens", "first": "cls_token", "max": "max_tokens"}


@dataclass(frozen=True, kw_only=True)
class Sentences:
    """How a folder's vectors are made.

    Attributes:
        pooling: mean, first or max.
        normalise: to length 1.
        slots: longest text in tokens, special ones included; None for the model's own.
        given: whether the folder said so; else these are the defaults.
    """

    pooling: Literal["mean", "first", "max"] = "mean"
    normalise: bool = False
    slots: int | None = None
    given: bool = False


def read_sentences(folder: Path, task: Mapping[str, Any]) -> Sentences:
    """The settings of a sentence-transformers folder, or of training for similarity; else plain mean pooling.

    Args:
        task: what unmask.json says of fine-tuning.

    Raises:
        UserError: a pooling we do not have, or files that are not JSON.
    """
    if task.get("name") == "similarity":
        if task.get("pooling") not in WAYS or not _length(task.get("slots")):
            raise UserError(
                f"{folder}/unmask.json: a similarity task with pooling {task.get('pooling')!r} and slots "
                f"{task.get('slots')!r}",
                hint=f"Expected one of {', '.join(WAYS)}, and a whole number.",
            )
        return Sentences(pooling=task["pooling"], normalise=True, slots=task["slots"], given=True)
    modules = read_json(folder / "modules.json")
    if modules is None:
        return Sentences()
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise UserError(
            f"{folder}/modules.json: not a list of modules", hint="A sentence-transformers folder has one there."
        )
    kinds = {str(m.get("type", "")).rsplit(".", 1)[-1]: str(m.get("path", "")) for m in modules}
    chosen: dict[str, Any] = {"normalise": "Normalize" in kinds, "given": True}
    slots = (read_object(folder / "sentence_bert_config.json") or {}).get("max_seq_length")
    if slots is not None and not _length(slots):
        raise UserError(
            f"{folder}/sentence_bert_config.json: max_seq_length {slots!r}", hint="Expected a whole number."
        )
    chosen["slots"] = slots
    if "Pooling" in kinds:
        place = Path(kinds["Pooling"])
        if place.is_absolute() or ".." in place.parts:  # modules.json must not point outside its folder
            raise UserError(f"{folder}/modules.json: path {str(place)!r}", hint="Expected a folder in this one.")
        path = folder / place / "config.json"
        about = read_object(path)
        if about is None:
            raise UserError(f"{path}: no such file", hint="A sentence-transformers folder has JSON there.")
        on = [k.removeprefix("pooling_mode_") for k, v in about.items() if k.startswith("pooling_mode_") and v is True]
        on = on or [{"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}.get(m, m) for m in _listed(about)]
        named = {way: name for name, way in WAYS.items()}
        if len(on) != 1 or on[0] not in named:
            raise UserError(f"{path}: pooling {', '.join(on) or 'none'}", hint="Known: one of mean, cls and max.")
        chosen["pooling"] = named[on[0]]
    return Sentences(**chosen)


def _length(slots: Any) -> bool:
    return isinstance(slots, int) and not isinstance(slots, bool) and slots > 2


def _listed(about: dict[str, Any]) -> list[str]:
    mode = about.get("pooling_mode") or []
    return [mode] if isinstance(mode, str) else [str(m) for m in mode] if isinstance(mode, list) else [str(mode)]
