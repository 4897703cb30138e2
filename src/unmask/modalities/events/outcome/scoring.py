"""Figures of predictions with bootstrap intervals.

Points of one patient share the patient, so every interval resamples patients, each with all of their points.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from unmask.evaluation.classes import area
from unmask.evaluation.meanings import meaning
from unmask.evaluation.metrics import share_interval
from unmask.evaluation.resampling import (
    CELLS,
    FEWEST,
    auroc_auprc,
    bootstrap_count_blocks,
    fewest_groups,
    percentile_interval,
)
from unmask.evaluation.survival import censored_brier, concordance, kaplan_meier, rounded_up, step_values
from unmask.modalities.events.outcome.calibrating import log_odds
from unmask.modalities.events.outcome.targets import (
    Binary,
    Classes,
    NumberTarget,
    Target,
    TimeToEvent,
)
from unmask.modalities.events.records.labels import class_names
from unmask.modalities.events.records.meds import Labels

FIGURES: dict[str, str] = {
    name: str(getattr(meaning(name), "label", name))
    for name in (
        *("auroc", "auprc", "brier", "ece", "ece_floor", "slope", "intercept", "accuracy", "macro_auroc", "log_loss"),
        *("c_index", "rmse", "mae", "r2", "spearman", "coverage"),
    )
} | {"ece_floor": "taken off for chance"}
"""Figures in the order of reports -> what these call them."""
Rule = Callable[[np.ndarray, np.ndarray], float]


def r2(y: np.ndarray, p: np.ndarray) -> float:
    """1 - squared error over that of these points' own mean."""
    spread = float(((y - y.mean()) ** 2).sum())
    return 1 - float(((y - p[:, 0]) ** 2).sum()) / spread if spread > 0 else float("nan")


def spearman(y: np.ndarray, p: np.ndarray) -> float:
    """Rank correlation; NaN where all predictions are alike."""
    from scipy.stats import rankdata

    if np.ptp(y) == 0 or np.ptp(p[:, 0]) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(y), rankdata(p[:, 0]))[0, 1])


NUMBERS: dict[str, Rule] = {
    "rmse": lambda y, p: float(np.sqrt(np.mean((y - p[:, 0]) ** 2))),
    "mae": lambda y, p: float(np.abs(y - p[:, 0]).mean()),
    "r2": r2,
    "spearman": spearman,
}
COVERED: dict[str, Rule] = {"coverage": lambda y, p: float(((y >= p[:, 1]) & (y <= p[:, 2])).mean())}
"""Figures of expected numbers, and of those with intervals behind (`NumberTarget.judged`)."""


def scored(target: Target, labels: Labels, p: np.ndarray, *, draws: int = 500, seed: int = 0) -> dict[str, Any]:
    """Figures of probabilities (points, outputs) as the kind of label wants them, each with its interval.

    Binary: AUROC, AUPRC, Brier score, calibration. Classes: accuracy, AUROC one against the rest, averaged, log loss.
    Numbers: RMSE, MAE, R2, Spearman's correlation, and of predictions with intervals their coverage. Time to an event:
    Harrell's C, and under `by_days` the mean risk by each cut beside Kaplan-Meier's. Intervals are percentiles (2.5 and
    97.5 %) over `draws` resamples of patients. A figure that these labels do not define is left out, and so is its
    interval. A class that training did not have counts against the accuracy and has no part in the log loss.
    """
    y, who = target.encode(labels), labels.subject
    if isinstance(target, Binary):
        return figures(y[:, 0].astype(np.int64), p[:, 0], who, draws=draws, seed=seed)
    out: dict[str, Any] = {"n": len(y), "patients": len(np.unique(who))}
    if isinstance(target, Classes):
        rules: dict[str, Rule] = {"accuracy": lambda y, p: float((p.argmax(1) == y).mean())}
        rules |= {"macro_auroc": _macro_auroc, "log_loss": _log_loss}
        known = y[y[:, 0] >= 0, 0]
        out["classes"] = np.bincount(known, minlength=p.shape[1]).tolist()
        few = min((fewest_groups(y[:, 0] == k, who) for k in np.unique(known)), default=0)
        return out | _estimated(rules, y[:, 0], p, who, draws, seed, {"macro_auroc": few})
    if isinstance(target, NumberTarget):
        expected = target.judged(p)
        rules = NUMBERS if expected.shape[1] == 1 else NUMBERS | COVERED
        return out | _estimated(rules, labels.amounts, expected, who, draws, seed)
    assert isinstance(target, TimeToEvent)
    out["events"] = int(y[:, 1].sum())
    out["by_days"] = _with_kaplan_meier(target, labels, p)
    both = np.stack([labels.times[0], y[:, 1]], 1)
    rules = {"c_index": lambda both, risk: concordance(risk, both[:, 0], both[:, 1])}
    came = {"c_index": len(np.unique(who[y[:, 1] == 1]))}
    return out | _estimated(rules, both, p.mean(1), who, min(draws, 100), seed, came)


