"""Law 9: the members of a distribution mean the same in every modality, and agree with its samples.

One slot is hidden in many copies of an example, so that all of them have one distribution, and many values are drawn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tiny_table
from tiny import Setup
from unmask.core.batch import pack
from unmask.core.corruption import hide
from unmask.core.prediction import Categorical, Prediction
from unmask.errors import UserError
from unmask.modalities.events.network.clock import squash
from unmask.modalities.events.network.codec import EventPrediction
from unmask.modalities.table.distribution.prediction import CellPrediction

COPIES, TIMES = 400, 15
DRAWS = COPIES * TIMES
SURE = 5.0
"""Standard errors that a figure of samples may be off by."""


@dataclass
class Drawn:
    """One slot's distribution, and values drawn from it.

    Attributes:
        column: of a table's cell.
        values: in the codec's form.
        key: the category of each value; 0 where there is none.
        numbers: (draws, n) its numbers on the scale of `log_prob`.
    """

    prediction: Any
    column: int
    values: Tensor
    log_prob: Tensor
    key: Tensor
    numbers: Tensor

    @property
    def proposed(self) -> float:
        """Share of the distribution that may be proposed."""
        of_code = self.prediction.code if isinstance(self.prediction, EventPrediction) else self.prediction
        if not isinstance(of_code, Categorical) or of_code.forbidden is None:
            return 1.0
        return 1.0 - float(of_code.probabilities()[0, of_code.forbidden].sum())

    @property
    def coding(self) -> Any:
        return tiny_table.codings()[self.column]

    @property
    def numeric(self) -> bool:
        """A value is numbers and nothing else."""
        if isinstance(self.prediction, CellPrediction):
            return self.coding.scale is not None
        return not isinstance(self.prediction, Categorical | EventPrediction)

    @property
    def timed(self) -> bool:
        return isinstance(self.prediction, EventPrediction) and self.prediction.time is not None

    def parts(self, values: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.prediction, Categorical):
            return values, torch.zeros(len(values), 0)
        if isinstance(self.prediction, EventPrediction):
            later = (values[:, 3] > 0).long() if self.timed else 0
            return values[:, 0].long() * 2 + later, torch.cat([values[:, 1:2], squash(values[:, 3:])], 1)
        if isinstance(self.prediction, CellPrediction):
            exact = self.coding.scale is None or bool(self.coding.scale.atom[int(values[:, 0].mode().values)])
            return values[:, 0].long(), values[:, : 0 if exact else 2][:, 1:]
        return torch.zeros(len(values), dtype=torch.long), values

    def in_unit(self, values: Tensor) -> np.ndarray:
        if isinstance(self.prediction, CellPrediction):
            return self.coding.decode(values[:, 0].long().numpy(), values[:, 1].double().numpy())[:, None]
        return values.double().numpy()


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def made() -> dict[str, list[Drawn]]:
    return {}


@pytest.fixture
def drawn(modality: Any, seed: int, made: dict[str, list[Drawn]]) -> list[Drawn]:
    if modality.name not in made:
        made[modality.name] = [one(Setup(modality, "in_place", "bert", seed), n, seed) for n in range(4)]
    return made[modality.name]


def one(setup: Setup, number: int, seed: int) -> Drawn:
    """The distribution of the number-th maskable slot of an example, two others being hidden."""
    example = setup.modality.example(5, 9, seed)
    batch = pack([example] * COPIES, slots=9, placement=[[i] for i in range(COPIES)])
    maskable = batch.maskable[0].nonzero().flatten()
    slots = maskable[[number % len(maskable), (number + 1) % len(maskable), (number + 2) % len(maskable)]]
    rows = 9 * torch.arange(COPIES)[:, None]
    prediction = setup.model(batch, hide((rows + slots).flatten()), wanted=(rows + slots[:1]).flatten())
    generator = torch.Generator().manual_seed(seed)
    values = [prediction.sample(generator=generator) for _ in range(TIMES)]
    log_prob = torch.cat([prediction.log_prob(v) for v in values])
    found = Drawn(
        prediction, int(slots[0]) % tiny_table.COLUMNS, torch.cat(values), log_prob, torch.zeros(0), torch.zeros(0)
    )
    found.key, found.numbers = found.parts(found.values)
    return found


def test_a_prediction_has_every_member(drawn):
    for d in drawn:
        assert isinstance(d.prediction, Prediction)
        assert len(d.prediction) == COPIES


def test_no_time_lies_before_the_origin(drawn):
    """The normal of squashed hours is cut at 0, and what is left adds up to 1."""
    grid = torch.linspace(1e-4, 12, 4000, dtype=torch.float64)
    for d in drawn:
        if d.timed:
            assert (d.values[:, 3] > 0).all()
            of_time = EventPrediction(
                d.prediction.code,
                d.prediction.features,
                d.prediction.scales,
                d.prediction.time,
                d.prediction.valued,
                (0, 0, 1),
            )
            point = d.values[:COPIES].double()
            total = torch.zeros(COPIES, dtype=torch.float64)
            for squashed in grid.tolist():
                point[:, 3] = math.expm1(3 * squashed)
                total += of_time._time(point).double().exp() * float(grid[1] - grid[0])
            torch.testing.assert_close(total, torch.ones_like(total), atol=0.01, rtol=0)


def test_values_are_drawn_as_often_as_log_prob_says(drawn):
    """The mean of 1 / p over the draws in a box is the size of the box: one box per category, its share as
    the weight."""
    for d in drawn:
        first, rest = slice(None, DRAWS // 3), slice(DRAWS // 3, None)
        found, size = torch.zeros(DRAWS - DRAWS // 3, dtype=torch.float64), 0.0
        for key, count in zip(*d.key[first].unique(return_counts=True), strict=True):
            if count < 40:
                continue
            here, share = d.numbers[first][d.key[first] == key], float(count) / (DRAWS // 3)
            low, high = (here.quantile(q, 0) if here.numel() else here[:0].sum(0) for q in (0.2, 0.8))
            inside = (d.key[rest] == key) & ((d.numbers[rest] >= low) & (d.numbers[rest] <= high)).all(-1)
            found += torch.where(inside, share * (-d.log_prob[rest]).exp() * d.proposed, 0.0)
            size += share * float((high - low).prod())
        assert size > 0
        assert abs(float(found.mean()) - size) < SURE * float(found.std()) / math.sqrt(len(found))


def test_the_mode_is_the_likeliest_category_and_then_the_likeliest_number(drawn):
    for d in drawn:
        mode = d.prediction.mode()
        key = d.parts(mode)[0][0]
        counts = d.key.bincount(minlength=int(key) + 1)
        assert counts[key] >= counts.max() - SURE * math.sqrt(float(counts.max()))
        same = d.log_prob[d.key == key]
        assert float(d.prediction.log_prob(mode)[0]) >= float(same.max()) - 0.05


def test_confidence_is_the_log_probability_of_the_mode_or_minus_log_variances(drawn):
    for d in drawn:
        confidence = float(d.prediction.confidence()[0])
        if d.numeric and not isinstance(d.prediction, CellPrediction):
            allowed = SURE * math.sqrt(2 * d.numbers.shape[1] / DRAWS)
            assert abs(confidence + float(d.numbers.var(0).log().sum())) < allowed
            continue
        first = d.key // 2 if isinstance(d.prediction, EventPrediction) else d.key
        mode = d.parts(d.prediction.mode())[0][0]
        mode = mode // 2 if isinstance(d.prediction, EventPrediction) else mode
        share, p = float((first == mode).double().mean()), math.exp(confidence) / d.proposed
        assert abs(share - p) < SURE * math.sqrt(p * (1 - p) / DRAWS) + 1e-3


def test_the_mean_is_that_of_the_samples_and_categories_have_none(drawn):
    for d in drawn:
        if not d.numeric:
            with pytest.raises(UserError, match="have no mean"):
                d.prediction.mean()
            continue
        values, mean = d.in_unit(d.values), d.prediction.mean()[:1].double().numpy().reshape(-1)
        # A table's mean knows the data within a bin, its samples the bin's borders.
        slack = 0.05 * values.std(0) if isinstance(d.prediction, CellPrediction) else 0.0
        assert (np.abs(values.mean(0) - mean) < SURE * values.std(0) / math.sqrt(DRAWS) + slack).all()


def test_probabilities_are_of_every_value_and_numbers_have_none(drawn):
    for d in drawn:
        if d.numeric or isinstance(d.prediction, EventPrediction):
            with pytest.raises(UserError, match="have a density"):
                d.prediction.probabilities()
            continue
        p = d.prediction.probabilities()[0]
        assert abs(float(p.sum()) - 1) < 1e-5
        for number, chance in enumerate(p.tolist()):
            value = torch.full((COPIES,), number)
            if isinstance(d.prediction, CellPrediction):
                value = torch.stack([value, value * 0], -1).float()
            assert abs(math.exp(float(d.prediction.log_prob(value)[0])) - chance) < 1e-5
        p[getattr(d.prediction, "forbidden", [])] = 0
        p = p / p.sum()
        share = d.key.bincount(minlength=len(p)) / DRAWS
        assert ((share - p).abs() < SURE * (p * (1 - p) / DRAWS).sqrt() + 1e-3).all()


def test_temperature_0_is_the_mode(drawn):
    for d in drawn:
        assert torch.equal(d.prediction.sample(temperature=0.0), d.prediction.mode())
