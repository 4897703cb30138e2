"""Vision transformers and masked autoencoders as data: their published tensor names and shapes, both ways.

Two spellings are written: the official MAE's, which is also timm's (`blocks.0.attn.qkv.weight`), and the one Hugging
Face's ViTMAE has on disk (`vit.encoder.layer.0...`). Two more are read: the names transformers 5 has in memory, and its
`decoder.decoder_encoder.layer.0...`. Tensors of ours without a published name are written as `unmask.NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from unmask.errors import UserError
from unmask.families.base import pair, stacked

OWN = "unmask."
TOKENS = ("codec.cls", "decoder_mask")
"""Ours are (width,), theirs (1, 1, width)."""
TABLES = ("encoder.stem.positions.weight", "decoder.stem.positions.weight")
"""Ours are (slots, width), theirs (1, slots, width)."""
PATCH = "codec.patch.weight"
"""Ours is (width, row x column x channels), theirs a convolution's kernel."""

Rules = tuple[tuple[str | tuple[str, ...], str], ...]
"""(published name, or several that are stacked on dim 0; our name)."""


def _official_layer(theirs: str, ours: str) -> Rules:
    return (
        *pair(f"{theirs}.norm1", f"{ours}.attention_norm"),
        *pair(f"{theirs}.attn.qkv", f"{ours}.attention.qkv"),
        *pair(f"{theirs}.attn.proj", f"{ours}.attention.out"),
        *pair(f"{theirs}.norm2", f"{ours}.feedforward_norm"),
        *pair(f"{theirs}.mlp.fc1", f"{ours}.feedforward.up"),
        *pair(f"{theirs}.mlp.fc2", f"{ours}.feedforward.down"),
    )


def _transformers_layer(theirs: str, ours: str) -> Rules:
    attention = f"{theirs}.attention.attention"
    return (
        *pair(f"{theirs}.layernorm_before", f"{ours}.attention_norm"),
        *stacked((f"{attention}.query", f"{attention}.key", f"{attention}.value"), f"{ours}.attention.qkv"),
        *pair(f"{theirs}.attention.output.dense", f"{ours}.attention.out"),
        *pair(f"{theirs}.layernorm_after", f"{ours}.feedforward_norm"),
        *pair(f"{theirs}.intermediate.dense", f"{ours}.feedforward.up"),
        *pair(f"{theirs}.output.dense", f"{ours}.feedforward.down"),
    )


@dataclass(frozen=True, kw_only=True)
class TensorNames:
    """One way to name a masked autoencoder's tensors; `{i}` is the layer's number."""

    name: str
    rules: Rules

    def spelled(self, layers: int, decoder_layers: int) -> list[tuple[tuple[str, ...], str]]:
        """The rules with layer numbers put in."""
        out = []
        for theirs, ours in self.rules:
            names = (theirs,) if isinstance(theirs, str) else theirs
            count = decoder_layers if ours.startswith("decoder.") else layers
            for i in range(count) if "{i}" in ours else (0,):
                out.append((tuple(n.format(i=i) for n in names), ours.format(i=i)))
        return out


OFFICIAL = TensorNames(
    name="mae",
    rules=(
        ("cls_token", "codec.cls"),
        ("pos_embed", "encoder.stem.positions.weight"),
        ("patch_embed.proj.weight", "codec.patch.weight"),
        ("patch_embed.proj.bias", "codec.patch.bias"),
        *_official_layer("blocks.{i}", "encoder.layers.{i}"),
        *pair("norm", "encoder.final_norm"),
        ("mask_token", "decoder_mask"),
        ("decoder_pos_embed", "decoder.stem.positions.weight"),
        *pair("decoder_embed", "decoder_in"),
        *_official_layer("decoder_blocks.{i}", "decoder.layers.{i}"),
        *pair("decoder_norm", "decoder.final_norm"),
        *pair("decoder_pred", "codec.head"),
    ),
)
"""He et al. 2022, released checkpoints; without the decoder, timm's ViT."""

TRANSFORMERS = TensorNames(
    name="transformers",
    rules=(
        ("vit.embeddings.cls_token", "codec.cls"),
        ("vit.embeddings.position_embeddings", "encoder.stem.positions.weight"),
        ("vit.embeddings.patch_embeddings.projection.weight", "codec.patch.weight"),
        ("vit.embeddings.patch_embeddings.projection.bias", "codec.patch.bias"),
        *_transformers_layer("vit.encoder.layer.{i}", "encoder.layers.{i}"),
        *pair("vit.layernorm", "encoder.final_norm"),
        ("decoder.mask_token", "decoder_mask"),
        ("decoder.decoder_pos_embed", "decoder.stem.positions.weight"),
        *pair("decoder.decoder_embed", "decoder_in"),
        *_transformers_layer("decoder.decoder_layers.{i}", "decoder.layers.{i}"),
        *pair("decoder.decoder_norm", "decoder.final_norm"),
        *pair("decoder.decoder_pred", "codec.head"),
    ),
)
"""`ViTMAEForPreTraining` on disk, in every release."""

SPELLINGS = {s.name: s for s in (OFFICIAL, TRANSFORMERS)}

