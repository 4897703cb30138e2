"""The additive part: derivatives, steps found, held-out rows left out, and the same sums however they are come by."""

import dataclasses

import numpy as np
import pytest
import torch
from tables import patients
from torch.nn import functional as F

from unmask.modalities.table.distribution import boosted_stumps
from unmask.modalities.table.distribution.boosted_stumps import BoostedStumps, BoostingTask, boost, rounds_within
from unmask.modalities.table.distribution.codec import LEVELS, Coding
from unmask.modalities.table.distribution.scale import fit_scale
from unmask.modalities.table.fitting.cell_table import CellTable
from unmask.modalities.table.model import TableModel, load
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.values import encode


def task(seed: int, *, rows: int = 300, members: int = 2) -> tuple[BoostedStumps, BoostingTask]:
    """A quantity's residual (column 0) and three of four categories (column 1), both steps of columns 2 and 3 and
    noise."""
    rng = np.random.default_rng(seed)
    other = rng.normal(size=rows)
    level = rng.integers(0, 12, rows)
    codings = [
        Coding(scale=fit_scale(rng.normal(size=rows), most=6)),
        Coding(share=(0.4, 0.3, 0.2, 0.1)),
        Coding(scale=fit_scale(other, most=10)),
        Coding(share=(1 / 12,) * 12),
    ]
    part = BoostedStumps(codings)
    number = np.zeros((rows, 4), np.int64)
    number[:, 2], number[:, 3] = codings[2].encode(other)[0], level
    seen = np.ones((rows, 4), bool)
    seen[:, :2] = False
    seen[rng.random(rows) < 0.2, 2] = False
    category = np.where(other > 0.3, 1, np.where(level < 3, 2, 3 * (rng.random(rows) < 0.2)))
    target = np.concatenate(
        [
            ((level == 5) * 2.0 + rng.normal(size=rows) * 0.1)[:, None],
            category[:, None] == np.arange(3),
        ],
        1,
    )
    base = torch.tensor([0.0, 0.4, 0.3, 0.2]).expand(rows, members, 4)
    held = F.one_hot(torch.arange(rows) % members, members).float()
    return part, BoostingTask(
        entry=part.entry(torch.from_numpy(number), torch.from_numpy(seen)),
        target=torch.tensor(target, dtype=torch.float32)[:, None].repeat(1, members, 1),
        base=base,
        requested=torch.ones(rows, 4),
        train=1 - held,
        held=held,
        column=torch.tensor([0, 1, 1, 1]),
        quantity=torch.tensor([True, False, False, False]),
    )


def test_derivatives_and_losses_are_those_of_squares_and_shares(seed: int):
    _, single = task(seed, rows=20)
    doubles = {f.name: getattr(single, f.name) for f in dataclasses.fields(BoostingTask)}
    given = BoostingTask(**{k: v.double() if v.is_floating_point() else v for k, v in doubles.items()})
    score = torch.randn(20, 2, 4, dtype=torch.float64, requires_grad=True)

    def losses(score):
        square = (given.target[..., 0] - score[..., 0]) ** 2 / 2
        base = torch.cat([given.base[..., 1:], 1 - given.base[..., 1:].sum(-1, keepdim=True)], -1)
        shares = (F.pad(score[..., 1:], (0, 1)) + base.log()).log_softmax(-1)
        own = torch.cat([given.target[..., 1:], 1 - given.target[..., 1:].sum(-1, keepdim=True)], -1)
        return torch.stack([square, -(own * shares).sum(-1)], -1)

    first, second, loss, cells = given.derivatives(score.detach())
    (slope,) = torch.autograd.grad(losses(score).sum(), score, create_graph=True)
    torch.testing.assert_close(first, slope.detach(), rtol=1e-6, atol=1e-6)
    for dim in range(4):
        (curve,) = torch.autograd.grad(slope[..., dim].sum(), score, retain_graph=True)
        torch.testing.assert_close(second[..., dim], curve[..., dim], rtol=1e-6, atol=1e-6)
    gained = ((losses(score) - losses(torch.zeros_like(score))) * given.held[..., None]).sum((0, 1)).detach()
    torch.testing.assert_close(loss, gained[given.column])
    assert cells.tolist() == [20] * 4


def test_boosting_finds_thresholds_levels_and_leaves_noise_alone(seed: int):
    part, given = task(seed, rows=600)
    given.target[..., 0] = torch.where(given.entry[:, 3, None] == part.first[3] + 5, 2.0, 0.0)
    tables = boost(part, given, 80)
    for member, table in enumerate(tables):
        lift = F.embedding_bag(given.entry, table, mode="sum")
        own = given.held[:, member] > 0
        assert (lift[own, 0] - given.target[own, member, 0]).abs().max() < 0.2
        share = given.base[own, member, 1:] * lift[own, 1:].exp()
        likeliest = F.pad(share, (0, 1), value=0.1).argmax(-1)
        known = given.entry[own, 2] < part.first[3] - 1
        truth = F.pad(given.target[own, member, 1:], (0, 1), value=0.5).argmax(-1)
        sure = known & (truth == 1)
        assert (likeliest == 1)[sure].float().mean() > 0.9
    rng = np.random.default_rng([seed, 1])
    given.target[:] = torch.tensor(rng.normal(size=(600, 1, 1)), dtype=torch.float32)
    only = given.of(torch.tensor([0]))
    assert boost(part, only, 80).abs().max() < 0.3


