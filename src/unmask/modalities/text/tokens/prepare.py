"""`unmask prepare text`: raw text of any size -> tokenizer and shards of tokens that `pretrain` takes as data.

It is built as the cache of a run is (`building`), with the tokenizer trained between the scan and the shards, on any
engine. The result is what `pretrain` makes of the same data: the same examples, in the same order, with the same ones
held out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.engines import engine as engine_of
from unmask.engines.folder import (
    ABOUT,
    DAMAGED,
    PLAN,
    is_finished,
    prepared_at,
    prepared_with,
    preparing,
    refuse_changed,
)
from unmask.engines.local import Engine
from unmask.errors import UserError, option
from unmask.files import check_room, fsync, read_json, sealed
from unmask.modalities.text.reading.sources import on_hub, resolve
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens import building
from unmask.modalities.text.tokens.building import Building, corpus_notes, recipe_of, sentences_of
from unmask.modalities.text.tokens.cache import VERSION, TokenCache, content_key
from unmask.modalities.text.tokens.corpus import check_unknown, given_tokenizer, new_tokenizer
from unmask.modalities.text.tokens.scanning import (
    TOKENIZER_CHARACTERS,
    Portion,
    Scanned,
    first_threshold,
    reading_of,
    size_of_files,
)
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.remote import is_url, shared
from unmask.version import __version__
from unmask.writing import replace_json

OWN = (*building.OWN, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
"""What a preparation writes into its folder."""


@dataclass(frozen=True, kw_only=True)
class PreparedText:
    """A corpus that was prepared.

    Attributes:
        folder: where it lies; what `pretrain` takes as data.
        counts: documents, copies left out ("duplicates"), examples, those held out, tokens, shards and bytes.
        workers: how many worked side by side.
        stages: seconds of each stage: "scan" (all workers), "decide" (copies), "tokenizer", "tokenise" (all workers)
            and "index"; none where nothing was left to do.
        tokens_per_second: of this call's tokenising, all workers together; None where nothing was left to do.
    """

    folder: Path
    settings: TextSettings
    counts: dict[str, int]
    workers: int
    seconds: float
    stages: dict[str, float]
    tokens_per_second: float | None

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for --json."""
        return {
            "folder": str(self.folder),
            "settings": settled(self.settings),
            "corpus": self.counts,
            "workers": self.workers,
            "stages": self.stages,
            "tokens_per_second": self.tokens_per_second,
        }


def prepare(
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    settings: TextSettings | None = None,
    workers: int | None = None,
    engine: str = "local",
    say: Callable[[str], None] | None = None,
) -> PreparedText:
    """Tokenise a corpus into shards that `pretrain` takes as data; the same bytes whatever the number of workers.

    Started again after it was ended, however that was, it goes on where it stood.

    Args:
        data: files, folders, globs, or URLs of these (s3://, gs://, hf://, https://).
        out: a folder that is new, empty or of the same preparation. With engine='ray' all machines must see it.
        settings: as for `pretrain`; those that decide what is prepared are `slots`, `sentences`, `holdout`, `column`,
            `document`, `hide` where it is 'entity', the seed, and `tokenizer` or what one is trained by.
        workers: processes side by side; default the cores there are.
        engine: 'local', or 'ray' (the cluster that RAY_ADDRESS names, or one on this machine).
        say: called with lines on the progress; default none.

    Raises:
        UserError: for anything wrong with the data, the settings, the folder or the engine.
    """
    settings, tell = settings or TextSettings(), say or (lambda text: None)
    started, out = time.perf_counter(), Path(out)
    items = [str(i) for i in ([data] if isinstance(data, str | Path) else data)]
    for item in filter(on_hub, items):
        name = item[3:].partition(":")[0]
        raise UserError(
            f"{item}: streamed data sets have no files to share out",
            hint=f"Give its files, such as hf://datasets/{name}/**/*.parquet.",
        )
    if (ready := prepared_at(items, "text")) is not None:
        raise UserError(f"{ready} is prepared already", hint="Give it to `unmask pretrain text` as its data.")
    work = engine_of(engine, workers, tell)
    # Workers of other machines stand in other folders.
    files = [f if is_url(f) else str(Path(f).absolute()) for f in resolve(items, out, tell)]
    with work, preparing(out, OWN):
        if not work.alone and not all(map(shared, files)):
            raise UserError(
                f"{next(f for f in files if not shared(f))}: in this process's memory, which no worker sees",
                hint=f"Use {option('workers', 1)} and {option('engine', 'local')}.",
            )
        made = Preparation(out, files, settings, work, tell)
        rate = made.run()
    counts = _counts(TokenCache.open(out))
    return PreparedText(
        folder=out,
        settings=settings,
        counts=counts,
        workers=work.workers,
        seconds=round(time.perf_counter() - started, 3),
        stages=made.stages,
        tokens_per_second=rate,
    )


