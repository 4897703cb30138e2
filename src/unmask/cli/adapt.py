"""unmask adapt MODEL DATA... --out DIR"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def register(app: Any) -> None:
    @app.command("adapt")
    def adapt_command(
        context: typer.Context,
        model: options.Model,
        data: list[str] = typer.Argument(..., help="Domain text: files, folders, globs."),
        out: str = typer.Option(..., help="Folder of the adapted model."),
        general: list[str] = typer.Option([], help="General text to guard against forgetting; may be repeated."),
        config: options.Config = None,
        set_: options.Set = [],
        steps: options.Steps = None,
        epochs: options.Epochs = None,
        minutes: options.Minutes = None,
        seed: options.RunSeed = None,
        resume: options.Resume = False,
        precision: options.RunPrecision = None,
        device: options.RunDevice = None,
        json_: options.Json = False,
    ) -> None:
        """Continue pretraining on your own text; stops early, watches for forgetting."""
        from unmask.cli.common import Output, run_overrides
        from unmask.modalities.text.adapt import adapt, adapt_settings

        given = run_overrides(context)
        settings = adapt_settings(given)
        output = Output(json_, settings.train.seed)
        found = adapt(model, data, out, settings=settings, general=general or None, resume=resume)
        lines = [f"{'':24}{'before':>10}{'after':>10}"]
        lines += [f"{name:24}{before:>10}{after:>10}" for name, before, after in found.table()]
        lines += [f"model:  {out}", f"report: {out}/report.html"]
        r = found.run.result
        output.write(found.to_dict(), lines, device=r.device, precision=r.precision)
