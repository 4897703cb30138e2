"""What a checkpoint's own task head says of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from unmask.core.inference import packed_batches
from unmask.errors import UserError
from unmask.modalities.text.network.loaded import LoadedText


def label(model: LoadedText, texts: str | Sequence[str]) -> list[dict[str, Any]]:
    """What the head says of each text; see `TextModel.label`."""
    head = model.folder.head()
    if head is None:
        raise UserError(
            f"{model.folder.family.name}: the checkpoint has no task head",
            hint="Fine-tune one: unmask finetune.",
        )
    texts = [texts] if isinstance(texts, str) else list(texts)
    examples = model.examples(texts, max_slots=model.slots)
    out: list[dict[str, Any]] = [{} for _ in texts]
    head.to(model.device)
    for batch, members in packed_batches(examples, model.slots):
        batch = batch.to(model.device)
        with torch.inference_mode(), model.context():
            logits = head.logits(model.model, batch, len(members)).cpu()
        if head.pool == "each":
            index = batch.index.flatten().cpu()
            parts = [logits[index == number] for number in range(len(members))]
        else:
            parts = list(logits.split(1))
        for member, part in zip(members.tolist(), parts, strict=True):
            out[member] = {"text": texts[member], "logits": part.tolist()}
            if head.kind == "detect":
                out[member]["replaced"] = torch.sigmoid(part[:, 0]).tolist()
            elif head.labels:
                out[member]["labels"] = [head.labels[i] for i in part.argmax(-1).tolist()]
    return out
