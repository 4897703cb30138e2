"""Raw text in: files, folders, globs and Hugging Face datasets as one stream of documents, in constant memory."""

from __future__ import annotations

import csv
import difflib
import glob
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, get_args

from unmask.errors import UserError, suggest
from unmask.files import files_below
from unmask.text.seen import Seen

SUFFIXES = (".txt", ".md", ".jsonl", ".csv", ".tsv", ".parquet")
COLUMNS = ("text", "content", "body", "document", "abstract")
Parting = Literal["auto", "blank", "line", "file"]
"""Where a document of plain text ends: at blank lines, at every line's end, at the file's. 'auto': at blank lines, or at
every line's end in a file without any."""
_CHUNK = 1 << 20
_LONGEST_ROW = 256 << 20
"""A row of .jsonl or .csv cannot be parsed in pieces: beyond this many bytes it is refused, not read into memory."""


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
        if len(self.examples) < 20:
            self.examples.append(f"{where} {reason}")


def suffix_of(path: Path) -> str:
    """The suffix that says the format, without .gz.

    >>> suffix_of(Path("a/b.jsonl.gz"))
    '.jsonl'
    """
    path = Path(path)
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def _readable(path: Path) -> bool:
    # The WikiText release names its files .raw: plain text.
    return suffix_of(path) in (*SUFFIXES, ".raw") and not (path.suffix == ".gz" and suffix_of(path) == ".parquet")


def plain_text(inputs: Iterable[str | Path]) -> bool:
    """Whether one of the files is plain text, whose documents have to be parted."""
    return any(suffix_of(Path(i)) in (".txt", ".md", ".raw") for i in inputs)


def expand(inputs: Sequence[str | Path] | str | Path, *, without: Path | None = None) -> list[Path]:
    """Files named by files, folders (recursively) and globs, sorted within each, without repeats.

    Args:
        without: a folder whose files are left out where a folder or glob finds them (a run's own, inside its data).

    Raises:
        UserError: nothing there, or a named file of a format that is not read.
    """
    inputs = [inputs] if isinstance(inputs, str | Path) else inputs
    formats = f"Read are {' '.join(SUFFIXES)}, and all but parquet with .gz."
    found: dict[Path, None] = {}
    for item in inputs:
        path = Path(item)
        if path.is_dir():
            inside = _outside(without, (p for p in files_below(path) if _readable(p) and p.is_file()))
            if not inside:
                raise UserError(f"{path}: no text files in this folder", hint=formats)
        elif path.is_file():
            if not _readable(path):
                raise UserError(f"{path}: format {''.join(path.suffixes[-2:]) or '(none)'} is not read", hint=formats)
            inside = [path]
        elif matches := sorted(Path(p) for p in glob.glob(str(item), recursive=True) if Path(p).is_file()):
            inside = _outside(without, (p for p in matches if _readable(p)))
            if not inside:
                raise UserError(f"{item}: {len(matches)} files match, none of a format that is read", hint=formats)
        else:
            near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
            close = difflib.get_close_matches(path.name, near, n=1)
            raise UserError(
                f"{item}: no such file or folder", hint=suggest(path.name, close) if close else "Check the path."
            )
        found |= dict.fromkeys(inside)
    return list(found)


def _outside(folder: Path | None, paths: Iterable[Path]) -> list[Path]:
    return [p for p in paths if folder is None or not p.resolve().is_relative_to(folder.resolve())]


def resolve(inputs: Sequence[str], out: Path) -> list[str]:
    """The files that inputs name, and `hf:NAME` as it is: what a run in `out` reads now and when it is resumed.

    Raises:
        UserError: see `expand`.
    """
    return [
        str(i) for item in map(str, inputs) for i in ([item] if item.startswith("hf:") else expand(item, without=out))
    ]


