"""unmask export MODEL --to hf|sentence-transformers|onnx|share --out DIR"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import Result
from unmask.errors import UserError, suggest
from unmask.registry import kind_of, load

FORMATS = ("hf", "sentence-transformers", "onnx", "share")


def chosen(words: Sequence[str], given: Mapping[str, str]) -> str | None:
    """The case of `export`: what it writes."""
    to = given.get("--to", FORMATS[0])
    if to not in FORMATS:
        raise UserError(f"--to {to}", hint=suggest(to, FORMATS))
    return to if words or "--to" in given else None


def export(
    model: options.Model,
    to: str = typer.Option(
        "hf",
        help="hf, sentence-transformers, onnx, or share: a model of any kind without report, cache, checkpoints.",
    ),
    out: str = typer.Option(..., help="Folder to write; it appears whole or not at all."),
    quantize: str | None = typer.Option(None, help="int8 writes model_int8.onnx too."),
    texts: str | None = options.source_option(
        "--quantize int8: a file of texts, one per line, that its answers are measured on."
    ),
    dtype: str | None = typer.Option(None, help="fp32, bf16 or fp16 (onnx: fp32); default as loaded."),
    pooling: str | None = typer.Option(None, help="mean, first or max; default as the folder says, else mean."),
) -> Result:
    """Write a model for transformers, sentence-transformers or onnxruntime, with the head that it is for."""

    if to == "share":
        from unmask.export.folders import share

        return _shown(share(model, out))
    from unmask.cli.text.uses import file_lines
    from unmask.export.folders import DTYPES, to_hf, to_sentence_transformers

    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"--dtype {dtype}", hint=f"Expected {', '.join(DTYPES)}; int8: --to onnx --quantize int8.")
    if to == "onnx" and dtype not in (None, "fp32"):
        raise UserError(
            f"--to onnx --dtype {dtype}: ONNX files are written in fp32",
            hint="--quantize int8 writes a smaller one beside it; hf and sentence-transformers folders take --dtype.",
        )
    if quantize not in (None, "int8"):
        raise UserError(f"--quantize {quantize}", hint="Expected int8.")
    if texts is not None and quantize is None:
        raise UserError("--texts without --quantize int8", hint="They are what the 8-bit file is measured on.")
    if kind_of(model) != "text":
        raise UserError(f"{model}: not a text model", hint="Other kinds are folders of ours: --to share copies them.")
    measured = None if texts is None else file_lines(texts)
    loaded = load(model, device="cpu", precision="fp32")
    if to == "onnx":
        from unmask.export.onnx import to_onnx

        found = to_onnx(loaded, out, quantize=quantize, pooling=pooling, texts=measured)
    elif to == "hf":
        found = to_hf(loaded, out, dtype=dtype)
    else:
        found = to_sentence_transformers(loaded, out, pooling=pooling, dtype=dtype)
    return _shown(found)


def _shown(found: dict[str, Any]) -> Result:
    shown = {
        k: ", ".join(v) if isinstance(v, list) else f"{v:.4g}" if isinstance(v, float) else v for k, v in found.items()
    }
    return Result(found, [f"{name:24}{value}" for name, value in shown.items()])


def surgery(
    model: options.Model,
    out: str = typer.Option(..., help="Folder to write."),
    positions: int | None = typer.Option(None, help="Take texts of this many tokens."),
    prune: str | None = options.source_option("Text file: keep the tokens it needs."),
    pad_vocabulary: int | None = typer.Option(None, help="Round the tables up to a multiple of this (64)."),
) -> Result:
    """Longer positions, a smaller vocabulary, round tables; what the model says stays the same."""
    from unmask.cli.text.uses import file_lines
    from unmask.export import surgery
    from unmask.export.folders import to_hf

    if kind_of(model) != "text":
        raise UserError(f"{model}: not a text model", hint="Surgery is for text models.")
    if positions is None and prune is None and pad_vocabulary is None:
        raise UserError("nothing to do", hint="Give --positions, --prune or --pad-vocabulary.")
    corpus = None if prune is None else file_lines(prune)
    loaded = load(model, device="cpu", precision="fp32")
    found: dict[str, Any] = {}
    if positions is not None:
        surgery.extend_positions(loaded, positions)
        found["positions"] = positions
    if corpus is not None:
        found |= surgery.prune_vocabulary(loaded, corpus)
    if pad_vocabulary is not None:
        found["rows_added"] = surgery.pad_vocabulary(loaded, pad_vocabulary)
    found |= to_hf(loaded, out)
    return Result(found, [f"{name:24}{value}" for name, value in found.items()])
