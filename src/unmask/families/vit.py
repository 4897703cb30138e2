"""Vision transformers and masked autoencoders as data: their published tensor names and shapes, both ways.

Two spellings are written: the official MAE's, which is also timm's (`blocks.0.attn.qkv.weight`), and the one Hugging
Face's ViTMAE has on disk (`vit.encoder.layer.0...`). Two more are read: the names transformers 5 has in memory, and its
`decoder.decoder_encoder.layer.0...`. Tensors of ours without a published name are written as `unmask.NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from unmask.errors import UserError

Form = Literal["same", "token", "table", "patches"]
"""How a published tensor's shape differs from ours: not, (1, 1, width), (1, slots, width), or a convolution's kernel.
"""

OWN = "unmask."


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Published names (several are stacked on dim 0), our name, and the difference in shape."""

    theirs: tuple[str, ...]
    ours: str
    form: Form = "same"


def _pair(theirs: str | tuple[str, ...], ours: str) -> tuple[Rule, ...]:
    names = (theirs,) if isinstance(theirs, str) else theirs
    return tuple(Rule(theirs=tuple(f"{n}.{p}" for n in names), ours=f"{ours}.{p}") for p in ("weight", "bias"))


def _official_layer(theirs: str, ours: str) -> tuple[Rule, ...]:
    return (
        *_pair(f"{theirs}.norm1", f"{ours}.attention_norm"),
        *_pair(f"{theirs}.attn.qkv", f"{ours}.attention.qkv"),
        *_pair(f"{theirs}.attn.proj", f"{ours}.attention.out"),
        *_pair(f"{theirs}.norm2", f"{ours}.feedforward_norm"),
        *_pair(f"{theirs}.mlp.fc1", f"{ours}.feedforward.up"),
        *_pair(f"{theirs}.mlp.fc2", f"{ours}.feedforward.down"),
    )


def _transformers_layer(theirs: str, ours: str) -> tuple[Rule, ...]:
    attention = f"{theirs}.attention.attention"
    return (
        *_pair(f"{theirs}.layernorm_before", f"{ours}.attention_norm"),
        *_pair((f"{attention}.query", f"{attention}.key", f"{attention}.value"), f"{ours}.attention.qkv"),
        *_pair(f"{theirs}.attention.output.dense", f"{ours}.attention.out"),
        *_pair(f"{theirs}.layernorm_after", f"{ours}.feedforward_norm"),
        *_pair(f"{theirs}.intermediate.dense", f"{ours}.feedforward.up"),
        *_pair(f"{theirs}.output.dense", f"{ours}.feedforward.down"),
    )


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """One way to name a masked autoencoder's tensors; `{i}` is the layer's number."""

    name: str
    rules: tuple[Rule, ...]

    def spelled(self, layers: int, decoder_layers: int) -> list[Rule]:
        """The rules with layer numbers put in."""
        out = []
        for rule in self.rules:
            if "{i}" not in rule.ours:
                out.append(rule)
                continue
            for i in range(decoder_layers if rule.ours.startswith("decoder.") else layers):
                theirs = tuple(n.replace("{i}", str(i)) for n in rule.theirs)
                out.append(Rule(theirs=theirs, ours=rule.ours.replace("{i}", str(i)), form=rule.form))
        return out


OFFICIAL = TensorNames(
    name="mae",
    rules=(
        Rule(theirs=("cls_token",), ours="codec.cls", form="token"),
        Rule(theirs=("pos_embed",), ours="encoder.stem.positions.weight", form="table"),
        Rule(theirs=("patch_embed.proj.weight",), ours="codec.patch.weight", form="patches"),
        Rule(theirs=("patch_embed.proj.bias",), ours="codec.patch.bias"),
        *_official_layer("blocks.{i}", "encoder.layers.{i}"),
        *_pair("norm", "encoder.final_norm"),
        Rule(theirs=("mask_token",), ours="decoder_mask", form="token"),
        Rule(theirs=("decoder_pos_embed",), ours="decoder.stem.positions.weight", form="table"),
        *_pair("decoder_embed", "decoder_in"),
        *_official_layer("decoder_blocks.{i}", "decoder.layers.{i}"),
        *_pair("decoder_norm", "decoder.final_norm"),
        *_pair("decoder_pred", "codec.head"),
    ),
)
"""He et al. 2022, released checkpoints; without the decoder, timm's ViT."""

