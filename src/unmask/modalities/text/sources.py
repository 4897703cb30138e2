"""Raw text in: files, folders, globs and Hugging Face datasets as one stream of documents, in constant memory."""

from __future__ import annotations

import difflib
import glob
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

from unmask.errors import UserError, suggest
from unmask.files import files_below
from unmask.modalities.text.documents import Document, ReadReport, cut, moved, refuse_binary
from unmask.modalities.text.plain import Parting, parting_of, plain_documents
from unmask.modalities.text.rows import csv_documents, hub_documents, jsonl_documents, parquet_documents
from unmask.modalities.text.seen import Seen

SUFFIXES = (".txt", ".md", ".jsonl", ".csv", ".tsv", ".parquet")


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

    .txt: separated by blank lines, or one per line in a file without blank lines; .md: one per file; .jsonl, .csv,
        .tsv,
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


def _raw(
    inputs: Sequence[str | Path], column: str | None, report: ReadReport, longest: int, entities: bool, parting: Parting
) -> Iterator[Document]:
    read: set[Path] = set()
    for item in inputs:
        if str(item).startswith("hf:"):
            yield from cut(hub_documents(str(item)[3:], column), report, longest)
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
                yield from cut(parquet_documents(path, column), report, longest)
                continue
            refuse_binary(path)
            if kind == ".jsonl":
                yield from cut(jsonl_documents(path, column, report, entities), report, longest)
            elif kind in (".csv", ".tsv"):
                yield from cut(csv_documents(path, column, report, "\t" if kind == ".tsv" else ","), report, longest)
            else:
                way = parting if parting != "auto" else ("file" if kind == ".md" else parting_of(path))
                report.parted[way] = report.parted.get(way, 0) + 1
                yield from plain_documents(path, report, longest, way)
