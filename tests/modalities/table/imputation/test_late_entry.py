"""Covariates drawn to agree with a Cox regression with late entry: risk sets begin at entry."""

import warnings

import numpy as np
import pandas as pd
import pytest

from unmask import MultipleImputation
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.survival.estimators import draw_hazard, fit_cox

SLOPE = 0.9


@pytest.mark.parametrize("ties", [False, True])
def test_the_estimate_that_is_drawn_from_is_fit_cox(ties):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 2))
    time = rng.exponential(np.exp(-0.5 * z[:, 0])) * 5 + 0.01
    time = np.ceil(time * 4) / 4 if ties else time
    entry, event = np.minimum(time - 0.005, rng.uniform(0, 4, 400)), (rng.random(400) < 0.7).astype(float)
    found = draw_hazard(z, time, event, np.random.default_rng(1), None, entry)
    expected = fit_cox(z, time, event, entry=entry, ridge=0.5).beta
    np.testing.assert_allclose(found.estimate, expected, atol=1e-4)
    without = draw_hazard(z, time, event, np.random.default_rng(1), None)
    assert np.abs(without.estimate - expected).max() > 0.01
    never = draw_hazard(z, time, event, np.random.default_rng(1), None, np.zeros(400))
    np.testing.assert_allclose(never.estimate, without.estimate, atol=1e-9)
    np.testing.assert_allclose(never.jump, without.jump, rtol=1e-9)


def cohort(seed, rows=600):
    """Patients who are seen from a later time on: those who died before are not in the table."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=4 * rows)
    w = 0.5 * x + rng.normal(size=4 * rows)
    died, left, entry = (
        rng.exponential(np.exp(-SLOPE * x)) * 5,
        rng.uniform(2, 12, 4 * rows),
        rng.uniform(0, 4, 4 * rows),
    )
    time = np.minimum(died, left)
    seen = np.flatnonzero(time > entry + 1e-3)[:rows]
    frame = pd.DataFrame({"time": time, "event": died <= left, "entry": entry, "x": x, "w": w}).iloc[seen].round(4)
    holes = rng.random(rows) < 1 / (1 + np.exp(-frame.w))
    return frame.astype({"event": int}), frame.assign(event=frame.event.astype(int), x=frame.x.mask(holes))


@pytest.mark.parametrize("formula", ["Surv(time, event) ~ x + w", None])
def test_a_strong_effect_is_kept(formula):
    gaps = []
    for seed in range(10):
        whole, holed = cohort(seed)
        full = fit_cox(
            whole[["x", "w"]].to_numpy(), whole.time.to_numpy(), whole.event.to_numpy(), entry=whole.entry.to_numpy()
        )
        done = MultipleImputation(
            5, duration="time", event="event", schema={"entry": "entry"}, formula=formula, seed=seed, rounds=6
        ).fit(holed)
        found = done.pool("Surv(time, event) ~ x + w")
        gaps.append(found.estimate[found.names.index("x")] - full.beta[0])
    assert abs(np.mean(gaps)) < 0.05, gaps  # without entry .07 too much


def test_follow_up_is_drawn_after_entry():
    _, holed = cohort(1)
    holed.loc[holed.index[::7], ["time", "event"]] = np.nan
    done = MultipleImputation(3, duration="time", event="event", schema={"entry": "entry"}, rounds=2).fit(holed)
    for table in done.completed:
        assert (table.time > table.entry).all()


def test_a_column_of_entries_that_nobody_named_is_warned_of_where_the_pair_is_named():
    holed = cohort(0, 60)[1]
    known = {"duration": "time", "event": "event"}
    says = "'entry' may be the time from which a row is at risk"
    with pytest.warns(UserWarning, match=says):
        MultipleImputation(2, rounds=1, **known).fit(holed)
    with pytest.warns(UserWarning, match=says):
        MultipleImputation(2, rounds=1, formula="Surv(time, event) ~ x + w").fit(holed)
    with pytest.warns(UserWarning, match=says):
        TableModel.fit(holed, steps=0, members=1, **known)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*from which a row is at risk")
        done = MultipleImputation(2, rounds=1, entry="entry", event_level="1", **known).fit(holed)
    assert done.schema_.entry == "entry"


def test_another_follow_up_time_has_not_the_entry_of_the_first():
    _, holed = cohort(0, 200)
    holed = holed.assign(relapse=np.random.default_rng(1).exponential(0.5, len(holed)).round(3) + 0.001)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entering = MultipleImputation(2, duration="time", event="event", schema={"entry": "entry"}, rounds=1).fit(holed)
        plain = MultipleImputation(2, duration="relapse", event="event", rounds=1).fit(holed)
        found = entering.survival([0.2, 0.5], duration="relapse")
        assert found.estimate.tolist() == pytest.approx(plain.survival([0.2, 0.5]).estimate.tolist())
        assert found.estimate[0] < 1
