"""Clinical tables as a modality: where its model, demo and commands are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.modality import Modality, commands_of

MODALITY = Modality(
    name="table",
    plural="tables",
    load="unmask.modalities.table.registration:load",
    demo="unmask.modalities.table.demo:run_demo",
    card="unmask.modalities.table.card:card",
    serves="unmask.serving.table:serve",
    pretrain="unmask.table:pretrain",
    evaluate="unmask.table:evaluate",
    endings=(
        ".xlsx",
        ".xlsm",
        ".xls",
        ".ods",
        ".dta",
        ".sav",
        ".zsav",
        ".sas7bdat",
    ),
    commands=commands_of("unmask.cli.table.reading", "describe", "pretrain")
    | commands_of("unmask.cli.table.impute", "impute")
    | commands_of("unmask.cli.table.uses", "fill", "generate", "synthesize", "augment", "score", "embed", "evaluate"),
    first=(
        "a table with empty cells (.csv, .xlsx, .parquet, .dta, .sav)",
        "unmask describe cohort.csv",
        "unmask impute cohort.csv --out filled.csv",
    ),
)


def load(model: str | Path, *, device: str = "auto", precision: str = "auto") -> Any:
    """The model of a table in a folder.

    Raises:
        UserError: a device or precision that tables do not have; or what is wrong with the folder.
    """
    from unmask.modalities.table import model as table

    if device not in ("auto", "cpu") or precision not in ("auto", "fp32"):
        raise UserError(
            f"device={device}, precision={precision}: tables compute on the CPU in fp32", hint="Leave both out."
        )
    return table.load(model)
