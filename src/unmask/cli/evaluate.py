"""unmask evaluate MODEL DATA"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import by_kind

READS = {
    "glue": "glue_model out set_ precision device", "text": "ratio most column document precision device",
    "a text task": "text text2 label header precision device", "tag or answer": "precision device", "images": "most set_ report precision device",
    "table": "rows report missing decimal encoding sheet", "events": "labels most_unknown precision device",
}  # fmt: skip


def register(app: Any) -> None:
    @app.command("evaluate", cls=by_kind(READS))
    def evaluate(
        context: typer.Context,
        model: str = typer.Argument(..., help="Model folder or hub name; or the word glue, then --model."),
        data: list[str] = typer.Argument(
            ...,
            help="Held-out text (files, folders, globs), pictures, tables; for a fine-tuned model labelled data, or a BEIR folder.",
        ),
        glue_model: str = typer.Option(None, "--model", help="glue: the model to fine-tune on each task."),
        out: str = typer.Option(None, help="glue: where test predictions go, in the leaderboard's format."),
        set_: options.Set = [],
        ratio: float = typer.Option(0.15, help="Share of the tokens to hide."),
        most: int = typer.Option(
            None, help="At most this many documents (default 2000) or training pictures (default all)."
        ),
        rows: int = typer.Option(None, help="Tables: synthetic rows to compare, default as many as real ones."),
        report: str = typer.Option(
            None, help="Tables, and fine-tuned models of pictures: where to write the HTML report."
        ),
        column: str = typer.Option(None, help="Text column of jsonl, csv and parquet inputs."),
        document: str = typer.Option(
            None,
            help="Where documents of .txt end: blank (lines), line or file; default blank, or line without blank lines.",
        ),
        text: str = typer.Option(None, help="Fine-tuned: column of texts."),
        text2: str = typer.Option(None, help="Fine-tuned: column of second texts."),
        label: str = typer.Option(None, help="Fine-tuned: column of labels."),
        labels: str = typer.Option(None, help="Events: MEDS task folder."),
        missing: options.Missing = [],
        decimal: options.Decimal = None,
        encoding: options.Encoding = None,
        sheet: options.Sheet = None,
        most_unknown: options.MostUnknown = 0.5,
        header: options.Header = None,
        lenient: options.Lenient = False,
        seed: options.Seed = 0,
        precision: options.Precision = "auto",
        device: options.Device = "auto",
        json_: options.Json = False,
    ) -> None:
        """Text: loss, perplexity, accuracy on hidden tokens; fine-tuned: its metrics; queries and documents: retrieval. Pictures: neighbours and linear probe. Tables: synthetic rows beside real."""
        import itertools
        import sys

        from unmask.cli import text_tasks
        from unmask.cli.common import Output, refuse_unread
        from unmask.errors import UserError
        from unmask.kinds import kind_of, load, task_of

        kind = model if model == "glue" else kind_of(model)
        task = kind == "text" and (task_of(model) is not None or _is_collection(data[0]))
        tagged = task and task_of(model) in ("tag", "answer")
        refuse_unread(context, READS, "tag or answer" if tagged else "a text task" if task else kind)
        if most is not None and most < 1:
            raise UserError(f"--most {most}", hint="Expected a whole number, 1 or more.")
        if model == "glue":
            text_tasks.glue(
                data,
                model=glue_model,
                out=out,
                settings=set_,
                seed=seed,
                precision=precision,
                device=device,
                as_json=json_,
            )
            return
        if task:
            text_tasks.evaluate(
                model, data, text=text, text2=text2, label=label, header=header, seed=seed, precision=precision,
                device=device, as_json=json_, lenient=lenient,
            )  # fmt: skip
            return

        from unmask.modalities.text.building import told
        from unmask.modalities.text.documents import ReadReport
        from unmask.modalities.text.sources import iter_documents

        if kind == "images":
            from unmask.cli import images

            images.evaluate(
                model, data, most=most, settings=set_, report=report, seed=seed, precision=precision, device=device,
                as_json=json_,
            )  # fmt: skip
            return
        output = Output(json_, seed)
        if kind == "events":
            from unmask.cli import events

            events.evaluate(
                model, data, labels=labels, most_unknown=most_unknown, seed=seed, precision=precision, device=device,
                as_json=json_,
            )  # fmt: skip
            return
        if kind == "table":
            from unmask.cli.table import evaluate_table

            output.write(
                *evaluate_table(
                    model, data, rows, report, seed, missing=missing, decimal=decimal, encoding=encoding, sheet=sheet
                )
            )
            return
        read = ReadReport()
        documents = iter_documents(data, column=column, report=read, document=document or "auto")  # type: ignore[arg-type]
        texts = [d.text for d in itertools.islice(documents, most or 2000)]
        for line in told({"report": vars(read)}):
            print(line, file=sys.stderr)
        loaded = load(model, device=device, precision=precision)
        found = loaded.evaluate(texts, ratio=ratio, seed=seed)
        shown = ("loss", "perplexity", "accuracy_at_1", "accuracy_at_5", "hidden_slots")
        lines = [f"{name:16}{found[name]}" for name in shown if name in found]
        output.write(found, lines, device=str(loaded.device), precision=loaded.precision)


def _is_collection(data: str) -> bool:
    from unmask.modalities.text.tasks.retrieval import is_collection

    return is_collection(data)
