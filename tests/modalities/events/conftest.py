"""Simulated patients and a model of them, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from event_data import main_ok

from unmask.modalities.events.uses.demo import simulate


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with simulated patients (meds, task) and a model that has been trained for a moment."""
    folder = tmp_path_factory.mktemp("home")
    simulate(folder, patients=240)
    small = ["--set", "slots=64", "--set", "batch_slots=1024", "--set", "width=32", "--precision", "fp32"]
    main_ok(["pretrain", "events", str(folder / "meds"), "--out", str(folder / "model"), "--steps", "25", *small])
    return folder
