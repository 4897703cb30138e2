"""Figures of predictions with bootstrap intervals, and the baselines fitted beside them."""

from __future__ import annotations

from typing import Any

import numpy as np

from unmask.evaluation.survival import concordance
from unmask.events.features import Features, blocks
from unmask.events.meds import Labels
from unmask.events.targets import Binary, Classes, Labelled


def scored(target: Labelled, labels: Labels, p: np.ndarray, *, draws: int = 500, seed: int = 0) -> dict[str, Any]:
    """Figures of probabilities (points, outputs) as the kind of label wants them, each with its interval.

    Binary: AUROC, AUPRC, Brier score, calibration. Classes: accuracy, AUROC one against the rest, averaged, log loss.
    Time to an event: Harrell's C. A figure that these labels do not define is left out, and so is its interval. A class
    that training did not have counts against the accuracy and has no part in the log loss.
    """
    y = target.encode(labels)
    if isinstance(target, Binary):
        return figures(y[:, 0].astype(np.int64), p[:, 0], draws=draws, seed=seed)
    if isinstance(target, Classes):
        rules = {"accuracy": _accuracy, "macro_auroc": _macro_auroc, "log_loss": _log_loss}
        known = y[y[:, 0] >= 0, 0]
        out: dict[str, Any] = {"n": len(y), "classes": np.bincount(known, minlength=p.shape[1]).tolist()}
        return out | _estimated(rules, y[:, 0], p, draws, seed)
    assert labels.days is not None
    out = {"n": len(y), "events": int(y[:, 1].sum())}
    both = np.stack([labels.days, y[:, 1]], 1)
    return out | _estimated({"c_index": _c_index}, both, p.mean(1), min(draws, 100), seed)


def constant(target: Binary | Classes, labels: Labels) -> np.ndarray:
    """(points, outputs) of a prediction that is the same for all: the shares of these labels themselves."""
    y = target.encode(labels)[:, 0].astype(np.int64)
    if isinstance(target, Binary):
        return np.full((len(y), 1), y.mean())
    count = np.bincount(y[y >= 0], minlength=target.outputs)
    return np.tile(count / max(1, count.sum()), (len(y), 1))


def figures(y: np.ndarray, p: np.ndarray, *, draws: int = 500, seed: int = 0) -> dict[str, Any]:
    """AUROC, AUPRC, Brier score and calibration (expected error over 10 equal-count bins), with bootstrap intervals."""
    from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

    rules = {"auroc": roc_auc_score, "auprc": average_precision_score, "brier": brier_score_loss, "ece": calibration}
    out: dict[str, Any] = {"n": len(y), "positives": int(y.sum())}
    return out if len(np.unique(y)) < 2 else out | _estimated(rules, y, p, draws, seed)


def _estimated(rules: dict[str, Any], y: np.ndarray, p: np.ndarray, draws: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    again = [rng.integers(0, len(y), len(y)) for _ in range(draws)]
    again = [i for i in again if y.ndim > 1 or len(np.unique(y[i])) > 1]
    out: dict[str, Any] = {"intervals": {}}
    for name, rule in rules.items():
        value, drawn = float(rule(y, p)), np.array([rule(y[i], p[i]) for i in again])
        if np.isfinite(value):
            out[name] = value
            if np.isfinite(drawn).any():
                out["intervals"][name] = np.nanquantile(drawn, [0.025, 0.975]).tolist()
    return out


def _accuracy(y: np.ndarray, p: np.ndarray) -> float:
    return float((p.argmax(1) == y).mean())


def _log_loss(y: np.ndarray, p: np.ndarray) -> float:
    known = np.flatnonzero(y >= 0)
    return float(-np.log(p[known, y[known]].clip(1e-12)).mean()) if len(known) else float("nan")


def _macro_auroc(y: np.ndarray, p: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    both = [k for k in range(p.shape[1]) if 0 < (y == k).sum() < len(y)]
    return float(np.mean([roc_auc_score(y == k, p[:, k]) for k in both])) if both else float("nan")


def _c_index(both: np.ndarray, risk: np.ndarray) -> float:
    return concordance(risk, both[:, 0], both[:, 1])


def calibration(y: np.ndarray, p: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error: mean distance of predicted and observed share over bins of equal count."""
    parts = np.array_split(np.argsort(p, kind="stable"), bins)
    return float(sum(len(i) * abs(p[i].mean() - y[i].mean()) for i in parts if len(i)) / len(y))


def baselines(
    x: np.ndarray, y: np.ndarray, test: np.ndarray | Features, *, last: np.ndarray, classes: int = 2, seed: int = 0
) -> dict[str, np.ndarray]:
    """Probabilities for `test`, (points, classes), of models fitted on summaries.

    Prevalence; logistic regression on last values alone, and on everything; gradient boosting on everything.

    Args:
        x, test: (points, features) summaries, NaN where missing.
        y: class numbers.
        last: which features are last values.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    told = ~np.isnan(x).all(0)  # a feature without a single value is refused by some versions of scikit-learn
    x, last = x[:, told], last[told]

    def logistic() -> Any:
        steps = SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler()
        return make_pipeline(*steps, LogisticRegression(C=0.01, max_iter=1000))

    boosting = HistGradientBoostingClassifier(
        learning_rate=0.05, max_iter=200, max_leaf_nodes=15, min_samples_leaf=20, l2_regularization=1.0,
        random_state=seed,
    )  # fmt: skip
    share = np.bincount(y, minlength=classes) / len(y)
    out = {"prevalence": np.tile(share, (len(test), 1))}
    known = np.unique(y)
    every = np.ones(len(last), bool)
    models = [
        ("last values", logistic(), last),
        ("logistic regression", logistic(), every),
        ("gradient boosting", boosting, every),
    ]
    for name, model, used in models:
        if used.any():
            out[name] = np.zeros((len(test), classes))
            model.fit(x[:, used], y)
            for here in blocks(len(test)):
                out[name][here, known] = model.predict_proba(test[here][:, told][:, used])
    return out
