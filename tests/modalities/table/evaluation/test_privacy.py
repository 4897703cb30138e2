"""What a release gives away is measured on observed cells: a training row with other values in its holes is a copy."""

import numpy as np
import pytest
from tables import patients

from unmask.modalities.table.evaluate import evaluate_model
from unmask.modalities.table.evaluation import privacy
from unmask.modalities.table.model import TableModel


def holed(rows: int, seed: int, missing: float = 0.3) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    cause = rng.normal(size=rows)
    columns = [cause + rng.normal(size=rows) for _ in range(8)] + [rng.integers(0, 3, rows).astype(float)]
    return [np.where(rng.random(rows) < missing, np.nan, x) for x in columns]


SIZES = [0] * 8 + [3]


@pytest.mark.parametrize("seed", [0, 1])
def test_training_rows_released_with_other_fills_are_copies(seed):
    train = holed(200, seed)
    other = holed(200, seed + 10, missing=0)
    known = np.isfinite(train).sum(0) > 1  # of a row with one cell nothing can be said
    released = [np.where(np.isnan(x), o, x)[known] for x, o in zip(train, other, strict=True)]
    assert privacy.copies(train, released)["identical_rows"] == 1.0
    assert privacy.copies(train, other)["identical_rows"] == 0.0
    found = privacy.privacy(train, holed(200, seed + 20), released, SIZES)
    assert found["dcr_share"] > 0.9
    assert found["membership_auc"] > 0.9
    assert found["identical_rows_held_out"] == 0.0


def test_a_row_of_one_cell_is_no_proof_of_a_copy():
    real = [np.array([1.0, 1.0]), np.array([np.nan, 3.0]), np.array([np.nan, 4.0])]
    new = [np.array([1.0]), np.array([9.0]), np.array([9.0])]
    assert privacy.copies(real, new)["identical_rows"] == 0.0


def test_agreement_in_the_few_cells_of_a_row_with_holes_is_no_copy():
    """Age and sex of whole rows are those of some row without y: the values of y tell rows apart."""

    def rows(seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        return [rng.normal(60, 12, 1500).round(), rng.integers(0, 2, 1500).astype(float), rng.normal(size=1500)]

    real, new = rows(0), rows(1)
    holed = [*real[:2], np.where(np.random.default_rng(2).random(1500) < 0.3, np.nan, real[2])]
    assert privacy.copies(holed, new)["identical_rows"] == 0.0
    released = [np.where(np.arange(1500) < 150, x, y) for x, y in zip(real, new, strict=True)]
    verbatim = (~np.isnan(holed[2][:150])).sum() / 1500
    assert privacy.copies(holed, released)["identical_rows"] == pytest.approx(verbatim)
    assert privacy.copies(holed, holed)["identical_rows"] == 1.0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_that_know_nothing_of_the_training_rows_tell_nothing(seed):
    found = privacy.privacy(holed(300, seed), holed(300, seed + 10), holed(300, seed + 20), SIZES, seed=seed)
    assert abs(found["dcr_share"] - 0.5) < 0.12
    assert found["membership_low"] < 0.53
    assert found["membership_high"] > 0.47
    assert found["membership_auc_copies"] > 0.7 > found["membership_auc_shuffled"] + 0.05


def test_distances_of_whole_rows_are_plain_ones(rng):
    a, b = ([rng.normal(size=30) for _ in range(3)] for _ in range(2))
    space = privacy.Space(a, [0, 0, 0])
    scale = np.array([x.std() for x in a])
    plain = np.linalg.norm((np.column_stack(a) / scale)[:, None] - (np.column_stack(b) / scale)[None], axis=-1).min(1)
    np.testing.assert_allclose(space.nearest(a, b), plain, rtol=1e-6)


def test_the_interval_of_an_auc_holds_the_truth(rng):
    hits = 0
    for _ in range(200):
        found = privacy.membership(rng.normal(0.5, 1, 80), rng.normal(0, 1, 80))
        hits += found["membership_low"] <= 0.6382 <= found["membership_high"]  # normal scores half a deviation apart
    assert 0.9 <= hits / 200 <= 0.99


def test_evaluation_with_the_training_rows_says_what_rows_and_model_give_away():
    train = patients(120, missing=0.2)
    model = TableModel.fit(train, steps=0)
    found = evaluate_model(model, patients(80, seed=5, missing=0.2), train=train)["privacy"]
    assert found["membership_low"] <= found["membership_auc"] <= found["membership_high"]
    assert 0 <= found["model_membership_low"] <= found["model_membership_auc"] <= 1
    assert found["identical_rows"] < 0.05


def test_rows_are_compared_with_all_others_in_tiles(monkeypatch):
    """The same figures whatever is compared at once; of many rows a sample is asked, never the rows it is compared
    with."""
    train, released = holed(300, 0), [x[:200] for x in holed(200, 1)]
    for x, y in zip(released, train, strict=True):
        x[:50] = y[-50:]  # copies of the last rows
    space = privacy.Space(train, SIZES)
    whole = privacy.most_alike(released, train), space.nearest(released, train)
    np.testing.assert_allclose(whole[0], brute_alike(released, train), rtol=1e-6)
    monkeypatch.setattr(privacy, "TILE", (7, 40))
    tiled = privacy.most_alike(released, train), space.nearest(released, train)
    np.testing.assert_array_equal(tiled[0], whole[0])
    np.testing.assert_allclose(tiled[1], whole[1], rtol=1e-9, atol=1e-9)
    monkeypatch.setattr(privacy, "COMPARED", 100)
    assert privacy.copies(train, [x[:50] for x in released])["identical_rows"] == 1
    assert abs(privacy.copies(train, released)["identical_rows"] - 0.25) < 0.15


def brute_alike(rows, real):
    """`most_alike` as its docstring has it, pair by pair."""
    a, b = np.column_stack(rows), np.column_stack(real)
    rarity = np.array([[np.log((~np.isnan(c)).sum() / (c == v).sum()) if v == v else 0 for v in c] for c in b.T]).T
    out = []
    for x in a:
        shares = [np.nan]
        for y, rare in zip(b, rarity, strict=True):
            both = ~np.isnan(x) & ~np.isnan(y)
            same_cells = (np.isnan(x) == np.isnan(y)).all()
            if same_cells or rare[both].sum() >= np.log(20 * len(b)):
                shares.append((x == y)[both].mean() if both.any() else np.nan)
        out.append(np.nan if np.isnan(shares).all() else np.nanmax(shares))
    return np.array(out)
