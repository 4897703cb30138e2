"""The tokens of a corpus, made portion by portion: for the cache of a run, and for `unmask prepare text`.

A scan of all portions side by side (documents and copies), then a shard per portion, side by side again, then the
index of all examples. What a portion comes to follows from the corpus and the settings alone, so that any number of
workers writes the same bytes, and a build that was killed goes on with the portions that are left.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from unmask.engines.folder import PLAN, begin_or_resume, remove_halves
from unmask.engines.local import Engine
from unmask.errors import UserError, first_of, option, setting
from unmask.files import fingerprint
from unmask.modalities.text.reading.documents import first_undecodable
from unmask.modalities.text.reading.sources import check_read
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens.scanning import (
    CorpusReading,
    Portion,
    Scanned,
    gathered,
    left,
    portions,
    rescanned,
    sample,
)
from unmask.modalities.text.tokens.shards import BINS, ShardTask, done, write_index
from unmask.modalities.text.tokens.tokenising import Recipe
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.tokens.words import STOPS
from unmask.plugins import resolve
from unmask.progress import counted
from unmask.writing import remove, replace_json

MIN_TOKENS = 8
"""Shorter pieces are left out."""
OWN = ("scan", "index", "shards", "meta.json", "offsets.bin", "split.bin")
"""What a build writes into its folder."""
WORK = ("scan", "index", PLAN)
"""Of it, what is there until the build is finished."""
MOST_PROCESSES = 16
"""Of the build of a run's cache."""
TELL_SECONDS = 30.0
_SCAN, _SHARD = "unmask.modalities.text.tokens.scanning:scan", "unmask.modalities.text.tokens.shards:shard"


