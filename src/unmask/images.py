"""Images: pretrain, reconstruct, embed and fine-tune masked image models.

`Model`, `Settings`, `load` and `pretrain` are there in every modality. Everything is imported when it is first used.
"""

from typing import TYPE_CHECKING

from unmask.lazy import lazily

if TYPE_CHECKING:
    from unmask.modalities.images.classifier import Classifier as Classifier
    from unmask.modalities.images.classifier_settings import ClassifierSettings
    from unmask.modalities.images.finetune import finetune_classify
    from unmask.modalities.images.model import ImageModel as ImageModel
    from unmask.modalities.images.model import load as load
    from unmask.modalities.images.pretrain import pretrain as pretrain
    from unmask.modalities.images.recipes import ImageSettings as ImageSettings
    from unmask.modalities.images.recipes import with_overrides as with_overrides
    from unmask.modalities.images.sources import read_images as read_images

    Model = ImageModel
    FinetuneSettings = ClassifierSettings
    Settings = ImageSettings
    finetune = finetune_classify

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "Model": "unmask.modalities.images.model:ImageModel",
        "Settings": "unmask.modalities.images.recipes:ImageSettings",
        "ImageModel": "unmask.modalities.images.model:ImageModel",
        "ImageSettings": "unmask.modalities.images.recipes:ImageSettings",
        "Classifier": "unmask.modalities.images.classifier:Classifier",
        "FinetuneSettings": "unmask.modalities.images.classifier_settings:ClassifierSettings",
        "load": "unmask.modalities.images.model:load",
        "pretrain": "unmask.modalities.images.pretrain:pretrain",
        "finetune": "unmask.modalities.images.finetune:finetune_classify",
        "read_images": "unmask.modalities.images.sources:read_images",
        "with_overrides": "unmask.modalities.images.recipes:with_overrides",
    },
)
