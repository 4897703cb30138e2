"""Settings of table models, and published recipes as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from unmask.errors import UserError, setting, suggest
from unmask.training.settings import TrainSettings, apply_overrides, apply_run_overrides, check_types, refuse_unread


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """Everything about a table run that is not the table.

    Args:
        recipe: "masked" is our own; see `RECIPES` for the published ones.
        network: "rows" (ensemble of MLPs over the row), "cells" (transformer over cells), "filter" (MCM's attention
            filter + MLP).
        architecture: "in_place" (a mask embedding in hidden cells) or "visible_only" (the encoder sees the visible
            cells alone; for the network "cells").
        factors: of the linear part, 0 for none.
        shrink: ridge on its loadings, in rows.
        stumps: most rounds of the additive part, 0 for none (and none with 0 steps: that is the linear part alone).
        bins: most bins a quantity is cut into.
        cell, width, layers, members, dropout: of the network.
        heads: of attention, for the network "cells".
        low, high: range of the share of a row's cells that is hidden in training.
        copied: share of rows that hide the cells another row lacks, instead.
        select: 'package.module:name' of a selector of your own, instead of these three; see CONTRIBUTING.md.
        loss: "likelihood", or "mse"/"l1" for the filter network.
        steps: optimiser steps; None: by the size of the table.
        rows: per step.
        learning_rate, weight_decay: the peak, and the decay, of AdamW.
        patience: checks (16 per run) in which no member improves before training ends; every member is kept at its
            best.
    """

    recipe: str = "masked"
    network: Literal["rows", "cells", "filter"] = "rows"
    architecture: Literal["in_place", "visible_only"] = "in_place"
    factors: int = 24
    shrink: float = 3.0
    stumps: int = 80
    bins: int = 24
    cell: int = 8
    width: int = 96
    layers: int = 2
    heads: int = 4
    members: int = 4
    dropout: float = 0.1
    low: float = 0.0
    high: float = 1.0
    copied: float = 0.5
    select: str | None = None
    loss: Literal["likelihood", "mse", "l1"] = "likelihood"
    steps: int | None = None
    rows: int = 128
    patience: int = 5
    learning_rate: float = 3e-3
    weight_decay: float = 0.05
    train: TrainSettings = field(default_factory=lambda: TrainSettings(steps=400))

    def __post_init__(self) -> None:
        check_types(self)
        for name, low, high in (
            ("members", 1, 64),
            ("rows", 1, 1 << 20),
            ("patience", 1, 1 << 20),
            ("bins", 2, 200),
            ("factors", 0, 500),
            ("width", 4, 8192),
            ("cell", 1, 1024),
            ("stumps", 0, 10000),
            ("layers", 0, 64),
            ("heads", 1, 1024),
            ("steps", 0, 1 << 40),
            ("shrink", 0, 1e9),
            ("dropout", 0, 0.99),
            ("learning_rate", 0, 1e3),
            ("weight_decay", 0, 1e3),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise UserError(f"{name}={value}", hint=f"Expected a number from {low} to {high}.")
        if not 0 <= self.low <= self.high <= 1 or not 0 <= self.copied <= 1:
            raise UserError(f"low={self.low}, high={self.high}, copied={self.copied}", hint="Expected shares, 0 to 1.")
        if self.recipe not in RECIPES:
            raise UserError(f"recipe={self.recipe}", hint=suggest(self.recipe, RECIPES))


RECIPES: dict[str, dict[str, Any]] = {
    "masked": {},
    # Masked Clinical Modelling (arXiv 2410.16811, released code): attention filter over the visible cells, MLP with one
    # hidden layer of 64, values Box-Cox transformed and scaled to 0..1, share hidden per row U(0.1, 0.9), squared
    # error, Adam 1e-3, batches of 16. What is hidden is zero before the filter: the released scores saw it.
    "mcm": {
        "network": "filter",
        "factors": 0,
        "width": 64,
        "members": 1,
        "layers": 1,
        "dropout": 0.0,
        "low": 0.1,
        "high": 0.9,
        "copied": 0.0,
        "loss": "mse",
        "rows": 16,
        "patience": 99,
        "learning_rate": 1e-3,
        "weight_decay": 0.0,
        "train": {"epochs": 500.0, "schedule": "constant"},
    },
    # ReMasker (ICLR 2024; model_mae.py): visible-only transformer, width 32, 6 + 4 layers, half of the cells hidden,
    # AdamW 1e-3 * batch/64. Its tanh regression head is replaced by this library's distribution per cell.
    "remasker": {
        "network": "cells",
        "architecture": "visible_only",
        "factors": 0,
        "width": 32,
        "layers": 6,
        "heads": 4,
        "members": 1,
        "dropout": 0.0,
        "low": 0.5,
        "high": 0.5,
        "copied": 0.0,
        "rows": 64,
        "patience": 99,
        "learning_rate": 1e-3,
        "train": {"epochs": 600.0, "schedule": "cosine"},
    },
}


UNUSED = (
    "steps",
    "minutes",
    "batch_slots",
    "accumulate",
    "shard",
    "learning_rate",
    "weight_decay",
    "compile",
    "validate_every",
    "patience",
    "checkpoint_every",
    "checkpoint_seconds",
    "keep",
    "log_every",
)
"""Fields of `TrainSettings` that a table's fit does not read: it has its own, or nothing is saved on the way."""


UNREAD = {
    "rows": ("architecture", "heads", "loss"),
    "cells": ("factors", "shrink", "stumps", "cell", "loss"),
    "filter": ("architecture", "heads", "factors", "shrink", "stumps", "cell", "layers", "dropout"),
}
"""Fields of `TableSettings` that a network does not read."""


def settings_of(recipe: str = "masked", **overrides: Any) -> TableSettings:
    """The settings of a recipe with some of them replaced; strings are parsed, as from `--set`."""
    return with_overrides(TableSettings(), {"recipe": recipe, **overrides})


def with_overrides(settings: TableSettings, overrides: Mapping[str, Any]) -> TableSettings:
    """Settings with some of them replaced, a recipe's first; keys of the run itself (seed, epochs, schedule, ...) reach
    its `TrainSettings`. What nothing would read is refused, in the settings given too."""
    if (recipe := overrides.get("recipe")) is not None:
        if recipe not in RECIPES:
            raise UserError(f"recipe {recipe!r}", hint=suggest(recipe, RECIPES))
        settings = apply_overrides(settings, {"recipe": recipe, **RECIPES[recipe]})
    before = apply_overrides(TableSettings(), {"recipe": settings.recipe, **RECIPES[settings.recipe]})
    settings = apply_run_overrides(settings, overrides, without=UNUSED)
    idle = [k for k in UNREAD[settings.network] if getattr(settings, k) != getattr(before, k)]
    if settings.network == "filter" and overrides.get("loss") == "likelihood":
        idle.append("loss")
    for name in idle:
        raise UserError(
            f"{name}={getattr(settings, name)}: the network {settings.network!r} does not read it",
            hint=f"Leave it out, or choose another {setting('network')}.",
        )
    if settings.select is not None and settings.copied != before.copied:
        raise UserError(
            f"copied={settings.copied} with {setting('select', settings.select)}: nothing reads it",
            hint="Leave it out.",
        )
    unused = [f"train.{name}" for name in UNUSED if name != "steps" or settings.train.steps is not None]
    refuse_unread(settings, unused, "in the fit of a table")
    if settings.train.device == "cuda" or settings.train.precision == "bf16":
        raise UserError(
            f"device={settings.train.device}, precision={settings.train.precision}",
            hint="Tables are small: they are fitted on the CPU in fp32.",
        )
    return settings
