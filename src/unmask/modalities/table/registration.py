"""Clinical tables as a modality: where its model, demo and commands are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.modality import Modality

_USES = "unmask.cli.table.uses"

MODALITY = Modality(
    name="table",
    plural="tables",
    load="unmask.modalities.table.registration:load",
    demo="unmask.modalities.table.demo:run_demo",
    card="unmask.modalities.table.card:card",
    serves="unmask.serving.table:serve",
    commands={
        "describe": "unmask.cli.table.reading:describe",
        "pretrain": "unmask.cli.table.pretrain:pretrain",
        "fill": f"{_USES}:fill",
        "impute": "unmask.cli.table.impute:impute",
        "generate": "unmask.cli.table.uses:generate",
        "synthesize": "unmask.cli.table.uses:synthesize",
        "augment": "unmask.cli.table.uses:augment",
        "score": f"{_USES}:score",
        "embed": f"{_USES}:embed",
        "evaluate": f"{_USES}:evaluate",
    },
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
