"""unmask zeroshot MODEL FILE --label A --label B"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def register(app: Any) -> None:
    @app.command("zeroshot")
    def zeroshot(
        model: options.Model,
        data: str = typer.Argument(..., help="A file with one text a line, or a text."),
        label: list[str] = typer.Option(..., help="A label; give two or more."),
        template: list[str] = typer.Option(
            [], help="Prompt with {text} and [MASK], or hypothesis with {label} for NLI models; several are averaged."
        ),
        words: list[str] = typer.Option([], help="LABEL=word,word: what stands for a label in the prompt."),
        calibrate: str = typer.Option(
            None,
            help="Divide by what the prompt says without a text (context), by the mean over the texts (batch), or none.",
        ),
        out: str = typer.Option(None, help="Where the predictions go, .jsonl."),
        seed: options.Seed = 0,
        precision: options.Precision = "auto",
        device: options.Device = "auto",
        json_: options.Json = False,
    ) -> None:
        """Classify texts without training: by an NLI head where the model has one, else by masked prompts."""
        from unmask.cli import text_tasks

        text_tasks.zeroshot(
            model, data, label, template=template, words=words, calibrate=calibrate, out=out, seed=seed,
            precision=precision, device=device, as_json=json_,
        )  # fmt: skip
