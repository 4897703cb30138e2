"""Every figure of a comparison has a direction, a sentence and a verdict; a floor that beats its ceiling is marked."""

import pytest
from tables import patients

from unmask.modalities.table.evaluate import evaluate_model
from unmask.modalities.table.evaluation.figures import MEANINGS, SyntheticFigures, readings
from unmask.modalities.table.model import TableModel

CONTEXT = {"c_index_real", "compared", "compared_rows", "rows"}
"""Numbers that describe what was compared."""


def test_every_figure_of_an_evaluation_is_explained(tmp_path):
    model = TableModel.fit(patients(80), steps=0)
    found = evaluate_model(model, patients(60, seed=1), train=patients(80), report=tmp_path / "r.html")
    numbers = {k for k, v in found.items() if isinstance(v, int | float)} - CONTEXT
    assert numbers <= set(MEANINGS)
    shown = {f["key"]: f for f in found["figures"]}
    assert numbers | {"dcr_share", "membership_auc", "model_membership_auc"} <= set(shown)
    page = (tmp_path / "r.html").read_text()
    for figure in shown.values():
        assert figure["sentence"].endswith(".")
        assert figure["better"] in ("lower", "higher", "near 0.5")
        assert figure["label"] in page
        assert figure["verdict"]
    assert shown["km_area"]["ceiling"] == found["ceiling"]["km_area"]


@pytest.mark.parametrize(
    ("key", "value", "ceiling", "floor", "share", "said"),
    [
        ("km_area", 0.03, 0.02, 0.07, 0.8, "80% of the way"),
        ("km_area", 0.01, 0.02, 0.07, 1.2, "As good as another sample"),
        ("interval_overlap", 0.2, 0.8, 0.4, -0.5, "No better than the floor"),
        ("interval_overlap", 0.7, 0.8, 0.4, 0.75, "75% of the way"),
    ],
)
def test_where_a_figure_stands(key, value, ceiling, floor, share, said):
    (reading,) = readings({key: value, "ceiling": {key: ceiling}, "floor": {key: floor}})
    assert reading.share == pytest.approx(share)
    assert said in reading.verdict
    assert not reading.marked


def test_a_floor_that_beats_its_ceiling_is_marked():
    found = SyntheticFigures({"rows": 100, "km_area": 0.03, "ceiling": {"km_area": 0.05}, "floor": {"km_area": 0.04}})
    (reading,) = readings(found)
    assert reading.marked
    assert reading.share is None
    assert "Cannot tell good rows" in str(found).splitlines()[3]
    (same,) = readings({"sign_flips": 0, "ceiling": {"sign_flips": 0}, "floor": {"sign_flips": 0}})
    assert not same.marked
    (columns,) = readings(
        {"marginal_distance": 0.06, "ceiling": {"marginal_distance": 0.03}, "floor": {"marginal_distance": 0}}
    )
    assert columns.verdict.startswith("2.0 times that of another sample")


def test_attacks_and_copies_in_words():
    card = {
        "identical_rows": 0.02,
        "membership_auc_copies": 0.97,
        "membership_auc": 0.52,
        "membership_low": 0.45,
        "membership_high": 0.59,
        "identical_rows_held_out": 0.01,
    }
    card |= {"model_membership_auc": 0.8, "model_membership_low": 0.7, "model_membership_high": 0.9}
    said = {r.key: r.verdict for r in readings({"two_sample_auc": 0.9, "identical_rows": 0.5, "privacy": card})}
    assert said["membership_auc"].startswith("No attack shown")
    assert "copies of the training rows it reaches 0.97" in said["membership_auc"]
    assert said["model_membership_auc"].startswith("An attack works")
    assert said["two_sample_auc"] == "Far beyond chance."
    assert said["identical_rows"] == "2.0% of the rows; among held-out rows chance makes 1.0%"
    swapped = {"two_sample_auc": 0.08, "privacy": {"dcr_share": 0.0, "membership_auc": 0.0, "membership_low": 0.0}}
    assert {r.verdict[:16] for r in readings(swapped)} == {"Far below chance"}
