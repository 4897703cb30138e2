"""Raw text in: files, folders, globs and Hugging Face datasets as one stream of documents, in constant memory."""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import io
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from unmask.errors import UserError, suggest

SUFFIXES = (".txt", ".md", ".jsonl", ".csv", ".tsv", ".parquet")
COLUMNS = ("text", "content", "body", "document", "abstract")
_CHUNK = 1 << 20


@dataclass(slots=True)
class Document:
    """A text and where it came from (file, first line)."""

    text: str
    source: str
    line: int


@dataclass
class ReadReport:
    """What was read and what was left out, with up to 20 examples by name and line."""

    documents: int = 0
    characters: int = 0
    duplicates: int = 0
    empty: int = 0
    undecodable: int = 0
    split: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, where: str, reason: str) -> None:
        if len(self.examples) < 20:
            self.examples.append(f"{where} {reason}")


def suffix_of(path: Path) -> str:
    """The suffix that says the format, without .gz.

    >>> suffix_of(Path("a/b.jsonl.gz"))
    '.jsonl'
    """
    path = Path(path)
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def expand(inputs: Sequence[str | Path]) -> list[Path]:
    """Files named by files, folders (recursively) and globs, sorted within each, without repeats.

    Raises:
        UserError: nothing there, or a named file of a format that is not read.
    """
    found: dict[Path, None] = {}
    for item in inputs:
        path = Path(item)
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("*")) if p.is_file() and suffix_of(p) in SUFFIXES]
            if not inside:
                raise UserError(f"{path}: no text files in this folder", hint=f"Read are {' '.join(SUFFIXES)} and .gz.")
            found |= dict.fromkeys(inside)
        elif path.is_file():
            # The WikiText release names its files .raw: plain text.
            if suffix_of(path) not in (*SUFFIXES, ".raw"):
                raise UserError(
                    f"{path}: format {path.suffix or '(none)'} is not read",
                    hint=f"Read are {' '.join(SUFFIXES)} and .gz.",
                )
            found[path] = None
        elif matches := sorted(Path(p) for p in glob.glob(str(item), recursive=True) if Path(p).is_file()):
            found |= dict.fromkeys(matches)
        else:
            near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = suggest(path.name, near) if near and len(near) < 200 else "Check the path."
            raise UserError(f"{item}: no such file or folder", hint=hint)
    return list(found)


def iter_documents(
    inputs: Sequence[str | Path] | str,
    *,
    column: str | None = None,
    report: ReadReport | None = None,
    deduplicate: bool = True,
    max_characters: int = 10_000_000,
) -> Iterator[Document]:
    """Stream documents.

    .txt: separated by blank lines; .md: one a file; .jsonl, .csv, .tsv, .parquet: one a row, in `column` (default: the
    first of text, content, body, document, abstract that is there). `hf:NAME[:split]` streams a Hugging Face dataset.

    Args:
        report: filled as documents are read.
        deduplicate: drop exact copies (a 64-bit hash a document is remembered: 50 MB per million).
        max_characters: a longer document is cut at white space.

    Raises:
        UserError: missing, binary or malformed input, or no text at all.
    """
    inputs = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    report = ReadReport() if report is None else report
    seen: set[bytes] = set()
    for document in _raw(inputs, column, report, max_characters):
        text = document.text.strip()
        if not text:
            report.empty += 1
            report.note(f"{document.source}:{document.line}", "empty")
            continue
        if deduplicate:
            mark = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            if mark in seen:
                report.duplicates += 1
                continue
            seen.add(mark)
        report.documents += 1
        report.characters += len(text)
        document.text = text
        yield document
    if not report.documents:
        why = f"{report.empty} empty, {report.undecodable} not UTF-8"
        raise UserError(f"no text found in {', '.join(map(str, inputs))} ({why})", hint="; ".join(report.examples[:3]))


def _raw(inputs: list[Any], column: str | None, report: ReadReport, longest: int) -> Iterator[Document]:
    for item in inputs:
        if str(item).startswith("hf:"):
            yield from _hub(str(item)[3:], column)
            continue
        for path in expand([item]):
            if path.stat().st_size == 0:
                report.empty += 1
                report.note(str(path), "empty file")
                continue
            kind = suffix_of(path)
            if kind == ".parquet":
                yield from _parquet(path, column)
                continue
            _refuse_binary(path)
            if kind == ".jsonl":
                yield from _jsonl(path, column, report, longest)
            elif kind in (".csv", ".tsv"):
                yield from _csv(path, column, "\t" if kind == ".tsv" else ",")
            elif kind == ".md":
                yield from _paragraphs(path, report, longest, whole=True)
            else:
                yield from _paragraphs(path, report, longest, whole=False)


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _refuse_binary(path: Path) -> None:
    try:
        with _open(path) as file:
            head = file.read(8192)
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read ({error})", hint="Is it a whole gzip file?") from None
    if b"\0" in head:
        raise UserError(f"{path}: a binary file, not text", hint="Give UTF-8 text; UTF-16 must be converted first.")


