"""The rooms of tables: each imports those below it alone, and no modules import each other; see docs/design.md."""

from __future__ import annotations

from arrows import circles, imports, upward, within

TABLE = "unmask.modalities.table"
ROOMS = (
    "recipes",
    "reading",
    "schema",
    "writing",
    "distribution",
    "rules",
    "survival",
    "fitting",
    "imputation",
    "synthesis",
    "evaluation",
    "card",
    "model",
    "imputer",
    "pretrain",
    "evaluate",
    "demo",
    "registration",
)
"""From the ground up."""


def test_no_arrow_goes_up():
    layers = {f"{TABLE}.{room}": number for number, room in enumerate(ROOMS)} | {TABLE: -1}
    assert upward(within(imports(), TABLE), layers) == []


def test_no_modules_import_each_other():
    assert circles(within(imports(), TABLE)) == []
