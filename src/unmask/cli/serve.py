"""unmask serve MODEL [MODEL ...]"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from unmask.cli import options
from unmask.cli.common import Output, Result
from unmask.cli.options import flag
from unmask.errors import UserError, suggest
from unmask.plugins import resolve
from unmask.registry import load, modality, names


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What listens, and which processes answer."""

    host: str = flag("127.0.0.1", "Address to listen on; the default is reached from this machine alone.")
    port: int = flag(8765, "Port to listen on; 0: any free one.")
    key_file: str | None = flag(None, "File with API keys, one per line: requests then need one of them.")
    cors: list[str] = flag([], "Origin (https://...) whose pages may ask, or *.")
    workers: int | None = flag(
        None,
        "Processes that answer for all models, with one set of weights. Default: one process per model.",
        min=0,
    )
    threads: int | None = flag(
        None,
        "Threads per model and process; above 1 each takes one core. Default: one per core for texts in bf16 or int8, "
        "else 1.",
        min=1,
    )
    precision: str = flag("auto", "auto, fp32, bf16 or int8 (embeddings alone).")
    device: options.Device = "auto"


def serve(
    server: ServerOptions,
    model: list[str] = options.model("Model folders, each served under its name, or NAME=FOLDER."),
    waiting: int = typer.Option(512, min=1, help="Requests that may wait; more are told to ask again later (429)."),
    items: int = typer.Option(1024, min=1, help="Texts, rows, pictures or patients per request."),
    megabytes: int = typer.Option(16, min=1, help="Size of a request."),
    seconds: float = typer.Option(60.0, min=0.1, help="Until an answer; after that the request is given up (504)."),
) -> None:
    """Serve models over HTTP, with a page where one hides and fills by hand; see docs/how-to/serving.md."""
    limits = {"waiting": waiting, "items": items, "body": megabytes << 20, "seconds": seconds}
    start(model, given=limits, **vars(server))


def start(models: list[str], *, given: dict[str, float] | None = None, **options: object) -> None:
    """Serve, until a signal ends it."""
    from unmask.serving.limits import Limits
    from unmask.serving.models import named

    try:
        from unmask.serving.start import serve, to_stdout

        serve(named(models), limits=Limits(**(given or {})), say=to_stdout, **options)  # type: ignore[arg-type]
    except ModuleNotFoundError as error:
        if error.name not in ("orjson", "starlette", "uvicorn"):
            raise
        raise UserError(f"serving needs {error.name}", hint="Run: pip install 'unmask[serve]'") from None


def demo(
    kind: str = typer.Argument("text", help="Kind of data: text, table, images, events, or one that a package brings."),
    out: str = typer.Option(None, help="Folder for model and report, default demo-KIND; an earlier demo is replaced."),
    minutes: float = typer.Option(None, help="Wall clock to train for."),
    seed: options.Seed = 0,
    serve: bool = typer.Option(False, "--serve", help="Then serve the model, and say at which address its page is."),
    json_: options.Json = False,
) -> None:
    """Train a small masked model on embedded data in minutes, use it, and write report.html."""
    run_demo = modality(kind).demo if kind in names() else None
    if run_demo is None:
        raise UserError(f"no demo {kind!r}", hint=suggest(kind, names()))
    output, given = Output(json_, seed), {"minutes": minutes} if minutes is not None else {}
    found = resolve(run_demo)(out or f"demo-{kind}", seed=seed, **given)
    output.write(found, [*found.pop("lines"), f"report: {found['report']}"])
    if serve:
        start(models_below(out or f"demo-{kind}"))


def models_below(folder: str) -> list[str]:
    """The model folders that a demo has left: the folder itself, and those in it."""
    places = [Path(folder), *sorted(p for p in Path(folder).iterdir() if p.is_dir())]
    return [str(p) for p in places if (p / "unmask.json").is_file() and (p / "model.safetensors").is_file()]


def inspect(model: options.Model) -> Result:
    """Parameters, context, FLOPs per token, memory by precision."""
    loaded = load(model, precision="fp32")
    found = loaded.inspect()
    lines = []
    for name, value in found.items():
        if isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            lines += [f"{name if k == 0 else '':28}{v}" for k, v in enumerate(value)]
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{key}: {entry}" for key, entry in value.items()) or "none"
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.4g}" if isinstance(value, float) else value
        lines.append(f"{name:28}{shown}")
    return Result(found, lines)