def iter_documents(
    inputs: Sequence[str | Path] | str | Path,
    *,
    column: str | None = None,
    report: ReadReport | None = None,
    deduplicate: bool = True,
    max_characters: int = 10_000_000,
    entities: bool = False,
    document: Parting = "auto",
) -> Iterator[Document]:
    """Stream documents.

    .txt: separated by blank lines, or one per line in a file without blank lines; .md: one per file; .jsonl, .csv, .tsv,
    .parquet: one per row, in `column` (default: the first of text, content, body, document, abstract that is there).
    `hf:NAME[:split]` streams a Hugging Face dataset.
    A file named twice is read once.

    Args:
        report: filled as documents are read.
        deduplicate: drop exact copies (a 64-bit hash per document is remembered: 8 MB per million).
        max_characters: a longer document is cut at white space.
        entities: read "entities" of .jsonl rows, a list of {"start", "end"} in characters of the text.
        document: where documents end in .txt files ('auto'), and in .md files where it is not 'auto'.

    Raises:
        UserError: missing, binary or malformed input, no text at all, or `document` given without a file it is for.
    """
    inputs = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    report = ReadReport() if report is None else report
    if document not in get_args(Parting):
        raise UserError(f"document={document}", hint=f"Expected one of {', '.join(get_args(Parting))}.")
    seen = Seen()
    for found in _raw(inputs, column, report, max_characters, entities, document):
        text, where = found.text.strip(), f"{found.source}:{found.line}"
        if not text:
            report.empty += 1
            report.note(where, "empty")
            continue
        try:
            encoded = text.encode("utf-8")
        except UnicodeEncodeError:
            # JSON can spell half a surrogate pair; no tokenizer takes it.
            report.undecodable += 1
            report.note(where, "half a surrogate pair, left out")
            continue
        if deduplicate and not seen.add(encoded):
            report.duplicates += 1
            continue
        report.documents += 1
        report.characters += len(text)
        found.entities = moved(found.entities, found.text.index(text))
        found.text = text
        yield found
    if document != "auto" and not report.parted:
        raise UserError(f"document={document}: no .txt or .md file in {listed(inputs)}", hint="Leave it out.")
    if not report.documents:
        why = f"{report.empty} empty, {report.undecodable} not UTF-8" if inputs else "nothing was given"
        raise UserError(f"no text found in {listed(inputs)} ({why})", hint="; ".join(report.examples[:3]))


