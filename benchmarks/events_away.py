"""In-hospital death at 48 h away from home: trained on one set of PhysioNet-2012, judged on another (a and c).

Ours is what `finetune outcome` saves by default, on a model pretrained on the training set for 200 steps. Rivals read
the same summaries; what is tuned is tuned by cross-validation on the training set. None sees the other set.

    python benchmarks/events_away.py [--steps 200] [--sheet]          LightGBM is a rival where it is installed
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sheets import Table, write_sheet

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("UNMASK_SHARED", ROOT.parent / "shared"))
DRAWS = 1000
MEAN = "mean log-odds of the three above"
GRID: list[dict[str, Any]] = [
    {"learning_rate": 0.05, "max_iter": 200, "max_leaf_nodes": 15},
    {"learning_rate": 0.03, "max_iter": 300, "max_leaf_nodes": 15, "l2_regularization": 10.0, "max_features": 0.2},
    {"learning_rate": 0.03, "max_iter": 300, "max_leaf_nodes": 7, "l2_regularization": 10.0, "max_features": 0.2},
    {"learning_rate": 0.02, "max_iter": 300, "max_leaf_nodes": 7, "l2_regularization": 1.0, "max_features": 0.5},
]
LIGHT: list[dict[str, Any]] = [
    {"learning_rate": 0.05, "n_estimators": 200, "num_leaves": 15, "min_child_samples": 20, "reg_lambda": 1.0},
    {"learning_rate": 0.03, "n_estimators": 300, "num_leaves": 15, "colsample_bytree": 0.2, "reg_lambda": 10.0},
    {"learning_rate": 0.03, "n_estimators": 300, "num_leaves": 7, "colsample_bytree": 0.2, "reg_lambda": 10.0},
]


def tuned(make: Callable[..., Any], grid: list[dict[str, Any]], x: np.ndarray, y: np.ndarray) -> Any:
    """A model with the settings that have the least log loss in three folds of the training set."""
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    scores = [cross_val_score(make(**g), x, y, cv=folds, scoring="neg_log_loss").mean() for g in grid]
    return make(**grid[int(np.argmax(scores))])


def rivals(x: np.ndarray, y: np.ndarray, new: np.ndarray, usual: np.ndarray) -> dict[str, np.ndarray]:
    """(points,) probabilities for `new`, by name."""
    from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from unmask.modalities.events.outcome.calibrating import geometric_mean

    there = ~np.isnan(x).all(0)
    x, new, usual = x[:, there], new[:, there], usual[there]
    filled = SimpleImputer(strategy="median")
    trees = ExtraTreesClassifier(500, min_samples_leaf=3, max_features=0.1, random_state=0)
    logistic = make_pipeline(filled, StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    plain = HistGradientBoostingClassifier(**GRID[0], min_samples_leaf=20, l2_regularization=1.0, random_state=0)
    models = {
        "gradient boosting": (plain, usual),
        "logistic regression": (logistic, usual),
        "extra trees": (make_pipeline(filled, trees), usual),
    }
    found = {n: model.fit(x[:, c], y).predict_proba(new[:, c])[:, 1] for n, (model, c) in models.items()}
    found[MEAN] = geometric_mean([np.stack([1 - p, p], 1) for p in found.values()])[:, 1]
    makes = {"HistGradientBoosting, tuned": (lambda **g: HistGradientBoostingClassifier(random_state=0, **g), GRID)}
    try:
        from lightgbm import LGBMClassifier

        light = {"random_state": 0, "n_jobs": 1, "verbose": -1}
        makes["LightGBM, tuned"] = (lambda **g: LGBMClassifier(**light, **g), LIGHT)
    except ImportError:
        print("LightGBM is not installed: left out")
    for name, (make, grid) in makes.items():
        found[name] = tuned(make, grid, x, y).fit(x, y).predict_proba(new)[:, 1]
    return found


def away(train: str, test: str, steps: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Outcomes of the other set, and what each model says of them."""
    from unmask.modalities.events.outcome.features import summarise, usual
    from unmask.modalities.events.outcome.targets import Binary
    from unmask.modalities.events.recipes import EventSettings, OutcomeSettings, with_overrides
    from unmask.modalities.events.records.labels import read_labels
    from unmask.modalities.events.records.meds import read_meds
    from unmask.modalities.events.uses.model import load
    from unmask.modalities.events.uses.pretrain import pretrain
    from unmask.modalities.events.uses.work import OutcomeWork

    sets = {s: read_meds(SHARED / f"data/events/physionet2012_{s}") for s in (train, test)}
    labels = {s: read_labels(SHARED / f"data/events/physionet2012_{s}/tasks/in_hospital_death", sets[s]) for s in sets}
    with tempfile.TemporaryDirectory() as folder:
        settings = with_overrides(EventSettings(), {"steps": steps})
        pretrain(sets[train], Path(folder) / "m", settings=settings, console=False)
        loaded = load(Path(folder) / "m")
    here, there = (loaded.histories(sets[s]) for s in (train, test))
    target = Binary()
    y, truth = labels[train].value, labels[test].value
    found: dict[str, np.ndarray] = {}
    more = "the same with states, not calibrated"
    for name, settings in (("ours", OutcomeSettings()), (more, OutcomeSettings(states=True))):
        work = OutcomeWork(loaded, here, labels[train], target, target.encode(labels[train]), settings)
        head, _, fitted = work.fit(np.arange(len(y)), intervals=name == "ours")
        x = loaded.features(there, labels[test], states=bool(settings.states), summaries=True, answers=False)
        voices = head.voices(x, target)
        found[name] = fitted.finished(target.blend([*voices.values()]), there, labels[test])[:, 0]
        if name == "ours":
            found |= {f"its {part} alone": p[:, 0] for part, p in voices.items()}
    (a, names), (b, _) = (summarise(histories, labels[s]) for histories, s in ((here, train), (there, test)))
    found |= rivals(a, y, b, usual(names)) | {"prevalence": np.full(len(truth), y.mean())}
    return truth, found