def _lines(path: Path, report: ReadReport, longest: int) -> Iterator[tuple[int, str | None]]:
    """(line number, text) with bounded memory: an over-long line comes in pieces, a bad one as None."""
    with _open(path) as file:
        number, pending = 1, b""
        noted = False
        while True:
            chunk = file.readline(_CHUNK)
            if not chunk and not pending:
                return
            pending += chunk
            ended = pending.endswith(b"\n") or not chunk
            if not ended and len(pending) < longest:
                continue
            rest = b""
            if not ended:
                if not noted:
                    report.split += 1
                    report.note(
                        f"{path}:{number}", f"line longer than {longest:,} characters, cut into several documents"
                    )
                    noted = True
                cut = max(pending.rfind(b" ", len(pending) // 2), pending.rfind(b"\t", len(pending) // 2))
                if cut < 0:
                    # No white space: cut at a character boundary instead.
                    cut = len(pending) - 1
                    while cut > len(pending) - 4 and (pending[cut] & 0xC0) == 0x80:
                        cut -= 1
                pending, rest = pending[:cut], pending[cut:]
            try:
                yield number, pending.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                report.undecodable += 1
                report.note(f"{path}:{number}", f"not UTF-8 (byte {pending[error.start]:#04x}), left out")
                yield number, None
            pending = rest
            if ended:
                number, noted = number + 1, False


def _paragraphs(path: Path, report: ReadReport, longest: int, *, whole: bool) -> Iterator[Document]:
    parts: list[str] = []
    size, start, bad = 0, 1, False

    def document() -> Iterator[Document]:
        if parts and not bad:
            yield Document("\n".join(parts), str(path), start)

    for number, line in _lines(path, report, longest):
        if line is None:
            bad = True
            continue
        blank = not line.strip()
        if (blank and not whole) or size + len(line) > longest:
            yield from document()
            parts, size, start, bad = [], 0, number + 1, False
            if blank:
                continue
            start = number
        if blank and not parts:
            start = number + 1
            continue
        parts.append(line)
        size += len(line) + 1
    yield from document()


def _pick(columns: Sequence[str], column: str | None, where: str) -> str:
    if column is not None:
        if column not in columns:
            raise UserError(f"{where}: no column {column!r}", hint=suggest(column, columns))
        return column
    for name in COLUMNS:
        if name in columns:
            return name
    raise UserError(
        f"{where}: no text column among {', '.join(map(str, columns))}", hint="Name it with --set column=NAME."
    )


def _jsonl(path: Path, column: str | None, report: ReadReport, longest: int) -> Iterator[Document]:
    for number, line in _lines(path, report, sys.maxsize):
        if line is None:
            continue
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not JSON ({error})", hint="Expected one JSON object a line.") from None
        if isinstance(row, str):
            text: Any = row
        elif isinstance(row, dict):
            text = row[_pick(list(row), column, f"{path}:{number}")]
        else:
            raise UserError(f"{path}:{number}: a JSON {type(row).__name__}", hint="Expected an object with a text key.")
        if text is None:
            text = ""
        if not isinstance(text, str):
            raise UserError(
                f"{path}:{number}: text is a {type(text).__name__}, not a string", hint="Choose another column."
            )
        yield from _cut(text, path, number, report, longest)


def _cut(text: str, path: Path, number: int, report: ReadReport, longest: int) -> Iterator[Document]:
    if len(text) > longest:
        report.split += 1
        report.note(f"{path}:{number}", f"text longer than {longest:,} characters, cut into several documents")
    while len(text) > longest:
        cut = text.rfind(" ", longest // 2, longest)
        cut = longest if cut < 0 else cut
        yield Document(text[:cut], str(path), number)
        text = text[cut:]
    yield Document(text, str(path), number)


def _csv(path: Path, column: str | None, separator: str) -> Iterator[Document]:
    csv.field_size_limit(2**31 - 1)
    with _open(path) as raw:
        reader = csv.reader(io.TextIOWrapper(raw, "utf-8-sig", newline=""), delimiter=separator)
        try:
            header = next(reader, [])
            index = header.index(_pick(header, column, str(path)))
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise UserError(
                        f"{path}:{reader.line_num}: {len(row)} fields, the header has {len(header)}",
                        hint="Quote fields that contain the separator.",
                    )
                yield Document(row[index], str(path), reader.line_num)
        except UnicodeDecodeError:
            raise UserError(f"{path}:{reader.line_num + 1}: not UTF-8", hint="Convert the file to UTF-8.") from None


def _parquet(path: Path, column: str | None) -> Iterator[Document]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: not a parquet file ({error})", hint="Copy the file again.") from None
    name = _pick(file.schema_arrow.names, column, str(path))
    number = 0
    for batch in file.iter_batches(batch_size=1024, columns=[name]):
        for text in batch.column(0).to_pylist():
            number += 1
            yield Document(text or "", str(path), number)


def _hub(name: str, column: str | None) -> Iterator[Document]:
    try:
        from datasets import load_dataset  # type: ignore[import-not-found]
    except ImportError:
        raise UserError(f"hf:{name} needs the datasets package", hint="Run: pip install 'unmask[datasets]'") from None
    where, _, split = name.partition(":")
    try:
        rows = load_dataset(where, split=split or "train", streaming=True)
    except Exception as error:  # the hub raises many kinds
        raise UserError(f"hf:{name}: cannot be loaded ({error})", hint="Check the name and the network.") from None
    for number, row in enumerate(rows, start=1):
        yield Document(row[_pick(list(row), column, f"hf:{name}")] or "", f"hf:{name}", number)
