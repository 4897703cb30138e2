"""Published architectures as data: one small file each, a config map and a reversible key map."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from unmask.errors import UserError, option
from unmask.families.albert import ALBERT
from unmask.families.base import Family
from unmask.families.bert import BERT
from unmask.families.bigbird import BIGBIRD
from unmask.families.deberta import DEBERTA, DEBERTA_LEGACY
from unmask.families.distilbert import DISTILBERT
from unmask.families.electra import ELECTRA
from unmask.families.eurobert import EUROBERT
from unmask.families.longformer import LONGFORMER
from unmask.families.modernbert import MODERNBERT
from unmask.families.mpnet import MPNET
from unmask.families.neobert import NEOBERT
from unmask.families.roberta import ROBERTA
from unmask.plugins import Plugins

__all__ = ["FAMILIES", "Family", "by_name", "detect", "settle"]

FAMILIES = (
    BERT,
    ROBERTA,
    DISTILBERT,
    ALBERT,
    ELECTRA,
    DEBERTA,
    MODERNBERT,
    MPNET,
    LONGFORMER,
    BIGBIRD,
    NEOBERT,
    EUROBERT,
)


OTHERS = Plugins(group="unmask.families", noun="family", built_in={})
"""Families that installed packages bring: an entry point per `model_type`, which refers to a `Family`."""


def _other(name: str) -> Family:
    """The family that a package announces for a model_type."""
    found = OTHERS.load(name)
    if not isinstance(found, Family) or name not in found.model_types:
        raise UserError(
            f"family {name!r}: {found!r:.60} is announced for it",
            hint=f"Expected a Family with {name!r} in model_types.",
        )
    return found


def detect(config: Mapping[str, Any]) -> Family:
    """The family of a config.json."""
    kind = config.get("model_type")
    for family in FAMILIES:
        if kind in family.model_types:
            _refuse(config, family)
            return family
    if kind in OTHERS.names():
        family = _other(kind)
        _refuse(config, family)
        return family
    known = ", ".join([*(t for f in FAMILIES for t in f.model_types), *OTHERS.names()])
    raise UserError(f"config.json: model_type {kind!r} is not a family unmask knows", hint=f"Known: {known}.")


def settle(family: Family, config: Mapping[str, Any], names: Collection[str]) -> tuple[Family, dict[str, Any]]:
    """The family and config as the names in the weights file decide, where one family's files carry different heads."""
    return (family, dict(config)) if family.settle is None else family.settle(config, names)


def _refuse(config: Mapping[str, Any], family: Family) -> None:
    if config.get("is_decoder") or config.get("add_cross_attention"):
        raise UserError(
            f"config.json: a {family.name} decoder (is_decoder), which sees to the left only",
            hint="Masked prediction needs an encoder.",
        )
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method", "an unnamed method") if isinstance(quantised, dict) else quantised
        raise UserError(
            f"config.json: weights quantised by {method}",
            hint=f"Load the unquantised checkpoint; {option('precision', 'int8')} quantises it here.",
        )


def by_name(name: str) -> Family:
    """A family by its name."""
    ours = next((f for f in (*FAMILIES, DEBERTA_LEGACY) if f.name == name), None)
    return ours if ours is not None else next(f for f in map(_other, OTHERS.names()) if f.name == name)
