"""Tokenizers of the Rust library from the files that model folders have: tokenizer.json, or those from before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UserError
from unmask.files import read_object

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

CONFIGS = ("special_tokens_map.json", "tokenizer_config.json")

ROLES = {
    "pad": ("[PAD]", "<pad>", "<|padding|>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>", "<cls>", "<|cls|>"),
    "sep": ("[SEP]", "</s>", "<sep>", "<eos>", "<|sep|>"),
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
}
"""Usual spellings of the special tokens; a tokenizer_config.json or special_tokens_map.json goes first."""


def from_file(path: Path) -> Backend:
    """What a tokenizer.json holds."""
    from tokenizers import Tokenizer as Backend

    if not path.is_file():
        raise UserError(f"{path}: not a plain file", hint="Copy the file again.")
    backend = Backend.from_file(str(path))
    _check_template(backend, path)
    return backend


def _check_template(backend: Backend, path: Path) -> None:
    """Refuse a template whose special tokens have no ids: the library panics at the first text."""
    if backend.post_processor is None:
        return
    config = json.loads(backend.post_processor.__getstate__())
    for one in config.get("processors", [config]):
        pieces = [*one.get("single", []), *one.get("pair", [])] if one.get("type") == "TemplateProcessing" else []
        added = {piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece}
        missing = sorted(added - set(one.get("special_tokens", {})))
        if missing:
            raise UserError(
                f"{path}: its template adds {', '.join(missing)}, which special_tokens there do not have",
                hint="Copy the file again.",
            )


def configured_roles(folder: Path) -> dict[str, str]:
    """Role -> special token, as the configuration files of a folder say."""
    roles: dict[str, str] = {}
    for name in CONFIGS:
        config = read_object(folder / name) or {}
        for role in ROLES:
            token = config.get(f"{role}_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                roles.setdefault(role, token)
    return roles


def _settings(folder: Path) -> dict[str, Any]:
    return read_object(folder / "tokenizer_config.json") or {}


def configured(backend: Backend, folder: Path, *, lowercase: bool) -> Backend:
    """The tokenizer as tokenizer_config.json changes it: BERT's case, accents and Chinese characters, and tokens that
    it adds to those of tokenizer.json.
    """
    from tokenizers import AddedToken, normalizers

    config, normaliser = _settings(folder), backend.normalizer
    if (folder / "tokenizer.json").exists():
        _check_class(config, backend, folder)
    if config.get("split_special_tokens"):
        raise UserError(
            f"{folder}/tokenizer_config.json: split_special_tokens true",
            hint="Special tokens written in texts are always read as such here: remove it, or the tokens from texts.",
        )
    if isinstance(normaliser, normalizers.BertNormalizer) and config.get("tokenizer_class") not in _GENERAL:
        for key, name in _BERT.items():
            if key in config:
                setattr(normaliser, name, config[key])
        backend.normalizer = normaliser
    if lowercase and not getattr(normaliser, "lowercase", False):
        parts = [normalizers.Lowercase(), *([] if normaliser is None else [normaliser])]
        backend.normalizer = normalizers.Sequence(parts)
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = config.get("added_tokens_decoder") or {}
    more = [*(listed.values() if isinstance(listed, dict) else [])]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more += [t for t in (config.get(key) or []) if isinstance(config[key], list)]
    for token in more:
        about: dict[str, Any] = token if isinstance(token, dict) else {"content": str(token), "special": True}
        if (content := str(about.get("content", ""))) and content not in known:
            fields = ("single_word", "lstrip", "rstrip", "normalized", "special")
            backend.add_tokens([AddedToken(content, **{k: bool(about[k]) for k in fields if k in about})])
    return backend


def _check_class(config: dict[str, Any], backend: Backend, folder: Path) -> None:
    """Refuse a tokenizer_class for which transformers makes anew what tokenizer.json has otherwise: silently the
    same folder would give other tokens there."""
    name = str(config.get("tokenizer_class")).removesuffix("Fast")
    kind, normaliser = type(backend.model).__name__, backend.normalizer
    path = f"{folder}/tokenizer_config.json: tokenizer_class {name}"
    hint = f"Name what tokenizer.json has, or say tokenizer_class {_GENERAL[0]}, which takes it as it is."
    if (wanted := _KINDS.get(name, kind)) != kind:
        raise UserError(f"{path} is a {wanted} tokenizer, and tokenizer.json holds {kind}", hint=hint)
    if _KINDS.get(name) != "WordPiece":
        return
    lower, accents = (getattr(normaliser, key, None) for key in ("lowercase", "strip_accents"))
    has = {
        "do_lower_case": lower,
        "strip_accents": None if accents == lower else accents,  # None: where texts are lower-cased
        "tokenize_chinese_chars": getattr(normaliser, "handle_chinese_chars", None),
    }
    for key, usual in (("do_lower_case", True), ("strip_accents", None), ("tokenize_chinese_chars", True)):
        if lower is None or (key not in config and has[key] != usual):
            raise UserError(f"{path} takes {key} {json.dumps(usual)}, and tokenizer.json has another way", hint=hint)


_KINDS = {
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer"), "WordPiece"),
    **dict.fromkeys(("RobertaTokenizer", "GPT2Tokenizer"), "BPE"),
}
"""What tokenizers of a class are."""
_GENERAL = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")
"""tokenizer_class of tokenizers that do all that tokenizer.json says and nothing else."""
_BERT = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


def cutting(folder: Path) -> tuple[int | None, bool]:
    """How many tokens of a text transformers keeps, None for all, and whether those of its end."""
    config = _settings(folder)
    most = config.get("model_max_length")
    longest = int(most) if isinstance(most, int | float) and 0 < most < 1_000_000 else None  # a huge one: none
    return longest, config.get("truncation_side") == "left"


def bert(folder: Path) -> Backend:
    """WordPiece of a vocab.txt."""
    from tokenizers import BertWordPieceTokenizer

    lower = _settings(folder).get("do_lower_case")
    if lower is None:
        # Nothing says: a vocabulary with capitals in its words is a cased one, and lowered text would be all [UNK].
        words = (folder / "vocab.txt").read_text(encoding="utf-8").split()
        lower = not any(w != w.lower() for w in words if not (w[0] == "[" and w[-1] == "]"))
    made = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=bool(lower))
    return made._tokenizer


def byte_bpe(folder: Path) -> Backend:
    """Byte-level BPE of a vocab.json and a merges.txt."""
    from tokenizers import ByteLevelBPETokenizer
    from tokenizers.processors import RobertaProcessing

    made = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    made.add_special_tokens([t for t in ("<s>", "<pad>", "</s>", "<unk>", "<mask>") if made.token_to_id(t) is not None])
    cls, sep = made.token_to_id("<s>"), made.token_to_id("</s>")
    if cls is not None and sep is not None:
        made._tokenizer.post_processor = RobertaProcessing(("</s>", sep), ("<s>", cls), add_prefix_space=False)
    return made._tokenizer


def characters(folder: Path, roles: dict[str, str]) -> Backend:
    """A vocabulary of single characters (protein and nucleotide models): text is cut letter by letter."""
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
    from tokenizers import Tokenizer as Backend

    listed = folder / "vocab.json"
    vocabulary: dict[str, int] = (
        json.loads(listed.read_text("utf-8")) if listed.exists() else _fairseq(folder / "dict.txt")
    )
    bracketed = [t for t in vocabulary if len(t) > 1 and t[0] in "<[" and t[-1] in ">]"]
    if any(len(t) > 1 for t in set(vocabulary) - set(bracketed)):
        raise UserError(
            f"{folder}: a vocabulary of more than letters, without merges.txt",
            hint="Add merges.txt, or a tokenizer.json.",
        )
    unknown = next((t for t in (roles.get("unk"), "<unk>", "[UNK]") if t in vocabulary), None)
    backend = Backend(models.WordLevel(vocabulary, unk_token=unknown) if unknown else models.WordLevel(vocabulary))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("."), "isolated")]
    )
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(t, special=True) for t in bracketed])
    cls, sep = (next((t for t in ROLES[r] if t in vocabulary), None) for r in ("cls", "sep"))
    if cls and sep:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} {sep} $B {sep}",
            special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
        )
    return backend


def _fairseq(path: Path) -> dict[str, int]:
    """A fairseq dict.txt ("letter count" a line): four special tokens stand before it, the mask after it."""
    letters = [line.split()[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {t: i for i, t in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters, "<mask>"])}
