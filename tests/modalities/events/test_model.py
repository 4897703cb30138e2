"""A trained model's states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import unmask
from unmask.core.batch import pack
from unmask.core.model import MaskedModel
from unmask.modalities.events.records.meds import read_meds


def test_states_are_the_mean_and_the_maximum_of_one_pass(home: Path, monkeypatch: pytest.MonkeyPatch):
    model, events = unmask.load(home / "model"), read_meds(home / "meds")
    histories, calls = model.histories(events), []
    whole = MaskedModel.states
    monkeypatch.setattr(MaskedModel, "states", lambda *given: calls.append(given[1].real_slots) or whole(*given))
    found = model.states(histories)
    assert sum(calls) == sum(min(histories.length(i), 64) for i in range(len(events)))  # every slot once
    for i in (0, 7, 239):
        example = histories.example(i, slots=64)
        states = whole(model.folder.model, pack([example], slots=len(example)))[0].detach()
        np.testing.assert_allclose(found[i], np.r_[states.mean(0), states.amax(0)], atol=1e-5)
