"""Times to an event: risks under censoring are the true ones, and Kaplan-Meier's where nothing tells patients apart."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from unmask.cli.events.uses import result_lines
from unmask.evaluation.survival import kaplan_meier, step_values
from unmask.modalities.events.outcome.outcome import fit_head
from unmask.modalities.events.outcome.scoring import scored
from unmask.modalities.events.outcome.targets import TimeToEvent
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.records.meds import Labels


def exact_risks(days: np.ndarray, seen: np.ndarray) -> tuple[TimeToEvent, np.ndarray]:
    """A target, and the risks by its cuts that make its loss least where no feature tells patients apart."""
    n = len(days)
    labels = Labels(subject=np.arange(n), time=np.zeros(n, np.int64), value=seen.astype(np.int64), days=days)
    target = TimeToEvent.fit(labels)
    y = torch.from_numpy(target.encode(labels))
    logits = torch.zeros(1, 1, target.outputs, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = target.loss(logits.expand(1, n, -1), y.double()).mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    return target, target.probabilities(logits.detach()).numpy()[0]


@pytest.mark.parametrize("censoring", ["uniform", "exponential"])
@pytest.mark.parametrize("seed", [0, 1])
def test_risks_under_censoring_are_the_true_ones_at_every_cut(censoring: str, seed: int):
    rng, n = np.random.default_rng(seed), 20_000
    came = rng.exponential(100, n)
    until = rng.uniform(0, 164, n) if censoring == "uniform" else rng.exponential(100, n)
    target, risks = exact_risks(np.minimum(came, until), came <= until)
    np.testing.assert_allclose(risks, 1 - np.exp(-np.array(target.cuts) / 100), atol=0.02)


@pytest.mark.parametrize("common_day", [False, True])
@pytest.mark.parametrize("days", ["whole", "continuous"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_risks_under_censoring_are_kaplan_meiers(common_day: bool, days: str, seed: int):
    rng, n = np.random.default_rng(seed), 600
    came, until = rng.weibull(1.5, n) * 40, np.full(n, 45.0) if common_day else rng.exponential(40, n)
    if days == "whole":
        came, until = np.ceil(came / 6), np.ceil(until / 6)
    time, seen = np.minimum(came, until), came <= until
    target, risks = exact_risks(time, seen)
    observed = 1 - step_values(*kaplan_meier(time, seen), np.array(target.cuts))
    np.testing.assert_allclose(risks, observed, atol=2e-3)


@pytest.mark.parametrize("common_day", [False, True])
@pytest.mark.parametrize("features", ["none", "noise"])
def test_risks_of_a_trained_head_are_kaplan_meiers_on_the_whole(features: str, common_day: bool):
    """Few and rare events over twelve intervals: no hazard is too high for an early stop, or for a prior count."""
    rng, n = np.random.default_rng(5), 400
    came, until = rng.exponential(900, n), np.full(n, 120.0) if common_day else rng.uniform(20, 400, n)
    time, seen = np.minimum(came, until), came <= until
    labels = Labels(subject=np.arange(n), time=np.zeros(n, np.int64), value=seen.astype(np.int64), days=time)
    target = TimeToEvent.fit(labels)
    x = np.zeros((n, 3), np.float32) if features == "none" else rng.normal(size=(n, 60)).astype(np.float32)
    head = fit_head(x, target.encode(labels), labels.subject, OutcomeSettings(members=3, epochs=8), target)
    risks = head.predict(x, target)
    observed = 1 - step_values(*kaplan_meier(time, seen), np.array(target.cuts))
    np.testing.assert_allclose(risks.mean(0), observed, atol=1e-3 if features == "none" or common_day else 0.01)
    assert ((risks > 0) & (risks < 1)).all()


def test_groups_keep_their_own_risks_under_censoring():
    """Two groups of hazards apart by 4.5 times, each with hazards of its own: within .03 of its truth."""
    rng, n = np.random.default_rng(0), 40_000
    high = rng.random(n) < 0.5
    came, until = rng.exponential(np.where(high, 50, 225), n), rng.uniform(0, 160, n)
    time, seen = np.minimum(came, until), came <= until
    labels = Labels(subject=np.arange(n), time=np.zeros(n, np.int64), value=seen.astype(np.int64), days=time)
    target = TimeToEvent.fit(labels)
    for chosen, scale in ((high, 50), (~high, 225)):
        risks = target.probabilities(torch.from_numpy(target.start(target.encode(labels.take(chosen))))[None, None])
        truth = 1 - np.exp(-np.array(target.cuts) / scale)
        np.testing.assert_allclose(risks.numpy()[0], truth, atol=0.03)


def test_figures_of_a_time_stand_beside_kaplan_meier():
    rng, n = np.random.default_rng(3), 2_000
    came, until = rng.exponential(100, n), rng.uniform(0, 164, n)
    time, seen = np.minimum(came, until), (came <= until).astype(np.int64)
    labels = Labels(subject=np.arange(n), time=np.zeros(n, np.int64), value=seen, days=time)
    target = TimeToEvent.fit(labels)
    right = np.tile(1 - np.exp(-np.array(target.cuts) / 100), (n, 1))
    rows = scored(target, labels, right, draws=5)["by_days"]
    assert [r["days"] for r in rows] == list(target.cuts)
    assert max(abs(r["predicted"] - r["observed"]) for r in rows) < 0.05
    assert max(abs(r["brier"] - r["brier_of_observed"]) for r in rows) < 2e-3
    middle = rows[6]  # a constant that is right scores its variance
    assert abs(middle["brier"] - right[0, 6] * (1 - right[0, 6])) < 0.01
    assert max(r["predicted"] - r["observed"] for r in scored(target, labels, right**0.5, draws=5)["by_days"]) > 0.1


@pytest.mark.parametrize("censored", [True, False])
def test_no_risk_is_told_by_a_time_that_nobody_outlived(censored: bool):
    """Kaplan-Meier falls to 0 where the longest time ends with the event: a risk of 1 there is no finding."""
    rng, n = np.random.default_rng(5), 400
    came = rng.exponential(100, n)
    until = rng.exponential(120, n) if censored else np.full(n, np.inf)
    time, seen = np.minimum(came, until), came <= until
    seen[time.argmax()] = True
    target, risks = exact_risks(time, seen)
    assert target.cuts[-1] < time.max()
    assert len(target.cuts) == len(target.lived) == 11
    np.testing.assert_allclose(risks, 1 - np.exp(-np.array(target.cuts) / 100), atol=0.08)
    assert exact_risks(np.ones(20), np.ones(20, bool))[0].cuts == (1.0,)


def test_times_in_years_are_asked_about():
    rng, n = np.random.default_rng(4), 200
    days, seen = rng.exponential(400, n) + 40, (rng.random(n) < 0.6).astype(np.int64)
    labels = Labels(subject=np.arange(n), time=np.zeros(n, np.int64), value=seen, days=days)
    target = TimeToEvent.fit(labels)
    for given, asked in ((days, False), (days / 365.25, True)):
        figures = scored(target, dataclasses.replace(labels, days=given), np.full((n, target.outputs), 0.5), draws=2)
        assert any("is float_value in days?" in line for line in result_lines({"model": figures})) == asked
