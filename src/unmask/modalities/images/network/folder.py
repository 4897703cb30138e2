"""An image model folder: config.json and model.safetensors as Hugging Face's ViTMAE has them, plus unmask.json."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from unmask.core.model import MaskedModel
from unmask.encoder.config import EncoderConfig, check
from unmask.errors import UserError, setting
from unmask.evaluation.card import add_card, remembered
from unmask.families.base import activation_name
from unmask.families.vit import SPELLINGS, TRANSFORMERS, Converted, from_published, in_memory, to_published
from unmask.files import check_weights, read_json
from unmask.modalities.images.network.build import assemble, initialise, vit_config
from unmask.modalities.images.network.codec import PatchCodec, PatchCodecConfig
from unmask.modalities.images.recipes import SIZES
from unmask.training.checkpoint import read_weights
from unmask.writing import brought_to_an_end, written_folder

HEADS = ("classifier", "segmenter")
"""What may be fine-tuned on an encoder: their tensors have these names in front."""
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass
class ImageFolder:
    """A loaded model folder.

    Attributes:
        model: the masked model.
        settings: contents of unmask.json (empty for a published checkpoint).
        random: our names of tensors that were not in the file and stayed random (a released MAE has no decoder).
        ignored: names of tensors the model has no place for (classification heads).
        depth: of the pictures it was trained on: uint8, uint16 or float32.
        range: least and greatest pixel it was trained on, in units of the depth; None where the folder does not say.
        typical: least and greatest pixel of a typical picture of them, likewise.
        reading: how files were read for it (see `ImageSettings.reading`); {} where the folder does not say.
        classifier: what a folder fine-tuned to classify says of its head, or None.
        segmenter: what one fine-tuned to segment says of its convolutions, or None.
        head: the tensors of either.
    """

    model: MaskedModel[PatchCodec]
    settings: dict[str, Any] = field(default_factory=dict)
    random: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    depth: str = "uint8"
    range: tuple[float, float] | None = None
    typical: tuple[float, float] | None = None
    reading: dict[str, Any] = field(default_factory=dict)
    classifier: dict[str, Any] | None = None
    segmenter: dict[str, Any] | None = None
    head: dict[str, Tensor] = field(default_factory=dict)


def load_folder(
    path: str | Path,
    *,
    heads: int | None = None,
    decoder_heads: int | None = None,
    image: tuple[int, int] | None = None,
    norm_pix: bool | None = None,
) -> ImageFolder:
    """Load a masked image model: our folder, a Hugging Face ViTMAE or ViT folder, or a weights file of the official MAE
    or timm.

    Args:
        heads, decoder_heads: of a bare weights file, which does not say; default the published size of that width, or
            width / 64 (16 in the decoder).
        image: (height, width) of its pictures; default square.
        norm_pix: of a bare weights file with a decoder: whether it predicts patches normalised by their own mean and
            deviation. A file NAME.json beside NAME.pth may say all these as config.json does (norm_pix_loss,
            num_attention_heads, image_size, image_mean, image_std).
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise UserError(f"{path}: no such model", hint="Give a model folder, or a weights file of a MAE or ViT.")
    brought_to_an_end(path)
    about = _json(path / "unmask.json") if path.is_dir() else {}
    check_weights(path, about)
    found = from_published(read_weights(path))
    head: dict[str, torch.Tensor] = next(filter(None, (_part(found.state, f"{name}.") for name in HEADS)), {})
    try:
        if "codec" in about:
            codec, encoder, decoder, learned = _described(about)
        else:
            if path.is_dir():
                config = _json(path / "preprocessor_config.json") | _json(path / "config.json")
            else:
                config = _json(path.with_suffix(".json"))
            codec, encoder, decoder, learned = _inferred(found, config, heads, decoder_heads, image, norm_pix)
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: unmask.json or config.json lacks or misnames {error}", hint="Copy the folder again."
        ) from None
    torch.manual_seed(0)
    model = assemble(codec, encoder, decoder, learned=learned)
    if "codec" not in about:
        initialise(model)
    _fill(model, found.state, path)
    random = sorted(set(model.state_dict()) - set(found.state))
    return ImageFolder(
        model=model.eval(),
        settings=about,
        random=random,
        ignored=sorted(found.left),
        head=head,
        depth=about.get("depth", "uint8"),
        classifier=about.get("classifier"),
        segmenter=about.get("segmenter"),
        range=_ends(about, "range"),
        typical=_ends(about, "typical"),
        reading=_reading(about),
    )


