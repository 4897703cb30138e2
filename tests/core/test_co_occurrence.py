"""Embeddings counted from which values stand near each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unmask.core.co_occurrence import Factors, co_occurrences, factors, information
from unmask.core.token_codec import TokenCodec, TokenCodecConfig


def piece(*examples):
    value = np.concatenate([np.array(e) for e in examples])
    return value, np.repeat(np.arange(len(examples)), [len(e) for e in examples])


def test_pairs_are_counted_within_examples_and_by_their_distance():
    found = co_occurrences([piece([0, 1, 2], [2, 0])], 4, window=2).toarray()
    expected = np.zeros((4, 4))
    expected[0, 1] = expected[1, 2] = 1.0
    expected[0, 2] = 0.5 + 1.0  # two apart in the first example, beside each other in the second
    np.testing.assert_allclose(found, expected + expected.T)


def test_pieces_add_up():
    parts = [piece([0, 1, 2, 1]), piece([3, 1], [1, 0, 0])]
    together = co_occurrences(parts, 4).toarray()
    np.testing.assert_allclose(together, sum(co_occurrences([p], 4).toarray() for p in parts))


def test_examples_shorter_than_the_window_and_empty_pieces_count_nothing():
    assert co_occurrences([piece([1]), (np.zeros(0, int), np.zeros(0, int))], 3, window=4).nnz == 0


def test_information_is_the_published_formula():
    counts = co_occurrences([piece(np.random.default_rng(0).integers(0, 6, 400))], 6)
    dense = counts.toarray().astype(float)
    total = dense.sum(1)
    smooth = total**0.75 / (total**0.75).sum()
    one_side = np.log(dense / np.outer(total, smooth))  # pair given the value, over the company's smoothed share
    expected = np.maximum((one_side + one_side.T) / 2, 0)
    np.testing.assert_allclose(information(counts).toarray(), expected, rtol=1e-4, atol=1e-5)


def test_nothing_counted_has_no_information_and_no_vectors():
    nothing = information(co_occurrences([], 5))
    assert nothing.nnz == 0
    assert not factors(nothing, 3).vectors.any()


def test_values_without_company_have_no_vector_and_keep_their_own_embedding():
    random = np.random.default_rng(0)
    counts = co_occurrences([piece(random.integers(5, 35, 4000))], 40)  # 0 to 4 and 35 to 39 never occur
    cooccurrence = factors(information(counts), 16)
    unseen = np.r_[0:5, 35:40]
    assert not cooccurrence.vectors[unseen].any()
    assert cooccurrence.vectors[5:35].any(1).all()
    before, given = codec(), codec()
    given.start_from(np.ones(40), cooccurrence)
    assert torch.equal(given.word.weight[unseen], before.word.weight[unseen])


def test_factors_are_the_largest_eigenvectors():
    random = np.random.default_rng(1)
    matrix = random.standard_normal((60, 60))
    values, vectors = np.linalg.eigh(matrix + matrix.T)
    first = np.argsort(-np.abs(values))[:8]
    from scipy.sparse import csr_matrix

    weighted = np.diag(np.geomspace(1, 1e-4, 60)[np.argsort(np.argsort(-np.abs(values)))] * np.sign(values))
    symmetric = vectors @ weighted @ vectors.T
    found = factors(csr_matrix(symmetric.astype(np.float32)), 8)
    best = (vectors[:, first] * np.diag(weighted)[first]) @ vectors[:, first].T
    np.testing.assert_allclose(found.vectors @ found.reflection @ found.vectors.T, best, atol=2e-3)
    np.testing.assert_allclose(found.axes @ found.axes.T, np.eye(8), atol=1e-5)
    said = np.linalg.norm(found.vectors @ found.axes.T, axis=0)
    assert (np.diff(said) < 1e-4).all()  # the first axis says most


def test_more_width_than_values_leaves_no_axis_out():
    counts = co_occurrences([piece([0, 1, 2, 0, 2, 1])], 3)
    found = factors(information(counts), 8)
    assert found.vectors.shape == (3, 8)
    expected = information(counts).toarray()
    np.testing.assert_allclose(found.vectors @ found.reflection @ found.vectors.T, expected, atol=1e-5)


def test_values_of_like_company_get_like_vectors_and_seeds_turn_them():
    random = np.random.default_rng(0)
    # 0 and 1 stand beside 2 to 5, 6 and 7 beside 8 to 11
    first = [[random.choice([0, 1]), random.integers(2, 6)] for _ in range(1500)]
    second = [[random.choice([6, 7]), random.integers(8, 12)] for _ in range(1500)]
    examples = first + second
    counts = information(co_occurrences([piece(*examples)], 12))
    one, other = (factors(counts, 6, seed=seed).vectors for seed in (0, 1))

    def alike(x, a, b):
        return x[a] @ x[b] / np.linalg.norm(x[a]) / np.linalg.norm(x[b])

    for found in (one, other):
        assert alike(found, 0, 1) > 0.9
        assert abs(alike(found, 0, 6)) < 0.2
    assert not np.allclose(one, other)
    np.testing.assert_array_equal(one, factors(counts, 6, seed=0).vectors)


def codec():
    torch.manual_seed(0)
    return TokenCodec(TokenCodecConfig(vocabulary=40, width=16, encoder_width=16, mask_id=1, special_ids=(0, 1)))


def drawn_factors():
    vectors = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float32) * 7 + 3
    vectors[[0, 1, 5]] = 0
    axes = np.linalg.qr(np.random.default_rng(1).standard_normal((16, 16)))[0].astype(np.float32)
    return Factors(vectors=vectors, axes=axes, signs=np.array([1, -1] * 8, np.float32))


def test_a_codec_begins_with_vectors_as_large_as_those_drawn():
    before, given, cooccurrence = codec(), codec(), drawn_factors()
    drawn = before.word.weight.detach()
    given.start_from(np.ones(40), cooccurrence)
    new = given.word.weight.detach()
    kept = torch.tensor([0, 1, 5])
    assert torch.equal(new[kept], drawn[kept])
    known = cooccurrence.vectors.any(1)
    wanted = torch.from_numpy(cooccurrence.vectors[known])
    assert (new[known] - new[known].mean(0)).std().item() == pytest.approx(
        (drawn - drawn.mean(0)).std().item(), rel=0.1
    )
    wanted, turned = wanted - wanted.mean(0), new[known] - new[known].mean(0)
    assert torch.allclose(turned / turned.norm(), wanted / wanted.norm(), atol=1e-5)
    assert torch.allclose(new[known].mean(0), drawn.mean(0), atol=1e-6)
    added = given.transform.weight - before.transform.weight
    assert torch.allclose(added, torch.from_numpy(cooccurrence.reflection), atol=1e-6)


def test_a_codec_without_company_begins_as_it_was_drawn():
    nothing = factors(information(co_occurrences([], 40)), 16)
    for cooccurrence in (None, nothing):
        before, given = codec(), codec()
        given.start_from(np.ones(40), cooccurrence)
        for name in ("word", "transform"):
            assert torch.equal(getattr(given, name).weight, getattr(before, name).weight)
