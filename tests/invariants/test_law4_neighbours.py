"""Law 4. Padding and neighbours are inert: alone, padded or packed beside others, the prediction is the same."""

from __future__ import annotations

import pytest
import torch

from tiny import Setup, encoder_config, numbers, places, ratio_corruption
from unmask.core.batch import pack
from unmask.encoder.build import make_encoder

CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def predicted(setup: Setup, batch) -> dict[tuple[int, int], torch.Tensor]:
    hidden = ratio_corruption(0.2).draw(batch, seed=setup.seed)
    found = numbers(setup.model(batch, hidden)).detach()
    return dict(zip(places(batch, hidden), found, strict=True))


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_alone_padded_and_packed_agree(setup: Setup, training: bool):
    examples = setup.examples(13, 9, 25, 18, 31)
    with torch.set_grad_enabled(training):
        alone = {k: v for e in examples for k, v in predicted(setup, pack([e], slots=len(e))).items()}
        padded = predicted(setup, pack(examples, slots=48, placement=[[i] for i in range(5)], rows=7))
        packed = predicted(setup, pack(examples, slots=56))
        crowded = predicted(setup, pack(examples, slots=64, placement=[[1, 0, 4], [3, 2]]))
    for other in (padded, packed, crowded):
        assert other.keys() == alone.keys()
        for place, numbers_alone in alone.items():
            torch.testing.assert_close(other[place], numbers_alone, **CLOSE)


def test_a_neighbours_value_changes_nothing(setup: Setup):
    a, b = setup.examples(14, 15)
    other = setup.modality.example(b.identity, 15, seed=setup.seed + 1)
    placement = [[0, 1]]
    first, second = (predicted(setup, pack([a, x], slots=32, placement=placement)) for x in (b, other))
    mine = [k for k in first if k[0] == a.identity]
    assert mine
    for place in mine:
        torch.testing.assert_close(first[place], second[place], **CLOSE)


def test_states_are_the_same_alone_and_packed(setup: Setup):
    examples = setup.examples(13, 9)
    with torch.no_grad():
        packed = setup.model.states(pack(examples, slots=30, placement=[[0, 1]]))[0]
        first = setup.model.states(pack(examples[:1], slots=13))[0]
        second = setup.model.states(pack(examples[1:], slots=9))[0]
    torch.testing.assert_close(packed[:22], torch.cat([first, second]), **CLOSE)


@pytest.mark.parametrize("count", [1, 5, 30])
@pytest.mark.parametrize("grad", [False, True])
def test_the_last_layer_where_needed_equals_the_full_one(recipe: str, count: int, grad: bool, seed: int):
    encoder = make_encoder(encoder_config(recipe))
    batch = pack([_text(n, seed) for n in (13, 9, 25, 18, 31)], slots=56)
    x = torch.randn(*batch.shape, 32)
    real = (batch.segment != 0).flatten().nonzero().flatten()
    wanted = real[torch.randperm(len(real))[:count]].sort().values
    with torch.set_grad_enabled(grad):
        some = encoder(x, segment=batch.segment, position=batch.position, wanted=wanted)
        full = encoder(x, segment=batch.segment, position=batch.position).flatten(0, 1)[wanted]
    torch.testing.assert_close(some, full, **CLOSE)


def _text(length: int, seed: int):
    from tiny import MODALITIES

    return MODALITIES["text"].example(length, length, seed)
