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
    from unmask.events.recipes import OutcomeSettings
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
    from unmask.events.finetune import finetune_outcome
    from unmask.events.outcome_report import SHOWN

    found = finetune_outcome(model, data, labels, out, settings=settings).figures
    lines = [f"{found['training']} labels to train on, {found['held_out']} held out"]
    for name, count in found.get("unseen_classes", {}).items():
        lines.append(f"{count} held-out labels of {name}, a class that no label to train on has")
    for name, result in found["results"].items():
        shown = [f"{k} {result[k]:.3f}" for k in SHOWN if k in result]
        lines.append(f"{name:22} {'  '.join(shown)}")
    lines += [f"model:  {out}", f"report: {out}/report.html"]
    output.write({"folder": out} | found, lines, device=found["device"], precision=found["precision"])


def _next_visit(model: str, data: str, out: str, settings: Any, output: Any) -> None:
    from unmask.events.next_visit import PARTS, finetune_next_visit

    found = finetune_next_visit(model, data, out, settings=settings).figures
    lines = [f"{found['training']} patients to train on, {found['held_out']} held out, {found['codes']} codes"]
    for name, result in found["results"].items():
        shown = [f"{part} {result[part]['auroc']:.3f}" for part in PARTS if "auroc" in result[part]]
        lines.append(f"{name:16} AUROC: {'  '.join(shown)}")
    lines += [f"model:  {out}", f"report: {out}/report.html"]
    output.write({"folder": out} | found, lines, device=found["device"], precision=found["precision"])


def predict(
    model: str, data: str, *, labels: str | None, out: str, seed: int, precision: str, device: str, as_json: bool
) -> None:
    """Probabilities at every prediction point, as MEDS-shaped parquet."""
    from unmask.cli.common import Output
    from unmask.errors import UserError
    from unmask.events.model import load, write_predictions
    from unmask.files import check_place

    if labels is None:
        raise UserError("predict without --labels", hint="Give the MEDS task folder with the prediction times.")
    check_place(out)
    output = Output(as_json, seed)
    loaded = load(model, device=device, precision=precision)
    frame, points = loaded.predict(data, labels)
    write_predictions(frame, out)
    found: dict[str, Any] = {"out": out, "points": len(points)}
    output.write(found, [f"{out}: {len(points)} predictions"], device=str(loaded.device), precision=loaded.precision)


def fill(
    model: str, data: str, *, out: str | None, top: int, level: float, seed: int, precision: str, device: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Missing values with an interval, and the likeliest next events, as parquet."""
    from unmask.cli.common import Output
    from unmask.errors import UserError
    from unmask.events.model import load, write_predictions
    from unmask.files import check_place

    if out is None:
        raise UserError("fill of events without --out", hint="Say which parquet to write.")
    check_place(out)
    output = Output(as_json, seed)
    loaded = load(model, device=device, precision=precision)
    frame = loaded.fill(data, top=top, level=level)
    write_predictions(frame, out)
    counts = dict(frame["kind"].value_counts().iter_rows())
    line = f"{out}: {counts.get('value', 0)} missing values filled, {counts.get('next', 0)} next events"
    output.write({"out": out, "rows": counts}, [line], device=str(loaded.device), precision=loaded.precision)


def score(
    model: str, data: str, *, by: str, mode: str, out: str | None, precision: str, device: str, as_json: bool
) -> None:
    """Pseudo-log-likelihood by patient, visit or event: a table, or the rows themselves."""
    from typing import cast

    from unmask.cli.common import Output
    from unmask.events.model import load, write_predictions

    output = Output(as_json)
    loaded = load(model, device=device, precision=precision)
    frame = loaded.score(data, by=cast(Any, by), mode=cast(Any, mode))
    if out is not None:
        write_predictions(frame, out)
    least = frame.sort(frame["score"] / frame["slots"]).head(SHOWN_ROWS)
    lines = [f"{len(frame)} {by}s, {frame['slots'].sum()} events; the least natural, by event:"]
    for row in least.iter_rows(named=True):
        shown = "  ".join(str(row[n]) for n in ("subject_id", "time", "code") if n in row)
        lines.append(f"{row['score'] / row['slots']:10.3f}  {row['slots']:4d} events  {shown}")
    found: dict[str, Any] = {"by": by, "rows": len(frame), "events": int(frame["slots"].sum())}
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
        from unmask.events.convert import convert as run

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
        from unmask.events import audit_report
        from unmask.events.audit import audit as run
        from unmask.files import check_place

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
