"""What a folder says of embedding (sentence-transformers' files, or ours of a similarity model): pooling, normalisation, length."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unmask.errors import UserError

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
        return Sentences(pooling=task["pooling"], normalise=True, slots=task["slots"], given=True)
    if not (folder / "modules.json").exists():
        return Sentences()
    modules = _read(folder / "modules.json")
    kinds = {str(m.get("type", "")).rsplit(".", 1)[-1]: str(m.get("path", "")) for m in modules}
    chosen: dict[str, Any] = {"normalise": "Normalize" in kinds, "given": True}
    limit = folder / "sentence_bert_config.json"
    if limit.exists() and (slots := _read(limit).get("max_seq_length")):
        chosen["slots"] = int(slots)
    if "Pooling" in kinds:
        path = folder / kinds["Pooling"] / "config.json"
        about = _read(path)
        on = [k.removeprefix("pooling_mode_") for k, v in about.items() if k.startswith("pooling_mode_") and v]
        on = on or [{"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}.get(m, m) for m in _listed(about)]
        named = {way: name for name, way in WAYS.items()}
        if len(on) != 1 or on[0] not in named:
            raise UserError(f"{path}: pooling {', '.join(on) or 'none'}", hint="Known: one of mean, cls and max.")
        chosen["pooling"] = named[on[0]]
    return Sentences(**chosen)


def _listed(about: dict[str, Any]) -> list[str]:
    mode = about.get("pooling_mode") or []
    return [mode] if isinstance(mode, str) else list(mode)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}", hint="A sentence-transformers folder has JSON there.") from None
