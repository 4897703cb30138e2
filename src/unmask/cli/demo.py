"""unmask demo text|table|images|events"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options

BUILT = ("text", "table", "images", "events")


def register(app: Any) -> None:
    @app.command("demo")
    def demo(
        kind: str = typer.Argument("text", help=f"Kind of data: {', '.join(BUILT)}."),
        out: str = typer.Option(
            None, help="Folder for model and report, default demo-KIND; an earlier demo is replaced."
        ),
        minutes: float = typer.Option(None, help="Wall clock to train for."),
        seed: options.Seed = 0,
        json_: options.Json = False,
    ) -> None:
        """Train a small masked model on embedded data in minutes, use it, and write report.html."""
        import importlib

        from unmask.cli.common import Output
        from unmask.errors import UserError, suggest
        from unmask.kinds import KINDS

        if kind not in BUILT:
            raise UserError(f"no demo {kind!r}", hint=suggest(kind, BUILT))
        output = Output(json_, seed)
        given = {"minutes": minutes} if minutes is not None else {}
        found = importlib.import_module(f"{KINDS[kind]}.demo").run_demo(out or f"demo-{kind}", seed=seed, **given)
        lines = [*found.pop("lines"), f"report: {found['report']}"]
        output.write(found, lines, device=found["device"], precision=found["precision"])
