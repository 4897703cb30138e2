"""The tokenizer of a run: brought along, or trained on its corpus."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

from unmask.errors import UserError, setting
from unmask.modalities.text.reading.sources import on_hub
from unmask.modalities.text.recipes import TextSettings, changed
from unmask.modalities.text.tokens.cache import alone, building, content_key
from unmask.modalities.text.tokens.scanning import TOKENIZER_CHARACTERS, first_threshold, reading_of, size_of_files
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.version import __version__
from unmask.writing import written

MOST_UNKNOWN = 0.1
"""Above this share of unknown tokens a corpus is refused: they are special, so never hidden and never learnt."""


def check_unknown(share: float, say: Callable[[str], None], *, name: str = "the corpus", given: bool = False) -> None:
    """Tell how much of some texts the tokenizer does not know.

    Args:
        given: the tokenizer is that of a model which is there already.
    """
    if share > MOST_UNKNOWN:
        which = "the model's tokenizer" if given else "the tokenizer"
        raise UserError(
            f"{name}: {share:.1%} of the tokens are unknown to {which} ([UNK]); at most {MOST_UNKNOWN:.0%} is accepted",
            hint="Choose a model that was trained on the text's language, or pretrain one: unmask pretrain text."
            if given
            else f"Use a tokenizer of the corpus's languages: leave {setting('tokenizer')} out, make "
            f"{setting('vocabulary')} larger, or say {setting('tokenizer_kind', 'bpe')}, which knows every character.",
        )
    if share > 0.001:
        say(f"{share:.2%} of the tokens of {name} are unknown to the tokenizer")


def build_tokenizer(
    data: Sequence[str], out: Path, settings: TextSettings, say: Callable[[str], None], *, reuse: bool = False
) -> Tokenizer:
    """The tokenizer of a run: brought along, or trained now on the training documents and saved in `out`.

    Args:
        reuse: take the one in `out`, if there is one: of the run that is resumed, or of the first process. One that was
            trained there on the same files with the same settings is taken without.
    """
    if settings.tokenizer is not None:
        return given_tokenizer(settings)
    # The same command, started again after a kill, need not train it again.
    names = ("tokenizer_kind", "vocabulary", "lowercase", "strip_accents", "column", "document", "holdout")
    chosen = {name: getattr(settings, name) for name in names}
    made_of = [__version__, TOKENIZER_CHARACTERS, settings.train.seed, chosen, content_key(data)]
    key = hashlib.blake2b(json.dumps(made_of).encode(), digest_size=16).hexdigest()
    mark = out / ".tokenizer.key"
    made = mark.read_text().strip() if mark.exists() else ""
    named = any(map(on_hub, data))  # nothing says that it is what it was
    if (out / "tokenizer.json").exists() and (reuse or (made == key and not named)):
        return Tokenizer.load(out)
    reading = reading_of(settings, threshold=first_threshold(size_of_files(data), TOKENIZER_CHARACTERS))
    with alone(out / "cache"), building(out / "cache", data, reading) as work:  # the cache goes on with what it read
        plan = work.scan()
        tokenizer = new_tokenizer(work.sample(plan, work.scanned(plan), TOKENIZER_CHARACTERS), settings, say)
    tokenizer.save(out)
    with written(mark) as temporary:
        temporary.write_text(key)
    return tokenizer


def given_tokenizer(settings: TextSettings) -> Tokenizer:
    """The tokenizer that is brought along."""
    assert settings.tokenizer is not None
    made = Tokenizer.load(settings.tokenizer)
    normalizer = made.backend.normalizer
    read = "A\u00e9" if normalizer is None else unicodedata.normalize("NFC", normalizer.normalize_str("A\u00e9"))
    has = {
        "vocabulary": made.vocab_size,
        "tokenizer_kind": type(made.backend.model).__name__.lower(),
        "lowercase": "a" in read,
        "strip_accents": "e" in read,
    }
    for name, value in has.items():
        if changed(settings, name) and getattr(settings, name) != value:
            raise UserError(
                f"{setting(name, getattr(settings, name))}, and {settings.tokenizer} has {value}",
                hint=f"Leave it out: a tokenizer that is brought along ({setting('tokenizer')}) is taken as it is.",
            )
    return made


def new_tokenizer(texts: Sequence[str], settings: TextSettings, say: Callable[[str], None]) -> Tokenizer:
    """A tokenizer trained on these texts; it is said where they hold too little for as many entries."""
    case = "folded" if settings.lowercase else "kept"
    accents = "taken off" if settings.strip_accents else "kept"
    say(
        f"training a {settings.tokenizer_kind} tokenizer of {settings.vocabulary} entries: case is {case} "
        f"({setting('lowercase', settings.lowercase)}), accents are {accents} "
        f"({setting('strip_accents', settings.strip_accents)})"
    )
    made = Tokenizer.train(
        texts,
        kind=settings.tokenizer_kind,
        vocab_size=settings.vocabulary,
        lowercase=settings.lowercase,
        strip_accents=settings.strip_accents,
    )
    if made.vocab_size < settings.vocabulary:
        say(f"the text holds enough for {made.vocab_size} of them")
    return made
