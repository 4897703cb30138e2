"""Heads that start out looking at their neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unmask.core.co_occurrence import Factors
from unmask.encoder.local_global import OFFSETS
from unmask.kernels.explicit import rotate, rotation
from unmask.modalities.text.network.pretrain import build_model, start_from_counts
from unmask.modalities.text.recipes import TextSettings, with_overrides
from unmask.modalities.text.tokens.tokenizer import Tokenizer

SLOTS = 24


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(["a few words, and some more of them: enough"] * 3, kind="wordpiece", vocab_size=200)


def first_weights(tokenizer, **settings):
    """Attention weights of a new model's first layer over random tokens, (heads, slots, slots)."""
    shape = {"width": 64, "layers": 2, "heads": 4, "slots": 32}
    model, _ = build_model(with_overrides(TextSettings(), shape | settings), tokenizer)
    ids = torch.randint(5, tokenizer.vocab_size, (1, SLOTS), generator=torch.Generator().manual_seed(1))
    position = torch.arange(SLOTS)[None]
    attention = model.encoder.layers[0].attention
    q, k, _ = attention.project(model.encoder.stem(model.codec.word(ids), position), None)
    table = rotation(position, q.shape[-1], attention.rotary_base, torch.float32)
    return (rotate(q, table) @ rotate(k, table).transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)[0].detach()


def test_heads_start_out_looking_at_their_neighbours(tokenizer):
    weights = first_weights(tokenizer)
    for head, offset in enumerate(OFFSETS):
        seen = weights[head, 4:-4].argmax(-1) - torch.arange(4, SLOTS - 4)
        assert (seen == offset).float().mean() > 0.8, (head, offset, seen.tolist())
        near = weights[head].diagonal(offset)[4:-4]
        assert near.mean() > 0.35


def test_a_random_start_looks_everywhere(tokenizer):
    weights = first_weights(tokenizer, initial_attention="random")
    assert weights.max() < 0.2


def test_learned_positions_start_at_random(tokenizer):
    model, _ = build_model(with_overrides(TextSettings(), {"recipe": "bert", "width": 64, "layers": 1}), tokenizer)
    assert model.codec.word.weight.std().item() == pytest.approx(0.02, rel=0.05)


def test_heads_that_look_at_neighbours_pass_them_on(tokenizer):
    """A slot's state after the first attention is nearest to what stands beside it."""
    shape = {"width": 64, "layers": 2, "heads": 4, "slots": 32}
    model, _ = build_model(with_overrides(TextSettings(), shape), tokenizer)
    random = np.random.default_rng(0)
    axes = np.linalg.qr(random.standard_normal((64, 64)))[0][:16].astype(np.float32)
    vectors = random.standard_normal((tokenizer.vocab_size, 16)).astype(np.float32) @ axes
    cooccurrence = Factors(vectors=vectors, axes=axes, signs=np.ones(16, np.float32))
    before = model.encoder.layers[0].attention.out.weight.detach().clone()
    start_from_counts(model, with_overrides(TextSettings(), shape), np.ones(tokenizer.vocab_size), cooccurrence)
    ids = torch.arange(5, 5 + SLOTS)[None]
    position = torch.arange(SLOTS)[None]
    layer, x = model.encoder.layers[0], model.encoder.stem(model.codec.word(ids), position)
    layout = model.encoder.layout(torch.ones_like(ids), position)
    added = (layer.attention(layer.attention_norm(x), layout, None)[0] @ torch.from_numpy(axes).T).detach()
    own = torch.from_numpy(vectors @ axes.T)[ids[0]]
    alike = torch.nn.functional.normalize(added, dim=1) @ torch.nn.functional.normalize(own, dim=1).T
    beside = torch.stack([alike.diagonal(d)[4:-4].mean() for d in (-1, 1)]).mean()
    far = torch.stack([alike.diagonal(d)[4:-4].mean().abs() for d in (-9, -6, 6, 9)]).mean()
    assert beside > 0.2 > 3 * far
    assert not torch.equal(layer.attention.out.weight, before)


def test_every_seed_has_its_own_start(tokenizer):
    assert not torch.equal(first_weights(tokenizer, seed=0), first_weights(tokenizer, seed=1))
    assert torch.equal(first_weights(tokenizer, seed=1), first_weights(tokenizer, seed=1))
