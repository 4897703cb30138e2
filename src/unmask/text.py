"""Text: pretrain, adapt, fine-tune and use masked language models.

`Model`, `Settings`, `load` and `pretrain` are there in every modality. Everything is imported when it is first used.
"""

from typing import TYPE_CHECKING

from unmask.lazy import lazily

if TYPE_CHECKING:
    from unmask.modalities.text.adapt import adapt as adapt
    from unmask.modalities.text.adapt_embedding import EmbeddingSettings as EmbeddingSettings
    from unmask.modalities.text.adapt_embedding import adapt_embedding as adapt_embedding
    from unmask.modalities.text.adapt_embedding import embedding_settings as embedding_settings
    from unmask.modalities.text.minimal_pairs import evaluate_minimal_pairs as evaluate_minimal_pairs
    from unmask.modalities.text.minimal_pairs import read_minimal_pairs as read_minimal_pairs
    from unmask.modalities.text.model import TextModel as TextModel
    from unmask.modalities.text.model import load as load
    from unmask.modalities.text.prepare import prepare as prepare
    from unmask.modalities.text.pretrain import pretrain as pretrain
    from unmask.modalities.text.recipes import TextSettings as TextSettings
    from unmask.modalities.text.recipes import with_overrides as with_overrides
    from unmask.modalities.text.tasks.data import Columns as Columns
    from unmask.modalities.text.tasks.finetune import evaluate as evaluate
    from unmask.modalities.text.tasks.finetune import finetune as finetune
    from unmask.modalities.text.tasks.finetune import predict as predict
    from unmask.modalities.text.tasks.settings import TaskSettings
    from unmask.modalities.text.tasks.zeroshot import zero_shot as zero_shot

    Model = TextModel
    FinetuneSettings = TaskSettings
    Settings = TextSettings

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "Model": "unmask.modalities.text.model:TextModel",
        "Settings": "unmask.modalities.text.recipes:TextSettings",
        "TextModel": "unmask.modalities.text.model:TextModel",
        "TextSettings": "unmask.modalities.text.recipes:TextSettings",
        "FinetuneSettings": "unmask.modalities.text.tasks.settings:TaskSettings",
        "Columns": "unmask.modalities.text.tasks.data:Columns",
        "load": "unmask.modalities.text.model:load",
        "prepare": "unmask.modalities.text.prepare:prepare",
        "pretrain": "unmask.modalities.text.pretrain:pretrain",
        "adapt": "unmask.modalities.text.adapt:adapt",
        "adapt_embedding": "unmask.modalities.text.adapt_embedding:adapt_embedding",
        "EmbeddingSettings": "unmask.modalities.text.adapt_embedding:EmbeddingSettings",
        "embedding_settings": "unmask.modalities.text.adapt_embedding:embedding_settings",
        "finetune": "unmask.modalities.text.tasks.finetune:finetune",
        "predict": "unmask.modalities.text.tasks.finetune:predict",
        "evaluate": "unmask.modalities.text.tasks.finetune:evaluate",
        "evaluate_minimal_pairs": "unmask.modalities.text.minimal_pairs:evaluate_minimal_pairs",
        "read_minimal_pairs": "unmask.modalities.text.minimal_pairs:read_minimal_pairs",
        "zero_shot": "unmask.modalities.text.tasks.zeroshot:zero_shot",
        "with_overrides": "unmask.modalities.text.recipes:with_overrides",
    },
)