def _part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Take the tensors whose names begin so out of a state."""
    return {k.removeprefix(prefix): state.pop(k) for k in list(state) if k.startswith(prefix)}


def _ends(about: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    found = about.get("data", {}).get(name)
    return None if found is None else (float(found[0]), float(found[1]))


def _reading(about: Mapping[str, Any]) -> dict[str, Any]:
    """How the pictures of a training run were read; folders of earlier versions say nothing of it."""
    kept = about.get("images")
    if not isinstance(kept, dict) or "view" not in kept:
        return {}
    found = {name: kept[name] for name in ("planes", "alpha", "nodata", "slice", "overlap")}
    return found | {"view": "shrink" if kept["view"] == "shrink" else "tile"}


def _described(about: Mapping[str, Any]) -> tuple[PatchCodecConfig, EncoderConfig, EncoderConfig | None, bool]:
    codec: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in about["codec"].items()}
    decoder = about.get("decoder")
    encoder = EncoderConfig.from_dict(about["encoder"])
    second = EncoderConfig.from_dict(decoder) if decoder else None
    check(encoder)
    if second is not None:
        check(second)
    return PatchCodecConfig(**codec), encoder, second, bool(about.get("learned_positions"))


def _inferred(
    found: Converted,
    config: Mapping[str, Any],
    heads: int | None,
    decoder_heads: int | None,
    image: tuple[int, int] | None,
    norm_pix: bool | None,
) -> tuple[PatchCodecConfig, EncoderConfig, EncoderConfig | None, bool]:
    """A published checkpoint's shape, from its tensors and, where there are some, its config.json and
    preprocessor_config.json."""
    state = found.state
    width, features = state["codec.patch.weight"].shape
    channels, patch = _kernel(found, config, features)
    slots = len(state["encoder.stem.positions.weight"])
    cls = "codec.cls" in state
    side = config.get("image_size") or image
    if side is None:
        grid = round(math.sqrt(slots - cls))
        side = (grid * patch, grid * patch)
    side = (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
    layers, decoder_layers = (
        1 + max((int(k.split(".")[2]) for k in state if k.startswith(f"{p}.layers.")), default=-1)
        for p in ("encoder", "decoder")
    )
    known = next((h for w, n, h in SIZES.values() if (w, n) == (width, layers)), max(width // 64, 1))
    epsilon = float(config.get("layer_norm_eps", 1e-6))
    act: Any = activation_name(config.get("hidden_act", "gelu"))
    encoder = vit_config(
        int(width),
        layers,
        int(config.get("num_attention_heads", 0)) or heads or known,
        slots,
        epsilon=epsilon,
        inner=len(state["encoder.layers.0.feedforward.up.weight"]),
        activation=act,
    )
    decoder, head_width = None, int(width)
    if decoder_layers:
        head_width = len(state["decoder_mask"])
        decoder = vit_config(
            head_width,
            decoder_layers,
            int(config.get("decoder_num_attention_heads", 0)) or decoder_heads or 16,
            slots,
            epsilon=epsilon,
            inner=len(state["decoder.layers.0.feedforward.up.weight"]),
            activation=act,
        )
    mean, deviation = _standards(config, channels)
    codec = PatchCodecConfig(
        image=side,
        channels=channels,
        patch=patch,
        width=int(width),
        head_width=head_width,
        mean=mean,
        deviation=deviation,
        normalised=_normalised(config, norm_pix, bool(decoder_layers)),
        class_token=cls,
        mask_embedding=not decoder_layers,
    )
    return codec, encoder, decoder, not decoder_layers


def _kernel(found: Converted, config: Mapping[str, Any], features: int) -> tuple[int, int]:
    """(channels, side of a patch): of the patches' kernel, (width, channels, side, side), where the file has it so."""
    declared = config.get("num_channels")
    if found.kernel is None:
        channels = int(declared or (3 if features % 3 == 0 else 1))
        return channels, round(math.sqrt(features / channels))
    channels, high, wide = found.kernel
    if high != wide:
        raise UserError(f"patches of {wide} x {high} pixels", hint="Patches are square here.")
    if declared is not None and int(declared) != channels:
        raise UserError(
            f"the patches' kernel has {channels} channels, config.json says num_channels={declared}",
            hint="Weights and config do not belong together.",
        )
    return channels, high


