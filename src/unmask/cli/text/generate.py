"""unmask generate MODEL [--prefix T] [--suffix T] [--length N] [--number N], for a model of text"""

from __future__ import annotations

from typing import Any, cast

import typer

from unmask.cli import options


def generate(
    model: options.Model,
    prefix: str = typer.Option("", help="What the texts begin with; kept as it is."),
    suffix: str = typer.Option("", help="What they end with; with a prefix what lies between is filled in."),
    length: int = typer.Option(
        None,
        min=1,
        help="Tokens to draw; default a training text's length; before a suffix the likeliest.",
    ),
    number: int = typer.Option(1, min=1, help="How many."),
    temperature: float = typer.Option(1.0, min=0, help="Below 1 keeps to the common; 0 takes the likeliest."),
    top_k: int = typer.Option(None, min=1, help="Draw among the k likeliest tokens alone."),
    steps: int = typer.Option(None, min=1, help="Passes of the model; default one for each token (remask: two)."),
    order: str = typer.Option("random", help="Which tokens come first: random, confidence or left_to_right."),
    remask: float = typer.Option(0.0, help="Share of the drawn tokens that each pass takes back, to be drawn anew."),
    remask_by: str = typer.Option("random", help="Which are taken back: random, or the least likely (confidence)."),
    out: str = typer.Option(None, help="JSON lines to write."),
    seed: options.Seed = 0,
    precision: options.Precision = "auto",
    device: options.Device = "auto",
    json_: options.Json = False,
) -> None:
    """Draw new texts: all tokens are hidden, and filled in a few at a time."""
    from unmask.cli.common import Output, on_stderr
    from unmask.files import check_results
    from unmask.modalities.text.uses.generating import shown_little, unknown_given
    from unmask.registry import load
    from unmask.writing import write_json_lines

    output = Output(json_, seed)
    check_results([out], [])
    loaded = load(model, device=device, precision=precision)
    warnings = [said for said in (shown_little(loaded), unknown_given(loaded, prefix, suffix)) if said is not None]
    for said in warnings:
        on_stderr(f"warning: {said}")
    results = loaded.generate(
        prefix=prefix,
        suffix=suffix,
        length=length,
        number=number,
        temperature=temperature,
        top_k=top_k,
        steps=steps,
        order=cast(Any, order),
        remask=remask,
        remask_by=cast(Any, remask_by),
        seed=seed,
    )
    if out is not None:
        write_json_lines(results, out)
    found = {"out": out, "rows": len(results), "results": results, "warnings": warnings}
    output.write(found, [r["text"] for r in results], device=str(loaded.device), precision=loaded.precision)
