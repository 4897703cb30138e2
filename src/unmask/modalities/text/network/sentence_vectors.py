"""How the vectors of texts are made of a model's states: pooling, the modules after it, prompts, similarity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from unmask.core.embed import check_pooling
from unmask.errors import UserError, option, suggest
from unmask.kernels.fused_linear import batch_invariant

if TYPE_CHECKING:
    from unmask.modalities.text.tokens.tokenizer import Tokenizer

SimilarityFn = Literal["cosine", "dot", "euclidean", "manhattan"]


class Normalize(nn.Module):
    """Vectors to length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        return nn.functional.normalize(vectors, dim=-1)


class Dense(nn.Module):
    """activation(W x + b), with `residual` the input (or its projection) on top; sentence-transformers' Dense."""

    def __init__(self, width: int, out: int, *, bias: bool, activation: nn.Module, residual: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out, bias=bias)
        self.activation, self.use_residual = activation, residual
        self.residual = nn.Linear(width, out, bias=False) if residual and width != out else None

    def forward(self, vectors: Tensor) -> Tensor:
        found: Tensor = self.activation(self.linear(vectors))
        if not self.use_residual:
            return found
        return found + (vectors if self.residual is None else self.residual(vectors))

    def __repr__(self) -> str:
        return f"Dense({self.linear.in_features} to {self.linear.out_features}, {type(self.activation).__name__})"


@dataclass(frozen=True, kw_only=True)
class SentenceVectors:
    """How a folder's vectors are made.

    Attributes:
        pooling: of the states, as `unmask.core.embed.pool` knows it; several are joined by "+".
        include_prompt: whether the prompt's own slots are pooled too.
        after: the modules behind pooling, in their order: `Dense`, `LayerNorm`, `Normalize`.
        slots: longest text in tokens, special ones included; None for the model's own.
        prompts: name -> what is put in front of a text.
        default_prompt: name of the prompt that every text gets unless the caller chooses; None for none.
        similarity_fn: how two vectors are compared.
        given: whether the folder holds these settings; else they are the defaults.
    """

    pooling: str = "mean"
    include_prompt: bool = True
    after: nn.Sequential = field(default_factory=nn.Sequential)
    slots: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    similarity_fn: SimilarityFn = "cosine"
    given: bool = False

    @property
    def normalise(self) -> bool:
        """Whether vectors have length 1."""
        return len(self.after) > 0 and isinstance(self.after[-1], Normalize)

    @property
    def trained(self) -> list[str]:
        """Modules behind pooling that have weights, by their kind."""
        return [type(m).__name__ for m in self.after if any(True for _ in m.parameters())]

    def width(self, states: int) -> int:
        """Numbers of a vector, of `states` numbers of a state."""
        width = states * len(self.pooling.split("+"))
        for module in self.after:
            width = module.linear.out_features if isinstance(module, Dense) else width
        return width

    def prompt(self, prompt: str | None = None, prompt_name: str | None = None) -> str:
        """What is put in front of texts: `prompt` itself, or the folder's prompt of that name, or its default."""
        if prompt is not None:
            if prompt_name is not None:
                raise UserError(
                    f"{option('prompt')} and {option('prompt_name')}",
                    hint="Give one: the words themselves, or their name.",
                )
            return prompt
        name = prompt_name if prompt_name is not None else self.default_prompt
        if name is None:
            return ""
        if name not in self.prompts:
            known = list(self.prompts)
            raise UserError(
                f"{option('prompt_name', name)}: the model has no prompt of that name",
                hint=suggest(name, known) if known else f"It has none; {option('prompt')} takes the words themselves.",
            )
        return self.prompts[name]

    def unpooled_slots(self, prompt: str, tokenizer: Tokenizer) -> int:
        """How many slots at the start of a text with this prompt are not pooled: 0, or the prompt's own."""
        if self.include_prompt or not prompt:
            return 0
        ids = tokenizer.ids([prompt])[0]
        return len(ids) - int(len(ids) > 0 and int(ids[-1]) in tokenizer.special_ids)

    def checked_pooling(self, pooling: str | None) -> str:
        """The pooling to use."""
        if pooling is None or pooling == self.pooling:
            return self.pooling
        check_pooling(pooling)
        if self.trained:
            raise UserError(
                f"pooling={pooling}: the model's {self.trained[0]} module was trained on pooling {self.pooling}",
                hint=f"Leave {option('pooling')} out.",
            )
        return pooling

    @torch.inference_mode()
    def after_pooling(self, vectors: np.ndarray, normalise: bool | None = None) -> np.ndarray:
        """Pooled states, (texts, width), through the modules behind pooling.

        Args:
            normalise: True: to length 1 in the end; False: without the last module, where that normalises; None: as
                the folder says.
        """
        found = torch.from_numpy(vectors)
        modules = list(self.after)
        if normalise is False and self.normalise:
            modules.pop()
        if normalise and not self.normalise:
            modules.append(Normalize())
        for module in modules:
            found = batch_invariant(module, found)
        return found.numpy()

    def similarity(self, vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
        """How alike each of `vectors` (texts, width) is to each of `others`: cosine or dot product; minus the distance
        where the folder compares by one, as sentence-transformers does. (texts, others)."""
        if self.similarity_fn == "cosine":
            one, other = (v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in (vectors, others))
            return np.clip(one @ other.T, -1, 1)
        if self.similarity_fn == "dot":
            return vectors @ others.T
        order = 2 if self.similarity_fn == "euclidean" else 1
        return np.stack([-np.linalg.norm(others - vector, ord=order, axis=1) for vector in vectors])

    def refuse_unless_plain(self, what: str) -> None:
        """Refuse vectors that are more than a mean, first or maximum of states, which `what` would lose."""
        lost = [f"a {name} module behind pooling" for name in self.trained]
        lost += [f"pooling {self.pooling}"] if self.pooling not in ("mean", "first", "max") else []
        lost += [f"the prompt {self.prompt()!r} in front of every text"] if self.prompt() else []
        if lost:
            raise UserError(
                f"{what}: the model's vectors have {' and '.join(lost)}, which would be lost",
                hint="Start from the encoder alone: remove modules.json from a copy of the folder.",
            )

    def to_dict(self) -> dict[str, Any]:
        """For `inspect`."""
        return {
            "pooling": self.pooling,
            "modules": [repr(module) for module in self.after],
            "slots": self.slots,
            "prompts": dict(self.prompts),
            "default_prompt": self.default_prompt,
            "similarity": self.similarity_fn,
        }


def prompted(texts: Sequence[str], prompt: str) -> list[str]:
    """Texts with the prompt in front."""
    return [prompt + text for text in texts] if prompt else list(texts)
