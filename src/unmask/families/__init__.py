"""Published architectures as data: one small file each, a config map and a reversible key map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.errors import UserError
from unmask.families.base import Family
from unmask.families.bert import BERT
from unmask.families.electra import ELECTRA
from unmask.families.modernbert import MODERNBERT
from unmask.families.roberta import ROBERTA

__all__ = ["FAMILIES", "Family", "by_name", "detect"]

FAMILIES = (BERT, ROBERTA, ELECTRA, MODERNBERT)


def detect(config: Mapping[str, Any]) -> Family:
    """The family of a config.json.

    Raises:
        UserError: another architecture, named, with those that are known.
    """
    kind = config.get("model_type")
    for family in FAMILIES:
        if kind in family.model_types:
            return family
    known = ", ".join(t for f in FAMILIES for t in f.model_types)
    raise UserError(f"config.json: model_type {kind!r} is not a family unmask knows", hint=f"Known: {known}.")


def by_name(name: str) -> Family:
    """A family by its name."""
    return next(f for f in FAMILIES if f.name == name)
