"""The network of a task: an encoder with a head, mean pooling as a layer, and what of it is trained and kept in memory.

BERT's, RoBERTa's, ELECTRA's and DistilBERT's classifiers look at the first slot's state alone. Vectors of sentence
encoders live in the mean: of MiniLM-L6 a logistic regression on 3 000 questions of 77 intents gets .963 from the mean
and .915 from the first slot. So a further layer can be put on top, of the same shape as the others: its queries are 0,
so that it attends to all slots alike, its values are the states times `SCALE`, and its feed-forward adds nothing. What
the first slot then holds is the layer norm of (first state + SCALE x mean state), to rounding. All of it can be
trained, and transformers and every export read the folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.core.batch import Example, PackedBatch
from unmask.core.embed import Pooling, pool
from unmask.core.inference import inference_mode, packed_batches
from unmask.core.model import MaskedModel
from unmask.core.token_codec import TokenCodec
from unmask.encoder.config import Learned
from unmask.encoder.transformer import Encoder, Layer
from unmask.errors import UserError
from unmask.families.base import published_state
from unmask.families.heads import TaskHead
from unmask.modalities.text.network.folder import TextFolder
from unmask.training.precision import computing

SCALE = 32.0
_LAYERS = ("num_hidden_layers", "n_layers")
_MASKED_HEAD = ("transform", "norm", "bias", "output")


class TaskModel(nn.Module):
    """Codec and encoder of a masked model, in place (its decoder, if it has one, is not used), with a head on top;
    without one (similarity) its states are pooled."""

    precision = "fp32"
    """What products are computed in, within `context`."""

    def __init__(self, masked: MaskedModel[TokenCodec], head: TaskHead | None, pooling: Pooling = "mean") -> None:
        super().__init__()
        self.masked, self.head, self.pooling = masked, head, pooling

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.parameters()).device

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which it computes in its precision."""
        return computing(self.precision, self.device)

    def forward(self, batch: PackedBatch, count: int) -> Tensor:
        """(count, outputs), or for a head on each slot (rows * slots, outputs)."""
        if self.head is None:
            return pool(self.masked, batch, count, self.pooling, True)
        return self.head.logits(self.masked, batch, count)


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


class Compact:
    """Trains the rows of the embedding table that occur, and puts the whole table back afterwards."""

    def __init__(self, model: TaskModel, examples: Sequence[Example]) -> None:
        self.codec = model.masked.codec
        self.used = torch.from_numpy(np.unique(np.concatenate([e.values["token"] for e in examples])))
        self.full = self.codec.word
        weight = self.full.weight.detach()
        self.lookup = torch.zeros(len(weight), dtype=torch.int64)
        self.lookup[self.used] = torch.arange(len(self.used))
        small = nn.Embedding(len(self.used), weight.shape[1], device=weight.device)
        with torch.no_grad():
            small.weight.copy_(weight[self.used.to(weight.device)])
        self.codec.word = small

    def weights(self) -> dict[str, Tensor]:
        """A copy of the rows, under the name that the model's state has for the table."""
        return {"masked.codec.word.weight": self.codec.word.weight.detach().clone()}

    def batch(self, batch: PackedBatch) -> PackedBatch:
        """The batch with tokens numbered among the rows that are trained, changed in place."""
        batch.values["token"] = self.lookup[batch.values["token"]]
        return batch

    def restore(self, shrink: float) -> None:
        """The whole table again; rows that never occurred are multiplied by `shrink`, their weight decay."""
        small = self.codec.word.weight
        with torch.no_grad():
            self.full.weight.mul_(shrink)
            self.full.weight[self.used.to(small.device)] = small
        self.codec.word = self.full


@contextlib.contextmanager
def embedding_as(codec: TokenCodec, embed: Callable[[dict[str, Tensor], Tensor], Tensor]) -> Iterator[None]:
    """Within, a codec embeds as `embed` says: (values, which slots are masked) -> (rows, slots, width)."""
    vars(codec)["embed"] = embed  # of this object alone, before that of its class
    try:
        yield
    finally:
        del vars(codec)["embed"]


class Prefix:
    """Frozen lower layers: their states are computed once and stand in for the embeddings afterwards."""

    def __init__(self, model: TaskModel, layers: int) -> None:
        encoder = model.masked.encoder
        if layers > len(encoder.layers) - 1:
            raise UserError(f"freeze={layers}", hint=f"The model has {len(encoder.layers)} layers: freeze fewer.")
        if getattr(encoder.config, "sharing", None) is not None:
            raise UserError(
                f"freeze={layers}", hint="The model's layers share their weights: none can be frozen alone."
            )
        self.model, self.layers = model, layers
        for module in (model.masked.codec, encoder.stem, *encoder.layers[:layers]):
            for p in module.parameters():
                p.requires_grad_(False)
        if any(name.startswith("=") for name, _ in (model.head.head.steps if model.head else ())):
            for p in (*model.masked.codec.transform.parameters(), *model.masked.codec.norm.parameters()):
                p.requires_grad_(True)

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Within, the encoder starts above the frozen layers and the codec hands on stored states."""
        encoder, codec = self.model.masked.encoder, self.model.masked.codec
        whole, stem, config = encoder.layers, encoder.stem, encoder.config
        encoder.layers = whole[self.layers :]
        encoder.config = dataclasses.replace(config, layers=len(encoder.layers))
        encoder.stem = _PassOn()
        try:
            with embedding_as(codec, lambda values, masked: values["state"]):
                yield
        finally:
            encoder.layers, encoder.stem, encoder.config = whole, stem, config

    def compute(self, examples: Sequence[Example], slots: int) -> list[Example]:
        """The examples with their states below the cut, fp32 in memory."""
        encoder = self.model.masked.encoder
        whole = encoder.layers
        out: list[Example | None] = [None] * len(examples)
        norm, config = encoder.final_norm, encoder.config
        encoder.layers, encoder.final_norm = whole[: self.layers], nn.Identity()
        encoder.config = dataclasses.replace(config, layers=self.layers)
        try:
            with inference_mode(self.model), self.model.context():
                for batch, numbers in packed_batches(examples, slots):
                    states = self.model.masked.states(batch.to(self.model.device)).float().cpu().numpy()
                    states = states.reshape(-1, states.shape[-1])
                    index = batch.index.flatten().numpy()
                    for i, number in enumerate(numbers.tolist()):
                        e = examples[number]
                        values = {**e.values, "state": states[index == i]}
                        out[number] = Example(values=values, identity=e.identity, special=e.special)
        finally:
            encoder.layers, encoder.final_norm, encoder.config = whole, norm, config
        return [e for e in out if e is not None]


class _PassOn(nn.Module):
    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        return x


def recompute(model: TaskModel) -> None:
    """Gradient checkpointing: each layer keeps its input only and runs again in the backward pass."""
    for layer in model.masked.encoder.layers:
        inner = layer.forward
        layer.forward = lambda *a, _inner=inner, **k: checkpoint(_inner, *a, use_reentrant=False, **k)
