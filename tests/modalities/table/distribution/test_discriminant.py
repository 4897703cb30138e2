"""Shares of categories: the discriminant is Bayes' rule, and a level is trusted as far as unseen rows bear it out."""

import json

import numpy as np
import pytest
import torch
from tables import patients

from unmask.modalities.table.distribution.discriminant import MOST, PRIOR, _likeliest, discriminant
from unmask.modalities.table.distribution.network import RowModel
from unmask.modalities.table.fitting.cell_table import CellTable
from unmask.modalities.table.model import TableModel, load
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.values import encode


def test_the_discriminant_is_bayes_rule_of_two_normals():
    share, apart, within = 0.2, 1.7, 1.0
    x = torch.linspace(-3, 4, 15, dtype=torch.float64)
    normal = lambda mean: -0.5 * (x - mean) ** 2 / within  # noqa: E731
    expected = normal(apart) - normal(0.0)
    total = within + share * (1 - share) * apart**2
    slope = share * (1 - share) * apart / total  # of the indicator on x
    explained = slope**2 * total / (share * (1 - share))
    move = slope * (x - share * apart)
    direction, checkpointer = discriminant(move, torch.full_like(x, 1 - explained), torch.tensor(share).double())
    torch.testing.assert_close(direction - checkpointer, expected)


def test_no_other_trust_makes_the_cells_likelier(rng: np.random.Generator):
    cells, share, column = (
        400,
        torch.tensor([0.3, 0.5, 0.2, 0.1]),
        torch.tensor([2, 5, 5, 5]),
    )  # 0.2 of column 5 has no dim
    direction, checkpointer = torch.tensor(rng.normal(size=(cells, 4)) * 2), torch.tensor(rng.gamma(2, 1, (cells, 4)))
    kinds = [rng.random(cells) < 0.4 + 0.1 * np.sign(direction[:, 0].numpy()), rng.integers(0, 4, cells)]
    own = torch.tensor(np.column_stack([kinds[0], *(kinds[1] == k for k in range(3))]), dtype=torch.float32)
    requested = torch.tensor(np.repeat(rng.random((cells, 2)) < 0.7, [1, 3], axis=1), dtype=torch.float32)

    def loss(trust: torch.Tensor) -> float:
        s = (share.double().logit() + trust * direction - trust**2 * checkpointer).sigmoid()
        lone = torch.where(own[:, 0] > 0, s[:, 0], 1 - s[:, 0])
        many = torch.cat([s[:, 1:], torch.full((cells, 1), 0.2)], 1)
        mine = torch.cat([own[:, 1:], 1 - own[:, 1:].sum(1, keepdim=True)], 1)
        likely = (requested[:, 0] * lone.log()).sum()
        likely = likely + (requested[:, 1] * ((mine * many).sum(1) / many.sum(1)).log()).sum()
        return float(PRIOR / 2 * ((trust - 1) ** 2).sum() - likely)

    found = _likeliest(direction, checkpointer, own, requested, share, column).double()
    assert ((found > 0) & (found < MOST)).any()
    least = loss(found)
    for k in range(4):
        for move in (-0.02, 0.02):
            trial = found.clone()
            trial[k] = (trial[k] + move).clamp(0, MOST)
            assert loss(trial) >= least - 1e-3


def told(seed: int, rows: int = 700) -> tuple[list[np.ndarray], list[int]]:
    """Ten quantities of three causes, a category that two of them tell, and one of chance with two rare levels."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 3)) @ rng.normal(size=(3, 10)) + rng.normal(size=(rows, 10))
    tells = (x[:, 0] + x[:, 1] + rng.normal(size=rows) * 0.5 > 0).astype(float)
    chance = rng.choice(4, rows, p=[0.7, 0.27, 0.02, 0.01]).astype(float)
    columns = [*x.T, tells, chance]
    sizes = [0] * 10 + [2, 4]
    return [np.where(rng.random(rows) < 0.1, np.nan, c) for c in columns], sizes


def trust_of(table: CellTable, column: int) -> np.ndarray:
    network = table.network
    assert isinstance(network, RowModel)
    assert network.base is not None
    return network.base.trust[(network.dims.column == column) & (network.dims.level >= 0)].numpy()


@pytest.fixture(scope="module")
def table() -> CellTable:
    return CellTable.fit(*told(3), steps=60)


def test_a_level_that_is_told_is_trusted_and_one_of_chance_is_not(table: CellTable):
    assert trust_of(table, 10) > 0.8
    assert (trust_of(table, 11)[1:] < 0.5).all()
    quantities = table.network.dims.level < 0
    assert (table.network.base.trust[quantities] == 1).all()


def test_rare_levels_keep_their_share(table: CellTable):
    columns, _ = told(3)
    network = table.network
    cells = table.cells(columns)
    own = []
    for trust in (network.base.trust, torch.ones_like(network.base.trust)):
        kept, network.base.trust = network.base.trust, trust
        shares = []
        with torch.no_grad():
            for take, batch in table.passes(cells):
                masked = torch.zeros(batch.shape, dtype=torch.bool)
                masked[:, 11] = True
                linear = network.linear(batch.values, masked)
                where = torch.arange(batch.shape[0])
                place = torch.full_like(where, int(network.codec.place_of[11]))
                shares.append(network.shares(int(network.codec.block_of[11]), linear, where, place)[: len(take)])
        network.base.trust = kept
        own.append(torch.cat(shares).mean(0).numpy())
    given = np.array(table.codings[11].share)
    np.testing.assert_allclose(own[0][2:].sum(), given[2:].sum(), rtol=0.2)
    assert own[1][2:].sum() < 0.8 * given[2:].sum()  # what it mends


def test_with_one_member_and_without_categories(seed: int):
    columns, sizes = told(seed, 120)
    alone = CellTable.fit(columns, sizes, steps=10, members=1)
    assert alone.network.base.trust.shape == (len(alone.network.dims),)
    numbers = CellTable.fit(columns[:10], sizes[:10], steps=10)
    assert (numbers.network.base.trust == 1).all()


def test_it_is_saved_and_read(seed: int, tmp_path):
    frame = patients(120, seed=seed)
    model = TableModel.fit(frame, steps=10)
    again = load(model.save(tmp_path / "m"))
    torch.testing.assert_close(again.table.network.base.trust, model.table.network.base.trust, rtol=0, atol=0)
    assert (model.table.network.base.trust != 1).any()
    holed = patients(30, seed=seed, missing=0.3)
    coded = encode(read_frame(holed), model.schema)
    for a, b in zip(model.table.impute(coded).point, again.table.impute(coded).point, strict=True):
        np.testing.assert_array_equal(a, b)
    assert json.loads((tmp_path / "m" / "unmask.json").read_text())["kind"] == "table"
