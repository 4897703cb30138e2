"""unmask pretrain text DATA... --out DIR"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def register(group: Any) -> None:
    @group.command("text")
    def text(
        context: typer.Context,
        data: list[str] = typer.Argument(
            ..., help="Files, folders, globs (.txt .md .jsonl .csv .parquet, .gz) or hf:NAME."
        ),
        out: str = typer.Option(..., help="Run folder."),
        config: options.Config = None,
        set_: options.Set = [],
        recipe: str = typer.Option(None, help="bert, roberta, electra or modern (published settings)."),
        steps: options.Steps = None,
        epochs: options.Epochs = None,
        minutes: options.Minutes = None,
        seed: options.RunSeed = None,
        resume: options.Resume = False,
        precision: options.RunPrecision = None,
        device: options.RunDevice = None,
        tracker: options.Trackers = [],
        json_: options.Json = False,
    ) -> None:
        """Pretrain a masked language model on raw text."""
        from unmask.cli.common import Output, run_lines, run_overrides, with_recipe
        from unmask.modalities.text.recipes import RECIPES, TextSettings, with_overrides

        given = run_overrides(context)
        settings = with_recipe(recipe, RECIPES, TextSettings(), with_overrides, given)
        from unmask.modalities.text.pretrain import pretrain

        output = Output(json_, settings.train.seed)
        finished = pretrain(data, out, settings=settings, resume=resume, trackers=tracker)
        r = finished.result
        lines = run_lines(
            r, out, rate=f"{r.slots_per_second:,.0f} real tokens/s",
            held="held out: loss {loss:.4f} nats per hidden token, accuracy {accuracy:.1%}",
        )  # fmt: skip
        output.write(finished.to_dict(), lines, device=r.device, precision=r.precision)
