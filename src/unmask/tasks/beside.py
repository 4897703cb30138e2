"""Linear models beside an encoder: of TF-IDF counts of words, and of the frozen vectors of the two texts of a pair.

They are what fine-tuning has to beat. Where one of them does better on held-out rows than encoder and head, it is saved in the
folder (`beside.safetensors`, `beside.json`), and `predict` and `evaluate` use it, alone or averaged with the encoder's outputs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from unmask.errors import UserError
from unmask.tasks import linear

NAME = "beside"
MOST_TERMS = 20_000
STRENGTHS = (0.1, 1.0, 10.0, 100.0)
WORD = r"(?u)\b\w+\b|[^\w\s]"
"""What TF-IDF counts: words, and marks one by one."""


@dataclass
class Beside:
    """A linear model of words, or of frozen vectors.

    Attributes:
        kind: 'words' (TF-IDF of words and pairs of words) or 'apart' (|u - v|, u * v and the cosine of two texts' vectors).
        problem: single, multi or regression, as the outputs are meant.
        share: of its outputs in what is predicted; the encoder's have the rest.
        terms, idf: words: what is counted, and the inverse document frequencies.
        mean, deviation: apart: of the features.
    """

    kind: Literal["words", "apart"]
    problem: str
    model: linear.Linear
    share: float = 1.0
    terms: list[str] = field(default_factory=list)
    idf: np.ndarray = field(default_factory=lambda: np.zeros(0))
    mean: np.ndarray = field(default_factory=lambda: np.zeros(0))
    deviation: np.ndarray = field(default_factory=lambda: np.ones(0))

    def outputs(self, items: Sequence[Any], vectors: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
        """(n, k) logits or numbers.

        Args:
            vectors: apart: of first and second texts.
        """
        if self.kind == "words":
            counter = _counter(vocabulary={term: i for i, term in enumerate(self.terms)})
            counter.idf_ = self.idf
            return self.model(_counts(counter, items))
        assert vectors is not None
        return self.model((pair_features(*vectors) - self.mean) / self.deviation)

    def mixed(self, found: Sequence[np.ndarray], own: np.ndarray) -> list[np.ndarray]:
        """The encoder's outputs and these, averaged by `share`: probabilities of classes as logarithms."""

        def ready(x: np.ndarray) -> np.ndarray:
            x = x.astype(np.float64)
            return torch.log_softmax(torch.from_numpy(x), -1).numpy() if self.problem == "single" else x

        return list((1 - self.share) * ready(np.stack(found)) + self.share * ready(own))

    def save(self, folder: Path) -> None:
        """Write it into a model folder."""
        from safetensors.numpy import save_file

        arrays = {
            "weight": self.model.weight, "bias": self.model.bias, "idf": self.idf, "mean": self.mean, "deviation": self.deviation
        }  # fmt: skip
        save_file({k: np.ascontiguousarray(v, np.float32) for k, v in arrays.items()}, folder / f"{NAME}.safetensors")
        about = {"kind": self.kind, "problem": self.problem, "share": self.share, "terms": self.terms}
        (folder / f"{NAME}.json").write_text(json.dumps(about), encoding="utf-8")


def load_beside(folder: Path) -> Beside:
    """What `save` wrote.

    Raises:
        UserError: the files are missing or damaged.
    """
    from safetensors.numpy import load_file

    try:
        about = json.loads((folder / f"{NAME}.json").read_text(encoding="utf-8"))
        arrays = load_file(folder / f"{NAME}.safetensors")
        found = Beside(
            kind=about["kind"], problem=about["problem"], share=float(about["share"]), terms=list(about["terms"]),
            model=linear.Linear(arrays["weight"], arrays["bias"]), idf=arrays["idf"], mean=arrays["mean"],
            deviation=arrays["deviation"],
        )  # fmt: skip
    except Exception as error:  # safetensors raises its own kinds
        raise UserError(
            f"{folder}: the linear model beside the encoder cannot be read ({error})",
            hint=f"Copy {NAME}.json and {NAME}.safetensors again: predictions of this folder need both.",
        ) from None
    if len(found.terms) != len(found.idf):
        raise UserError(
            f"{folder}/{NAME}.json: {len(found.terms)} terms, {len(found.idf)} weights", hint="Copy both files again."
        )
    return found


def fit_words(
    items: Sequence[Any], target: np.ndarray, kind: linear.Kind, problem: str, *, weights: np.ndarray | None = None, seed: int = 0,
    strength: float | None = None,
) -> Beside | None:  # fmt: skip
    """TF-IDF of words and pairs of words (sublinear counts, pairs that occur twice), then a linear model; C by cross-validation.

    None where the texts hold no words.
    """
    texts = [t for item in items for t in (item.text, item.text2) if t is not None]
    counter = _counter(max_features=MOST_TERMS, min_df=2 if len(texts) >= 200 else 1)
    try:
        counter.fit(texts)
    except ValueError:  # no word in any text
        return None
    features = _counts(counter, items)
    if strength is None:
        _, strength, _ = linear.cross_validated(
            [features], target, kind, seed=seed, weights=weights, strengths=STRENGTHS[::-1], most=2000
        )
    found = linear.fit(features, target, kind, strength, weights=weights, steps=60)
    return Beside("words", problem, found, terms=list(counter.get_feature_names_out()), idf=counter.idf_)


def fit_apart(
    vectors: tuple[np.ndarray, np.ndarray], target: np.ndarray, kind: linear.Kind, problem: str, *,
    weights: np.ndarray | None = None, seed: int = 0, strength: float | None = None,
) -> Beside:  # fmt: skip
    """A linear model of how the vectors of two texts differ and agree; C by cross-validation."""
    x = pair_features(*vectors)
    mean, deviation = x.mean(0), np.maximum(x.std(0), 1e-6)
    x = ((x - mean) / deviation).astype(np.float32)
    if strength is None:
        _, strength, _ = linear.cross_validated(
            [x], target, kind, seed=seed, weights=weights, strengths=(0.001, 0.01, 0.1, 1.0)
        )
    return Beside(
        "apart", problem, linear.fit(x, target, kind, strength, weights=weights), mean=mean, deviation=deviation
    )


def pair_features(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """(n, 2 width + 1): |u - v|, u * v and the cosine, of vectors of length 1."""
    u, v = (a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-9) for a in (u, v))
    return np.concatenate([np.abs(u - v), u * v, (u * v).sum(1, keepdims=True)], 1).astype(np.float32)


def vectors_apart(
    model: Any, encoder: Any, items: Sequence[Any], *, slots: int, context: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Mean states of the first and of the second texts, each read alone."""
    from unmask.core.embed import pool_states
    from unmask.core.inference import at_rest, budgeted

    texts = list(dict.fromkeys(t for item in items for t in (item.text, item.text2)))
    place = {t: i for i, t in enumerate(texts)}
    out: Tensor = torch.empty(len(texts), model.encoder.config.width)
    device = next(model.parameters()).device
    with at_rest(model), context():
        for batch, numbers in budgeted(encoder.whole(texts), slots):
            batch = batch.to(device)
            out[numbers] = pool_states(model.states(batch), batch, len(numbers), "mean", True).float().cpu()
    found = out.numpy()
    return found[[place[i.text] for i in items]], found[[place[i.text2] for i in items]]


def _counter(**options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, dtype=np.float32, token_pattern=WORD, **options)


def _counts(counter: Any, items: Sequence[Any]) -> Any:
    """Counts of a text; of a pair both texts', what they share, and how alike they are."""
    from scipy import sparse

    first = counter.transform([item.text for item in items])
    if items[0].text2 is None:
        return first.tocsr()
    second = counter.transform([item.text2 for item in items])
    both = first.multiply(second)
    return sparse.hstack([abs(first - second), both, sparse.csr_matrix(both.sum(1))]).tocsr()
