"""Initial embeddings from counts instead of random numbers: values that occur in similar contexts get similar vectors.

A new masked model spends its first minutes learning which values occur together. Counting gives that at once: the
pointwise mutual information of values near each other is computed and factorised (Levy & Goldberg 2014, "Neural Word
Embedding as Implicit Matrix Factorization"; with the smoothing of Levy et al. 2015, section 3.1, and their symmetric
weighting of the two factors, section 3.3). The factors are found by random projections (Halko et al. 2011, algorithm
4.4), so that counting and factorising take seconds.

Shape letters: values (rows of the embedding table), width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

WINDOW = 2
"""Slots to either side that count as context; a window of four gave the same loss."""

SMOOTHING = 0.75
"""Power that counts of the context are raised to; without it rare values would have the largest information."""

ROUNDS = 4
"""Of random projection; more rounds change the factors hardly at all."""

SPARE = 16
"""Extra directions of the random projection, which make the wanted ones accurate."""


def co_occurrences(pieces: Iterable[tuple[np.ndarray, np.ndarray]], values: int, *, window: int = WINDOW) -> csr_matrix:
    """How often values stand near each other: (values, values), symmetric; a pair `d` slots apart counts 1 / d.

    Args:
        pieces: (slots,) value of each slot and (slots,) number of its example, ascending; pairs do not reach over
            examples, nor over pieces.
        window: slots apart at most, 1 or more.
    """
    from scipy.sparse import csr_matrix

    found = csr_matrix((values, values), dtype=np.float32)
    for value, example in pieces:
        value = value.astype(np.int64)
        for distance in range(1, window + 1):
            same = example[distance:] == example[:-distance]
            pair, count = np.unique(value[:-distance][same] * values + value[distance:][same], return_counts=True)
            found += csr_matrix(((count / distance).astype(np.float32), (pair // values, pair % values)), found.shape)
    return (found + found.T).tocsr()


def information(counts: csr_matrix) -> csr_matrix:
    """Positive pointwise mutual information in nats, smoothed; symmetric as the counts are."""
    from scipy.sparse import csr_matrix

    pairs = counts.tocoo()
    total = np.asarray(counts.sum(1), np.float64).ravel()
    smoothed = total**SMOOTHING
    side = 0.5 * np.log(np.where(total > 0, total * smoothed / max(smoothed.sum(), 1e-300), 1.0))
    found = np.log(pairs.data) - side[pairs.row] - side[pairs.col]
    positive = found > 0
    return csr_matrix((found[positive].astype(np.float32), (pairs.row[positive], pairs.col[positive])), counts.shape)


@dataclass(frozen=True, kw_only=True)
class Factors:
    """A symmetric matrix in few numbers per value: it is near `vectors @ reflection @ vectors.T`.

    Attributes:
        vectors: one per value; zeros where nothing is known of it.
        axes: orthonormal, the one that says most first.
        signs: of the eigenvalue of each axis.
    """

    vectors: Float[np.ndarray, "values width"]
    axes: Float[np.ndarray, "axes width"]
    signs: Float[np.ndarray, " axes"]

    @property
    def reflection(self) -> Float[np.ndarray, "width width"]:
        """Turns a value's vector into one whose products with vectors are the matrix's entries of that value."""
        return self.axes.T @ (self.signs[:, None] * self.axes)


def factors(symmetric: csr_matrix, width: int, *, seed: int = 0) -> Factors:
    """The eigenvectors of the `width` largest eigenvalues by size, each times the root of that size.

    Their axes are turned at random, so that the table's columns are alike. There are fewer axes where there are fewer
    values.
    """
    random, size = np.random.default_rng(seed), symmetric.shape[0]
    columns = min(width + SPARE, size)
    basis = random.standard_normal((size, columns)).astype(np.float32)
    for _ in range(ROUNDS):
        basis = np.linalg.qr(symmetric @ basis)[0]
    small = basis.T @ (symmetric @ basis)
    values, vectors = np.linalg.eigh((small + small.T) / 2)
    first = np.argsort(-np.abs(values))[:width]
    found = basis @ vectors[:, first] * np.sqrt(np.abs(values[first]))
    found[np.diff(symmetric.indptr) == 0] = 0  # rounding leaves traces there, all alike
    axes = np.linalg.qr(random.standard_normal((width, width)))[0][: len(first)].astype(np.float32)
    return Factors(
        vectors=(found @ axes).astype(np.float32), axes=axes, signs=np.sign(values[first]).astype(np.float32)
    )
