"""A document of raw text, where documents of plain text end, the report of what was read, files opened with clear
errors, and the docstrings of installed packages as a small corpus."""

from __future__ import annotations

import ast
import gzip
import inspect
import io
import json
import re
import sysconfig
import warnings
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from unmask.errors import UserError
from unmask.remote import Place, Remote, reading


class Span(NamedTuple):
    """A part of a file that is read: whole records, from a byte to another (of a parquet file: row groups)."""

    begin: int = 0
    end: int | None = None


WHOLE = Span()


@dataclass(slots=True)
class Document:
    """A text, where it came from (file, first line), and (start, end) characters of its entities, if asked for."""

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


class _FilePart(io.RawIOBase):
    """The bytes of a file from `begin` to `end`."""

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
                file = io.BufferedReader(_FilePart(file, span, url), 1 << 20)
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


Parting = Literal["auto", "blank", "line", "file"]
"""Where a document of plain text ends: at blank lines, at every line's end, at the file's. 'auto': at blank lines, or
at every line's end in a file without any."""
_CHUNK = 1 << 20


def _lines(path: Place, report: ReadReport, longest: int, span: Span) -> Iterator[tuple[int, str | None]]:
    """(line number, text) with bounded memory: an over-long line comes in pieces, a bad one as None."""
    # A character takes at most 4 bytes: a line within the limit is never cut.
    most = 4 * longest
    with opened(path, span) as file:
        number, pending, noted = 1, bytearray(), False
        while True:
            chunk = file.readline(_CHUNK)
            pending += chunk
            if not pending:
                return
            ended = not chunk or pending.endswith(b"\n")
            if not ended and len(pending) < most:
                continue
            cut = len(pending) if ended else _boundary(pending)
            line, pending = bytes(pending[:cut]), pending[cut:]
            try:
                text = line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                report.undecodable += 1
                report.note(f"{path}:{number}", f"not UTF-8 (byte {line[error.start]:#04x}), left out")
                yield number, None
            else:
                text = text.removeprefix("\ufeff") if number == 1 and not noted and not span.begin else text
                if not noted and (not ended or len(text) > longest):
                    noted = True
                    report.split += 1
                    report.note(f"{path}:{number}", f"longer than {longest:,} characters, cut into several documents")
                for piece in pieces(text, longest):
                    yield number, piece
            if ended:
                number, noted = number + 1, False


def _boundary(line: bytearray) -> int:
    """Where to cut a line that goes on: the last white space of its second half, or between two characters."""
    half, cut = len(line) // 2, len(line) - 1
    if (space := max(line.rfind(b" ", half), line.rfind(b"\t", half))) > 0:
        return space
    while cut > len(line) - 4 and line[cut] & 0xC0 == 0x80:
        cut -= 1
    return max(cut, 1)


def parting_of(path: Place) -> Parting:
    """'blank' where a blank line stands between lines of text, else 'line'."""
    text = blank = False
    with opened(path) as file:
        while line := file.readline(_CHUNK):
            if not line.strip():
                blank = text
            elif blank:
                return "blank"
            else:
                text = True
    return "line"


def plain_documents(
    path: Place, report: ReadReport, longest: int, parting: Parting, span: Span = WHOLE
) -> Iterator[Document]:
    """The documents of a plain text file, parted as said; one with bytes that are not UTF-8 is left out and counted."""
    if parting == "line":
        yield from (
            Document(line, str(path), n) for n, line in _lines(path, report, longest, span) if line and line.strip()
        )
        return
    whole = parting == "file"
    parts: list[str] = []
    size, start, bad = 0, 1, False
    for number, line in _lines(path, report, longest, span):
        if line is None:
            bad = True
            continue
        blank = not line.strip()
        full = bool(parts) and size + len(line) > longest
        if (blank and not whole) or full:
            if parts and not bad:
                yield Document("\n".join(parts), str(path), start)
            if full and not blank and start != number:
                report.split += 1
                report.note(f"{path}:{start}", f"longer than {longest:,} characters, cut into several documents")
            # What follows a cut inside a bad document is still that document.
            parts, size, bad = [], 0, bad and not (blank and not whole)
        if blank and not parts:
            continue
        start = start if parts else number
        parts.append(line)
        size += len(line) + 1
    if parts and not bad:
        yield Document("\n".join(parts), str(path), start)


def docstrings(
    most_characters: int = 20_000_000, *, packages: Collection[str] | None = None
) -> Iterator[tuple[str, str]]:
    """(where, text) of every docstring of at least 8 words in the installed packages, in a fixed order."""
    root = Path(sysconfig.get_paths()["purelib"])
    total = 0
    for path in sorted(root.rglob("*.py")):
        # Of the packages, not of where they are installed: a clone is likely to be called unmask.
        parts = path.relative_to(root).parts
        if {"unmask", "tests", "_vendor"} & set(parts) or (packages is not None and parts[0] not in packages):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.get_docstring(node, clean=False)
            if text is None or len(text.split()) < 8:
                continue
            text = re.sub(r"[ \t]+", " ", inspect.cleandoc(text)).strip()
            total += len(text)
            yield str(path.relative_to(root)), text
            if total > most_characters:
                return


def write_corpus(path: Path) -> dict[str, int]:
    """Docstrings to a jsonl file, one document each; exact copies are dropped when it is read."""
    documents = characters = 0
    with path.open("w", encoding="utf-8") as file:
        for where, text in docstrings():
            text = text.encode("utf-8", "replace").decode("utf-8")
            file.write(json.dumps({"source": where, "text": text}, ensure_ascii=False) + "\n")
            documents, characters = documents + 1, characters + len(text)
    return {"documents": documents, "characters": characters}
