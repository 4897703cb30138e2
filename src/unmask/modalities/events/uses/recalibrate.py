"""A model of a yes or no brought to the patients of another place: its log-odds on a line fitted to their labels.

Cox, Two further applications of a model for binary regression, Biometrika 1958; Steyerberg, Clinical Prediction Models,
chapter 20.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError, option
from unmask.modalities.events.outcome.calibrating import logistic_line, on_line
from unmask.modalities.events.outcome.outcome import folds
from unmask.modalities.events.outcome.targets import Binary, Target
from unmask.modalities.events.records.meds import Events, Labels
from unmask.modalities.events.records.splits import who_trained, with_trained
from unmask.modalities.events.uses.folder import EventFolder, save_folder

FEWEST = 20
"""Patients with the outcome, and without: ten for each of a line's two numbers (Peduzzi et al. 1996)."""


def recalibrated(
    p: np.ndarray, points: Labels, target: Target, seed: int = 0
) -> tuple[np.ndarray, tuple[float, float]]:
    """(points, 1) predictions, those of each fifth of the patients on the line of the others, so that they can be
    judged; and intercept and slope of the line of all.

    Raises:
        UserError: of labels that are no yes or no, and of fewer than `FEWEST` patients of either kind.
    """
    if not isinstance(target, Binary):
        raise UserError(f"{option('recalibrate')} of {target.kind} labels", hint="Only a yes or no is recalibrated.")
    y = target.encode(points)[:, 0]
    cases = np.unique(points.subject[y == 1])
    others = len(np.unique(points.subject)) - len(cases)
    if min(len(cases), others) < FEWEST:
        raise UserError(
            f"{len(cases):,} patients with the outcome and {others:,} without it are too few to recalibrate on",
            hint=f"{FEWEST} of either are needed, ten for each number of the line: leave {option('recalibrate')} out.",
        )
    fold, out = folds(y, points.subject, np.random.default_rng([seed, 97])), np.zeros_like(p)
    for k in range(5):
        out[fold == k] = on_line(p[fold == k], *logistic_line(p[fold != k, 0], y[fold != k]))
    return out, logistic_line(p[:, 0], y)


def save_recalibrated(
    out: str | Path, folder: EventFolder, line: tuple[float, float], events: Events, points: Labels, strangers: bool
) -> dict[str, Any]:
    """Write a copy of a model whose log-odds lie on a line of what they were; who it comes from trained it.

    Args:
        strangers: whether the ids of these patients are other people's than those who trained the head.
    """
    outcome, (intercept, slope), count = folder.fine_tuning, line, len(points)
    old, new = outcome["target"], who_trained(events, points, np.zeros(count, bool))
    both = {"intercept": intercept + slope * old["intercept"], "slope": slope * old["slope"], "points": count}
    patients = new if strangers else with_trained(outcome["patients"], new)
    about = {"intercept": intercept, "slope": slope, "points": count, "patients": len(np.unique(points.subject))}
    outcome = {**outcome, "target": old | both, "patients": patients, "recalibrated": about}
    save_folder(out, dataclasses.replace(folder, outcome=outcome), about=folder.about)
    return {"out": str(out), **about}