TRANSFORMERS = TensorNames(
    name="transformers",
    rules=(
        Rule(theirs=("vit.embeddings.cls_token",), ours="codec.cls", form="token"),
        Rule(theirs=("vit.embeddings.position_embeddings",), ours="encoder.stem.positions.weight", form="table"),
        Rule(theirs=("vit.embeddings.patch_embeddings.projection.weight",), ours="codec.patch.weight", form="patches"),
        Rule(theirs=("vit.embeddings.patch_embeddings.projection.bias",), ours="codec.patch.bias"),
        *_transformers_layer("vit.encoder.layer.{i}", "encoder.layers.{i}"),
        *_pair("vit.layernorm", "encoder.final_norm"),
        Rule(theirs=("decoder.mask_token",), ours="decoder_mask", form="token"),
        Rule(theirs=("decoder.decoder_pos_embed",), ours="decoder.stem.positions.weight", form="table"),
        *_pair("decoder.decoder_embed", "decoder_in"),
        *_transformers_layer("decoder.decoder_layers.{i}", "decoder.layers.{i}"),
        *_pair("decoder.decoder_norm", "decoder.final_norm"),
        *_pair("decoder.decoder_pred", "codec.head"),
    ),
)
"""`ViTMAEForPreTraining` on disk, in every release."""

SPELLINGS = {s.name: s for s in (OFFICIAL, TRANSFORMERS)}

_QKV = {"q": "query", "k": "key", "v": "value"}
_IN_MEMORY = (
    (
        r"^(vit\.|decoder\.)(?:decoder_encoder\.layer|decoder_layers|encoder\.layer|layers)\.(\d+)\."
        r"attention\.([qkv])_proj\.",
        lambda m: f"{_home(m[1])}{m[2]}.attention.attention.{_QKV[m[3]]}.",
    ),
    (
        r"^(vit\.|decoder\.)(?:decoder_encoder\.layer|decoder_layers|encoder\.layer|layers)\.(\d+)\."
        r"attention\.o_proj\.",
        lambda m: f"{_home(m[1])}{m[2]}.attention.output.dense.",
    ),
    (
        r"^(vit\.|decoder\.)(?:decoder_encoder\.layer|decoder_layers|encoder\.layer|layers)\.(\d+)\.mlp\.fc1\.",
        lambda m: f"{_home(m[1])}{m[2]}.intermediate.dense.",
    ),
    (
        r"^(vit\.|decoder\.)(?:decoder_encoder\.layer|decoder_layers|encoder\.layer|layers)\.(\d+)\.mlp\.fc2\.",
        lambda m: f"{_home(m[1])}{m[2]}.output.dense.",
    ),
    (r"^(vit\.)layers\.(\d+)\.", lambda m: f"{_home(m[1])}{m[2]}."),
    (r"^(decoder\.)decoder_encoder\.layer\.(\d+)\.", lambda m: f"{_home(m[1])}{m[2]}."),
)


_LAYER = re.compile(r"(?:vit\.encoder\.layer|blocks|decoder\.decoder_layers|decoder_blocks)\.\d+\.")
"""Where a canonical checkpoint has what is in a layer."""


def _home(prefix: str) -> str:
    return "vit.encoder.layer." if prefix == "vit." else "decoder.decoder_layers."


