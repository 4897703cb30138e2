"""How synthetic rows compare with real ones: figures on plain arrays, each beside a ceiling and a floor where it needs
a scale.

What they give away of real ones stands in `privacy`. Arrays are complete: (columns) of values or category numbers, and
`sizes` with the number of categories, 0 for a quantity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from unmask.evaluation.survival import concordance, kaplan_meier, step_values
from unmask.modalities.table.survival.estimators import cumulative_incidence, deviation, fit_cox
from unmask.modalities.table.survival.hazards import fit_baseline

Columns = Sequence[np.ndarray]


class Cohort(NamedTuple):
    """Regressors (rows, covariates) and outcomes of some rows; event 0 is censored, k the k-th cause."""

    x: np.ndarray
    time: np.ndarray
    event: np.ndarray
    entry: np.ndarray | None = None

    def of(self, cause: int) -> Cohort:
        """With this cause as the event, the others censored."""
        return self._replace(event=(self.event == cause).astype(float))

    def survival(self, at: np.ndarray) -> np.ndarray:
        """The Kaplan-Meier curve at some times."""
        return step_values(*kaplan_meier(self.time, self.event, self.entry), at)

    def incidence(self, cause: int, at: np.ndarray) -> np.ndarray:
        """The cumulative incidence of a cause (Aalen-Johansen) at some times."""
        return step_values(*cumulative_incidence(self.time, self.event, cause, self.entry), at, start=0.0)


def wide(columns: Columns, sizes: Sequence[int], reference: Columns | None = None) -> np.ndarray:
    """(rows, features): quantities standardised by the reference, categories as indicators over sqrt(2)."""
    reference = columns if reference is None else reference
    parts = []
    for x, r, size in zip(columns, reference, sizes, strict=True):
        if size:
            parts.append((x[:, None] == np.arange(size)) / np.sqrt(2))
        else:
            parts.append(((x - r.mean()) / deviation(r))[:, None])
    return np.hstack(parts).astype(np.float64)


def marginals(real: Columns, synthetic: Columns, sizes: Sequence[int]) -> list[float]:
    """Per column: Kolmogorov-Smirnov distance of a quantity, total variation of categories; 0 is equal."""
    out = []
    for a, b, size in zip(real, synthetic, sizes, strict=True):
        if size:
            p, q = (np.bincount(x.astype(int), minlength=size) / len(x) for x in (a, b))
            out.append(float(np.abs(p - q).sum() / 2))
        else:
            grid = np.sort(np.r_[a, b])
            p, q = (np.searchsorted(np.sort(x), grid, side="right") / len(x) for x in (a, b))
            out.append(float(np.abs(p - q).max()))
    return out


def correlation_gap(real: Columns, synthetic: Columns, sizes: Sequence[int]) -> float:
    """Mean absolute difference of the correlations between all pairs of columns' features (ranks of quantities)."""
    matrices = []
    for columns in (real, synthetic):
        ranked = [
            x if size else np.argsort(np.argsort(x, kind="stable")).astype(float)
            for x, size in zip(columns, sizes, strict=True)
        ]
        features = wide(ranked, sizes)
        spread = features.std(0)
        safe = np.where(spread > 1e-9, spread, 1.0)
        z = np.where(spread > 1e-9, (features - features.mean(0)) / safe, 0.0)
        matrices.append(z.T @ z / len(z))
    upper = np.triu_indices(len(matrices[0]), 1)
    return float(np.abs(matrices[0] - matrices[1])[upper].mean())


