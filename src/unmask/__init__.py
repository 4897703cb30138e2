"""unmask: hide part of the data, predict it back.

The public face is imported lazily: `import unmask` costs milliseconds and does not import torch.

>>> import unmask
>>> unmask.__version__
'0.1.0'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from unmask.kinds import load
    from unmask.table.impute import MaskedImputer
    from unmask.table.model import TableModel
    from unmask.table.multiple import MultipleImputation
    from unmask.tasks.finetune import finetune, predict
    from unmask.tasks.zeroshot import zero_shot
    from unmask.text.adapt import adapt
    from unmask.text.model import TextModel
    from unmask.text.pretrain import pretrain

_HOMES = {
    "load": "unmask.kinds",
    "TextModel": "unmask.text.model",
    "pretrain": "unmask.text.pretrain",
    "adapt": "unmask.text.adapt",
    "MaskedImputer": "unmask.table.impute",
    "MultipleImputation": "unmask.table.multiple",
    "TableModel": "unmask.table.model",
    "finetune": "unmask.tasks.finetune",
    "predict": "unmask.tasks.finetune",
    "zero_shot": "unmask.tasks.zeroshot",
    "UserError": "unmask.errors",
}
__all__ = [
    "MaskedImputer", "MultipleImputation", "TableModel", "TextModel", "UserError", "__version__", "adapt", "finetune", "load",
    "predict", "pretrain", "zero_shot",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'unmask' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
