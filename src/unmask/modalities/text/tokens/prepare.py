"""`unmask prepare text`: raw text of any size -> tokenizer and shards of tokens that `pretrain` takes as data.

Three stages: a scan of all portions of the corpus side by side (documents, copies, what the tokenizer is trained on),
the tokenizer, and a shard per portion, side by side again. What a portion comes to follows from the corpus and the
settings alone, so any number of workers on any engine writes the same bytes, and a command that was killed goes on.
The result is what `pretrain` makes of the same data: the same examples, in the same order, with the same ones held out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.engines import engine as engine_of
from unmask.engines.folder import (
    ABOUT,
    DAMAGED,
    PLAN,
    begun,
    is_finished,
    prepared_at,
    prepared_with,
    preparing,
    refuse_other,
    remove_halves,
)
from unmask.engines.local import Engine
from unmask.errors import UserError, option
from unmask.files import check_room, fingerprint, fsync, read_json, sealed
from unmask.modalities.text.reading.sources import check_read, on_hub, resolve
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens.building import recipe_of, refuse_no_examples, told
from unmask.modalities.text.tokens.cache import VERSION, TokenCache, content_key
from unmask.modalities.text.tokens.corpus import TOKENIZER_CHARACTERS, check_unknown, given_tokenizer, new_tokenizer
from unmask.modalities.text.tokens.scanning import (
    Portion,
    Reading,
    Scanned,
    first_threshold,
    gathered,
    left,
    portions,
    rescanned,
    sample,
)
from unmask.modalities.text.tokens.shards import BINS, Shaping, ShardTask, done, write_index
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.progress import counted
from unmask.remote import is_url, place, shared, size_of
from unmask.version import __version__
from unmask.writing import remove, replace_json

WORK = ("scan", "index", PLAN)
"""What stands in the folder until it is finished."""
OWN = (
    *("scan", "index", "shards", "meta.json", "offsets.bin", "split.bin"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
)
TELL_SECONDS = 30.0
_SCAN, _SHARD = "unmask.modalities.text.tokens.scanning:scan", "unmask.modalities.text.tokens.shards:shard"


@dataclass(frozen=True, kw_only=True)
class PreparedText:
    """A corpus that was prepared.

    Attributes:
        folder: where it lies; what `pretrain` takes as data.
        settings: those that it was prepared with.
        counts: documents, copies left out ("duplicates"), examples, those held out, tokens, shards and bytes.
        workers: how many worked side by side.
        seconds: that this call took.
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
        settings: as for `pretrain`; those that decide what is prepared are `slots`, `holdout`, `column`, `document`,
            `hide` where it is 'entity', the seed, and `tokenizer` or what one is trained by.
        workers: processes side by side; default the cores there are.
        engine: 'local', or 'ray' (the cluster that RAY_ADDRESS names, or one on this machine).
        say: told how far it is; default nobody.

    Raises:
        UserError: for anything wrong with the data, the settings, the folder or the engine.
    """
    settings, tell = settings or TextSettings(), say or (lambda text: None)
    began, out = time.perf_counter(), Path(out)
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
        seconds=round(time.perf_counter() - began, 3),
        stages=made.stages,
        tokens_per_second=rate,
    )


class Preparation:
    """One corpus on its way into a folder."""

    def __init__(
        self, out: Path, files: list[str], settings: TextSettings, work: Engine, say: Callable[[str], None]
    ) -> None:
        self.out, self.files, self.settings, self.work, self.say = out, files, settings, work, say
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
        self.key = hashlib.blake2b(json.dumps(made_of, sort_keys=True).encode(), digest_size=16).hexdigest()
        self.reading = Reading(
            folder=str(out.absolute()),
            key=self.key,
            column=settings.column,
            entities=settings.hide == "entity",
            document=settings.document,
            holdout=settings.holdout,
            seed=settings.train.seed,
            threshold=0 if self.given is not None else first_threshold(self.size(), TOKENIZER_CHARACTERS),
        )

    def size(self) -> int:
        """Bytes of all files, as they lie."""
        return sum(size_of(place(file)) or 0 for file in self.files)

    def run(self) -> float | None:
        """Do what is left; tokens per second, None where nothing was."""
        if is_finished(self.out, self.key, settled(self.settings)):
            self.say(f"{self.out}: prepared already")
            for name in WORK:  # of a process that was killed at the very end
                remove(self.out / name)
            return None
        plan = self.planned()
        with self.timed("scan"):
            self.scan(plan)
        with self.timed("decide"):
            scanned = self.scanned(plan)
        with self.timed("tokenizer"):
            tokenizer = self.tokenizer(plan, scanned)
        with self.timed("tokenise"):
            rate, shards = self.sharded(plan, scanned, tokenizer)
        with self.timed("index"):
            _finish(self, scanned, tokenizer, shards)
        return rate

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Keep how long a stage takes."""
        began = time.perf_counter()
        yield
        self.stages[stage] = round(time.perf_counter() - began, 3)

    def planned(self) -> list[Portion]:
        """The portions; what another preparation that did not end left in the folder is removed."""
        if not (self.out / PLAN).exists():
            check_room(
                self.out,
                0.75 * self.size(),
                what="the tokens of the corpus, some three quarters of its bytes,",
                hint=f"Free space, or choose another {option('out')}.",
            )
        there = begun(self.out, self.key, OWN, ("scan", "index", "shards"), self.say)
        plan = portions(self.files, self.settings.document)
        replace_json(self.out / PLAN, {**there, "portions": len(plan)})
        return plan

    def scan(self, plan: list[Portion]) -> None:
        """Look at the portions that were not looked at yet."""
        tasks = list(left(self.out, plan, self.reading.threshold))
        went = f"; {len(plan) - len(tasks):,} are there" if len(tasks) < len(plan) else ""
        self.say(f"reading, files: {len(self.files):,}, portions: {len(plan):,}{went}")
        for _ in counted(self.work.run(_SCAN, self.reading, tasks), len(tasks)):
            pass

    def scanned(self, plan: list[Portion]) -> Scanned:
        """What the corpus holds."""
        found = gathered(self.out, plan)
        check_read(self.files, found.report, self.settings.document)
        r = found.report
        self.say(f"{r.documents:,} documents, {r.characters:,} characters")
        return found

    def tokenizer(self, plan: list[Portion], scanned: Scanned) -> Tokenizer:
        """The tokenizer, in the folder from now on."""
        if self.given is not None:
            self.given.require_mask()
            self.given.save(self.out)
            return self.given
        mark = read_json(self.out / PLAN)
        if "tokenizer" in mark and (self.out / "tokenizer.json").exists():
            found = Tokenizer.load(self.out)
            if found.fingerprint() == mark["tokenizer"]:
                return found
        while (texts := sample(self.out, scanned, TOKENIZER_CHARACTERS)) is None:
            self.reading = rescanned(self.reading)
            self.say("more text is needed for the tokenizer than was expected")
            self.scan(plan)
        made = new_tokenizer(texts, self.settings, self.say)
        made.save(self.out)
        replace_json(self.out / PLAN, {**mark, "tokenizer": made.fingerprint()})
        return made

    def sharded(
        self, plan: list[Portion], scanned: Scanned, tokenizer: Tokenizer
    ) -> tuple[float | None, list[dict[str, Any]]]:
        """Tokens per second, and what there is of every shard, all of them written."""
        s = self.settings
        recipe = recipe_of(tokenizer, max_slots=s.slots, holdout=s.holdout, seed=s.train.seed)
        found = [done(self.out, number) for number in range(len(plan))]
        tasks = [
            ShardTask(
                number=n,
                portion=plan[n],
                drop=scanned.drop[n].astype(np.int64),
                documents=scanned.counts[n],
                mark=scanned.marks[n],
            )
            for n, there in enumerate(found)
            if there is None
        ]
        if tasks and len(tasks) < len(plan):
            self.say(f"tokenising goes on: {len(plan) - len(tasks):,} of {len(plan):,} shards are there")
        began = told_at = time.monotonic()
        read = 0

        def tell(last: bool = False) -> None:
            rate = read / max(time.monotonic() - began, 1e-9)
            have = sum(there is not None for there in found)
            self.say(
                f"tokenis{'ed' if last else 'ing'}: {have:,} of {len(plan):,} shards, {read:,} tokens, "
                f"{rate:,.0f} tokens/s with {self.work.workers} worker{'s' * (self.work.workers != 1)}"
            )

        for i, about in counted(self.work.run(_SHARD, Shaping(reading=self.reading, recipe=recipe), tasks), len(tasks)):
            found[tasks[i].number] = about
            read += about["read"]
            if time.monotonic() - told_at >= TELL_SECONDS:
                tell()
                told_at = time.monotonic()
        rate = read / max(time.monotonic() - began, 1e-9) if tasks else None
        if tasks:
            tell(last=True)
        return rate, [there for there in found if there is not None]


