"""Law 1. What is hidden cannot be seen: not its value, not what is derived from it; only the `keep` share may."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from latent_cases import TARGETS, learner, view_batch
from tiny import NEVER, Setup, numbers, ratio_corruption, with_action
from unmask.core.batch import pack
from unmask.core.corruption import KEEP, MASK, RANDOM, Corruption


def drawn(setup: Setup, action: int):
    batch = pack(setup.examples(12, 9, 17), slots=32)
    return batch, with_action(ratio_corruption().draw(batch, seed=setup.seed), action)


@pytest.mark.parametrize("action", [MASK, RANDOM])
def test_a_changed_hidden_value_changes_no_output(setup: Setup, action: int):
    batch, hidden = drawn(setup, action)
    other = dataclasses.replace(batch, values=setup.modality.changed(batch.values, hidden.flat))
    with torch.no_grad():
        assert torch.equal(numbers(setup.model(batch, hidden)), numbers(setup.model(other, hidden)))


def test_one_changed_hidden_value_changes_no_other_prediction_while_training(setup: Setup):
    batch, hidden = drawn(setup, MASK)
    other = dataclasses.replace(batch, values=setup.modality.changed(batch.values, hidden.flat[3:4]))
    assert torch.equal(numbers(setup.model.train()(batch, hidden)), numbers(setup.model(other, hidden)))


def gradient(setup: Setup, action: int) -> torch.Tensor:
    """Of everything predicted, with respect to the raw hidden values."""
    batch, hidden = drawn(setup, action)
    if (channel := getattr(setup.modality, "raw", None)) is not None:
        raw = batch.values[channel].nan_to_num().requires_grad_()
        batch = dataclasses.replace(batch, values=batch.values | {channel: raw})
        numbers(setup.model(batch, hidden)).pow(2).sum().backward()
        return raw.grad.flatten(0, 1)[hidden.flat]
    # All hidden values are an id found nowhere else, which noise never draws: its embedding is the raw value.
    token = batch.values["token"].clone()
    token.view(-1)[hidden.flat] = NEVER
    numbers(setup.model(dataclasses.replace(batch, values={"token": token}), hidden)).pow(2).sum().backward()
    return setup.model.codec.word.weight.grad[NEVER]


@pytest.mark.parametrize("action", [MASK, RANDOM])
def test_the_gradient_with_respect_to_a_hidden_value_is_exactly_zero(setup: Setup, action: int):
    found = gradient(setup, action)
    assert torch.equal(found, torch.zeros_like(found))


def test_only_keep_may_see_the_value(setup: Setup):
    """The probe of the test above does see a value that is there."""
    assert bool((gradient(setup, KEEP) != 0).any()) == setup.in_place


def test_what_a_missing_slot_holds_is_never_read(setup: Setup):
    batch, hidden = drawn(setup, MASK)
    missing = ((batch.segment != 0) & ~batch.observed).flatten().nonzero().flatten()
    if setup.modality.name.startswith(("text", "events")) or setup.modality.name == "images":
        pytest.skip("tokens, events and patches of whole pictures are never missing")
    if setup.modality.name == "images-holes" and setup.in_place:
        pytest.skip("what a missing patch holds is NaN, which is how the codec is told")
    assert len(missing)
    raw = batch.values[setup.modality.raw].clone()
    raw.flatten(0, 1)[missing] = 7.0
    other = dataclasses.replace(batch, values=batch.values | {setup.modality.raw: raw})
    with torch.no_grad():
        assert torch.equal(numbers(setup.model(batch, hidden)), numbers(setup.model(other, hidden)))


@pytest.mark.parametrize("training", [False, True])
def test_a_causal_prediction_depends_on_its_example_before_it_and_on_nothing_else(setup: Setup, training: bool):
    batch = pack(setup.examples(12, 9, 17), slots=32)
    hidden = Corruption(causal=0.5).draw(batch, seed=setup.seed, progress=0.4)
    if not setup.in_place:
        with pytest.raises(TypeError, match="visible-only architecture is not causal"):
            setup.model(batch, hidden)
        return
    model, order = setup.model.train(training), batch.position + 1000 * batch.index
    assert torch.equal(hidden.grid(batch.shape), batch.maskable & (batch.position > 0))

    def of(flat: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
        values = setup.modality.changed(batch.values, changed) if len(changed) else batch.values
        with torch.no_grad():
            return numbers(model(dataclasses.replace(batch, values=values), hidden, flat))

    nothing = hidden.flat[:0]
    for place in hidden.flat[[0, 5, 11, len(hidden) // 2, -1]].tolist():
        one = torch.tensor([place])
        same = (batch.index == batch.index.flatten()[place]).flatten()
        behind = (order >= order.flatten()[place]).flatten() | ~same
        behind = (behind & batch.maskable.flatten()).nonzero().flatten()
        torch.testing.assert_close(of(one, behind), of(one, nothing), rtol=0, atol=1e-5)
        if bool(batch.maskable.flatten()[place - 1]):
            assert not torch.equal(of(one, one - 1), of(one, nothing))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_no_gradient_reaches_a_hidden_patch_of_a_view(target: str, gradients: bool, seed: int):
    """Nor one that is a target: what is predicted of it is given, not learnt."""
    model = learner(target, seed, gradients=gradients)
    batch, hidden = view_batch(model, seed)
    patch = batch.values["patch"].clone().requires_grad_()
    model.step_loss(dataclasses.replace(batch, values=batch.values | {"patch": patch}), hidden).backward()
    found = patch.grad.flatten(0, 1)
    assert torch.equal(found[hidden.flat], torch.zeros_like(found[hidden.flat]))
    assert bool((found != 0).any())


@pytest.mark.parametrize("target", ["views", "contrast"])
def test_a_changed_hidden_patch_changes_no_comparison_of_views(target: str, seed: int):
    model = learner(target, seed)
    batch, hidden = view_batch(model, seed)
    other = batch.values["patch"].clone()
    other.view(-1, other.shape[-1])[hidden.flat] += 3.0
    changed = dataclasses.replace(batch, values=batch.values | {"patch": other})
    assert torch.equal(model.step_loss(batch, hidden), model.step_loss(changed, hidden))
