"""The encoder: shapes, positions, norms, and the slots that are needed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny import encoder_config
from unmask.encoder import full
from unmask.encoder.build import make_encoder
from unmask.encoder.config import MLP, EncoderConfig, Entrance, Gated, Learned, Norm, Rotary, SinCos
from unmask.encoder.kinds import Local
from unmask.encoder.transformer import sin_cos, wanted_by_row
from unmask.kernels.explicit import rotate, rotation


def inputs(rows: int = 2, slots: int = 10, width: int = 32) -> dict:
    return {
        "x": torch.randn(rows, slots, width),
        "segment": torch.ones(rows, slots, dtype=torch.int64),
        "position": torch.arange(slots).expand(rows, slots),
    }


@pytest.mark.parametrize("positions", [Learned(slots=16, offset=2), SinCos(), SinCos(columns=5), Rotary(), None])
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("feedforward", [MLP(inner=40), Gated(inner=20, activation="silu")])
def test_every_choice_runs_forward_and_backward(seed: int, positions, placement, kind, feedforward):
    config = EncoderConfig(
        width=32,
        layers=2,
        heads=2,
        embedding_width=24,
        positions=positions,
        norm=Norm(placement=placement, kind=kind, epsilon=1e-5),
        feedforward=feedforward,
        attention=Local(window=2, global_every=2),
        dropout=0.1,
        attention_dropout=0.1,
    )
    encoder = make_encoder(config)
    batch = inputs(width=24)
    out = encoder(batch.pop("x"), **batch)
    assert out.shape == (2, 10, 32)
    out.pow(2).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


def test_without_positions_the_order_does_not_matter(seed: int):
    encoder = make_encoder(EncoderConfig(width=32, layers=2, heads=2, positions=None)).eval()
    batch = inputs()
    x, order = batch.pop("x"), torch.randperm(10)
    with torch.no_grad():
        torch.testing.assert_close(encoder(x[:, order], **batch), encoder(x, **batch)[:, order], atol=1e-5, rtol=1e-5)


def test_rotary_scores_depend_on_distance_only(seed: int):
    q, k = torch.randn(1, 1, 1, 16).expand(1, 1, 6, 16), torch.randn(1, 1, 1, 16).expand(1, 1, 6, 16)

    def scores(shift: int) -> torch.Tensor:
        table = rotation(torch.arange(6)[None] + shift, 16, 10_000.0, torch.float32)
        return rotate(q, table) @ rotate(k, table).mT

    torch.testing.assert_close(scores(0), scores(100), atol=1e-3, rtol=1e-3)
    diagonals = [scores(0)[0, 0].diagonal(d) for d in range(-5, 6)]
    assert all((d - d[0]).abs().max() < 1e-4 for d in diagonals)
    assert torch.stack([d[0] for d in diagonals]).unique().numel() == 11


def test_layers_of_one_base_share_a_table_of_rotations(seed: int, monkeypatch: pytest.MonkeyPatch):
    made: list[float] = []
    monkeypatch.setattr(full, "rotation", lambda *given: made.append(given[2]) or rotation(*given))
    encoder = make_encoder(encoder_config("modern", layers=7))
    batch = inputs()
    encoder(batch.pop("x"), **batch)
    assert sorted(made) == [10_000.0, 160_000.0]


def test_sin_cos_rows_differ_and_have_equal_length():
    table = sin_cos(torch.arange(50), 32)
    assert table.shape == (50, 32)
    torch.testing.assert_close(table.norm(dim=-1), torch.full((50,), 4.0))
    assert torch.cdist(table, table).fill_diagonal_(9).min() > 0.1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 30), st.data())
def test_needed_slots_are_found_again(rows: int, slots: int, data):
    flat = torch.tensor(sorted(data.draw(st.sets(st.integers(0, rows * slots - 1)))), dtype=torch.int64)
    queries, where = wanted_by_row(flat, rows, slots)
    assert queries.shape[0] == rows
    assert queries.shape[1] <= max(slots, 1)
    grid = torch.arange(rows * slots).view(rows, slots).gather(1, queries)
    assert torch.equal(grid.flatten()[where], flat)


@pytest.mark.parametrize("recipe", ["bert", "modern"])
def test_gradients_agree_with_and_without_needed(seed: int, recipe: str):
    encoder = make_encoder(encoder_config(recipe))
    batch = inputs()
    x, wanted = batch.pop("x"), torch.tensor([0, 3, 9, 12])
    weight = torch.randn(4, 32)
    some = torch.autograd.grad((encoder(x, **batch, wanted=wanted) * weight).sum(), list(encoder.parameters()))
    full = encoder(x, **batch).flatten(0, 1)[wanted]
    for a, b in zip(some, torch.autograd.grad((full * weight).sum(), list(encoder.parameters())), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_modern_layer_zero_has_no_attention_norm():
    encoder = make_encoder(encoder_config("modern"))
    assert isinstance(encoder.layers[0].attention_norm, torch.nn.Identity)
    assert not isinstance(encoder.layers[1].attention_norm, torch.nn.Identity)


def test_evaluation_has_no_dropout(seed: int):
    encoder = make_encoder(EncoderConfig(width=32, layers=2, heads=2, dropout=0.5, attention_dropout=0.5))
    batch = inputs()
    x = batch.pop("x")
    assert not torch.equal(encoder(x, **batch), encoder(x, **batch))
    encoder.eval()
    assert torch.equal(encoder(x, **batch), encoder(x, **batch))


def test_rows_that_need_equally_many_slots_get_no_padding():
    where, kept = wanted_by_row(torch.tensor([0, 2, 5, 6, 7, 9, 13, 14]), 2, 8)
    assert where.tolist() == [[0, 2, 5, 6, 7, 0, 0, 0], [1, 5, 6, 0, 0, 0, 0, 0]]
    assert kept.tolist() == [0, 1, 2, 3, 4, 8, 9, 10]
    where, kept = wanted_by_row(torch.tensor([0, 2, 5, 9, 13, 14]), 2, 8)
    assert where.tolist() == [[0, 2, 5], [1, 5, 6]]
    assert kept.tolist() == list(range(6))


def test_an_encoder_without_a_norm_at_its_entrance():
    config = EncoderConfig(width=16, layers=1, heads=2, entrance=Entrance(norm=False))
    assert isinstance(make_encoder(config).stem.norm, torch.nn.Identity)
    assert EncoderConfig.from_dict(config.to_dict()) == config
