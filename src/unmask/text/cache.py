"""The tokenised corpus as flat memory-mapped arrays: tokenised once, read at memory speed, safe against a crash.

Examples are pieces of documents of at most `max_slots` slots with [CLS] and [SEP] counted; pieces are cut between
units, near a sentence's end where one is near. A document is wholly in training or wholly held out; where a corpus has so
few that none was drawn, the last examples of its last documents are held out.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from unmask.errors import UserError
from unmask.files import fsync, locked
from unmask.text.sources import Document, ReadReport, expand, iter_documents, listed, moved, opened, pieces
from unmask.text.tokenizer import Tokenizer
from unmask.text.units import entity_units

VERSION = 4
_FILES = ("tokens.bin", "starts.bin", "offsets.bin", "split.bin")
_KNOWN = (*_FILES, "meta.json", "documents.bin")
"""The last one is of caches that earlier versions wrote."""
_GROUP_CHARACTERS = 2_000_000
_PIECE_CHARACTERS = 500_000
"""Encodings take far more memory than text: documents go through the tokenizer in groups and pieces of bounded size."""


class TokenCache:
    """A tokenised corpus.

    Attributes:
        folder: where it lies.
        meta: counts, settings and the reading report.
        train, validation: example numbers of each split.
        lengths: slots of each example, [CLS] and [SEP] included.
    """

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder, self.meta = folder, meta
        self._tokens = _map(folder / "tokens.bin", meta["dtype"])
        self._starts = _map(folder / "starts.bin", "uint8")
        self._offsets = np.fromfile(folder / "offsets.bin", dtype=np.int64)
        split = np.fromfile(folder / "split.bin", dtype=np.uint8)
        self.train, self.validation = np.flatnonzero(split == 0), np.flatnonzero(split == 1)
        self._before, self._after = (np.array(meta[side], np.int32) for side in ("before", "after"))
        self.lengths = np.diff(self._offsets) + len(self._before) + len(self._after)

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

    def frequencies(self) -> np.ndarray:
        """Count of each token in the training split."""
        counts = np.zeros(self.meta["vocabulary"], np.int64)
        training = np.zeros(len(self), bool)
        training[self.train] = True
        for first in range(0, len(self), 8192):
            edges = self._offsets[first : first + 8193]
            part = self._tokens[edges[0] : edges[-1]][np.repeat(training[first : first + 8192], np.diff(edges))]
            counts += np.bincount(part, minlength=len(counts))
        return counts

    def digest(self) -> int:
        """CRC-32 of where examples end and of the tokens, of which 64 pieces of 2^18, evenly spread, are enough."""
        size = 1 << 18
        parts = max(1, -(-len(self._tokens) // size))
        found = zlib.crc32(self._offsets.data)
        for part in np.unique(np.linspace(0, parts - 1, min(parts, 64)).astype(int)):
            found = zlib.crc32(self._tokens[part * size : (part + 1) * size].data, found)
        return found

    @classmethod
    def open(cls, folder: str | Path) -> TokenCache:
        """Open a finished cache.

        Raises:
            UserError: not a cache, or a file has another size than was written.
        """
        folder = Path(folder)
        try:
            meta = json.loads((folder / "meta.json").read_text())
        except (OSError, ValueError):
            raise UserError(f"{folder}: not a token cache", hint="Build it again.") from None
        if not isinstance(meta, dict) or meta.get("version") != VERSION:
            raise UserError(f"{folder}: a token cache of another version", hint="Remove the folder; it is rebuilt.")
        for name, size in meta["sizes"].items():
            have = (folder / name).stat().st_size if (folder / name).exists() else None
            if have != size:
                raise UserError(
                    f"{folder / name}: {have} bytes, expected {size}", hint="Remove the folder; it is rebuilt."
                )
        made = cls(folder, meta)
        if made._offsets[-1] != len(made._tokens) or (np.diff(made._offsets) < 0).any():
            raise UserError(
                f"{folder / 'offsets.bin'}: does not fit tokens.bin", hint="Remove the folder; it is rebuilt."
            )
        return made

    @classmethod
    def build(
        cls,
        inputs: Sequence[str | Path] | str | Path,
        tokenizer: Tokenizer,
        folder: str | Path,
        *,
        max_slots: int = 128,
        column: str | None = None,
        holdout: float = 0.01,
        min_tokens: int = 8,
        seed: int = 0,
        entities: bool = False,
        progress: Callable[[dict[str, int]], None] | None = None,
    ) -> TokenCache:
        """Tokenise `inputs` into `folder`, or reuse what is there from the same content and settings.

        Args:
            holdout: share of documents held out, chosen by a hash of the text, so that it is stable. If that draws
                none (a single book), the last examples are held out instead, and `meta["held_out_by"]` says "tail".
            min_tokens: shorter pieces are left out.
            entities: the "entities" of .jsonl rows are units, as whole words are else.

        Raises:
            UserError: bad input, no entity where they were asked for, a full disk (what was begun is removed), or a folder
                that holds other things.
        """
        names = [str(i) for i in ([inputs] if isinstance(inputs, str | Path) else inputs)]
        settings: dict[str, Any] = {
            "max_slots": max_slots,
            "column": column,
            "holdout": holdout,
            "min_tokens": min_tokens,
            "seed": seed,
            "entities": entities,
        }
        key = _key(names, tokenizer, settings)
        folder = Path(folder)
        with locked(
            folder.with_name(f".{folder.name}.lock"),
            wait=lambda text: print(text, file=sys.stderr, flush=True),
            busy=f"is tokenising into {folder.name}",
        ):
            return cls._built(folder, key, names, tokenizer, settings, progress)

    @classmethod
    def _built(
        cls, folder: Path, key: str, names: list[str], tokenizer: Tokenizer, settings: dict[str, Any],
        progress: Callable[[dict[str, int]], None] | None,
    ) -> TokenCache:  # fmt: skip
        """What is there from the same content and settings, or a new one; this process alone works in the folder."""
        if (folder / "meta.json").exists():
            try:
                there = cls.open(folder)
                if there.meta["key"] == key:
                    return there
            except UserError:
                pass
        temporary = folder.with_name(folder.name + ".part")
        for place in (folder, temporary):
            _refuse_foreign(place)
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            meta = _write(temporary, names, tokenizer, progress, **settings)
            meta |= {"key": key, "fingerprint": tokenizer.fingerprint(), "settings": settings}
            (temporary / "meta.json").write_text(json.dumps(meta, indent=1))
            _sync(temporary)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(temporary, folder)
            fsync(folder.parent)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UserError(
                    f"{folder}: disk full while tokenising", hint="Free some space and run again."
                ) from None
            if isinstance(error, PermissionError | NotADirectoryError | FileExistsError):
                raise UserError(f"{folder}: cannot be written ({error.strerror})", hint="Choose another.") from None
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return cls.open(folder)


def _map(path: Path, dtype: str) -> np.ndarray:
    if path.stat().st_size == 0:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")


def _key(inputs: list[str], tokenizer: Tokenizer, settings: dict[str, Any]) -> str:
    """Hash of what decides the cache: content (size, time, first and last MiB of each file), tokenizer, settings."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([VERSION, tokenizer.fingerprint(), tokenizer.tokens, settings], sort_keys=True).encode())
    for item in inputs:
        if item.startswith("hf:"):
            digest.update(item.encode())
            continue
        for path in expand([item]):
            with opened(path, unzip=False) as file:
                stat = os.fstat(file.fileno())
                digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}".encode())
                digest.update(file.read(1 << 20))
                file.seek(max(0, stat.st_size - (1 << 20)))
                digest.update(file.read())
    return digest.hexdigest()


