"""unmask pretrain images DIR|FILE --out DIR"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def register(group: Any) -> None:
    @group.command("images")
    def images(
        data: list[str] = typer.Argument(
            ..., help="A folder of pictures (class folders or flat), files, .npy, .npz, .idx.gz, .parquet or hf:NAME."
        ),
        out: str = typer.Option(..., help="Run folder."),
        config: options.Config = None,
        set_: options.Set = [],
        recipe: str = typer.Option(None, help="small (default), mae or simmim (published settings)."),
        strict: bool = typer.Option(False, "--strict", help="A picture that cannot be read is an error, not skipped."),
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
        """Pretrain a masked image model on pictures."""
        from unmask.cli.common import Output, overrides
        from unmask.errors import UserError, suggest
        from unmask.images.recipes import RECIPES, ImageSettings, with_overrides

        if recipe is not None and recipe not in RECIPES:
            raise UserError(f"--recipe {recipe}", hint=suggest(recipe, RECIPES))
        given = overrides(
            config, set_, steps=steps, epochs=epochs, minutes=minutes, seed=seed, precision=precision, device=device,
            strict=strict or None,
        )  # fmt: skip
        settings = with_overrides(with_overrides(ImageSettings(), RECIPES.get(recipe or "", {})), given)
        from unmask.images.pretrain import pretrain

        output = Output(json_, settings.train.seed)
        finished = pretrain(data, out, settings=settings, resume=resume, trackers=tracker)
        r = finished.result
        lines = [
            f"{r.steps} steps, {r.seconds:.0f} s, {finished.images_per_second:,.0f} images/s, {r.precision} on {r.device}"
        ]
        if finished.data["skipped"]:
            lines += [f"skipped {finished.data['skipped']} pictures that cannot be read"]
        if r.validation:
            lines += [f"held out: loss {r.validation['validation_loss']:.4f} a hidden patch"]
        if r.stopped == "signal":
            lines = [f"stopped by a signal after step {r.steps}; --resume continues"]
        else:
            lines += [f"model:  {out}", f"report: {finished.folder / 'report.html'}"]
        output.write(finished.to_dict(), lines, device=r.device, precision=r.precision)
