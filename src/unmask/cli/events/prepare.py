"""unmask prepare events MEDS_DIR --out DIR"""

from __future__ import annotations

import typer

from unmask.cli import options


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
