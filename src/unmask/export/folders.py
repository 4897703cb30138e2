"""Folders for transformers and for sentence-transformers."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from unmask.errors import UserError
from unmask.files import files_below, read_json
from unmask.modalities.text.network.folder import find_folder
from unmask.modalities.text.network.sentence_files import write_sentences
from unmask.modalities.text.network.sentence_vectors import Normalize, SentenceVectors
from unmask.registry import load
from unmask.writing import check_absent, written_folder

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@contextlib.contextmanager
def whole_folder(out: str | Path) -> Iterator[Path]:
    """A folder to write into that appears under its name when all is written, by one rename, or not at all."""
    with written_folder(check_absent(out)) as new:
        yield new


def torch_type(dtype: str | None) -> Any:
    """A torch number format by our name, None for none."""
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
    model: Any, out: str | Path, *, pooling: str | None = None, normalise: bool | None = None, dtype: str | None = None
) -> dict[str, Any]:
    """A folder for sentence-transformers: the encoder, and how `embed` makes vectors of it (prompts, pooling, the
    modules behind it, how vectors are compared).

    Args:
        pooling: default as the folder says, else mean.
        normalise: to length 1; default as the folder says, else not.
    """
    chosen = chosen_sentences(model.folder.sentences, pooling, normalise)
    kind = torch_type(dtype)
    with whole_folder(out) as new:
        shutil.rmtree(new)
        model.save(new, dtype=kind)
        write_sentences(new, chosen, model.model.encoder.config.width, model.embedded_slots)
    return {"out": str(out), "bytes": (Path(out) / "model.safetensors").stat().st_size}


def chosen_sentences(sentences: SentenceVectors, pooling: str | None, normalise: bool | None) -> SentenceVectors:
    """The folder's way of making vectors, with another pooling or normalised where that was chosen."""
    after = list(sentences.after)
    if normalise is not None and normalise != sentences.normalise:
        after = [*after, Normalize()] if normalise else after[:-1]
    return dataclasses.replace(sentences, pooling=sentences.checked_pooling(pooling), after=nn.Sequential(*after))


NAMES = {
    *("config.json", "unmask.json", "README.md", "LICENSE", "LICENCE", "NOTICE", "baseline.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model"),
    *("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"),
    *("generation_config.json", "preprocessor_config.json", "model.safetensors.index.json"),
}
"""Files that are copied, beside weights (.safetensors, .onnx), here and in the folders that modules.json names."""


def share(model: str | Path, out: str | Path) -> dict[str, Any]:
    """Copy what a model of any kind is loaded from; reports, metrics, checkpoints, caches and all else stay behind.

    Returns:
        out, bytes, and `left_out`: the names of what was not copied.
    """
    folder = find_folder(str(model))
    if not folder.is_dir():
        raise UserError(f"{folder}: no folder", hint="Give a model folder.")
    modules = read_json(folder / "modules.json")
    parts = {str(m.get("path")) for m in modules if isinstance(m, dict)} if isinstance(modules, list) else set()
    copied, left = [], dict[str, None]()
    for path in files_below(folder):
        place = path.relative_to(folder)
        known = path.name in NAMES or path.suffix in (".safetensors", ".onnx")
        if known and str(place.parent) in {".", *parts}:
            copied.append(place)
        else:
            left[place.parts[0]] = None
    with whole_folder(out) as new:
        for place in copied:
            (new / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / place, new / place)
        load(new, device="cpu")
    return {
        "out": str(out),
        "bytes": sum((Path(out) / place).stat().st_size for place in copied),
        "left_out": list(left),
    }
