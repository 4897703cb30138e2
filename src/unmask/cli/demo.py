"""unmask demo text"""

from __future__ import annotations

from typing import Any

import typer


def register(app: Any) -> None:
    @app.command("demo")
    def demo(
        kind: str = typer.Argument("text", help="text (tables, images and events are not built yet)."),
        out: str = typer.Option("demo-text", help="Folder for model and report; replaced if it is an earlier demo."),
        minutes: float = typer.Option(2.4, help="Wall clock to train for."),
        seed: int = typer.Option(0),
        json_: bool = typer.Option(False, "--json", help="One JSON object on stdout."),
    ) -> None:
        """Train a small masked language model on the docstrings of installed packages, and look at what it learnt."""
        from unmask.cli.common import Output
        from unmask.errors import UserError

        if kind != "text":
            raise UserError(f"no demo {kind!r} yet", hint="Available: text.")
        from unmask.text.demo import run_demo

        output = Output(json_, seed)
        found = run_demo(out, minutes=minutes, seed=seed)
        lines = [
            f"held-out accuracy on hidden tokens: {found['accuracy']:.1%} (most frequent token: {found['baseline']:.1%})",
            f"report: {found['report']}",
        ]
        output.write(found, lines, device=found["device"], precision=found["precision"])
