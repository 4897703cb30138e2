"""What of a model is trained and kept in memory: rows of embeddings that occur, layers that are not frozen, states that
are not computed again."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unmask.core.batch import Example, PackedBatch
from unmask.core.inference import inference_mode, packed_batches
from unmask.core.token_codec import TokenCodec
from unmask.errors import UserError
from unmask.modalities.text.tasks.prepared import Prepared
from unmask.modalities.text.tasks.task import TaskModel


class Compact:
    """Trains the rows of the embedding table that occur, and puts the whole table back afterwards.

    Args:
        model: whose `masked.codec.word` is replaced while this is active.
        used: ascending ids that occur in training or validation data.
    """

    def __init__(self, model: TaskModel, used: np.ndarray) -> None:
        self.codec, self.used = model.masked.codec, torch.from_numpy(used)
        self.full = self.codec.word
        weight = self.full.weight.detach()
        self.lookup = torch.zeros(len(weight), dtype=torch.int64)
        self.lookup[self.used] = torch.arange(len(used))
        small = nn.Embedding(len(used), weight.shape[1], device=weight.device)
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

    def compute(
        self, examples: Sequence[Example], slots: int, device: torch.device, context: Callable[[], Any]
    ) -> list[Example]:
        """The examples with their states below the cut, fp32 in memory."""
        encoder = self.model.masked.encoder
        whole = encoder.layers
        out: list[Example | None] = [None] * len(examples)
        norm, config = encoder.final_norm, encoder.config
        encoder.layers, encoder.final_norm = whole[: self.layers], nn.Identity()
        encoder.config = dataclasses.replace(config, layers=self.layers)
        try:
            with inference_mode(self.model), context():
                for batch, numbers in packed_batches(examples, slots):
                    states = self.model.masked.states(batch.to(device)).float().cpu().numpy()
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


def used_ids(*parts: Prepared) -> np.ndarray:
    """Ascending token ids that occur in examples."""
    return np.unique(np.concatenate([e.values["token"] for part in parts for e in part.examples]))


def recompute(model: TaskModel) -> None:
    """Gradient checkpointing: each layer keeps its input only and runs again in the backward pass."""
    for layer in model.masked.encoder.layers:
        inner = layer.forward
        layer.forward = lambda *a, _inner=inner, **k: checkpoint(_inner, *a, use_reentrant=False, **k)
