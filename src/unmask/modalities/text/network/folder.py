"""A text model folder is a Hugging Face folder: config.json, model.safetensors, tokenizer.json, plus unmask.json. It is
written, read, and loaded to be used."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from unmask.core.batch import Example
from unmask.core.model import MaskedModel
from unmask.core.token_codec import TokenCodec, TokenCodecConfig
from unmask.encoder.build import Undrawn, make_encoder
from unmask.encoder.config import MLP, EncoderConfig, Gated, Learned, Norm, Rotary, check
from unmask.encoder.kinds import Local
from unmask.errors import UserError, setting
from unmask.families import Family, by_name, detect, settle
from unmask.families.base import Loaded, check_sizes, is_tied, load_state, published_names, published_state
from unmask.families.heads import SEQUENCE, TaskHead, published_head, tempered
from unmask.files import check_weights, damaged, read_object
from unmask.modalities.text.network.sentence_files import encoder_folder, lower_cased, read_sentences
from unmask.modalities.text.network.sentence_vectors import SentenceVectors
from unmask.modalities.text.tokens.batches import text_example
from unmask.modalities.text.tokens.tokenizer import Encoded, Tokenizer
from unmask.plugins import installed_model
from unmask.remote import of_hub
from unmask.training.checkpoint import read_weights
from unmask.training.precision import computing
from unmask.writing import brought_to_an_end, written_folder

DECODER = "decoder.safetensors"
"""Tensors of the visible-only architecture's decoder; transformers does not look at them."""
_HEADS = re.compile(
    r"(^|\.)(pooler\w*|\w*classifier|qa_outputs|score|cls|head|lm_head|vocab_\w+|seq_relationship|\w*predictions"
    r"|generator_\w+)(\.|$)"
)
_INSIDE = re.compile(r"(^|\.)(layers?|h|embeddings)\.")
_DECODER_PREFIX = "unmask_decoder."


@dataclass(repr=False)
class TextFolder:
    """A loaded model folder.

    Attributes:
        passengers: tensors the masked model has no place for (poolers, task heads), written back on saving.
        random: published names of tensors that were not in the file and stayed random.
        ignored: names of the passengers.
        aliases: published names under which the file holds further copies of tied tensors.
        settings: contents of unmask.json.
        loaded: all that was found out about the file, so that it can be written back as it was.
        sentences: how the folder says vectors are made.
        path: the folder, None of a model that came from none.
    """

    model: MaskedModel[TokenCodec]
    tokenizer: Tokenizer
    family: Family
    hf_config: dict[str, Any]
    passengers: dict[str, Tensor] = field(default_factory=dict)
    random: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    loaded: Loaded = field(default_factory=Loaded)
    sentences: SentenceVectors = field(default_factory=SentenceVectors)
    path: Path | None = None

    def __repr__(self) -> str:
        config, codec = self.model.encoder.config, self.model.codec.config
        count = sum(p.numel() for p in self.model.parameters())
        return (
            f"{self.family.name}: {count / 1e6:.3g} M parameters, {config.layers} layers of {config.width}, "
            f"vocabulary {codec.vocabulary}, up to {self.slots} tokens"
        )

    @property
    def slots(self) -> int:
        """Longest text that the model takes, in tokens, special ones included."""
        return self.model.encoder.config.longest or 512

    @property
    def trained_slots(self) -> int:
        """Longest text that it learnt from, where unmask.json says so; longer ones it predicts less well. Else
        `slots`."""
        return min(self.slots, self.settings.get("trained_slots") or self.slots)

    def head(self) -> TaskHead | None:
        """The checkpoint's own task head (sequence, token, span, replaced tokens) as a module on encoder states."""
        return published_head(self.family, self.hf_config, self.passengers, self.model)

    def refuse_baseline(self) -> None:
        """Refuse a folder whose predictions are a saved baseline's, which a copy of encoder and head leaves behind."""
        about = self.settings.get("task") or {}
        if about.get("baseline"):
            raise UserError(
                f"the folder predicts with a baseline ({about.get('kept')}), which no export holds",
                hint=f"Fine-tune without {setting('baseline')}: encoder and head can be exported.",
            )

    def why_not_masked(self) -> str | None:
        """Why this model cannot predict hidden tokens, None where it can: its head was not in the file."""
        if rule := self.family.not_a_masked_model:
            pattern, reason = rule
            if any(re.match(pattern, name) for name in self.passengers):
                return f"this checkpoint is {reason}"
        lost = sorted(self.random)
        return f"the file holds no masked-LM head ({lost[0]} and {len(lost) - 1} others are random)" if lost else None


