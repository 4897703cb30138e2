"""unmask pretrain text|table|images|events DATA... --out DIR: one module a kind."""

from __future__ import annotations

from typing import Any

import typer

from unmask.cli import pretrain_events, pretrain_images, pretrain_table, pretrain_text


def register(app: Any) -> None:
    group = typer.Typer(help="Pretrain a masked model from raw data.", no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name="pretrain")
    for module in (pretrain_text, pretrain_table, pretrain_images, pretrain_events):
        module.register(group)
