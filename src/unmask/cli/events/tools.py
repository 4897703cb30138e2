"""unmask events convert, labels, audit, generate and compare."""

from __future__ import annotations

import typer

from unmask.cli import options
from unmask.cli.common import Result
from unmask.errors import first_of
from unmask.files import check_results

SHOWN_CODES = 10
"""Codes of facts without a time that are printed."""


def convert(
    source: str = options.source(
        "Event table (csv, tsv, parquet), FHIR (json, ndjson, zip, folder), or a folder of OMOP or MIMIC-IV."
    ),
    out: str = typer.Option(..., help="MEDS folder to make."),
    subject: str = typer.Option("subject_id", help="Table: column of the patient."),
    time: str = typer.Option("time", help="Table: column of the time."),
    code: str = typer.Option("code", help="Table: column of the code."),
    value: str = typer.Option("numeric_value", help="Table: column of the value."),
    visit: str = typer.Option("visit_id", help="Table: column of the encounter."),
    text: str = typer.Option("text_value", help="Table: column of answers in words."),
    unit: str = typer.Option("unit", help="Table: column of the value's unit, which becomes part of the code."),
    dates: str = typer.Option(None, help="month-first or day-first: how dates such as 01/02/2020 are meant."),
    onset: bool = typer.Option(
        False, "--onset", help="FHIR: conditions without a time of recording stand at their onset, not rejected."
    ),
    static: bool = typer.Option(
        False, "--static", help="Table: rows without a time are facts, also deaths and codes with a time elsewhere."
    ),
    decimal: str = typer.Option(None, help="Tables: , or . (a point), the mark of decimals in values."),
    missing: list[str] = typer.Option(
        None,
        help="Tables: text of an empty cell, repeatable; in place of the usual ones (NA, n/a, nan, null, ?, .; of "
        "OMOP and MIMIC-IV none).",
    ),
) -> Result:
    """Make a MEDS folder; every row that is left out is counted by reason and sampled into rejected.jsonl, and
    every file is read or named."""
    from unmask.modalities.events.sources.convert import convert as run

    columns = {"subject": subject, "time": time, "code": code, "value": value}
    columns |= {"visit": visit, "text": text, "unit": unit}
    found = run(
        source, out, columns=columns, dates=dates, onset=onset, static=static, decimal=decimal, missing=missing or None
    )
    lines = [
        f"{found['events']:,} events of {found['subjects']:,} subjects, {found['rejected_rows']:,} rows without one"
    ]
    for name, count in found["tables"].items():
        if count["rows"] or count["files"]:
            lines.append(f"  {name}: {count['rows']:,} rows, {count['events']:,} events")
    absent = [name for name, count in found["tables"].items() if not count["rows"] and not count["files"]]
    lines += [f"no file of: {', '.join(absent)}"] if absent else []
    if found["static"]:
        lines.append(f"without a time, known from the start: {sum(found['static'].values()):,}")
        lines += [f"  {name}: {count:,}" for name, count in list(found["static"].items())[:SHOWN_CODES]]
        more = len(found["static"]) - SHOWN_CODES
        lines += [f"  and {more:,} more codes, see --json"] if more > 0 else []
    lines += ["left out:"] if found["rejected"] else []
    for reason, count in found["rejected"].items():
        place = found["first_rejected"].get(reason, {}).get("where")
        lines.append(f"  {reason}: {count:,}" + (f" (the first: {place})" if place else ""))
    lines += ["decided:"] if found["notes"] else []
    lines += [f"  {reason}: {count:,}" for reason, count in found["notes"].items()]
    lines += ["not read:"] if found["unused"] else []
    lines += [f"  {name}: {reason}" for name, reason in found["unused"].items()]
    return Result(found, lines)


def labels(
    data: str = options.source("MEDS folder."),
    task: str = options.source_option("ACES task file (.yaml): what is a point, and what makes its label true.", ...),
    out: str = typer.Option(..., help="MEDS task folder to make."),
    predicates: str = options.source_option("A second file, with the predicates of this data set."),
) -> Result:
    """Prediction times and labels of an ACES task: how many points, how often true, what left the others out, and what
    the definition itself gives away."""
    from unmask.modalities.events.audit.audit_task import labels as run

    found = run(data, task, out, predicates=predicates)
    lines = [*found.lines(), f"labels: {out}/labels.parquet", f"task, as it was read: {out}/task.yaml"]
    return Result({"out": out} | found.to_dict(), lines)


def audit(
    data: str = options.source("MEDS folder."),
    labels: str = options.source_option("MEDS task folder or ACES task file: looks at its prediction times too."),
    out: str = typer.Option(None, help="Where to write the HTML report."),
    examples: options.Examples = False,
) -> Result:
    """Look for the future in the past: codes that tell the outcome, dates taken for times, deaths before their time,
    copies, orders of rows. Ends with 0 where there is no warning, 1 where there is one."""
    from unmask.modalities.events.audit import audit_points
    from unmask.modalities.events.audit.audit_points import audit as run

    check_results([out], [data, labels])
    found, about = run(data, labels)
    lines = audit_points.lines(found, about)
    if out is not None:
        audit_points.page(found, about, data, out, examples=examples)
        lines.append(f"report: {out}")
    warnings = sum(f.level == "warning" for f in found)
    return Result(
        about | {"warnings": warnings, "findings": [f.to_dict() for f in found]}, lines, code=int(warnings > 0)
    )


def generate(
    data: str = options.source("MEDS folder to learn from."),
    patients: int = typer.Option(..., min=1, help="How many to draw."),
    out: str = typer.Option(..., help="MEDS folder to make."),
    where: list[str] = typer.Option(
        [], help='Condition every patient meets: "age > 70 and diabetes", "not CODE", "CODE > 10"; repeatable.'
    ),
    seed: options.Seed = 0,
) -> Result:
    """Learn from records and draw new patients: who they are, how often each code comes, then one time stamp after the
    other; nothing that only a few patients have."""
    from unmask.modalities.events.synthesis.generate import generate as run

    found = run(data, patients, out, where=where, seed=seed)
    lines = [
        f"{found['rows']:,} patients, {found['events']:,} events, {found['codes']:,} codes: {out}",
        f"learnt from {found['learnt_from']:,} patients; {found['left_out']:,} codes of fewer than {found['least']} "
        "patients are left out",
    ]
    if found["without"]:
        lines.append(f"{found['without']:,} patients have no event at a time that may be drawn: not learnt from")
    if found["repeats"]:
        lines.append(f"{found['repeats']:,} events stand again at their time stamp: of these one is drawn")
    lines += [f"{found['drawn']:,} drawn for these that meet the conditions"] if found["conditions"] else []
    lines += [f"condition {term!r}: {first_of(codes)}" for term, codes in found["conditions"].items()]
    lines.append(f"how near they are to real patients: unmask events compare {out} {data}")
    return Result(found, lines)


def compare(
    drawn: str = options.source("MEDS folder of new patients, as generate writes it."),
    real: str = options.source("MEDS folder of the patients that they were learnt from."),
    held_out: str = options.source_option(
        "MEDS folder of other patients, not learnt from; default: those whom the splits of the data hold out."
    ),
    seed: options.Seed = 0,
) -> Result:
    """How near new patients are to real ones, beside other real patients and shuffled ones, and whether they are nearer
    to those they were learnt from."""
    from unmask.modalities.events.synthesis.judge import compare as run

    found = run(drawn, real, held_out=held_out, seed=seed)
    return Result(dict(found), str(found).splitlines())