def find_folder(name: str | Path | LoadedText) -> Path:
    """A local folder, that of a model from an installed package, or one fetched from the Hugging Face hub by name; of a
    loaded model the folder that it came from."""
    if isinstance(name, LoadedText):
        if name.folder.path is None:
            raise UserError("this model came from no folder", hint="Save it first: model.save(folder).")
        return name.folder.path
    path = Path(name).expanduser()
    if path.is_dir():
        brought_to_an_end(path)
        return path
    text = str(name)
    if (installed := installed_model(text)) is not None:
        return installed
    if path.exists() or text.startswith((".", "/", "~")) or text.count("/") > 1:
        raise UserError(f"{name}: no such model folder", hint="Give a folder with config.json, or a hub name.")
    return of_hub(text, lambda: _downloaded(text))


def _downloaded(name: str) -> Path:
    from huggingface_hub import snapshot_download

    modules = "[0-9]_*/pytorch_model*.bin"  # sentence-transformers', of which some are pickles alone
    patterns = ["*.json", "*.txt", "*.safetensors", "merges.txt", modules]
    found = Path(snapshot_download(name, allow_patterns=patterns))
    if not any(encoder_folder(found).glob("*.safetensors")):
        found = Path(snapshot_download(name, allow_patterns=["*.json", "*.txt", "pytorch_model*.bin", modules]))
    return found


def load_folder(name: str | Path, *, tokenizer: Tokenizer | None = None) -> TextFolder:
    """Load a masked language model from a folder or hub name."""
    folder = find_folder(name)
    with damaged(folder):
        return _loaded(encoder_folder(folder), tokenizer, folder)


def _check_config(config: dict[str, Any], path: Path) -> None:
    """Refuse a config.json whose names of labels or classes are not what transformers writes."""
    labels, classes = config.get("id2label"), config.get("architectures")
    if labels is not None and not (isinstance(labels, dict) and all(str(k).isdigit() for k in labels)):
        raise UserError(f"{path}: id2label is {labels!r:.80}", hint='Expected an object: {"0": "NAME", "1": ...}.')
    if classes is not None and not (isinstance(classes, list) and all(isinstance(c, str) for c in classes)):
        raise UserError(f"{path}: architectures is {classes!r:.80}", hint='Expected a list of names: ["BertModel"].')


