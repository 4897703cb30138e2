"""unmask export MODEL --to hf|sentence-transformers|onnx --out DIR"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def register(app: Any) -> None:
    @app.command("export")
    def export(
        model: options.Model,
        to: str = typer.Option("hf", help="hf, sentence-transformers or onnx."),
        out: str = typer.Option(..., help="Folder to write; it appears whole or not at all."),
        quantize: str | None = typer.Option(None, help="onnx: int8 writes model_int8.onnx too."),
        dtype: str | None = typer.Option(None, help="fp32, bf16 or fp16; default as loaded."),
        pooling: str | None = typer.Option(
            None, help="sentence-transformers: mean, first or max; default as the folder says, else mean."
        ),
        json_: options.Json = False,
    ) -> None:
        """Write a model for transformers, sentence-transformers or onnxruntime."""
        from unmask.cli.common import Output
        from unmask.errors import UserError
        from unmask.export.folders import to_hf, to_sentence_transformers
        from unmask.kinds import kind_of, load

        if to not in ("hf", "sentence-transformers", "onnx"):
            raise UserError(f"--to {to}", hint="Expected hf, sentence-transformers or onnx.")
        if kind_of(model) != "text":
            raise UserError(f"{model}: not a text model", hint="Other kinds are folders of ours; copy them.")
        if quantize and to != "onnx":
            raise UserError(f"--quantize with --to {to}", hint="Use --to onnx, or --dtype bf16.")
        output = Output(json_)
        loaded = load(model, device="cpu", precision="fp32")
        if to == "onnx":
            from unmask.export.onnx import to_onnx

            found = to_onnx(loaded, out, quantize=quantize)
        elif to == "hf":
            found = to_hf(loaded, out, dtype=dtype)
        else:
            found = to_sentence_transformers(loaded, out, pooling=pooling, dtype=dtype)
        output.write(found, [f"{name:24}{value}" for name, value in found.items()])