def hazard_ratios(
    real: Cohort,
    synthetic: Cohort,
    names: Sequence[str],
) -> dict[str, Any]:
    """Log hazard ratios of one regression on both: mean |difference|, interval overlap, sign flips, one row per name.
    `real`, `synthetic`: regressors and outcomes. Regressors are taken in units of the real deviation, so that the mean
    difference is over comparable numbers; ratios in the rows are per such unit for quantities."""
    scale = np.where(np.array([len(np.unique(c)) for c in real.x.T]) > 2, deviation(real.x), 1.0)
    fits = [fit_cox(g.x / scale, g.time, g.event, entry=g.entry, ridge=1e-4) for g in (real, synthetic)]
    a, b = fits
    # Separated or absent levels have no hazard ratio to speak of.
    use = (a.error < 2) & (a.error > 1e-8) & (np.abs(a.beta) < 8)
    low, high = ([f.beta + side * 1.96 * f.error for f in fits] for side in (-1, 1))
    shared = np.minimum(high[0], high[1]) - np.maximum(low[0], low[1])
    widths = [np.maximum(h - lo, 1e-9) for lo, h in zip(low, high, strict=True)]
    overlap = 0.5 * (shared / widths[0] + shared / widths[1])
    overlap = np.where(b.error > 5, 0.0, overlap)
    gap = np.minimum(np.abs(a.beta - b.beta), 8.0)
    difference = gap / np.sqrt(a.error**2 + b.error**2 + 1e-12)
    rows = [
        {
            "name": n,
            "real": float(np.exp(a.beta[i])),
            "real_low": float(np.exp(low[0][i])),
            "real_high": float(np.exp(high[0][i])),
            "synthetic": float(np.exp(np.clip(b.beta[i], -20, 20))),
            "synthetic_low": float(np.exp(np.clip(low[1][i], -20, 20))),
            "synthetic_high": float(np.exp(np.clip(high[1][i], -20, 20))),
            "overlap": float(overlap[i]),
            "standardised_difference": float(difference[i]),
        }
        for i, n in enumerate(names)
        if use[i]
    ]
    flips = (np.sign(a.beta) != np.sign(b.beta)) & (np.abs(a.beta) > 1.96 * a.error) & (np.abs(b.beta) > 1.96 * b.error)
    return {
        "mean_log_hr_difference": float(gap[use].mean()),
        "interval_overlap": float(overlap[use].mean()),
        "sign_flips": int(flips[use].sum()),
        "hazard_ratios": rows,
        "compared": int(use.sum()),
    }


def transfer(train: Cohort, test: Cohort) -> float:
    """C-index on `test` of a Cox regression fitted on `train`."""
    scale = deviation(train.x)
    fitted = fit_cox(train.x / scale, train.time, train.event, entry=train.entry, ridge=1.0)
    return concordance((test.x / scale) @ fitted.beta, test.time, test.event, test.entry)


def curve_area(real: Cohort, synthetic: Cohort) -> float:
    """Mean absolute distance between two groups' Kaplan-Meier curves, from 0 to the real follow-up's end, 0 to 1."""
    t = np.linspace(0, float(real.time.max()), 2000)
    return float(np.abs(real.survival(t) - synthetic.survival(t)).mean())


def incidence_area(real: Cohort, synthetic: Cohort, cause: int) -> float:
    """Mean absolute distance between two groups' cumulative incidence of a cause (Aalen-Johansen), as `curve_area`."""
    t = np.linspace(0, float(real.time.max()), 2000)
    return float(np.abs(real.incidence(cause, t) - synthetic.incidence(cause, t)).mean())


def survival_figures(
    real: Cohort, synthetic: Cohort, names: Sequence[str], causes: Sequence[str] = ()
) -> dict[str, Any]:
    """Hazard ratios, Kaplan-Meier and censoring curves, and train-on-synthetic-test-on-real C-index. `real`,
    `synthetic`: regressors and outcomes; also plain tuples (x, time, event); `causes`: of competing risks, their names:
    hazard ratios and C-index are then of each cause (the others censored) and their means over causes, with the area
    between curves of cumulative incidence. A cause that either group lacks is left out, and listed under
    `causes_left_out`."""
    real, synthetic = Cohort(*real), Cohort(*synthetic)
    censored = [g.of(0) for g in (real, synthetic)]
    shared = {"km_area": curve_area(real, synthetic), "censoring_area": curve_area(*censored)}
    if len(causes) < 2:
        return hazard_ratios(real, synthetic, names) | shared | _c_indices(real, synthetic)
    each: dict[str, dict[str, Any]] = {}
    for k, cause in enumerate(causes, 1):
        a, b = real.of(k), synthetic.of(k)
        if a.event.any() and b.event.any():
            found = hazard_ratios(a, b, [f"{n} ({cause})" for n in names]) | _c_indices(a, b)
            each[cause] = found | {"incidence_area": incidence_area(real, synthetic, k)}
    if not each:
        raise ValueError("no cause happened in both groups")
    rows = [row for found in each.values() for row in found.pop("hazard_ratios")]
    means = {
        key: float(np.mean([found[key] for found in each.values()]))
        for key in ("mean_log_hr_difference", "interval_overlap", "c_index_real", "c_index_synthetic", "incidence_area")
    }
    totals = {key: sum(found[key] for found in each.values()) for key in ("sign_flips", "compared")}
    absent = [c for c in causes if c not in each]
    out = means | totals | shared | {"hazard_ratios": rows, "causes": each}
    return out | ({"causes_left_out": absent} if absent else {})


def _c_indices(real: Cohort, synthetic: Cohort) -> dict[str, float]:
    return {"c_index_real": transfer(real, real), "c_index_synthetic": transfer(synthetic, real)}


def independent(columns: Columns, seed: int) -> list[np.ndarray]:
    """The floor: every column shuffled on its own."""
    rng = np.random.default_rng([seed, 1])
    return [rng.permutation(x) for x in columns]


