"""unmask finetune TASK MODEL DATA --out DIR: the work is each kind's own."""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def register(app: Any) -> None:
    @app.command("finetune")
    def finetune(
        task: str = typer.Argument(..., help="What to learn: classify."),
        model: options.Model = ...,  # type: ignore[assignment]
        data: str = typer.Argument(..., help="Labelled data: for images a folder with one folder a class."),
        out: str = typer.Option(..., help="Folder of the fine-tuned model."),
        validation: str = typer.Option(
            None, help="Labelled data to choose the best epoch by; default a share held out."
        ),
        config: options.Config = None,
        set_: options.Set = [],
        steps: options.Steps = None,
        epochs: options.Epochs = None,
        minutes: options.Minutes = None,
        seed: options.RunSeed = None,
        precision: options.RunPrecision = None,
        device: options.RunDevice = None,
        json_: options.Json = False,
    ) -> None:
        """Fine-tune a pretrained model on labelled data."""
        from unmask.cli.common import overrides
        from unmask.errors import UserError
        from unmask.kinds import kind_of

        given = overrides(
            config, set_, steps=steps, epochs=epochs, minutes=minutes, seed=seed, precision=precision, device=device
        )
        if kind_of(model) == "images":
            from unmask.cli import images

            images.finetune(task, model, data, validation=validation, out=out, given=given, as_json=json_)
            return
        raise UserError(f"{model}: no fine-tuning for models of this kind", hint="Known: images.")
