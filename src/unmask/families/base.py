"""A family is data: a config map both ways and one reversible list of key rules, which drives loading and saving.

Shape letters: none; tensors are moved by name, never changed except for stacking query, key and value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unmask.encoder.config import EncoderConfig
from unmask.errors import UserError

TABLE, BIAS, OUTPUT = "codec.word.weight", "codec.bias", "codec.output.weight"
"""Our names of the embedding table, the projection's bias, and its own table where it is not tied."""


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
        aliases: published names that are further copies of one of our tensors: accepted, written where asked for.
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

    def rules(self, layers: int, *, tied: bool = True) -> list[tuple[tuple[str, ...], str]]:
        """The key list spelled out for a number of layers; untied, the projection has a table of its own."""
        out = []
        own = () if tied else tuple((theirs, OUTPUT) for theirs, ours in self.aliases.items() if ours == TABLE)
        for theirs, ours in (*self.keys, *own):
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


def published_names(family: Family, tensors: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Tensors under today's names: LayerNorm.gamma / beta are old spellings, and a bare encoder lacks the prefix."""
    ends = {"gamma": "weight", "beta": "bias"}
    out = {re.sub(r"(?<=\.)(gamma|beta)$", lambda m: ends[m[0]], k): v for k, v in tensors.items()}
    names = {n for rule, _ in family.rules(layers, tied=False) for n in rule}
    prefix = next(rule[0] for rule, ours in family.rules(0) if ours == TABLE).split(".")[0] + "."
    if any(k.startswith(prefix) for k in out):
        return out
    modules = {n.removeprefix(prefix).split(".")[0] for n in names if n.startswith(prefix)} | {"pooler"}
    return {(prefix + k if k.split(".")[0] in modules else k): v for k, v in out.items()}


def is_tied(family: Family, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    """Whether the projection shares the embedding table: the config's word, unless the file holds two different tables."""
    if not config.get("tie_word_embeddings", True):
        return False
    table = next(names[0] for names, ours in family.rules(0) if ours == TABLE)
    copies = [name for name, ours in family.aliases.items() if ours == TABLE and name in tensors]
    return table not in tensors or all(_same(tensors[table], tensors[name]) for name in copies)


def load_state(family: Family, model: torch.nn.Module, tensors: Mapping[str, Tensor], layers: int) -> Loaded:
    """Fill `model` from published tensors.

    Raises:
        UserError: a tensor has another shape than the config says (both shapes are named), one of query, key and
            value is missing, or no layer at all matches.
    """
    state, found = model.state_dict(), Loaded()
    tied = OUTPUT not in state
    left = published_names(family, tensors, layers)
    _settle_aliases(family, left, found, tied)
    filled: dict[str, Tensor] = {}
    for names, ours in family.rules(layers, tied=tied):
        if ours not in state:
            continue
        absent = [n for n in names if n not in left]
        if len(absent) == len(names):
            found.random += names
            continue
        if absent:
            raise UserError(f"no tensor {absent[0]}, though its partners are there", hint="The weights are incomplete.")
        expected = list(state[ours].shape)
        expected[0] //= len(names)
        for name in names:
            if list(left[name].shape) != expected:
                raise UserError(
                    f"tensor {name} has shape {list(left[name].shape)}, config.json implies {expected}",
                    hint="Weights and config.json do not belong together.",
                )
        parts = [left.pop(n) for n in names]
        filled[ours] = (parts[0] if len(parts) == 1 else torch.cat(parts)).to(state[ours].dtype)
    if not any(".layers." in name for name in filled):
        raise UserError(f"no weights of a {family.name} encoder found", hint="The file holds another architecture.")
    model.load_state_dict(filled, strict=False)
    found.passengers |= {k: v for k, v in left.items() if not any(re.fullmatch(p, k) for p in family.ignored)}
    return found


def published_state(
    family: Family,
    model: torch.nn.Module,
    layers: int,
    passengers: Mapping[str, Tensor] | None = None,
    aliases: Collection[str] = (),
) -> dict[str, Tensor]:
    """The model's tensors under their published names, with passengers put back and further copies where asked for."""
    state = {k: v.detach().cpu() for k, v in model.state_dict().items()}
    tied, carried = OUTPUT not in state, dict(passengers or {})
    out: dict[str, Tensor] = {}
    for names, ours in family.rules(layers, tied=tied):
        if ours in state:
            parts = state[ours].chunk(len(names)) if len(names) > 1 else (state[ours],)
            out |= {n: p.contiguous() for n, p in zip(names, parts, strict=True)}
    bias = next((names[0] for names, ours in family.rules(0) if ours == BIAS), None)
    for alias, ours in family.aliases.items():
        # Where the projection's bias is not tied, transformers reads the alias and expects it in the file.
        needed = ours == BIAS and (not tied or bias in carried)
        if (needed or alias in aliases) and alias not in out and ours in state:
            out[alias] = state[ours].clone()
    return out | {k: v.detach().cpu().contiguous() for k, v in carried.items()}


def _settle_aliases(family: Family, left: dict[str, Tensor], found: Loaded, tied: bool) -> None:
    """Move copies to the name of their original. A bias that differs from its copy is dead: transformers adds the copy."""
    original = {ours: names[0] for names, ours in family.rules(0)}
    for alias, ours in family.aliases.items():
        name = original[ours]
        if alias not in left or (ours == TABLE and not (tied and _same(left.get(name, left[alias]), left[alias]))):
            continue
        if not _same(left.get(name, left[alias]), left[alias]):
            found.passengers[name] = left[name]
        left[name] = left.pop(alias)
        found.aliases.append(alias)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a, b)


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
