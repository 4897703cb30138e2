"""The Rust tokenizers behind one small face: train, load, save, encode with units and character offsets."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from unmask.errors import UserError
from unmask.guessed import Guessed
from unmask.modalities.text.tokens.tokenizer_files import (
    CONFIGS,
    ROLES,
    bert,
    byte_bpe,
    characters,
    configured,
    configured_roles,
    cutting,
    from_file,
)
from unmask.modalities.text.tokens.units import can_continue, with_marks, word_units
from unmask.writing import written

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

_BATCH_CHARACTERS = 1_000_000
Kind = Literal["wordpiece", "bpe", "unigram"]

ACCENTS = "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
"""Unicode's blocks of combining marks that belong to no script, as of é, ö, й. Marks that a script spells with (vowel
signs of Devanagari, Thai and Arabic, points of Hebrew, the voicing of kana) have places in its own block, and stay."""


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """One text, tokenised.

    Attributes:
        ids: (slots,) token ids.
        units: (slots,) unit numbers, -1 at special tokens.
        offsets: (slots, 2) character offsets into the text; combining marks that the tokenizer drops belong to the
            token before them.
        special: True at tokens the tokenizer added ([CLS], [SEP]). A mask token written in the text is not special:
            its id is `mask_id` and it is a unit of its own.
    """

    ids: np.ndarray
    units: np.ndarray
    offsets: np.ndarray
    special: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


class Tokenizer(Guessed):
    """A `tokenizers.Tokenizer` that knows its special tokens.

    Attributes:
        vocab_size: number of entries, added tokens included (largest id + 1).
        pad_id, unk_id, cls_id, sep_id, mask_id: ids, None where there is none.
        special_ids: ascending ids that are never hidden and never proposed.
        by_character: whether every token is a character and a unit of its own (residues, letters).
        before, after: ids put in front of and behind a text ([CLS], [SEP]), in training as in use; empty where
            tokenizer.json has no post-processor that adds any, whatever its vocabulary holds.
        longest: tokens of a text by tokenizer_config.json (model_max_length), None where it does not say.
        keeps_end: of texts that are cut the end is kept, not the beginning (truncation_side).
    """

    guesses: ClassVar[Mapping[str, Any]] = {
        "encode*": "tokenizer.ids([text])[0] are the ids of a text, tokenizer.encode(texts) has offsets and words too",
        "batch_encode*": "tokenizer.encode(texts)",
        "tokenize": lambda own: lambda text: [own.token(i) for i in own.encode([text], specials=False)[0].ids],
        "convert_ids_to_tokens": lambda own: lambda ids: [own.token(i) for i in ids],
        "convert_tokens_to_ids": lambda own: lambda tokens: [own.id(token) for token in tokens],
        "batch_decode": lambda own: lambda several: [own.decode(ids) for ids in several],
        "get_vocab": lambda own: own.backend.get_vocab,
        "model_max_length": lambda own: own.longest,
        **{f"{role}_token_id": attrgetter(f"{role}_id") for role in ROLES},
        **{f"{role}_token": lambda own, role=role: own.tokens.get(role) for role in ROLES},
        "save_pretrained": "tokenizer.save(folder)",
        "add_*tokens": "unmask surgery, on the command line, gives a model more tokens",
    }

    def __init__(
        self,
        backend: Backend,
        roles: dict[str, str] | None = None,
        *,
        longest: int | None = None,
        keeps_end: bool = False,
    ) -> None:
        self.backend, self.longest, self.keeps_end = backend, longest, keeps_end
        backend.no_padding()
        backend.no_truncation()
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        self._vocabulary = vocabulary
        self.tokens: dict[str, str] = {}
        for role, spellings in ROLES.items():
            for spelling in ((roles or {}).get(role), *spellings):
                if spelling is not None and spelling in vocabulary:
                    self.tokens[role] = spelling
                    break
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (
            vocabulary.get(self.tokens.get(role, "")) for role in ("pad", "unk", "cls", "sep", "mask")
        )
        added = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        named = {vocabulary[token] for token in self.tokens.values()}
        self.special_ids = np.array(sorted(added | named), dtype=np.int64)
        self.before, self.after = _edges(backend, next(iter(self.tokens.values()), "a"))
        ordinary = (token for token, number in vocabulary.items() if number not in added | named)
        # An unknown piece is still part of its word; any other special token written in the text stands alone.
        self._written = np.zeros(self.vocab_size, bool)
        self._written[[i for i in self.special_ids.tolist() if i != self.unk_id]] = True
        # Residues and letters: no white space between them, yet each is a unit.
        self.by_character = type(backend.model).__name__ == "WordLevel" and all(len(token) == 1 for token in ordinary)

    @property
    def mask_token(self) -> str:
        """What stands for a blank in texts, such as [MASK]."""
        self.require_mask()
        return self.tokens["mask"]

    def require_mask(self) -> int:
        """The mask token's id."""
        if self.mask_id is None:
            raise UserError(
                "the tokenizer has no mask token",
                hint="Add one ([MASK] or <mask>) to tokenizer.json, or use the tokenizer of a masked language model.",
            )
        return self.mask_id

    @classmethod
    def load(cls, path: str | Path, *, lowercase: bool = False) -> Tokenizer:
        """Load from a folder or file.

        In this order: tokenizer.json, vocab.txt (BERT), vocab.json + merges.txt (byte-level BPE), and for residue or
        letter models a vocab.json of single characters or a fairseq dict.txt.

        Args:
            lowercase: lower-case texts before anything else, whatever the file does (sentence-transformers'
                do_lower_case).
        """
        path = Path(path)
        folder = path if path.is_dir() else path.parent
        if not path.exists():
            raise UserError(f"{path}: no such file or folder", hint="Give a tokenizer.json or a model folder.")
        roles = configured_roles(folder)
        longest, keeps_end = cutting(folder)
        try:
            if (made := cls._read(path, folder, roles)) is not None:
                made = configured(made, folder, lowercase=lowercase)
                return cls(made, roles, longest=longest, keeps_end=keeps_end)
        except UserError:
            raise
        except Exception as error:  # the Rust side raises bare Exception
            raise UserError(f"{folder}: not a tokenizer ({error})", hint="Copy its files again.") from None
        names = "tokenizer.json, vocab.txt, vocab.json or dict.txt"
        raise UserError(f"{folder}: no tokenizer here", hint=f"Expected {names}.")

    @staticmethod
    def _read(path: Path, folder: Path, roles: dict[str, str]) -> Backend | None:
        if path.is_file() and path.suffix == ".json" and path.name not in ("vocab.json", *CONFIGS):
            return from_file(path)
        if (folder / "tokenizer.json").exists():
            return from_file(folder / "tokenizer.json")
        if (folder / "vocab.txt").exists():
            return bert(folder)
        if (folder / "vocab.json").exists():
            return byte_bpe(folder) if (folder / "merges.txt").exists() else characters(folder, roles)
        return characters(folder, roles) if (folder / "dict.txt").exists() else None

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        kind: Kind = "wordpiece",
        vocab_size: int = 16384,
        lowercase: bool = False,
        strip_accents: bool = False,
        min_frequency: int = 2,
        show_progress: bool = False,
    ) -> Tokenizer:
        """Train on texts. Special tokens [PAD] [UNK] [CLS] [SEP] [MASK] get ids 0 to 4.

        Args:
            strip_accents: read é as e and ö as o; marks that a script spells with (Hindi, Thai, Arabic) stay.
        """
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
        count = 0

        def counted() -> Iterator[str]:
            nonlocal count
            for text in texts:
                count += bool(text.strip())
                yield sound(text)

        backend.train_from_iterator(counted(), trainer=trainer)
        if not count:
            raise UserError("no text to train a tokenizer on", hint="Give at least some sentences.")
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        return cls(_canonical(backend, len(special)))

    def save(self, folder: str | Path, *, types: bool = False, longest: int | None = None) -> None:
        """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json, as transformers reads them.

        Args:
            types: the model has token types (BERT's segments): transformers' tokenizer returns them only if told so,
                and pairs get other answers without them.
            longest: of the model's inputs, in tokens; what transformers truncates to. None: no limit.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        named = {f"{role}_token": token for role, token in self.tokens.items()}
        inputs = ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_input_names": inputs,
            **({"truncation_side": "left"} if self.keeps_end else {}),
            **({} if longest is None else {"model_max_length": longest}),
            **named,
        }
        for name, text in (
            ("tokenizer.json", self.backend.to_str()),
            ("tokenizer_config.json", json.dumps(config, indent=2)),
            ("special_tokens_map.json", json.dumps(named, indent=2)),
        ):
            with written(folder / name) as temporary:
                temporary.write_text(text, encoding="utf-8")

    def encode(self, texts: Sequence[str], *, max_slots: int | None = None, specials: bool = True) -> list[Encoded]:
        """Tokenise texts, in parallel on all cores.

        Args:
            max_slots: cut longer ones (keeping the last special token); None keeps all.
            specials: add [CLS] and [SEP], or what this tokenizer has for them.
        """
        out: list[Encoded] = []
        for group in _groups(texts):
            encodings = self.backend.encode_batch(group, add_special_tokens=specials)
            out += [self._encoded(text, e) for text, e in zip(group, encodings, strict=True)]
        return out if max_slots is None else [_select(e, self._kept(e.ids, max_slots)) for e in out]

    def ids(self, texts: Sequence[str], *, max_slots: int | None = None) -> list[np.ndarray]:
        """Token ids alone, special ones included: several times faster than `encode`, which also knows words."""
        out: list[np.ndarray] = []
        fast = getattr(self.backend, "encode_batch_fast", self.backend.encode_batch)
        for group in _groups(texts):
            for encoding in fast(group):
                ids = np.array(encoding.ids, np.int64)
                out.append(ids if max_slots is None else ids[self._kept(ids, max_slots)])
        return out

    def _kept(self, ids: np.ndarray, most: int) -> np.ndarray:
        """Places of the tokens that stay where `most` do: those added, and the beginning of the text, or its end."""
        if len(ids) <= most:
            return np.arange(len(ids))
        before = len(self.before) if ids[: len(self.before)].tolist() == self.before else 0
        after = len(self.after) if ids[len(ids) - len(self.after) :].tolist() == self.after else 0
        inside = max(0, most - before - after)
        start = len(ids) - after - inside if self.keeps_end else before
        kept = [np.arange(before), np.arange(start, start + inside), np.arange(len(ids) - after, len(ids))]
        return np.concatenate(kept)[:most]

    def _encoded(self, text: str, encoding: Any) -> Encoded:
        """Arrays from the Rust side's lists."""
        ids, offsets, words = np.array(encoding.ids, np.int32), encoding.offsets, encoding.word_ids
        special = np.array(encoding.special_tokens_mask, bool)
        if self.mask_id is not None:
            special &= ids != self.mask_id
        written = self._written[ids]
        if self.by_character:
            real = np.array([w is not None for w in words], bool)
            units = np.where(real, np.cumsum(real) - 1, -1).astype(np.int32)
        else:
            units = word_units(text, offsets, words, alone=written.tolist() if written.any() else None)
        flat = np.fromiter(chain.from_iterable(offsets), np.int32, 2 * len(offsets)).reshape(-1, 2)
        if not text.isascii():
            inside = np.array([s is not None for s in encoding.sequence_ids], bool)
            flat[inside] = with_marks(text, flat[inside])
        return Encoded(ids=ids, units=units, offsets=flat, special=special)

    def __len__(self) -> int:
        return self.vocab_size

    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            raise TypeError(f"a Tokenizer is not called: {self.guesses['encode*']}")

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text of some ids, special tokens left out."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=True)

    def token(self, number: int) -> str:
        """The entry with this id, as the vocabulary spells it."""
        return self.backend.id_to_token(int(number)) or ""

    def id(self, token: str) -> int | None:
        """The id of a vocabulary entry, None where there is none."""
        return self._vocabulary.get(token)

    def fingerprint(self) -> str:
        """Hash of everything that decides how text is cut."""
        return hashlib.blake2b(self.backend.to_str().encode(), digest_size=8).hexdigest()


