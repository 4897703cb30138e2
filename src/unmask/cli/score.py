"""unmask score MODEL FILE"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import by_kind

READS = {
    "text": "mode precision device",
    "events": "mode by out most_unknown precision device",
    "table": "absent missing decimal encoding sheet",
}


def register(app: Any) -> None:
    @app.command("score", cls=by_kind(READS))
    def score(
        context: typer.Context,
        model: options.Model,
        text: str = typer.Argument(..., help="A text, or a file with one text a line; a table, a MEDS folder."),
        mode: str = typer.Option(
            "unit", help="unit: later pieces of a word (events of a visit) are hidden too; slot: each alone."
        ),
        by: str = typer.Option("patient", help="Events: one row a patient, visit or event."),
        out: str = typer.Option(None, help="Events: parquet to write the rows to."),
        most_unknown: options.MostUnknown = 0.5,
        absent: options.Absent = "",
        missing: options.Missing = [],
        decimal: options.Decimal = None,
        encoding: options.Encoding = None,
        sheet: options.Sheet = None,
        precision: options.Precision = "auto",
        device: options.Device = "auto",
        json_: options.Json = False,
    ) -> None:
        """Pseudo-log-likelihood of texts, rows or patients' events: the higher, the more natural."""
        from unmask.cli.common import PART, Output, in_parts, read_lines, refuse_unread
        from unmask.errors import UserError
        from unmask.kinds import kind_of, load

        kind = kind_of(model)
        refuse_unread(context, READS, kind)
        if kind == "events":
            from unmask.cli import events

            events.score(
                model,
                text,
                by=by,
                mode=mode,
                out=out,
                most_unknown=most_unknown,
                precision=precision,
                device=device,
                as_json=json_,
            )
            return
        output = Output(json_)
        if kind == "table":
            from unmask.cli.table import score_table

            output.write(
                *score_table(model, text, absent, missing=missing, decimal=decimal, encoding=encoding, sheet=sheet)
            )
            return
        if kind != "text":
            raise UserError(f"{model}: a model of {kind}", hint="Models of text, tables and events score.")
        loaded = load(model, device=device, precision=precision)
        texts = read_lines(text)
        if len(texts) > PART:
            loaded.check(texts)  # what is too long is said by its place among all
        parts = in_parts(texts, lambda some: loaded.score(some, mode=mode), "scored")
        results = [row for part in parts for row in part]
        lines = [f"{r['score']:10.3f}  {r['slots']:4d} tokens  {r['text']}" for r in results]
        output.write({"results": results}, lines, device=str(loaded.device), precision=loaded.precision)
