"""Filling: the chain rule on real models, and on one whose joint distribution is known."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tiny import Setup, Text, make_model
from unmask.core.batch import Example, PackedBatch, pack
from unmask.core.corruption import Hidden, hide
from unmask.core.fill import fill, fill_examples
from unmask.core.model import MaskedModel
from unmask.core.prediction import Categorical
from unmask.core.score import scorable
from unmask.errors import UserError

ORDERS = ("confidence", "random", "left_to_right")
JOINT = torch.tensor([[[0.30, 0.02], [0.05, 0.01]], [[0.02, 0.05], [0.15, 0.40]]])
"""Of three binary slots: p(a, b, c), the middle and ends far from independent."""


class Tokens(nn.Module):
    def targets(self, values: dict[str, Tensor], flat: Tensor) -> Tensor:
        return values["token"].flatten()[flat]

    def write(self, values: dict[str, Tensor], flat: Tensor, new: Tensor) -> dict[str, Tensor]:
        token = values["token"].clone()
        token.view(-1)[flat] = new
        return {"token": token}


class Known(MaskedModel):
    """Predicts the exact conditionals of JOINT given the slots that are not hidden; counts its passes."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.codec, self.passes = Tokens(), 0

    def forward(self, batch: PackedBatch, hidden: Hidden, wanted: Tensor | None = None) -> Categorical:
        self.passes += 1
        wanted = hidden.flat if wanted is None else wanted
        gone, token = hidden.grid(batch.shape), batch.values["token"]
        slot = torch.arange(2)
        joint = JOINT[None].expand(len(token), 2, 2, 2)
        for i in range(3):
            seen = (slot == token[:, i, None]) | gone[:, i, None]
            joint = joint * seen.view(-1, *(2 if j == i else 1 for j in range(3)))
        sums = torch.stack([joint.sum(dim=[d for d in (1, 2, 3) if d != i + 1]) for i in range(3)], 1).view(-1, 2)
        p = sums / sums.sum(-1, keepdim=True)
        return Categorical(p[wanted].log(), torch.eye(2))


def blanks(rows: int) -> tuple[PackedBatch, Tensor]:
    batch = pack(
        [Example(values={"token": torch.zeros(3).long().numpy()}, identity=i) for i in range(rows)],
        slots=3,
        placement=[[i] for i in range(rows)],
    )
    return batch, torch.arange(rows * 3)


def frequencies(token: Tensor) -> Tensor:
    return torch.bincount(token @ torch.tensor([4, 2, 1]), minlength=8).view(2, 2, 2) / len(token)


@pytest.mark.parametrize("order", ORDERS)
def test_one_at_a_time_samples_the_joint_distribution(order: str) -> None:
    batch, flat = blanks(20_000)
    made = fill(Known(), batch, flat, steps=3, order=order, temperature=1.0, generator=torch.Generator().manual_seed(1))
    token = made.values["token"]
    assert (frequencies(token) - JOINT).abs().max() < 0.015
    exact = JOINT[tuple(token.T)].log()
    torch.testing.assert_close(made.log_prob.view(-1, 3).sum(1), exact, atol=1e-4, rtol=0)


def test_one_shot_is_independent_and_gibbs_sweeps_mend_it() -> None:
    batch, flat = blanks(20_000)
    generator = torch.Generator().manual_seed(1)
    once = fill(Known(), batch, flat, temperature=1.0, generator=generator)
    assert (frequencies(once.values["token"]) - JOINT).abs().max() > 0.05
    swept = fill(Known(), batch, flat, temperature=1.0, sweeps=12, generator=generator)
    assert (frequencies(swept.values["token"]) - JOINT).abs().max() < 0.015


def test_the_surest_slot_goes_first() -> None:
    batch, flat = blanks(1)
    seen: list[int] = []
    fill(Known(), batch, flat, steps=3, watch=lambda where, _, __: seen.extend(where.tolist()))
    marginal = [JOINT.sum(dim=d).max().item() for d in ((1, 2), (0, 2), (0, 1))]
    assert seen[0] == max(range(3), key=lambda i: marginal[i])
    assert sorted(seen) == [0, 1, 2]


