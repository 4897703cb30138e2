"""unmask predict MODEL INPUT --out F.jsonl"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def register(app: Any) -> None:
    @app.command("predict")
    def predict(
        model: options.Model,
        data: str = typer.Argument(..., help="What to predict for: for images a folder or file."),
        out: str = typer.Option(..., help="One JSON object an input, in order (.jsonl)."),
        precision: options.Precision = "auto",
        device: options.Device = "auto",
        json_: options.Json = False,
    ) -> None:
        """Predict with a fine-tuned model."""
        from unmask.errors import UserError
        from unmask.kinds import kind_of

        if kind_of(model) == "images":
            from unmask.cli import images

            images.predict(model, data, out=out, precision=precision, device=device, as_json=json_)
            return
        raise UserError(f"{model}: nothing to predict with models of this kind", hint="Known: images.")
