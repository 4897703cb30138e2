"""`unmask.images.predict` and `evaluate`: the verbs of a model that is loaded or to be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.evaluation.results import JudgedFigures, PredictedRows
from unmask.modalities.images.classify.classifier import Classifier
from unmask.modalities.images.segment.segmenter import Segmenter
from unmask.modalities.images.uses.model import ImageModel, load


def predict(
    model: str | Path | ImageModel | Classifier | Segmenter, data: Any, out: str | Path | None = None, **options: Any
) -> PredictedRows:
    """Label and probability (several labels, or a number) of each picture, or its mask: see `Classifier.predict` and
    `Segmenter.predict`.

    Args:
        model: a folder that `finetune` wrote, or a loaded one.
        out: a .jsonl to write them to; of masks a folder.
        options: device and precision of a folder; those of `Segmenter.predict`.

    Raises:
        UserError: the model is not fine-tuned.
    """
    loading = {name: options.pop(name) for name in ("device", "precision") if name in options}
    loaded = load(model, **loading) if isinstance(model, str | Path) else model
    if not isinstance(loaded, Classifier | Segmenter):
        raise UserError(
            "predict: the model knows no classes yet",
            hint="Fine-tune it first: unmask.images.finetune(model, pictures, labels).model.predict(pictures).",
        )
    return loaded.predict(data, out, **options)


def evaluate(
    model: str | Path | ImageModel | Classifier | Segmenter, data: Any, labels: Any = None, **options: Any
) -> JudgedFigures:
    """Figures on labelled pictures beside those of rules: see `Classifier.evaluate`, `Segmenter.evaluate` (`labels` are
    the masks), and for a pretrained model `ImageModel.evaluate`."""
    loading = {name: options.pop(name) for name in ("device", "precision") if name in options}
    loaded = load(model, **loading) if isinstance(model, str | Path) else model
    found: JudgedFigures = loaded.evaluate(data, labels, **options)
    return found