def test_every_example_commits_its_share_at_each_step() -> None:
    batch, _ = blanks(3)
    flat, counts, model = torch.tensor([0, 1, 2, 3, 4, 8]), [], Known()
    fill(
        model,
        batch,
        flat,
        steps=2,
        order="random",
        watch=lambda w, _, __: counts.append(torch.bincount(w // 3).tolist()),
    )
    assert counts == [[2, 1, 1], [1, 1]]
    assert model.passes == 2


def test_left_to_right_is_the_explicit_chain(setup: Setup) -> None:
    """One slot a pass, on packed rows: the log-probabilities are those of the chain written out."""
    batch = pack(setup.examples(9, 7), slots=16)
    maskable = batch.maskable.flatten().nonzero().flatten()
    mine = maskable[batch.index.flatten()[maskable] == 0][:4]
    made = fill(setup.model, batch, mine, steps=4, order="left_to_right")
    values = batch.values
    with torch.no_grad():
        for i in range(4):
            at = pack(setup.examples(9, 7), slots=16)
            at.values.update(values)
            prediction = setup.model(at, hide(mine[i:]), wanted=mine[i : i + 1])
            torch.testing.assert_close(
                made.log_prob[i : i + 1], prediction.log_prob(prediction.mode()), atol=1e-5, rtol=1e-5
            )
            values = setup.model.codec.write(values, mine[i : i + 1], prediction.mode())
    torch.testing.assert_close(made.new, setup.model.codec.targets(values, mine), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("order", ORDERS)
def test_only_the_asked_slots_change(setup: Setup, order: str) -> None:
    batch = pack(setup.examples(9, 7, 5), slots=16)
    flat = batch.maskable.flatten().nonzero().flatten()[1::3]
    before = {k: v.clone() for k, v in batch.values.items()}
    made = fill(setup.model, batch, flat.flip(0), steps=2, order=order, temperature=1.0, sweeps=2)  # type: ignore[arg-type]
    assert torch.equal(made.flat, flat)
    untouched = torch.ones(batch.segment.numel(), dtype=torch.bool)
    untouched[flat] = False
    for name, value in before.items():
        shape = (-1, *value.shape[2:])
        assert torch.equal(batch.values[name].nan_to_num(), value.nan_to_num())
        assert torch.equal(
            made.values[name].reshape(shape)[untouched].nan_to_num(), value.reshape(shape)[untouched].nan_to_num()
        )
    assert torch.equal(made.new, setup.model.codec.targets(made.values, flat))


def test_the_value_that_stood_there_does_not_matter(setup: Setup) -> None:
    batch = pack(setup.examples(9, 7), slots=16)
    flat = batch.maskable.flatten().nonzero().flatten()[:5]
    other = pack(setup.examples(9, 7), slots=16)
    other.values.update(setup.modality.changed(batch.values, flat))
    if "seen" in other.values:
        other.values["seen"] = batch.values["seen"]  # an indicator is not the value
    one, two = (fill(setup.model, b, flat, steps=3) for b in (batch, other))
    assert torch.equal(one.new, two.new)


def test_a_seed_decides_the_draw_and_the_model_is_left_as_it_was(modality) -> None:
    model = make_model(modality, "in_place", "bert").train()
    batch = pack([modality.example(1, 12)], slots=16)
    flat = batch.maskable.flatten().nonzero().flatten()
    first, again, other = (
        fill(
            model, batch, flat, steps=3, order="random", temperature=1.0, generator=torch.Generator().manual_seed(s)
        ).new
        for s in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert model.training


def test_nothing_to_fill() -> None:
    batch, _ = blanks(1)
    assert len(fill(Known(), batch, torch.zeros(0, dtype=torch.int64), steps=2, sweeps=1).new) == 0


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"sweeps": -1}, {"temperature": -1.0}])
def test_wrong_settings_are_named(wrong: dict) -> None:
    batch, flat = blanks(1)
    with pytest.raises(UserError, match=next(iter(wrong))):
        fill(Known(), batch, flat, **wrong)


def test_examples_are_filled_as_each_alone(setup: Setup) -> None:
    """Batched with others in rows that they share: the same values, log-probabilities and what was kept."""
    examples = setup.examples(9, 14, 6, 11)
    missing = [scorable(e)[[3, 0, 2]] for e in examples]
    options = {"slots": 64, "steps": 3, "keep": lambda prediction, places: prediction.confidence()[places].tolist()}
    together = fill_examples(setup.model, examples, missing, batch_slots=64, **options)
    for example, gone, found in zip(examples, missing, together, strict=True):
        (alone,) = fill_examples(setup.model, [example], [gone], **options)
        assert found.slots.tolist() == alone.slots.tolist() == sorted(gone.tolist())
        np.testing.assert_allclose(found.new, alone.new, atol=1e-4)
        np.testing.assert_allclose(found.log_prob, alone.log_prob, atol=1e-4)
        np.testing.assert_allclose(found.kept, alone.kept, atol=1e-4)
        batch = pack([example], slots=len(example))
        whole = fill(setup.model, batch, torch.from_numpy(gone), steps=3)
        for channel, value in whole.values.items():
            np.testing.assert_allclose(found.values[channel], value[0].numpy(), atol=1e-4)


def test_turns_are_taken_in_their_order(setup: Setup) -> None:
    """Given turns fill all slots of a turn in one pass, the lowest first; places are turns of one slot each."""
    batch = pack(setup.examples(9, 7), slots=16)
    flat = batch.maskable.flatten().nonzero().flatten()[:6]
    chain = fill(setup.model, batch, flat, steps=16, order="left_to_right")
    seen: list[list[int]] = []
    given = fill(setup.model, batch, flat.flip(0), order=flat.flip(0), watch=lambda w, _, __: seen.append(w.tolist()))
    assert seen == [[slot] for slot in flat.tolist()]
    torch.testing.assert_close(given.new, chain.new, atol=1e-4, rtol=1e-4)
    seen.clear()
    turns = torch.tensor([5, 1, 5, 1, 0, 5])
    fill(setup.model, batch, flat, order=turns, watch=lambda w, _, __: seen.append(w.tolist()))
    assert seen == [flat[turns == turn].tolist() for turn in (0, 1, 5)]


def test_own_draws_are_written_and_other_slots_stay_hidden() -> None:
    batch, flat = blanks(4)
    hidden: list[list[int]] = []

    class Watched(Known):
        def forward(self, batch, hidden_, wanted=None):
            hidden.append(hidden_.flat.tolist())
            return super().forward(batch, hidden_, wanted)

    middle = flat[flat % 3 == 1]
    made = fill(
        Watched(), batch, middle, draw=lambda p, slots: (slots // 3) % 2, hidden=flat[flat % 3 == 2], log_prob=False
    )
    assert made.new.tolist() == [0, 1, 0, 1]
    assert made.log_prob.tolist() == [0.0] * 4
    assert hidden == [[slot for slot in flat.tolist() if slot % 3]]


@pytest.mark.parametrize("by", ["random", "confidence"])
def test_remasking_takes_drawn_slots_back_and_never_touches_given_ones(by: str, seed: int):
    """A pass commits what is due and what was taken back, so that as many are left open as without remasking."""
    setup = Setup(Text(), "in_place", "bert", seed)
    batch = pack([setup.modality.example(i, 20, seed) for i in range(3)], slots=40)
    flat = batch.maskable.flatten().nonzero().flatten()[::2]
    inner = setup.model.forward

    def run(remask: float) -> tuple[list[Tensor], list[int], Tensor]:
        """(slots hidden in each pass, slots committed in each, the filled values)"""
        hidden, commits = [], []
        setup.model.forward = lambda b, gone, wanted=None: hidden.append(gone.flat) or inner(b, gone, wanted)
        draw = torch.Generator().manual_seed(seed)
        told = {"generator": draw, "watch": lambda where, *_: commits.append(len(where))}
        options = {"steps": 4, "order": "random", "temperature": 1.0, "remask": remask, "remask_by": by}
        return hidden, commits, fill(setup.model, batch, flat, **options, **told).values["token"].flatten()

    hidden, commits, values = run(0.5)
    plain, due, _ = run(0.0)
    assert all(torch.isin(gone, flat).all() for gone in hidden)
    assert [len(a) - b for a, b in zip(hidden, commits, strict=True)] == [
        len(a) - b for a, b in zip(plain, due, strict=True)
    ]
    assert sum(due) == len(flat) < sum(commits)
    assert len(hidden[1]) > len(plain[1])
    given = torch.ones(len(values), dtype=torch.bool).index_fill(0, flat, False)
    assert torch.equal(values[given], batch.values["token"].flatten()[given])
    assert not (values == 3).any()  # no mask token is left
    with pytest.raises(UserError, match="remask"):
        fill(setup.model, batch, flat, steps=4, remask=1.0)


@pytest.mark.parametrize("order", ["random", "confidence", "left_to_right"])
def test_remasking_goes_on_for_all_steps_where_there_are_more_than_slots(order: str, seed: int):
    setup = Setup(Text(), "in_place", "bert", seed)
    batch = pack([setup.modality.example(i, 20, seed) for i in range(2)], slots=40)
    flat = batch.maskable.flatten().nonzero().flatten()[::9]
    commits: list[int] = []
    made = fill(
        setup.model, batch, flat, steps=40, order=order, temperature=1.0, remask=0.3,
        generator=torch.Generator().manual_seed(seed), watch=lambda where, *_: commits.append(len(where)),
    )  # fmt: skip
    assert len(commits) > 20 > len(flat)
    assert sum(commits) > 1.5 * len(flat)
    assert not (made.values["token"].flatten()[flat] == 3).any()
    some: list[int] = []
    for number in range(30):  # a share of less than half a slot is taken back now and then
        fill(
            setup.model, batch, flat[:2], steps=4, order=order, temperature=1.0, remask=0.2,
            generator=torch.Generator().manual_seed(number), watch=lambda where, *_: some.append(len(where)),
        )  # fmt: skip
    assert 60 < sum(some) < 120
