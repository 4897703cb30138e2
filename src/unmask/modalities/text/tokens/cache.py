"""The tokenised corpus as memory-mapped arrays: tokenised once, read at memory speed, safe against a crash. Each is
a file, the large ones in shards.

Examples are pieces of documents of at most `slots` slots with [CLS] and [SEP] counted; pieces are cut between
units, near a sentence's end where one is near. A document is wholly in training or wholly held out; where a corpus has
so few that none was drawn, the last examples of its last documents are held out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unmask.engines.folder import PLAN
from unmask.engines.local import Ended, LocalEngine
from unmask.errors import UserError
from unmask.files import check_files, sealed, unsealed
from unmask.modalities.text.reading.documents import opened
from unmask.modalities.text.reading.sources import expand, on_hub, resolve
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens.building import (
    MIN_TOKENS,
    OWN,
    Building,
    corpus_notes,
    processes,
    recipe_of,
    sentences_of,
)
from unmask.modalities.text.tokens.scanning import CorpusReading, reading_of
from unmask.modalities.text.tokens.shards import Joined
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.remote import Remote
from unmask.training.settings import same_run_hint
from unmask.writing import locked, replace_folder

VERSION = 6
READ_WHOLE = 1 << 30
"""Bytes of local files that are read whole to know whether they changed."""


class TokenCache:
    """A tokenised corpus.

    Attributes:
        meta: counts, settings and the reading report.
        train, validation: example numbers of each split.
        lengths: slots of each example, [CLS] and [SEP] included.
    """

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder, self.meta = folder, meta
        shards = [f"{folder}/shards/{number:06}" for number in range(meta["shards"])]
        self._tokens = Joined([_map(Path(f"{shard}.tokens.bin"), meta["dtype"]) for shard in shards])
        self._starts = Joined([_map(Path(f"{shard}.starts.bin"), "uint8") for shard in shards])
        self._offsets = _map(folder / "offsets.bin", "int64")
        split = np.fromfile(folder / "split.bin", dtype=np.uint8)
        self.train, self.validation = np.flatnonzero(split == 0), np.flatnonzero(split == 1)
        self._before, self._after = (np.array(meta[side], np.int32) for side in ("before", "after"))
        self.lengths = np.diff(np.asarray(self._offsets)) + len(self._before) + len(self._after)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def example(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, units) of one example with [CLS] and [SEP]; units are -1 on these."""
        start, end = self._offsets[number], self._offsets[number + 1]
        ids = np.concatenate([self._before, self._tokens[start:end], self._after]).astype(np.int32)
        units = np.full(len(ids), -1, np.int32)
        inside = slice(len(self._before), len(self._before) + int(end - start))
        units[inside] = np.maximum(np.cumsum(self._starts[start:end], dtype=np.int32) - 1, 0)
        return ids, units

    def frequencies(self, most: int | None = None) -> np.ndarray:
        """Count of each token in the training split; `most`: of `pieces`."""
        counts = np.zeros(self.meta["vocabulary"], np.int64)
        for tokens, _ in self.pieces(most):
            counts += np.bincount(tokens, minlength=len(counts))
        return counts

    @property
    def unknown(self) -> float:
        """Share of the corpus's tokens that the tokenizer does not know."""
        return float(self.meta.get("unknown", 0.0))

    def pieces(self, most: int | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(tokens, number of the example of each) of the training split, 8 192 examples at a time, without [CLS] and
        [SEP].

        Args:
            most: about so many tokens at most, of pieces evenly spread over the corpus.
        """
        training = np.zeros(len(self), bool)
        training[self.train] = True
        step = 1 if most is None else max(1, len(self._tokens) // most)
        for first in range(0, len(self), 8192 * step):
            edges = self._offsets[first : first + 8193]
            example = np.repeat(np.arange(first, first + len(edges) - 1), np.diff(edges))
            kept = training[example]
            yield self._tokens[edges[0] : edges[-1]][kept], example[kept]

    def digest(self) -> int:
        """CRC-32 of where examples end and of the tokens, of which 64 pieces of 2^18, evenly spread, are enough."""
        size = 1 << 18
        parts = max(1, -(-len(self._tokens) // size))
        found = zlib.crc32(self._offsets.data)
        for part in np.unique(np.linspace(0, parts - 1, min(parts, 64)).astype(int)):
            found = zlib.crc32(self._tokens[part * size : (part + 1) * size].data, found)
        return found

    @classmethod
    def open(cls, folder: str | Path, *, hint: str = "Remove the folder; it is rebuilt.") -> TokenCache:
        """Open a finished cache; files are read through, of more than 1 GiB a part, and their CRC-32 compared."""
        folder = Path(folder)
        try:
            meta = json.loads((folder / "meta.json").read_text())
        except (OSError, ValueError):
            raise UserError(f"{folder}: not a token cache", hint=hint) from None
        if not isinstance(meta, dict) or meta.get("version") != VERSION:
            raise UserError(f"{folder}: a token cache of another version", hint=hint)
        meta = unsealed(meta, folder / "meta.json", hint=hint)
        check_files(folder, meta["files"], hint=hint, most=READ_WHOLE)
        return cls(folder, meta)

    @classmethod
    def build(
        cls,
        inputs: Sequence[str | Path] | str | Path,
        tokenizer: Tokenizer,
        folder: str | Path,
        *,
        settings: TextSettings | None = None,
        min_tokens: int = MIN_TOKENS,
        resumed: bool = False,
        expected: int | None = None,
        say: Callable[[str], None] | None = None,
    ) -> TokenCache:
        """Tokenise `inputs` into `folder`, or reuse what is there from the same content and settings.

        Args:
            settings: those of it that decide what the tokens are, see `reading_of`. Held out is a share of the
                documents, chosen by a hash of the text, so that it is stable. If that draws none (a single book), the
                last examples are held out instead, and `meta["held_out_by"]` says "tail".
            min_tokens: shorter pieces are left out.
            resumed: a run goes on with the tokens that it was begun with: what is there is not given up for others.
            expected: then, the `digest` that they must have; default that of what is there.
            say: called with lines on how far it is, how fast it goes, and what was made of the corpus.

        A build that was killed goes on where it was when it is asked for again. The cores work side by side; the cache
        is the same on any number of them.
        """
        names = [str(i) for i in ([inputs] if isinstance(inputs, str | Path) else inputs)]
        folder, say, settings = Path(folder), say or (lambda text: None), settings or TextSettings()
        reading, recipe = reading_of(settings), recipe_of(tokenizer, settings, min_tokens)
        chosen = {"max_slots": settings.slots, "min_tokens": min_tokens, **reading.chosen(), **sentences_of(settings)}
        key = _hash([VERSION, tokenizer.fingerprint(), tokenizer.tokens, chosen, content_key(names)])
        with alone(folder):
            made = there = None
            if (folder / "meta.json").exists():
                with contextlib.suppress(UserError):
                    made = there = cls.open(folder)
            if made is None or made.meta["key"] != key:
                if resumed and expected is None and there is not None:
                    expected = there.digest()
                with building(folder, names, reading, say) as work:
                    plan = work.scan()
                    scanned = work.scanned(plan)
                    meta = work.indexed(scanned, recipe, work.sharded(plan, scanned, recipe)[1])
                    meta |= {"key": key, "version": VERSION, "settings": chosen}
                    work.clear()
                    (work.folder / "meta.json").write_text(json.dumps(sealed(meta), indent=1))
                    if resumed:
                        was = {} if there is None else there.meta
                        other = expected is not None and cls.open(work.folder).digest() != expected
                        if other or _changed(was.get("settings") or {}, chosen):
                            raise UserError(
                                f"{folder.parent}: the run there was started with other data or settings: "
                                f"{_other(folder.name, was, meta)}",
                                hint=same_run_hint(),
                            )
                    replace_folder(work.folder, folder)
                made = cls.open(folder)
        for line in corpus_notes(made.meta):
            say(line)
        return made


def alone(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Within, this process alone works at the cache in `folder`; others wait."""
    return locked(
        folder.with_name(f".{folder.name}.lock"),
        wait=lambda text: print(text, file=sys.stderr, flush=True),
        busy=f"is tokenising into {folder.name}",
    )


@contextlib.contextmanager
def building(
    folder: Path, names: Sequence[str], reading: CorpusReading, say: Callable[[str], None] = lambda text: None
) -> Iterator[Building]:
    """A corpus on its way into `folder`, beside which it is built (`.part`). What was done stays there where it was
    killed, or a worker was, and goes where anything else fails.

    Args:
        reading: without folder and key, which are filled in.
    """
    temporary = folder.with_name(folder.name + ".part")
    for place in (folder, temporary):
        _refuse_foreign(place)
    if any(map(on_hub, names)):  # nothing says that they are what they were
        shutil.rmtree(temporary, ignore_errors=True)
    key = _hash([VERSION, dataclasses.asdict(reading) | {"threshold": None}, content_key(names)])
    reading = dataclasses.replace(reading, folder=str(temporary.absolute()), key=key)
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        with LocalEngine(processes(), fewer="RAYON_NUM_THREADS=1 for one process") as work:
            yield Building(temporary, list(names), resolve(names, say=say), reading, work, say)
    except Ended:
        raise  # it can be gone on with, as after a signal
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"{folder}: disk full while tokenising", hint="Free some space and run again.") from None
        if isinstance(error, PermissionError | NotADirectoryError | FileExistsError):
            raise UserError(f"{folder}: cannot be written ({error.strerror})", hint="Choose another.") from None
        raise
    except Exception:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _map(path: Path, dtype: str) -> np.ndarray:
    if path.stat().st_size == 0:
        return np.zeros(0, dtype)
    # A plain array on the map: slices of it are made in half the time.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))


