"""The scan of a corpus: what its documents are, which of them are copies, and what its tokenizer may be trained on.

Portions are scanned side by side; what follows from all of them together (copies, the sample) is decided here in the
order of the corpus, so that it is what one process would have found reading from the first document to the last.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np

from unmask.engines.folder import check_seen
from unmask.errors import UserError
from unmask.modalities.text.reading.documents import (
    WHOLE,
    Document,
    Parting,
    ReadReport,
    Span,
    cut,
    opened,
    packed,
    pieces,
    refuse_binary,
)
from unmask.modalities.text.reading.rows import hub_documents, parquet_file
from unmask.modalities.text.reading.sources import (
    MOST_CHARACTERS,
    document_ends,
    file_documents,
    mark_of,
    on_hub,
    sound_documents,
    suffix_of,
)
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens.tokenising import is_held_out
from unmask.remote import Place, place, size_of
from unmask.writing import replacing

Numbered = TypeVar("Numbered", bound=tuple[Any, ...])

ALL = 1 << 64
PIECE = 20_000
"""Characters of the pieces that a tokenizer is trained on: a book is sampled as evenly as many short texts."""
TOKENIZER_CHARACTERS = 60_000_000
"""A tokenizer is trained on at most this many characters, taken evenly from all text; more changes its vocabulary by
next to nothing."""


@dataclass(frozen=True, kw_only=True)
class CorpusReading:
    """How documents are read.

    Attributes:
        holdout, seed: of the documents that are held out, and not sampled.
        threshold: pieces whose number is below are written down for the tokenizer; 0 where it is there.
        folder: where results go; every worker sees it.
        key: of the preparation; stands in `folder/plan.json`.
    """

    column: str | None
    entities: bool
    document: Parting
    holdout: float
    seed: int
    threshold: int = 0
    folder: str = ""
    key: str = ""

    def chosen(self) -> dict[str, Any]:
        """What of it a person chose."""
        return {k: v for k, v in asdict(self).items() if k not in ("threshold", "folder", "key")}


def reading_of(settings: TextSettings, **more: Any) -> CorpusReading:
    """How documents are read by `column`, `hide` ('entity': the "entities" of .jsonl rows are units), `document`,
    `holdout` and the seed of some settings."""
    return CorpusReading(
        column=settings.column,
        entities=settings.hide == "entity",
        document=settings.document,
        holdout=settings.holdout,
        seed=settings.train.seed,
        **more,
    )


def scan(reading: CorpusReading, task: tuple[int, Portion]) -> int:
    """Read a portion, and write down what there is of it: `scan/NUMBER.npz` (a hash and the size of each document),
    `.sample.json` and, last, `.json`; how many documents there are."""
    number, portion = task
    check_seen(reading.folder, reading.key)
    report, marks, sizes, learnt = ReadReport(), list[bytes](), list[int](), set[bytes]()

    def numbered() -> Iterator[tuple[int, int, str]]:
        for d, encoded in sound_documents(
            portion_documents(portion, reading.column, report, reading.entities, reading.document), report
        ):
            marks.append(mark_of(encoded))
            sizes.append(len(d.text))
            if reading.threshold and marks[-1] not in learnt:
                learnt.add(marks[-1])
                if not is_held_out(d.text, reading.holdout, reading.seed):
                    for piece in pieces(d.text, PIECE):
                        yield number_of(piece), len(marks) - 1, piece

    sampled, below = thinned(numbered(), TOKENIZER_CHARACTERS, reading.threshold)
    place = Path(reading.folder) / "scan"
    with replacing(place / f"{number:06}.npz") as name, open(name, "wb") as file:
        np.savez(file, marks=np.frombuffer(b"".join(marks), np.uint64), sizes=np.array(sizes, np.int64))
    with replacing(place / f"{number:06}.sample.json") as name:
        Path(name).write_text(json.dumps(sampled))
    about = {"report": asdict(report), "documents": len(marks), "threshold": reading.threshold}
    about["below"] = below if below < reading.threshold else ALL
    with replacing(place / f"{number:06}.json") as name:
        Path(name).write_text(json.dumps(about))
    return len(marks)


def number_of(piece: str) -> int:
    """What decides whether a piece is sampled: 64 bits of a hash of it."""
    return int.from_bytes(hashlib.blake2b(piece.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def thinned(numbered: Iterable[Numbered], most: int, threshold: int = ALL) -> tuple[list[Numbered], int]:
    """Of pieces of text, each the last of a tuple that begins with its number, those whose number lies below a
    threshold, and that threshold: it is halved whenever there are more than `most` characters. So what is kept is the
    same whatever the order of files and texts, and each file has its share.

    >>> thinned([(1 << 63, "a"), (5, "b")], 1)
    ([(5, 'b')], 9223372036854775808)
    """
    kept, size = list[Numbered](), 0
    for one in numbered:
        if one[0] >= threshold:
            continue
        kept.append(one)
        size += len(one[-1])
        while size > most and len(kept) > 1:
            threshold //= 2
            kept = [k for k in kept if k[0] < threshold]
            size = sum(len(k[-1]) for k in kept)
    return kept, threshold


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """What all portions hold.

    Attributes:
        counts: documents of each portion, copies among them.
        drop: for each portion, the numbers of the documents that are copies of one before.
        marks: for each portion, a checksum of the hashes of its documents.
    """

    counts: list[int]
    drop: list[np.ndarray]
    marks: list[int]
    report: ReadReport


def gathered(folder: Path, plan: Sequence[Portion]) -> Scanned:
    """What the scans of all portions come to. Of documents that are the same the first stays.

    Memory: some 40 bytes per document, for a while.
    """
    report, parts, sizes, documents = ReadReport(), list[np.ndarray](), list[np.ndarray](), list[int]()
    for number, portion in enumerate(plan):
        with np.load(folder / "scan" / f"{number:06}.npz") as found:
            parts.append(found["marks"])
            sizes.append(found["sizes"])
        documents.append(len(parts[-1]))
        own = json.loads((folder / "scan" / f"{number:06}.json").read_text())["report"]
        for name in ("empty", "undecodable", "split"):
            setattr(report, name, getattr(report, name) + own[name])
        for way, count in own["parted"].items():
            report.parted[way] = report.parted.get(way, 0) + count
        for example in own["examples"][: 20 - len(report.examples)]:
            # Lines of a portion that begins inside a file are counted from there.
            inside = [p for p in portion if lines_are_counted_anew(p) and example.startswith(f"{p.file}:")]
            report.examples.append(relined(example, inside[0], lines_before(inside[0])) if inside else example)
    checks = [zlib.crc32(part.tobytes()) for part in parts]
    every = np.concatenate([np.zeros(0, np.uint64), *parts])
    del parts
    order = np.argsort(every, kind="stable")
    again = order[1:][every[order[1:]] == every[order[:-1]]]
    del order, every
    again.sort()
    characters = np.concatenate([np.zeros(0, np.int64), *sizes])
    edges = np.cumsum([0, *documents])
    places = np.searchsorted(again, edges)
    drop = [again[a:b] - edge for a, b, edge in zip(places[:-1], places[1:], edges[:-1], strict=True)]
    report.duplicates = len(again)
    report.documents = len(characters) - len(again)
    report.characters = int(characters.sum() - characters[again].sum())
    return Scanned(counts=documents, drop=drop, marks=checks, report=report)


def sample(folder: Path, scanned: Scanned, most: int) -> list[str] | None:
    """What a tokenizer is trained on: pieces of all documents but copies and those held out, in the order of their
    hashes, about `most` characters at most and half as many at least where there are more; None where the scans wrote
    too little down to tell."""
    numbers = range(len(scanned.drop))
    abouts = [json.loads((folder / "scan" / f"{number:06}.json").read_text()) for number in numbers]

    def numbered() -> Iterator[tuple[int, str]]:
        for number in numbers:
            copies = set(scanned.drop[number].tolist())
            for low, document, piece in json.loads((folder / "scan" / f"{number:06}.sample.json").read_text()):
                if document not in copies:
                    yield low, piece

    kept, threshold = thinned(numbered(), most, min((about["below"] for about in abouts), default=ALL))
    return [piece for _, piece in sorted(kept)] if all(threshold <= about["threshold"] for about in abouts) else None


def rescanned(reading: CorpusReading, factor: int = 16) -> CorpusReading:
    """The same, with more written down for the tokenizer."""
    return dataclasses.replace(reading, threshold=min(ALL, reading.threshold * factor))


def first_threshold(size: int, most: int) -> int:
    """Below which hash pieces are written down at first: two to four times what a corpus of `size` bytes needs."""
    threshold = ALL
    while size > 4 * most and threshold > 1 << 32:
        threshold, size = threshold // 2, size // 2
    return threshold


def size_of_files(files: Iterable[str]) -> int:
    """Bytes of a corpus's files, of those of which it is known before they are read."""
    return sum(size_of(place(file)) or 0 for file in files if not on_hub(file))


