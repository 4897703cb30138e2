"""A family is data: a config map both ways and one reversible list of key rules, which drives loading and saving.

Shape letters: none; tensors are moved by name, never changed except for stacking query, key and value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unmask.encoder.config import EncoderConfig
from unmask.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Family:
    """A published architecture.

    Attributes:
        name: what people call it.
        model_types: values of `model_type` in config.json that mean it.
        architecture: the transformers class of its masked-LM model.
        read: config.json -> (encoder config, keyword arguments of TokenCodecConfig besides vocabulary and special ids).
        write: (encoder config, codec config, special ids by role) -> config.json.
        keys: (published name, our name) with {i} for the layer; a tuple of published names is stacked on dim 0.
        aliases: published names that are further copies of one of our tensors: accepted, not written.
        ignored: patterns of tensors that are derived and may be dropped.
    """

    name: str
    model_types: tuple[str, ...]
    architecture: str
    read: Callable[[Mapping[str, Any]], tuple[EncoderConfig, dict[str, Any]]]
    write: Callable[[EncoderConfig, Any, Mapping[str, int | None]], dict[str, Any]]
    keys: tuple[tuple[str | tuple[str, ...], str], ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = (r".*position_ids$", r".*rotary_emb\.inv_freq$")

    def rules(self, layers: int) -> list[tuple[tuple[str, ...], str]]:
        """The key list spelled out for a number of layers."""
        out = []
        for theirs, ours in self.keys:
            names = (theirs,) if isinstance(theirs, str) else theirs
            if "{i}" in ours:
                out += [(tuple(n.format(i=i) for n in names), ours.format(i=i)) for i in range(layers)]
            else:
                out.append((names, ours))
        return out


@dataclass
class Loaded:
    """Outcome of matching a checkpoint to a model: what stayed random, and what the model has no place for."""

    random: list[str] = field(default_factory=list)
    passengers: dict[str, Tensor] = field(default_factory=dict)
    aliases: list[str] = field(default_factory=list)


def modern_spelling(name: str) -> str:
    """LayerNorm.gamma / beta of old checkpoints."""
    return re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))


def load_state(family: Family, model: torch.nn.Module, tensors: Mapping[str, Tensor], layers: int) -> Loaded:
    """Fill `model` from published tensors.

    Raises:
        UserError: a tensor has another shape than the config says (both shapes are named), or no layer at all matches.
    """
    left = {modern_spelling(k): v for k, v in tensors.items()}
    # A bare encoder is saved without the model's prefix.
    prefix = _prefix(family)
    if prefix and not any(k.startswith(prefix) for k in left):
        known = {n.removeprefix(prefix) for names, _ in family.rules(layers) for n in names}
        left = {(prefix + k if k in known else k): v for k, v in left.items()}
    state, found = model.state_dict(), Loaded()
    filled: dict[str, Tensor] = {}
    for names, ours in family.rules(layers):
        if ours not in state:
            continue
        parts = [left.pop(n) for n in names if n in left]
        if len(parts) < len(names):
            found.random += list(names)
            continue
        value = parts[0] if len(parts) == 1 else torch.cat(parts)
        if value.shape != state[ours].shape:
            expected = list(state[ours].shape)
            if len(names) > 1:
                expected[0] //= len(names)
            raise UserError(
                f"tensor {names[0]} has shape {list(parts[0].shape)}, config.json implies {expected}",
                hint="Weights and config.json do not belong together.",
            )
        filled[ours] = value.to(state[ours].dtype)
    if not any(".layers." in name for name in filled):
        raise UserError(f"no weights of a {family.name} encoder found", hint="The file holds another architecture.")
    for theirs, ours in family.aliases.items():
        if theirs in left:
            alias = left.pop(theirs)
            if ours not in filled and ours in state:
                filled[ours] = alias
            found.aliases.append(theirs)
    found.random = [n for n in found.random if _ours(family, n, layers) not in filled]
    missing = set(state) - set(filled)
    found.random += sorted(m for m in missing if m.startswith("codec.") and m not in _targets(family, layers))
    model.load_state_dict(filled, strict=False)
    found.passengers = {k: v for k, v in left.items() if not any(re.fullmatch(p, k) for p in family.ignored)}
    return found


def published_state(
    family: Family, model: torch.nn.Module, layers: int, passengers: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The model's tensors under their published names, with passengers put back."""
    state = model.state_dict()
    out: dict[str, Tensor] = {}
    for names, ours in family.rules(layers):
        if ours in state:
            parts = state[ours].detach().cpu().chunk(len(names)) if len(names) > 1 else (state[ours].detach().cpu(),)
            out |= {n: p.contiguous() for n, p in zip(names, parts, strict=True)}
    return out | {k: v.detach().cpu().contiguous() for k, v in (passengers or {}).items()}


def _prefix(family: Family) -> str:
    first = family.keys[0][0]
    name = first if isinstance(first, str) else first[0]
    return name.split(".")[0] + "."


def _ours(family: Family, name: str, layers: int) -> str | None:
    return next((ours for names, ours in family.rules(layers) if name in names), None)


def _targets(family: Family, layers: int) -> set[str]:
    return {ours for _, ours in family.rules(layers)}


def activation_name(name: str) -> str:
    """Published activation names -> ours."""
    table = {
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
        "relu": "relu",
        "silu": "silu",
        "swish": "silu",
    }
    if name not in table:
        raise UserError(f"activation {name!r} in config.json is not known", hint=f"Known: {', '.join(table)}.")
    return table[name]


def pair(theirs: str, ours: str, *, bias: bool = True) -> tuple[tuple[str, str], ...]:
    """Rules for a module's weight and bias."""
    return tuple((f"{theirs}.{p}", f"{ours}.{p}") for p in (("weight", "bias") if bias else ("weight",)))


def stacked(theirs: tuple[str, ...], ours: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Rules for weights and biases of several published modules that are one of ours."""
    return tuple((tuple(f"{t}.{p}" for t in theirs), f"{ours}.{p}") for p in ("weight", "bias"))


def bert_body(prefix: str) -> tuple[tuple[Any, str], ...]:
    """Key rules of the BERT body, shared by BERT, RoBERTa and ELECTRA."""
    layer, ours = prefix + ".encoder.layer.{i}", "encoder.layers.{i}"
    attention = f"{layer}.attention.self"
    return (
        (f"{prefix}.embeddings.word_embeddings.weight", "codec.word.weight"),
        (f"{prefix}.embeddings.token_type_embeddings.weight", "codec.token_type.weight"),
        (f"{prefix}.embeddings.position_embeddings.weight", "encoder.stem.positions.weight"),
        *pair(f"{prefix}.embeddings.LayerNorm", "encoder.stem.norm"),
        *stacked((f"{attention}.query", f"{attention}.key", f"{attention}.value"), f"{ours}.attention.qkv"),
        *pair(f"{layer}.attention.output.dense", f"{ours}.attention.out"),
        *pair(f"{layer}.attention.output.LayerNorm", f"{ours}.attention_norm"),
        *pair(f"{layer}.intermediate.dense", f"{ours}.feedforward.up"),
        *pair(f"{layer}.output.dense", f"{ours}.feedforward.down"),
        *pair(f"{layer}.output.LayerNorm", f"{ours}.feedforward_norm"),
    )
