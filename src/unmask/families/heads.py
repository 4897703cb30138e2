"""Published task heads, loaded with the encoder: what a checkpoint says about sequences, tokens, spans, replaced tokens.

A family lists its heads as data (`Family.heads`); the tensors are among the folder's passengers. `published_head` gives the
head as a module that takes encoder states, ready to use and to fine-tune further.

Shape letters: slots (all, without padding), width, examples, labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.encoder.transformer import activation
from unmask.families.base import Family, Head, activation_name

_KIND = {
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "span",
    "ForPreTraining": "detect",
}


class PublishedHead(nn.Module):
    """A head as it was published: linear steps with activations between, on the first slot, the mean, or each slot.

    Attributes:
        kind: sequence, token, span or detect (was this token replaced?).
        labels: their names, where config.json has them.
    """

    def __init__(self, kind: str, pool: str, steps: list[tuple[nn.Module, str | None]], labels: list[str]) -> None:
        super().__init__()
        self.kind, self.pool, self.labels = kind, pool, labels
        self.steps = nn.ModuleList([module for module, _ in steps])
        self.activations = [name for _, name in steps]

    def forward(self, states: Float[Tensor, "slots width"], example: Int[Tensor, "slots"]) -> Tensor:
        """Logits.

        Args:
            states: of all examples' slots, each example's in a row.
            example: which example a slot belongs to, ascending from 0.

        Returns:
            (examples, labels), or (slots, labels) for heads on each slot.
        """
        count = int(example.max()) + 1
        if self.pool == "first":
            starts = torch.searchsorted(example.contiguous(), torch.arange(count, device=example.device))
            states = states[starts]
        elif self.pool == "mean":
            states = _mean(states, example, count)
        for module, name in zip(self.steps, self.activations, strict=True):
            states = module(states) if name is None else activation(name)(module(states))
        return _mean(states, example, count) if self.pool == "late" else states


def _mean(x: Tensor, example: Tensor, count: int) -> Tensor:
    total = x.new_zeros(count, x.shape[1]).index_add_(0, example, x)
    return total / torch.bincount(example, minlength=count)[:, None].to(x.dtype)


def published_head(
    family: Family, config: Mapping[str, Any], passengers: Mapping[str, Tensor], codec: nn.Module
) -> PublishedHead | None:
    """The task head of a loaded checkpoint, None where it has none that its family knows.

    Args:
        config: config.json.
        passengers: tensors the masked model had no place for.
        codec: the masked model's: some heads share its transform (ModernBERT).
    """
    said = next((k for a in config.get("architectures") or () for end, k in _KIND.items() if a.endswith(end)), None)
    for kind, head in family.heads.items():
        own = [name for name, _ in head.steps if not name.startswith("=")]
        if (said in (None, kind)) and all(f"{name}.weight" in passengers for name in own):
            return _build(kind, head, config, passengers, codec)
    return None


def _build(
    kind: str, head: Head, config: Mapping[str, Any], passengers: Mapping[str, Tensor], codec: nn.Module
) -> PublishedHead:
    steps: list[tuple[nn.Module, str | None]] = []
    for name, act in head.steps:
        if name == "=head":
            steps += [(codec.transform, codec.config.head_activation), (codec.norm, None)]  # type: ignore[union-attr,list-item]
            continue
        weight, bias = passengers[f"{name}.weight"], passengers.get(f"{name}.bias")
        linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        linear.load_state_dict({"weight": weight.float()} | ({} if bias is None else {"bias": bias.float()}))
        steps.append((linear, _activation(act, config)))
    names = config.get("id2label") or {}
    labels = [names[k] for k in sorted(names, key=int)] if kind in ("sequence", "token") else []
    return PublishedHead(kind, _pool(head, config), steps, labels)


def _activation(name: str | None, config: Mapping[str, Any]) -> str | None:
    """Ours, where the family's data says 'hidden' or 'pooler' and config.json which that is."""
    if name == "hidden":
        return activation_name(config.get("hidden_act", "gelu"))
    return activation_name(config.get("pooler_hidden_act", "gelu")) if name == "pooler" else name


def _pool(head: Head, config: Mapping[str, Any]) -> str:
    if head.pooling_key is None:
        return head.pool
    key, default = head.pooling_key
    said = config.get(key, default)
    return {"cls": "first", "bos": "first"}.get(said, said)
