"""`unmask events convert`, and what the shared commands do when the model is one of patient events."""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options

SHOWN_ROWS = 10
"""Of the least natural records, on the screen."""


def finetune(
    task: str, model: str, data: str, *, labels: str | None, out: str, given: dict[str, Any], as_json: bool
) -> None:
    """`finetune outcome` on a MEDS task folder, `finetune next-visit` on the events alone."""
    from unmask.cli.common import Output
    from unmask.errors import UserError, suggest
    from unmask.modalities.events.recipes import OutcomeSettings
    from unmask.training.settings import apply_overrides

    if task not in ("outcome", "next-visit"):
        raise UserError(f"finetune {task}: not a task of patient events", hint=suggest(task, ("outcome", "next-visit")))
    settings = apply_overrides(OutcomeSettings(), given)
    output = Output(as_json, settings.seed)
    if task == "next-visit":
        _next_visit(model, data, out, settings, output)
        return
    if labels is None:
        raise UserError("finetune outcome without --labels", hint="Give the MEDS task folder with the labels.")
    from unmask.modalities.events.finetune import finetune_outcome
    from unmask.modalities.events.outcome_report import SHOWN, figure_text
    from unmask.modalities.events.unknown import unknown_line

    found = finetune_outcome(model, data, labels, out, settings=settings).figures
    lines = [f"{found['training']} labels to train on, {found['held_out']} held out by {found['held_out_by']}"]
    lines += [*_outside(found["outside"]), unknown_line(found)]
    for name, count in found.get("unseen_classes", {}).items():
        lines.append(f"{count} held-out labels of {name}, a class that no label to train on has")
    if "number" in found:
        lines.append(found["number"]["taken_as"])
    for name, result in found["results"].items():
        shown = [f"{k} {figure_text(k, result[k])}" for k in SHOWN if k in result]
        lines.append(f"{name:22} {'  '.join(shown)}")
    lines += [f"model:  {out}", f"report: {out}/report.html"]
    output.write({"folder": out} | found, lines, device=found["device"], precision=found["precision"])


def _next_visit(model: str, data: str, out: str, settings: Any, output: Any) -> None:
    from unmask.modalities.events.next_visit import PARTS, finetune_next_visit

    found = finetune_next_visit(model, data, out, settings=settings).figures
    lines = [f"{found['training']} patients to train on, {found['held_out']} held out, {found['codes']} codes"]
    lines.append(f"a visit is {found['visit']}; asked about a moment before it begins")
    for name, result in found["results"].items():
        shown = [
            f"{part} {result[part]['auroc']:.3f}{_interval(result[part], 'auroc')}"
            for part in PARTS
            if "auroc" in result[part]
        ]
        lines.append(f"{name:16} AUROC: {'  '.join(shown)}")
    lines += [f"model:  {out}", f"report: {out}/report.html"]
    output.write({"folder": out} | found, lines, device=found["device"], precision=found["precision"])


def _outside(count: int) -> list[str]:
    return [f"{count:,} labels left out: their subjects have no events in the data"] if count else []


def _trained(count: int | None, warning: str | None) -> list[str]:
    if count is None:
        return [f"warning: {warning}: these figures may be of training patients"]
    return [f"{count:,} points left out: their patients trained the head"] if count else []


def _ready(model: str, device: str, precision: str, most_unknown: float) -> Any:
    """The model, which refuses data with more unknown codes."""
    from unmask.errors import UserError
    from unmask.modalities.events.model import load

    if not 0 <= most_unknown <= 1:
        raise UserError(f"--most-unknown {most_unknown}", hint="Expected a share between 0 and 1.")
    loaded = load(model, device=device, precision=precision)
    loaded.most_unknown = most_unknown
    return loaded