def _normalised(config: Mapping[str, Any], norm_pix: bool | None, decoder: bool) -> bool:
    """Whether the decoder predicts normalised patches."""
    normalised = config.get("norm_pix_loss", norm_pix)
    if normalised is None and config.get("model_type") == "vit_mae":
        normalised = False  # transformers' default
    if normalised is None and decoder:
        raise UserError(
            "the weights do not say whether their decoder predicts normalised patches (norm_pix_loss)",
            hint='Say norm_pix=True or False, or put {"norm_pix_loss": true} into a file of the same name with .json.',
        )
    return True if normalised is None else bool(normalised)


def _standards(config: Mapping[str, Any], channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of pixels from 0 to 1: what the processor (or timm's config) says, else ImageNet's, 0.5 for
    other channels."""
    pretrained = config.get("pretrained_cfg") or {}
    mean, deviation = config.get("image_mean", pretrained.get("mean")), config.get("image_std", pretrained.get("std"))
    if config.get("do_normalize") is False:
        mean, deviation = (0.0,) * channels, (1.0,) * channels
    elif mean is None or deviation is None:
        mean, deviation = (
            (IMAGENET_MEAN, IMAGENET_DEVIATION) if channels == 3 else ((0.5,) * channels, (0.5,) * channels)
        )
    if config.get("do_rescale") is False:
        raise UserError(
            "preprocessor_config.json: do_rescale false: it does not say what the pixels were divided by",
            hint='Put "do_rescale": true there, and "rescale_factor": 1 for pixels of 0 to 255, 0.00392156862745098 '
            "for 0 to 1.",
        )
    white = 255 * config.get("rescale_factor", 1 / 255)
    return tuple(m / white for m in mean), tuple(d / white for d in deviation)


def _fill(model: MaskedModel[PatchCodec], state: Mapping[str, Tensor], path: Path) -> None:
    own = model.state_dict()
    for name, tensor in state.items():
        if name not in own:
            raise UserError(
                f"{path}: tensor {name} has no place in the model", hint="Weights and config do not belong together."
            )
        if own[name].shape != tensor.shape:
            raise UserError(
                f"{path}: tensor {name} has shape {list(tensor.shape)}, the config implies {list(own[name].shape)}",
                hint="Weights and config do not belong together; for a bare file say heads= and image=.",
            )
    model.load_state_dict(dict(state), strict=False)


def hf_config(model: MaskedModel[PatchCodec], ratio: float = 0.75) -> dict[str, Any]:
    """config.json of the model, for transformers where it is a ViTMAE; `ratio` is the share it hides."""
    act = model.encoder.config.feedforward.activation
    codec, encoder = model.codec.config, model.encoder.config
    square = codec.image[0] == codec.image[1]
    out: dict[str, Any] = {
        "image_size": codec.image[0] if square else list(codec.image),
        "patch_size": codec.patch,
        "num_channels": codec.channels,
        "hidden_size": encoder.width,
        "num_hidden_layers": encoder.layers,
        "num_attention_heads": encoder.heads,
        "intermediate_size": encoder.feedforward.inner,
        "hidden_act": "gelu_new" if act == "gelu_tanh" else act,
        "layer_norm_eps": encoder.norm.epsilon,
        "qkv_bias": True,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "norm_pix_loss": codec.normalised,
        "dtype": "float32",
    }
    if model.visible_only and codec.class_token and codec.pixels and not codec.gradients:
        decoder = model.decoder.config
        return {
            "model_type": "vit_mae",
            "architectures": ["ViTMAEForPreTraining"],
            **out,
            "decoder_hidden_size": decoder.width,
            "decoder_num_hidden_layers": decoder.layers,
            "decoder_num_attention_heads": decoder.heads,
            "decoder_intermediate_size": decoder.feedforward.inner,
            "mask_ratio": ratio,
        }
    return {"model_type": "unmask_images", **out}


def about(model: MaskedModel[PatchCodec], depth: str, settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """unmask.json: everything to rebuild the model with."""
    decoder = model.decoder.config.to_dict() if model.visible_only else None
    return dict(settings or {}) | {
        "kind": "images",
        "codec": dataclasses.asdict(model.codec.config),
        "encoder": model.encoder.config.to_dict(),
        "decoder": decoder,
        "learned_positions": model.encoder.stem.positions.weight.requires_grad,
        "depth": depth,
    }


def save_folder(
    folder: str | Path,
    model: MaskedModel[PatchCodec],
    *,
    depth: str = "uint8",
    settings: Mapping[str, Any] | None = None,
    head: Mapping[str, Tensor] | None = None,
    head_name: str = "classifier",
) -> None:
    """Write a model folder with its card; a ViTMAE with a class token is one that transformers loads.

    Files are written beside and renamed one by one, the weights last. `head`: tensors of what was fine-tuned on the
    encoder; `head_name`: 'classifier' or 'segmenter'."""
    state = to_published(model.state_dict(), TRANSFORMERS, channels=model.codec.config.channels)
    state |= {f"unmask.{head_name}.{k}": v.detach().cpu().contiguous() for k, v in (head or {}).items()}
    settings = dict(settings or {})
    if not settings.keys() & HEADS:
        settings = remembered(settings, Path(folder), judged_by="loss")
    ratio = settings.get("images", {}).get("ratio", 0.75)
    with written_folder(folder) as new:
        save_file(state, new / "model.safetensors", metadata={"format": "pt"})
        (new / "config.json").write_text(json.dumps(hf_config(model, ratio), indent=2), encoding="utf-8")
        (new / "unmask.json").write_text(
            json.dumps(about(model, depth, settings), indent=2, default=str), encoding="utf-8"
        )
        add_card(new, folder)


def published(model: MaskedModel[PatchCodec], spelling: str) -> dict[str, Tensor]:
    """The weights under published names: 'mae' (official; decoder left out, timm's), 'timm', 'transformers' or
    'transformers-memory' (release 5).
    """
    if model.codec.config.gradients:
        raise UserError(
            "the model sees oriented gradients beside pixels: no published ViT does",
            hint=f"Pretrain with {setting('gradients', False)} for a model that others load.",
        )
    names = {"mae": "mae", "timm": "mae", "transformers": "transformers", "transformers-memory": "transformers"}
    if spelling not in names:
        raise UserError(f"spelling {spelling!r}", hint=f"Known: {', '.join(names)}.")
    state = {k: v for k, v in model.state_dict().items() if not k.startswith("codec.statistics")}
    if spelling == "timm":
        # timm takes a file with a mask token for another family: the encoder alone goes.
        state = {k: v for k, v in state.items() if not k.startswith(("decoder", "codec.head", "codec.mask"))}
    out = to_published(state, SPELLINGS[names[spelling]], channels=model.codec.config.channels)
    return in_memory(out) if spelling == "transformers-memory" else out


def _json(path: Path) -> dict[str, Any]:
    found = read_json(path)
    return found if isinstance(found, dict) else {}
