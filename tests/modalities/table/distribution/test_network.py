"""The row network keeps the laws with its linear part on: nothing hidden is seen, rows are alone, members are apart."""

import dataclasses

import numpy as np
import pytest
import torch
from tables import patients

from unmask.core.corruption import ALL_MASK, Corruption, Uniform, hide
from unmask.modalities.table.distribution.boosted_stumps import BoostedStumps
from unmask.modalities.table.distribution.cells import batch_of
from unmask.modalities.table.distribution.network import by_column
from unmask.modalities.table.distribution.prediction import Quantities
from unmask.modalities.table.fitting.cell_table import CellTable
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.recipes import settings_of
from unmask.modalities.table.schema.values import encode


@pytest.fixture(scope="module")
def model():
    found = TableModel.fit(patients(240, missing=0.15), steps=12, members=3)
    network = found.table.network
    network.linear_only = False  # whatever it learnt, the members are what is tested
    assert network.additive.table.abs().max() > 0.05
    return found


@pytest.fixture
def drawn(model, seed):
    cells = model.table.cells(encode(read_frame(patients(30, seed=1, missing=0.1)), model.schema))
    batch = batch_of(cells, np.arange(30))
    return batch, Corruption(select=Uniform(ratio=0.5), replace=ALL_MASK).draw(batch, seed=seed)


def out(model, batch, hidden):
    prediction = model.table.network(batch, hidden)
    target = torch.stack([torch.zeros(len(hidden)), torch.full((len(hidden),), 0.3)], -1)
    return torch.cat([prediction.member_log_prob(target), prediction.point()[:, None]], -1)


def test_a_changed_hidden_value_changes_nothing(model, drawn):
    batch, hidden = drawn
    values = {k: v.clone() for k, v in batch.values.items()}
    values["bin"].view(-1)[hidden.flat] = 1
    values["score"].view(-1)[hidden.flat] += 3.0
    values["seen"].view(-1)[hidden.flat] = 0
    assert torch.equal(out(model, batch, hidden), out(model, dataclasses.replace(batch, values=values), hidden))


def test_the_gradient_of_what_is_hidden_or_missing_is_zero_and_of_the_rest_is_not(model, drawn):
    batch, hidden = drawn
    score = batch.values["score"].clone().requires_grad_()
    out(model, dataclasses.replace(batch, values=batch.values | {"score": score}), hidden).pow(2).sum().backward()
    gone = hidden.grid(batch.shape) | ~batch.observed
    assert torch.equal(score.grad[gone], torch.zeros(int(gone.sum())))
    quantity = torch.tensor([c.scale is not None for c in model.table.codings]).expand(batch.shape)
    assert (score.grad[~gone & quantity] != 0).float().mean() > 0.9


def test_a_row_is_alone(model, drawn):
    batch, hidden = drawn
    whole = out(model, batch, hidden)
    row = hidden.flat // batch.shape[1]
    one = dataclasses.replace(
        batch,
        **{
            k: getattr(batch, k)[4:5]
            for k in ("segment", "position", "observed", "special", "unit", "identity", "index")
        },
        values={k: v[4:5] for k, v in batch.values.items()},
    )
    alone = out(model, one, hide(hidden.flat[row == 4] - 4 * batch.shape[1]))
    torch.testing.assert_close(alone, whole[row == 4], atol=1e-5, rtol=1e-5)


def test_members_learn_apart(model):
    """A member's weights get no gradient from the others' losses, and all weights belong to one member."""
    network = model.table.network
    cells = model.table.cells(encode(read_frame(patients(20)), model.schema))
    batch = batch_of(cells, np.arange(20), extra={"weight": torch.tensor([[0.0, 1.0, 0.0]] * 20)})
    hidden = Corruption(select=Uniform(ratio=0.5), replace=ALL_MASK).draw(batch, seed=0)
    network.zero_grad()
    network(batch, hidden).loss(network.codec.targets(batch.values, hidden.flat)).backward()
    sizes = 0
    for member in range(3):
        for parameter, at in network.member_parts(member):
            touched = bool((parameter.grad[at] != 0).any())
            assert not touched or member == 1
            sizes += parameter[at].numel()
    assert sizes == sum(p.numel() for p in network.parameters())


