"""Texts in a column of rows: .jsonl, .csv, .tsv, .parquet files and Hugging Face datasets."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import IO, Any

from unmask.errors import UserError, flags_are_named, option, setting, suggest
from unmask.files import encloses, separated
from unmask.modalities.text.reading.documents import WHOLE, Document, ReadReport, Span, opened
from unmask.remote import Place, Remote

COLUMNS = ("text", "content", "body", "document", "abstract")
_LONGEST_ROW = 256 << 20
"""A row of .jsonl or .csv cannot be parsed in pieces: beyond this many bytes it is refused, not read into memory."""


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
    more = f" (of evaluate: {option('column', 'NAME')}; rows with labels are for a fine-tuned model)"
    more = more if flags_are_named() else ""
    raise UserError(f"{where}: no text column among {there}", hint=f"Name it with {setting('column', 'NAME')}{more}.")


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{where}: text is a {type(value).__name__}, not a string", hint="Choose another column.")
    return value


def _rows(file: IO[bytes], path: Place, *, first: bool = True) -> Iterator[str]:
    """Whole lines; bytes that are not UTF-8 become lone surrogates, so that only their row is lost."""
    number = 0
    while line := file.readline(_LONGEST_ROW):
        number += 1
        if len(line) == _LONGEST_ROW:
            raise UserError(
                f"{path}:{number}: a line of more than {_LONGEST_ROW >> 20} MiB",
                hint="Expected one row per line; give plain text as .txt, which may have lines of any length.",
            )
        yield (line.removeprefix(b"\xef\xbb\xbf") if number == 1 and first else line).decode("utf-8", "surrogateescape")


def _undecodable(text: str, where: str, report: ReadReport) -> bool:
    if text.isascii() or not any("\udc80" <= c <= "\udcff" for c in text):
        return False
    report.undecodable += 1
    report.note(where, "not UTF-8, left out")
    return True


def jsonl_documents(
    path: Place, column: str | None, report: ReadReport, entities: bool, span: Span = WHOLE
) -> Iterator[Document]:
    """The documents of a .jsonl file: one per line."""
    with opened(path, span) as file:
        for number, line in enumerate(_rows(file, path, first=not span.begin), start=1):
            where = f"{path}:{number}"
            if not line.strip() or _undecodable(line, where, report):
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: not JSON ({error})", hint="Expected one JSON object per line.") from None
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


def csv_documents(path: Place, column: str | None, report: ReadReport, separator: str) -> Iterator[Document]:
    """The documents of a .csv or .tsv file: one per row."""
    quoted = separator == ","
    if not quoted:
        with opened(path) as file:
            quoted = encloses(_rows(file, path))
    with opened(path) as file:
        rows = separated(_rows(file, path), path, separator, quoted=quoted)
        _, _, header = next(rows, (1, 1, []))
        index = header.index(_pick(header, column, str(path)))
        for start, _, row in rows:
            where = f"{path}:{start}"
            if row and len(row) != len(header):
                raise UserError(
                    f"{where}: {len(row)} fields, the header has {len(header)}",
                    hint="Quote fields that contain the separator, and close every quote.",
                )
            if row and not _undecodable(row[index], where, report):
                yield Document(row[index], str(path), start)


def parquet_documents(path: Place, column: str | None, span: Span = WHOLE) -> Iterator[Document]:
    """The documents of a .parquet file: one per row. `span`: row groups."""
    import pyarrow as pa

    try:
        with parquet_file(path) as file:
            name = _pick(file.schema_arrow.names, column, str(path))
            chosen = range(file.num_row_groups)[span.begin : span.end]
            number = sum(file.metadata.row_group(i).num_rows for i in range(chosen.start))
            # Few rows at a time: a row may be a whole book.
            for batch in file.iter_batches(batch_size=256, columns=[name], row_groups=list(chosen)):
                for text in batch.column(0).to_pylist():
                    number += 1
                    yield Document(_text(text, f"{path}:{number}"), str(path), number)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a parquet file ({error})", hint="Copy the file again.") from None


@contextlib.contextmanager
def parquet_file(path: Place) -> Iterator[Any]:
    """An open `pyarrow.parquet.ParquetFile`."""
    import pyarrow.parquet as pq

    if isinstance(path, Remote):
        with path.open() as source, pq.ParquetFile(source) as file:
            yield file
        return
    with pq.ParquetFile(path) as file:
        yield file


def hub_documents(name: str, column: str | None) -> Iterator[Document]:
    """The documents of a Hugging Face dataset, `NAME` or `NAME:SPLIT`: one per row."""
    for number, row in enumerate(hub_rows(name, streaming=True), start=1):
        text = row[_pick(list(row), column, f"hf:{name}")]
        yield Document(_text(text, f"hf:{name}:{number}"), f"hf:{name}", number)


def hub_rows(name: str, **options: Any) -> Any:
    """A Hugging Face dataset, `NAME` or `NAME:SPLIT`, by default its training split."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise UserError(f"hf:{name} needs the datasets package", hint="Run: pip install 'unmask[datasets]'") from None
    where, _, split = name.partition(":")
    try:
        return load_dataset(where, split=split or "train", **options)
    except Exception as error:  # the hub raises many kinds
        raise UserError(
            f"hf:{name}: cannot be loaded ({error})", hint="Check the name, the split and the network."
        ) from None