def _finish(made: Preparation, scanned: Scanned, tokenizer: Tokenizer, shards: list[dict[str, Any]]) -> None:
    """Write what stands in the folder beside the shards; from then on it is prepared."""
    s, out = made.settings, made.out
    recipe = recipe_of(tokenizer, max_slots=s.slots, holdout=s.holdout, seed=s.train.seed)
    total = {name: sum(about[name] for about in shards) for name in shards[0] if name not in ("sizes", "sums")}
    refuse_no_examples(total["examples"], total["entities"], recipe, made.files, entities=made.reading.entities)
    tail = write_index(out, shards, s.holdout)
    files = {name: fingerprint(out / name) for name in ("offsets.bin", "split.bin")}
    for n, shard in enumerate(shards):
        files |= {f"shards/{n:06}.{array}.bin": [shard["sizes"][array], shard["sums"][array]] for array in BINS}
    meta = {
        "dtype": recipe.dtype,
        **{name: total[name] for name in ("examples", "tokens", "documents", "short")},
        "unknown": total["unknown"] / max(total["read"], 1),
        "least": recipe.least,
        "held_out_by": "tail" if tail else "document",
        "vocabulary": tokenizer.vocab_size,
        "before": tokenizer.before,
        "after": tokenizer.after,
        "report": asdict(scanned.report),
        "files": files,
        "shards": len(shards),
        "version": VERSION,
        "key": made.key,
        "fingerprint": tokenizer.fingerprint(),
    }
    replace_json(out / "meta.json", sealed(meta))
    check_unknown(TokenCache.open(out).unknown, made.say)
    for line in told(meta):
        made.say(line)
    remove_halves(out / "shards")
    about = {"kind": "text", "key": made.key, "settings": settled(s)}
    replace_json(out / ABOUT, sealed(about))
    for name in WORK:
        remove(out / name)
    fsync(out)


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
    return {name: getattr(settings, name) for name in names} | entity | {"seed": settings.train.seed}