def test_a_member_is_fitted_without_its_held_out_rows(monkeypatch: pytest.MonkeyPatch, seed: int):
    monkeypatch.setattr(boosted_stumps, "LEAST", -torch.inf)  # every round is kept: what is held out chooses nothing
    part, given = task(seed)
    before = boost(part, given, 5)
    own = given.held[:, 0] > 0
    given.target[own] = 1 - given.target[own]
    after = boost(part, given, 5)
    assert torch.equal(before[0], after[0])
    assert not torch.equal(before[1], after[1])


def test_what_is_not_asked_or_weighs_nothing_changes_nothing(seed: int):
    part, given = task(seed)
    gone = torch.arange(len(given.requested)) % 3 == 0
    given.requested[gone] = 0
    before = boost(part, given, 10)
    assert before.abs().max() > 0.1
    given.target[gone] += 1.0
    assert torch.equal(before, boost(part, given, 10))


def test_hidden_cells_are_not_read_and_rare_categories_are_one(seed: int):
    part, _ = task(seed)
    number = torch.randint(0, 3, (7, 4))
    seen = torch.rand(7, 4) < 0.5
    other = torch.where(seen, number, number + 1)
    assert torch.equal(part.entry(number, seen), part.entry(other, seen))
    levels = part.entry(
        torch.arange(12)[:, None].expand(12, 4).clamp(max=3).clone(), torch.ones(12, 4, dtype=torch.bool)
    )
    assert len(levels[:, 1].unique()) == 4
    wide = torch.zeros(12, 4, dtype=torch.long)
    wide[:, 3] = torch.arange(12)
    found = part.entry(wide, torch.ones(12, 4, dtype=torch.bool))[:, 3]
    assert len(found.unique()) == LEVELS + 1


def test_columns_shown_one_by_one_come_to_the_same_sums(seed: int):
    part, _ = task(seed)
    part.table = torch.randn(part.entries, 5)
    number = torch.stack([torch.randint(0, n, (9,)) for n in (6, 4, 8, 12)], 1)
    seen = torch.zeros(9, 4, dtype=torch.bool)
    lift = part.hidden().expand(9, -1)
    torch.testing.assert_close(lift, part(number, seen))
    for column in (2, 0, 3):
        lift = lift + part.shown(column, number[:, column])
        seen[:, column] = True
        torch.testing.assert_close(lift, part(number, seen))


def test_very_wide_tables_go_without():
    part = BoostedStumps([Coding(share=(0.5, 0.5))] * 4)
    assert rounds_within(part, 3000, 40, 80) == 80
    wide = BoostedStumps([Coding(scale=fit_scale(np.arange(100.0), most=24))] * 1000)
    assert rounds_within(wide, 3000, 4000, 80) == 0


@pytest.fixture(scope="module")
def thresholds() -> tuple[np.ndarray, np.ndarray]:
    """Four quantities, and a category that is a range of the first."""
    x = np.random.default_rng(0).normal(size=(900, 4))
    return x, in_range(x).astype(float)


def in_range(x: np.ndarray) -> np.ndarray:
    return (x[:, 0] > -0.4) & (x[:, 0] < 0.7)


def test_a_range_is_found_in_a_small_table(thresholds):
    x, high = thresholds
    new = [*x[300:].T, np.full(600, np.nan)]
    wrong = {}
    for stumps in (0, 80):
        table = CellTable.fit([*x[:300].T, high[:300]], [0] * 4 + [2], steps=60, stumps=stumps, seed=0)
        wrong[stumps] = (table.impute(new).point[-1] != high[300:]).mean()
    assert wrong[80] < 0.05
    assert wrong[0] > 0.1


def test_sampling_keeps_the_range_and_agrees_with_the_whole_pass(thresholds):
    x, high = thresholds
    model = TableModel.fit(np.column_stack([x, high])[:400], steps=60, seed=0)
    assert model.table.network.additive is not None
    drawn = model.synthesize(1000, seed=1)
    assert (in_range(drawn) != drawn[:, 4]).mean() < 0.1
    network = model.table.network
    cells = model.table.cells([*x[:50].T, high[:50]])
    state = network.column_by_column(50, member=0)
    for column in (3, 0):
        state.show(column, torch.from_numpy(cells.number[:, column]), torch.from_numpy(cells.score[:, column]))
    seen = torch.zeros(50, 5, dtype=torch.bool)
    seen[:, [0, 3]] = True
    torch.testing.assert_close(state.lift, network.additive(torch.from_numpy(cells.number), seen))


def test_a_saved_model_holds_the_additive_part(tmp_path):
    frame = patients(200, missing=0.1)
    model = TableModel.fit(frame, steps=20)
    assert model.table.network.additive.table.abs().max() > 0
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    new = read_frame(patients(40, seed=3, missing=0.3))
    for a, b in zip(*(m.table.impute(encode(new, m.schema), interval=0.9).point for m in (model, again)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_steps_it_is_the_linear_part_alone():
    model = TableModel.fit(patients(100, missing=0.1), steps=0)
    assert model.table.network.additive is None
