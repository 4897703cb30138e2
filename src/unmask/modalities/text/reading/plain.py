"""Plain text (.txt, .md) as documents, in constant memory however long its lines are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from unmask.modalities.text.reading.documents import WHOLE, Document, ReadReport, Span, opened, pieces
from unmask.remote import Place

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
    """The documents of a plain text file, parted as said; one with bytes that are not UTF-8 is left out and counted.

    Args:
        span: where documents begin and end; lines are counted from there.
    """
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
