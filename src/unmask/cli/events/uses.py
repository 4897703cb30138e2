"""fill, score, embed and evaluate for a model of patient events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import Result, write_array
from unmask.errors import UserError, first_of, quoted
from unmask.evaluation.meanings import legend
from unmask.files import check_results

SHOWN_ROWS = 10
"""Of the least natural records, on the screen."""


@dataclass(frozen=True, kw_only=True)
class EventLoading(options.Loading):
    """How a model of patient events is loaded: one that refuses data with more unknown codes."""

    most_unknown: float = options.flag(
        0.5, "Refuse data of whose events a larger share has codes that the model does not know."
    )

    def load(self, model: str) -> Any:
        """The model in a folder."""
        from unmask.modalities.events.uses.model import load

        if not 0 <= self.most_unknown <= 1:
            raise UserError(f"--most-unknown {self.most_unknown}", hint="Expected a share between 0 and 1.")
        loaded = load(model, device=self.device, precision=self.precision)
        loaded.most_unknown = self.most_unknown
        return loaded


def fill(
    use: EventLoading,
    model: options.Model,
    data: str = options.source("MEDS folder."),
    out: str = typer.Option(None, help="Parquet to write."),
    top: int = typer.Option(5, help="Next events per patient."),
    level: float = typer.Option(0.9, help="Share of the interval around a filled value."),
    seed: options.Seed = 0,
) -> Result:
    """Missing values with an interval, and the likeliest next events, as parquet."""
    from unmask.modalities.events.uses.model import write_predictions

    if out is None:
        raise UserError("fill of events without --out", hint="Say which parquet to write.")
    check_results([out], [data])
    loaded = use.load(model)
    frame = loaded.fill(data, top=top, level=level)
    write_predictions(frame, out)
    counts = {"value": 0, "next": 0} | dict(frame["kind"].value_counts().iter_rows())
    line = f"{out}: {counts['value']} missing values filled, {counts['next']} next events"
    found = {"out": out, "rows": len(frame), "filled_slots": counts["value"], "next_events": counts["next"]}
    found |= {"dead": loaded.dead, **loaded.unknown}
    notes = [f"{loaded.dead:,} patients who died have no next events"] if loaded.dead else []
    return Result(found, [line, *notes, *data_lines(loaded.unknown)], loaded)


def score(
    use: EventLoading,
    model: options.Model,
    data: str = options.source("MEDS folder."),
    by: str = typer.Option("patient", help="One row per patient, visit or event."),
    mode: str = typer.Option("unit", help="unit: later events of a visit are hidden too; slot: each alone."),
    out: str = typer.Option(None, help="Parquet to write the rows to."),
) -> Result:
    """Pseudo-log-likelihood by patient, visit or event: a table, or the rows themselves."""
    from typing import cast

    from unmask.modalities.events.uses.model import write_predictions

    check_results([out], [data])
    loaded = use.load(model)
    frame = loaded.score(data, by=cast(Any, by), mode=cast(Any, mode))
    if out is not None:
        write_predictions(frame, out)
    least = frame.sort(frame["score"] / frame["slots"]).head(SHOWN_ROWS)
    lines = [f"{len(frame)} {by}s, {frame['slots'].sum()} events; the least natural, by event:"]
    for row in least.iter_rows(named=True):
        shown = "  ".join(str(row[n]) for n in ("subject_id", "time", "code") if n in row)
        lines.append(f"{row['score'] / row['slots']:10.3f}  {row['slots']:4d} events  {shown}")
    lines += data_lines(loaded.unknown)
    count = int(frame["slots"].sum())
    found: dict[str, Any] = {"by": by, "rows": len(frame), "slots": count, "events": count, **loaded.unknown}
    found |= {"out": out} if out is not None else {"results": frame.to_dicts()}
    return Result(found, lines, loaded)


def embed(
    use: EventLoading,
    model: options.Model,
    data: str = options.source("MEDS folder."),
    out: str = typer.Option(..., help=".parquet with the ids, or .npy, with the ids beside it."),
    labels: str = options.source_option("MEDS task folder; one row per prediction time instead of per patient."),
) -> Result:
    """One vector per patient or prediction point: parquet with ids, or .npy with the ids beside it."""
    import numpy as np
    import polars as pl

    from unmask.modalities.events.records.labels import read_labels
    from unmask.modalities.events.records.meds import read_meds
    from unmask.modalities.events.uses.model import write_predictions

    ids_file = out if out.endswith(".parquet") else f"{out.removesuffix('.npy')}.ids.parquet"
    check_results(sorted({out, ids_file}), [data, labels])
    loaded = use.load(model)
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
        write_predictions(ids, ids_file)
    outside = 0 if points is None else points.outside
    lines = [f"{out}: {array.shape[0]} x {array.shape[1]}; ids in the same order: {ids_file}"]
    lines += data_lines(loaded.unknown, outside)
    found = {"out": out, "rows": len(array), "shape": list(array.shape), "ids": ids_file, "outside": outside}
    return Result(found | loaded.unknown, lines, loaded)


def evaluate(
    use: EventLoading,
    model: options.Model,
    data: list[str] = options.source("MEDS folder."),
    labels: str = options.source_option("MEDS task folder, or an ACES task file (.yaml)."),
    recalibrate: str = typer.Option(
        None, help="New folder for a copy of the model that is recalibrated to these labels (of a yes or no)."
    ),
    seed: options.Seed = 0,
) -> Result:
    """Figures of a fine-tuned model at labelled points, with intervals over patients."""
    if labels is None or len(data) != 1:
        raise UserError(
            f"{model}: a model of patient events, and {len(data)} folders, {'with' if labels else 'without'} --labels",
            hint="Give one MEDS folder and --labels, the MEDS task folder.",
        )
    loaded = use.load(model)
    found = loaded.evaluate(data[0], labels, recalibrate=recalibrate, seed=seed)
    by = " (held out by the folder's splits)" if found["split"] != "all" else ""
    lines = [f"{found['points']:,} points of {found['patients']:,} patients{by}"]
    trained = [f"{found['trained']:,} points left out: their patients trained the head"] if found["trained"] else []
    if found["trained"] is None:
        trained = [f"warning: {text}: these figures may be of training patients" for text in found["warnings"]]
    lines += [*data_lines(loaded.unknown, found["outside"]), *odd_points(found), *trained]
    lines += [*result_lines(found["results"], intervals=True), *subgroup_lines(found["subgroups"])]
    if (copy := found.get("recalibrated")) is not None:
        lines.append(
            f"{copy['out']}: log-odds {copy['intercept']:+.3f} {copy['slope']:+.3f} x those of {model}, by all these "
            "points; 'recalibrated' is each fifth of the patients on the line of the others"
        )
    return Result(found | loaded.unknown, lines, loaded)


def ask(
    use: EventLoading,
    model: options.Model,
    data: str = options.source("MEDS folder."),
    questions: list[str] = typer.Argument(
        ...,
        help='Such as "LAB//glucose > 10 within 30 days", "any of A, B within 1 year", "none of A, B within 1 year"; '
        "or an ACES task file (.yaml), asked at its own points.",
    ),
    out: str = typer.Option(None, help="Parquet to write the answers to."),
    at: str = options.source_option(
        "MEDS task folder (or task file): asks at its prediction times, not at each last event."
    ),
    until: str = typer.Option(
        None,
        help="Day or time up to which the records were written, such as 2024-06-30: asks then, not at last events.",
    ),
    report: str = typer.Option(None, help="HTML page to write: how the answers are spread."),
    patient: list[int] = typer.Option(None, help="--report: subject_id of a patient to draw, repeatable."),
    examples: options.Examples = False,
) -> Result:
    """How probable is what is to come, without a label: of every patient, or at every prediction time."""
    import polars as pl

    from unmask.modalities.events.records.aces import is_task
    from unmask.modalities.events.records.labels import as_predictions, read_labels
    from unmask.modalities.events.records.meds import read_meds
    from unmask.modalities.events.uses.model import write_predictions
    from unmask.modalities.events.uses.query_answers import judged, summary_lines, write

    if out is None:
        raise UserError("ask without --out", hint="Say which parquet to write.")
    if (patient or examples) and report is None:
        raise UserError(
            f"--{'patient' if patient else 'examples'} without --report",
            hint="Give --report PAGE.html: patients are drawn there.",
        )
    if patient and examples:
        raise UserError("--examples with --patient: nothing reads this", hint="Leave it out: who is named is drawn.")
    check_results([out, report], [data, at])
    loaded = use.load(model)
    events = read_meds(data)
    points = None if at is None else read_labels(at, events, need_value=False)
    task = next((q for q in questions if is_task(q)), None)
    if task is not None and len(questions) > 1:
        raise UserError(f"{task}: a task, and {len(questions) - 1} questions", hint="Ask a task alone.")
    frame = loaded.ask(events, questions if task is None else task, points, until=until)
    if report is not None:
        histories, drawn = loaded.histories(events), list(patient or ())
        write(loaded.folder, histories, frame, report, patients=drawn, examples=examples, source=data)
    write_predictions(frame if task is None else as_predictions(frame), out)
    unanswered = frame.filter(frame["unanswered"].is_not_null())
    reasons = {str(n): c for n, c in unanswered.group_by("unanswered").len().sort("unanswered").iter_rows()}
    written = frame if task is None else frame.drop_nulls("probability")
    lines = [f"{out}: {len(written):,} answers", *summary_lines(frame)]
    lines += [f"not answered: {count:,} ({why})" for why, count in reasons.items()]
    lines += data_lines(loaded.unknown, 0 if points is None else points.outside)
    lines += loaded.uncalibrated()
    lines += [f"report: {report}"] if report is not None else []
    found = {"out": out, "rows": len(written), "questions": len(questions), "unanswered": reasons}
    found |= {"outside": 0 if points is None else points.outside, "warnings": loaded.uncalibrated()}
    means = frame.group_by("question", maintain_order=True).agg(pl.col("probability").mean())
    found |= {"means": dict(means.iter_rows())}
    if task is not None:
        results = judged(frame)
        found |= {"results": results}
        lines += result_lines(results, intervals=True)
    found |= {"report": report} if report is not None else {}
    return Result(found | loaded.unknown, lines, loaded)


def data_lines(unknown: dict[str, Any], outside: int = 0) -> list[str]:
    """What to say of data: how many labels are of subjects without events, and of codes that the model does not know.

    Args:
        unknown: with the keys that `unknown_of` gives.
    """
    from unmask.modalities.events.records.histories import unknown_line

    left = [f"{outside:,} labels left out: their subjects have no events in the data"] if outside else []
    return [*left, unknown_line(unknown)]


def odd_points(found: Mapping[str, Any]) -> list[str]:
    """What to say of points before the first event of their patient, after the death, and of classes that training did
    not have; a line each, or none."""
    lines = []
    for name, where in (("without_events", "before the first event"), ("after_death", "after the death")):
        count = sum(found[name].values()) if isinstance(found[name], dict) else found[name]
        if count:
            lines.append(f"warning: {count:,} points lie {where} of their patient")
    unseen: Mapping[str, int] = found.get("unseen_classes", {})
    if unseen:
        lines.append(
            f"warning: {sum(unseen.values()):,} labels are of classes that no training label has (the accuracy counts "
            f"them as errors, the log loss not at all): {first_of(f'{quoted(c)} ({n:,})' for c, n in unseen.items())}"
        )
    return lines


def subgroup_lines(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """The first figure of each subgroup that has both outcomes, with its interval."""
    from unmask.modalities.events.uses.outcome_report import SHOWN, figure_cell

    lines = []
    for group in groups:
        shown = [f"{k} {figure_cell(k, group)}" for k in SHOWN if k in group][:1]
        lines += [f"  {group['group']:30} {group['n']:7,} points  {text}" for text in shown]
    return ["by subgroup:", *lines] if lines else []


def result_lines(results: Mapping[str, dict[str, Any]], *, intervals: bool = False) -> list[str]:
    """The figures of each outcome, with their intervals where asked for, and which direction of them is good."""
    from unmask.modalities.events.uses.outcome_report import SHOWN, figure_cell, figure_text

    lines = []
    for name, result in results.items():
        shown = [
            f"{k} {figure_cell(k, result) if intervals else figure_text(k, result[k])}" for k in SHOWN if k in result
        ]
        lines.append(f"{name:24} {'  '.join(shown)}")
    first = next(iter(results.values()), {})  # the model's
    cases = first.get("positives", first.get("events"))
    if cases is not None:
        enough = {"auprc", "c_index"} & first.get("intervals", {}).keys()
        few = "" if enough else ": too few of these, or of the others, for most intervals"
        lines.insert(0, f"{cases:,} of {first['n']:,} points have the outcome{few}")
    by_days = first.get("by_days", [])
    for row in by_days[:: max(1, len(by_days) // 4)]:
        lines.append(
            f"by {row['days']:g} days: {row['predicted']:.3f} predicted, {row['observed']:.3f} observed "
            f"(Kaplan-Meier); Brier score {row['brier']:.3f}, of that one risk for all {row['brier_of_observed']:.3f}"
        )
    if first.get("n") and first.get("by_days") == []:
        lines.append("warning: all times end before the first that risks are given for: is float_value in days?")
    words = legend(k for k in SHOWN if any(k in r for r in results.values()))
    return [*lines, words] if words else lines
