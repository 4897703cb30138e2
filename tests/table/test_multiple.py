"""Imputed covariates agree with the analysis that follows."""

import numpy as np

from unmask.table.data import Frame
from unmask.table.multiple import MultipleImputation
from unmask.table.survival import fit_cox


def cohort(n: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Strong proportional hazards, and where the second covariate is missing: more among those who died early."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=n)
    b = 0.5 * a + rng.normal(size=n)
    died, left = rng.exponential(np.exp(-0.8 * a - 0.8 * b)), rng.exponential(2, n)
    columns = {"a": a, "b": b, "time": np.minimum(died, left), "event": (died <= left).astype(float)}
    return columns, rng.random(n) < 1 / (1 + np.exp(0.5 - a - columns["event"]))


def test_strong_hazard_ratios_survive_imputation():
    """Within what a deviation of the full data's estimate would be; complete rows alone, and covariates imputed without
    the outcome, are further off."""
    columns, gone = cohort(1200, 0)
    full = fit_cox(np.column_stack([columns["a"], columns["b"]]), columns["time"], columns["event"])
    holed = columns | {"b": np.where(gone, np.nan, columns["b"])}
    frame = Frame(names=list(holed), columns=list(holed.values()), native=np.column_stack(list(holed.values())))
    done = MultipleImputation(draws=4, duration="time", event="event").fit(frame)

    def analyse(table):
        found = fit_cox(table[:, :2], table[:, 2], table[:, 3])
        return found.beta, found.error

    found = done.pool(analyse)
    assert (np.abs(found.estimate - full.beta) < 2 * full.error).all()
    assert (found.fmi > 0.1).all()
    completed = np.stack([t[:, 1] for t in done.completed])
    assert (completed[:, ~gone] == columns["b"][~gone]).all()
    assert (completed[:, gone].std(0) > 0).all()
