"""Images: pretrain, reconstruct, embed and fine-tune masked image models.

`Model`, `Settings`, `load` and `pretrain` are there in every modality. Everything is imported when it is first used.
"""

from typing import TYPE_CHECKING

from unmask.plugins import lazily

if TYPE_CHECKING:
    from unmask.modalities.images.classify.classifier import Classifier as Classifier
    from unmask.modalities.images.classify.classifier_settings import ClassifierSettings
    from unmask.modalities.images.reading.sources import read_images as read_images
    from unmask.modalities.images.recipes import ImageSettings as ImageSettings
    from unmask.modalities.images.recipes import with_overrides as with_overrides
    from unmask.modalities.images.segment.segmenter import Segmenter as Segmenter
    from unmask.modalities.images.segment.settings import SegmenterSettings as SegmenterSettings
    from unmask.modalities.images.uses.describe import describe as describe
    from unmask.modalities.images.uses.finetune import finetune_classify
    from unmask.modalities.images.uses.model import ImageModel as ImageModel
    from unmask.modalities.images.uses.model import load as load
    from unmask.modalities.images.uses.neighbours import neighbours as neighbours
    from unmask.modalities.images.uses.pretrain import pretrain as pretrain
    from unmask.modalities.images.uses.segment import finetune_segment as finetune_segment
    from unmask.modalities.images.uses.verbs import evaluate as evaluate
    from unmask.modalities.images.uses.verbs import predict as predict

    Model = ImageModel
    FinetuneSettings = ClassifierSettings
    Settings = ImageSettings
    finetune = finetune_classify

__getattr__, __dir__, __all__ = lazily(__name__)
