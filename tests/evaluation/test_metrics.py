import math

import numpy as np
import pytest

from unmask.evaluation.labels import label_figures
from unmask.evaluation.metrics import (
    Estimate,
    bootstrap_mean,
    by_band,
    by_frequency,
    by_position,
    masked_metrics,
    plain,
    wilson,
)
from unmask.modalities.events.outcome import scoring
from unmask.modalities.events.uses import next_visit
from unmask.modalities.text.tasks import held_out
from unmask.modalities.text.tasks.data import Item


def clustered(rng, documents=200, size=20, between=1.0, within=1.0):
    """Values of `documents` documents with a shared effect each; their true mean is 0."""
    effect = np.repeat(rng.normal(0, between, documents), size)
    return effect + rng.normal(0, within, documents * size), np.repeat(np.arange(documents), size)


def test_interval_has_the_analytic_width_of_clustered_data():
    values, groups = clustered(np.random.default_rng(3))
    e = bootstrap_mean(values, groups, draws=4000)
    cluster_means = values.reshape(200, 20).mean(1)
    expected = 2 * 1.96 * cluster_means.std(ddof=1) / math.sqrt(200)
    assert e.high - e.low == pytest.approx(expected, rel=0.08)
    naive = 2 * 1.96 * values.std() / math.sqrt(len(values))
    assert e.high - e.low > 2 * naive  # taking slots for independent would be far too sure


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(11)
    estimates = [bootstrap_mean(*clustered(rng, documents=60, size=5), draws=400, seed=i) for i in range(300)]
    covered = np.mean([e.low <= 0 <= e.high for e in estimates])
    assert 0.90 <= covered <= 0.985


