"""unmask pretrain images DIR|FILE --out DIR"""

from __future__ import annotations

import typer

from unmask.cli import options
from unmask.cli.common import Result, run_lines, with_recipe


def pretrain(
    flags: options.RunOptions,
    data: list[str] = typer.Argument(
        ..., help="A folder of pictures (class folders or flat), files, .npy, .npz, .idx.gz, .parquet or hf:NAME."
    ),
    out: str = typer.Option(..., help="Run folder."),
    recipe: str = typer.Option(None, help="small (default), pixels, mae, simmim, lejepa, simclr or ijepa."),
    strict: bool = typer.Option(False, "--strict", help="A picture that cannot be read is an error, not skipped."),
    examples: options.Examples = False,
    tracker: options.Trackers = [],
) -> Result:
    """Pretrain a masked image model on pictures."""
    from unmask.modalities.images.recipes import DEFAULT, RECIPES, ImageSettings, with_overrides

    given = flags.overrides(strict=strict or None, examples=examples or None)
    settings = with_recipe(recipe or DEFAULT, RECIPES, ImageSettings(), with_overrides, given)
    from unmask.modalities.images.uses.pretrain import pretrain as run

    finished = run(data, out, settings=settings, resume=flags.resume, trackers=tracker)
    r = finished.result
    skipped = finished.data["skipped"]
    notes = [f"skipped {skipped} pictures that cannot be read"] if skipped else []
    if rank := finished.data.get("effective_rank"):
        notes.append(f"embeddings of held-out pictures spread over {rank:.1f} directions")
    rules = "".join(f"; {name} {loss:.4f}" for name, loss in finished.data.get("rules", {}).items())
    lines = run_lines(
        r,
        out,
        rate=f"{finished.images_per_second:,.0f} images/s",
        held="held out: loss {loss:.4f}" + (" per hidden patch" if settings.target == "pixels" else "") + rules,
        notes=notes,
    )
    return Result(finished.to_dict(), lines)
