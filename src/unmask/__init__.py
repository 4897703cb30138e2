"""unmask: hide part of the data, predict it back.

The public face is imported lazily: `import unmask` costs milliseconds and does not import torch.

>>> import unmask
>>> unmask.__version__
'0.1.0'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unmask.version import __version__

if TYPE_CHECKING:
    from unmask.modalities.table.imputation.multiple import MultipleImputation
    from unmask.modalities.table.imputer import MaskedImputer
    from unmask.modalities.table.model import TableModel
    from unmask.modalities.text.adapt import adapt
    from unmask.modalities.text.model import TextModel
    from unmask.modalities.text.pretrain import pretrain
    from unmask.modalities.text.tasks.finetune import finetune, predict
    from unmask.modalities.text.tasks.zeroshot import zero_shot
    from unmask.registry import load

_HOMES = {
    "load": "unmask.registry",
    "TextModel": "unmask.modalities.text.model",
    "pretrain": "unmask.modalities.text.pretrain",
    "adapt": "unmask.modalities.text.adapt",
    "MaskedImputer": "unmask.modalities.table.imputer",
    "MultipleImputation": "unmask.modalities.table.imputation.multiple",
    "TableModel": "unmask.modalities.table.model",
    "finetune": "unmask.modalities.text.tasks.finetune",
    "predict": "unmask.modalities.text.tasks.finetune",
    "zero_shot": "unmask.modalities.text.tasks.zeroshot",
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
