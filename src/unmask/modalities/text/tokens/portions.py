"""A corpus cut into portions of about the same size, each read and tokenised by itself.

Portions follow from the files alone, never from who works on them. Small files go together; large ones are cut between
two documents: .jsonl and .txt, .md where they are not packed, .parquet between row groups. A packed file, a .csv (where
a line's end may stand inside a cell) and a file that is one document stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

from unmask.errors import UserError
from unmask.modalities.text.reading.documents import WHOLE, Document, ReadReport, Span, opened, packed, refuse_binary
from unmask.modalities.text.reading.plain import Parting
from unmask.modalities.text.reading.rows import parquet_file
from unmask.modalities.text.reading.sources import file_documents, parted, suffix_of
from unmask.remote import Place, place, size_of

LEAST, MOST, PORTIONS = 8 << 20, 1 << 30, 1 << 14
"""Bytes of a portion: a corpus has about `PORTIONS` of them, if that makes none smaller or larger than these."""
_LINE = 1 << 20


class Piece(NamedTuple):
    """A file, or a part of it.

    Attributes:
        file: path or URL.
        span: bytes, or row groups of a parquet file.
        way: where documents end in a plain text file that is cut.
    """

    file: str
    span: Span = WHOLE
    way: Parting | None = None


Portion = tuple[Piece, ...]


def portions(files: Sequence[str], parting: Parting) -> list[Portion]:
    """The portions of a corpus, in its order.

    Args:
        files: as `sources.resolve` gives them.
        parting: where documents of plain text end.
    """
    sizes = [(place(file), size_of(place(file))) for file in files]
    grain = min(MOST, max(LEAST, sum(size or 0 for _, size in sizes) // PORTIONS))
    made: list[Portion] = []
    group: list[Piece] = []
    weight = 0
    for where, size in sizes:
        for piece, bytes_ in _pieces(where, size, grain, parting):
            group.append(piece)
            weight += bytes_
            if weight >= grain:
                made.append(tuple(group))
                group, weight = [], 0
    return [*made, tuple(group)] if group else made


def _pieces(where: Place, size: int | None, grain: int, parting: Parting) -> Iterator[tuple[Piece, int]]:
    """The pieces of a file, and what each weighs."""
    kind, name = suffix_of(where), str(where)
    if size is None or size <= grain or packed(where) or kind in (".csv", ".tsv"):
        yield Piece(name), grain if size is None else size * (3 if packed(where) else 1)
        return
    if kind == ".parquet":
        yield from _row_groups(where, grain)
        return
    refuse_binary(where)
    way = None if kind == ".jsonl" else parted(where, parting)
    if way == "file":
        yield Piece(name), size
        return
    begin = 0
    while begin + grain < size and (end := _next(where, begin + grain, blank=way == "blank")) is not None:
        yield Piece(name, Span(begin, end), way), end - begin
        begin = end
    yield Piece(name, Span(begin, None) if begin else WHOLE, way), size - begin


def _next(where: Place, target: int, *, blank: bool) -> int | None:
    """The first byte from `target` on at which a document begins; None where the file ends before.

    Args:
        blank: behind a blank line; else at the beginning of any.
    """
    with opened(where, Span(target - 1, None), unzip=False) as file:
        at = target - 1 + _rest_of_line(file)
        while line := file.readline(_LINE):
            if not blank:
                return at
            at += len(line)
            if not line.endswith(b"\n"):
                at += _rest_of_line(file)
            elif not line.strip():
                blank = False
    return None


def _rest_of_line(file: IO[bytes]) -> int:
    size = 0
    while chunk := file.readline(_LINE):
        size += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return size


def _row_groups(where: Place, grain: int) -> Iterator[tuple[Piece, int]]:
    import pyarrow as pa

    try:
        with parquet_file(where) as file:
            weights = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{where}: not a parquet file ({error})", hint="Copy the file again.") from None
    begin, weight = 0, 0
    for i, one in enumerate(weights):
        weight += one
        if weight >= grain or i + 1 == len(weights):
            yield Piece(str(where), Span(begin, i + 1)), weight
            begin, weight = i + 1, 0


def portion_documents(
    portion: Portion, column: str | None, report: ReadReport, entities: bool, parting: Parting
) -> Iterator[Document]:
    """The documents of a portion, as they stand in its files."""
    for piece in portion:
        where = place(piece.file)
        try:
            yield from file_documents(
                where, column, report, entities=entities, parting=piece.way or parting, span=piece.span
            )
        except UserError as error:
            if not lines_are_counted_anew(piece):
                raise
            raise UserError(relined(error.what, piece, lines_before(piece)), hint=error.hint) from None


def lines_are_counted_anew(piece: Piece) -> bool:
    """Whether the lines of a piece are counted from where it begins, not from the file's first."""
    return piece.span.begin > 0 and suffix_of(place(piece.file)) != ".parquet"


def relined(text: str, piece: Piece, before: int) -> str:
    """What is said of a line of a piece ("FILE:12 empty"), with the number that the line has in the file.

    >>> relined("a.txt:2 empty", Piece("a.txt", Span(99)), 10)
    'a.txt:12 empty'
    """
    head = f"{piece.file}:"
    digits = text[len(head) :] if text.startswith(head) else ""
    number = digits[: len(digits) - len(digits.lstrip("0123456789"))]
    return f"{head}{int(number) + before}{digits[len(number) :]}" if number else text


def lines_before(piece: Piece) -> int:
    """How many lines of the file stand before a piece of it."""
    count = 0
    with opened(place(piece.file), Span(0, piece.span.begin)) as file:
        while chunk := file.read(1 << 24):
            count += chunk.count(b"\n")
    return count
