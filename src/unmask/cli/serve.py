"""unmask serve MODEL [MODEL ...]"""

from __future__ import annotations

import typer

from unmask.cli import options
from unmask.errors import UserError


def serve(
    model: list[str] = typer.Argument(..., help="Model folders, each served under its name, or NAME=FOLDER."),
    host: str = typer.Option("127.0.0.1", help="Address to listen on; the default is reached from this machine alone."),
    port: int = typer.Option(8765, help="Port to listen on; 0: any free one."),
    key_file: str = typer.Option(None, help="File with API keys, one per line: requests then need one of them."),
    cors: list[str] = typer.Option([], help="Origin (https://...) whose pages may ask, or *."),
    workers: int = typer.Option(
        None,
        min=0,
        help="Processes that answer for all models, with one set of weights. Default: one process per model.",
    ),
    threads: int = typer.Option(1, min=1, help="Threads per model and process; above 1 each takes one core."),
    waiting: int = typer.Option(512, min=1, help="Requests that may wait; more are told to ask again later (429)."),
    items: int = typer.Option(1024, min=1, help="Texts, rows, pictures or patients per request."),
    megabytes: int = typer.Option(16, min=1, help="Size of a request."),
    seconds: float = typer.Option(60.0, min=0.1, help="Until an answer; after that the request is given up (504)."),
    precision: str = typer.Option("auto", help="auto, fp32, bf16 or int8 (embeddings alone)."),
    device: options.Device = "auto",
) -> None:
    """Serve models over HTTP, with a page where one hides and fills by hand; see docs/how-to/serving.md."""
    start(
        model,
        host=host,
        port=port,
        key_file=key_file,
        cors=cors,
        workers=workers,
        threads=threads,
        given={"waiting": waiting, "items": items, "body": megabytes << 20, "seconds": seconds},
        precision=precision,
        device=device,
    )


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
