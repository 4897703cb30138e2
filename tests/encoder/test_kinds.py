"""Kinds of attention: one type and one encoder each."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch

from unmask.encoder import local_global
from unmask.encoder.build import ENCODERS, make_encoder
from unmask.encoder.config import MLP, Disentangled, EncoderConfig, Learned, Norm
from unmask.encoder.inference_encoder import InferenceEncoder
from unmask.encoder.kinds import (
    KINDS,
    AttentionKind,
    BlockSparse,
    Full,
    GroupedQuery,
    Local,
    LocalGlobal,
    RelativeBias,
)
from unmask.encoder.transformer import Encoder
from unmask.errors import UserError
from unmask.kernels.fused_linear import multiplies_bf16
from unmask.kernels.inference_attention import length_groups

GIVEN: list[AttentionKind] = [
    Full(bias=False),
    GroupedQuery(kv_heads=2, bias=False),
    Local(window=64, bias=False),
    Local(window=(1, 2, 3, 4), global_every=2),
    LocalGlobal(window=(1, 2, 3, 4)),
    LocalGlobal(window=8, first_sees_all=True),
    LocalGlobal(window=8, first_sees_all=True, bias=False),
    RelativeBias(buckets=32),
    BlockSparse(block=64, random_blocks=2),
]
SMALL = {"width": 16, "layers": 4, "heads": 4, "feedforward": MLP(inner=16), "positions": Learned(slots=16)}


@pytest.mark.parametrize("kind", GIVEN)
def test_a_config_is_read_as_it_was_written(kind: AttentionKind):
    config = EncoderConfig(layers=4, heads=4, attention=kind)
    again = json.loads(json.dumps(config.to_dict()))
    assert again["attention"]["kind"] == type(kind).__name__
    assert EncoderConfig.from_dict(again) == config


def test_an_unknown_kind_is_named_with_a_suggestion():
    with pytest.raises(UserError, match="unknown kind of attention 'Locall'") as error:
        EncoderConfig.from_dict({"attention": {"kind": "Locall"}})
    assert "Local" in error.value.hint


@pytest.mark.parametrize("kind", GIVEN)
def test_each_kind_has_an_encoder_and_no_other_takes_its_config(kind: AttentionKind):
    """An encoder that passed over its config's attention would be another model, silently."""
    config = EncoderConfig(**SMALL, attention=kind)
    assert make_encoder(config).made_for is type(kind)
    for other in ENCODERS:
        if other.made_for is not type(kind):
            with pytest.raises(TypeError, match=r"use .*make_encoder"):
                other(config)


@pytest.mark.parametrize("dtype", [torch.float32, *([torch.bfloat16] if multiplies_bf16() else [])])
@pytest.mark.parametrize(
    "attention", [*GIVEN, Disentangled(slots=64, buckets=8, furthest=16, decoder_steps=2)], ids=lambda a: str(a)[:60]
)
def test_the_inference_form_says_what_the_encoder_says(attention: Any, dtype: torch.dtype, seed: int, monkeypatch):
    monkeypatch.setattr(local_global, "BAND", 8)
    torch.manual_seed(seed)
    bias = getattr(attention, "bias", True)
    shape = {**SMALL, "positions": Learned(slots=64), "initial_deviation": 0.3}
    shape |= {"positions": attention} if isinstance(attention, Disentangled) else {"attention": attention}
    encoder = make_encoder(EncoderConfig(**shape, norm=Norm(bias=bias))).eval()
    lengths = [50, 50, 17, 9, 1]
    position = torch.cat([torch.arange(n) for n in lengths])
    x, wanted = torch.randn(len(position), 16), torch.tensor([0, 7, 49, 50, 110, 126])
    form = InferenceEncoder(encoder, "bf16" if dtype is torch.bfloat16 else "fp32")
    with torch.inference_mode():
        parts = zip(x.split(lengths), position.split(lengths), strict=True)
        expected = torch.cat([encoder.decode(e[None], segment=p[None] * 0 + 1, position=p[None])[0] for e, p in parts])
        for chosen in (None, wanted):
            found = form(x, position, length_groups(lengths), wanted=chosen, decode=True).float()
            exact = expected if chosen is None else expected[chosen]
            assert (found - exact).norm() / exact.norm() < (1e-4 if dtype is torch.float32 else 0.1)


def test_every_kind_is_there_once():
    assert [encoder.made_for for encoder in ENCODERS] == [*KINDS.values(), Disentangled]
    assert ENCODERS[0] is Encoder
    assert all(dataclasses.is_dataclass(kind) for kind in KINDS.values())


def test_what_does_not_suit_the_encoder_is_refused():
    with pytest.raises(UserError, match="kv_heads=3 does not divide heads=4"):
        EncoderConfig(heads=4, attention=GroupedQuery(kv_heads=3))
    with pytest.raises(UserError, match="2 windows for 4 layers"):
        EncoderConfig(layers=4, attention=LocalGlobal(window=(1, 2)))
    with pytest.raises(UserError, match="buckets=0 must be at least 4"):
        EncoderConfig(attention=RelativeBias(buckets=0))
    with pytest.raises(UserError, match="block=0 must be at least 1"):
        EncoderConfig(attention=BlockSparse(block=0))
    with pytest.raises(UserError, match="disentangled positions with Local attention"):
        EncoderConfig(positions=Disentangled(), attention=Local())


@pytest.mark.parametrize(
    "attention", [*GIVEN, *(Disentangled(slots=64, convolution=c) for c in (0, 3))], ids=lambda a: str(a)[:60]
)
@pytest.mark.parametrize("slots", [24, 2100])
def test_a_causal_encoder_sees_nothing_behind_a_slot(attention: Any, slots: int, seed: int):
    torch.manual_seed(seed)
    disentangled = isinstance(attention, Disentangled)
    about = {"positions": attention} if disentangled else {"positions": Learned(slots=slots), "attention": attention}
    config = EncoderConfig(**SMALL | about)
    encoder = make_encoder(config).eval()
    segment = torch.ones(1, slots, dtype=torch.int64)
    segment[:, slots // 2 :] = 2
    position = torch.arange(slots)[None] % (slots // 2)
    x = torch.randn(1, slots, 16)
    other, at = x.clone(), slots // 2 + 5
    other[:, at:] += torch.randn(1, slots - at, 16)

    def states(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return encoder(x, segment=segment, position=position, causal=True)

    if (isinstance(attention, BlockSparse) and slots > attention.full_up_to) or (
        disentangled and attention.convolution
    ):
        with pytest.raises(TypeError, match="not causal"):
            states(x)
        return
    found, changed = states(x), states(other)
    torch.testing.assert_close(found[:, :at], changed[:, :at], rtol=0, atol=1e-5)
    assert bool((found[:, at:] != changed[:, at:]).any(-1).all())
