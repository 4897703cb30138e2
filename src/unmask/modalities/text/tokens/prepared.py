"""A prepared corpus: what `unmask prepare text` wrote, taken by `pretrain` as its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.engines.folder import DAMAGED, prepared_at, prepared_with, refuse_other
from unmask.errors import UserError
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens.cache import TokenCache
from unmask.modalities.text.tokens.tokenizer import Tokenizer

SETTINGS = ("slots", "holdout", "column", "document", "tokenizer")
"""Settings that decide what is prepared; with hide=entity, the seed and, where no tokenizer is brought, `TRAINED`."""
TRAINED = ("vocabulary", "tokenizer_kind", "lowercase", "strip_accents")


def settled(settings: TextSettings) -> dict[str, Any]:
    """What of some settings decides what is prepared."""
    names = SETTINGS if settings.tokenizer is not None else SETTINGS + TRAINED
    entity = {"hide": "entity"} if settings.hide == "entity" else {}
    return {name: getattr(settings, name) for name in names} | entity | {"seed": settings.train.seed}


def prepared_settings(data: str | Path | Sequence[str | Path]) -> dict[str, Any]:
    """The settings that data was prepared with, to be changed by what is asked for; none where it is not prepared.

    >>> prepared_settings("corpus.txt")
    {}
    """
    folder = prepared_at(data, "text")
    return {} if folder is None else prepared_with(folder)


def open_prepared(folder: Path, settings: TextSettings) -> tuple[Tokenizer, TokenCache]:
    """The tokenizer and the tokens of a prepared corpus. The seed may be another: held out is what was held out when it
    was prepared.
    """
    tokenizer, cache = Tokenizer.load(folder / "tokenizer.json"), TokenCache.open(folder, hint=DAMAGED)
    if tokenizer.fingerprint() != cache.meta["fingerprint"]:
        raise UserError(f"{folder}: its tokenizer is not the one it was prepared with", hint="Prepare it again.")
    check_settings(folder, prepared_with(folder), settings, tokenizer)
    return tokenizer, cache


def check_settings(folder: Path, prepared: Mapping[str, Any], settings: TextSettings, tokenizer: Tokenizer) -> None:
    """Refuse a setting that differs from the prepared one, naming both values."""
    asked = settled(settings)
    for name in dict.fromkeys((*prepared, *asked)):
        was, now = prepared.get(name), asked.get(name)
        if name == "seed" or was == now or (name in TRAINED and name not in prepared):
            continue
        if name == "tokenizer" and now is not None:
            if Tokenizer.load(now).fingerprint() == tokenizer.fingerprint():
                continue
            was = was or "the one that was trained on it"
        elif name in TRAINED and name not in asked:
            continue
        if name == "hide":
            was, now = was or "word", settings.hide  # entities were merged into units, or were not
        refuse_other(folder, name, now, was)
