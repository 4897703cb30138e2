"""unmask adapt MODEL DATA... --out DIR"""

from __future__ import annotations

from typing import Any

import typer


def register(app: Any) -> None:
    @app.command("adapt")
    def adapt_command(
        model: str = typer.Argument(..., help="Model folder or hub name."),
        data: list[str] = typer.Argument(..., help="Domain text: files, folders, globs."),
        out: str = typer.Option(..., help="Folder of the adapted model."),
        general: list[str] = typer.Option([], help="General text to guard against forgetting; may be repeated."),
        config: str = typer.Option(None, help="TOML file of settings."),
        set_: list[str] = typer.Option([], "--set", help="key=value, any setting; may be repeated."),
        steps: int = typer.Option(None, help="Optimiser steps."),
        epochs: float = typer.Option(None, help="Passes over the corpus."),
        minutes: float = typer.Option(None, help="Wall clock to spend."),
        seed: int = typer.Option(None),
        resume: bool = typer.Option(False, "--resume", help="Continue the run in --out."),
        precision: str = typer.Option(None, help="auto, fp32 or bf16."),
        device: str = typer.Option(None, help="auto, cpu or cuda."),
        json_: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
    ) -> None:
        """Continue pretraining on your own text; stops early, watches for forgetting."""
        from unmask.cli.common import Output, overrides
        from unmask.text.adapt import ADAPT, adapt
        from unmask.text.recipes import TextSettings, with_overrides

        flags = {
            "steps": steps,
            "epochs": epochs,
            "minutes": minutes,
            "seed": seed,
            "precision": precision,
            "device": device,
        }
        settings = with_overrides(with_overrides(TextSettings(), ADAPT), overrides(config, set_, **flags))
        output = Output(json_, settings.train.seed)
        found = adapt(model, data, out, settings=settings, general=general or None, resume=resume)
        lines = [f"{'':24}{'before':>10}{'after':>10}"]
        lines += [f"{name:24}{before:10.4f}{after:10.4f}" for name, before, after in found.table()]
        lines += [f"model:  {out}", f"report: {out}/report.html"]
        r = found.run.result
        output.write(found.to_dict(), lines, device=r.device, precision=r.precision)