def evaluate(
    model: str, data: list[str], *, labels: str | None, most_unknown: float, seed: int, precision: str, device: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Figures of a fine-tuned model at labelled points, with intervals over patients."""
    from unmask.cli.common import Output
    from unmask.errors import UserError
    from unmask.modalities.events.outcome_report import SHOWN, figure_text
    from unmask.modalities.events.unknown import unknown_line

    if labels is None or len(data) != 1:
        raise UserError(
            f"{model}: a model of patient events, and {len(data)} folders, {'with' if labels else 'without'} --labels",
            hint="Give one MEDS folder and --labels, the MEDS task folder.",
        )
    output = Output(as_json, seed)
    loaded = _ready(model, device, precision, most_unknown)
    found = loaded.evaluate(data[0], labels, seed=seed)
    by = " (held out by the folder's splits)" if found["split"] != "all" else ""
    lines = [f"{found['points']:,} points of {found['patients']:,} patients{by}"]
    lines += [
        *_outside(found["outside"]),
        *_trained(found["trained"], found.get("warning")),
        unknown_line(loaded.unknown),
    ]
    for name, result in found["results"].items():
        shown = [f"{k} {figure_text(k, result[k])}{_interval(result, k)}" for k in SHOWN if k in result]
        lines.append(f"{name:10} {'  '.join(shown)}")
    output.write(found | loaded.unknown, lines, device=str(loaded.device), precision=loaded.precision)


def _interval(result: dict[str, Any], name: str) -> str:
    low_high = result.get("intervals", {}).get(name)
    from unmask.modalities.events.outcome_report import figure_text

    return f" ({figure_text(name, low_high[0])} to {figure_text(name, low_high[1])})" if low_high else ""


def embed(
    model: str, data: str, *, labels: str | None, out: str, most_unknown: float, precision: str, device: str,
    as_json: bool,
) -> None:  # fmt: skip
    """One vector per patient or prediction point: parquet with ids, or .npy with the ids beside it."""
    import numpy as np
    import polars as pl

    from unmask.cli.common import Output, write_array
    from unmask.files import check_place
    from unmask.modalities.events.meds import read_labels, read_meds
    from unmask.modalities.events.model import write_predictions
    from unmask.modalities.events.unknown import unknown_line

    check_place(out)
    output = Output(as_json)
    loaded = _ready(model, device, precision, most_unknown)
    events = read_meds(data)
    points = None if labels is None else read_labels(labels, events, need_value=False)
    array = loaded.embed(events, points)
    if points is None:
        ids = pl.DataFrame({"subject_id": events.subjects})
    else:
        when = pl.Series(points.time).cast(pl.Datetime("us"))
        ids = pl.DataFrame({"subject_id": events.subjects[points.subject], "prediction_time": when})
    beside = out
    if out.endswith(".parquet"):
        write_predictions(ids.with_columns(embedding=pl.Series(array.astype(np.float32))), out)
    else:
        beside = f"{out.removesuffix('.npy')}.ids.parquet"
        write_array(array, out)
        write_predictions(ids, beside)
    lines = [f"{out}: {array.shape[0]} x {array.shape[1]}; ids in the same order: {beside}"]
    lines += [*_outside(0 if points is None else points.outside), unknown_line(loaded.unknown)]
    found = {"out": out, "shape": list(array.shape), "ids": beside, "outside": 0 if points is None else points.outside}
    output.write(found | loaded.unknown, lines, device=str(loaded.device), precision=loaded.precision)


def predict(
    model: str, data: str, *, labels: str | None, out: str, most_unknown: float, seed: int, precision: str, device: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Probabilities at every prediction point, as MEDS-shaped parquet."""
    from collections import Counter

    from unmask.cli.common import Output
    from unmask.errors import UserError
    from unmask.files import check_place
    from unmask.modalities.events.meds import SPLITS, read_meds
    from unmask.modalities.events.model import write_predictions
    from unmask.modalities.events.unknown import unknown_line

    if labels is None:
        raise UserError("predict without --labels", hint="Give the MEDS task folder with the prediction times.")
    check_place(out)
    output = Output(as_json, seed)
    loaded = _ready(model, device, precision, most_unknown)
    events = read_meds(data)
    frame, points = loaded.predict(events, labels)
    write_predictions(frame, out)
    found: dict[str, Any] = {"out": out, "points": len(points), "outside": points.outside, **loaded.unknown}
    lines = [f"{out}: {len(points)} predictions", *_outside(points.outside), unknown_line(loaded.unknown)]
    if events.splits is not None:
        found["splits"] = dict(Counter(str(s) or "none" for s in events.splits[points.subject]))
        lines.append(f"by {SPLITS}: " + ", ".join(f"{count:,} {name}" for name, count in found["splits"].items()))
    counts = {str(name or "unknown"): n for name, n in frame["split"].value_counts(sort=True).iter_rows()}
    found["split"] = counts
    if counts.get("train"):
        lines.append(
            f"warning: {counts['train']} of {len(points)} are of patients who trained the head (split: train): their "
            "probabilities are too good; judge the model on the others"
        )
    if loaded.met.warning() is not None:
        lines.append(f"warning: split is empty: {loaded.met.warning()}")
    output.write(found, lines, device=str(loaded.device), precision=loaded.precision)


def fill(
    model: str, data: str, *, out: str | None, top: int, level: float, most_unknown: float, seed: int, precision: str,
    device: str, as_json: bool,
) -> None:  # fmt: skip
    """Missing values with an interval, and the likeliest next events, as parquet."""
    from unmask.cli.common import Output
    from unmask.errors import UserError
    from unmask.files import check_place
    from unmask.modalities.events.model import write_predictions
    from unmask.modalities.events.unknown import unknown_line

    if out is None:
        raise UserError("fill of events without --out", hint="Say which parquet to write.")
    check_place(out)
    output = Output(as_json, seed)
    loaded = _ready(model, device, precision, most_unknown)
    frame = loaded.fill(data, top=top, level=level)
    write_predictions(frame, out)
    counts = dict(frame["kind"].value_counts().iter_rows())
    line = f"{out}: {counts.get('value', 0)} missing values filled, {counts.get('next', 0)} next events"
    found = {"out": out, "rows": counts, **loaded.unknown}
    output.write(found, [line, unknown_line(loaded.unknown)], device=str(loaded.device), precision=loaded.precision)


def score(
    model: str, data: str, *, by: str, mode: str, out: str | None, most_unknown: float, precision: str, device: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Pseudo-log-likelihood by patient, visit or event: a table, or the rows themselves."""
    from typing import cast

    from unmask.cli.common import Output
    from unmask.modalities.events.model import write_predictions
    from unmask.modalities.events.unknown import unknown_line

    output = Output(as_json)
    loaded = _ready(model, device, precision, most_unknown)
    frame = loaded.score(data, by=cast(Any, by), mode=cast(Any, mode))
    if out is not None:
        write_predictions(frame, out)
    least = frame.sort(frame["score"] / frame["slots"]).head(SHOWN_ROWS)
    lines = [f"{len(frame)} {by}s, {frame['slots'].sum()} events; the least natural, by event:"]
    for row in least.iter_rows(named=True):
        shown = "  ".join(str(row[n]) for n in ("subject_id", "time", "code") if n in row)
        lines.append(f"{row['score'] / row['slots']:10.3f}  {row['slots']:4d} events  {shown}")
    lines.append(unknown_line(loaded.unknown))
    found: dict[str, Any] = {"by": by, "rows": len(frame), "events": int(frame["slots"].sum()), **loaded.unknown}
    found |= {"out": out} if out is not None else {"results": frame.to_dicts()}
    output.write(found, lines, device=str(loaded.device), precision=loaded.precision)


def register(app: Any) -> None:
    group = typer.Typer(help="Patient events.", no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name="events")

    @group.callback()
    def events() -> None:
        """Patient events."""

    @group.command("convert")
    def convert(
        source: str = typer.Argument(
            ...,
            help="Event table (csv, tsv, parquet), FHIR (json, ndjson, zip, folder), or a folder of OMOP or MIMIC-IV.",
        ),
        out: str = typer.Option(..., help="MEDS folder to make."),
        subject: str = typer.Option("subject_id", help="Table: column of the patient."),
        time: str = typer.Option("time", help="Table: column of the time."),
        code: str = typer.Option("code", help="Table: column of the code."),
        value: str = typer.Option("numeric_value", help="Table: column of the value."),
        visit: str = typer.Option("visit_id", help="Table: column of the encounter."),
        text: str = typer.Option("text_value", help="Table: column of answers in words."),
        dates: str = typer.Option(None, help="month-first or day-first: how dates such as 01/02/2020 are meant."),
        onset: bool = typer.Option(
            False, "--onset", help="FHIR: conditions without a time of recording stand at their onset, not rejected."
        ),
        json_: options.Json = False,
    ) -> None:
        """Make a MEDS folder; every row that is left out is counted by reason and sampled into rejected.jsonl, every file is
        read or named."""
        from unmask.cli.common import Output
        from unmask.modalities.events.convert import convert as run

        output = Output(json_)
        columns = {"subject": subject, "time": time, "code": code, "value": value, "visit": visit, "text": text}
        found = run(source, out, columns=columns, dates=dates, onset=onset)
        lines = [
            f"{found['events']:,} events of {found['subjects']:,} subjects, {found['rejected_rows']:,} rows without one"
        ]
        for name, count in found["tables"].items():
            if count["rows"] or count["files"]:
                lines.append(f"  {name}: {count['rows']:,} rows, {count['events']:,} events")
        absent = [name for name, count in found["tables"].items() if not count["rows"] and not count["files"]]
        lines += [f"no file of: {', '.join(absent)}"] if absent else []
        for heading, part in (("left out", found["rejected"]), ("decided", found["notes"])):
            lines += [f"{heading}:"] if part else []
            lines += [f"  {reason}: {count:,}" for reason, count in part.items()]
        lines += ["not read:"] if found["unused"] else []
        lines += [f"  {name}: {reason}" for name, reason in found["unused"].items()]
        output.write(found, lines)

    @group.command("audit")
    def audit(
        data: str = typer.Argument(..., help="MEDS folder."),
        labels: str = typer.Option(None, help="MEDS task folder: looks at its prediction times too."),
        out: str = typer.Option(None, help="Where to write the HTML report."),
        json_: options.Json = False,
    ) -> None:
        """Look for the future in the past: codes that tell the outcome, dates taken for times, deaths before their time,
        copies, orders of rows. Ends with 0 where there is no warning, 1 where there is one."""
        from unmask.cli.common import Output
        from unmask.files import check_place
        from unmask.modalities.events import audit_report
        from unmask.modalities.events.audit import audit as run

        if out is not None:
            check_place(out)
        output = Output(json_)
        found, about = run(data, labels)
        lines = audit_report.lines(found, about)
        if out is not None:
            audit_report.page(found, about, data, out)
            lines.append(f"report: {out}")
        warnings = sum(f.level == "warning" for f in found)
        output.write(about | {"warnings": warnings, "findings": [f.to_dict() for f in found]}, lines)
        if warnings:
            raise typer.Exit(1)
