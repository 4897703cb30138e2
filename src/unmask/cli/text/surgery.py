"""unmask surgery MODEL --out DIR"""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import options


def surgery(
    model: options.Model,
    out: str = typer.Option(..., help="Folder to write."),
    positions: int | None = typer.Option(None, help="Take texts of this many tokens."),
    prune: str | None = typer.Option(None, help="Text file: keep the tokens it needs."),
    pad_vocabulary: int | None = typer.Option(None, help="Round the tables up to a multiple of this (64)."),
    json_: options.Json = False,
) -> None:
    """Longer positions, a smaller vocabulary, round tables; what the model says stays the same."""
    from unmask.cli.common import Output
    from unmask.cli.text.lines import file_lines
    from unmask.errors import UserError
    from unmask.export import surgery
    from unmask.export.folders import to_hf
    from unmask.registry import kind_of, load

    if kind_of(model) != "text":
        raise UserError(f"{model}: not a text model", hint="Surgery is for text models.")
    if positions is None and prune is None and pad_vocabulary is None:
        raise UserError("nothing to do", hint="Give --positions, --prune or --pad-vocabulary.")
    corpus = None if prune is None else file_lines(prune)
    output = Output(json_)
    loaded = load(model, device="cpu", precision="fp32")
    found: dict[str, Any] = {}
    if positions is not None:
        surgery.extend_positions(loaded, positions)
        found["positions"] = positions
    if corpus is not None:
        found |= surgery.prune_vocabulary(loaded, corpus)
    if pad_vocabulary is not None:
        found["rows_added"] = surgery.pad_vocabulary(loaded, pad_vocabulary)
    found |= to_hf(loaded, out)
    output.write(found, [f"{name:24}{value}" for name, value in found.items()])
