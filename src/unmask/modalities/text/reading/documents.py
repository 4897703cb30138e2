"""A document of raw text, the report of what was read, and files opened with clear errors."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

from unmask.errors import UserError
from unmask.remote import Place, Remote, reading


class Span(NamedTuple):
    """A part of a file that is read: whole records, from a byte to another (of a parquet file: row groups)."""

    begin: int = 0
    end: int | None = None


WHOLE = Span()


@dataclass(slots=True)
class Document:
    """A text, where it came from (file, first line), and its entities as (start, end) characters, where they were asked
    for."""

    text: str
    source: str
    line: int
    entities: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class ReadReport:
    """What was read and what was left out, with up to 20 examples by name and line.

    Attributes:
        documents, characters: what was given out.
        duplicates, empty: documents left out.
        undecodable: lines or rows that are not UTF-8; the document around each is left out.
        split: documents longer than the limit, given out in pieces.
        parted: how many plain text files were parted at blank lines ('blank'), by 'line', or not ('file').
    """

    documents: int = 0
    characters: int = 0
    duplicates: int = 0
    empty: int = 0
    undecodable: int = 0
    split: int = 0
    examples: list[str] = field(default_factory=list)
    parted: dict[str, int] = field(default_factory=dict)

    def note(self, where: str, reason: str) -> None:
        """Keep a place and a reason, of which 20 are shown."""
        if len(self.examples) < 20:
            self.examples.append(f"{where} {reason}")


def first_undecodable(examples: Sequence[str]) -> str:
    """Of a report's examples the first of what is not UTF-8 or no Unicode, '' where none was noted."""
    return next((e for e in examples if "not UTF-8" in e or "surrogate" in e), "")


def moved(entities: Sequence[tuple[int, int]], by: int) -> list[tuple[int, int]]:
    """Entities of a text, counted from its character `by`; those that end before are left out."""
    return [(start - by, end - by) for start, end in entities if end > by]


def pieces(text: str, longest: int) -> Iterator[str]:
    """The text in pieces of at most `longest` characters, cut at white space where there is some.

    >>> list(pieces("one two three", 8))
    ['one two', ' three']
    """
    start = 0
    while len(text) - start > longest:
        low, high = start + longest // 2, start + longest
        cut = max(text.rfind(space, low, high) for space in " \n\t")
        cut = cut if cut > start else high
        yield text[start:cut]
        start = cut
    yield text[start:]


def cut(documents: Iterator[Document], report: ReadReport, longest: int) -> Iterator[Document]:
    """Documents of at most `longest` characters: longer ones come in pieces, and the report says so."""
    for d in documents:
        if len(d.text) <= longest:
            yield d
            continue
        report.split += 1
        report.note(f"{d.source}:{d.line}", f"longer than {longest:,} characters, cut into several documents")
        start = 0
        for piece in pieces(d.text, longest):
            yield Document(piece, d.source, d.line, moved(d.entities, start))
            start += len(piece)


class _Part(io.RawIOBase):
    """The bytes of a file from `begin` to `end`.

    Args:
        url: of the file, where it is not on a disk.
    """

    def __init__(self, file: IO[bytes], span: Span, url: str | None) -> None:
        self._file, self._url = file, url
        self._left = None if span.end is None else max(0, span.end - span.begin)
        if span.begin:
            file.seek(span.begin)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        most = len(buffer) if self._left is None else min(len(buffer), self._left)
        with nullcontext() if self._url is None else reading(self._url):
            found = self._file.read(most) if most else b""
        buffer[: len(found)] = found
        if self._left is not None:
            self._left -= len(found)
        return len(found)


def packed(path: Place) -> bool:
    """Whether the name says that the file is a .gz.

    >>> from pathlib import Path
    >>> packed(Path("a.txt.GZ")), packed(Path("a.txt"))
    (True, False)
    """
    return path.suffix.lower() == ".gz"


@contextmanager
def opened(path: Place, span: Span = WHOLE, *, unzip: bool = True) -> Iterator[IO[bytes]]:
    """The file's bytes, unzipped where .gz; a damaged file or one without permission is the user's to mend."""
    url = str(path) if isinstance(path, Remote) else None
    try:
        with path.open("rb") as file:
            if url is not None or span != WHOLE:
                file = io.BufferedReader(_Part(file, span, url), 1 << 20)
            if unzip and packed(path):
                with gzip.GzipFile(fileobj=file) as plain:
                    yield plain  # type: ignore[misc]
            else:
                yield file
    except (OSError, EOFError, zlib.error) as error:
        hint = "Is it a whole gzip file?" if packed(path) else "Check the file and its permissions."
        raise UserError(f"{path}: cannot be read ({error})", hint=hint) from None


def refuse_binary(path: Place) -> None:
    """Refuse a file that begins with bytes that no text has."""
    with opened(path) as file:
        head = file.read(8192)
    if b"\0" in head:
        raise UserError(f"{path}: a binary file, not text", hint="Give UTF-8 text; UTF-16 must be converted first.")