class Preparation(Building):
    """One corpus on its way into a folder, with its tokenizer."""

    own: tuple[str, ...] = OWN

    def __init__(
        self, out: Path, files: list[str], settings: TextSettings, work: Engine, say: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self.stages: dict[str, float] = {}
        self.given = None if settings.tokenizer is None else given_tokenizer(settings)
        made_of = [
            VERSION,
            __version__,
            TOKENIZER_CHARACTERS,
            settled(settings) | {"tokenizer": None},
            None if self.given is None else [self.given.fingerprint(), self.given.tokens],
            content_key(files),
        ]
        key = hashlib.blake2b(json.dumps(made_of, sort_keys=True).encode(), digest_size=16).hexdigest()
        self.size = size_of_files(files)
        threshold = 0 if self.given is not None else first_threshold(self.size, TOKENIZER_CHARACTERS)
        reading = reading_of(settings, folder=str(out.absolute()), key=key, threshold=threshold)
        super().__init__(out, files, files, reading, work, say)

    def run(self) -> float | None:
        """Do what is left; tokens per second, None where nothing was."""
        out, s = self.folder, self.settings
        if is_finished(out, self.reading.key, settled(s)):
            self.say(f"{out}: prepared already")
            self.clear()  # of a process that was killed at the very end
            return None
        if not (out / PLAN).exists():
            check_room(
                out,
                0.75 * self.size,
                what="the tokens of the corpus, some three quarters of its bytes,",
                hint=f"Free space, or choose another {option('out')}.",
            )
        with self.timed("scan"):
            plan = self.scan()
        with self.timed("decide"):
            scanned = self.scanned(plan)
        with self.timed("tokenizer"):
            tokenizer = self.tokenizer(plan, scanned)
        recipe = recipe_of(tokenizer, s)
        with self.timed("tokenise"):
            rate, shards = self.sharded(plan, scanned, recipe)
        with self.timed("index"):
            meta = self.indexed(scanned, recipe, shards) | {"version": VERSION}
            replace_json(out / "meta.json", sealed(meta))
            check_unknown(TokenCache.open(out).unknown, self.say)
            for line in corpus_notes(meta):
                self.say(line)
            replace_json(out / ABOUT, sealed({"kind": "text", "key": self.reading.key, "settings": settled(s)}))
            self.clear()
            fsync(out)
        return rate

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Note how long a stage takes."""
        started = time.perf_counter()
        yield
        self.stages[stage] = round(time.perf_counter() - started, 3)

    def tokenizer(self, plan: list[Portion], scanned: Scanned) -> Tokenizer:
        """The tokenizer, in the folder from now on."""
        if self.given is not None:
            self.given.require_mask()
            self.given.save(self.folder)
            return self.given
        mark = read_json(self.folder / PLAN)
        if "tokenizer" in mark and (self.folder / "tokenizer.json").exists():
            found = Tokenizer.load(self.folder)
            if found.fingerprint() == mark["tokenizer"]:
                return found
        made = new_tokenizer(self.sample(plan, scanned, TOKENIZER_CHARACTERS), self.settings, self.say)
        made.save(self.folder)
        replace_json(self.folder / PLAN, {**mark, "tokenizer": made.fingerprint()})
        return made


def _counts(cache: TokenCache) -> dict[str, int]:
    meta = cache.meta
    return {
        "documents": meta["documents"],
        "duplicates": meta["report"]["duplicates"],
        "examples": len(cache),
        "training": len(cache.train),
        "held_out": len(cache.validation),
        "tokens": meta["tokens"],
        "shards": meta["shards"],
        "bytes": sum(size for size, _ in meta["files"].values()),
    }


SETTINGS = ("slots", "holdout", "column", "document", "tokenizer")
"""Settings that decide what is prepared; with hide=entity, the seed and, where no tokenizer is brought, `TRAINED`."""
TRAINED = ("vocabulary", "tokenizer_kind", "lowercase", "strip_accents")


def settled(settings: TextSettings) -> dict[str, Any]:
    """What of some settings decides what is prepared."""
    names = SETTINGS if settings.tokenizer is not None else SETTINGS + TRAINED
    entity = {"hide": "entity"} if settings.hide == "entity" else {}
    return (
        {name: getattr(settings, name) for name in names}
        | entity
        | sentences_of(settings)
        | {"seed": settings.train.seed}
    )


def open_prepared(folder: Path, settings: TextSettings) -> tuple[Tokenizer, TokenCache]:
    """The tokenizer and the tokens of a prepared corpus, with what was held out then, whatever the seed is now."""
    tokenizer, cache = Tokenizer.load(folder / "tokenizer.json"), TokenCache.open(folder, hint=DAMAGED)
    if tokenizer.fingerprint() != cache.meta["fingerprint"]:
        raise UserError(f"{folder}: its tokenizer is not the one it was prepared with", hint="Prepare it again.")
    check_settings(folder, prepared_with(folder), settings, tokenizer)
    return tokenizer, cache


def check_settings(folder: Path, prepared: Mapping[str, Any], settings: TextSettings, tokenizer: Tokenizer) -> None:
    """Refuse a setting that differs from the prepared one, naming both values."""
    wanted = settled(settings)
    for name in dict.fromkeys((*prepared, *wanted)):
        was, now = prepared.get(name), wanted.get(name)
        if name == "seed" or was == now or (name in TRAINED and name not in prepared):
            continue
        if name == "tokenizer" and now is not None:
            if Tokenizer.load(now).fingerprint() == tokenizer.fingerprint():
                continue
            was = was or "the one that was trained on it"
        elif name in TRAINED and name not in wanted:
            continue
        if name == "hide":
            was, now = was or "word", settings.hide  # entities were merged into units, or were not
        if name == "sentences":
            was, now = was or 0.0, settings.sentences
        refuse_changed(folder, name, now, was)