def prepared_settings(data: str | Path | Sequence[str | Path]) -> dict[str, Any]:
    """The settings that data was prepared with, to be changed by what is asked for; none where it is not prepared.

    >>> prepared_settings("corpus.txt")
    {}
    """
    folder = prepared_at(data, "text")
    return {} if folder is None else prepared_with(folder)


def open_prepared(folder: Path, settings: TextSettings) -> tuple[Tokenizer, TokenCache]:
    """The tokenizer and the tokens of a prepared corpus. The seed may be another: held out is what was held out when it
    was prepared.
    """
    tokenizer, cache = Tokenizer.load(folder / "tokenizer.json"), TokenCache.open(folder, hint=DAMAGED)
    if tokenizer.fingerprint() != cache.meta["fingerprint"]:
        raise UserError(f"{folder}: its tokenizer is not the one it was prepared with", hint="Prepare it again.")
    check_settings(folder, prepared_with(folder), settings, tokenizer)
    return tokenizer, cache


def check_settings(folder: Path, prepared: Mapping[str, Any], settings: TextSettings, tokenizer: Tokenizer) -> None:
    """Refuse a setting that differs from the prepared one, naming both values."""
    asked = settled(settings)
    for name in dict.fromkeys((*prepared, *asked)):
        was, now = prepared.get(name), asked.get(name)
        if name == "seed" or was == now or (name in TRAINED and name not in prepared):
            continue
        if name == "tokenizer" and now is not None:
            if Tokenizer.load(now).fingerprint() == tokenizer.fingerprint():
                continue
            was = was or "the one that was trained on it"
        elif name in TRAINED and name not in asked:
            continue
        if name == "hide":
            was, now = was or "word", settings.hide  # entities were merged into units, or were not
        refuse_other(folder, name, now, was)
