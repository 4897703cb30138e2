"""unmask predict MODEL INPUT --out F: one dispatch on the model's kind."""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import by_kind

READS = {"text": "text text2 header", "tag or answer": "", "images": "set_", "events": "labels most_unknown"}


def register(app: Any) -> None:
    @app.command("predict", cls=by_kind(READS))
    def predict(
        context: typer.Context,
        model: str = typer.Argument(..., help="Fine-tuned model folder."),
        data: str = typer.Argument(
            ..., help="Texts (.txt one a line, csv, tsv, jsonl, parquet, CoNLL, SQuAD json), pictures, or MEDS."
        ),
        out: str = typer.Option(..., help="Where the predictions go, one an input, in order."),
        set_: list[str] = typer.Option(
            [],
            "--set",
            help="Pictures: how files are read: planes, alpha, nodata, slice, view, overlap, rescale; of a table of files: pictures, column.",
        ),
        labels: str = typer.Option(None, help="Folder of prediction times (event models)."),
        most_unknown: options.MostUnknown = 0.5,
        text: str = typer.Option(None, help="Column of texts."),
        text2: str = typer.Option(None, help="Column of second texts."),
        header: options.Header = None,
        seed: options.Seed = 0,
        precision: options.Precision = "auto",
        device: options.Device = "auto",
        json_: options.Json = False,
    ) -> None:
        """Predict with a fine-tuned model."""
        from unmask.cli.common import refuse_unread
        from unmask.kinds import kind_of, task_of

        kind = kind_of(model)
        tagged = kind == "text" and task_of(model) in ("tag", "answer")
        refuse_unread(context, READS, "tag or answer" if tagged else kind)
        if kind == "text":
            from unmask.cli import text_tasks

            text_tasks.predict(
                model,
                data,
                out=out,
                text=text,
                text2=text2,
                header=header,
                seed=seed,
                precision=precision,
                device=device,
                as_json=json_,
            )
            return
        if kind == "images":
            from unmask.cli import images

            images.predict(model, data, out=out, settings=set_, precision=precision, device=device, as_json=json_)
            return
        if kind == "events":
            from unmask.cli import events

            events.predict(
                model,
                data,
                labels=labels,
                out=out,
                most_unknown=most_unknown,
                seed=seed,
                precision=precision,
                device=device,
                as_json=json_,
            )
            return
        from unmask.errors import UserError

        raise UserError(f"{model}: a model of {kind}", hint="Fine-tuned models of text, images and events predict.")
