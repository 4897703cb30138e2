"""Mean pooling as a layer of the encoder, so that published classes that look at the first slot alone read it.

BERT's, RoBERTa's, ELECTRA's and DistilBERT's classifiers take the first slot's state. Vectors of sentence encoders live
in the mean: of MiniLM-L6 a logistic regression on 3 000 questions of 77 intents gets .963 from the mean and .915 from
the first slot. So a further layer is put on top, of the same shape as the others: its queries are 0, so that it attends
to all slots alike, its values are the states times `SCALE`, and its feed-forward adds nothing. What the first slot then
holds is the layer norm of (first state + SCALE x mean state), to rounding. All of it can be trained, and transformers
and every export read the folder.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.encoder.config import Learned
from unmask.encoder.on_host import to_device
from unmask.encoder.transformer import Encoder, Layer
from unmask.families.base import published_state
from unmask.modalities.text.network.folder import TextFolder

SCALE = 32.0
_LAYERS = ("num_hidden_layers", "n_layers")
_MASKED_HEAD = ("transform", "norm", "bias", "output")


def can_add_mean_layer(text: TextFolder) -> bool:
    """Whether the family's layers can be made to average: full attention, norms behind, learned positions, a layer
    each."""
    encoder = text.model.encoder
    config = encoder.config
    return (
        type(encoder) is Encoder
        and config.norm.placement == "post"
        and config.norm.kind == "layer"
        and isinstance(config.positions, Learned)
        and config.distinct_layers == config.layers
        and config.attention.bias
        and any(key in text.hf_config for key in _LAYERS)
        and not text.settings.get("mean_layer")
    )


def add_mean_layer(text: TextFolder) -> None:
    """Put the layer on top, in place. The masked-LM head, which was made for the states below, is left out
    on saving."""
    encoder = text.model.encoder
    leave_masked_head_out(text)
    layer = Layer(encoder.config, encoder.config.layers, encoder.attention)
    layer.apply(encoder._initialise)
    width = encoder.config.width
    with torch.no_grad():
        layer.attention.qkv.weight[:width].zero_()  # queries
        layer.attention.qkv.weight[2 * width :].copy_(torch.eye(width) * SCALE**0.5)  # values
        layer.attention.out.weight.copy_(torch.eye(width) * SCALE**0.5)
        layer.feedforward.down.weight.zero_()
    encoder.layers.append(layer.to(next(encoder.parameters()).device))
    encoder.config = dataclasses.replace(encoder.config, layers=encoder.config.layers + 1)
    text.hf_config = {
        key: value + 1 if key in _LAYERS and isinstance(value, int) else value for key, value in text.hf_config.items()
    }
    text.settings = {**text.settings, "mean_layer": True}


def leave_masked_head_out(text: TextFolder) -> None:
    """Count the masked-LM head among what was never read: states have become others than those it was made for. It is
    left out on saving, and `fill` of the folder says why it cannot."""
    before = set(published_state(text.family, text.model))
    head = [f"codec.{part}" for part in _MASKED_HEAD]
    rules = text.family.rules(text.model.encoder.config.layers, tied=text.model.codec.config.tied)
    lost = {name for names, ours in rules if ours.startswith(tuple(head)) for name in names}
    text.random = sorted({*text.random, *(lost & before)})


def through_mean_layer(first: Tensor, mean: Tensor, epsilon: float) -> Tensor:
    """(n, width) states of the first slot and their means -> what a new layer makes of them, without running it."""
    width = (first.shape[-1],)
    return F.layer_norm(F.layer_norm(first + SCALE * mean, width, eps=epsilon), width, eps=epsilon)


def pooled_both(states: Any, batch: Any, count: int) -> tuple[Tensor, Tensor]:
    """(first, mean) of each example of a batch, each (count, width) fp32."""
    from unmask.core.embed import pool_states
    from unmask.core.inference import first_slots

    first = to_device(torch.from_numpy(first_slots(batch, count)), states.device)
    return states.flatten(0, 1)[first].float(), pool_states(states, batch, count, "mean", True)