def _with_kaplan_meier(target: TimeToEvent, labels: Labels, p: np.ndarray) -> list[dict[str, float]]:
    """By each cut of the time to an event, up to the last time that was observed: days, the mean predicted risk, and
    the observed one (1 - Kaplan-Meier), with the Brier scores of the predicted risks and of giving everybody the
    observed one."""
    if not len(labels):
        return []
    days, seen = labels.times
    observed = 1 - step_values(*kaplan_meier(days, seen), np.array(target.cuts))
    return [
        {"days": cut, "predicted": float(risk.mean()), "observed": float(came)}
        | {
            name: censored_brier(of, days, seen, cut)
            for name, of in (("brier", risk), ("brier_of_observed", np.full(len(p), came)))
        }
        for cut, risk, came in zip(target.cuts, p.T, observed, strict=True)
        if cut <= rounded_up(float(days.max()))
    ]


def unseen_classes(target: Target, labels: Labels) -> dict[str, int]:
    """Classes of labels that training did not have, with their counts."""
    if not isinstance(target, Classes):
        return {}
    return dict(Counter(name for name in class_names(labels) or () if name not in target.names))


def constant(target: Target, labels: Labels) -> np.ndarray:
    """(points, outputs) of a prediction that is the same for all: the shares (or the mean) of these labels
    themselves."""
    if isinstance(target, NumberTarget):
        return np.full((len(labels), 1), target.encode(labels).mean(dtype=np.float64))
    y = target.encode(labels)[:, 0].astype(np.int64)
    if isinstance(target, Binary):
        return np.full((len(y), 1), y.mean())
    count = np.bincount(y[y >= 0], minlength=target.outputs)
    return np.tile(count / max(1, count.sum()), (len(y), 1))