def listed(inputs: Sequence[str | Path]) -> str:
    """The first inputs by name, and how many more there are.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    return ", ".join(map(str, inputs[:3])) + (f" and {len(inputs) - 3} more" if len(inputs) > 3 else "")


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


def _raw(
    inputs: Sequence[str | Path], column: str | None, report: ReadReport, longest: int, entities: bool, parting: Parting
) -> Iterator[Document]:
    read: set[Path] = set()
    for item in inputs:
        if str(item).startswith("hf:"):
            yield from _cut(_hub(str(item)[3:], column), report, longest)
            continue
        for path in expand([item]):
            if path in read:
                continue
            read.add(path)
            if path.stat().st_size == 0:
                report.empty += 1
                report.note(str(path), "empty file")
                continue
            kind = suffix_of(path)
            if kind == ".parquet":
                yield from _cut(_parquet(path, column), report, longest)
                continue
            _refuse_binary(path)
            if kind == ".jsonl":
                yield from _cut(_jsonl(path, column, report, entities), report, longest)
            elif kind in (".csv", ".tsv"):
                yield from _cut(_csv(path, column, report, "\t" if kind == ".tsv" else ","), report, longest)
            else:
                way = parting if parting != "auto" else ("file" if kind == ".md" else _parting(path))
                report.parted[way] = report.parted.get(way, 0) + 1
                yield from _plain(path, report, longest, way)


@contextmanager
def opened(path: Path, *, unzip: bool = True) -> Iterator[IO[bytes]]:
    """The file's bytes, unzipped where .gz; a damaged file or one without permission is the user's to mend."""
    try:
        with gzip.open(path, "rb") if unzip and path.suffix == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        hint = "Is it a whole gzip file?" if path.suffix == ".gz" else "Check the file and its permissions."
        raise UserError(f"{path}: cannot be read ({error})", hint=hint) from None


def _refuse_binary(path: Path) -> None:
    with opened(path) as file:
        head = file.read(8192)
    if b"\0" in head:
        raise UserError(f"{path}: a binary file, not text", hint="Give UTF-8 text; UTF-16 must be converted first.")


def _lines(path: Path, report: ReadReport, longest: int) -> Iterator[tuple[int, str | None]]:
    """(line number, text) with bounded memory: an over-long line comes in pieces, a bad one as None."""
    # A character takes at most 4 bytes: a line within the limit is never cut.
    most = 4 * longest
    with opened(path) as file:
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
                text = text.removeprefix("\ufeff") if number == 1 and not noted else text
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


def _parting(path: Path) -> Parting:
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


def _plain(path: Path, report: ReadReport, longest: int, parting: Parting) -> Iterator[Document]:
    if parting == "line":
        yield from (Document(line, str(path), n) for n, line in _lines(path, report, longest) if line and line.strip())
        return
    whole = parting == "file"
    parts: list[str] = []
    size, start, bad = 0, 1, False
    for number, line in _lines(path, report, longest):
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


def _pick(columns: Sequence[str], column: str | None, where: str) -> str:
    columns = [str(c) for c in columns]
    there = ", ".join(columns[:20]) or "no columns"
    if column is not None:
        if column not in columns:
            raise UserError(f"{where}: no column {column!r} among {there}", hint=suggest(column, columns))
        return column
    for name in COLUMNS:
        if name in columns:
            return name
    raise UserError(f"{where}: no text column among {there}", hint="Name it with --set column=NAME.")


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{where}: text is a {type(value).__name__}, not a string", hint="Choose another column.")
    return value


def _cut(documents: Iterator[Document], report: ReadReport, longest: int) -> Iterator[Document]:
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


def _rows(file: IO[bytes], path: Path) -> Iterator[str]:
    """Whole lines; bytes that are not UTF-8 become lone surrogates, so that only their row is lost."""
    number = 0
    while line := file.readline(_LONGEST_ROW):
        number += 1
        if len(line) == _LONGEST_ROW:
            raise UserError(
                f"{path}:{number}: a line of more than {_LONGEST_ROW >> 20} MiB",
                hint="Expected one row a line; give plain text as .txt, which may have lines of any length.",
            )
        yield (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).decode("utf-8", "surrogateescape")


def _undecodable(text: str, where: str, report: ReadReport) -> bool:
    if text.isascii() or not any("\udc80" <= c <= "\udcff" for c in text):
        return False
    report.undecodable += 1
    report.note(where, "not UTF-8, left out")
    return True


def _jsonl(path: Path, column: str | None, report: ReadReport, entities: bool) -> Iterator[Document]:
    with opened(path) as file:
        for number, line in enumerate(_rows(file, path), start=1):
            where = f"{path}:{number}"
            if not line.strip() or _undecodable(line, where, report):
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: not JSON ({error})", hint="Expected one JSON object a line.") from None
            found = _entities(row, where) if entities and isinstance(row, dict) else []
            if isinstance(row, dict):
                row = row[_pick(list(row), column, where)]
            elif not isinstance(row, str):
                raise UserError(f"{where}: a JSON {type(row).__name__}", hint="Expected an object with a text key.")
            yield Document(_text(row, where), str(path), number, found)


def _entities(row: dict[str, Any], where: str) -> list[tuple[int, int]]:
    try:
        return [(int(e["start"]), int(e["end"])) for e in row.get("entities", [])]
    except (TypeError, KeyError, ValueError):
        raise UserError(
            f"{where}: entities is {json.dumps(row['entities'])[:60]}",
            hint='Expected a list of {"start": ..., "end": ...}, in characters of the text.',
        ) from None


def _csv(path: Path, column: str | None, report: ReadReport, separator: str) -> Iterator[Document]:
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_ROW))
    start = 1
    with opened(path) as file:
        reader = csv.reader(_rows(file, path), delimiter=separator)
        try:
            header = next(reader, [])
            index = header.index(_pick(header, column, str(path)))
            start = reader.line_num + 1
            for row in reader:
                where = f"{path}:{start}"
                if row and len(row) != len(header):
                    raise UserError(
                        f"{where}: {len(row)} fields, the header has {len(header)}",
                        hint="Quote fields that contain the separator, and close every quote.",
                    )
                if row and not _undecodable(row[index], where, report):
                    yield Document(row[index], str(path), start)
                start = reader.line_num + 1
        except csv.Error as error:
            raise UserError(f"{path}:{start}: {error}", hint="Is a quote left open in this row?") from None


def _parquet(path: Path, column: str | None) -> Iterator[Document]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            name = _pick(file.schema_arrow.names, column, str(path))
            # Few rows at a time: a row may be a whole book.
            for batch in file.iter_batches(batch_size=256, columns=[name]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    yield Document(_text(text, f"{path}:{number}"), str(path), number)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a parquet file ({error})", hint="Copy the file again.") from None


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
        text = row[_pick(list(row), column, f"hf:{name}")]
        yield Document(_text(text, f"hf:{name}:{number}"), f"hf:{name}", number)
