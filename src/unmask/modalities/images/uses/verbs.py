"""`unmask.images.predict` and `evaluate`: the verbs of a model that is loaded or to be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.evaluation.results import JudgedFigures, PredictedRows
from unmask.modalities.images.classify.classifier import Classifier
from unmask.modalities.images.uses.model import ImageModel, load


def predict(
    model: str | Path | ImageModel | Classifier, data: Any, out: str | Path | None = None, **loading: Any
) -> PredictedRows:
    """Label and probability (several labels, or a number) of each picture: see `Classifier.predict`.

    Args:
        model: a folder that `finetune` wrote, or a loaded one.
        out: a .jsonl to write them to.
        loading: device and precision of a folder.

    Raises:
        UserError: the model is not fine-tuned.
    """
    loaded = load(model, **loading) if isinstance(model, str | Path) else model
    if not isinstance(loaded, Classifier):
        raise UserError(
            "predict: the model knows no classes yet",
            hint="Fine-tune it first: unmask.images.finetune(model, pictures, labels).model.predict(pictures).",
        )
    return loaded.predict(data, out)


def evaluate(
    model: str | Path | ImageModel | Classifier, data: Any, labels: Any = None, **options: Any
) -> JudgedFigures:
    """Figures on labelled pictures beside those of rules: see `Classifier.evaluate`, and for a pretrained model
    `ImageModel.evaluate`."""
    loading = {name: options.pop(name) for name in ("device", "precision") if name in options}
    loaded = load(model, **loading) if isinstance(model, str | Path) else model
    found: JudgedFigures = loaded.evaluate(data, labels, **options)
    return found
