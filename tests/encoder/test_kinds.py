"""Kinds of attention: one type and one encoder each."""

from __future__ import annotations

import dataclasses
import json

import pytest

from unmask.encoder.build import ENCODERS, make_encoder
from unmask.encoder.config import MLP, Disentangled, EncoderConfig, Learned
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

GIVEN: list[AttentionKind] = [
    Full(bias=False),
    GroupedQuery(kv_heads=2, bias=False),
    Local(window=64, bias=False),
    Local(window=(1, 2, 3, 4), global_every=2),
    LocalGlobal(window=(1, 2, 3, 4)),
    LocalGlobal(window=8, first_sees_all=True),
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