def bootstrap(columns: Columns, seed: int, rows: int | None = None) -> list[np.ndarray]:
    """The ceiling: real rows drawn with replacement."""
    rng = np.random.default_rng([seed, 2])
    take = rng.integers(0, len(columns[0]), rows or len(columns[0]))
    return [x[take] for x in columns]


def two_sample_auc(real: Columns, synthetic: Columns, seed: int = 0) -> float:
    """AUC of gradient-boosted trees that tell real from synthetic, in 3-fold cross-validation; 0.5 is as
    good as real."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    n = min(len(real[0]), len(synthetic[0]), 3000)
    rng = np.random.default_rng([seed, 3])
    x = np.vstack([np.column_stack(c)[rng.permutation(len(c[0]))[:n]] for c in (real, synthetic)])
    y = np.r_[np.zeros(n), np.ones(n)]
    trees = HistGradientBoostingClassifier(max_iter=60, random_state=seed)
    folds = StratifiedKFold(3, shuffle=True, random_state=seed)
    return float(roc_auc_score(y, cross_val_predict(trees, x, y, cv=folds, method="predict_proba")[:, 1]))


def nearest(a: np.ndarray, b: np.ndarray, *, skip_self: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Distance and index of each row of `a`'s nearest row in `b`."""
    from sklearn.neighbors import NearestNeighbors

    found = NearestNeighbors(n_neighbors=1 + skip_self).fit(b).kneighbors(a)
    return found[0][:, -1], found[1][:, -1]


def precision_recall(
    real: np.ndarray, synthetic: np.ndarray, *, most: int = 5000, seed: int = 0
) -> tuple[float, float]:
    """Alpha-precision and beta-recall (Alaa et al. 2022), 1 is best: do synthetic rows lie as deep inside the real
    cloud as real ones, and do they cover it? Of more than `most` real rows a sample is asked for its nearest rows among
    all."""
    shares = np.linspace(0, 1, 31)[1:-1]
    center, own = real.mean(0), synthetic.mean(0)
    radius = np.quantile(np.linalg.norm(real - center, axis=1), shares)
    inside = np.array([(np.linalg.norm(synthetic - center, axis=1) <= r).mean() for r in radius])
    rows = len(real)
    queries = real if rows <= most else real[np.random.default_rng([seed, 6]).permutation(rows)[:most]]
    to_real, _ = nearest(queries, real, skip_self=True)
    to_synthetic, which = nearest(queries, synthetic)
    depth = np.linalg.norm(synthetic - own, axis=1)
    radius = np.quantile(depth, shares)
    covered = np.array([((to_synthetic <= to_real) & (depth[which] <= r)).mean() for r in radius])
    score = [1 - 2 * float(np.trapezoid(np.abs(shares - c), shares)) for c in (inside, covered)]
    return score[0], score[1]


def calibration(
    risk: np.ndarray, time: np.ndarray, event: np.ndarray, at: float, bins: int = 10, entry: np.ndarray | None = None
) -> tuple[float, float]:
    """Slope through the origin and mean absolute error of predicted risks by time `at`, against Kaplan-Meier rates
    observed in bins of risk of the very same rows."""
    edges = np.quantile(risk, np.linspace(0, 1, bins + 1))
    number = np.clip(np.searchsorted(edges, risk, side="right") - 1, 0, bins - 1)
    predicted, observed, weight = [], [], []
    for k in np.unique(number):
        here = number == k
        alive = step_values(
            *kaplan_meier(time[here], event[here], None if entry is None else entry[here]), np.array([at])
        )[0]
        predicted.append(risk[here].mean())
        observed.append(1 - alive)
        weight.append(here.mean())
    p, o, w = np.array(predicted), np.array(observed), np.array(weight)
    slope = float((w * p * o).sum() / max(float((w * p * p).sum()), 1e-12))
    return slope, float((w * np.abs(p - o)).sum())


def risks(
    train: Cohort,
    x: np.ndarray,
    at: np.ndarray,
    weight: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(rows, times) risks of an event by each time from a Cox regression, and the linear predictors."""
    train = Cohort(*train)
    center, scale = train.x.mean(0), deviation(train.x)
    z, new = (train.x - center) / scale, (x - center) / scale
    base = fit_baseline(z, train.time, train.event, 1.0, entry=train.entry, weight=weight)
    linear = np.clip((new - np.average(z, axis=0, weights=weight)) @ base.beta, -30, 30)
    total = step_values(base.at, base.hazard, at, start=0.0)
    return 1 - np.exp(-np.exp(linear)[:, None] * total[None]), linear