class Building:
    """A corpus on its way into a folder.

    Args:
        reading: with the key of the build, made of data and settings: what one of another key left there is removed.
    """

    own: tuple[str, ...] = OWN

    def __init__(
        self,
        folder: Path,
        inputs: list[str],
        files: list[str],
        reading: CorpusReading,
        work: Engine,
        say: Callable[[str], None],
    ) -> None:
        self.folder, self.inputs, self.files = folder, inputs, files
        self.reading, self.work, self.say = reading, work, say

    def scan(self) -> list[Portion]:
        """The portions, all of them scanned; what a build of another key left in the folder is removed."""
        there = begin_or_resume(self.folder, self.reading.key, self.own, ("scan", "index", "shards"), self.say)
        plan = portions(self.files, self.reading.document)
        replace_json(self.folder / PLAN, {**there, "portions": len(plan)})
        self._scan(plan)
        return plan

    def _scan(self, plan: list[Portion]) -> None:
        tasks = list(left(self.folder, plan, self.reading.threshold))
        there = f"; {len(plan) - len(tasks):,} are there" if len(tasks) < len(plan) else ""
        self.say(f"reading, files: {len(self.files):,}, portions: {len(plan):,}{there}")
        for _ in self._done(_SCAN, self.reading, tasks):
            pass

    def sample(self, plan: list[Portion], scanned: Scanned, most: int) -> list[str]:
        """What a tokenizer is trained on; where the scans wrote too little of it down, portions are scanned again."""
        while (texts := sample(self.folder, scanned, most)) is None:
            self.reading = rescanned(self.reading)
            self.say("more text is needed for the tokenizer than was expected")
            self._scan(plan)
        return texts

    def scanned(self, plan: list[Portion]) -> Scanned:
        """What the corpus holds."""
        found = gathered(self.folder, plan)
        check_read(self.inputs, found.report, self.reading.document)
        self.say(f"{found.report.documents:,} documents, {found.report.characters:,} characters")
        return found

    def sharded(
        self, plan: list[Portion], scanned: Scanned, recipe: Recipe
    ) -> tuple[float | None, list[dict[str, Any]]]:
        """Tokens per second, None where nothing was left to do, and what there is of every shard, all of them
        written."""
        found = [done(self.folder, number, recipe.key) for number in range(len(plan))]
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
        started = reported = time.monotonic()
        read = 0

        def tell(last: bool = False) -> None:
            rate = read / max(time.monotonic() - started, 1e-9)
            have = sum(there is not None for there in found)
            self.say(
                f"tokenis{'ed' if last else 'ing'}: {have:,} of {len(plan):,} shards, {read:,} tokens, "
                f"{rate:,.0f} tokens/s with {self.work.workers} worker{'s' * (self.work.workers != 1)}"
            )

        for i, about in self._done(_SHARD, (self.reading, recipe), tasks):
            found[tasks[i].number] = about
            read += about["read"]
            if time.monotonic() - reported >= TELL_SECONDS:
                tell()
                reported = time.monotonic()
        rate = read / max(time.monotonic() - started, 1e-9) if tasks else None
        if tasks:
            tell(last=True)
        return rate, [there for there in found if there is not None]

    def indexed(self, scanned: Scanned, recipe: Recipe, shards: list[dict[str, Any]]) -> dict[str, Any]:
        """Write the index of all examples; what meta.json says of the corpus."""
        names = [name for name in shards[0] if name not in ("sizes", "sums", "recipe")]
        total = {name: sum(about.get(name, 0) for about in shards) for name in names}
        refuse_no_examples(total["examples"], total["entities"], recipe, self.inputs, entities=self.reading.entities)
        tail = 0 if total["held_out"] else min(math.ceil(recipe.holdout * total["examples"]), total["examples"] // 2)
        write_index(self.folder, shards, tail)
        files = {name: fingerprint(self.folder / name) for name in ("offsets.bin", "split.bin")}
        for n, shard in enumerate(shards):
            files |= {f"shards/{n:06}.{array}.bin": [shard["sizes"][array], shard["sums"][array]] for array in BINS}
        remove_halves(self.folder / "shards")
        tokenizer = recipe.tokenizer
        return {
            "dtype": recipe.dtype,
            **{name: total[name] for name in ("examples", "tokens", "documents", "short")},
            "unknown": total["unknown"] / max(total["read"], 1),
            "least": recipe.least,
            **({"cuts": total["cuts"]} if recipe.sentences else {}),
            "held_out_by": "tail" if tail else "document",
            "vocabulary": tokenizer.vocab_size,
            "before": tokenizer.before,
            "after": tokenizer.after,
            "report": asdict(scanned.report),
            "files": files,
            "shards": len(shards),
            "key": self.reading.key,
            "fingerprint": tokenizer.fingerprint(),
        }

    def clear(self) -> None:
        """Remove what is there until the build is finished."""
        for name in WORK:
            remove(self.folder / name)

    def _done(self, function: str, common: Any, tasks: list[Any]) -> Iterator[tuple[int, Any]]:
        """(number of the task, what came of it), as they are ready. One task alone is done in this process, by all
        threads of the tokenizer."""
        if len(tasks) == 1 and self.work.workers > 1:
            ready: Iterator[tuple[int, Any]] = iter([(0, resolve(function)(common, tasks[0]))])
        else:
            ready = self.work.run(function, common, tasks)
        return counted(ready, len(tasks))


def processes() -> int:
    """Processes that make a run's cache: the cores, or RAYON_NUM_THREADS; one where TOKENIZERS_PARALLELISM is false."""
    if os.environ.get("TOKENIZERS_PARALLELISM", "").lower() in ("0", "off", "false", "f", "no", "n"):
        return 1
    wanted = os.environ.get("RAYON_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted):
        return min(int(wanted), MOST_PROCESSES)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_PROCESSES)


def sentences_of(settings: TextSettings) -> dict[str, float]:
    """`sentences`, where it is not 0: caches of before it are those without."""
    return {"sentences": settings.sentences} if settings.sentences else {}


def recipe_of(tokenizer: Tokenizer, settings: TextSettings, min_tokens: int = MIN_TOKENS) -> Recipe:
    """How documents become examples of at most as many slots as the settings say."""
    room = settings.slots - len(tokenizer.before) - len(tokenizer.after)
    if room < 1:
        raise UserError(f"slots={settings.slots}: no room for a token beside [CLS] and [SEP]", hint="Use 16 or more.")
    spelled = tokenizer.encode([f"a{stop}" for stop in "".join(STOPS)], specials=False)
    stops = [ids[0] for e in spelled if len(ids := e.ids[e.offsets[:, 0] == 1]) == 1 and ids[0] != tokenizer.unk_id]
    return Recipe(
        tokenizer=tokenizer,
        room=room,
        least=min(min_tokens, room),
        stops=np.array(sorted(stops), np.int64),
        sentences=settings.sentences,
        holdout=settings.holdout,
        seed=settings.train.seed,
    )


def refuse_no_examples(examples: int, marked: int, recipe: Recipe, inputs: list[str], *, entities: bool) -> None:
    """Refuse a corpus without examples, or without entities where these are units."""
    if not examples:
        raise UserError(
            f"no example of at least {recipe.least} tokens in {first_of(inputs, 3)}",
            hint="The corpus is too short: give more text.",
        )
    if entities and not marked:
        raise UserError(
            f"no entity is marked in {first_of(inputs, 3)}",
            hint='Give .jsonl rows with "entities", a list of {"start", "end"} in characters of the text, or hide '
            f"single tokens: {setting('hide', 'token')}.",
        )


def corpus_notes(meta: dict[str, Any]) -> Iterator[str]:
    """What was made of the corpus, for people: where documents of plain text end, and what was left out.

    Args:
        meta: of a cache or a prepared corpus; of texts that are read without one, as by `evaluate`, "report" alone.
    """
    report = meta.get("report", {})
    ends = {"blank": "at blank lines", "line": "at every line", "file": "with the file"}
    parted = report.get("parted", {})
    parts = [f"{ends[way]} in {n} file{'s' * (n != 1)}" for way, n in sorted(parted.items())]
    if parts:
        # A command that makes no corpus has no settings: where documents end is an option of its own.
        way = setting("document") if "key" in meta else option("document")
        yield f"documents of plain text end {', '.join(parts)} ({way} blank, line or file)"
    if bad := report.get("undecodable", 0):
        first = first_undecodable(report.get("examples", ()))
        yield f"{bad:,} lines or rows are not UTF-8: the documents around them are left out, the first: {first}"
    if again := report.get("duplicates", 0):
        yield f"{again:,} exact copies are left out"
    if short := meta.get("short", 0):
        yield f"{short:,} pieces of fewer than {meta['least']} tokens are left out"
    if (cuts := meta.get("cuts")) is not None:
        where = f"at {cuts:,} places" if cuts else "nowhere: none of those to be cut holds the end of a sentence"
        yield f"pieces are cut into sentences {where} ({setting('sentences')})"
    if meta.get("held_out_by") == "tail":
        yield "too few documents to hold whole ones out: the end of the corpus is held out"
