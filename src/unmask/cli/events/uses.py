"""fill, score, embed and evaluate for a model of patient events."""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options
from unmask.cli.events.shown import interval_text, legend_line, odd_points, outside_line, ready, trained_line
from unmask.errors import UserError

SHOWN_ROWS = 10
"""Of the least natural records, on the screen."""


def fill(
    model: options.Model,
    data: str = typer.Argument(..., help="MEDS folder."),
    out: str = typer.Option(None, help="Parquet to write."),
    top: int = typer.Option(5, help="Next events per patient."),
    level: float = typer.Option(0.9, help="Share of the interval around a filled value."),
    most_unknown: options.MostUnknown = 0.5,
    seed: options.Seed = 0,
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
) -> None:
    """Missing values with an interval, and the likeliest next events, as parquet."""
    from unmask.cli.common import Output
    from unmask.files import check_results
    from unmask.modalities.events.records.unknown import unknown_line
    from unmask.modalities.events.uses.model import write_predictions

    if out is None:
        raise UserError("fill of events without --out", hint="Say which parquet to write.")
    check_results([out], [data])
    output = Output(json_, seed)
    loaded = ready(model, device, precision, most_unknown)
    frame = loaded.fill(data, top=top, level=level)
    write_predictions(frame, out)
    counts = {"value": 0, "next": 0} | dict(frame["kind"].value_counts().iter_rows())
    line = f"{out}: {counts['value']} missing values filled, {counts['next']} next events"
    found = {"out": out, "rows": len(frame), "filled_slots": counts["value"], "next_events": counts["next"]}
    found |= {"dead": loaded.dead, **loaded.unknown}
    said = [f"{loaded.dead:,} patients who died have no next events"] if loaded.dead else []
    output.write(
        found, [line, *said, unknown_line(loaded.unknown)], device=str(loaded.device), precision=loaded.precision
    )


def score(
    model: options.Model,
    data: str = typer.Argument(..., help="MEDS folder."),
    by: str = typer.Option("patient", help="One row per patient, visit or event."),
    mode: str = typer.Option("unit", help="unit: later events of a visit are hidden too; slot: each alone."),
    out: str = typer.Option(None, help="Parquet to write the rows to."),
    most_unknown: options.MostUnknown = 0.5,
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
) -> None:
    """Pseudo-log-likelihood by patient, visit or event: a table, or the rows themselves."""
    from typing import cast

    from unmask.cli.common import Output
    from unmask.files import check_results
    from unmask.modalities.events.records.unknown import unknown_line
    from unmask.modalities.events.uses.model import write_predictions

    check_results([out], [data])
    output = Output(json_)
    loaded = ready(model, device, precision, most_unknown)
    frame = loaded.score(data, by=cast(Any, by), mode=cast(Any, mode))
    if out is not None:
        write_predictions(frame, out)
    least = frame.sort(frame["score"] / frame["slots"]).head(SHOWN_ROWS)
    lines = [f"{len(frame)} {by}s, {frame['slots'].sum()} events; the least natural, by event:"]
    for row in least.iter_rows(named=True):
        shown = "  ".join(str(row[n]) for n in ("subject_id", "time", "code") if n in row)
        lines.append(f"{row['score'] / row['slots']:10.3f}  {row['slots']:4d} events  {shown}")
    lines.append(unknown_line(loaded.unknown))
    count = int(frame["slots"].sum())
    found: dict[str, Any] = {"by": by, "rows": len(frame), "slots": count, "events": count, **loaded.unknown}
    found |= {"out": out} if out is not None else {"results": frame.to_dicts()}
    output.write(found, lines, device=str(loaded.device), precision=loaded.precision)


def embed(
    model: options.Model,
    data: str = typer.Argument(..., help="MEDS folder."),
    out: str = typer.Option(..., help=".parquet with the ids, or .npy, with the ids beside it."),
    labels: str = typer.Option(None, help="MEDS task folder; one row per prediction time instead of per patient."),
    most_unknown: options.MostUnknown = 0.5,
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
) -> None:
    """One vector per patient or prediction point: parquet with ids, or .npy with the ids beside it."""
    import numpy as np
    import polars as pl

    from unmask.cli.common import Output, write_array
    from unmask.files import check_results
    from unmask.modalities.events.records.meds import read_labels, read_meds
    from unmask.modalities.events.records.unknown import unknown_line
    from unmask.modalities.events.uses.model import write_predictions

    beside = out if out.endswith(".parquet") else f"{out.removesuffix('.npy')}.ids.parquet"
    check_results(sorted({out, beside}), [data, labels])
    output = Output(json_)
    loaded = ready(model, device, precision, most_unknown)
    events = read_meds(data)
    points = None if labels is None else read_labels(labels, events, need_value=False)
    array = loaded.embed(events, points)
    if points is None:
        ids = pl.DataFrame({"subject_id": events.subjects})
    else:
        when = pl.Series(points.time).cast(pl.Datetime("us"))
        ids = pl.DataFrame({"subject_id": events.subjects[points.subject], "prediction_time": when})
    if out.endswith(".parquet"):
        write_predictions(ids.with_columns(embedding=pl.Series(array.astype(np.float32))), out)
    else:
        write_array([array], len(array), out)
        write_predictions(ids, beside)
    lines = [f"{out}: {array.shape[0]} x {array.shape[1]}; ids in the same order: {beside}"]
    lines += [*outside_line(0 if points is None else points.outside), unknown_line(loaded.unknown)]
    found = {"out": out, "rows": len(array), "shape": list(array.shape), "ids": beside}
    found["outside"] = 0 if points is None else points.outside
    output.write(found | loaded.unknown, lines, device=str(loaded.device), precision=loaded.precision)


def evaluate(
    model: options.Model,
    data: list[str] = typer.Argument(..., help="MEDS folder."),
    labels: str = typer.Option(None, help="MEDS task folder."),
    most_unknown: options.MostUnknown = 0.5,
    seed: options.Seed = 0,
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
) -> None:
    """Figures of a fine-tuned model at labelled points, with intervals over patients."""
    from unmask.cli.common import Output
    from unmask.modalities.events.records.unknown import unknown_line
    from unmask.modalities.events.uses.outcome_report import SHOWN, figure_text

    if labels is None or len(data) != 1:
        raise UserError(
            f"{model}: a model of patient events, and {len(data)} folders, {'with' if labels else 'without'} --labels",
            hint="Give one MEDS folder and --labels, the MEDS task folder.",
        )
    output = Output(json_, seed)
    loaded = ready(model, device, precision, most_unknown)
    found = loaded.evaluate(data[0], labels, seed=seed)
    by = " (held out by the folder's splits)" if found["split"] != "all" else ""
    lines = [f"{found['points']:,} points of {found['patients']:,} patients{by}"]
    lines += [
        *outside_line(found["outside"]),
        *odd_points(found),
        *trained_line(found["trained"], found["warnings"]),
        unknown_line(loaded.unknown),
    ]
    for name, result in found["results"].items():
        shown = [f"{k} {figure_text(k, result[k])}{interval_text(result, k)}" for k in SHOWN if k in result]
        lines.append(f"{name:24} {'  '.join(shown)}")
    lines += legend_line(found["results"])
    output.write(found | loaded.unknown, lines, device=str(loaded.device), precision=loaded.precision)
