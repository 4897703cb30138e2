"""Embedding texts without padding: ids in, vectors out, nothing packed, padded or masked on the way.

Used for embedding where the encoder allows it (see `unmask.encoder.inference_encoder`); everything else goes through
`unmask.core`.

Shape letters: slots (of a batch), width, texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.core.embed import check_pooling, pool_padded
from unmask.core.model import MaskedModel
from unmask.core.token_codec import TokenCodec
from unmask.encoder.inference_encoder import (
    InferenceEncoder,
    Ranges,
    has_eight_bit_form,
    has_inference_form,
    inference_form,
)
from unmask.errors import UserError, option
from unmask.kernels.inference_attention import length_groups
from unmask.progress import counted

BATCH_SLOTS = 2048
"""Few enough that a layer's activations stay in the caches, enough to fill the products."""


@dataclass
class PaddingFreeEmbedder:
    """A text model's word embeddings and the inference form of its encoder."""

    codec: TokenCodec
    encoder: InferenceEncoder
    word: Tensor
    types: Tensor | None

    @classmethod
    def of(
        cls,
        model: MaskedModel[TokenCodec],
        precision: str,
        calibration: Sequence[np.ndarray] = (),
    ) -> PaddingFreeEmbedder | None:
        """None where the encoder is of another kind.

        Args:
            calibration: token ids of some texts, for int8: they show how large the activations get.
        """
        flat = not model.visible_only and has_inference_form(model.encoder)
        if precision == "int8" and not (flat and has_eight_bit_form(model.encoder.config)):
            raise UserError(
                "int8 is built for post-norm encoders with a plain feed-forward on a CPU (BERT, RoBERTa, MPNet, ...)",
                hint=f"Use {option('precision', 'bf16')} or fp32.",
            )
        if not flat:
            return None
        codec = model.codec
        word = codec.word.weight.detach()
        types = codec.token_type.weight.detach()[0] if codec.config.types else None
        with torch.inference_mode():
            if precision != "int8":
                return cls(codec, inference_form(model.encoder, precision), word, types)
            if not calibration:
                raise UserError("int8 needs texts to calibrate with", hint="Give at least one.")
            exact, ranges = cls(codec, InferenceEncoder(model.encoder, "fp32"), word, types), Ranges()
            for members in batches(np.array([len(ids) for ids in calibration])):
                exact.states([calibration[i] for i in members], ranges)
            return cls(codec, InferenceEncoder(model.encoder, "int8", ranges), word, types)

    def states(self, ids: Sequence[np.ndarray], ranges: Ranges | None = None) -> Tensor:
        """Encoder states of texts sorted by length, side by side: (slots, width)."""
        token = torch.from_numpy(np.concatenate(ids).astype(np.int64))
        position = torch.from_numpy(np.concatenate([np.arange(len(i)) for i in ids]))
        x = F.embedding(token, self.word)
        if self.codec.config.scale != 1:
            x = x * self.codec.config.scale
        if self.types is not None:
            x = x + self.types
        return self.encoder(x, position, length_groups([len(i) for i in ids]), ranges)

    def embed(
        self,
        ids: Sequence[np.ndarray],
        *,
        pooling: str = "mean",
        normalise: bool = False,
        unpooled: int = 0,
    ) -> np.ndarray:
        """(texts, width) vectors in the order given, pooled over all slots but the first `unpooled`, special ones
        included; 0 without any. `pooling` as of `unmask.core.embed.embed`."""
        check_pooling(pooling)
        out = np.zeros((len(ids), self.encoder.config.width * len(pooling.split("+"))), np.float32)
        lengths = np.array([len(i) for i in ids], np.int64)
        some = np.flatnonzero(lengths)
        with torch.inference_mode():
            for part in counted(batches(lengths[some]), len(some), len):
                members = some[part]
                chosen = [ids[i] for i in members]
                vectors = _pool(self.states(chosen), [len(i) for i in chosen], pooling, unpooled).float()
                out[members] = (F.normalize(vectors, dim=-1) if normalise else vectors).numpy()
        return out


def batches(lengths: np.ndarray, slots: int = BATCH_SLOTS) -> Iterator[np.ndarray]:
    """Texts, longest first, in batches of about `slots` slots; every text once."""
    order = np.argsort(-lengths, kind="stable")
    total = np.cumsum(lengths[order])
    number = (total - lengths[order]) // slots
    for part in np.split(order, np.flatnonzero(np.diff(number)) + 1):
        if len(part):
            yield part


def _pool(states: Tensor, lengths: Sequence[int], pooling: str, unpooled: int) -> Tensor:
    start, parts = 0, []
    for rows, length in length_groups(lengths):
        group = states[start : start + rows * length].view(rows, length, -1)
        start += rows * length
        parts.append(pool_padded(group, None, pooling, unpooled))
    return torch.cat(parts)