def test_a_share_of_all_or_none_has_an_interval():
    """Of 28 right answers of 28 it was 1 to 1: resamples of them never vary."""
    for share in (0.0, 1.0):
        for groups, independent in ((np.arange(28), 28), (np.arange(28) // 4, 7)):
            found = bootstrap_mean(np.full(28, share), groups)
            assert [found.low, found.high] == wilson(share * independent, independent)
    assert bootstrap_mean([2.0, 2.0], [0, 1]).high == 2.0


def test_perfect_figures_of_every_kind_have_an_interval_with_a_width():
    """Resamples of a perfect F1, area or precision never vary: they said 1 to 1."""
    rng, there = np.random.default_rng(0), np.arange(60) % 2 == 0
    truth = np.stack([there, ~there, rng.random(60) < 0.5], 1)
    several = label_figures(truth, np.where(truth, 0.9, 0.1), ["a", "b", "c"])
    assert several["intervals"]["macro_f1"] == several["intervals"]["micro_f1"] == wilson(60, 60)
    assert several["by_label"][0]["f1"]["interval"] == several["by_label"][0]["auprc"]["interval"] == wilson(30, 30)
    outcome = scoring.figures(there.astype(int), np.where(there, 0.9, 0.1), draws=50)["intervals"]
    assert outcome["auroc"] == outcome["auprc"] == wilson(30, 30)
    visits = next_visit.figures(truth.astype(int), np.zeros((60, 3), int), truth * 0.9, draws=50)
    assert visits["all"]["auroc"] == 1.0
    assert 0.8 < visits["all"]["intervals"]["auroc"][0] < 1.0
    items = [Item(text=str(i)) for i in range(20)]
    for top in (1.0, 100.0):
        assert held_out.interval([top] * 9, "f1", top, items, top) == tuple(top * end for end in wilson(20, 20))
    assert held_out.interval([], "f1", 1.0, items) == (None, None)


def test_a_weight_counts_like_that_many_equal_slots():
    e = bootstrap_mean([1.0, 0.0, 2.0], [0, 1, 2], weights=[3, 1, 2], seed=5)
    repeated = bootstrap_mean([1, 1, 1, 0, 2, 2], [0, 0, 0, 1, 2, 2], seed=5)
    assert (e.value, e.low, e.high) == (repeated.value, repeated.low, repeated.high)


def test_chunks_of_draws_do_not_change_the_interval(monkeypatch):
    values, groups = clustered(np.random.default_rng(0), documents=30)
    whole = bootstrap_mean(values, groups, seed=1)
    monkeypatch.setattr("unmask.evaluation.metrics._CHUNK", 100)
    assert bootstrap_mean(values, groups, seed=1) == whole


def test_groups_may_have_any_names_and_any_order():
    shuffled = bootstrap_mean([0, 1, 0, 1], ["b", "a", "b", "a"], seed=2)
    assert shuffled == bootstrap_mean([1, 1, 0, 0], ["a", "a", "b", "b"], seed=2)


def test_one_group_or_none_has_no_bounds():
    one = bootstrap_mean([1, 2, 3], [7, 7, 7])
    assert one.value == 2
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    none = bootstrap_mean([], [])
    assert math.isnan(none.value)
    assert none.n == 0
    assert str(none) == "nan (n=0)"


def test_nan_is_not_skipped_in_silence():
    e = bootstrap_mean([1.0, float("nan"), 1.0], [0, 1, 2])
    assert math.isnan(e.value)
    assert e.to_dict() == {"value": None, "low": None, "high": None, "n": 3}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": [0]}, "differ in length"),
        ({"weights": [1, -1]}, "negative"),
        ({"draws": 0}, "draws"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        bootstrap_mean(**{"values": [1, 2], "groups": [0, 1], **arguments})


def test_masked_metrics_of_a_case_done_by_hand():
    metrics = masked_metrics(np.log([0.5, 0.25, 0.5, 0.25]), [0, 4, 0, 5], [0, 0, 1, 1])
    assert metrics["loss"].value == pytest.approx(1.5 * math.log(2))
    assert metrics["perplexity"].value == pytest.approx(2**1.5)
    assert metrics["perplexity"].high == pytest.approx(math.exp(metrics["loss"].high))
    assert metrics["accuracy_at_1"].value == 0.5
    assert metrics["accuracy_at_5"].value == 0.75
    assert plain(metrics)["hidden_slots"] == 4
    assert plain(metrics)["loss"] == metrics["loss"].value


def test_an_impossible_slot_gives_infinite_loss_not_an_error():
    metrics = masked_metrics([-np.inf, -1.0], [3, 0], [0, 1])
    assert metrics["perplexity"].value == math.inf
    assert plain(metrics)["loss"] is None


def test_bands_part_the_values_at_the_edges():
    bands = by_band([1, 2, 3, 4], [0, 10, 19.9, 20], [10, 20, 30], [0, 1, 2, 3], list("abcd"))
    assert [(b.label, b.estimate.n) for b in bands] == [("a", 1), ("b", 2), ("c", 1), ("d", 0)]
    with pytest.raises(ValueError, match="NaN"):
        by_band([1], [float("nan")], [0], [0], ["a", "b"])
    with pytest.raises(ValueError, match="differ in length"):
        by_band([1], [1, 2], [0], [0], ["a", "b"])
    with pytest.raises(ValueError, match="rise"):
        by_band([1], [1], [2, 1], [0], ["a", "b", "c"])
    with pytest.raises(ValueError, match="label"):
        by_band([1], [1], [2], [0], ["only one"])
    assert bands[1].estimate.value == 2.5


@pytest.mark.parametrize("frequency", [[0, 0], [5, 5], [0, 1], [1, 10**9], list(range(1, 1000))])
def test_every_slot_falls_into_one_frequency_band(frequency):
    bands = by_frequency(np.ones(len(frequency)), frequency, np.arange(len(frequency)))
    assert sum(b.estimate.n for b in bands) == len(frequency)
    assert len({b.label for b in bands}) == len(bands) <= 11


def test_position_bands_include_both_ends():
    bands = by_position([1, 2, 3], [0.0, 0.5, 1.0], [0, 1, 2], bands=2)
    assert [b.estimate.n for b in bands] == [1, 2]


def test_an_estimate_reads_well():
    assert str(Estimate(123.456, 120.0, 130.0, 50)) == "123.5 [120.0, 130.0] (n=50)"