def test_the_untrained_network_is_its_linear_part():
    x = np.random.default_rng(0).normal(size=(80, 2))
    table = CellTable.fit([*x.T, x[:, 0]], [0, 0, 0], steps=0)  # one column twice: next to no noise
    batch = batch_of(table.cells([np.full(4, np.nan)] * 3), np.arange(4))
    ((_, d),) = table.network(batch, hide(torch.arange(12))).pieces
    assert isinstance(d, Quantities)
    torch.testing.assert_close(d.log_probs().exp()[0], d.grid.mass[d.column], atol=0.03, rtol=0)


def test_distributions_are_coherent(model, drawn):
    """Shares add up, means lie in range, quantiles and shares below are inverse, draws follow the shares."""
    batch, hidden = drawn
    with torch.no_grad():
        prediction = model.table.network(batch, hidden)
    for _, d in prediction.pieces:
        torch.testing.assert_close(d.log_probs().exp().sum(-1), torch.ones_like(d.log_probs()[..., 0]))
        if not isinstance(d, Quantities):
            continue
        torch.testing.assert_close(d.fine_probs().sum(-1), torch.ones(len(d.column)), atol=1e-4, rtol=0)
        q = torch.full((len(d.column),), 0.37)
        low, high = d.quantile(q - 0.2), d.quantile(q + 0.2)
        assert (low <= high).all()
        continuous = ~d.grid.atom[d.column].any(-1)
        torch.testing.assert_close(d.shares_at(d.quantile(q))[0][continuous], q[continuous], atol=0.02, rtol=0)
        n = 4000
        u = torch.rand(n, 3, generator=torch.Generator().manual_seed(0))
        first = Quantities.__new__(Quantities)
        first.grid, first.column, first._log_probs = d.grid, d.column[:1].expand(n), None
        first.tilt, first.location, first.deviation = (
            t[:, :1].expand(-1, n, *t.shape[2:]) for t in (d.tilt, d.location, d.deviation)
        )
        got = first.draw(u, torch.arange(n) % 3, 1.0)[:, 0].long()
        expected = d.log_probs()[:, 0].exp().mean(0)
        assert (torch.bincount(got, minlength=len(expected)) / n - expected).abs().max() < 0.04


@pytest.mark.parametrize("recipe", ["mcm", "remasker"])
def test_published_recipes_fit_impute_and_hide(recipe):
    """Both learn from a table with gaps, fill it, and see nothing of what is hidden."""
    table = patients(60, missing=0.1)
    model = TableModel.fit(table, settings=settings_of(recipe, steps=6))
    filled = model.impute(table)
    assert filled.notna().all().all()
    assert filled.sbp.between(table.sbp.min(), table.sbp.max()).all()
    cells = model.table.cells(encode(read_frame(table), model.schema))
    batch = batch_of(cells, np.arange(60))
    hidden = Corruption(select=Uniform(ratio=1.0), replace=ALL_MASK).draw(batch, seed=0)
    other = dataclasses.replace(batch, values=batch.values | {"score": batch.values["score"] + 3})
    with torch.no_grad():
        means = [model.table.network(b, hidden).point() for b in (batch, other)]
    assert torch.equal(*means)
    assert means[0].isfinite().all()


def test_mcm_learns():
    """Four copies of a coin: what is hidden can be read off what is not."""
    coin = np.random.default_rng(0).integers(0, 2, 100).astype(float)
    table = CellTable.fit([coin] * 4, [2] * 4, settings=settings_of("mcm", steps=150, learning_rate=2e-2))
    losses = [loss for _, loss in table.fitted.history]
    assert min(losses) < 0.7 * losses[0]


@pytest.mark.parametrize("with_additive", [False, True])
def test_untrained_heads_are_skipped_without_a_difference(with_additive, seed):
    """A network that learnt nothing beyond the other parts is not asked, exactly as with its zero heads."""
    model = TableModel.fit(patients(120, missing=0.15), steps=0, members=3)
    table = model.table
    if with_additive:
        part = BoostedStumps(table.codings)
        table.network.additive = BoostedStumps(
            table.codings, torch.randn(part.entries, len(table.network.dims) + 1) * 0.2
        )
    cells = table.cells(encode(read_frame(patients(30, seed=1, missing=0.1)), model.schema))
    batch = batch_of(cells, np.arange(30))
    hidden = Corruption(select=Uniform(ratio=0.5), replace=ALL_MASK).draw(batch, seed=seed)
    assert table.network.linear_only
    with torch.no_grad():
        short = table.network(batch, hidden).point()
        table.network.linear_only = False
        torch.testing.assert_close(table.network(batch, hidden).point(), short)
        next(iter(table.network.codec.head)).add_(0.1)
    table.network.finished()
    assert not table.network.linear_only


