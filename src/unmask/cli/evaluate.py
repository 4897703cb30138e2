"""unmask evaluate MODEL DATA"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def register(app: Any) -> None:
    @app.command("evaluate")
    def evaluate(
        model: options.Model,
        data: list[str] = typer.Argument(..., help="Held-out text: files, folders, globs."),
        ratio: float = typer.Option(0.15, help="Share of the tokens to hide."),
        most: int = typer.Option(2000, help="At most this many documents."),
        rows: int = typer.Option(None, help="Tables: synthetic rows to compare, default as many as real ones."),
        report: str = typer.Option(None, help="Tables: where to write the HTML report."),
        column: str = typer.Option(None, help="Text column of jsonl, csv and parquet inputs."),
        seed: options.Seed = 0,
        precision: options.Precision = "auto",
        device: options.Device = "auto",
        json_: options.Json = False,
    ) -> None:
        """Loss, perplexity and accuracy on hidden tokens of held-out text, with intervals over documents."""
        import itertools

        from unmask.cli.common import Output
        from unmask.kinds import kind_of, load
        from unmask.text.sources import iter_documents

        output = Output(json_, seed)
        if kind_of(model) == "table":
            from unmask.cli.table import evaluate_table

            output.write(*evaluate_table(model, data, rows, report, seed))
            return
        texts = [d.text for d in itertools.islice(iter_documents(data, column=column), most)]
        loaded = load(model, device=device, precision=precision)
        found = loaded.evaluate(texts, ratio=ratio, seed=seed)
        shown = ("loss", "perplexity", "accuracy_at_1", "accuracy_at_5", "hidden_slots")
        lines = [f"{name:16}{found[name]}" for name in shown if name in found]
        output.write(found, lines, device=str(loaded.device), precision=loaded.precision)
