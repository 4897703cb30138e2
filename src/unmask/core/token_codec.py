"""The codec of tokens of any kind, such as pieces of words or bases of DNA: their embeddings (and those of types), and
the masked-language-model head tied to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.core.co_occurrence import Factors
from unmask.core.model import WantedSlots
from unmask.core.prediction import Categorical
from unmask.encoder.config import Activation, Norm
from unmask.encoder.transformer import make_norm
from unmask.kernels.fused_linear import activation, batch_invariant, round_up


@dataclass(frozen=True, kw_only=True)
class TokenCodecConfig:
    """Embedding table and head.

    Args:
        types: rows of the token-type table (BERT: 2), 0 for none.
        head_norm, head_bias, head_activation: the transform in front of the tied projection.
        output_bias: the projection's own bias over the vocabulary.
        tied: output projection shares the embedding table.
        head: whether there is a transform in front of the projection (not in EuroBERT, NeoBERT).
        scale: factor on word embeddings (an option of BigBird).
    """

    vocabulary: int
    width: int
    encoder_width: int
    mask_id: int
    special_ids: tuple[int, ...] = ()
    types: int = 0
    head_activation: Activation = "gelu"
    head_norm: Norm = Norm()
    head_bias: bool = True
    output_bias: bool = True
    tied: bool = True
    head: bool = True
    scale: float = 1.0
    deviation: float = 0.02


class TokenCodec(nn.Module):
    """Embeds token ids; the mask embedding is the [MASK] row of the table, as in published checkpoints."""

    context_channels: tuple[str, ...] = ("type",)
    drops_missing = False
    ordinary: Tensor
    special: Tensor

    def __init__(self, config: TokenCodecConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Embedding(config.vocabulary, config.width)
        if config.types:
            self.token_type = nn.Embedding(config.types, config.width)
        if config.head:
            self.transform = nn.Linear(config.encoder_width, config.width, bias=config.head_bias)
            self.norm = make_norm(config.head_norm, config.width)
        self.activation = activation(config.head_activation)
        self.output = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocabulary)) if config.output_bias else None
        allowed = np.setdiff1d(np.arange(config.vocabulary), np.asarray(config.special_ids, np.int64))
        self.register_buffer("ordinary", torch.from_numpy(allowed), persistent=False)
        self.register_buffer("special", torch.tensor(config.special_ids, dtype=torch.int64), persistent=False)
        for table in (self.word, *([self.token_type] if config.types else [])):
            nn.init.normal_(table.weight, std=config.deviation)
        if config.head:
            nn.init.normal_(self.transform.weight, std=config.deviation)
        if config.head and config.head_bias:
            nn.init.zeros_(self.transform.bias)

    @torch.no_grad()
    def start_from(self, counts: np.ndarray, co_occurrence: Factors | None = None) -> None:
        """Let a new model begin with what counting says of the training data, which it would have to learn first.

        Args:
            counts: (vocabulary,) how often each token occurs; the output's bias becomes the logarithm of its share.
            co_occurrence: vectors of the tokens, from which tokens occur near which; as wide as the embeddings. They
                replace the random part of the embeddings, and are as large on average; a row of zeros leaves its
                token's as it is. The head's transform is given their reflection: a state that is the sum of other
                tokens' vectors then predicts the tokens that occur near these.
        """
        if self.bias is not None:
            share = torch.from_numpy(counts).to(torch.float64) + 1
            self.bias.copy_((share / share.sum()).log())
        if co_occurrence is None:
            return
        table, vectors = self.word.weight, torch.from_numpy(co_occurrence.vectors)
        known = vectors.any(1)
        if not known.any():
            return
        common = table.mean(0)
        size = (table - common).std() / vectors[known].std().clamp_min(1e-12)
        table[known] = common + size * (vectors[known] - vectors[known].mean(0))
        if self.config.head and self.config.encoder_width == self.config.width:
            self.transform.weight += torch.from_numpy(co_occurrence.reflection)

    def embed(self, values: dict[str, Tensor], masked: Bool[Tensor, "rows slots"]) -> Float[Tensor, "rows slots width"]:
        """Vectors of the tokens (and of their types), those of masked slots the mask's."""
        x = self.word(values["token"].masked_fill(masked, self.config.mask_id))
        if self.config.scale != 1:
            x = x * self.config.scale
        if self.config.types:
            x = x + (self.token_type(values["type"]) if "type" in values else self.token_type.weight[0])
        return x

    def noise(self, values: dict[str, Tensor], flat: Tensor, bits: Tensor) -> dict[str, Tensor]:
        """Uniform over ordinary tokens: special ones are never drawn."""
        return {"token": self.ordinary[(bits & (2**62 - 1)) % len(self.ordinary)]}

    def targets(self, values: dict[str, Tensor], flat: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        """The tokens that stood in some slots."""
        return values["token"].flatten()[flat]

    def write(self, values: dict[str, Tensor], flat: Tensor, new: Tensor) -> dict[str, Tensor]:
        """The values with tokens put into some slots."""
        token = values["token"].clone()
        token.view(-1)[flat] = new
        return values | {"token": token}

    def predict(self, states: Float[Tensor, "wanted width"], wanted: WantedSlots | None = None) -> Categorical:
        """The distribution over the vocabulary at each state."""
        rounded = round_up(states)
        count = None if rounded is states else len(states)
        h = (
            batch_invariant(lambda x: self.norm(self.activation(self.transform(x))), rounded)
            if self.config.head
            else rounded
        )
        if torch.is_autocast_enabled(h.device.type):
            h = h.to(torch.get_autocast_dtype(h.device.type))
        weight = self.word.weight if self.output is None else self.output.weight
        return Categorical(h, weight, self.bias, forbidden=self.special, count=count)