def _loaded(folder: Path, tokenizer: Tokenizer | None, whole: Path) -> TextFolder:
    """What `folder` holds; `whole` is the folder around it where sentence-transformers' old layout has one."""
    config = read_object(folder / "config.json")
    if config is None:
        raise UserError(f"{folder}: no config.json", hint="A model folder holds config.json, weights and tokenizer.")
    _check_config(config, folder / "config.json")
    family = detect(config)
    if tokenizer is None:
        tokenizer = Tokenizer.load(folder, lowercase=(whole / "modules.json").exists() and lower_cased(folder))
    settings = read_object(folder / "unmask.json") or {}
    check_weights(folder, settings)
    weights = _weights(folder, config)
    family, settled = settle(family, config, set(published_names(family, weights).values()))
    decoder, task = settings.get("decoder"), settings.get("task") or {}
    if not isinstance(task, dict):
        raise UserError(f"{folder}/unmask.json: task {task!r}", hint="An object is expected there.")
    try:
        encoder, codec = family.read(settled)
        vocabulary = int(config["vocab_size"])
    except KeyError as error:
        raise UserError(f"{folder}/config.json: no {error}", hint=f"A {family.name} config has it.") from None
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(f"{folder}/config.json: {error}", hint="Numbers are expected where it says so.") from None
    if tokenizer.vocab_size > vocabulary:
        raise UserError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} entries, the embedding table {vocabulary}",
            hint="Tokenizer and weights do not belong together.",
        )
    if codec.get("types") and any(tokenizer.backend.encode("a").type_ids):
        raise UserError(
            f"{folder}/tokenizer.json: gives a lone text token types other than 0",
            hint="Not built here: every slot of a lone text has type 0.",
        )
    codec["tied"] = is_tied(family, codec["tied"], weights)
    try:
        # Before anything is made: numbers that are too large would fill the memory.
        check(encoder)
        check_sizes(family, encoder, vocabulary, weights)
        made = EncoderConfig.from_dict(decoder) if decoder else None
        if made is not None:
            check(made)
        with Undrawn() as undrawn:
            model = assemble(vocabulary, tokenizer, encoder, codec, made)
        found = load_state(family, model, weights)
        undrawn.draw(model, found.unfilled - set(_decoder_state(model)))
    except UserError as error:
        raise UserError(f"{folder}: {error.what}", hint=error.hint) from None
    if decoder:
        _load_decoder(model, folder / DECODER)
    if odd := unexpected(found.passengers):
        shown = ", ".join(odd[:3]) + (f" and {len(odd) - 3:,} others" if len(odd) > 3 else "")
        warnings.warn(f"{folder}: tensors of the file that the model does not use: {shown}", stacklevel=2)
    passengers = found.passengers
    if task.get("name") == "classify" and SEQUENCE in family.heads:  # of before it was saved in the head
        passengers = tempered(passengers, family.heads[SEQUENCE], task.pop("temperature", 1.0))
    return TextFolder(
        model=model.eval(),
        tokenizer=tokenizer,
        family=family,
        hf_config=config,
        passengers=passengers,
        random=found.random,
        ignored=sorted(found.passengers),
        aliases=found.aliases,
        settings=settings,
        loaded=found,
        sentences=read_sentences(whole, task, encoder.width, tokenizer.longest),
        path=whole,
    )


def unexpected(names: Collection[str]) -> list[str]:
    """Of tensors without a place in a model those that are no task head or pooler either: layers beyond config.json,
    another model's.

    >>> names = ["classifier.weight", "bert.pooler.dense.bias", "bert.encoder.layer.6.output.dense.bias", "adapter.up"]
    >>> unexpected(names)
    ['bert.encoder.layer.6.output.dense.bias', 'adapter.up']
    """
    return [name for name in names if _INSIDE.search(name) or not _HEADS.search(name)]


