"""unmask ask MODEL MEDS QUESTION..."""

from __future__ import annotations

import typer

from unmask.cli import options
from unmask.cli.events.shown import outside_line, ready
from unmask.errors import UserError


def ask(
    model: options.Model,
    data: str = typer.Argument(..., help="MEDS folder."),
    questions: list[str] = typer.Argument(
        ...,
        help='Such as "LAB//glucose > 10 within 30 days", "any of A, B within 1 year", "none of A, B within 1 year".',
    ),
    out: str = typer.Option(None, help="Parquet to write the answers to."),
    at: str = typer.Option(None, help="MEDS task folder: asks at its prediction times, not at each last event."),
    until: str = typer.Option(
        None,
        help="Day or time up to which the records were written, such as 2024-06-30: asks then, not at last events.",
    ),
    report: str = typer.Option(None, help="HTML page to write: how the answers are spread."),
    patient: list[int] = typer.Option(None, help="--report: subject_id of a patient to draw, repeatable."),
    examples: options.Examples = False,
    most_unknown: options.MostUnknown = 0.5,
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
) -> None:
    """How probable is what is to come, without a label: of every patient, or at every prediction time."""
    from unmask.cli.common import Output
    from unmask.files import check_results
    from unmask.modalities.events.records.meds import read_labels, read_meds
    from unmask.modalities.events.records.unknown import unknown_line
    from unmask.modalities.events.uses.model import write_predictions
    from unmask.modalities.events.uses.query_report import summary_lines, write

    if out is None:
        raise UserError("ask without --out", hint="Say which parquet to write.")
    if (patient or examples) and report is None:
        raise UserError(
            f"--{'patient' if patient else 'examples'} without --report",
            hint="Give --report PAGE.html: patients are drawn there.",
        )
    if patient and examples:
        raise UserError("--examples with --patient: nothing reads this", hint="Leave it out: who is named is drawn.")
    check_results([name for name in (out, report) if name is not None], [data, at])
    output = Output(json_)
    loaded = ready(model, device, precision, most_unknown)
    events = read_meds(data)
    points = None if at is None else read_labels(at, events, need_value=False)
    frame = loaded.ask(events, questions, points, until=until)
    if report is not None:
        write(loaded, events, frame, report, patients=list(patient or ()), examples=examples, source=data)
    write_predictions(frame, out)
    unanswered = frame.filter(frame["unanswered"].is_not_null())
    told = {str(n): c for n, c in unanswered.group_by("unanswered").len().sort("unanswered").iter_rows()}
    lines = [f"{out}: {len(frame):,} answers", *summary_lines(frame)]
    lines += [f"not answered: {count:,} ({why})" for why, count in told.items()]
    lines += [*outside_line(0 if points is None else points.outside), unknown_line(loaded.unknown)]
    lines += loaded.uncalibrated()
    lines += [f"report: {report}"] if report is not None else []
    found = {"out": out, "rows": len(frame), "questions": len(questions), "unanswered": told}
    found |= {"outside": 0 if points is None else points.outside, "warnings": loaded.uncalibrated()}
    found |= {"means": dict(frame.group_by("question", maintain_order=True).agg(frame_mean()).iter_rows())}
    found |= {"report": report} if report is not None else {}
    output.write(found | loaded.unknown, lines, device=str(loaded.device), precision=loaded.precision)


def frame_mean() -> object:
    """The mean probability of a group of answers."""
    import polars as pl

    return pl.col("probability").mean()
