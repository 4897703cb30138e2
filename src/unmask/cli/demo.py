"""unmask demo [MODALITY]"""

from __future__ import annotations

from pathlib import Path

import typer

from unmask.cli import options


def demo(
    kind: str = typer.Argument("text", help="Kind of data: text, table, images, events, or one that a package brings."),
    out: str = typer.Option(None, help="Folder for model and report, default demo-KIND; an earlier demo is replaced."),
    minutes: float = typer.Option(None, help="Wall clock to train for."),
    seed: options.Seed = 0,
    serve: bool = typer.Option(False, "--serve", help="Then serve the model, and say at which address its page is."),
    json_: options.Json = False,
) -> None:
    """Train a small masked model on embedded data in minutes, use it, and write report.html."""
    from unmask.cli.common import Output
    from unmask.errors import UserError, suggest
    from unmask.plugins import resolve
    from unmask.registry import modality, names

    run_demo = modality(kind).demo if kind in names() else None
    if run_demo is None:
        raise UserError(f"no demo {kind!r}", hint=suggest(kind, names()))
    output = Output(json_, seed)
    given = {"minutes": minutes} if minutes is not None else {}
    found = resolve(run_demo)(out or f"demo-{kind}", seed=seed, **given)
    lines = [*found.pop("lines"), f"report: {found['report']}"]
    output.write(found, lines, device=found["device"], precision=found["precision"])
    if serve:
        from unmask.cli.serve import start

        start(models_below(out or f"demo-{kind}"))


def models_below(folder: str) -> list[str]:
    """The model folders that a demo has left: the folder itself, and those in it."""
    places = [Path(folder), *sorted(p for p in Path(folder).iterdir() if p.is_dir())]
    return [str(p) for p in places if (p / "unmask.json").is_file() and (p / "model.safetensors").is_file()]
