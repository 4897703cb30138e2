"""Which tokens a classification went by: integrated gradients on the embeddings (Sundararajan et al. 2017, sec. 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.core.batch import pack
from unmask.modalities.text.tasks.classify import Classify
from unmask.modalities.text.tasks.data import Item
from unmask.modalities.text.tasks.model import TaskFolder
from unmask.modalities.text.tasks.trained_part import embedding_as


def attributions(folder: TaskFolder, task: Classify, items: Sequence[Item], *, steps: int = 32) -> list[dict[str, Any]]:
    """Each token's share in the logit of the predicted label.

    The path runs from the mask embedding (special tokens stay) to the text; the shares add up to the logit's difference
    between the two ends, up to the error of `steps` midpoints, which is returned as `gap` (relative).

    Returns:
        For each item: label, tokens, shares, gap.
    """
    prepared = task.prepare(items, labelled=False)
    masked, out = folder.model.masked, []
    folder.model.eval()
    for e in prepared.examples:
        batch = pack([e], slots=len(e)).to(folder.device)
        codec = masked.codec
        hidden = ~batch.special
        with torch.no_grad():
            end = codec.embed(batch.values, torch.zeros_like(hidden))
            start = codec.embed(batch.values, hidden)
            logits = folder.model(batch, 1)[0]
        chosen = int(logits.argmax()) if len(logits) > 1 else 0
        change = end - start
        total = torch.zeros_like(change)
        for k in range(steps):
            point = (start + (k + 0.5) / steps * change).requires_grad_()
            with embedding_as(codec, _always(point)):
                (gradient,) = torch.autograd.grad(folder.model(batch, 1)[0, chosen], point)
            total += gradient
        with torch.no_grad(), embedding_as(codec, _always(start)):
            base = folder.model(batch, 1)[0, chosen]
        shares = (change * total / steps).sum(-1)[0]
        difference = float(logits[chosen] - base)
        ids = e.values["token"]
        keep = ~np.asarray(e.special)
        out.append(
            {
                "label": task.labels[chosen] if task.labels else float(logits[0]),
                "tokens": [folder.tokenizer.token(int(i)) for i in ids[keep]],
                "shares": shares.cpu().numpy()[keep].tolist(),
                "gap": abs(float(shares.sum()) - difference) / max(abs(difference), 1e-6),
            }
        )
    return out


def _always(x: Tensor) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """An embedding that is `x` whatever the values."""
    return lambda values, masked: x
