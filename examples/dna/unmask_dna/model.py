"""The model of DNA: what unmask's `StandardModel` leaves open."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.core.corruption import Corruption, Slots
from unmask.core.hashing import Salt, uniform
from unmask.core.model import MaskedModel
from unmask.standard import StandardModel, token_model
from unmask.training.settings import TrainSettings
from unmask_dna.sequences import BASES, SPECIAL, Stretch, bases_of, stretches

ORDER = 3  # of the Markov chain beside the model


@dataclass(frozen=True, kw_only=True)
class DnaSettings:
    """k: bases per token (3 to 6 as published; 1: single ones). slots: longest stretch, [CLS] and [SEP] included."""

    k: int = 3
    ratio: float = 0.15
    slots: int = 128
    width: int = 128
    layers: int = 2
    train: TrainSettings = field(default_factory=TrainSettings)


@dataclass(frozen=True, kw_only=True)
class Contiguous:
    """Hides k neighbouring k-mers at a time (DNABERT, sec. 2.2): the neighbours of fewer would give them away."""

    k: int = 3
    ratio: float = 0.15

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        draw, least = uniform(*key, slots.identity, slots.slot, Salt.SPAN_START), np.ones(slots.examples)
        np.minimum.at(least, slots.example, draw)
        begins = (draw < self.ratio / self.k) | (draw == least[slots.example])  # one per example at least
        hidden = begins.copy()
        for step in range(1, self.k):
            hidden[step:] |= begins[:-step] & (slots.example[step:] == slots.example[:-step])
        return hidden


class DnaModel(StandardModel):
    kind, Settings = "dna", DnaSettings

    @classmethod
    def new_model(cls, settings: DnaSettings) -> MaskedModel:
        sizes = {"vocabulary": SPECIAL + 4**settings.k, "width": settings.width, "layers": settings.layers}
        model = token_model(mask_id=4, special_ids=range(SPECIAL), **sizes)
        model.register_buffer("following", torch.zeros([4] * (ORDER + 1), dtype=torch.int64))
        return model

    def read(self, data: str) -> list[tuple[str, Stretch]]:
        return stretches(data, self.settings.k, self.settings.slots)

    def corruption(self) -> Corruption:
        return Corruption(select=Contiguous(k=self.settings.k, ratio=self.settings.ratio))

    def shown(self, example: Stretch, values: dict[str, np.ndarray]) -> str:
        found = bases_of(values["token"], self.settings.k)
        return "".join(b if b in BASES else BASES[n] for b, n in zip(example.bases, found, strict=True))

    def learn_rules(self, examples: Sequence[Stretch]) -> None:
        """How often each base follows each three."""
        words = Counter(s.bases[i : i + ORDER + 1] for s in examples for i in range(len(s.bases) - ORDER))
        for word, count in words.items():
            if set(word) <= set(BASES):
                self.model.following[tuple(map(BASES.index, word))] = count

    def evaluate(self, data: str, *, seed: int = 0) -> dict[str, Any]:
        """The loss, and the share of the bases that no visible k-mer shows which are right; beside the most frequent
        base, and the most frequent one after the three before it."""
        following, right, k = self.model.following.cpu().numpy(), [], self.settings.k
        usual, after = following.sum((0, 1, 2)).argmax(), following.argmax(-1)
        for one, gone, values in self.predicted(self.read(data), seed):
            true, said = np.array([BASES.find(b) for b in one.bases]), bases_of(values["token"], k)
            covered = np.convolve(~gone[1:-1], np.ones(k)) > 0
            for at in np.flatnonzero(~covered & (true >= 0)):
                before = true[max(at - ORDER, 0) : at]
                chain = after[tuple(before)] if len(before) == ORDER and min(before) >= 0 else usual
                right.append(true[at] == [said[at], usual, chain])
        names = ("base_accuracy", "most_frequent_base", "markov_of_order_3")
        found = dict(zip(names, np.mean(right, 0).tolist(), strict=True))
        return super().evaluate(data, seed=seed) | found | {"bases": len(right)}

    @classmethod
    def demo_data(cls, folder: Path, seed: int) -> tuple[str, str, dict[str, Any]]:
        """Sequences of codons, some far more frequent than others; they begin anywhere in a codon."""
        draw, codons = np.random.default_rng(seed), ["".join(letters) for letters in product(BASES, repeat=3)]
        often, paths = draw.dirichlet(np.full(64, 0.1)), [folder / "train.fasta", folder / "held-out.fasta"]
        for path, count in zip(paths, (1000, 100), strict=True):
            made = ["".join(draw.choice(codons, 40, p=often))[draw.integers(3) :] for _ in range(count)]
            path.write_text("".join(f">{i}\n{bases}\n" for i, bases in enumerate(made)))
        return str(paths[0]), str(paths[1]), {"k": 1, "width": 64, "batch_slots": 1024, "learning_rate": 3e-3}
