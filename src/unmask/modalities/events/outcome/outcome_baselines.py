"""What an outcome head is set beside: a constant, rules of thumb, and models of other kinds on the same points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unmask.modalities.events.outcome.age_and_count import AgeAndCount
from unmask.modalities.events.outcome.features import Features
from unmask.modalities.events.outcome.last_value import MOST_POINTS, LastValue, codes_of, last_values_in_units, rules
from unmask.modalities.events.outcome.number import Number, number_baselines
from unmask.modalities.events.outcome.scoring import baselines
from unmask.modalities.events.outcome.targets import MultiLabel, Sorted, Target
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import Labels

FEWEST = 10
"""Labels that anything is trained on."""
BASELINE_BYTES = 400e6
"""Features, in double precision, that baselines are fitted on."""


@dataclass(frozen=True, kw_only=True)
class OutcomeBaselines:
    """Baselines of a task, fitted on some of its points and asked about others.

    Attributes:
        y: targets of all points.
        plain: of all points the features that baselines are fitted on; `last`: those of them that are last values.
    """

    histories: Histories
    points: Labels
    target: Target
    y: np.ndarray
    plain: Features
    last: np.ndarray
    seed: int

    def age_and_count(self, train: np.ndarray) -> AgeAndCount:
        """What age and number of events say by themselves, fitted on some training points."""
        assert not isinstance(self.target, MultiLabel)
        return AgeAndCount.fit(self.histories, self.points.take(train), self.y[train], self.target, seed=self.seed)

    def of(self, train: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
        """Those of a task with labels: a constant, age and number of events, and models on more."""
        found = self._models(train, test)
        constant = next(iter(found))
        rule = self.age_and_count(train)
        said = rule.predict(self.histories, self.points.take(test), self.target)
        return {constant: found.pop(constant), rule.name: said, **found}

    def _models(self, train: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
        """A constant, and models that need their points in memory: of very many a random part is taken, which stands
        in their names."""
        if not isinstance(self.target, Sorted | Number):
            start = 1 / (1 + np.exp(-self.target.start(self.y[train])))
            return {"prevalence": np.tile(1 - np.cumprod(1 - start), (len(test), 1))}
        few, told = train, ""
        most = max(FEWEST, int(BASELINE_BYTES / 8 / max(1, self.plain.shape[1])))
        if len(train) > most:
            few = np.sort(np.random.default_rng([self.seed, 79]).permutation(train)[:most])
            told = f" ({most:,} points)"
        if isinstance(self.target, Number):
            return {name + told: p for name, p in self._of_numbers(few, test).items()}
        found = baselines(
            self.plain[few],
            self.target.strata(self.y[few]),
            self.plain.part(test),
            last=self.last,
            classes=self.target.classes,
            seed=self.seed,
        )
        # Of a yes or no the probability of yes alone.
        return {name + told: p[:, -self.target.outputs :] for name, p in found.items()}

    def _of_numbers(self, few: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
        """The training mean, the last value of a code, and models on summaries and last values, fitted on
        `few` points."""
        target, codes = self.target, codes_of(self.histories)
        assert isinstance(target, Number)
        values = tuple(last_values_in_units(self.histories, self.points.take(part), codes) for part in (few, test))
        found = number_baselines(
            self.plain[few],
            self.y[few, 0],
            self.plain.part(test),
            groups=self.points.subject[few],
            values=(values[0], values[1]) if codes else None,
            seed=self.seed,
        )
        column = {code: i for i, code in enumerate(codes)}
        said = {r.name: r.predict(values[1][:, column[r.code]])[:, None] for r in self.last_values(few)}
        said = {name: (p - target.centre) / target.spread for name, p in said.items()}
        return {"training mean": found.pop("training mean"), **said, **found}

    def last_values(self, train: np.ndarray) -> list[LastValue]:
        """Rules of thumb fitted on some training points (of very many on a random part)."""
        assert self.points.number is not None
        few = np.sort(np.random.default_rng([self.seed, 89]).permutation(train)[:MOST_POINTS])
        codes = codes_of(self.histories)
        value = last_values_in_units(self.histories, self.points.take(few), codes)
        return rules(value, self.points.number[few].astype(np.float64), codes)
