"""What the default recipe must learn within a minute: codes beside values and times that are easier than they."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from unmask.core.fill import Question, answers
from unmask.modalities.events.network.codec import log_density
from unmask.modalities.events.recipes import EventSettings, with_overrides
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import read_meds
from unmask.modalities.events.records.shards import write_meds
from unmask.modalities.events.uses.folder import load_folder
from unmask.modalities.events.uses.pretrain import pretrain

PANELS = 4
LENGTH = 6


def panels(out: Path, patients: int, seed: int) -> Path:
    """Visits of one of four panels of six codes each; values are nearly constant.

    A code hidden among its visit is known from the rest of the visit alone; the most frequent code is one of 24.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for subject in range(patients):
        when = datetime(2010, 1, 1) + timedelta(days=int(rng.integers(2000)))
        for _ in range(8):
            when += timedelta(days=int(rng.integers(5, 90)))
            panel = int(rng.integers(PANELS))
            rows += [(subject, when, f"P{panel}//{k}", panel + k + rng.normal() * 0.001) for k in range(LENGTH)]
    schema = {"subject_id": pl.Int64, "time": pl.Datetime("us"), "code": pl.String, "numeric_value": pl.Float64}
    return write_meds(pl.DataFrame(rows, schema=schema, orient="row"), out, name="panels")


@pytest.mark.parametrize("seed", [0, 1])
def test_codes_are_learnt_from_the_rest_of_their_visit(tmp_path: Path, seed: int):
    settings = with_overrides(EventSettings(), {"slots": 64, "batch_slots": 1024, "steps": 80, "seed": seed})
    pretrain(panels(tmp_path / "meds", 300, seed), tmp_path / "model", settings=settings, console=False)
    folder, new = load_folder(tmp_path / "model"), read_meds(panels(tmp_path / "new", 40, seed + 10))
    histories = Histories(new, folder.vocabulary)
    examples = [histories.example(i, slots=64) for i in range(len(new))]
    rng = np.random.default_rng(seed)
    asked = [
        Question(example=e, hidden=np.sort(rng.choice(np.flatnonzero(~np.asarray(e.special)), 7, replace=False)))
        for e in examples
    ]
    right = []
    for numbers, prediction, places in answers(folder.model, asked, slots=folder.settings.slots):
        for n, at in zip(numbers, places, strict=True):
            truth = np.asarray(asked[n].example.values["code"])[asked[n].hidden]
            right.append(prediction.code.mode().numpy()[at] == truth)
    # Two events hidden in one visit cannot be told apart: of each visit one can be right at best.
    best = sum(len(np.unique(np.asarray(q.example.unit)[q.hidden])) for q in asked) / sum(len(q.hidden) for q in asked)
    assert 0.6 < best < 0.85
    assert np.mean(right) > 0.95 * best


def test_a_nearly_certain_value_does_not_drown_the_codes():
    """The gradient of a mean is its error over the deviation, not over the variance; the reported density is exact."""
    location = torch.zeros(3, requires_grad=True)
    certain = torch.tensor([0.0, -2.0, -6.0])
    density = log_density(torch.full((3,), 0.5), location, certain)
    expected = torch.distributions.Normal(0.0, (0.5 * certain).exp()).log_prob(torch.tensor(0.5))
    assert torch.allclose(density, expected)
    log_density(torch.full((3,), 0.5), location, certain, tempered=True).sum().backward()
    assert torch.allclose(location.grad, 0.5 / (0.5 * certain).exp())
