"""unmask evaluate MODEL DATA"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def register(app: Any) -> None:
    @app.command("evaluate")
    def evaluate(
        model: str = typer.Argument(..., help="Model folder or hub name; or the word glue, then --model."),
        data: list[str] = typer.Argument(
            ..., help="Held-out text: files, folders, globs; labelled data for a task model."
        ),
        ratio: float = typer.Option(0.15, help="Share of the tokens to hide."),
        most: int = typer.Option(2000, help="At most this many documents."),
        glue_model: str = typer.Option(None, "--model", help="glue: the model to fine-tune on each task."),
        out: str = typer.Option(None, help="glue: where test predictions go, in the leaderboard's format."),
        set_: options.Set = [],
        column: str = typer.Option(None, help="Text column of jsonl, csv and parquet inputs."),
        seed: options.Seed = 0,
        precision: options.Precision = "auto",
        device: options.Device = "auto",
        json_: options.Json = False,
    ) -> None:
        """Loss, perplexity and accuracy on hidden tokens of held-out text, with intervals over documents."""
        import itertools

        from unmask.cli import text_tasks

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
        if text_tasks.is_task(model):
            text_tasks.evaluate(model, data, seed=seed, precision=precision, device=device, as_json=json_)
            return

        from unmask.cli.common import Output
        from unmask.kinds import load
        from unmask.text.sources import iter_documents

        output = Output(json_, seed)
        texts = [d.text for d in itertools.islice(iter_documents(data, column=column), most)]
        loaded = load(model, device=device, precision=precision)
        found = loaded.evaluate(texts, ratio=ratio, seed=seed)
        shown = ("loss", "perplexity", "accuracy_at_1", "accuracy_at_5", "hidden_slots")
        lines = [f"{name:16}{found[name]}" for name in shown if name in found]
        output.write(found, lines, device=str(loaded.device), precision=loaded.precision)
