"""Training a tokenizer: WordPiece, byte-level BPE or Unigram, with the same entries in every process."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from unmask.errors import UserError
from unmask.modalities.text.tokens.units import goes_on

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

Kind = Literal["wordpiece", "bpe", "unigram"]

ACCENTS = "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
"""Unicode's blocks of combining marks that belong to no script, as of é, ö, й. Marks that a script spells with (vowel
signs of Devanagari, Thai and Arabic, points of Hebrew, the voicing of kana) have places in its own block, and stay."""


def trained(
    texts: Iterable[str],
    *,
    kind: Kind,
    vocab_size: int,
    lowercase: bool,
    strip_accents: bool,
    min_frequency: int,
    show_progress: bool,
) -> Backend:
    """The `tokenizers.Tokenizer` that `Tokenizer.train` makes, with its arguments."""
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from tokenizers import Tokenizer as Backend

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    folding: list[Any] = [normalizers.Lowercase()] if lowercase else []
    if strip_accents:
        folding = [normalizers.NFD(), normalizers.Replace(Regex(ACCENTS), ""), normalizers.NFC(), *folding]
    common: dict[str, Any] = {"vocab_size": vocab_size, "special_tokens": special, "show_progress": show_progress}
    trainer: Any
    if kind == "wordpiece":
        backend = Backend(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
        cleaned = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
        # One spelling of é and of が, which some programs write as two characters.
        backend.normalizer = normalizers.Sequence(
            [cleaned, *(folding if strip_accents else [normalizers.NFC(), *folding])]
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix="##")
        texts = [sound(text) for text in texts]
        common["special_tokens"] = special + continuations(texts, backend.normalizer.normalize_str)
        trainer = trainers.WordPieceTrainer(min_frequency=min_frequency, **common)
    elif kind == "bpe":
        backend = Backend(models.BPE())
        backend.normalizer = normalizers.Sequence(folding) if folding else None
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(min_frequency=min_frequency, initial_alphabet=alphabet, **common)
    elif kind == "unigram":
        backend = Backend(models.Unigram())
        backend.normalizer = normalizers.Sequence([normalizers.NFKC(), *folding])
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        backend.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token="[UNK]", **common)
    else:
        raise UserError(f"tokenizer kind {kind!r}", hint="Expected wordpiece, bpe or unigram.")
    counted = _Counted(texts)
    backend.train_from_iterator(counted, trainer=trainer)
    if not counted.texts:
        raise UserError("no text to train a tokenizer on", hint="Give at least some sentences.")
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return _canonical(backend, len(special))


def continuations(texts: Sequence[str], normalise: Callable[[str], str], most: int = 1000) -> list[str]:
    """'##x' for the commonest characters that can stand inside a word, in code-point order.

    The trainer would number them in hash-map order, which differs from process to process and decides between merges
    of equal count. Given in a fixed order, the same texts give the same vocabulary everywhere.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(unicodedata.normalize("NFC", text))
    common = sorted(counts, key=lambda c: (-counts[c], c))[:most]
    return [f"##{c}" for c in sorted({c for one in common for c in normalise(one)}) if goes_on(c)]


def _canonical(backend: Backend, fixed: int) -> Backend:
    """The same tokenizer with entries in a fixed order: the trainers number them by hash-map order, anew in each
    process.

    WordPiece entries go alphabetically, Unigram's by falling score (rounded, as the last digits differ as well); the
    first `fixed` special ones stay. BPE is deterministic already: its numbers are its merge order. Unigram's scores are
    sums made in parallel, so that two trainings may still differ in a last digit.
    """
    from tokenizers import Tokenizer as Backend

    data = json.loads(backend.to_str())
    model = data["model"]
    data["added_tokens"] = [t for t in data["added_tokens"] if t["id"] < fixed]
    if model["type"] != "WordPiece":
        # A token there begins with the space before it: what is missing behind [MASK] has that space too, and programs
        # that read tokenizer.json must not make it a token of its own.
        data["added_tokens"] = [t | {"lstrip": t["content"] == "[MASK]"} for t in data["added_tokens"]]
    if model["type"] == "WordPiece":
        first = sorted((t for t, i in model["vocab"].items() if i < fixed), key=model["vocab"].get)
        model["vocab"] = {t: i for i, t in enumerate([*first, *sorted(set(model["vocab"]) - set(first))])}
    elif model["type"] == "Unigram":
        rest = sorted(([p, round(s, 4)] for p, s in model["vocab"][fixed:]), key=lambda e: (-e[1], e[0]))
        model["vocab"] = [*model["vocab"][:fixed], *rest]
    return Backend.from_str(json.dumps(data))


class _Counted:
    """Texts, sound for the Rust side, counted as they pass."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.source, self.texts = texts, 0

    def __iter__(self) -> Iterator[str]:
        self.texts = 0
        for text in self.source:
            self.texts += bool(text.strip())
            yield sound(text)


def sound(text: str) -> str:
    """The text with half surrogate pairs, which Rust refuses, replaced one for one so that offsets hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    return text
