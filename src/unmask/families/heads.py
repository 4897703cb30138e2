"""Published task heads: what a family says of them as data, and the one module they are, to predict with and to train.

A family lists its heads as data (`Family.heads`); the tensors are among the folder's passengers. `published_head` gives
the head of a loaded checkpoint, `new_head` one with as many outputs as a task needs.

Shape letters: n (examples, or slots), width, outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unmask.core.batch import PackedBatch
from unmask.core.embed import pool
from unmask.core.model import MaskedModel
from unmask.core.token_codec import TokenCodec
from unmask.errors import UserError
from unmask.families.base import Family, Head, activation_name
from unmask.kernels.dropout import drop
from unmask.kernels.fused_linear import activation, batch_invariant

SEQUENCE, TOKEN, SPAN, DETECT = "sequence", "token", "span", "detect"
CLASSES = {
    SEQUENCE: "ForSequenceClassification",
    TOKEN: "ForTokenClassification",
    SPAN: "ForQuestionAnswering",
    DETECT: "ForPreTraining",
}
"""How the names of the transformers classes end that read these heads."""


class TaskHead(nn.Module):
    """Dropout and linear layers on an encoder's states; the weights are saved under the published names.

    Args:
        kind: sequence, token, span or detect (was this token replaced?).
        model: whose states it is given, and whose codec's transform ModernBERT's heads share.
        config: config.json: activations, pooling, dropout, labels.

    Attributes:
        pool: 'first', 'mean' or 'each' slot, or 'late': each slot, and the outputs averaged (EuroBERT).
        labels: their names, where config.json has them.
        dropout: in front of the last layer (and of the first of two, as published).
    """

    def __init__(
        self, kind: str, head: Head, model: MaskedModel[TokenCodec], config: Mapping[str, Any], outputs: int
    ) -> None:
        super().__init__()
        encoder = model.encoder.config
        share = config.get("classifier_dropout")
        self.kind, self.head, self.pool = kind, head, _pooling(head, config)
        self.dropout = float(encoder.dropout if share is None else share)
        if not 0 <= self.dropout < 1:
            raise UserError(f"classifier_dropout={self.dropout}", hint="Expected a share from 0 to below 1.")
        names = config.get("id2label") or {}
        self.labels = [names[k] for k in sorted(names, key=int)] if kind in (SEQUENCE, TOKEN) else []
        self._codec = [model.codec]  # in a list: the codec's parameters are not the head's
        self.layers = nn.ModuleDict()
        for name, _ in head.steps:
            if name.startswith("="):
                continue
            layer = nn.Linear(encoder.width, outputs if name == head.steps[-1][0] else encoder.width)
            nn.init.normal_(layer.weight, std=encoder.initial_deviation)
            nn.init.zeros_(layer.bias)
            self.layers[name.replace(".", "/")] = layer
        self.activations = [_activation(act, config) for _, act in head.steps]

    def forward(self, x: Tensor) -> Tensor:
        """(n, width) states -> (n, outputs), fp32."""
        return batch_invariant(self._outputs, x)

    def _outputs(self, x: Tensor) -> Tensor:
        early = self.head.steps[0][0].startswith("classifier.")
        for i, ((name, _), act) in enumerate(zip(self.head.steps, self.activations, strict=True)):
            if name.startswith("="):
                codec = self._codec[0]
                x = codec.norm(codec.activation(codec.transform(x)))
                continue
            last = i == len(self.head.steps) - 1
            if last or (early and i == 0):
                x = drop(x, self.dropout, self.training)
            layer = self.layers[name.replace(".", "/")]
            if last and torch.is_autocast_enabled(x.device.type):  # bf16 has steps of 8 about a year of birth
                with torch.autocast(x.device.type, enabled=False):
                    x = layer(x.float())
            else:
                x = layer(x)
            if act is not None:
                x = activation(act)(x)
        return x.float()

    def logits(self, model: MaskedModel[TokenCodec], batch: PackedBatch, count: int) -> Tensor:
        """What a batch's `count` examples get: (count, outputs), or of a head on each slot (rows * slots, outputs)."""
        if self.pool not in ("each", "late"):
            return self(pool(model, batch, count, self.pool, True))
        x = self(model.states(batch).flatten(0, 1))
        if self.pool == "each":
            return x
        index = batch.index.flatten()
        real = (index >= 0).nonzero().flatten()
        total = x.new_zeros(count, x.shape[1]).index_add_(0, index[real], x[real])
        return total / torch.bincount(index[real], minlength=count)[:, None]

    def published(self) -> dict[str, Tensor]:
        """Weights by published name."""
        return {k.removeprefix("layers.").replace("/", "."): v.detach().cpu() for k, v in self.state_dict().items()}

    def read(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Fill from published tensors of the right shape; returns the names that stayed random."""
        random = []
        with torch.no_grad():
            for name, ours in self.state_dict().items():
                theirs = tensors.get(name.removeprefix("layers.").replace("/", "."))
                if theirs is not None and theirs.shape == ours.shape:
                    ours.copy_(theirs)
                    continue
                random.append(name.removeprefix("layers.").replace("/", "."))
        return random


def tempered(tensors: Mapping[str, Tensor], head: Head, temperature: float) -> dict[str, Tensor]:
    """Tensors by published name, with the outputs of the head among them divided by a temperature."""
    last = head.steps[-1][0]
    ends = (f"{last}.weight", f"{last}.bias")
    return {name: tensor / temperature if name in ends else tensor for name, tensor in tensors.items()}


def new_head(
    family: Family, kind: str, model: MaskedModel[TokenCodec], config: Mapping[str, Any], outputs: int
) -> TaskHead:
    """A head of a family for 'sequence', 'token' or 'span', its weights random."""
    if kind not in family.heads:
        raise UserError(
            f"{family.name} models have no published head for this task",
            hint="Use another family (BERT, RoBERTa, ELECTRA, ModernBERT, DistilBERT, ALBERT, DeBERTa, ...).",
        )
    return TaskHead(kind, family.heads[kind], model, config, outputs)


def published_head(
    family: Family, config: Mapping[str, Any], passengers: Mapping[str, Tensor], model: MaskedModel[TokenCodec]
) -> TaskHead | None:
    """The task head of a loaded checkpoint, None where it has none that its family knows, whole."""
    classes = config.get("architectures") or ()
    declared = next((kind for a in classes for kind, end in CLASSES.items() if a.endswith(end)), None)
    for kind, head in family.heads.items():
        last = passengers.get(f"{head.steps[-1][0]}.weight")
        if declared in (None, kind) and last is not None:
            found = TaskHead(kind, head, model, config, len(last))
            if not found.read(passengers):
                return found.eval()
    return None


def _activation(name: str | None, config: Mapping[str, Any]) -> str | None:
    """Ours, where the family's data says 'hidden' or 'pooler' and config.json which that is."""
    if name == "hidden":
        return activation_name(config.get("hidden_act", "gelu"))
    return activation_name(config.get("pooler_hidden_act", "gelu")) if name == "pooler" else name


def _pooling(head: Head, config: Mapping[str, Any]) -> str:
    if head.pooling_key is None:
        return head.pool
    key, default = head.pooling_key
    value = str(config.get(key, default))
    found = {"cls": "first", "bos": "first"}.get(value, value)
    if found not in ("first", "mean", "late"):
        raise UserError(f"{key} {value!r} in config.json is not known", hint="Known: cls, mean and late.")
    return found
