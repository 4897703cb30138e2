"""What the model knows of time: the time of asking, days after years."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from event_data import DAY, shard, table

from unmask.modalities.events.network.clock import YEAR, Clock
from unmask.modalities.events.recipes import RECIPES, EventSettings, with_overrides
from unmask.modalities.events.records.meds import HOUR, Labels, read_meds
from unmask.modalities.events.records.vocabulary import Vocabulary
from unmask.modalities.events.uses.folder import EventFolder, new_model
from unmask.modalities.events.uses.model import EventModel

SMALL = {"width": 16, "layers": 2, "heads": 2, "inner": 24, "slots": 16}


def random_model(tmp_path: Path, recipe: str, **more: object) -> EventModel:
    rows = [(s, DAY, code, 1.0 * s) for s in (1, 2, 3) for code in ("a", "b", "c")]
    events = read_meds(shard(tmp_path / "m", table(rows)))
    vocabulary = Vocabulary.fit(events, floor=1)
    settings = with_overrides(with_overrides(EventSettings(), RECIPES[recipe]), {**SMALL, **more})
    folder = EventFolder(model=new_model(settings, len(vocabulary)).eval(), vocabulary=vocabulary, settings=settings)
    return EventModel(folder=folder, device=torch.device("cpu"), precision="fp32")


@pytest.mark.parametrize("recipe", RECIPES)
def test_states_know_when_they_are_asked(tmp_path: Path, recipe: str):
    """The same record, asked about at its last event and five years later."""
    model = random_model(tmp_path, recipe)
    events = read_meds(tmp_path / "m")
    last = int(events.time[-1])
    now, later = (
        model.embed(events, Labels(subject=np.array([0]), time=np.array([last + int(gap)])))
        for gap in (0, 5 * YEAR * HOUR)
    )
    if recipe == "medbert":  # it has no clock but the number of the visit
        assert np.abs(now - later).max() == 0
    else:
        assert np.abs(now - later).max() > 1e-3 * np.abs(now).max()


def test_a_day_is_told_after_ten_years(seed: int):
    """A day moved the clock's vector by 0.015 after ten years, beside codes of length 8; and by much in the
    first week."""
    clock = Clock(("scales",), 64, False)
    hours = torch.tensor([[10 * YEAR, 10 * YEAR + 24, 10 * YEAR + 6]])
    values = {
        "hours": hours,
        "timed": torch.ones_like(hours),
        "age_at_start": 50 + 0 * hours,
        "prediction_hours": hours[:, 1:2].expand(1, 3),
    }
    for told in (True, False):
        at = values | {"prediction_hours": values["prediction_hours"] if told else -torch.ones_like(hours)}
        with torch.no_grad():
            a, b, c = clock(torch.zeros(1, 3, 64), at, None)[0]
        assert (a - b).norm() > 0.8
        assert (a - c).norm() > 0.4
