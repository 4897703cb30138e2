"""A prepared MEDS folder: what `unmask prepare events` wrote, taken by `pretrain` as its data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.engines.folder import prepared_at, prepared_with, refuse_other
from unmask.errors import UserError, setting
from unmask.files import read_json
from unmask.modalities.events.recipes import EventSettings
from unmask.modalities.events.records.columns import KINDS, open_columns
from unmask.modalities.events.records.meds import Events, events_of
from unmask.modalities.events.records.vocabulary import Vocabulary

SETTINGS = ("holdout", "floor", "rollup")
"""Settings that decide what is prepared, beside the seed."""
EVENTS, VOCABULARY, PARENTS, SPLIT = "events", "vocabulary.json", "parents.json", "splits.npy"


def settled(settings: EventSettings) -> dict[str, Any]:
    """What of some settings decides what is prepared."""
    return {name: getattr(settings, name) for name in SETTINGS} | {"seed": settings.train.seed}


def prepared_settings(data: str | Path | Sequence[str | Path]) -> dict[str, Any]:
    """The settings that data was prepared with, to be changed by what is asked for; none where it is not prepared.

    >>> prepared_settings("meds")
    {}
    """
    folder = prepared_at(data, "events")
    return {} if folder is None else prepared_with(folder)


def open_prepared(folder: Path, settings: EventSettings) -> tuple[Events, Vocabulary, int]:
    """Events as memory maps, the vocabulary, and the seed by which patients were held out (a run's own may differ)."""
    was = prepared_with(folder)
    for name in SETTINGS:
        refuse_other(folder, name, getattr(settings, name), was[name])
    if settings.store == "memory" or settings.store_folder is not None:
        name = "store" if settings.store == "memory" else "store_folder"
        raise UserError(
            f"{name}={getattr(settings, name)}, and {folder} is prepared: its events stay on the disk, where they are",
            hint=f"Leave {setting(name)} out.",
        )
    index = read_json(folder / EVENTS / "index.json")
    names = [name for name in KINDS if (folder / EVENTS / f"{name}.bin").exists()]
    found = None if index is None else open_columns(folder / EVENTS, index, names)
    if found is None:
        raise UserError(f"{folder / EVENTS}: not as it was written", hint="Prepare it again, or copy the folder again.")
    splits = np.load(folder / SPLIT) if (folder / SPLIT).exists() else None
    parents = read_json(folder / PARENTS) or {}
    vocabulary = Vocabulary.from_dict(json.loads((folder / VOCABULARY).read_text(encoding="utf-8")))
    return events_of(found, parents, splits), vocabulary, int(was["seed"])
