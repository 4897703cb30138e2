"""unmask finetune TASK MODEL DATA --out DIR: one dispatch on the model's kind, then on the task."""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options
from unmask.cli.common import by_kind

_TEXT = "validation seeds adapt resume lenient steps minutes"
READS = {
    "classify": f"{_TEXT} text text2 label header metric", "tag": _TEXT, "answer": _TEXT, "similarity": f"{_TEXT} text text2 label header",
    "images": "validation steps minutes", "outcome": "labels", "next-visit": "",
}  # fmt: skip
"""By task of texts and of patient events; pictures have one."""


def register(app: Any) -> None:
    @app.command("finetune", cls=by_kind(READS, "finetuning:"))
    def finetune(
        context: typer.Context,
        task: str = typer.Argument(..., help="classify, tag, answer or similarity; of events outcome or next-visit."),
        model: str = typer.Argument(..., help="Model folder or hub name."),
        train: str = typer.Argument(
            ...,
            help="Labelled texts (csv, tsv, jsonl, parquet, CoNLL, SQuAD json, hf:NAME), class folders of pictures or a table of files and labels, or MEDS.",
        ),
        out: str = typer.Option(..., help="Where the fine-tuned folder goes."),
        validation: str = typer.Option(None, help="Held-out labelled data: early stopping, calibration, report."),
        labels: str = typer.Option(None, help="Folder of labels (outcome)."),
        text: str = typer.Option(None, help="Column of texts."),
        text2: str = typer.Option(None, help="Column of second texts."),
        label: str = typer.Option(None, help="Column of labels."),
        header: options.Header = None,
        metric: str = typer.Option(None, help="What early stopping goes by (classify)."),
        seeds: int = typer.Option(1, help="Runs with as many seeds: mean and interval; the best is kept."),
        lenient: options.Lenient = False,
        adapt: list[str] = typer.Option([], help="Texts of the domain: adapt the model to them first, and compare."),
        config: options.Config = None,
        set_: options.Set = [],
        steps: options.Steps = None,
        epochs: options.Epochs = None,
        minutes: options.Minutes = None,
        seed: options.RunSeed = None,
        resume: options.Resume = False,
        precision: options.RunPrecision = None,
        device: options.RunDevice = None,
        json_: options.Json = False,
    ) -> None:
        """Fine-tune a model for a task; the folder loads in transformers too."""
        from unmask.cli.common import refuse_unread, run_overrides
        from unmask.errors import UserError
        from unmask.kinds import kind_of

        kind = kind_of(model)
        refuse_unread(context, READS, _reader(kind, task))
        settings = run_overrides(context)
        if resume and (adapt or seeds > 1):
            raise UserError("--resume", hint="One fine-tuning run can be resumed: no --seeds, no --adapt.")
        if kind == "text":
            from unmask.cli import text_tasks

            text_tasks.finetune(
                task, model, train, out=out, validation=validation, text=text, text2=text2, label=label, header=header, metric=metric,
                seeds=seeds, adapt=adapt, resume=resume, lenient=lenient, settings=settings, as_json=json_,
            )  # fmt: skip
            return
        if kind == "images":
            from unmask.cli import images

            images.finetune(task, model, train, validation=validation, out=out, given=settings, as_json=json_)
            return
        if kind == "events":
            from unmask.cli import events

            events.finetune(task, model, train, labels=labels, out=out, given=settings, as_json=json_)
            return
        raise UserError(f"{model}: a model of {kind}", hint="Models of text, images and events are fine-tuned.")


def _reader(kind: str, task: str) -> str:
    """Whose flags of `READS` a task takes on a kind of model."""
    if kind == "events":
        return task if task == "next-visit" else "outcome"
    return "images" if kind == "images" else task
