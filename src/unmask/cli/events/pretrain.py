"""unmask pretrain events MEDS_DIR --out DIR"""

from __future__ import annotations

import typer

from unmask.cli import options


def pretrain(
    context: typer.Context,
    data: str = typer.Argument(
        ..., help="MEDS folder: data/*.parquet with subject_id, time, code, numeric_value; or what prepare made."
    ),
    out: str = typer.Option(..., help="Run folder."),
    config: options.Config = None,
    set_: options.Set = [],
    recipe: str = typer.Option(
        None, help="ours (default), ask (answers questions), behrt, medbert, cehrbert or corebehrt."
    ),
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
    """Pretrain a masked model on patients' events."""
    from unmask.cli.common import Output, run_lines, run_overrides, with_recipe
    from unmask.modalities.events.network.prepared import prepared_settings
    from unmask.modalities.events.recipes import RECIPES, EventSettings, with_overrides

    given = run_overrides(context)
    known = with_overrides(EventSettings(), prepared_settings(data))
    settings = with_recipe(recipe, RECIPES, known, with_overrides, given)
    from unmask.modalities.events.uses.pretrain import pretrain as run

    output = Output(json_, settings.train.seed)
    finished = run(data, out, settings=settings, resume=resume, trackers=tracker)
    r = finished.result
    rules = "".join(f"; {name} {share:.1%}" for name, share in finished.data.get("rules", {}).items())
    lines = run_lines(
        r,
        out,
        rate=f"{r.slots_per_second:,.0f} events/s",
        held="held-out patients: loss {loss:.3f} nats a hidden event, code accuracy {accuracy:.1%}" + rules,
    )
    output.write(finished.to_dict(), lines, device=r.device, precision=r.precision)