def _write(
    folder: Path,
    inputs: list[str],
    tokenizer: Tokenizer,
    progress: Callable[[dict[str, int]], None] | None,
    *,
    max_slots: int,
    column: str | None,
    holdout: float,
    min_tokens: int,
    seed: int,
    entities: bool,
) -> dict[str, Any]:
    dtype = "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32"
    room = max_slots - len(tokenizer.before) - len(tokenizer.after)
    if room < 1:
        raise UserError(f"slots={max_slots}: no room for a token beside [CLS] and [SEP]", hint="Use 16 or more.")
    least = min(min_tokens, room)
    stops = np.array(
        sorted(i for t in (".", "!", "?", "。", "！", "？") if (i := tokenizer.id(t)) is not None), np.int64
    )
    report = ReadReport()
    examples = document = tokens = held_out = marked = unknown = read = 0
    stream = iter_documents(inputs, column=column, report=report, entities=entities)
    files: dict[str, IO[bytes]] = {name: (folder / name).open("wb") for name in _FILES}
    try:
        files["offsets.bin"].write(np.zeros(1, np.int64).tobytes())
        for group in _groups(stream):
            for d, (ids, starts) in zip(group, _tokenise(group, tokenizer), strict=True):
                held = is_held_out(d.text, holdout, seed)
                marked += len(d.entities)
                unknown += 0 if tokenizer.unk_id is None else int(np.count_nonzero(ids == tokenizer.unk_id))
                read += len(ids)
                for begin, end in cut(ids, starts, room, stops):
                    if end - begin < least:
                        continue
                    files["tokens.bin"].write(ids[begin:end].astype(dtype).tobytes())
                    files["starts.bin"].write(starts[begin:end].tobytes())
                    tokens += end - begin
                    files["offsets.bin"].write(np.array([tokens], np.int64).tobytes())
                    files["split.bin"].write(bytes([held]))
                    examples += 1
                    held_out += held
                document += 1
            if progress is not None:
                progress({"documents": document, "tokens": tokens, "examples": examples})
    finally:
        for file in files.values():
            file.close()
    if not examples:
        raise UserError(
            f"no example of at least {least} tokens in {listed(inputs)}",
            hint="The corpus is too short: give more text.",
        )
    if entities and not marked:
        raise UserError(
            f"no entity is marked in {listed(inputs)}",
            hint='Give .jsonl rows with "entities", a list of {"start", "end"} in characters of the text.',
        )
    tail = 0 if held_out else min(math.ceil(holdout * examples), examples // 2)
    if tail:
        with (folder / "split.bin").open("r+b") as file:
            file.seek(examples - tail)
            file.write(b"\x01" * tail)
    return {
        "version": VERSION, "dtype": dtype, "examples": examples, "tokens": tokens, "documents": document,
        "unknown": unknown / max(read, 1), "held_out_by": "tail" if tail else "document",
        "vocabulary": tokenizer.vocab_size, "before": tokenizer.before, "after": tokenizer.after,
        "report": asdict(report),
        "sizes": {name: (folder / name).stat().st_size for name in _FILES},
    }  # fmt: skip


def _groups(stream: Iterator[Document]) -> Iterator[list[Document]]:
    """Documents in groups bounded by number and by characters: memory stays the same for many short and few long."""
    group: list[Document] = []
    size = 0
    for d in stream:
        group.append(d)
        size += len(d.text)
        if len(group) == 1000 or size >= _GROUP_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _tokenise(group: list[Document], tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(ids, unit starts) of each document; a long one is tokenised in pieces, cut at white space."""
    parts = [list(pieces(d.text, _PIECE_CHARACTERS)) for d in group]
    encoded = iter(tokenizer.encode([text for part in parts for text in part], specials=False))
    for d, part in zip(group, parts, strict=True):
        ids, starts, begin = [], [], 0
        for text in part:
            e, here = next(encoded), moved(d.entities, begin)
            units = entity_units(e.units, here, e.offsets) if here else e.units
            ids.append(e.ids)
            starts.append(np.append(1, np.diff(units) != 0).astype(np.uint8)[: len(e)])
            begin += len(text)
        yield np.concatenate(ids), np.concatenate(starts)


def cut(ids: np.ndarray, starts: np.ndarray, room: int, stops: np.ndarray) -> list[tuple[int, int]]:
    """Cut a document into pieces of at most `room` tokens, between units, after a stop in the last fifth if there is one.

    The pieces, one after another, are the document.

    >>> cut(np.arange(5), np.array([1, 1, 1, 0, 1]), 3, np.array([]))
    [(0, 2), (2, 5)]
    """
    pieces, begin, size = [], 0, len(ids)
    while size - begin > room:
        end = begin + room
        late = begin + max(1, int(room * 0.8))
        # A stop inside a unit ("...", 3.14 in one piece) is not an end.
        ends = np.flatnonzero(np.isin(ids[late - 1 : end], stops) & (starts[late : end + 1] == 1))
        if len(ends):
            end = late + int(ends[-1])
        else:
            edges = np.flatnonzero(starts[begin + 1 : end + 1])
            # A single unit longer than a row can only be cut inside.
            end = begin + 1 + int(edges[-1]) if len(edges) else end
        pieces.append((begin, end))
        begin = end
    if begin < size:
        pieces.append((begin, size))
    return pieces


def is_held_out(text: str, holdout: float, seed: int) -> bool:
    """Whether a document is held out: by a hash of its text, so that it is stable."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, salt=seed.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little") < holdout * 2**64


def _refuse_foreign(folder: Path) -> None:
    """Replacing a folder removes it: only one that holds a cache and nothing else may be."""
    other = sorted(p.name for p in folder.iterdir() if p.name not in _KNOWN) if folder.is_dir() else []
    if other:
        raise UserError(
            f"{folder}: not a token cache, it holds {', '.join(other[:3])}",
            hint="Choose a folder that is empty or does not exist yet.",
        )


def _sync(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        fsync(path)