def rows(y: np.ndarray, found: dict[str, np.ndarray]) -> list[tuple[str, ...]]:
    """Figures of each, and ours less it with intervals over resampled patients (each has one point)."""
    from unmask.evaluation.resampling import auroc_auprc
    from unmask.modalities.events.outcome.scoring import calibration_line

    rng = np.random.default_rng(0)
    whole = [np.ones(len(y), int)]
    times = np.stack(whole + [np.bincount(rng.integers(0, len(y), len(y)), minlength=len(y)) for _ in range(DRAWS)])
    drawn = {name: auroc_auprc(y, p, times) for name, p in found.items()}
    out = []
    for name, p in found.items():
        auroc, auprc = drawn[name][:, 0]
        line = calibration_line(y.astype(float), p)[:, 0]
        slope = "" if np.isnan(line[1]) else f"{line[1]:.2f}"
        row = [name, f"{auroc:.3f}", f"{auprc:.3f}", f"{((y - p) ** 2).mean():.4f}", slope]
        for gap in drawn["ours"] - drawn[name]:
            low, high = np.quantile(gap[1:], [0.025, 0.975])
            row.append("" if name == "ours" else f"{gap[0]:+.3f} ({low:+.3f} to {high:+.3f})")
        print(*row, sep="\t", flush=True)
        out.append(tuple(row))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of pretraining")
    parser.add_argument("--sheet", action="store_true", help="write docs/results/events-away.json")
    parser.add_argument("--processor", default="one busy core")
    given = parser.parse_args()
    if not (SHARED / "data/events/physionet2012_c").exists():
        print(f"{SHARED}/data/events/physionet2012_c is not there: nothing to measure")
        return
    tables = []
    for train, test in (("a", "c"), ("c", "a")):
        columns = (f"set {train} to set {test}", "AUROC", "AUPRC", "Brier", "slope", "AUROC, ours less it")
        tables.append(
            Table(columns=(*columns, "AUPRC, ours less it"), rows=tuple(rows(*away(train, test, given.steps))))
        )
    if given.sheet:
        write_sheet(
            "events-away",
            *tables,
            title="In-hospital death, judged on another set",
            says="PhysioNet-2012, 4,000 stays per set; trained on all of one, judged on all of the other. Ours is what "
            f"`finetune outcome` saves by default, after {given.steps} steps of pretraining on the training set. "
            "Rivals read the same summaries; tuned ones take the settings with the least log loss in three folds of "
            "the training set. Intervals of 95 % resample patients, paired.",
            command="python benchmarks/events_away.py --sheet",
            processor=given.processor,
            seeds="one",
            sources="src/unmask/modalities/events/outcome",
        )


if __name__ == "__main__":
    main()
