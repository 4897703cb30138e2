"""Text: pretrain, adapt, fine-tune and use masked language models.

`Model`, `Settings`, `load` and `pretrain` are there in every modality. Everything is imported when it is first used.
"""

from typing import TYPE_CHECKING

from unmask.plugins import lazily

if TYPE_CHECKING:
    from unmask.modalities.text.network.adapt import adapt as adapt
    from unmask.modalities.text.network.pretrain import pretrain as pretrain
    from unmask.modalities.text.recipes import TextSettings as TextSettings
    from unmask.modalities.text.recipes import with_overrides as with_overrides
    from unmask.modalities.text.tasks.adapt_embedding import EmbeddingSettings as EmbeddingSettings
    from unmask.modalities.text.tasks.adapt_embedding import adapt_embedding as adapt_embedding
    from unmask.modalities.text.tasks.adapt_embedding import embedding_settings as embedding_settings
    from unmask.modalities.text.tasks.finetune import evaluate as evaluate
    from unmask.modalities.text.tasks.finetune import finetune as finetune
    from unmask.modalities.text.tasks.finetune import predict as predict
    from unmask.modalities.text.tasks.pipelines import pipeline as pipeline
    from unmask.modalities.text.tasks.row_files import Columns as Columns
    from unmask.modalities.text.tasks.settings import TaskSettings
    from unmask.modalities.text.tasks.zeroshot import zero_shot as zero_shot
    from unmask.modalities.text.tokens.prepare import prepare as prepare
    from unmask.modalities.text.uses.minimal_pairs import evaluate_minimal_pairs as evaluate_minimal_pairs
    from unmask.modalities.text.uses.minimal_pairs import read_minimal_pairs as read_minimal_pairs
    from unmask.modalities.text.uses.model import TextModel as TextModel
    from unmask.modalities.text.uses.model import load as load

    Model = TextModel
    FinetuneSettings = TaskSettings
    Settings = TextSettings

__getattr__, __dir__, __all__ = lazily(__name__)