def _edges(backend: Backend, text: str) -> tuple[list[int], list[int]]:
    """What a tokenizer puts in front of and behind a text."""
    e = backend.encode(text)
    inside = [i for i, sequence in enumerate(e.sequence_ids) if sequence is not None] or [len(e.ids)]
    return e.ids[: inside[0]], e.ids[inside[-1] + 1 :]


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """Texts in groups of bounded size: an encoding takes some 50 times the memory of its text until it is an array."""
    if isinstance(texts, str):
        raise TypeError(f"one text, where a list of texts is read: {Tokenizer.guesses['encode*']}")
    group: list[str] = []
    size = 0
    for text in texts:
        if group and size + len(text) > _BATCH_CHARACTERS:
            yield group
            group, size = [], 0
        group.append(sound(text))
        size += len(text)
    if group:
        yield group


def _select(e: Encoded, keep: np.ndarray) -> Encoded:
    return Encoded(ids=e.ids[keep], units=e.units[keep], offsets=e.offsets[keep], special=e.special[keep])


def continuations(texts: Sequence[str], normalise: Callable[[str], str], most: int = 1000) -> list[str]:
    """'##x' for the commonest characters that can stand inside a word, in code-point order.

    The trainer would number them in hash-map order, which differs from process to process and decides between merges
    of equal count. Given in a fixed order, the same texts give the same vocabulary everywhere.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(unicodedata.normalize("NFC", text))
    common = sorted(counts, key=lambda c: (-counts[c], c))[:most]
    return [f"##{c}" for c in sorted({c for one in common for c in normalise(one)}) if can_continue(c)]


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


def sound(text: str) -> str:
    """The text with half surrogate pairs, which Rust refuses, replaced one for one so that offsets hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    return text
