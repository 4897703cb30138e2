"""A loaded text model: where it computes, and how texts become its examples. What it is used for stands on this."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unmask.core.batch import Example
from unmask.core.model import MaskedModel
from unmask.core.token_codec import TokenCodec
from unmask.errors import UserError
from unmask.modalities.text.network.folder import TextFolder
from unmask.modalities.text.tokens.batches import text_example
from unmask.modalities.text.tokens.tokenizer import Encoded, Tokenizer
from unmask.training.precision import computing


@dataclass(repr=False)
class LoadedText:
    """A masked language model and its tokenizer, on a device, in a precision.

    Attributes:
        folder: what was loaded, with what stayed random or was ignored.
        device: where it runs.
        precision: 'fp32', 'bf16' or 'int8' (which embeds alone: all else refuses it).
        compiled: torch.compile the encoder: slower to start, faster after, where a C++ compiler is at hand.
    """

    folder: TextFolder
    device: torch.device
    precision: str
    compiled: bool = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.folder!r}, {self.precision} on {self.device})"

    @property
    def model(self) -> MaskedModel[TokenCodec]:
        """The masked model itself, a module of torch."""
        return self.folder.model

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return self.folder.tokenizer

    @property
    def slots(self) -> int:
        """Longest text in tokens, special ones included."""
        return self.model.encoder.config.longest or 512

    def require_head(self) -> None:
        """Refuse a checkpoint without a masked-LM head, whose predictions would be random."""
        if reason := self.folder.why_not_masked():
            raise UserError(
                f"{self.folder.family.name}: {reason}; predictions would be noise",
                hint="embed works; for the rest use a masked-LM checkpoint, or unmask adapt to train a head.",
            )

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Within, the model computes in its precision.

        Raises:
            UserError: that is int8, in which texts are embedded and nothing else.
        """
        if self.precision == "int8":
            raise UserError("precision=int8: built for embedding alone", hint="Use bf16 or fp32 for this.")
        return computing(self.precision, self.device)

    def examples(self, texts: Sequence[str], *, max_slots: int | None = None) -> list[Example]:
        """Texts as one example each, special tokens included.

        Raises:
            UserError: a text is longer than the model takes; with `max_slots` it is cut instead.
        """
        encoded: list[Encoded] = self.tokenizer.encode(texts, max_slots=max_slots)
        self.check_lengths([len(e) for e in encoded], texts)
        # As in training: [UNK] and other special tokens are seen, but never hidden.
        special = self.tokenizer.special_ids
        return [text_example(e.ids, e.units, e.special | np.isin(e.ids, special), i) for i, e in enumerate(encoded)]

    def check(self, texts: Sequence[str]) -> None:
        """Refuse texts that are longer than the model takes, by their ids alone: words are not looked for.

        Raises:
            UserError: naming the first one.
        """
        self.check_lengths([len(ids) for ids in self.tokenizer.ids(texts)], texts)

    def check_lengths(self, lengths: Sequence[int], texts: Sequence[str]) -> None:
        """Refuse texts that are longer than the model takes, by their lengths in tokens.

        Raises:
            UserError: naming the first one.
        """
        for number, (text, length) in enumerate(zip(texts, lengths, strict=True), start=1):
            if length > self.slots:
                raise UserError(
                    f"text {number} has {length} tokens, the model takes {self.slots}: {text[:60]!r}...",
                    hint="Split it into shorter texts.",
                )
