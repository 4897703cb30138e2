"""unmask pretrain text DATA... --out DIR"""

from __future__ import annotations

from typing import Any

import typer


def register(app: Any) -> None:
    group = typer.Typer(help="Pretrain a masked model from raw data.", no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name="pretrain")

    @group.command("text")
    def text(
        data: list[str] = typer.Argument(
            ..., help="Files, folders, globs (.txt .md .jsonl .csv .parquet, .gz) or hf:NAME."
        ),
        out: str = typer.Option(..., help="Run folder."),
        config: str = typer.Option(None, help="TOML file of settings."),
        set_: list[str] = typer.Option([], "--set", help="key=value, any setting; may be repeated."),
        recipe: str = typer.Option(None, help="bert, roberta or modern (published settings)."),
        steps: int = typer.Option(None, help="Optimiser steps."),
        epochs: float = typer.Option(None, help="Passes over the corpus."),
        minutes: float = typer.Option(None, help="Wall clock to spend."),
        seed: int = typer.Option(None, help="Decides weights, order and masks."),
        resume: bool = typer.Option(False, "--resume", help="Continue the run in --out."),
        precision: str = typer.Option(None, help="auto, fp32 or bf16."),
        device: str = typer.Option(None, help="auto, cpu or cuda."),
        tracker: list[str] = typer.Option([], help="tensorboard, wandb or mlflow; may be repeated."),
        json_: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
    ) -> None:
        """Pretrain a masked language model on raw text."""
        from unmask.cli.common import Output, overrides
        from unmask.errors import UserError, suggest
        from unmask.text.recipes import RECIPES, TextSettings, with_overrides

        if recipe is not None and recipe not in RECIPES:
            raise UserError(f"--recipe {recipe}", hint=suggest(recipe, RECIPES))
        flags = {
            "steps": steps,
            "epochs": epochs,
            "minutes": minutes,
            "seed": seed,
            "precision": precision,
            "device": device,
        }
        settings = with_overrides(TextSettings(), RECIPES.get(recipe or "", {}))
        settings = with_overrides(settings, overrides(config, set_, **flags))
        from unmask.text.pretrain import pretrain

        output = Output(json_, settings.train.seed)
        finished = pretrain(data, out, settings=settings, resume=resume, trackers=tracker)
        r = finished.result
        loss, accuracy = (r.validation.get(f"validation_{k}", float("nan")) for k in ("loss", "accuracy"))
        lines = [
            f"{r.steps} steps, {r.seconds:.0f} s, {r.slots_per_second:,.0f} real tokens/s, {r.precision} on {r.device}"
        ]
        if r.validation:
            lines += [f"held out: loss {loss:.4f} nats per hidden token, accuracy {accuracy:.1%}"]
        if r.stopped == "signal":
            lines = [f"stopped by a signal after step {r.steps}; --resume continues"]
        else:
            lines += [f"model:  {out}", f"report: {finished.folder / 'report.html'}"]
        output.write(finished.to_dict(), lines, device=r.device, precision=r.precision)
