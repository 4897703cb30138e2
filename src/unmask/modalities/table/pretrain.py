"""`unmask pretrain table`: a CSV or parquet file to a run folder with the model, its curve and a report."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.core.pretrain import StepReport
from unmask.errors import option
from unmask.evaluation.card import source_name
from unmask.evaluation.shown import Printed, Shown
from unmask.guessed import also_called
from unmask.modalities.table.fitting.imputation_quality import error_removed, figure_texts, with_care
from unmask.modalities.table.model import TableModel, load
from unmask.modalities.table.reading.frame import Frame
from unmask.modalities.table.reading.several_files import frame_to_fit
from unmask.modalities.table.recipes import TableSettings, with_overrides
from unmask.modalities.table.rules.rules import schema_for
from unmask.modalities.table.schema.schema import Schema
from unmask.modalities.table.schema.values import cell_texts, decode, encode, rows_digest
from unmask.modalities.table.synthesis.disclosure_control import shown_levels
from unmask.training.launcher import check_one_process
from unmask.training.run import check_run_folder
from unmask.training.same_run import digest, refuse_differences
from unmask.training.settings import TrainSettings, settings_from
from unmask.training.tracking import Tracker
from unmask.writing import final_place, makes_folder, written_folder


@dataclass(frozen=True, kw_only=True, repr=False)
class TableRun(Printed):
    """A finished fit and its folder; `kept`: it was there."""

    folder: Path
    model: TableModel
    kept: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        return {
            "folder": str(self.folder),
            **self.model.inspect(),
            "seconds": self.model.facts["seconds"],
            "fit_seconds": self.model.facts["seconds"],
            "columns_imputed": self.model.facts["columns_imputed"],
        }

    def shown(self) -> Shown:
        """The model, as `print` shows it."""
        next_step = f"unmask.load({str(self.folder)!r}).impute(new), .synthesize(rows), .evaluate(other_rows)"
        return dataclasses.replace(self.model.shown(), next_step=next_step)


@also_called(duration_col="duration", event_col="event", random_state="seed")
@makes_folder
def pretrain(
    data: Any,
    out: str | Path | None = None,
    *,
    schema: Mapping[str, Any] | str | Path | None = None,
    duration: str | None = None,
    event: str | None = None,
    entry: str | None = None,
    event_level: str | Sequence[str] | None = None,
    cluster: str | None = None,
    constraints: Sequence[str] | str = (),
    settings: TableSettings | TrainSettings | Mapping[str, Any] | None = None,
    resume: bool = False,
    console: bool = True,
    **overrides: Any,
) -> TableRun:
    """Fit a table model and write its run folder.

    Args:
        data: a path, pandas, polars or Arrow table, array or dict of columns; or the files of one table, as in
            `TableModel.fit`.
        out: run folder; left out, a temporary one, which lives as long as the result.
        schema, duration, event, entry, event_level, cluster, constraints: as in `TableModel.fit`.
        settings, overrides: fields of `TableSettings` and of its `train`, as keywords (`steps=200`), a dict or an
            object.

    A fit takes seconds and is the same for the same seed, so nothing is saved on the way: the folder is there when all
    of it is, and `resume` keeps a finished run of the same data and settings as it is.

    Raises:
        UserError: for anything wrong with the input, the settings or the folder; nothing is written then.
    """
    check_one_process("a table's fit")
    assert out is not None  # of `makes_folder`
    out = Path(out)
    settings = settings_from(TableSettings(), settings, overrides, with_overrides)
    known: dict[str, Any] = {"schema": schema, "duration": duration, "event": event, "entry": entry}
    known |= {"event_level": event_level, "cluster": cluster, "constraints": constraints}
    if resume and (out / "unmask.json").exists():
        run = TableRun(folder=out, model=load(out), kept=True)
        _check_same_fit(run, frame_to_fit(data, seed=settings.train.seed), settings, known)
        return run
    check_run_folder(out, resume=resume)
    with written_folder(out) as new:
        with Tracker(new, total="", console=console, config=asdict(settings)) as tracker:

            def watch(report: StepReport, total: int) -> None:
                if report.step % 10 == 0 or report.step == total:
                    tracker.log(
                        report.step,
                        report.step / total,
                        loss=report.loss,
                        accuracy=report.accuracy,
                        slots_per_second=report.slots / max(report.seconds, 1e-9),
                        hidden_slots=report.hidden,
                    )

            model = TableModel.fit(data, **known, settings=settings, watch=watch)
            for step, loss in model.facts["history"]:
                tracker.log(step, 1.0, kind="validation", loss=loss)
            tracker.event("columns_imputed", columns=model.facts["columns_imputed"])
        model.facts["source"] = source_name(data)
        model.save(new)
        write_report(model, new)
    return TableRun(folder=out, model=model)


def keep(model: TableModel, out: str | Path, data: Any) -> None:
    """Write the run folder of a model that was fitted without one. `data`: what it was fitted to."""
    model.facts["source"] = source_name(data)
    with written_folder(out) as new:
        model.save(new)
        write_report(model, new)


def _check_same_fit(run: TableRun, frame: Frame, settings: TableSettings, known: Mapping[str, Any]) -> None:
    """Refuse to keep a finished fit for another one."""
    schema, config = schema_for(frame, **known), json.loads((run.folder / "config.json").read_text(encoding="utf-8"))
    was = _fingerprint(run.model.schema, config, run.model.facts["rows_digest"])
    own = {"model_type": config.get("model_type"), **asdict(settings)}
    now = _fingerprint(schema, own, rows_digest(encode(frame, schema)))
    hint = f"Give the same ones to keep it, or choose another {option('out')}."
    refuse_differences(was, now, run.folder, hint=hint)


def _fingerprint(schema: Schema, settings: Mapping[str, Any], rows: str) -> dict[str, Any]:
    learnt = [{"low", "high"} - {*(c.given or ())} for c in schema.columns]  # from the rows
    columns = [
        {k: v for k, v in c.items() if k not in rest}
        for c, rest in zip(schema.to_dict()["columns"], learnt, strict=True)
    ]
    return {
        "settings": settings,
        "outcome": {"duration": schema.duration, "event": schema.event, "entry": schema.entry},
        "cluster": schema.cluster,
        "constraints": list(schema.constraints),
        "columns": digest(columns),
        "rows": rows,
    }


def write_report(model: TableModel, out: Path) -> Path:
    """report.html of a fit: how well each column is imputed, columns, what was noticed, the curve, and what
    to do next."""
    from unmask.evaluation.charts import table
    from unmask.evaluation.report import Report, training_curves

    about = model.inspect()
    best = about["held_out_loss"]
    report = Report("A masked model of a table", str(final_place(out)))
    report.facts(
        {
            "Rows": about["rows"],
            "Columns": about["columns"],
            "Missing": f"{model.facts['missing']:.1%}",
            "Held-out loss": f"{best:.3f} nats per cell" if best is not None and math.isfinite(best) else "none",
            "Time": f"{model.facts['seconds']:.1f} s",
            "Parameters": about["parameters"],
        }
    )
    add_imputed(report, model)
    rows = []
    for c in model.schema.columns:
        what = shown_levels(model, c)
        if c.is_quantity and c.modelled:
            ends = [c.low, c.high]
            texts = cell_texts(decode(np.array(ends), c), c) if c.kind == "datetime" else [f"{v:g}" for v in ends]
            what = " to ".join(texts) + (f" {c.unit}" if c.unit else "")
        rows.append(
            (
                c.name,
                c.kind,
                model.schema.role(c.name),
                what if c.modelled else "left out",
                " = ".join(c.structural or ()),
            )
        )
    report.section("Columns", table(("column", "kind", "role", "values", "empty where"), rows))
    if about["notes"]:
        report.section("Noticed", "\n\n".join(about["notes"]))
    report.section(
        "Held-out loss",
        training_curves(out / "metrics.jsonl"),
        note="Lower is better. On rows that a member never trained on; step 0 is before the network has learnt "
        "anything.",
    )
    report.section("What this folder contains", "\n\n".join(about["contains"]))
    return report.write(out / "report.html")


def add_imputed(report: Any, model: TableModel) -> None:
    """How well each column is imputed, as a picture and a table, onto a report."""
    from unmask.evaluation.charts import bars, table

    figures = model.facts["columns_imputed"]
    if not figures:
        why = "this recipe gives point values alone." if model.table.network.points_only else "too few rows."
        report.section("How well is each column imputed?", f"Not judged: {why}")
        return
    good = [f["column"] for f in figures if f["verdict"] == "clearly_better"]
    sentence = f"{len(good)} of {len(figures)} columns are imputed clearly better than by their mean or mode."
    if care := with_care(figures):
        sentence += f" {care[0].upper()}{care[1:]}."
    report.section(
        "How well is each column imputed?",
        sentence,
        note="The bars: how much of the error of the mean (of quantities) or the mode (of categories) is gone, "
        "where chance does not explain it; longer is better, and the tick stands where it is clearly better. Judged on "
        "cells hidden in rows that the member who imputes them never trained on: as cells of this table are missing, "
        "or a share of 5 to 50 % where none is.",
    )
    ordered = sorted(figures, key=error_removed, reverse=True)
    report.chart(
        bars(
            [(f["column"], error_removed(f), f["verdict"] == "clearly_better") for f in ordered], label="error removed"
        )
    )
    rows = [(f["column"], *figure_texts(f), f["cells"], f["sentence"]) for f in figures]
    report.section(
        "Held-out error by column",
        table(
            ("column", "error", "error of the mean or mode", "90 % intervals hold", "cells judged", "in words"), rows
        ),
        note="Error: root of the mean squared error, in the column's unit (of dates in days), or the share of "
        "categories that are wrong; "
        "lower is better. 90 % intervals should hold 90 % of the true values: fewer means too narrow, more too wide.",
    )
