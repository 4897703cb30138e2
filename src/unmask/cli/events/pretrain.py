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
    from unmask.modalities.events.network.prepare import prepared_settings
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


def prepare(
    context: typer.Context,
    data: str = typer.Argument(..., help="MEDS folder (data/*.parquet), or the URL of one (s3:// gs://)."),
    out: str = typer.Option(
        ..., help="Folder of the prepared events: what `unmask pretrain events` takes as its data."
    ),
    workers: options.Workers = None,
    engine: options.Engine = "local",
    config: options.Config = None,
    set_: options.Set = [],
    seed: options.RunSeed = None,
    json_: options.Json = False,
) -> None:
    """Read patients' events of any number for pretraining, on all cores or on a Ray cluster. Run again, it goes on."""
    from unmask.cli.common import Output, on_stderr, run_overrides
    from unmask.modalities.events.network.prepare import prepare as run
    from unmask.modalities.events.recipes import EventSettings, with_overrides

    settings = with_overrides(EventSettings(), run_overrides(context))
    output = Output(json_, settings.train.seed)
    made = run(data, out, settings=settings, workers=workers, engine=engine, say=on_stderr)
    c = made.counts
    lines = [
        f"{c['events']:,} events of {c['patients']:,} patients in {c['shards']:,} shards, {c['bytes'] / 1e6:,.1f} MB",
        f"{c['training']:,} training and {c['held_out']:,} held-out patients, "
        f"{c['vocabulary']:,} of {c['codes']:,} codes",
        f"prepared: {out} (unmask pretrain events {out} --out RUN)",
    ]
    output.write(made.to_dict() | {"engine": engine}, lines)
