"""Who trained an outcome head: kept with the model, so that predictions about them are marked as such."""

from __future__ import annotations

import base64

import numpy as np

from unmask.core.corruption import mix
from unmask.events.meds import Events, Labels


def whom(events: Events, points: Labels, held: np.ndarray) -> dict[str, str]:
    """Who trained the head and who was held out, for the folder: hashes of subject ids, so that it names nobody."""
    named = {"train": points.subject[~held], "held_out": points.subject[held]}
    return {
        name: base64.b64encode(hashes(events.subjects[np.unique(subject)]).tobytes()).decode()
        for name, subject in named.items()
    }


def split_of(subjects: np.ndarray, patients: dict[str, str] | None) -> list[str | None]:
    """'train', 'held_out' or 'unseen' for each subject id, from what `whom` gave; None where the folder does not say."""
    if patients is None:
        return [None] * len(subjects)
    hashed, out = hashes(subjects), np.full(len(subjects), "unseen", dtype=object)
    for name, text in patients.items():
        out[np.isin(hashed, np.frombuffer(base64.b64decode(text), np.uint64))] = name
    return out.tolist()


def hashes(subjects: np.ndarray) -> np.ndarray:
    return mix(73, np.asarray(subjects, np.int64)).astype(np.uint64)
