"""A copy of a model folder to hand on: what a model is loaded from, its card and licence, and nothing of the run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.export.folders import whole_folder
from unmask.files import files_below, read_json
from unmask.modalities.text.network.folder import find_folder
from unmask.registry import load

NAMES = {
    *("config.json", "unmask.json", "README.md", "LICENSE", "LICENCE", "NOTICE", "beside.json"),
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
