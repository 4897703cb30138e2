"""Folders for transformers and for sentence-transformers."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unmask.errors import UserError, option
from unmask.modalities.text.sentences import WAYS
from unmask.writing import written_folder

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@contextlib.contextmanager
def whole_folder(out: str | Path) -> Iterator[Path]:
    """A folder to write into that appears under its name when all is written, by one rename, or not at all.

    Raises:
        UserError: there is something under that name, or it cannot be written.
    """
    out = Path(out)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out}: exists", hint=f"Choose another {option('out')}, or remove it.")
    with written_folder(out) as new:
        yield new


def torch_type(dtype: str | None) -> Any:
    """A torch number format by our name, None for none.

    Raises:
        UserError: another name.
    """
    import torch

    if dtype is None:
        return None
    if dtype not in DTYPES:
        raise UserError(f"dtype={dtype}", hint=f"Expected one of {', '.join(DTYPES)}.")
    return getattr(torch, DTYPES[dtype])


def to_hf(model: Any, out: str | Path, *, dtype: str | None = None) -> dict[str, Any]:
    """A folder for transformers: the tensors that were loaded, bit for bit, unless `dtype` says otherwise."""
    kind = torch_type(dtype)
    with whole_folder(out) as new:
        shutil.rmtree(new)
        model.save(new, dtype=kind)
    return {"out": str(out), "bytes": (Path(out) / "model.safetensors").stat().st_size}


def to_sentence_transformers(
    model: Any, out: str | Path, *, pooling: str | None = None, normalise: bool = True, dtype: str | None = None
) -> dict[str, Any]:
    """A folder for sentence-transformers: the encoder, its pooling (default as it came, else mean), normalisation."""
    pooling = pooling or model.folder.sentences.pooling
    if pooling not in WAYS:
        raise UserError(f"pooling={pooling}", hint="Expected mean, first or max.")
    width = model.model.encoder.config.width
    longest = min(model.slots, model.folder.sentences.slots or model.slots)
    kind = torch_type(dtype)
    with whole_folder(out) as new:
        shutil.rmtree(new)
        model.save(new, dtype=kind)
        sentence_files(new, width, pooling, normalise, longest)
    return {"out": str(out), "bytes": (Path(out) / "model.safetensors").stat().st_size}


def sentence_files(new: Path, width: int, pooling: str, normalise: bool, longest: int) -> None:
    """The files by which sentence-transformers (and `embed` here) knows how vectors are made."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")] + ([("2_Normalize", "Normalize")] if normalise else [])
    for path, _ in modules[1:]:
        (new / path).mkdir()
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate(modules)
    ]
    chosen = {"word_embedding_dimension": width, "include_prompt": True}
    chosen |= {f"pooling_mode_{way}": way == WAYS[pooling] for way in WAYS.values()}
    _write(new / "modules.json", listed)
    _write(new / "1_Pooling" / "config.json", chosen)
    _write(new / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    _write(new / "config_sentence_transformers.json", {"similarity_fn_name": "cosine", "prompts": {}})


def _write(path: Path, what: Any) -> None:
    path.write_text(json.dumps(what, indent=2), encoding="utf-8")
