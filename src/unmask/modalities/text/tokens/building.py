"""The files of a token cache, written so that a build that was killed goes on where its last mark stands.

Examples are appended as documents are tokenised. Every `MARK_SECONDS` the files are brought to the disk and
`progress.json` says how long they are and how many documents went in: what is behind the mark is cut off and done
again.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from unmask.errors import UserError, first_of, option, setting
from unmask.files import fingerprint
from unmask.modalities.text.reading.documents import ReadReport, first_undecodable
from unmask.modalities.text.reading.plain import Parting
from unmask.modalities.text.reading.sources import iter_documents
from unmask.modalities.text.tokens.tokenising import Recipe, Tokenised, processes, tokenised
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.writing import replace_json

FILES = ("tokens.bin", "starts.bin", "offsets.bin", "split.bin")
PROGRESS = "progress.json"
MARK_SECONDS = 10.0
MIN_TOKENS = 8
"""Shorter pieces are left out."""
TELL_SECONDS = 30.0
_COUNTED = ("examples", "documents", "tokens", "held_out", "marked", "unknown", "read", "short")


def build_files(
    folder: Path,
    key: str,
    inputs: list[str],
    tokenizer: Tokenizer,
    say: Callable[[str], None] | None,
    *,
    max_slots: int,
    column: str | None,
    holdout: float,
    min_tokens: int,
    seed: int,
    entities: bool,
    document: Parting,
) -> dict[str, Any]:
    """Write the files of a cache into `folder`, going on with those that a build of the same `key` left there.

    Returns:
        What meta.json says of them.
    """
    recipe = recipe_of(tokenizer, max_slots=max_slots, holdout=holdout, seed=seed, min_tokens=min_tokens)
    report, workers = ReadReport(), processes()
    stream = iter_documents(inputs, column=column, report=report, entities=entities, document=document, say=say)
    with ExitStack() as stack:
        files = _Files(folder, key, stack)
        before = dict(files.counts)
        if before["documents"] and say is not None:
            say(f"tokenising goes on after {before['documents']:,} documents")
        clock = _Clock(say, before, workers)
        # What is done already is read again, which takes a small part of the time, and so counted in the report.
        rest = itertools.islice(stream, before["documents"], None)
        for part in tokenised(rest, recipe, workers):
            files.append(part)
            clock.tell(files.counts)
        clock.tell(files.counts, last=True)
        counts = files.counts
    refuse_no_examples(counts["examples"], counts["marked"], recipe, inputs, entities=entities)
    tail = 0 if counts["held_out"] else min(math.ceil(holdout * counts["examples"]), counts["examples"] // 2)
    if tail:
        with (folder / "split.bin").open("r+b") as file:
            file.seek(counts["examples"] - tail)
            file.write(b"\x01" * tail)
    (folder / PROGRESS).unlink(missing_ok=True)
    return {
        "dtype": recipe.dtype,
        "examples": counts["examples"],
        "tokens": counts["tokens"],
        "documents": counts["documents"],
        "unknown": counts["unknown"] / max(counts["read"], 1),
        "short": counts["short"],
        "least": recipe.least,
        "held_out_by": "tail" if tail else "document",
        "vocabulary": tokenizer.vocab_size,
        "before": tokenizer.before,
        "after": tokenizer.after,
        "report": asdict(report),
        "files": {name: fingerprint(folder / name) for name in FILES},
    }


def recipe_of(
    tokenizer: Tokenizer, *, max_slots: int, holdout: float, seed: int, min_tokens: int = MIN_TOKENS
) -> Recipe:
    """How documents become examples of at most `max_slots` slots."""
    room = max_slots - len(tokenizer.before) - len(tokenizer.after)
    if room < 1:
        raise UserError(f"slots={max_slots}: no room for a token beside [CLS] and [SEP]", hint="Use 16 or more.")
    stops = [i for t in (".", "!", "?", "。", "！", "？") if (i := tokenizer.id(t)) is not None]
    return Recipe(
        tokenizer=tokenizer,
        room=room,
        least=min(min_tokens, room),
        stops=np.array(sorted(stops), np.int64),
        holdout=holdout,
        seed=seed,
    )


def refuse_no_examples(examples: int, marked: int, recipe: Recipe, inputs: list[str], *, entities: bool) -> None:
    """
    Args:
        marked: entities that were found.
    """
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


def told(meta: dict[str, Any]) -> Iterator[str]:
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
    if meta.get("held_out_by") == "tail":
        yield "too few documents to hold whole ones out: the end of the corpus is held out"


class _Files:
    """The files of a cache that is being built, and how much is in them.

    Args:
        key: of the build; a mark with another one is not gone on with.
        stack: closes the files.
    """

    def __init__(self, folder: Path, key: str, stack: ExitStack) -> None:
        self.folder, self.key = folder, key
        self.counts = dict.fromkeys(_COUNTED, 0)
        sizes = self._found()
        self._files: dict[str, IO[bytes]] = {}
        for name in FILES:
            file = self._files[name] = stack.enter_context((folder / name).open("r+b" if sizes else "wb"))
            if sizes:
                file.truncate(sizes[name])
                file.seek(0, os.SEEK_END)
        if not sizes:
            self._files["offsets.bin"].write(np.zeros(1, np.int64).tobytes())
        self._marked = time.monotonic()

    def _found(self) -> dict[str, int]:
        """Sizes at the mark of a build of the same key, whose files are there in full; empty else."""
        try:
            mark = json.loads((self.folder / PROGRESS).read_text())
            sizes = {name: int(mark["sizes"][name]) for name in FILES}
            whole = all((self.folder / name).stat().st_size >= size for name, size in sizes.items())
            if mark["key"] == self.key and whole:
                self.counts = {name: int(mark["counts"][name]) for name in _COUNTED}
                return sizes
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return {}

    def append(self, part: Tokenised) -> None:
        counts = self.counts
        ends = counts["tokens"] + np.cumsum(part.lengths, dtype=np.int64)
        for name, array in zip(FILES, (part.tokens, part.starts, ends, part.held), strict=True):
            self._files[name].write(array.tobytes())
        counts["examples"] += len(part.lengths)
        counts["tokens"] += len(part.tokens)
        counts["held_out"] += int(part.held.sum())
        counts["documents"] += part.documents
        counts["marked"] += part.entities
        for name in ("unknown", "read", "short"):
            counts[name] += getattr(part, name)
        if time.monotonic() - self._marked >= MARK_SECONDS:
            self._mark()

    def _mark(self) -> None:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: file.tell() for name, file in self._files.items()}
        replace_json(self.folder / PROGRESS, {"key": self.key, "sizes": sizes, "counts": self.counts})
        self._marked = time.monotonic()


class _Clock:
    """Tells every `TELL_SECONDS`, and at the end, how far tokenising is and how fast it goes."""

    def __init__(self, say: Callable[[str], None] | None, before: dict[str, int], workers: int) -> None:
        self._say, self._before, self._workers = say, before["read"], workers
        self._began = self._told = time.monotonic()

    def tell(self, counts: dict[str, int], *, last: bool = False) -> None:
        now = time.monotonic()
        if self._say is None or not (last or now - self._told >= TELL_SECONDS):
            return
        self._told = now
        rate = (counts["read"] - self._before) / max(now - self._began, 1e-9)
        self._say(
            f"tokenis{'ed' if last else 'ing'}: {counts['documents']:,} documents, {counts['read']:,} tokens, "
            f"{rate:,.0f} tokens/s with {self._workers} process{'es' * (self._workers != 1)}"
        )