def test_a_column_is_heard_where_the_network_helps_it_and_only_there():
    """One category follows a quantity in a way that no line shows; all other columns are noise."""
    rng = np.random.default_rng(3)
    quantities = rng.normal(size=(400, 7))
    far = (np.abs(quantities[:, 0]) > 0.8).astype(float)
    known, new = [*quantities[:300].T, far[:300]], [*quantities[300:].T, np.full(100, np.nan)]
    right = []
    for steps in (0, 300):
        table = CellTable.fit(known, [0] * 7 + [2], steps=steps, stumps=0, seed=0)
        right.append((table.impute(new).point[-1] == far[300:]).mean())
    assert right[0] < 0.7  # the linear part: about the share of the more frequent
    assert right[1] > 0.85
    codec = table.network.codec
    silent = torch.zeros(8)
    for block, head in zip(codec.blocks, codec.head, strict=True):
        silent[list(block.columns)] = (head.unflatten(-1, (len(block.columns), -1)) == 0).all(-1).all(1).float().mean(0)
    assert silent[-1] == 0
    assert silent[1:-1].mean() > 0.5


def test_cells_asked_column_by_column_get_what_the_whole_product_gives_them(seed: int):
    state, head = torch.randn(3, 40, 16), torch.randn(3, 16, 5, 6)
    requested = torch.randperm(40 * 5)[:150].sort().values
    requested = requested[requested % 5 != 2]  # one column is not asked for
    row, column = requested // 5, requested % 5
    whole = torch.bmm(state, head.flatten(2)).view(3, -1, 6).index_select(1, requested)
    torch.testing.assert_close(by_column(state, head, row, column), whole, atol=1e-5, rtol=1e-5)
    assert by_column(state, head, row[:0], column[:0]).shape == (3, 0, 6)


def test_a_cell_asked_alone_gets_what_it_gets_in_company(seed: int):
    state, head = torch.randn(3, 512, 96), torch.randn(3, 96, 12, 26)
    row, column = torch.arange(512).repeat_interleave(12), torch.arange(12).repeat(512)
    with torch.no_grad():
        everything = by_column(state, head, row, column)
        for some in (slice(0, 1), slice(7, 300), slice(1000, 1001)):
            alone = by_column(state, head, row[some], column[some])
            torch.testing.assert_close(alone, everything[:, some], atol=1e-5, rtol=1e-5)


def test_a_column_asked_alone_gets_what_it_gets_with_all(model, drawn):
    """To single precision: products of another shape may add up in another order, as those of processors
    with AMX do."""
    batch, hidden = drawn
    column = hidden.flat % batch.shape[1]
    with torch.no_grad():
        target = torch.stack([torch.zeros(len(hidden)), torch.full((len(hidden),), 0.3)], -1)
        everything = model.table.network(batch, hidden).member_log_prob(target)
        for c in column.unique():
            alone = model.table.network(batch, hidden, wanted=hidden.flat[column == c])
            torch.testing.assert_close(
                alone.member_log_prob(target[column == c]), everything[column == c], atol=1e-5, rtol=1e-5
            )


def test_column_by_column_says_what_the_whole_pass_says(model, seed):
    """Whatever is visible, and in whichever order it became so: every member, quantities and categories."""
    network, slots = model.table.network, len(model.table.codings)
    cells = model.table.cells(encode(read_frame(patients(30, seed=2)), model.schema))
    batch = batch_of(cells, np.arange(30))
    order = np.random.default_rng(seed).permutation(slots)
    for member in range(3):
        state = network.column_by_column(30, member)
        for visible, column in enumerate(order.tolist()):
            hidden = torch.isin(batch.values["column"], torch.from_numpy(order[visible:])).flatten().nonzero().flatten()
            wanted = torch.arange(30) * slots + column
            with torch.no_grad():
                ((_, whole),) = network(batch, hide(hidden), wanted=wanted).pieces
                found = state.predict(column)
            torch.testing.assert_close(found.log_probs(), whole.of_member(member).log_probs(), atol=2e-4, rtol=1e-4)
            if isinstance(found, Quantities):
                torch.testing.assert_close(found.location, whole.location[[member]], atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(found.deviation, whole.deviation[[member]], atol=1e-4, rtol=1e-4)
            state.show(column, batch.values["bin"][:, column], batch.values["score"][:, column])
