"""Published task heads as data, and as modules whose weights are saved under the published names.

Shape letters: n (examples, or slots), width, outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unmask.encoder.dropout import drop
from unmask.encoder.transformer import activation
from unmask.errors import UserError
from unmask.families.base import Family, Head

SEQUENCE, TOKEN, SPAN = "sequence", "token", "span"
CLASSES = {SEQUENCE: "ForSequenceClassification", TOKEN: "ForTokenClassification", SPAN: "ForQuestionAnswering"}
"""Endings of the transformers classes that read these heads."""


def head_of(family: Family, kind: str) -> Head:
    """The head of a family for 'sequence', 'token' or 'span'.

    Raises:
        UserError: there is no published one.
    """
    if kind not in family.heads:
        raise UserError(
            f"{family.name} models have no published head for this task",
            hint="Use another family (BERT, RoBERTa, ELECTRA, ModernBERT, DistilBERT, ALBERT, DeBERTa, ...).",
        )
    return family.heads[kind]


class TaskHead(nn.Module):
    """Dropout and linear layers between an encoder's states and the task's outputs.

    Args:
        head: which layers, under which names.
        codec: the model's codec, whose transform ModernBERT's heads share.
        width: of the states.
        outputs: number of outputs.
        dropout: in front of the last layer (and of the first of two, as published).
    """

    def __init__(
        self,
        head: Head,
        codec: Any,
        *,
        width: int,
        outputs: int,
        dropout: float,
        deviation: float,
        config: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.head, self.dropout = head, dropout
        self._codec = [codec]  # in a list: the codec's parameters are not the head's
        self.layers = nn.ModuleDict()
        self.activations: list[str | None] = []
        for i, (name, act) in enumerate(head.steps):
            last = i == len(head.steps) - 1
            if name.startswith("="):
                self.activations.append(None)
                continue
            layer = nn.Linear(width, outputs if last else width)
            nn.init.normal_(layer.weight, std=deviation)
            nn.init.zeros_(layer.bias)
            self.layers[name.replace(".", "/")] = layer
            known = {
                "hidden": str(config.get("hidden_act", "gelu")),
                "pooler": str(config.get("pooler_hidden_act", "gelu")),
            }
            self.activations.append(known.get(act or "", act))

    def forward(self, x: Tensor) -> Tensor:
        """(n, width) states -> (n, outputs), fp32."""
        early = self.head.steps[0][0].startswith("classifier.")
        for i, ((name, _), act) in enumerate(zip(self.head.steps, self.activations, strict=True)):
            if name.startswith("="):
                codec = self._codec[0]
                x = codec.norm(codec.activation(codec.transform(x)))
                continue
            if i == len(self.head.steps) - 1 or (early and i == 0):
                x = drop(x, self.dropout, self.training)
            x = self.layers[name.replace(".", "/")](x)
            if act == "tanh":
                x = torch.tanh(x)
            elif act is not None:
                x = activation(act)(x)
        return x.float()

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