def left(folder: Path, plan: Sequence[Portion], threshold: int) -> Iterator[tuple[int, Portion]]:
    """The portions that are not scanned yet, or with less written down for the tokenizer than is needed now."""
    for number, portion in enumerate(plan):
        try:
            found = json.loads((folder / "scan" / f"{number:06}.json").read_text())
            if found["threshold"] >= threshold and (folder / "scan" / f"{number:06}.npz").exists():
                continue
        except (OSError, ValueError, KeyError):
            pass
        yield number, portion


LEAST, MOST, PORTIONS = 8 << 20, 1 << 30, 1 << 14
"""Bytes of a portion: a corpus has about `PORTIONS` of them, if that makes none smaller or larger than these."""
_LINE = 1 << 20


class Piece(NamedTuple):
    """A file, or a part of it.

    Attributes:
        span: bytes, or row groups of a parquet file.
        way: where documents end in a plain text file that is cut.
    """

    file: str
    span: Span = WHOLE
    way: Parting | None = None


Portion = tuple[Piece, ...]


def portions(files: Sequence[str], parting: Parting) -> list[Portion]:
    """The portions of a corpus, in its order."""
    sizes = [(file, None if on_hub(file) else size_of(place(file))) for file in dict.fromkeys(files)]
    grain = min(MOST, max(LEAST, sum(size or 0 for _, size in sizes) // PORTIONS))
    made: list[Portion] = []
    group: list[Piece] = []
    weight = 0
    for name, size in sizes:
        found = iter([(Piece(name), grain)]) if size is None else _pieces(place(name), size, grain, parting)
        for piece, bytes_ in found:
            group.append(piece)
            weight += bytes_
            if weight >= grain:
                made.append(tuple(group))
                group, weight = [], 0
    return [*made, tuple(group)] if group else made


def _pieces(where: Place, size: int, grain: int, parting: Parting) -> Iterator[tuple[Piece, int]]:
    """The pieces of a file, and what each weighs."""
    kind, name = suffix_of(where), str(where)
    if size <= grain or packed(where) or kind in (".csv", ".tsv"):
        yield Piece(name), size * (3 if packed(where) else 1)
        return
    if kind == ".parquet":
        yield from _row_groups(where, grain)
        return
    refuse_binary(where)
    way = None if kind == ".jsonl" else document_ends(where, parting)
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
        if on_hub(piece.file):
            yield from cut(hub_documents(piece.file[3:], column), report, MOST_CHARACTERS)
            continue
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