def figures(
    y: np.ndarray, p: np.ndarray, patients: np.ndarray | None = None, *, draws: int = 500, seed: int = 0
) -> dict[str, Any]:
    """AUROC, AUPRC, Brier score and calibration of a yes or no, with bootstrap intervals over the patients of the
    points (default: every point another patient's); where few have the outcome, or not, AUROC alone has one
    (`percentile_interval`, `area`).

    Calibration: expected error over 10 equal-count bins, see `calibration_error`; `ece_floor` is what chance alone
    makes of it where predictions are right; intercept (0 is right: predictions neither too low nor too high on the
    whole) and slope (1 is right; below 1: too extreme) of the logistic regression of the outcome on the log-odds.
    """
    who = np.arange(len(y)) if patients is None else np.asarray(patients)
    out: dict[str, Any] = {"n": len(y), "patients": len(np.unique(who)), "positives": int(y.sum())}
    if len(np.unique(y)) < 2:
        return out
    again, number = bootstrap_count_blocks(who, draws if out["patients"] > 1 else 0, seed)
    step = max(1, CELLS // len(y))
    parts = (times[k : k + step, number] for times in again for k in range(0, len(times), step))
    value, *drawn = (_yes_or_no(y, p, times) for times in (np.ones((1, len(y)), np.int32), *parts))
    found = {name: one for name, one in zip(YES_OR_NO, value[:, 0].tolist(), strict=True) if np.isfinite(one)}
    found["ece"], floor, near = calibration_error(y, p, who, draws=draws, seed=seed)
    intervals: dict[str, Any] = {}
    if drawn:
        found["ece_floor"], intervals["ece"] = floor, near
        fewest = fewest_groups(y, who)
        if fewest < FEWEST and np.ptp(p) > 0 and (judged := area(y == 1, p, who)):
            intervals["auroc"] = judged["interval"]
        for name, some in zip(YES_OR_NO, np.concatenate(drawn, 1), strict=True):
            if name in found and (interval := _interval(name, some, found[name], fewest, fewest)):
                intervals[name] = interval
    return out | found | {"intervals": intervals}


SHARES = ("accuracy", "auroc", "auprc", "macro_auroc", "c_index")
"""Figures from 0 to 1."""


def _interval(name: str, drawn: Any, value: float, independent: int, fewest: int) -> list[float] | None:
    """`share_interval` of a figure from 0 to 1, `percentile_interval` of another."""
    if name in SHARES:
        return share_interval(drawn, value, independent, fewest)
    return percentile_interval(drawn, fewest)


YES_OR_NO = ("brier", "slope", "intercept", "auroc", "auprc")


def _yes_or_no(y: np.ndarray, p: np.ndarray, times: np.ndarray) -> np.ndarray:
    """(figures, draws) of `YES_OR_NO` where each point stands `times` (draws, points); NaN where outcomes are alike."""
    areas = auroc_auprc(y, p, times)
    brier = np.where(np.isnan(areas[0]), np.nan, (times * (y - p) ** 2).sum(-1) / times.sum(-1))
    return np.stack([brier, *calibration_line(y, p, times)[::-1], *areas])


def _estimated(
    rules: Mapping[str, Rule],
    y: np.ndarray,
    p: np.ndarray,
    patients: np.ndarray,
    draws: int,
    seed: int,
    fewest: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Each rule's value, and under `intervals` its percentiles over resampled patients; one patient alone has none,
    and a rule of which `fewest` patients of a kind are too few (`percentile_interval`)."""
    drawn: dict[str, list[float]] = {name: [] for name in rules}
    again, number = bootstrap_count_blocks(patients, draws if len(np.unique(patients)) > 1 else 0, seed)
    for times in (row for some in again for row in some):
        i = np.repeat(np.arange(len(y)), times[number])
        if y.ndim > 1 or len(np.unique(y[i])) > 1:
            for name, rule in rules.items():
                drawn[name].append(rule(y[i], p[i]))
    out: dict[str, Any] = {"intervals": {}}
    for name, rule in rules.items():
        value = float(rule(y, p))
        if np.isfinite(value):
            out[name] = value
            few = (fewest or {}).get(name, FEWEST)
            independent = (fewest or {}).get(name, len(np.unique(patients)))
            if interval := _interval(name, drawn[name], value, independent, few):
                out["intervals"][name] = interval
    return out


def calibration_line(y: np.ndarray, p: np.ndarray, times: np.ndarray | None = None) -> np.ndarray:
    """(2, draws) intercept, at slope 1 (calibration in the large), and slope of the logistic regression of the outcome
    on the log-odds of the prediction (Cox 1958), of points that stand `times` each (draws, points; default once). NaN
    where predictions or outcomes are all alike."""
    times = np.ones((1, len(y))) if times is None else times
    x, one = log_odds(p), np.ones(len(y))
    ends = [[np.where(times > 0, sign * v, -np.inf).max(-1) for sign in (1, -1)] for v in (x, y)]
    vary = (sum(ends[0]) >= 1e-9) & (sum(ends[1]) > 0)
    out = np.full((2, len(times)), np.nan)
    out[0, vary] = _newton([one], y, x, times[vary])[:, 0]
    out[1, vary] = _newton([one, x], y, 0 * x, times[vary])[:, 1]
    return out


def _newton(columns: Sequence[np.ndarray], y: np.ndarray, offset: np.ndarray, times: np.ndarray) -> np.ndarray:
    """(draws, columns) coefficients of a logistic regression with an offset, of points that stand `times` each (draws,
    points); NaN where it does not converge (a perfect split)."""
    beta, left, size = np.zeros((len(times), len(columns))), np.arange(len(times)), len(columns)
    for _ in range(25):
        logit = sum((beta[left, k, None] * x for k, x in enumerate(columns)), offset)
        mean = 1 / (1 + np.exp(-np.clip(logit, -30, 30)))
        weight, rest = times[left] * mean * (1 - mean), times[left] * (y - mean)
        curve = np.stack([(weight * a * b).sum(-1) for a in columns for b in columns], -1).reshape(-1, size, size)
        uphill = np.stack([(rest * a).sum(-1) for a in columns], -1)
        move = np.linalg.solve(curve + 1e-10 * np.eye(size), uphill[..., None])[..., 0]
        beta[left] += np.clip(move, -3, 3)
        left = left[np.abs(move).max(-1) >= 1e-8]
        if not len(left):
            break
    beta[left] = np.nan
    return beta


def _log_loss(y: np.ndarray, p: np.ndarray) -> float:
    known = np.flatnonzero(y >= 0)
    return float(-np.log(p[known, y[known]].clip(1e-12)).mean()) if len(known) else float("nan")


def _macro_auroc(y: np.ndarray, p: np.ndarray) -> float:
    found = np.array([auroc_auprc(y == k, p[:, k])[0, 0] for k in range(p.shape[1])])
    return float("nan") if np.isnan(found).all() else float(np.nanmean(found))


def bins_of(p: np.ndarray, bins: int = 10) -> list[np.ndarray]:
    """Points in bins of equal count, from low to high predictions; equal predictions always share a bin, so that there
    may be fewer, and none depends on the order of the points."""
    if not len(p):
        return []
    turn = np.argsort(p, kind="stable")
    place = np.repeat(np.arange(bins), [len(part) for part in np.array_split(turn, bins)])
    edges = np.r_[0, np.flatnonzero(np.diff(p[turn])) + 1, len(p)]
    middle = place[(edges[:-1] + edges[1:] - 1) // 2]
    centres = np.repeat(middle, np.diff(edges))
    return [turn[centres == k] for k in np.unique(centres)]


def calibration_error(
    y: np.ndarray, p: np.ndarray, patients: np.ndarray, *, draws: int = 500, seed: int = 0
) -> tuple[float, float, list[float]]:
    """The expected calibration error (mean distance of predicted and observed share over bins of equal count, see
    `bins_of`) without what chance adds to it, its floor (that of right predictions, by chance alone), and a 95 %
    interval.

    Chance is drawn by a bootstrap under the null: what of each point is not explained by its bin, times a random sign
    per patient (a wild cluster bootstrap; Cameron, Gelbach & Miller 2008). The distances of bins shrink by its variance
    (all by one factor) before their bias is drawn, so that clear miscalibration is not made less. The true error and
    the estimate are apart by no more than chance moves all bins together, so that the interval holds the error, and 0
    where that is right.
    """
    groups = bins_of(p)
    place = np.empty(len(y), np.int64)
    for number, here in enumerate(groups):
        place[here] = number
    size = np.bincount(place)
    off = np.bincount(place, y - p) / len(y)  # of each bin, times its share of the points
    rest = y - p - (np.bincount(place, y - p) / size)[place]
    names, who = np.unique(patients, return_inverse=True)
    pairs = np.unique(np.stack([place, who.reshape(-1)]), axis=1)
    of = np.bincount(pairs[0])  # patients of each bin, one of whom its mean takes up
    rest = rest * (of / np.maximum(of - 1, 1))[place]
    signs = np.random.default_rng([seed, 7]).choice([-1.0, 1.0], (draws // 2 + 1, len(names)))
    per_patient = np.zeros((len(names), len(groups)))
    np.add.at(per_patient, (who.reshape(-1), place), rest / len(y))
    chance = signs @ per_patient
    chance = np.concatenate([chance, -chance])
    alone = np.abs(chance).sum(1)
    plain = float(np.abs(off).sum())
    shrunk = np.abs(off) * np.sqrt(max(1 - chance.var(0).sum() / max((off**2).sum(), 1e-12), 0))
    bias = float((np.abs(shrunk + chance).sum(1) - shrunk.sum()).mean())
    reach = float(np.quantile(alone, 0.95))
    return max(plain - bias, 0.0), float(alone.mean()), [max(plain - reach, 0.0), min(plain + reach, 1.0)]
