"""The encoder's configuration: a round trip through plain data, and errors that help."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tiny import encoder_config
from unmask.encoder.config import EncoderConfig, Gated, Learned, Norm, Rotary, SinCos
from unmask.encoder.kinds import Full, Local
from unmask.errors import UserError

CONFIGS = [
    EncoderConfig(),
    encoder_config("bert"),
    encoder_config("modern"),
    EncoderConfig(positions=None, norm=Norm(kind="rms", placement="pre"), embedding_width=64),
    EncoderConfig(positions=SinCos(columns=14), feedforward=Gated(inner=8, activation="silu"), dropout=0.1),
    EncoderConfig(positions=Learned(slots=514, offset=2), attention=Local(window=64)),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_round_trip_through_json(config: EncoderConfig):
    assert EncoderConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_an_unknown_setting_is_named_with_a_suggestion():
    with pytest.raises(UserError, match="unknown encoder setting 'layer'") as error:
        EncoderConfig.from_dict({"layer": 3})
    assert "Did you mean 'layers'?" in error.value.hint


def test_rotary_heads_must_be_even():
    with pytest.raises(UserError, match="width=12 with heads=4: rotary positions turn pairs"):
        EncoderConfig(width=12, heads=4, positions=Rotary())
    EncoderConfig(width=12, heads=4, positions=Learned())


def test_heads_must_divide_the_width():
    with pytest.raises(UserError, match="heads=5 does not divide width=64") as error:
        EncoderConfig(width=64, heads=5)
    assert "[1, 2, 4]" in error.value.hint
    with pytest.raises(UserError, match="at least 1"):
        EncoderConfig(layers=0)


@pytest.mark.parametrize("settings", [{"heads": 0}, {"width": 0, "heads": 1}])
def test_sizes_below_one_are_a_users_error(settings: dict):
    with pytest.raises(UserError, match="at least 1"):
        EncoderConfig(**settings)


def test_derived_settings():
    assert EncoderConfig(width=64, embedding_width=32).input_width == 32
    assert EncoderConfig(width=64).input_width == 64
    assert [EncoderConfig(positions=p).longest for p in (Learned(slots=9), Rotary(slots=7), SinCos(), None)] == [
        9,
        7,
        None,
        None,
    ]
    assert [Local(window=4, global_every=3).layer_window(i) for i in range(4)] == [None, 4, 4, None]
    assert Full().layer_window(1) is None


def test_flops_of_bert_base():
    """2 x 85 million weights a slot, and 4 x width x context a layer for attention."""
    base = EncoderConfig(width=768, layers=12, heads=12, feedforward=EncoderConfig().feedforward.__class__(inner=3072))
    assert base.flops_per_slot(0) == pytest.approx(2 * 84.9e6, rel=1e-3)
    assert base.flops_per_slot(128) - base.flops_per_slot(0) == 12 * 4 * 768 * 128
    local = EncoderConfig(layers=3, attention=Local(window=8))
    assert local.flops_per_slot(1000) - local.flops_per_slot(0) == 4 * 256 * (1000 + 17 + 17)


def test_reading_a_config_does_not_import_torch():
    code = "import sys, unmask.encoder.config; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_width_that_nobody_has_is_refused_at_once():
    with pytest.raises(UserError, match="heads=3 does not divide width=1000000000") as error:
        EncoderConfig(width=10**9, heads=3)
    assert len(error.value.hint) < 200
