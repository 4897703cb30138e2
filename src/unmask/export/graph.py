"""What of a text model is exported: its encoder with the one head that it is for, as a graph of ids and mask alone.

Shape letters: batch, slots, width, vocabulary, labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.batch import pack
from unmask.core.corruption import hide
from unmask.core.embed import pool, pool_padded
from unmask.encoder.transformer import Encoder
from unmask.errors import UserError, either, option
from unmask.families.heads import CLASSES, DETECT, SEQUENCE, SPAN, TOKEN, TaskHead
from unmask.modalities.text.network.sentence_vectors import SentenceVectors
from unmask.modalities.text.tokens.batches import text_example

MASKED, SENTENCE, ENCODER = "masked", "sentence", "encoder"
STATES, LOGITS, VECTOR = "last_hidden_state", "logits", "sentence_embedding"
OUTPUTS = {
    SEQUENCE: (LOGITS,),
    TOKEN: (LOGITS,),
    SPAN: ("start_logits", "end_logits"),
    DETECT: (LOGITS,),
    MASKED: (STATES, LOGITS),
    SENTENCE: (STATES, VECTOR),
    ENCODER: (STATES,),
}
"""Outputs of each graph: states (batch, slots, width); logits (batch, labels) of a sequence, else (batch, slots, labels
or vocabulary), start and end (batch, slots); sentence vectors (batch, width)."""
BY_TEXT = (SEQUENCE, SENTENCE)
"""Graphs whose last output has one row per text; those of the others have one per slot."""
_TASKS = {"classify": SEQUENCE, "tag": TOKEN, "answer": SPAN}


def what(model: Any, pooling: str | None = None) -> tuple[str, TaskHead | None]:
    """Which graph a model is exported as, and its task head: the task that the folder is for comes first, then sentence
    vectors, then the masked-LM head, then the bare encoder.

    Args:
        pooling: asks for sentence vectors, whatever the folder is for.
    """
    folder = model.folder
    if pooling is not None:
        return SENTENCE, None
    folder.refuse_baseline()
    task = (folder.settings.get("task") or {}).get("name")
    classes = [str(c) for c in folder.hf_config.get("architectures") or ()]
    declared = _TASKS.get(str(task)) or next(
        (kind for c in classes for kind, end in CLASSES.items() if c.endswith(end)), None
    )
    head = folder.head()
    if declared is not None and head is not None and head.kind == declared:
        return declared, head
    if declared in _TASKS.values():
        raise UserError(
            f"{folder.family.name}: made for {task or classes[0]}, and no trained head of that kind in the file",
            hint=f"Fine-tune it: {either('unmask finetune', 'unmask.finetune')}. For its encoder alone: "
            f"{option('pooling', 'mean')}.",
        )
    if task == "similarity" or folder.sentences.given:
        return SENTENCE, None
    return (ENCODER if folder.why_not_masked() else MASKED), None


def class_name(family: Any, kind: str) -> str:
    """The transformers class that a graph's config.json names."""
    if kind == MASKED:
        return str(family.architecture)
    return str(family.architecture).removesuffix("ForMaskedLM") + CLASSES.get(kind, "Model")


class Graph(nn.Module):
    """(input_ids, attention_mask[, token_type_ids]) -> the outputs of its kind; padding stands behind the text.

    Args:
        kind: see `OUTPUTS`.
        sentences: how sentence vectors are made of the states.
        problem: of a classifier: single, multi or regression.
    """

    def __init__(
        self,
        model: Any,
        kind: str,
        head: TaskHead | None,
        *,
        sentences: SentenceVectors | None = None,
        problem: str = "single",
    ) -> None:
        super().__init__()
        self.model, self.kind, self.head, self.problem = model, kind, head, problem
        self.sentences = sentences or SentenceVectors()
        self.after = self.sentences.after

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        position = (attention_mask.cumsum(1) - 1).clamp_min(0) * attention_mask
        values = {"token": input_ids} | ({} if token_type_ids is None else {"type": token_type_ids})
        x = self.model.codec.embed(values, torch.zeros_like(input_ids, dtype=torch.bool))
        states = self.model.encoder(x, segment=attention_mask, position=position)
        if self.head is not None:
            return self._headed(states, attention_mask)
        if self.kind == ENCODER:
            return states
        if self.kind == SENTENCE:
            return states, self.after(pool_padded(states, attention_mask, self.sentences.pooling))
        encoder, decoded = self.model.encoder, states
        if type(encoder).decode is not Encoder.decode:  # else the states would be computed twice
            decoded = encoder.decode(x, segment=attention_mask, position=position)
        logits = self.model.codec.predict(decoded.flatten(0, 1)).logits
        return states, logits.view(input_ids.shape[0], input_ids.shape[1], -1)

    def _headed(self, states: Tensor, mask: Tensor) -> Tensor | tuple[Tensor, ...]:
        assert self.head is not None
        if self.head.pool in ("first", "mean"):
            return self.head(pool_padded(states, mask, self.head.pool))
        each = self.head(states)
        if self.head.pool == "late":
            return pool_padded(each, mask, "mean")
        return (each[..., 0], each[..., 1]) if self.kind == SPAN else each


def outputs_here(graph: Graph, ids: Sequence[Any]) -> list[Tensor]:
    """The same outputs from the library's own ways (packed batches, heads as `predict` and `embed` use them), for texts
    as token ids: what a graph is compared with. Per-slot outputs are (slots, ...) of all texts, one after the other."""
    model = graph.model
    examples = [text_example(i, i, i < 0, n) for n, i in enumerate(ids)]
    batch = pack(examples, slots=max(map(len, ids)), placement=[[n] for n in range(len(ids))])
    real = (batch.segment != 0).flatten()
    with torch.inference_mode():
        if graph.head is not None:
            out = graph.head.logits(model, batch, len(ids))
            if graph.head.pool != "each":
                return [out]
            out = out[real]
            return [out[:, 0], out[:, 1]] if graph.kind == SPAN else [out]
        states = [model.states(batch).flatten(0, 1)[real]]
        if graph.kind == SENTENCE:
            states.append(graph.after(pool(model, batch, len(ids), graph.sentences.pooling, True)))
        if graph.kind == MASKED:
            where = real.nonzero().flatten()
            states.append(model(batch, hide(where[:0]), wanted=where).logits)
    return states
