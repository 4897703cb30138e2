"""What the patient's age and the number of known events say of an outcome by themselves: the rule that any model of
events has to beat.

Sicker patients are older and have longer records, so a model may look good for counting alone. Fitted on training
points; its figures stand beside the model's in the report and in `evaluate`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from unmask.modalities.events.outcome.targets import Labelled, Target
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import Labels

NAME = "age and number of events"
MOST_POINTS = 20_000
"""Training points that it is fitted on; of more a random part."""
PENALTY = 1e-3
"""On the squared weights, beside the mean loss."""


@dataclass(frozen=True, kw_only=True)
class AgeAndCount:
    """Regression (logistic, softmax, linear or of discrete-time hazards, as the target is) on the age in years, the
    logarithm of 1 + number of known events, both squares, and whether the age is known.

    Attributes:
        centre, spread: (2,) of age and logarithm at the training points.
        weights: (outputs, 6), the last of each the intercept.
        known: of how many training points the age was, a share.
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
        return NAME if self.known == 1 else f"age (known of {100 * self.known:.0f} %) and number of events"

    @classmethod
    def fit(cls, histories: Histories, points: Labels, y: np.ndarray, target: Labelled, seed: int = 0) -> AgeAndCount:
        """Fitted on training points.

        Args:
            y: their labels, as the target encodes them.
        """
        some = np.sort(np.random.default_rng([seed, 101]).permutation(len(points))[:MOST_POINTS])
        known, y = age_and_count(histories, points.take(some)), y[some]
        seen = np.isfinite(known)
        count = np.maximum(seen.sum(0), 1)
        centre = np.where(seen, known, 0).sum(0) / count
        spread = np.sqrt((np.where(seen, known - centre, 0) ** 2).sum(0) / count)
        spread = np.where(spread > 1e-9, spread, 1.0)
        x = torch.from_numpy(_inputs(known, centre, spread))
        told = torch.from_numpy(y if y.dtype == np.int64 else y.astype(np.float64))
        weights = torch.zeros(target.outputs, x.shape[1], dtype=torch.float64)
        weights[:, -1] = torch.from_numpy(np.asarray(target.start(y), np.float64))
        weights.requires_grad_()
        optimiser = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimiser.zero_grad()
            loss = target.loss((x @ weights.T)[None], told).mean() + PENALTY * (weights[:, :-1] ** 2).sum()
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the folder."""
        return dataclasses.asdict(self)


def age_and_count(histories: Histories, points: Labels) -> np.ndarray:
    """(points, 2) age in years at each point, NaN where birth is not known, and the logarithm of 1 + known events."""
    asked = zip(points.subject.tolist(), points.time.tolist(), strict=True)
    found = [(histories.age(s, t, t) or np.nan, np.log1p(histories.known(s, t))) for s, t in asked]
    return np.array(found, np.float64).reshape(-1, 2)


def _inputs(known: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """(points, 6): standardised, squares, whether the age is known, and 1."""
    z = np.nan_to_num((known - centre) / spread).clip(-5, 5)
    return np.concatenate([z, z**2, np.isfinite(known[:, :1]), np.ones((len(z), 1))], 1)
