"""The files of sentence-transformers: modules.json, a folder per module, sentence_bert_config.json and
config_sentence_transformers.json. They are read whole, or refused by name: a module or key that changes vectors is
never passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from safetensors.torch import save_file
from torch import nn

from unmask.errors import UserError
from unmask.files import read_json, read_object
from unmask.modalities.text.network.sentence_vectors import Dense, Normalize, SentenceVectors, SimilarityFn
from unmask.training.checkpoint import read_weights

SHARED_POOLINGS = ("max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
POOLINGS = {"first": "cls"} | {name: name for name in SHARED_POOLINGS}
"""Our names of poolings and theirs, in the order in which theirs are put side by side."""
_FLAGS = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens"} | {"weightedmean": "weightedmean_tokens"}
_VECTOR = "sentence_embedding"
_CONFIGS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "transformer_task": ("feature-extraction",),
    "modality_config": ({"text": {"method": "forward", "method_output_name": "last_hidden_state"}},),
    "module_output_name": ("token_embeddings",),
    "processing_kwargs": (None, {}),
    "query_length": (None,),
    "document_length": (None,),
    "query_expansion": (None,),
    "tokenizer_name_or_path": (None,),
}
"""Keys of sentence_bert_config.json, and the values under which they change nothing here."""
_OF_LOADING = ("trust_remote_code", "attn_implementation", "torch_dtype", "dtype", "add_pooling_layer")
"""Keys of model_args and its like that say how to load and not what to compute."""


def encoder_folder(folder: Path) -> Path:
    """Where the encoder of a sentence-transformers folder is: the folder itself, or the one that modules.json names
    (0_Transformer, as it was until 2021)."""
    if (folder / "config.json").exists():
        return folder
    listed = read_json(folder / "modules.json")
    first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
    path = str(first.get("path", ""))
    return _inside(folder, path) if path and _kind(first) == "Transformer" else folder


def read_sentences(folder: Path, task: Mapping[str, Any], width: int, longest: int | None = None) -> SentenceVectors:
    """The settings of a sentence-transformers folder, or of training for similarity; else plain mean pooling.

    Args:
        task: of fine-tuning, as unmask.json has it.
        width: of the encoder's states.
        longest: of a text in tokens by tokenizer_config.json, where sentence_bert_config.json does not say.
    """
    if task.get("name") == "similarity":
        if task.get("pooling") not in ("mean", "first", "max") or not _length(task.get("slots")):
            raise UserError(
                f"{folder}/unmask.json: a similarity task with pooling {task.get('pooling')!r} and slots "
                f"{task.get('slots')!r}",
                hint="Expected one of mean, first, max, and a whole number.",
            )
        after = nn.Sequential(Normalize())
        return SentenceVectors(pooling=task["pooling"], after=after, slots=task["slots"], given=True)
    path = folder / "modules.json"
    modules = read_json(path)
    if modules is None:
        return SentenceVectors()
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise UserError(f"{path}: not a list of modules", hint="A sentence-transformers folder has one there.")
    kinds = [_kind(m) for m in modules]
    places = [_inside(folder, str(m.get("path", ""))) for m in modules]
    if kinds[:2] != ["Transformer", "Pooling"]:
        raise UserError(
            f"{path}: begins with {', '.join(map(str, kinds[:2])) or 'nothing'}",
            hint="Only folders whose modules are a Transformer, then Pooling, are read.",
        )
    behind = [(kind, place) for kind, place in zip(kinds[2:], places[2:], strict=True) if kind != "Dropout"]
    if odd := [kind for kind, _ in behind if kind not in _READERS]:
        raise UserError(f"{path}: module {odd[0]} behind pooling", hint=f"Known: {', '.join(_READERS)}, Dropout.")
    found = SentenceVectors(
        after=nn.Sequential(*(_READERS[kind](place) for kind, place in behind)).eval(),
        slots=_max_seq_length(places[0]) or longest,
        given=True,
        **_pooling(places[1]),
        **_model_config(folder),
    )
    comes = width * len(found.pooling.split("+"))
    for module, (_, place) in zip(found.after, behind, strict=True):
        takes, gives = comes, comes
        if isinstance(module, Dense):
            takes, gives = module.linear.in_features, module.linear.out_features
        elif isinstance(module, nn.LayerNorm):
            takes = gives = module.normalized_shape[0]
        if takes != comes:
            raise UserError(
                f"{place}/config.json: it takes vectors of {takes} numbers, and those in front of it have {comes}",
                hint="Look at the pooling of 1_Pooling/config.json: several are put side by side.",
            )
        comes = gives
    return found


def _kind(module: Mapping[str, Any]) -> str:
    """What a module of modules.json is, 'Pooling'; one of another package by its whole name."""
    name = str(module.get("type", ""))
    return name.rsplit(".", 1)[-1] if name.startswith("sentence_transformers.") else name


def _inside(folder: Path, path: str) -> Path:
    place = Path(path)
    if place.is_absolute() or ".." in place.parts:  # modules.json must not point outside its folder
        raise UserError(f"{folder}/modules.json: path {path!r}", hint="Expected a folder in this one.")
    return folder / place


def _object(path: Path) -> dict[str, Any]:
    found = read_object(path)
    if found is None:
        raise UserError(f"{path}: no such file", hint="A sentence-transformers folder has JSON there.")
    return found


def _length(slots: Any) -> bool:
    return isinstance(slots, int) and not isinstance(slots, bool) and slots > 2


def _config_of_encoder(place: Path) -> tuple[Path, dict[str, Any]]:
    for name in _CONFIGS:
        path = place / f"sentence_{name}_config.json"
        if found := read_object(path):
            return path, found
    return place / "sentence_bert_config.json", {}


def _max_seq_length(place: Path) -> int | None:
    """max_seq_length of sentence_bert_config.json, whose other keys must change nothing here."""
    path, config = _config_of_encoder(place)
    for key, value in config.items():
        if key in ("max_seq_length", "do_lower_case", "unpad_inputs"):
            continue
        if key in ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs"):
            odd = sorted(set(value or {}) - set(_OF_LOADING)) if isinstance(value, dict | None) else [str(value)]
            if odd:
                raise UserError(f"{path}: {key} with {', '.join(odd)}", hint="Only how to load is read there.")
        elif value not in _NEUTRAL.get(key, ()):
            raise UserError(f"{path}: {key} {json.dumps(value)}", hint="It changes vectors, and is not read here.")
    slots = config.get("max_seq_length")
    if slots is not None and not _length(slots):
        raise UserError(f"{path}: max_seq_length {slots!r}", hint="Expected a whole number.")
    return slots


def lower_cased(place: Path) -> bool:
    """Whether texts are lower-cased before they are tokenised, by sentence_bert_config.json."""
    path, config = _config_of_encoder(place)
    lower = config.get("do_lower_case")
    if lower is not None and not isinstance(lower, bool):
        raise UserError(f"{path}: do_lower_case {lower!r}", hint="Expected true or false.")
    return bool(lower)


def _pooling(place: Path) -> dict[str, Any]:
    path = place / "config.json"
    about = _object(path)
    flags = {f"pooling_mode_{_FLAGS.get(way, way)}": way for way in POOLINGS.values()}
    named = about.get("pooling_mode")
    if named is None:
        # As sentence-transformers: of the flags those that are on, else the mean.
        on = [flags.get(k, k) for k, v in about.items() if k.startswith("pooling_mode_") and v]
        on = [way for way in POOLINGS.values() if way in on] + [way for way in on if way not in POOLINGS.values()]
        named = on or ["mean"]
    ways = [named] if isinstance(named, str) else named
    ours = {way: name for name, way in POOLINGS.items()}
    odd = [way for way in ways if way not in ours] if isinstance(ways, list) and ways else [ways]
    if odd:
        raise UserError(f"{path}: pooling {', '.join(map(str, odd))}", hint=f"Known: {', '.join(ours)}.")
    include = about.get("include_prompt", True)
    known = {"word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt", *flags}
    if unknown := sorted(set(about) - known):
        raise UserError(f"{path}: {', '.join(unknown)}", hint=f"Known: {', '.join(sorted(known))}.")
    if not isinstance(include, bool):
        raise UserError(f"{path}: include_prompt {include!r}", hint="Expected true or false.")
    return {"pooling": "+".join(ours[way] for way in ways), "include_prompt": include}


def _model_config(folder: Path) -> dict[str, Any]:
    """Prompts and how vectors are compared; no other key of this file may change vectors."""
    path = folder / "config_sentence_transformers.json"
    config = read_object(path) or {}
    kind = config.get("model_type", "SentenceTransformer")
    if kind != "SentenceTransformer":
        raise UserError(f"{path}: model_type {kind!r}", hint="Only a SentenceTransformer has one vector per text.")
    if config.get("truncate_dim") is not None:
        raise UserError(
            f"{path}: truncate_dim {config['truncate_dim']!r}", hint="Vectors are not cut here: take the first columns."
        )
    prompts = config.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(p, str | None) for p in prompts.values()):
        raise UserError(f"{path}: prompts {prompts!r:.80}", hint='Expected an object: {"query": "query: "}.')
    prompts = {name: text or "" for name, text in prompts.items()}
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise UserError(
            f"{path}: default_prompt_name {default!r} is not among its prompts ({', '.join(prompts) or 'none'})",
            hint="Name one of them, or null.",
        )
    similarity, known = config.get("similarity_fn_name") or "cosine", get_args(SimilarityFn)
    if similarity not in known:
        raise UserError(f"{path}: similarity_fn_name {similarity!r}", hint=f"Expected one of {', '.join(known)}.")
    return {"prompts": prompts, "default_prompt": default, "similarity_fn": similarity}


def _named_vector(path: Path, about: Mapping[str, Any]) -> None:
    for key in ("module_input_name", "module_output_name"):
        if about.get(key) not in (None, _VECTOR):
            raise UserError(f"{path}: {key} {about[key]!r}", hint=f"Only {_VECTOR} is read.")


def _normalize(place: Path) -> nn.Module:
    _named_vector(place / "config.json", read_object(place / "config.json") or {})
    return Normalize()


def _dense(place: Path) -> nn.Module:
    path = place / "config.json"
    about = _object(path)
    _named_vector(path, about)
    known = {"in_features", "out_features", "bias", "activation_function", "use_residual"}
    if unknown := sorted(set(about) - known - {"module_input_name", "module_output_name"}):
        raise UserError(f"{path}: {', '.join(unknown)}", hint=f"Known: {', '.join(sorted(known))}.")
    width, out = about.get("in_features"), about.get("out_features")
    if not (_whole(width) and _whole(out)):
        raise UserError(f"{path}: in_features {width!r}, out_features {out!r}", hint="Expected whole numbers.")
    made = Dense(
        cast(int, width),
        cast(int, out),
        bias=about.get("bias", True) is not False,
        activation=_activation(path, about.get("activation_function", "torch.nn.modules.activation.Tanh")),
        residual=about.get("use_residual", False) is True,
    )
    return _filled(made, place)


def _whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 < number < 1 << 20


def _activation(path: Path, name: Any) -> nn.Module:
    """A function of torch.nn by its full name."""
    short = str(name).rsplit(".", 1)[-1]
    kind = getattr(nn.modules.activation, short, nn.Identity if short == "Identity" else None)
    try:
        if str(name).startswith("torch.nn.") and isinstance(kind, type) and issubclass(kind, nn.Module):
            return kind()
    except TypeError:  # it needs arguments, which the file does not hold
        pass
    raise UserError(
        f"{path}: activation_function {name!r}",
        hint="Expected one of torch.nn without arguments: torch.nn.modules.activation.Tanh.",
    )


def _layer_norm(place: Path) -> nn.Module:
    dimension = _object(place / "config.json").get("dimension")
    if not _whole(dimension):
        raise UserError(f"{place}/config.json: dimension {dimension!r}", hint="Expected a whole number.")
    return _filled(nn.LayerNorm(dimension), place, prefix="norm.")


def _filled(module: nn.Module, place: Path, prefix: str = "") -> nn.Module:
    """The module with its weights, in fp32."""
    held = {name.removeprefix(prefix): tensor.float() for name, tensor in read_weights(place).items()}
    wanted = {name: tensor.shape for name, tensor in module.state_dict().items()}
    found = {name: tensor.shape for name, tensor in held.items()}
    if wanted != found:
        shown = ["{" + ", ".join(f"{n} {list(s)}" for n, s in sorted(sizes.items())) + "}" for sizes in (found, wanted)]
        raise UserError(f"{place}: tensors {shown[0]}, config.json there implies {shown[1]}", hint="Copy it again.")
    module.load_state_dict(held)
    return module.requires_grad_(False)


_READERS = {"Dense": _dense, "LayerNorm": _layer_norm, "Normalize": _normalize}


def write_sentences(new: Path, sentences: SentenceVectors, width: int, longest: int) -> None:
    """Write the files by which sentence-transformers (and `embed` here) knows how vectors are made."""
    names = ["Pooling", *(type(module).__name__ for module in sentences.after)]
    listed = [("", "Transformer")] + [(f"{i}_{name}", name) for i, name in enumerate(names, start=1)]
    _write(
        new / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (path, name) in enumerate(listed)
        ],
    )
    for path, _ in listed[1:]:
        (new / path).mkdir(exist_ok=True)
    on = [POOLINGS[way] for way in sentences.pooling.split("+")]
    chosen: dict[str, Any] = {"word_embedding_dimension": width, "include_prompt": sentences.include_prompt}
    if on == [way for way in POOLINGS.values() if way in on]:
        chosen |= {f"pooling_mode_{_FLAGS.get(way, way)}": way in on for way in POOLINGS.values()}
    else:  # flags have one order only
        chosen["pooling_mode"] = on
    _write(new / listed[1][0] / "config.json", chosen)
    for module, (path, _) in zip(sentences.after, listed[2:], strict=True):
        _write_module(new / path, module)
    _write(new / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    tokens = new / "tokenizer_config.json"
    _write(tokens, _object(tokens) | {"model_max_length": longest})
    about = {"prompts": dict(sentences.prompts), "default_prompt_name": sentences.default_prompt}
    _write(new / "config_sentence_transformers.json", about | {"similarity_fn_name": sentences.similarity_fn})


def _write_module(place: Path, module: nn.Module) -> None:
    if isinstance(module, Dense):
        kind = type(module.activation)
        about: dict[str, Any] = {
            "in_features": module.linear.in_features,
            "out_features": module.linear.out_features,
            "bias": module.linear.bias is not None,
            "activation_function": f"{kind.__module__}.{kind.__name__}",
        }
        about |= {"use_residual": True} if module.use_residual else {}
        prefix = ""
    elif isinstance(module, nn.LayerNorm):
        about, prefix = {"dimension": module.normalized_shape[0]}, "norm."
    else:
        return
    _write(place / "config.json", about)
    state = {prefix + name: tensor.detach().contiguous() for name, tensor in module.state_dict().items()}
    save_file(state, place / "model.safetensors", metadata={"format": "pt"})


def _write(path: Path, what: Any) -> None:
    path.write_text(json.dumps(what, indent=2), encoding="utf-8")