def _weights(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Tensors of the folder; of its ONNX file where it has no others. One of TensorFlow or JAX alone is refused: its
    kernels are transposed and fused otherwise, model by model."""
    if any(folder.glob("*.safetensors*")) or any(folder.glob("pytorch_model*")):
        return read_weights(folder)
    for pattern, what in {"*.h5": "TensorFlow", "*.ckpt*": "TensorFlow", "*.msgpack": "JAX (Flax)"}.items():
        if found := sorted(folder.glob(pattern)):
            raise UserError(
                f"{found[0]}: a {what} checkpoint, stored in another layout for every model",
                hint="Convert it with transformers 4: AutoModel.from_pretrained(..., from_tf=True or from_flax=True).",
            )
    if any(folder.glob("*.onnx")) or any(folder.glob("onnx/*.onnx")):
        from unmask.families.onnx_import import find_graph, read_onnx

        return read_onnx(find_graph(folder), config)
    return read_weights(folder)


def _decoder_state(model: MaskedModel[TokenCodec]) -> dict[str, Tensor]:
    return {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items() if k.startswith("decoder")}


def _load_decoder(model: MaskedModel[TokenCodec], path: Path) -> None:
    held = {k.removeprefix(_DECODER_PREFIX): v for k, v in read_weights(path).items()}
    for name, tensor in _decoder_state(model).items():
        if name not in held:
            raise UserError(f"{path}: no tensor {name}", hint="Copy the file again.")
        if held[name].shape != tensor.shape:
            raise UserError(
                f"{path}: tensor {name} has shape {list(held[name].shape)}, unmask.json implies {list(tensor.shape)}",
                hint="The two files do not belong together.",
            )
    model.load_state_dict(held, strict=False)


def assemble(
    vocabulary: int,
    tokenizer: Tokenizer,
    encoder: EncoderConfig,
    codec: Mapping[str, Any],
    decoder: EncoderConfig | None,
) -> MaskedModel[TokenCodec]:
    """A masked model with random weights. `codec`: entries of `TokenCodecConfig` that the tokenizer does not decide."""
    # Tables are padded to round sizes (ModernBERT: 88 rows): rows without a token are never drawn, never proposed.
    unused = set(range(vocabulary)) - set(tokenizer.backend.get_vocab(with_added_tokens=True).values())
    config = TokenCodecConfig(
        vocabulary=vocabulary,
        mask_id=tokenizer.mask_id if tokenizer.mask_id is not None else 0,
        special_ids=tuple(sorted(unused | {int(i) for i in tokenizer.special_ids})),
        deviation=encoder.initial_deviation,
        **codec,
    )
    return MaskedModel(TokenCodec(config), make_encoder(encoder), decoder)


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
) -> tuple[MaskedModel[TokenCodec], Family]:
    """A model with random weights, in a published shape so that it can be saved for transformers.

    Args:
        recipe: 'bert' (post-norm, learned positions) or 'modern' (ModernBERT's choices).
        inner: of the feed-forward; default 4 x width ('bert') or 1.5 x width rounded to 64, gated ('modern').
        decoder: makes it visible-only.
    """
    shape: dict[str, Any] = {"width": width, "layers": layers, "heads": heads, "dropout": dropout}
    if recipe == "bert":
        family, norm = by_name("bert"), Norm(placement="post", epsilon=1e-12)
        shape |= {"positions": Learned(slots=max(slots, 16)), "feedforward": MLP(inner=inner or 4 * width)}
        codec: dict[str, Any] = {"types": 2, "head_norm": norm}
    elif recipe == "modern":
        family = by_name("modernbert")
        norm = Norm(placement="pre", epsilon=1e-5, bias=False, first_is_identity=True)
        inner = inner or max(64, round(1.5 * width / 64) * 64)
        shape |= {"positions": Rotary(slots=max(slots, 512)), "feedforward": Gated(inner=inner)}
        shape |= {"attention": Local(window=64, bias=False), "dropout_inside": True}
        codec = {"head_norm": Norm(epsilon=1e-5, bias=False), "head_bias": False}
    else:
        raise UserError(f"recipe {recipe!r}", hint="Expected bert or modern.")
    codec |= {"width": width, "encoder_width": width}
    return assemble(vocabulary, tokenizer, EncoderConfig(norm=norm, **shape), codec, decoder), family


def save_folder(
    folder: str | Path,
    *,
    model: MaskedModel[TokenCodec],
    tokenizer: Tokenizer,
    family: Family,
    hf_config: Mapping[str, Any] | None = None,
    passengers: Mapping[str, Tensor] | None = None,
    aliases: Collection[str] = (),
    settings: Mapping[str, Any] | None = None,
    like: Loaded | None = None,
    dtype: torch.dtype | None = None,
    without: Collection[str] = (),
) -> None:
    """Write a folder that transformers loads, with its model card (README.md).

    A new folder appears whole, by one rename. In a folder that is there, files are replaced one by one, each by a
    rename, when all of them are written.

    Args:
        hf_config: entries of the config.json the model came with; what is in there is kept.
        aliases: published names to write tied tensors under as well; transformers does without.
        like: write the weights as this file had them: its names and number formats, no tensor that was not there.
        dtype: number format of all weights; default that of `like`, else the model's.
        without: published names to leave out: weights that were never read and never trained.
    """
    from unmask.evaluation.card import add_card, remembered  # loading needs none of it
    from unmask.modalities.text.network.card import RULE

    share = ((settings or {}).get("corpus") or {}).get("most_frequent")
    settings = remembered(settings or {}, Path(folder), {} if share is None else {RULE: share})
    with written_folder(folder) as new:
        encoder, codec = model.encoder.config, model.codec.config
        special = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "cls", "sep", "mask")}
        config = family.config(encoder, codec, special) | dict(hf_config or {})
        if hf_config is None:
            config |= {"mask_token_id": special["mask"]}
        # What the file now holds, whatever it held before.
        config.pop("torch_dtype", None)
        config |= {"vocab_size": codec.vocabulary, "tie_word_embeddings": codec.tied, **family.forced}
        state = published_state(family, model, passengers, aliases)
        if like is not None:
            state = like.as_loaded(state)
        state = {k: v for k, v in state.items() if k not in without}
        if dtype is not None:
            state = {k: v.to(dtype) if v.is_floating_point() else v for k, v in state.items()}
        config["dtype"] = _most_common_type(state)
        save_file(state, new / "model.safetensors", metadata={"format": "pt"})
        about = {k: v for k, v in settings.items() if k != "decoder"} | {"family": family.name}
        if model.visible_only:
            about["decoder"] = model.decoder.config.to_dict()
            save_file({_DECODER_PREFIX + k: v for k, v in _decoder_state(model).items()}, new / DECODER)
        (new / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        (new / "unmask.json").write_text(json.dumps(about, indent=2, default=_plain), encoding="utf-8")
        longest = (settings.get("task") or {}).get("slots") or encoder.longest
        tokenizer.save(new, types=bool(codec.types), longest=longest)
        add_card(new, folder)
    if not model.visible_only:
        (Path(folder) / DECODER).unlink(missing_ok=True)


def _most_common_type(state: Mapping[str, Tensor]) -> str:
    """The number format most of the weights have, as config.json names it."""
    size: dict[str, int] = {}
    for tensor in state.values():
        if tensor.is_floating_point():
            name = str(tensor.dtype).removeprefix("torch.")
            size[name] = size.get(name, 0) + tensor.numel()
    return max(size, key=size.__getitem__)


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


@dataclass(repr=False)
class LoadedText:
    """A masked language model and its tokenizer, on a device, in a precision.

    Attributes:
        folder: what was loaded, with what stayed random or was ignored.
        device: where it runs.
        precision: 'fp32', 'bf16' or 'int8' (which embeds alone: all else refuses it).
    """

    folder: TextFolder
    device: torch.device
    precision: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.folder!r}, {self.precision} on {self.device})"

    @property
    def model(self) -> MaskedModel[TokenCodec]:
        """The masked model itself, a module of torch."""
        return self.folder.model

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return self.folder.tokenizer

    @property
    def slots(self) -> int:
        """Longest text in tokens, special ones included."""
        return self.folder.slots

    def require_head(self) -> None:
        """Refuse a checkpoint without a masked-LM head, whose predictions would be random."""
        if reason := self.folder.why_not_masked():
            raise UserError(
                f"{self.folder.family.name}: {reason}; predictions would be noise",
                hint="embed works; for the rest use a masked-LM checkpoint, or unmask adapt to train a head.",
            )

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Within, the model computes in its precision; refused for int8, in which texts are embedded alone."""
        if self.precision == "int8":
            raise UserError("precision=int8: built for embedding alone", hint="Use bf16 or fp32 for this.")
        return computing(self.precision, self.device)

    def examples(self, texts: Sequence[str], *, max_slots: int | None = None) -> list[Example]:
        """Texts as one example each, special tokens included; too long ones are refused, or cut to `max_slots`."""
        encoded: list[Encoded] = self.tokenizer.encode(texts, max_slots=max_slots)
        self.check_lengths([len(e) for e in encoded], texts)
        # As in training: [UNK] and other special tokens are seen, but never hidden.
        special = self.tokenizer.special_ids
        return [text_example(e.ids, e.units, e.special | np.isin(e.ids, special), i) for i, e in enumerate(encoded)]

    def check(self, texts: Sequence[str]) -> None:
        """Refuse texts that are longer than the model takes, by their ids alone: words are not looked for."""
        self.check_lengths([len(ids) for ids in self.tokenizer.ids(texts)], texts)

    def check_lengths(self, lengths: Sequence[int], texts: Sequence[str]) -> None:
        """Refuse texts that are longer than the model takes, by their lengths in tokens."""
        for number, (text, length) in enumerate(zip(texts, lengths, strict=True), start=1):
            if length > self.slots:
                raise UserError(
                    f"text {number} has {length} tokens, the model takes {self.slots}: {text[:60]!r}...",
                    hint="Split it into shorter texts.",
                )
