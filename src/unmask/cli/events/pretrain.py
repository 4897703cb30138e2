"""unmask pretrain events MEDS_DIR --out DIR"""

from __future__ import annotations

import typer

from unmask.cli import options
from unmask.cli.common import Result, on_stderr, overrides, run_lines, with_recipe


def pretrain(
    flags: options.RunOptions,
    data: str = typer.Argument(
        ..., help="MEDS folder: data/*.parquet with subject_id, time, code, numeric_value; or what prepare made."
    ),
    out: str = typer.Option(..., help="Run folder."),
    recipe: str = typer.Option(
        None, help="ours (default), ask (answers questions), behrt, medbert, cehrbert or corebehrt."
    ),
    tracker: options.Trackers = [],
) -> Result:
    """Pretrain a masked model on patients' events."""
    from unmask.modalities.events.network.prepare import prepared_settings
    from unmask.modalities.events.recipes import RECIPES, EventSettings, with_overrides

    known = with_overrides(EventSettings(), prepared_settings(data))
    settings = with_recipe(recipe, RECIPES, known, with_overrides, flags.overrides())
    from unmask.modalities.events.uses.pretrain import pretrain as run

    finished = run(data, out, settings=settings, resume=flags.resume, trackers=tracker)
    r = finished.result
    rules = "".join(f"; {name} {share:.1%}" for name, share in finished.data.get("rules", {}).items())
    lines = run_lines(
        r,
        out,
        rate=f"{r.slots_per_second:,.0f} events/s",
        held="held-out patients: loss {loss:.3f} nats a hidden event, code accuracy {accuracy:.1%}" + rules,
    )
    return Result(finished.to_dict(), lines)


def prepare(
    data: str = typer.Argument(..., help="MEDS folder (data/*.parquet), or the URL of one (s3:// gs://)."),
    out: str = typer.Option(
        ..., help="Folder of the prepared events: what `unmask pretrain events` takes as its data."
    ),
    workers: options.Workers = None,
    engine: options.Engine = "local",
    config: options.Config = None,
    set_: options.Set = [],
    seed: options.RunSeed = None,
) -> Result:
    """Read patients' events of any number for pretraining, on all cores or on a Ray cluster. Run again, it goes on."""
    from unmask.modalities.events.network.prepare import prepare as run
    from unmask.modalities.events.recipes import EventSettings, with_overrides

    settings = with_overrides(EventSettings(), overrides(config, set_, seed=seed))
    made = run(data, out, settings=settings, workers=workers, engine=engine, say=on_stderr)
    c = made.counts
    lines = [
        f"{c['events']:,} events of {c['patients']:,} patients in {c['shards']:,} shards, {c['bytes'] / 1e6:,.1f} MB",
        f"{c['training']:,} training and {c['held_out']:,} held-out patients, "
        f"{c['vocabulary']:,} of {c['codes']:,} codes",
        f"prepared: {out} (unmask pretrain events {out} --out RUN)",
    ]
    return Result({"seed": settings.train.seed} | made.to_dict() | {"engine": engine}, lines)
