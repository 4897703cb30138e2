"""A text model as it is served: which verbs it has, by whether it is masked, fine-tuned, or for embedding alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unmask.modalities.text.tasks.registry import task_of
from unmask.modalities.text.uses.model import TextModel, load
from unmask.serving.limits import Limits
from unmask.serving.text import dialects, masked, vectors
from unmask.serving.verbs import Served, Verb

BATCH_SLOTS = 2048
"""What the embedder without padding takes at a time; see `padding_free`."""


def serve(path: str | Path, *, limits: Limits, device: str = "auto", precision: str = "auto") -> Served:
    """A text model as it is served.

    A masked language model fills, scores, embeds, and labels without training; a fine-tuned folder predicts and embeds;
    a folder without a masked-LM head embeds.
    """
    task = task_of(path)
    verbs: dict[str, Verb] = {}
    of_others: dict[str, Verb] = {}
    relevance = None
    about: dict[str, Any] = {"task": task}
    if task in (None, "similarity"):
        model = load(path, device=device, precision=precision)
        if model.precision != "int8" and model.folder.why_not_masked() is None and task is None:
            verbs |= masked.verbs(model, limits)
            about["mask"] = model.tokenizer.mask_token
    else:
        from unmask.modalities.text.tasks import model as tasks  # with what trains them: much to import
        from unmask.serving.text import predict

        folder = tasks.load(path, device=device, precision=precision)
        model = TextModel(folder=folder.text, device=folder.device, precision=folder.precision)
        verbs |= predict.verbs(folder, limits)
        of_others = predict.verbs(tasks.as_transformers(folder), limits)
        relevance = predict.relevance(folder)
        about["labels"] = list(folder.about.get("labels") or [])
    verbs |= vectors.verbs(model, limits)
    found = model.inspect()
    about |= {name: found[name] for name in ("family", "parameters", "layers", "width", "vocabulary", "slots")}
    about |= {"precision": model.precision, "device": str(model.device), "embedding_slots": model.embedded_slots}
    spoken, main = dialects.of(verbs | of_others, model.tokenizer, relevance)
    return Served(
        kind="text",
        about=about,
        verbs=verbs,
        dialects=spoken,
        task=main,
        batch_slots=BATCH_SLOTS,
        warm=lambda: model.padding_free,
    )