def content_key(inputs: Sequence[str]) -> str:
    """Hash of what inputs hold: the names and all bytes of local files, where these are 1 GiB at most together, so
    that a copy counts as the same; of larger ones name, size, time, first and last MiB of each. Of data sets on the
    hub, the names."""
    digest = hashlib.blake2b(digest_size=16)
    places = [place for item in inputs for place in ([item] if on_hub(item) else expand([item]))]
    whole = sum(place.stat().st_size for place in places if isinstance(place, Path)) <= READ_WHOLE
    for place in places:
        if isinstance(place, str):
            digest.update(place.encode())
            continue
        if isinstance(place, Remote):
            digest.update(f"{place} {place.mark()}".encode())
            continue
        with opened(place, unzip=False) as file:
            stat = os.fstat(file.fileno())
            if whole:
                digest.update(f"{place.name} {stat.st_size}".encode())
                digest.update(hashlib.file_digest(file, "blake2b").digest())  # type: ignore[arg-type]
                continue
            digest.update(f"{place.name} {stat.st_size} {stat.st_mtime_ns}".encode())
            digest.update(file.read(1 << 20))
            file.seek(max(0, stat.st_size - (1 << 20)))
            digest.update(file.read())
    return digest.hexdigest()


def _hash(made_of: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(made_of, sort_keys=True).encode(), digest_size=16).hexdigest()


def _changed(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [key for key in now if key in was and now[key] != was[key]]


def _other(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What a cache differs in from the one that a run was begun with, by the meta of both."""
    if name != "cache":
        return "the general text, or how much of it is learnt from: not the same"
    if was and was.get("fingerprint") != now["fingerprint"]:
        return "the tokenizer: not the same"
    old, new = was.get("settings") or {}, now["settings"]
    other = _changed(old, new)
    if "entities" in other:
        return "hide: not the same"
    names = {"max_slots": "slots"}
    return "; ".join(f"{names.get(k, k)}={new[k]}, was {old[k]}" for k in other) or "the corpus: not the same"


def _refuse_foreign(folder: Path) -> None:
    """Replacing a folder removes it: only one that holds a cache and nothing else may be."""
    other = sorted(p.name for p in folder.iterdir() if p.name not in (*OWN, PLAN)) if folder.is_dir() else []
    if other:
        raise UserError(
            f"{folder}: not a token cache, it holds {', '.join(other[:3])}",
            hint="Choose a folder that is empty or does not exist yet.",
        )
