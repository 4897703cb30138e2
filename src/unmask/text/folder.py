"""A text model folder is a Hugging Face folder: config.json, model.safetensors, tokenizer.json, plus unmask.json."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from unmask.core.model import MaskedModel
from unmask.encoder.config import MLP, Attention, EncoderConfig, Gated, Learned, Norm, Rotary
from unmask.encoder.transformer import Encoder
from unmask.errors import UserError
from unmask.families import Family, by_name, detect
from unmask.families.base import load_state, published_state
from unmask.text.codec import TokenCodec, TokenCodecConfig
from unmask.text.tokenizer import Tokenizer
from unmask.training.checkpoint import read_weights

DECODER = "decoder.safetensors"
"""Tensors of the visible-only architecture's decoder; transformers does not look at them."""


@dataclass
class TextFolder:
    """A loaded model folder.

    Attributes:
        passengers: tensors the masked model has no place for (poolers, task heads), written back on saving.
        random: published names of tensors that were not in the file and stayed random.
        ignored: names of the passengers.
        settings: contents of unmask.json.
    """

    model: MaskedModel
    tokenizer: Tokenizer
    family: Family
    hf_config: dict[str, Any]
    passengers: dict[str, Tensor] = field(default_factory=dict)
    random: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)


def find_folder(name: str | Path) -> Path:
    """A local folder, or one fetched from the Hugging Face hub by name.

    Raises:
        UserError: neither is there.
    """
    path = Path(name)
    if path.is_dir():
        return path
    text = str(name)
    if path.exists() or text.startswith((".", "/", "~")) or text.count("/") > 1:
        raise UserError(f"{name}: no such model folder", hint="Give a folder with config.json, or a hub name.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        patterns = ["*.json", "*.txt", "*.safetensors", "merges.txt"]
        found = Path(snapshot_download(text, allow_patterns=patterns))
        if not any(found.glob("*.safetensors")):
            found = Path(snapshot_download(text, allow_patterns=["*.json", "*.txt", "pytorch_model*.bin"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{name}: neither a folder here nor to be had from the hub ({reason})",
            hint="Check the name or the network.",
        ) from None
    return found


def load_folder(name: str | Path) -> TextFolder:
    """Load a masked language model from a folder or hub name.

    Raises:
        UserError: naming what is missing, corrupt or does not fit together.
    """
    folder = find_folder(name)
    config = _json(folder / "config.json")
    if config is None:
        raise UserError(f"{folder}: no config.json", hint="A model folder holds config.json, weights and tokenizer.")
    family = detect(config)
    tokenizer = Tokenizer.load(folder)
    try:
        encoder, codec = family.read(config)
        vocabulary = int(config["vocab_size"])
    except KeyError as error:
        raise UserError(f"{folder}/config.json: no {error}", hint=f"A {family.name} config has it.") from None
    if tokenizer.vocab_size > vocabulary:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} entries, the embedding table {vocabulary}",
            hint="Tokenizer and weights do not belong together.",
        )
    settings = _json(folder / "unmask.json") or {}
    decoder = settings.get("decoder")
    model = _assemble(vocabulary, tokenizer, encoder, codec, EncoderConfig.from_dict(decoder) if decoder else None)
    found = load_state(family, model, read_weights(folder), encoder.layers)
    if decoder:
        model.load_state_dict(read_weights(folder / DECODER), strict=False)
    return TextFolder(
        model=model.eval(), tokenizer=tokenizer, family=family, hf_config=config, passengers=found.passengers,
        random=found.random, ignored=sorted(found.passengers), settings=settings,
    )  # fmt: skip


def _assemble(
    vocabulary: int,
    tokenizer: Tokenizer,
    encoder: EncoderConfig,
    codec: Mapping[str, Any],
    decoder: EncoderConfig | None,
) -> MaskedModel:
    config = TokenCodecConfig(
        vocabulary=vocabulary,
        mask_id=tokenizer.mask_id if tokenizer.mask_id is not None else 0,
        special_ids=tuple(int(i) for i in tokenizer.special_ids),
        deviation=encoder.initial_deviation,
        **codec,
    )
    return MaskedModel(TokenCodec(config), Encoder(encoder), decoder)


def new_text_model(
    recipe: str,
    *,
    vocabulary: int,
    width: int,
    layers: int,
    heads: int,
    slots: int,
    tokenizer: Tokenizer,
    inner: int | None = None,
    dropout: float = 0.0,
    decoder: EncoderConfig | None = None,
) -> tuple[MaskedModel, Family]:
    """A model with random weights, in a published shape so that it can be saved for transformers.

    Args:
        recipe: 'bert' (post-norm, learned positions) or 'modern' (ModernBERT's choices).
        inner: of the feed-forward; default 4 x width ('bert') or 1.5 x width rounded to 64, gated ('modern').
        decoder: makes it visible-only.
    """
    if recipe == "bert":
        family, norm = by_name("bert"), Norm(placement="post", epsilon=1e-12)
        encoder = EncoderConfig(
            width=width, layers=layers, heads=heads, norm=norm, positions=Learned(slots=max(slots, 16)),
            feedforward=MLP(inner=inner or 4 * width), dropout=dropout,
        )  # fmt: skip
        codec: dict[str, Any] = {"types": 2, "head_norm": norm}
    else:
        family = by_name("modernbert")
        norm = Norm(placement="pre", epsilon=1e-5, bias=False, first_is_identity=True)
        inner = inner or max(64, round(1.5 * width / 64) * 64)
        encoder = EncoderConfig(
            width=width, layers=layers, heads=heads, norm=norm, positions=Rotary(slots=max(slots, 512)),
            feedforward=Gated(inner=inner), attention=Attention(window=64, bias=False), dropout=dropout,
        )  # fmt: skip
        codec = {"head_norm": Norm(epsilon=1e-5, bias=False), "head_bias": False}
    codec |= {"width": width, "encoder_width": width}
    return _assemble(vocabulary, tokenizer, encoder, codec, decoder), family


def save_folder(
    folder: str | Path,
    *,
    model: MaskedModel,
    tokenizer: Tokenizer,
    family: Family,
    hf_config: Mapping[str, Any] | None = None,
    passengers: Mapping[str, Tensor] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write a folder that transformers loads. Files are written beside it and moved in when all are whole.

    Args:
        hf_config: entries of the config.json the model came with; what is in there is kept.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / ".saving"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        encoder, codec = model.encoder.config, model.codec.config
        special = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "cls", "sep", "mask")}
        config = dict(family.write(encoder, codec, special)) | dict(hf_config or {})
        if hf_config is None:
            config |= {"mask_token_id": special["mask"]}
        state = published_state(family, model, encoder.layers, passengers)
        save_file(state, new / "model.safetensors", metadata={"format": "pt"})
        about = dict(settings or {})
        if model.visible_only:
            about["decoder"] = model.decoder.config.to_dict()
            own = {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items() if k.startswith("decoder")}
            save_file(own, new / DECODER)
        config.setdefault("dtype", "float32")
        (new / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        about["family"] = family.name
        (new / "unmask.json").write_text(json.dumps(about, indent=2, default=_plain), encoding="utf-8")
        tokenizer.save(new)
        # The weights last: a folder with new weights has everything else new too.
        for path in sorted(new.iterdir(), key=lambda p: p.suffix == ".safetensors"):
            os.replace(path, folder / path.name)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written ({error.strerror})", hint="Free space or choose another folder."
        ) from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})", hint="Copy the file again.") from None
    return found if isinstance(found, dict) else None


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)