def canonical(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names of transformers 5 in memory, and of a bare ViT without its prefix, as they are on disk; others
    unchanged."""
    bare = any(name.startswith(("embeddings.", "encoder.layer.")) for name in tensors)
    out = {}
    for name, tensor in tensors.items():
        if bare and name.split(".")[0] in ("embeddings", "encoder", "layernorm", "layers"):
            name = f"vit.{name}"
        for pattern, change in _IN_MEMORY:
            name, found = re.subn(pattern, change, name)
            if found:
                break
        # A fine-tuned official encoder has its norm behind the pooling.
        out[re.sub(r"^fc_norm\.", "norm.", name)] = tensor
    return out


def in_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The names transformers 5 has in memory, from those on disk."""
    out = {}
    for name, tensor in tensors.items():
        if re.match(r"^(vit\.encoder\.layer|decoder\.decoder_layers)\.\d+\.", name):
            for long, letter in (("query", "q"), ("key", "k"), ("value", "v")):
                name = name.replace(f".attention.attention.{long}.", f".attention.{letter}_proj.")
            name = name.replace(".attention.output.dense.", ".attention.o_proj.")
            name = name.replace(".intermediate.dense.", ".mlp.fc1.").replace(".output.dense.", ".mlp.fc2.")
            name = name.replace("vit.encoder.layer.", "vit.layers.")
        out[name] = tensor
    return out


def spelling_of(tensors: Mapping[str, Tensor]) -> TensorNames:
    """Which spelling a checkpoint has (after `canonical`)."""
    for spelling in (TRANSFORMERS, OFFICIAL):
        first = spelling.spelled(1, 0)
        if all(
            any(n in tensors for n in rule.theirs) for rule in first if rule.form == "patches" or ".0." in rule.ours
        ):
            return spelling
    some = ", ".join(sorted(tensors)[:3])
    raise UserError(
        f"no weights of a vision transformer found (the file has {some}, ...)",
        hint="Known are the names of the official MAE, of timm's ViT and of transformers' ViT and ViTMAE.",
    )


@dataclass
class Converted:
    """Tensors under our names, and those of the file that have no place with us."""

    state: dict[str, Tensor]
    left: dict[str, Tensor] = field(default_factory=dict)
    spelling: TensorNames = OFFICIAL
    kernel: tuple[int, ...] | None = None
    """(channels, rows, columns) of a patch, where the file has the patches' weights as a convolution's kernel."""


def from_published(tensors: Mapping[str, Tensor]) -> Converted:
    """Published tensors -> ours, exactly."""
    left = canonical(tensors)
    spelling = spelling_of(left)
    layers, decoder_layers = count_layers(left)
    state: dict[str, Tensor] = {n.removeprefix(OWN): left.pop(n) for n in list(left) if n.startswith(OWN)}
    kernel = next(
        (
            tuple(left[n].shape[1:])
            for rule in spelling.rules
            if rule.form == "patches"
            for n in rule.theirs
            if left[n].ndim == 4
        ),
        None,
    )
    for rule in spelling.spelled(layers, decoder_layers):
        absent = [n for n in rule.theirs if n not in left]
        if len(absent) == len(rule.theirs):
            continue
        if absent:
            raise UserError(f"no tensor {absent[0]}, though its partners are there", hint="The weights are incomplete.")
        parts = [left.pop(n) for n in rule.theirs]
        state[rule.ours] = _ours(parts[0] if len(parts) == 1 else torch.cat(parts), rule.form)
    foreign = sorted(name for name in left if _LAYER.match(name))
    if foreign:
        raise UserError(
            f"tensor {foreign[0]} has no place in a layer ({len(foreign)} such tensors)",
            hint="Known are plain pre-norm vision transformers, without layer scale or norms of queries and keys.",
        )
    return Converted(state=state, left=left, spelling=spelling, kernel=kernel)


def to_published(state: Mapping[str, Tensor], spelling: TensorNames, *, channels: int) -> dict[str, Tensor]:
    """Our tensors under published names and in published shapes; `from_published` gives them back bit for bit."""
    ours = {k: v.detach().cpu() for k, v in state.items()}
    layers = 1 + max((int(k.split(".")[2]) for k in ours if k.startswith("encoder.layers.")), default=-1)
    decoder_layers = 1 + max((int(k.split(".")[2]) for k in ours if k.startswith("decoder.layers.")), default=-1)
    out: dict[str, Tensor] = {}
    # The head of an in-place model is no decoder's.
    known = [
        r for r in spelling.spelled(layers, decoder_layers) if decoder_layers or not r.ours.startswith("codec.head")
    ]
    for rule in known:
        if rule.ours in ours:
            tensor = _theirs(ours.pop(rule.ours), rule.form, channels)
            parts = tensor.chunk(len(rule.theirs)) if len(rule.theirs) > 1 else (tensor,)
            out |= {n: p.contiguous() for n, p in zip(rule.theirs, parts, strict=True)}
    return out | {OWN + k: v.contiguous() for k, v in ours.items()}


def count_layers(tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """(encoder layers, decoder layers) of a canonical checkpoint."""
    encoder = [int(m[1]) for n in tensors if (m := re.match(r"(?:vit\.encoder\.layer|blocks)\.(\d+)\.", n))]
    decoder = [int(m[1]) for n in tensors if (m := re.match(r"(?:decoder\.decoder_layers|decoder_blocks)\.(\d+)\.", n))]
    return 1 + max(encoder, default=-1), 1 + max(decoder, default=-1)


def _ours(tensor: Tensor, form: Form) -> Tensor:
    if form == "token":
        return tensor.reshape(-1)
    if form == "table":
        return tensor[0]
    if form == "patches":  # (width, channels, row, column) -> (width, row x column x channels)
        return tensor.permute(0, 2, 3, 1).reshape(len(tensor), -1).contiguous()
    return tensor


def _theirs(tensor: Tensor, form: Form, channels: int) -> Tensor:
    if form == "token":
        return tensor.view(1, 1, -1)
    if form == "table":
        return tensor[None]
    if form == "patches":
        side = round((tensor.shape[1] / channels) ** 0.5)
        return tensor.view(len(tensor), side, side, channels).permute(0, 3, 1, 2).contiguous()
    return tensor
