"""Attention by example equals attention in rows, forward and backward, and what a layer does to one example no other
sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tiny import MODALITIES, Setup, numbers
from unmask.core.batch import pack
from unmask.core.corruption import hide
from unmask.encoder.attention import reference
from unmask.encoder.config import EncoderConfig, Rotary
from unmask.encoder.kinds import Local, RelativeBias
from unmask.encoder.transformer import Encoder
from unmask.kernels import packed_attention
from unmask.kernels.packed_attention import SIZES, PackedLayout, by_example, costs_less, packed_layout

LENGTHS = [5, 19, 64, 8, 30, 41, 40, 2]


def batch_of(lengths: list[int], slots: int = 64):
    return pack([MODALITIES["text"].example(i, n) for i, n in enumerate(lengths)], slots=slots)


@pytest.fixture(params=[LENGTHS, [64, 64], [7]], ids=["packed", "one per row", "one"])
def segment(request) -> Tensor:
    return batch_of(request.param).segment


def test_every_slot_is_packed_once_and_examples_stay_whole(segment: Tensor):
    packed = packed_layout(segment)
    real = segment.flatten().nonzero().flatten()
    assert torch.equal(packed.source[packed.place[real]], real)
    start = 0
    for group in packed.groups:
        for _ in range(group.count):
            slots = packed.source[start : start + group.size]
            number = segment.flatten()[slots]
            assert (number == number[0]).all()
            assert len(slots.unique()) == (number[0] == segment[slots[0] // 64]).sum()
            start += group.size
    assert start <= len(packed.source) < start + packed_attention.ROUND
    assert len(packed.source) % packed_attention.ROUND == 0


def test_lengths_beyond_the_table_are_packed_too():
    packed = packed_layout(torch.ones(2, 700, dtype=torch.int64))
    assert [(g.count, g.size) for g in packed.groups] == [(1, 768), (1, 768)]
    padding = torch.zeros(1, 8, dtype=torch.int64)
    assert packed_layout(padding).groups == []
    assert not costs_less(packed_layout(padding), padding, 32, half=True)


@pytest.mark.parametrize("asking", ["all", "few", "of one", "none"])
@pytest.mark.parametrize("most", [2**16, 64])
def test_it_equals_the_reference(segment: Tensor, asking: str, most: int, monkeypatch, seed: int):
    monkeypatch.setattr(packed_attention, "SCORES", most)
    packed, heads, depth = packed_layout(segment), 2, 8
    total = segment.numel()
    leaves = [torch.randn(total, heads, depth, requires_grad=True) for _ in range(3)]
    q, k, v = leaves
    real = segment.flatten().nonzero().flatten()
    wanted = {
        "all": real,
        "few": real[torch.randperm(len(real))[: len(real) // 5 + 1]].sort().values,
        "of one": real[:3],
        "none": real[:0],
    }[asking]
    rows = torch.arange(segment.shape[0]).repeat_interleave(segment.shape[1])
    same = (segment.flatten()[:, None] == segment.flatten()) & (rows[:, None] == rows)
    expected = reference(*(t.transpose(0, 1) for t in leaves), same, depth**-0.5).transpose(0, 1)[wanted]
    if asking == "all":
        found = by_example(q[packed.source], k[packed.source], v[packed.source], packed)[packed.place[wanted]]
    else:
        subset = packed.queries(wanted)
        found = by_example(q[packed.source][subset.places], k[packed.source], v[packed.source], packed, subset)[
            subset.rank
        ]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    grad = torch.randn_like(expected)
    for a, e in zip(*(torch.autograd.grad(x, leaves, grad) for x in (found, expected)), strict=True):
        torch.testing.assert_close(a, e, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_gradient_is_the_numerical_one(dropout: float, seed: int):
    packed = packed_layout(torch.tensor([[1, 1, 1, 2, 2, 0]]))
    leaves = [torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    where = packed.place[:5]

    def attention(*qkv: Tensor) -> Tensor:
        torch.manual_seed(seed)  # the same values are dropped at every call
        spread = (t.new_zeros(len(packed.source), 2, 3).index_copy(0, where, t) for t in qkv)
        return by_example(*spread, packed, dropout=dropout)[where]

    assert torch.autograd.gradcheck(attention, leaves)


def test_dropout_keeps_the_mean(seed: int):
    packed = packed_layout(torch.tensor([[1] * 9 + [2] * 7]))
    q, k, v = torch.randn(3, len(packed.source), 2, 4)
    expected = by_example(q, k, v, packed)[packed.place]
    drawn = torch.stack([by_example(q, k, v, packed, dropout=0.25)[packed.place] for _ in range(600)])
    assert not torch.equal(drawn[0], drawn[1])
    error = (drawn.mean(0) - expected) / (drawn.std(0) / 600**0.5).clamp_min(1e-4)
    assert error.abs().mean() < 1.2  # standard errors: 0.8 for a right mean


def encoder(**settings) -> Encoder:
    return Encoder(EncoderConfig(width=32, layers=3, heads=2, positions=Rotary(), **settings))


def both_ways(model: Encoder, batch, x: Tensor, wanted: Tensor | None, monkeypatch) -> list[tuple[Tensor, Tensor]]:
    """Output and gradient of the input: by example, and in rows."""
    out = []
    for chosen in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr("unmask.encoder.transformer.costs_less", lambda *a, chosen=chosen, **k: chosen)
            assert (model.side_by_side(batch.segment) is not None) == chosen
            leaf = x.clone().requires_grad_()
            states = model(leaf, segment=batch.segment, position=batch.position, wanted=wanted)
        kept = states if wanted is not None else states[batch.segment != 0]
        weights = torch.randn(kept.shape, generator=torch.Generator().manual_seed(0))
        out.append((kept, torch.autograd.grad((kept * weights).sum(), leaf)[0][batch.segment != 0]))
    return out


@pytest.mark.parametrize("share", [None, 0.0, 0.2, 1.0])
def test_an_encoder_gives_the_same_by_example_and_in_rows(share: float | None, monkeypatch, seed: int):
    batch, model = batch_of(LENGTHS), encoder()
    real = batch.segment.flatten().nonzero().flatten()
    wanted = None if share is None else real[torch.rand(len(real)) < share]
    x = torch.randn(*batch.shape, 32)
    (a, da), (b, db) = both_ways(model, batch, x, wanted, monkeypatch)
    torch.testing.assert_close(a, b, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(da, db, atol=2e-5, rtol=2e-5)


def test_an_example_is_not_moved_by_its_neighbours(monkeypatch, seed: int):
    monkeypatch.setattr("unmask.encoder.transformer.costs_less", lambda *a, **k: True)
    batch, model = batch_of(LENGTHS), encoder()
    x = torch.randn(*batch.shape, 32)
    other = torch.where((batch.index == 4)[..., None], x, torch.randn_like(x))
    with torch.no_grad():
        a, b = (model(v, segment=batch.segment, position=batch.position) for v in (x, other))
    mine = batch.index == 4
    assert torch.equal(a[mine], b[mine])
    assert not torch.equal(a[~mine & (batch.segment != 0)], b[~mine & (batch.segment != 0)])


@pytest.mark.parametrize("name", ["text", "vector", "events"])
def test_a_visible_only_model_gives_the_same_in_one_row_and_in_rows(name: str, monkeypatch, seed: int):
    model = Setup(MODALITIES[name], "visible_only", "bert", seed).model
    batch = pack([MODALITIES[name].example(i, n) for i, n in enumerate([9, 20, 31, 6, 28])], slots=32)
    hidden = hide((batch.maskable & (torch.rand(batch.shape) < 0.5)).flatten().nonzero().flatten())
    found = []
    for chosen in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr("unmask.encoder.transformer.costs_less", lambda *a, chosen=chosen, **k: chosen)
            shapes = []
            patch.setattr(model.encoder.stem, "forward", _noting(model.encoder.stem.forward, shapes))
            prediction = numbers(model(batch, hidden))
        assert shapes[0][0] == (1 if chosen else len(batch.segment))
        weights = torch.randn(prediction.shape, generator=torch.Generator().manual_seed(0))
        gradient = torch.autograd.grad(
            (prediction * weights).sum(), list(model.encoder.parameters()), allow_unused=True
        )
        found.append((prediction, [g for g in gradient if g is not None]))
    (a, da), (b, db) = found
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    for x, y in zip(da, db, strict=True):
        torch.testing.assert_close(x, y, atol=1e-4, rtol=1e-3)


def _noting(call, shapes: list):
    def noted(x, position):
        shapes.append(x.shape)
        return call(x, position)

    return noted


@pytest.mark.parametrize("kind", ["window", "biased"])
def test_other_attention_stays_in_rows(kind: str):
    from unmask.encoder.build import make_encoder

    attention = Local(window=4) if kind == "window" else RelativeBias(buckets=8)
    model = make_encoder(EncoderConfig(width=32, layers=3, heads=2, positions=None, attention=attention))
    assert model.side_by_side(batch_of([20] * 40, 512).segment) is None


def test_it_is_chosen_where_rows_waste_work():
    def chosen(lengths: list[int], slots: int, *, half: bool) -> bool:
        segment = batch_of(lengths, slots).segment
        return costs_less(packed_layout(segment), segment, 128, half=half)

    assert chosen([160] * 24, 512, half=True)
    assert chosen([160] * 24, 512, half=False)
    assert chosen([512] * 8, 512, half=True)
    assert not chosen([512] * 8, 512, half=False)
    assert not chosen([128] * 32, 128, half=True)
    assert not chosen([128] * 32, 128, half=False)


def test_shapes_are_few(seed: int):
    """oneDNN keeps a kernel for every shape: whatever the lengths, there are few."""
    shapes = set()
    for _ in range(300):
        lengths = np.random.randint(2, 513, 40).tolist()
        packed: PackedLayout = packed_layout(batch_of(lengths, 512).segment)
        shapes |= {(g.count, g.size) for g in packed.groups}
    assert len({size for _, size in shapes}) <= len(SIZES)
    assert len(shapes) < 64
