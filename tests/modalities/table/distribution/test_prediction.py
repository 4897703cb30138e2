"""A truncated distribution is what is left of the whole one within limits: no less, no more, and nothing beyond."""

import numpy as np
import pytest
import torch

from unmask.modalities.table.distribution.codec import make_grid
from unmask.modalities.table.distribution.prediction import Categories, Quantities
from unmask.modalities.table.distribution.scale import fit_scale

CELLS = 40_000


@pytest.fixture
def scale(seed):
    rng = np.random.default_rng(seed)
    return fit_scale(np.r_[np.zeros(150), rng.normal(2, 1, 600)], most=9)  # an atom at 0


@pytest.fixture
def cells(scale, seed):
    """The same distribution many times over, beside a scale of more bins, so that there is padding."""
    torch.manual_seed(seed)
    grid = make_grid([scale, fit_scale(np.arange(400.0), most=12)])
    raw = torch.randn(1, 1, grid.mass.shape[1] + 2) * 0.5
    column = torch.zeros(CELLS, dtype=torch.long)
    raw[..., -1] = 0.0
    return Quantities(raw.expand(1, CELLS, -1), torch.full((CELLS,), 0.3), torch.full((CELLS,), 0.8), column, grid)


def everywhere(value: float) -> torch.Tensor:
    return torch.full((CELLS,), value)


def test_without_limits_it_is_the_distribution_itself(cells, scale):
    atoms = torch.ones(CELLS, scale.bins, dtype=torch.bool)
    whole = cells.truncated(everywhere(-torch.inf), everywhere(torch.inf), atoms)
    torch.testing.assert_close(whole.logits[0].softmax(-1), cells.log_probs()[0, 0].exp(), atol=1e-6, rtol=1e-5)
    bounded = cells.truncated(everywhere(-29.0), everywhere(29.0), atoms)
    torch.testing.assert_close(bounded.logits[0].softmax(-1), whole.logits[0].softmax(-1), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("with_atom", [True, False])
def test_within_limits_it_is_what_is_left_of_the_whole(cells, scale, with_atom, seed):
    generator = torch.Generator().manual_seed(seed)
    low, high = -0.4, 1.2
    atoms = torch.zeros(CELLS, scale.bins, dtype=torch.bool)
    atoms[:, np.flatnonzero(scale.atom)] = with_atom
    found = cells.truncated(everywhere(low), everywhere(high), atoms).draw(torch.rand(CELLS, 2, generator=generator))
    whole = cells.draw(torch.rand(CELLS, 3, generator=generator), torch.zeros(CELLS, dtype=torch.long), 1.0)

    def is_atom(drawn: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(scale.atom)[drawn[:, 0].long()]

    left = torch.where(is_atom(whole), torch.tensor(with_atom), (whole[:, 1] >= low) & (whole[:, 1] <= high))
    kept = whole[left]
    assert len(kept) > 5000
    assert is_atom(found).any() == with_atom
    ends = found[~is_atom(found), 1]
    assert low <= ends.min()
    assert ends.max() <= high
    share = [torch.bincount(x[:, 0].long(), minlength=scale.bins) / len(x) for x in (found, kept)]
    torch.testing.assert_close(share[0], share[1], atol=0.02, rtol=0)
    assert float(found[:, 1].mean()) == pytest.approx(float(kept[:, 1].mean()), abs=0.03)


def test_limits_that_no_bin_meets_draw_at_the_limits(cells, scale):
    atoms = torch.zeros(CELLS, scale.bins, dtype=torch.bool)
    found = cells.truncated(everywhere(0.5), everywhere(0.5), atoms).draw(torch.full((CELLS, 2), 0.7))
    assert not found.isnan().any()
    assert (found[:, 0] < scale.bins).all()


def test_categories_are_drawn_among_the_allowed_in_their_own_proportions(seed):
    torch.manual_seed(seed)
    share = torch.tensor([0.5, 0.3, 0.2, 0.0])  # the last is padding
    levels = Categories(torch.randn(2, 1, 4), share[None])
    left = levels.restricted(torch.tensor([[True, False, True]]))
    assert (left.log_probs().exp()[..., [1, 3]] == 0).all()
    ratio = levels.log_probs()[..., 0] - levels.log_probs()[..., 2]
    torch.testing.assert_close(left.log_probs()[..., 0] - left.log_probs()[..., 2], ratio)
    torch.testing.assert_close(left.log_probs().exp().sum(-1), torch.ones(2, 1))
