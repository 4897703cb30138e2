"""Scores equal a naive loop, one slot and one pass at a time."""

import math

import numpy as np
import pytest
import torch

from tiny import MODALITIES, Setup, make_model
from unmask.core import score as module
from unmask.core.batch import Example, pack
from unmask.core.corruption import hide
from unmask.core.inference import length_sorted_batches
from unmask.core.score import scorable, score, score_rows
from unmask.errors import UserError


def naive(model, example: Example, mode: str) -> np.ndarray:
    out = np.full(len(example), np.nan)
    batch = pack([example], slots=len(example))
    with torch.no_grad():
        for slot in scorable(example):
            gone = [int(slot)]
            if mode == "unit" and example.unit is not None and example.unit[slot] >= 0:
                gone += [int(i) for i in scorable(example) if i > slot and example.unit[i] == example.unit[slot]]
            wanted = torch.tensor([int(slot)])
            prediction = model(batch, hide(torch.tensor(gone)), wanted=wanted)
            out[slot] = prediction.log_prob(model.codec.targets(batch.values, wanted))
    return out


@pytest.mark.parametrize("mode", ["slot", "unit"])
def test_score_equals_the_naive_loop(setup: Setup, mode: str) -> None:
    """With the large budget all copies are one batch, short ones in the rows of longer ones."""
    examples = setup.examples(11, 3, 18, 6, 11)
    expected = [naive(setup.model, example, mode) for example in examples]
    for budget in (72, 4096):
        found = score(setup.model, examples, slots=64, batch_slots=budget, mode=mode)  # type: ignore[arg-type]
        for example, got, one in zip(examples, found, expected, strict=True):
            np.testing.assert_allclose(got.per_slot, one, atol=2e-5, rtol=1e-5, err_msg=f"budget {budget}")
            assert math.isclose(got.total, float(np.nansum(got.per_slot)), abs_tol=1e-9)
            assert got.slots == len(scorable(example)) == int((~np.isnan(got.per_slot)).sum())


def test_the_two_modes_differ_within_words_only() -> None:
    text = MODALITIES["text"]
    model, example = make_model(text, "in_place", "bert"), text.example(5, 16)
    slot, unit = (score(model, [example], slots=64, mode=m)[0].per_slot for m in ("slot", "unit"))
    word = np.asarray(example.unit)
    last = np.array([i + 1 == len(word) or word[i + 1] != word[i] for i in range(len(word))])
    inner = ~last & (word >= 0)
    assert inner.any()
    np.testing.assert_allclose(slot[last & (word >= 0)], unit[last & (word >= 0)], atol=1e-6)
    assert (np.abs(slot[inner] - unit[inner]) > 1e-4).all()


def test_rows_of_one_example_are_scored_without_copies(setup: Setup) -> None:
    examples = setup.examples(9, 14, 6)
    found = score_rows(setup.model, pack(examples, slots=16, placement=[[0], [1], [2], []])).numpy()
    assert found.shape == (4, 16)
    assert np.isnan(found[3]).all()
    for row, expected in zip(found, score(setup.model, examples, slots=64, mode="slot"), strict=False):
        np.testing.assert_allclose(row[: len(expected.per_slot)], expected.per_slot, atol=2e-5, rtol=1e-5)


def test_chosen_targets_only() -> None:
    text = MODALITIES["text"]
    model, example = make_model(text, "in_place", "bert"), text.example(5, 12)
    all_of_them, some = (score(model, [example], slots=64, targets=t)[0] for t in (None, [np.array([3, 5])]))
    assert some.slots == 2
    assert some.total == pytest.approx(all_of_them.per_slot[[3, 5]].sum(), abs=1e-5)
    assert np.isnan(some.per_slot[4])


def test_few_copies_exist_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    text, cells = MODALITIES["text"], []

    def watched(examples, *, slots):
        batch = pack(examples, slots=slots)
        cells.append(batch.segment.numel())
        return batch

    monkeypatch.setattr(module, "pack", watched)
    examples = [text.example(i, 10 + i % 7) for i in range(60)]
    score(make_model(text, "in_place", "bert"), examples, slots=64, batch_slots=256)
    assert len(cells) > 20
    assert max(cells) <= 256


def test_chunks_cover_every_example_once_within_the_budget(rng: np.random.Generator) -> None:
    lengths = rng.integers(1, 60, 300)
    seen = []
    for numbers, width in length_sorted_batches(lengths, 64, 512):
        assert lengths[numbers].max() <= width <= 64
        assert len(numbers) * width <= 512
        seen += numbers.tolist()
    assert sorted(seen) == list(range(300))


def test_too_long_names_both_numbers_and_nothing_is_fine() -> None:
    text = MODALITIES["text"]
    model = make_model(text, "in_place", "bert")
    with pytest.raises(UserError, match=r"20 slots.* takes 16"):
        score(model, [text.example(1, 20)], slots=16)
    assert score(model, [], slots=16) == []
    only_special = Example(values={"token": np.array([1, 2])}, identity=0, special=np.ones(2, bool))
    assert score(model, [only_special, text.example(1, 5)], slots=16)[0].slots == 0


@pytest.mark.parametrize("count", [0, 5])
def test_parts_of_a_score_stand_side_by_side(setup: Setup, count: int) -> None:
    examples = setup.examples(7, 4)
    targets = [scorable(e)[:count] for e in examples]
    whole = score(setup.model, examples, slots=64, targets=targets)
    halves = score(
        setup.model,
        examples,
        slots=64,
        targets=targets,
        read=lambda p, true: torch.stack([0.25 * p.log_prob(true), 0.75 * p.log_prob(true)], -1),
    )
    for one, two in zip(whole, halves, strict=True):
        assert two.total == pytest.approx(one.total)
        assert two.slots == one.slots
        if count:
            assert two.per_slot.shape == (len(one.per_slot), 2)
            np.testing.assert_allclose(two.per_slot.sum(1), one.per_slot)
