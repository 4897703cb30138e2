"""unmask: hide part of the data, predict it back.

`unmask.text`, `unmask.table`, `unmask.images` and `unmask.events` hold what there is for each kind of data; `load`
opens a model of any. The public face is imported lazily: `import unmask` costs milliseconds and does not import torch.

>>> import unmask
>>> unmask.__version__
'0.1.0'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unmask.plugins import lazily
from unmask.version import __version__ as __version__

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal, overload

    from unmask import events as events
    from unmask import images as images
    from unmask import table as table
    from unmask import text as text
    from unmask.core.corruption import Blocks as Blocks
    from unmask.core.corruption import Corruption as Corruption
    from unmask.core.corruption import Mixture as Mixture
    from unmask.core.corruption import Replacement as Replacement
    from unmask.core.corruption import Selector as Selector
    from unmask.core.corruption import Slots as Slots
    from unmask.core.corruption import Spans as Spans
    from unmask.core.corruption import Uniform as Uniform
    from unmask.core.corruption import Units as Units
    from unmask.core.model import MaskedModel as MaskedModel
    from unmask.errors import UserError as UserError
    from unmask.modalities.events.uses.model import EventModel as EventModel
    from unmask.modalities.images.uses.model import ImageModel as ImageModel
    from unmask.modalities.table.imputation.multiple import MultipleImputation as MultipleImputation
    from unmask.modalities.table.imputer import MaskedImputer as MaskedImputer
    from unmask.modalities.table.model import TableModel as TableModel
    from unmask.modalities.table.verbs import impute as impute
    from unmask.modalities.table.verbs import synthesize as synthesize
    from unmask.modalities.text.network.adapt import adapt as adapt
    from unmask.modalities.text.tasks.pipelines import pipeline as pipeline
    from unmask.modalities.text.tasks.zeroshot import zero_shot as zero_shot
    from unmask.modalities.text.uses.model import TextModel as TextModel
    from unmask.modality import Modality as Modality
    from unmask.modality import Model as Model
    from unmask.standard import StandardModel as StandardModel
    from unmask.verbs import embed as embed
    from unmask.verbs import evaluate as evaluate
    from unmask.verbs import fill as fill
    from unmask.verbs import finetune as finetune
    from unmask.verbs import predict as predict
    from unmask.verbs import pretrain as pretrain
    from unmask.verbs import score as score

    @overload
    def load(
        model: str | Path, *, kind: Literal["text"], device: str = ..., precision: str = ..., **options: Any
    ) -> TextModel: ...
    @overload
    def load(
        model: str | Path, *, kind: Literal["table"], device: str = ..., precision: str = ..., **options: Any
    ) -> TableModel: ...
    @overload
    def load(
        model: str | Path, *, kind: Literal["images"], device: str = ..., precision: str = ..., **options: Any
    ) -> ImageModel: ...
    @overload
    def load(
        model: str | Path, *, kind: Literal["events"], device: str = ..., precision: str = ..., **options: Any
    ) -> EventModel: ...
    @overload
    def load(
        model: str | Path, *, kind: str | None = ..., device: str = ..., precision: str = ..., **options: Any
    ) -> Model: ...
    def load(model: str | Path, **options: Any) -> Any:
        """See `unmask.registry.load`."""


__getattr__, _, _names = lazily(__name__, load="unmask.registry:load")
__all__ = sorted([*_names, "__version__"])


def __dir__() -> list[str]:
    return list(__all__)
