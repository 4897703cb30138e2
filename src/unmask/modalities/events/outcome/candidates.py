"""Candidates: the simpler models that an outcome head is compared with, each by its name, on the same points.

A constant; age and number of events; for numbers the last value of a code; and scikit-learn's models on the summaries.
Sicker patients are older and have longer records, so a model may score well for counting alone: age and number of
events go into the folder, and `evaluate` reports them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unmask.modalities.events.outcome.features import Features, blocks
from unmask.modalities.events.outcome.number import MOST_POINTS, LastValue, codes_of, last_values_in_units, rules
from unmask.modalities.events.outcome.targets import NumberTarget, Sorted, Target
from unmask.modalities.events.outcome.trees import BOOSTING
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import Labels

FEWEST = 10
"""Labels that anything is trained on."""
BASELINE_BYTES = 400e6
"""Features, in double precision, that candidates are fitted on."""
PENALTY = 1e-3
"""Of age and count, on the squared weights, added to the mean loss."""
ALPHAS = (1.0, 10.0, 100.0)
"""Penalties of ridge regression that are tried."""
TRIED = 2000
"""Training points that ridge regression's inputs and penalty are chosen by."""
Model = tuple[str, Any, np.ndarray]
"""Name, scikit-learn estimator, and which columns it reads."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Candidates for a task: fitted on some of its points, they predict others. `y`: targets of all points; `plain`: of
    all points the features that candidates are fitted on; `last`: those of them that are last values."""

    histories: Histories
    points: Labels
    target: Target
    y: np.ndarray
    plain: Features
    last: np.ndarray
    seed: int

    def age_and_count(self, train: np.ndarray) -> AgeAndCount:
        """Age and number of events, fitted on some training points."""
        return AgeAndCount.fit(self.histories, self.points.take(train), self.y[train], self.target, seed=self.seed)

    def predict(self, train: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
        """(points, outputs) for `test`, by name of the candidate: first the constant, then age and number of events.
        scikit-learn's models need their points in memory: of very many a random part is taken, which their names say.
        """
        rule, target = self.age_and_count(train), self.target
        counted = {rule.name: rule.predict(self.histories, self.points.take(test), target)}
        if not isinstance(target, Sorted | NumberTarget):
            start = 1 / (1 + np.exp(-target.start(self.y[train])))
            return {"prevalence": np.tile(1 - np.cumprod(1 - start), (len(test), 1)), **counted}
        few, part = train, ""
        most = max(FEWEST, int(BASELINE_BYTES / 8 / max(1, self.plain.shape[1])))
        if len(train) > most:
            few = np.sort(np.random.default_rng([self.seed, 79]).permutation(train)[:most])
            part = f" ({most:,} points)"
        if isinstance(target, NumberTarget):
            found = self._of_numbers(target, few, test)
        else:
            x, y = self.plain[few], target.strata(self.y[few])
            found = class_models(x, y, self.plain.part(test), last=self.last, classes=target.classes, seed=self.seed)
            found = {name: p[:, -target.outputs :] for name, p in found.items()}  # of a yes or no that of yes alone
        constant, *others = ((name + part, p) for name, p in found.items())
        return dict([constant, *counted.items(), *others])

    def _of_numbers(self, target: NumberTarget, few: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
        codes = codes_of(self.histories)
        before, now = (last_values_in_units(self.histories, self.points.take(part), codes) for part in (few, test))
        found = number_models(
            self.plain[few],
            self.y[few, 0],
            self.plain.part(test),
            groups=self.points.subject[few],
            values=(before, now) if codes else None,
            seed=self.seed,
        )
        expected = {r.name: r.predict(now[:, codes.index(r.code)])[:, None] for r in self.last_values(few)}
        mean = {"training mean": found.pop("training mean")}
        return mean | {name: (p - target.centre) / target.spread for name, p in expected.items()} | found

    def last_values(self, train: np.ndarray) -> list[LastValue]:
        """Rules of thumb fitted on some training points (of very many on a random part)."""
        few = np.sort(np.random.default_rng([self.seed, 89]).permutation(train)[:MOST_POINTS])
        codes = codes_of(self.histories)
        value = last_values_in_units(self.histories, self.points.take(few), codes)
        return rules(value, self.points.amounts[few], codes)


@dataclass(frozen=True, kw_only=True)
class AgeAndCount:
    """Regression (logistic, softmax, linear or of discrete-time hazards, as the target is) on the age in years, the
    logarithm of 1 + number of known events, both squares, and whether the age is known.

    `centre`, `spread`: (2,) of age and logarithm at the training points. `weights`: (outputs, 6), the last of each the
    intercept. `known`: of which share of the training points the age was.
    """

    centre: list[float]
    spread: list[float]
    weights: list[list[float]]
    known: float

    @property
    def name(self) -> str:
        """What it knows: where no birth is an event, no age.

        >>> AgeAndCount(centre=[], spread=[], weights=[], known=0.0).name
        'number of events'
        >>> AgeAndCount(centre=[], spread=[], weights=[], known=0.634).name
        'age (known of 63 %) and number of events'
        """
        if self.known == 0:
            return "number of events"
        return (
            "age and number of events"
            if self.known == 1
            else f"age (known of {100 * self.known:.0f} %) and number of events"
        )

    @classmethod
    def fit(cls, histories: Histories, points: Labels, y: np.ndarray, target: Target, seed: int = 0) -> AgeAndCount:
        """Fitted on training points; `y`: their labels, as the target encodes them."""
        some = np.sort(np.random.default_rng([seed, 101]).permutation(len(points))[:MOST_POINTS])
        known, y = age_and_count(histories, points.take(some)), y[some]
        seen = np.isfinite(known)
        count = np.maximum(seen.sum(0), 1)
        centre = np.where(seen, known, 0).sum(0) / count
        spread = np.sqrt((np.where(seen, known - centre, 0) ** 2).sum(0) / count)
        spread = np.where(spread > 1e-9, spread, 1.0)
        x = torch.from_numpy(_inputs(known, centre, spread))
        wanted = torch.from_numpy(y if y.dtype == np.int64 else y.astype(np.float64))
        weights = torch.zeros(target.outputs, x.shape[1], dtype=torch.float64)
        weights[:, -1] = torch.from_numpy(np.asarray(target.start(y), np.float64))
        weights.requires_grad_()
        optimiser = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimiser.zero_grad()
            loss = target.loss((x @ weights.T)[None], wanted).mean() + PENALTY * (weights[:, :-1] ** 2).sum()
            loss.backward()
            return loss

        optimiser.step(closure)
        found = weights.detach()
        return cls(
            centre=centre.tolist(), spread=spread.tolist(), weights=found.tolist(), known=float(seen[:, 0].mean())
        )

    def predict(self, histories: Histories, points: Labels, target: Target) -> np.ndarray:
        """(points, outputs) as the target's probabilities; of numbers the expected one alone, (points, 1)."""
        x = _inputs(age_and_count(histories, points), np.array(self.centre), np.array(self.spread))
        logits = torch.from_numpy(x @ np.array(self.weights).T)
        p = target.probabilities(logits[None]).numpy()
        return p[:, :1] if target.kind == "number" else p


def age_and_count(histories: Histories, points: Labels) -> np.ndarray:
    """(points, 2) age in years at each point, NaN where birth is not known, and the logarithm of 1 + known events."""
    moments = zip(points.subject.tolist(), points.time.tolist(), strict=True)
    found = [(histories.age(s, t, t) or np.nan, np.log1p(histories.known(s, t))) for s, t in moments]
    return np.array(found, np.float64).reshape(-1, 2)


def _inputs(known: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """(points, 6): standardised, squares, whether the age is known, and 1."""
    z = np.nan_to_num((known - centre) / spread).clip(-5, 5)
    return np.concatenate([z, z**2, np.isfinite(known[:, :1]), np.ones((len(z), 1))], 1)


def class_models(
    x: np.ndarray, y: np.ndarray, test: np.ndarray | Features, *, last: np.ndarray, classes: int = 2, seed: int = 0
) -> dict[str, np.ndarray]:
    """(points, classes) probabilities for `test`, of models fitted on summaries `x` (points, features; NaN where
    missing) and class numbers `y`: prevalence; logistic regression on last values (the features `last`) alone, and on
    everything; gradient boosting on everything."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression

    known, every = np.unique(y), ~np.isnan(x).all(0)
    models: list[Model] = [
        ("last values", _standardised(LogisticRegression(C=0.01, max_iter=1000)), every & last),
        ("logistic regression", _standardised(LogisticRegression(C=0.01, max_iter=1000)), every),
        ("gradient boosting", HistGradientBoostingClassifier(**BOOSTING, random_state=seed), every),
    ]

    def probabilities(model: Any, part: np.ndarray) -> np.ndarray:
        out = np.zeros((len(part), classes))
        out[:, known] = model.predict_proba(part)
        return out

    share = np.bincount(y, minlength=classes) / len(y)
    return {"prevalence": np.tile(share, (len(test), 1))} | _predicted(models, x, y, test, probabilities)


def number_models(
    x: np.ndarray,
    y: np.ndarray,
    test: np.ndarray | Features,
    *,
    groups: np.ndarray,
    values: tuple[np.ndarray, np.ndarray] | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """(points, 1) expected standardised numbers for `test`, of models fitted on summaries `x` (points, features; NaN
    where missing): the training mean, ridge regression, and gradient boosting. Ridge regression reads the summaries, or
    with them the last values in their own units (`values`: those of `x` and of `test`) and whether each is there: what
    predicts training patients (`groups`) set apart better, and so does its penalty."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import Ridge

    summaries, both = ~np.isnan(x).all(0), x if values is None else np.concatenate([x, values[0]], 1)
    every = np.r_[summaries, np.ones(both.shape[1] - x.shape[1], bool)]
    summaries = every & (np.arange(len(every)) < x.shape[1])
    out = {"training mean": np.full((len(test), 1), y.mean())}
    if not summaries.any():
        return out
    used, alpha = _ridge_for(both, [summaries] if values is None else [summaries, every], y, groups, seed)
    models: list[Model] = [
        ("ridge regression", _standardised(Ridge(alpha=alpha), flags=True), used),
        ("gradient boosting", HistGradientBoostingRegressor(**BOOSTING, random_state=seed), summaries),
    ]
    more = None if values is None else values[1]
    return out | _predicted(models, both, y, test, lambda model, part: model.predict(part)[:, None], more)


def _predicted(
    models: Sequence[Model],
    x: np.ndarray,
    y: np.ndarray,
    test: np.ndarray | Features,
    predict: Callable[[Any, np.ndarray], np.ndarray],
    more: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Predictions for `test`, some points at a time, of each model that has columns to read; `more`: further columns of
    `test`."""
    models = [(name, model.fit(x[:, used], y), used) for name, model, used in models if used.any()]
    parts: dict[str, list[np.ndarray]] = {name: [] for name, *_ in models}
    for here in blocks(len(test)):
        part = test[here] if more is None else np.concatenate([test[here], more[here]], 1)
        for name, model, used in models:
            parts[name].append(predict(model, part[:, used]))
    return {name: np.concatenate(found) for name, found in parts.items()}


def _standardised(*last: Any, flags: bool = False) -> Any:
    """A pipeline: gaps filled with medians, with `flags` of what is missing, then standardised."""
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    imputer = SimpleImputer(strategy="median", keep_empty_features=True, add_indicator=flags)
    return make_pipeline(imputer, StandardScaler(), *last)


def _ridge_for(
    x: np.ndarray, columns: Sequence[np.ndarray], y: np.ndarray, groups: np.ndarray, seed: int
) -> tuple[np.ndarray, float]:
    """Which columns, and which penalty, predict patients set apart best."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GroupKFold

    some = np.sort(np.random.default_rng([seed, 97]).permutation(len(y))[:TRIED])
    patients = len(np.unique(groups[some]))
    if patients < 2:
        return columns[0], max(ALPHAS)
    error: dict[tuple[int, float], float] = {}
    for which, used in enumerate(columns):
        for a, b in GroupKFold(min(5, patients)).split(some, groups=groups[some]):
            scale = _standardised(flags=True).fit(x[some[a]][:, used])
            seen, left = scale.transform(x[some[a]][:, used]), scale.transform(x[some[b]][:, used])
            for alpha in ALPHAS:
                off = Ridge(alpha=alpha).fit(seen, y[some[a]]).predict(left) - y[some[b]]
                error[which, alpha] = error.get((which, alpha), 0.0) + float((off**2).sum())
    which, alpha = min(error, key=lambda k: error[k])
    return columns[which], alpha
