"""unmask evaluate MODEL DATA"""

from __future__ import annotations

from typing import Any

import typer


def register(app: Any) -> None:
    @app.command("evaluate")
    def evaluate(
        model: str = typer.Argument(..., help="Model folder or hub name."),
        data: list[str] = typer.Argument(..., help="Held-out text: files, folders, globs."),
        ratio: float = typer.Option(0.15, help="Share of the tokens to hide."),
        most: int = typer.Option(2000, help="At most this many documents."),
        column: str = typer.Option(None, help="Text column of jsonl, csv and parquet inputs."),
        seed: int = typer.Option(0),
        precision: str = typer.Option("auto", help="auto, fp32 or bf16."),
        device: str = typer.Option("auto", help="auto, cpu or cuda."),
        json_: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
    ) -> None:
        """Loss, perplexity and accuracy on hidden tokens of held-out text, with intervals over documents."""
        import itertools

        from unmask.cli.common import Output
        from unmask.text.model import load
        from unmask.text.sources import iter_documents

        output = Output(json_, seed)
        texts = [d.text for d in itertools.islice(iter_documents(data, column=column), most)]
        loaded = load(model, device=device, precision=precision)
        found = loaded.evaluate(texts, ratio=ratio, seed=seed)
        shown = ("loss", "perplexity", "accuracy_at_1", "accuracy_at_5", "hidden_slots")
        lines = [f"{name:16}{found[name]}" for name in shown if name in found]
        output.write(found, lines, device=str(loaded.device), precision=loaded.precision)
