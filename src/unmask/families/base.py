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

from unmask.core.token_codec import TokenCodecConfig
from unmask.encoder.config import EncoderConfig
from unmask.errors import UserError

TABLE, BIAS, OUTPUT = "codec.word.weight", "codec.bias", "codec.output.weight"
"""Our names of the embedding table, the projection's bias, and its own table where it is not tied."""


Turn = Callable[[Tensor, EncoderConfig], Tensor]
"""Puts the rows of a weight in another order; there is another that undoes it bit for bit."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """A published task head as data.

    Attributes:
        steps: (published module, activation behind it or None), first to last; "=name" stands for a module of ours that
            the checkpoint shares with the masked-LM head.
        pool: what it is given: 'first' slot, 'mean' of all slots, or 'each' slot.
        pooling_key: entry of config.json that says 'cls' or 'mean' (ModernBERT), and what it is by default.
    """

    steps: tuple[tuple[str, str | None], ...]
    pool: str = "first"
    pooling_key: tuple[str, str] | None = None


def heads(*sequence: tuple[str, str | None], span: bool = True) -> dict[str, Head]:
    """Task heads: that of sequences has these steps, those of tokens and spans are a layer with its usual name."""
    found = {"sequence": Head(steps=sequence), "token": Head(steps=(("classifier", None),), pool="each")}
    return found | ({"span": Head(steps=(("qa_outputs", None),), pool="each")} if span else {})


@dataclass(frozen=True, kw_only=True)
class Family:
    """A published architecture.

    Attributes:
        name: what people call it.
        model_types: values of `model_type` in config.json that mean it.
        architecture: the transformers class of its masked-LM model.
        read: config.json -> (encoder config, keyword arguments of TokenCodecConfig besides vocabulary and special ids).
        write: (encoder config, codec config, special ids by role) -> entries of config.json, beside those that
            `config` has for every family.
        keys: (published name, our name) with {i} for the layer; a tuple of published names is stacked on dim 0.
        aliases: published names that are further copies of one of our tensors: accepted, written where asked for.
        ignored: patterns of tensors that are derived and may be dropped.
        turned: end of one of our names -> (to ours, to theirs), for weights whose rows stand in another order.
        forced: entries of config.json without which transformers would read the weights wrongly.
        heads: published task heads, see `unmask.families.heads`.
        not_a_masked_model: pattern of tensors that show a head is no masked-LM head whatever is beside it, and what
            the checkpoint is instead.
        settle: chooses among families by the names in the file, and adds to the config what they say.
    """

    name: str
    model_types: tuple[str, ...]
    architecture: str
    read: Callable[[Mapping[str, Any]], tuple[EncoderConfig, dict[str, Any]]]
    write: Callable[[EncoderConfig, TokenCodecConfig, Mapping[str, int | None]], dict[str, Any]]
    keys: tuple[tuple[str | tuple[str, ...], str], ...]
    aliases: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = (r".*position_ids$", r".*rotary_emb\.inv_freq$")
    turned: Mapping[str, tuple[Turn, Turn]] = field(default_factory=dict)
    forced: Mapping[str, Any] = field(default_factory=dict)
    heads: Mapping[str, Head] = field(default_factory=dict)
    not_a_masked_model: tuple[str, str] | None = None
    settle: Callable[[Mapping[str, Any], Collection[str]], tuple[Family, dict[str, Any]]] | None = None

    def config(
        self, encoder: EncoderConfig, codec: TokenCodecConfig, special: Mapping[str, int | None]
    ) -> dict[str, Any]:
        """config.json of a masked model of this family."""
        about: dict[str, Any] = {"model_type": self.model_types[0], "architectures": [self.architecture]}
        about |= {"vocab_size": codec.vocabulary, "tie_word_embeddings": codec.tied}
        return about | {"pad_token_id": special.get("pad") or 0} | self.write(encoder, codec, special)

    @property
    def prefix(self) -> str:
        """First part of the encoder's published names, with its dot."""
        return next(rule[0] for rule, ours in self.rules(0) if ours == TABLE).split(".")[0] + "."

    def rules(self, layers: int, *, tied: bool = True, inner: int = 1) -> list[tuple[tuple[str, ...], str]]:
        """The key list spelled out for a number of layers; untied, the projection has a table of its own.

        Args:
            inner: layers in a group, where the published names count groups {g} and layers in them {k}.
        """
        out = []
        own = () if tied else tuple((theirs, OUTPUT) for theirs, ours in self.aliases.items() if ours == TABLE)
        for theirs, ours in (*self.keys, *own):
            names = (theirs,) if isinstance(theirs, str) else theirs
            if "{i}" in ours:
                places = [{"i": i, "g": i // inner, "k": i % inner} for i in range(layers)]
                out += [(tuple(n.format(**at) for n in names), ours.format(**at)) for at in places]
            else:
                out.append((names, ours))
        return out


@dataclass
class Loaded:
    """Outcome of matching a checkpoint to a model: what stayed random, and what the model has no place for.

    Attributes:
        random: published names of tensors that were not in the file.
        passengers: tensors without a place in the model, by published name.
        aliases: names of further copies of tied tensors.
        derived: tensors that are worked out anew (position numbers), kept only to be written back.
        spelled: published name -> the file's own, where that is another (no prefix, old spellings).
        types: number format of each tensor in the file that was not fp32.
        unfilled: the model's own names of what the file did not fill.
    """

    random: list[str] = field(default_factory=list)
    passengers: dict[str, Tensor] = field(default_factory=dict)
    aliases: list[str] = field(default_factory=list)
    derived: dict[str, Tensor] = field(default_factory=dict)
    spelled: dict[str, str] = field(default_factory=dict)
    types: dict[str, torch.dtype] = field(default_factory=dict)
    unfilled: set[str] = field(default_factory=set)

    def common_type(self) -> torch.dtype | None:
        """The number format of a file that was all in one other than fp32, else None."""
        kinds = {t for t in self.types.values() if t.is_floating_point}
        return kinds.pop() if len(kinds) == 1 else None

    def as_loaded(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A published state as the file had it: its names and number formats, and nothing that was not there."""
        missing = set(self.random)
        kept = {k: v.to(self.types.get(k, v.dtype)) for k, v in state.items() if k not in missing}
        return {self.spelled.get(k, k): v for k, v in (kept | self.derived).items()}


def published_names(family: Family, names: Collection[str]) -> dict[str, str]:
    """The file's names -> today's: LayerNorm.gamma / beta are old spellings, and a bare encoder lacks the prefix."""
    ends = {"gamma": "weight", "beta": "bias"}
    out = {k: re.sub(r"(?<=\.)(gamma|beta)$", lambda m: ends[m[0]], k) for k in names}
    prefix = family.prefix
    if any(k.startswith(prefix) for k in out.values()):
        return out
    known = {n for rule, _ in family.rules(1, tied=False) for n in rule}
    modules = {n.removeprefix(prefix).split(".")[0] for n in known if n.startswith(prefix)} | {"pooler"}
    return {k: (prefix + v if v.split(".")[0] in modules else v) for k, v in out.items()}


def is_tied(family: Family, declared: bool, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the projection shares the embedding table: what the config said, unless the file holds two tables."""
    if not declared:
        return False
    table = next(names[0] for names, ours in family.rules(0) if ours == TABLE)
    copies = [name for name, ours in family.aliases.items() if ours == TABLE and name in tensors]
    return table not in tensors or all(_same(tensors[table], tensors[name]) for name in copies)


def check_sizes(family: Family, config: EncoderConfig, vocabulary: int, tensors: Mapping[str, Tensor]) -> None:
    """Check config.json against the weights before a model is made, which would take the memory that it claims."""
    left = {name: tensors[k] for k, name in published_names(family, tensors).items()}
    names = next(names for names, ours in family.rules(0) if ours == TABLE)
    names += tuple(alias for alias, ours in family.aliases.items() if ours == TABLE)
    table = next((left[n] for n in names if n in left), None)
    if table is not None and list(table.shape) != [vocabulary, config.input_width]:
        raise UserError(
            f"tensor {names[0]} has shape {list(table.shape)}, config.json implies {[vocabulary, config.input_width]}",
            hint="Weights and config.json do not belong together.",
        )
    if table is None or config.distinct_layers > len(tensors) or config.layers > 100 * len(tensors):
        raise UserError(
            f"{config.layers} layers, {len(tensors)} tensors" + (f", none of them {names[0]}" if table is None else ""),
            hint="The weights are incomplete, or config.json is another model's.",
        )


def load_state(family: Family, model: Any, tensors: Mapping[str, Tensor]) -> Loaded:
    """Fill a masked model from published tensors."""
    state, config = model.state_dict(), model.encoder.config
    spelled = published_names(family, tensors)
    left = {name: tensors[k] for k, name in spelled.items()}
    found = Loaded(
        spelled={v: k for k, v in spelled.items() if v != k},
        types={k: v.dtype for k, v in left.items() if v.dtype is not torch.float32},
    )
    tied = OUTPUT not in state
    _settle_aliases(family, left, found, tied)
    filled: dict[str, Tensor] = {}
    for names, ours in _rules(family, config, tied):
        if ours not in state:
            continue
        absent = [n for n in names if n not in left]
        if len(absent) == len(names):
            found.random += names
            continue
        if absent:
            raise UserError(f"no tensor {absent[0]}, though its partners are there", hint="The weights are incomplete.")
        for name, size in zip(names, _sizes(config, names, ours, state[ours]), strict=True):
            expected = [size, *state[ours].shape[1:]]
            if list(left[name].shape) != expected:
                raise UserError(
                    f"tensor {name} has shape {list(left[name].shape)}, config.json implies {expected}",
                    hint="Weights and config.json do not belong together.",
                )
        for name in names:
            _check_numbers(name, left[name])
        parts = [left.pop(n) for n in names]
        whole = (parts[0] if len(parts) == 1 else torch.cat(parts)).to(state[ours].dtype)
        turn = _turn(family, ours)
        filled[ours] = turn[0](whole, config) if turn else whole
    _check_layers(family, filled, state)
    found.unfilled = set(state) - set(filled)
    model.load_state_dict(filled, strict=False)
    for name, tensor in left.items():
        derived = any(re.fullmatch(p, name) for p in family.ignored)
        (found.derived if derived else found.passengers)[name] = tensor
    # Copies: one tensor of a memory-mapped file would keep all of it in memory.
    found.passengers, found.derived = (
        {k: v.clone() for k, v in kept.items()} for kept in (found.passengers, found.derived)
    )
    return found


_FORMATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _check_numbers(name: str, tensor: Tensor) -> None:
    """Refuse weights that are integers or 8-bit, or that are not finite."""
    if tensor.dtype not in _FORMATS:
        raise UserError(
            f"tensor {name} is {tensor.dtype}".replace("torch.", ""), hint="Weights are in fp32, bf16, fp16 or fp64."
        )
    if not bool(torch.isfinite(tensor.sum(dtype=torch.float64))):
        raise UserError(
            f"tensor {name} holds values that are no numbers", hint="Its training failed, or copy it again."
        )


def _rules(family: Family, config: EncoderConfig, tied: bool) -> list[tuple[tuple[str, ...], str]]:
    inner = config.sharing.inner if config.sharing else 1
    return family.rules(config.distinct_layers, tied=tied, inner=inner)


def _sizes(config: EncoderConfig, names: tuple[str, ...], ours: str, tensor: Tensor) -> list[int]:
    """Rows of each part of a stacked tensor; keys and values may be narrower than queries."""
    if ".attention.qkv." in ours and len(names) == 3:
        return [config.width, config.kv_width, config.kv_width]
    return [tensor.shape[0] // len(names)] * len(names)


def _turn(family: Family, ours: str) -> tuple[Turn, Turn] | None:
    return next((turn for end, turn in family.turned.items() if ours.endswith(end)), None)


def _check_layers(family: Family, filled: Collection[str], state: Mapping[str, Tensor]) -> None:
    """An encoder that is random in part is a wrong load, not a warning: only heads may be missing."""
    if not any(".layers." in name for name in filled):
        raise UserError(f"no weights of a {family.name} encoder found", hint="The file holds another architecture.")
    lost = [n for n in state if n not in filled and (n.startswith("encoder.") or n == TABLE)]
    if lost:
        known = {ours: names[0] for names, ours in family.rules(10_000) if ours == lost[0]}
        raise UserError(
            f"no tensor {known.get(lost[0], lost[0])}, nor {len(lost) - 1} others of the encoder",
            hint="The weights are incomplete, or config.json is another model's.",
        )


def published_state(
    family: Family, model: Any, passengers: Mapping[str, Tensor] | None = None, aliases: Collection[str] = ()
) -> dict[str, Tensor]:
    """The model's tensors under their published names, with passengers put back and further copies where asked for."""
    state, config = {k: v.detach().cpu() for k, v in model.state_dict().items()}, model.encoder.config
    tied, carried = OUTPUT not in state, dict(passengers or {})
    out = by_published_names(family, state, config)
    bias = next((names[0] for names, ours in family.rules(0) if ours == BIAS), None)
    for alias, ours in family.aliases.items():
        # Where the projection's bias is not tied, transformers reads the alias and expects it in the file.
        needed = ours == BIAS and (not tied or bias in carried)
        if (needed or alias in aliases) and alias not in out and ours in state:
            out[alias] = state[ours].clone()
    return out | {k: v.detach().cpu().contiguous() for k, v in carried.items()}


def by_published_names(family: Family, state: Mapping[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Tensors of a masked model, all or some of them, under their published names."""
    out: dict[str, Tensor] = {}
    for names, ours in _rules(family, config, OUTPUT not in state):
        if ours in state:
            turn = _turn(family, ours)
            whole = turn[1](state[ours], config) if turn else state[ours]
            parts = whole.split(_sizes(config, names, ours, whole)) if len(names) > 1 else (whole,)
            out |= {n: p.contiguous() for n, p in zip(names, parts, strict=True)}
    return out


def _settle_aliases(family: Family, left: dict[str, Tensor], found: Loaded, tied: bool) -> None:
    """Move copies to the name of their original. A bias that differs from its copy is dead: transformers
    adds the copy."""
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
        "tanh": "tanh",
    }
    if name not in table:
        raise UserError(f"activation {name!r} in config.json is not known", hint=f"Known: {', '.join(table)}.")
    return table[name]


SIZES = {"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads"}
"""Entry of nearly every config.json -> field of `EncoderConfig`."""


def read_sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Width, layers and heads, from a config.json."""
    return {ours: config[theirs] for theirs, ours in SIZES.items()}


def written_sizes(encoder: EncoderConfig) -> dict[str, Any]:
    """Entries of a config.json, with the width inside the feed-forward network."""
    sizes = {theirs: getattr(encoder, ours) for theirs, ours in SIZES.items()}
    return sizes | {"intermediate_size": encoder.feedforward.inner}


def pair(theirs: str, ours: str, *, bias: bool = True) -> tuple[tuple[str, str], ...]:
    """Rules for a module's weight and bias."""
    return tuple((f"{theirs}.{p}", f"{ours}.{p}") for p in (("weight", "bias") if bias else ("weight",)))


def stacked(theirs: tuple[str, ...], ours: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Rules for weights and biases of several published modules that are one of ours."""
    return tuple((tuple(f"{t}.{p}" for t in theirs), f"{ours}.{p}") for p in ("weight", "bias"))


def bert_body(
    prefix: str,
    *,
    layer: str = "encoder.layer.{i}",
    qkv: tuple[str, str, str] = ("attention.self.query", "attention.self.key", "attention.self.value"),
    out: str = "attention.output.dense",
    attention_norm: str = "attention.output.LayerNorm",
    up: str = "intermediate.dense",
    down: str = "output.dense",
    norm: str = "output.LayerNorm",
) -> tuple[tuple[Any, str], ...]:
    """Key rules of the BERT body; `layer` is what a layer is called, the others are modules within it."""
    theirs, ours = f"{prefix}.{layer}", "encoder.layers.{i}"
    return (
        (f"{prefix}.embeddings.word_embeddings.weight", "codec.word.weight"),
        (f"{prefix}.embeddings.token_type_embeddings.weight", "codec.token_type.weight"),
        (f"{prefix}.embeddings.position_embeddings.weight", "encoder.stem.positions.weight"),
        *pair(f"{prefix}.embeddings.LayerNorm", "encoder.stem.norm"),
        *stacked(tuple(f"{theirs}.{name}" for name in qkv), f"{ours}.attention.qkv"),
        *pair(f"{theirs}.{out}", f"{ours}.attention.out"),
        *pair(f"{theirs}.{attention_norm}", f"{ours}.attention_norm"),
        *pair(f"{theirs}.{up}", f"{ours}.feedforward.up"),
        *pair(f"{theirs}.{down}", f"{ours}.feedforward.down"),
        *pair(f"{theirs}.{norm}", f"{ours}.feedforward_norm"),
    )


def masked_head(dense: str, norm: str, bias: str) -> tuple[tuple[str, str], ...]:
    """Key rules of the masked-LM head: the transform, its norm and the projection's bias."""
    return *pair(dense, "codec.transform"), *pair(norm, "codec.norm"), (bias, BIAS)
