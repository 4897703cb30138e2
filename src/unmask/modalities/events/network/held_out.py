"""Which patients a model is trained on, and which are held out of that."""

from __future__ import annotations

import numpy as np

from unmask.core.hashing import Salt, uniform
from unmask.modalities.events.recipes import EventSettings
from unmask.modalities.events.records.meds import TUNING, Events
from unmask.training.settings import refuse_unread

MOST_HELD = 4096
"""Patients held out."""


def subjects_to_learn_from(events: Events) -> np.ndarray:
    """Numbers of all subjects but those that the folder's splits hold out."""
    return np.arange(len(events)) if events.held_out is None else np.flatnonzero(~events.held_out)


def split(events: Events, chosen: np.ndarray, settings: EventSettings, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the patients to train on and of those held out: the tuning part of the folder's splits, where it has
    one, else a share drawn by the patients' own numbers.
    """
    drawn = uniform(seed, events.subjects[chosen], Salt.HELD_OUT_SUBJECT)
    held = drawn < min(settings.holdout, np.sort(drawn)[MOST_HELD] if len(drawn) > MOST_HELD else 1.0)
    tuning = np.zeros(len(chosen), bool) if events.splits is None else events.splits[chosen] == TUNING
    if tuning.any():
        refuse_unread(settings, ["holdout"], "of data whose splits have a tuning part")
        held = tuning & (drawn <= np.sort(drawn[tuning])[: max(1, MOST_HELD)][-1])
    return chosen[~(held | tuning)], chosen[held]