_IN_MEMORY = {
    "attention.q_proj.": "attention.attention.query.",
    "attention.k_proj.": "attention.attention.key.",
    "attention.v_proj.": "attention.attention.value.",
    "attention.o_proj.": "attention.output.dense.",
    "mlp.fc1.": "intermediate.dense.",
    "mlp.fc2.": "output.dense.",
}
"""Within a layer, what transformers 5 has in memory and what stands on disk."""
_PLACES = re.compile(r"(vit|decoder)\.(?:decoder_encoder\.layer|decoder_layers|encoder\.layer|layers)\.(\d+)\.")
"""Of a layer, in all spellings of transformers."""


_LAYER = re.compile(r"(?:vit\.encoder\.layer|blocks|decoder\.decoder_layers|decoder_blocks)\.\d+\.")
"""Where a canonical checkpoint has what is in a layer."""


def canonical(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names of transformers 5 in memory, and of a bare ViT, as they are on disk; others unchanged."""
    bare = any(name.startswith(("embeddings.", "encoder.layer.")) for name in tensors)
    out = {}
    for name, tensor in tensors.items():
        if bare and name.split(".")[0] in ("embeddings", "encoder", "layernorm", "layers"):
            name = f"vit.{name}"
        if found := _PLACES.match(name):
            home = "vit.encoder.layer" if found[1] == "vit" else "decoder.decoder_layers"
            name = f"{home}.{found[2]}.{_renamed(name[found.end() :], _IN_MEMORY)}"
        # A fine-tuned official encoder has its norm behind the pooling.
        out[re.sub(r"^fc_norm\.", "norm.", name)] = tensor
    return out


def in_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The names transformers 5 has in memory, from those on disk."""
    back, out = {disk: memory for memory, disk in _IN_MEMORY.items()}, {}
    for name, tensor in tensors.items():
        if found := re.match(r"(vit\.encoder\.layer|decoder\.decoder_layers)\.\d+\.", name):
            name = (found[0] + _renamed(name[found.end() :], back)).replace("vit.encoder.layer.", "vit.layers.")
        out[name] = tensor
    return out


def _renamed(name: str, beginnings: Mapping[str, str]) -> str:
    old = next((b for b in beginnings if name.startswith(b)), "")
    return beginnings.get(old, "") + name.removeprefix(old)


def spelling_of(tensors: Mapping[str, Tensor]) -> TensorNames:
    """Which spelling a checkpoint has (after `canonical`)."""
    for spelling in (TRANSFORMERS, OFFICIAL):
        first = spelling.spelled(1, 0)
        if all(any(n in tensors for n in theirs) for theirs, ours in first if ours == PATCH or ".0." in ours):
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
    kernel = None
    for theirs, ours in spelling.spelled(layers, decoder_layers):
        absent = [n for n in theirs if n not in left]
        if len(absent) == len(theirs):
            continue
        if absent:
            raise UserError(f"no tensor {absent[0]}, though its partners are there", hint="The weights are incomplete.")
        if ours == PATCH and left[theirs[0]].ndim == 4:
            kernel = tuple(left[theirs[0]].shape[1:])
        parts = [left.pop(n) for n in theirs]
        state[ours] = _ours(parts[0] if len(parts) == 1 else torch.cat(parts), ours)
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
    for theirs, name in spelling.spelled(layers, decoder_layers):
        # The head of an in-place model is no decoder's.
        if name in ours and (decoder_layers or not name.startswith("codec.head")):
            tensor = _theirs(ours.pop(name), name, channels)
            parts = tensor.chunk(len(theirs)) if len(theirs) > 1 else (tensor,)
            out |= {n: p.contiguous() for n, p in zip(theirs, parts, strict=True)}
    return out | {OWN + k: v.contiguous() for k, v in ours.items()}


def count_layers(tensors: Mapping[str, Tensor]) -> tuple[int, int]:
    """(encoder layers, decoder layers) of a canonical checkpoint."""
    encoder = [int(m[1]) for n in tensors if (m := re.match(r"(?:vit\.encoder\.layer|blocks)\.(\d+)\.", n))]
    decoder = [int(m[1]) for n in tensors if (m := re.match(r"(?:decoder\.decoder_layers|decoder_blocks)\.(\d+)\.", n))]
    return 1 + max(encoder, default=-1), 1 + max(decoder, default=-1)


def _ours(tensor: Tensor, name: str) -> Tensor:
    if name in TOKENS:
        return tensor.reshape(-1)
    if name in TABLES:
        return tensor[0]
    if name == PATCH:  # (width, channels, row, column)
        return tensor.permute(0, 2, 3, 1).reshape(len(tensor), -1).contiguous()
    return tensor


def _theirs(tensor: Tensor, name: str, channels: int) -> Tensor:
    if name in TOKENS:
        return tensor.view(1, 1, -1)
    if name in TABLES:
        return tensor[None]
    if name == PATCH:
        side = round((tensor.shape[1] / channels) ** 0.5)
        return tensor.view(len(tensor), side, side, channels).permute(0, 3, 1, 2).contiguous()
    return tensor
