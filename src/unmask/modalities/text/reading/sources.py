"""Raw text in: files, folders, globs and Hugging Face datasets as one stream of documents, in constant memory."""

from __future__ import annotations

import glob
import hashlib
import heapq
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from unmask.core.hashing import Salt, hash_keys
from unmask.engines.folder import ABOUT
from unmask.errors import UserError, first_of, flags_are_named
from unmask.files import files_below, not_there
from unmask.given import no_value, values_of
from unmask.modalities.text.reading.documents import (
    WHOLE,
    Document,
    Parting,
    ReadReport,
    Span,
    cut,
    first_undecodable,
    moved,
    packed,
    parting_of,
    plain_documents,
    refuse_binary,
)
from unmask.modalities.text.reading.rows import csv_documents, hub_documents, jsonl_documents, parquet_documents
from unmask.remote import Place, Remote, files_at, is_url, place, size_of

SUFFIXES = (".txt", ".md", ".jsonl", ".csv", ".tsv", ".parquet")
MOST_CHARACTERS = 10_000_000
"""Of a document; a longer one is cut."""
_LINK, _ODD, _KIND, _HIDDEN = "link", "odd", "kind", "hidden"
_REASONS = {
    _LINK: ("link to nothing", "links to nothing"),
    _ODD: ("that is no plain file", "that are no plain files"),
    _KIND: ("of a kind that is not read", "of kinds that are not read"),
    _HIDDEN: ("hidden", "hidden"),
}
"""Why something in a folder is not read: of one, and of several."""
_FORMATS = f"Read are {' '.join(SUFFIXES)}, and all but parquet with .gz."


def suffix_of(path: Place) -> str:
    """The suffix that says the format, without .gz.

    >>> suffix_of(Path("a/b.jsonl.gz")), suffix_of(Path("B.TXT.GZ"))
    ('.jsonl', '.txt')
    """
    return (path.with_suffix("") if packed(path) else path).suffix.lower()


def _readable(path: Place) -> bool:
    # The WikiText release names its files .raw: plain text.
    return suffix_of(path) in (*SUFFIXES, ".raw") and not (packed(path) and suffix_of(path) == ".parquet")


def on_hub(item: str | Path) -> bool:
    """Whether `hf:NAME` is meant, a data set that the package datasets reads; hf:// is a URL of files.

    >>> on_hub("hf:org/name"), on_hub("hf://datasets/org/name/a.parquet")
    (True, False)
    """
    return str(item).startswith("hf:") and not is_url(item)


def plain_text(inputs: Iterable[str | Path]) -> bool:
    """Whether one of the files is plain text, whose documents have to be parted."""
    return any(suffix_of(place(i)) in (".txt", ".md", ".raw") for i in inputs)


def expand(inputs: Sequence[str | Path] | str | Path, *, without: Path | None = None) -> list[Place]:
    """Files named by files, folders (recursively), globs and URLs of these, sorted within each, without repeats.

    Below a folder nothing is read whose name, or whose folder's name, begins with a dot. `without`: a folder whose
    files are left out where a folder or glob finds them (a run's own, inside its data)."""
    inputs = [inputs] if isinstance(inputs, str | Path) else inputs
    return list(dict.fromkeys(found for item in inputs for found in _found(item, without, {})))


def in_memory(data: Any) -> list[str] | None:
    """The texts of data that are texts themselves: a column, a table (see `listed`), a generator, or a list of strings
    of which none names a file and some are prose: they have a blank, a comma or full stop of Chinese or Japanese, or
    more bytes than a file's name may have; None of names of files.
    """
    if isinstance(data, str | Path) or flags_are_named():  # words of a command name files
        return None
    if not isinstance(data, list | tuple) or not all(isinstance(i, str | Path) for i in data):
        return listed(data)
    named = any(not isinstance(i, str) or is_url(i) or on_hub(i) or os.path.exists(i) for i in data)
    prose = any(re.search(r"[\s\u3001\u3002\uff01\uff0c\uff1f]", i.strip()) or len(i) > 255 for i in data if not named)
    return list(data) if prose else None


def resolve(
    inputs: Sequence[str | Path], out: Path | None = None, say: Callable[[str], None] | None = None
) -> list[str]:
    """The files that inputs name, and `hf:NAME` as it is: what a run in `out` reads now and when it is resumed. `say`:
    called with a line on the files that are not read, if there are any."""
    unread: dict[Place, str] = {}
    items = [str(item) for item in inputs]
    found = [str(i) for item in items for i in ([item] if on_hub(item) else _found(item, out, unread))]
    if unread and say is not None:
        named = set(found)  # a hidden file may be given by its own name beside its folder
        unread = {where: why for where, why in unread.items() if str(where) not in named}
        if unread:
            say(unread_note(unread))
    return found


def _found(item: str | Path, without: Path | None, unread: dict[Place, str]) -> Sequence[Place]:
    """The files that one of the inputs names. `unread`: what a folder, glob or URL holds beside them is put here, with
    the reason."""
    path, other = Path(item), dict[Place, str]()
    if is_url(item):
        there = files_at(str(item))
        inside = _sorted_out((p for p in there if not _hidden_at(p, str(item), other)), other)
        nothing = f"{item}: no file of a format that is read (of {len(there)} there)"
    elif os.path.isdir(path) and (path / ABOUT).exists():  # not path.is_dir, which fails where a name is too long
        raise UserError(
            f"{path}: a prepared corpus, which `unmask pretrain text` alone reads", hint="Give the texts themselves."
        )
    elif os.path.isdir(path):
        hidden: list[Path] = []
        inside = _sorted_out(_outside(without, files_below(path, hidden=hidden)), other)
        other |= dict.fromkeys(_outside(without, hidden), _HIDDEN)
        nothing = f"{path}: no text files in this folder"
    elif os.path.isfile(path):
        if not _readable(path):
            raise UserError(f"{path}: format {_kind(path)} is not read", hint=_FORMATS)
        return [path]
    elif os.path.islink(path) and not os.path.exists(path):
        target = os.path.realpath(path)
        leads = "that leads back to itself" if os.path.islink(target) else f"to {target}, which is not there"
        raise UserError(f"{item}: a link {leads}", hint="Mend the link, or give the file itself.")
    elif matches := sorted(Path(p) for p in glob.glob(str(item), recursive=True) if not os.path.isdir(p)):
        inside = _sorted_out(_outside(without, matches), other)
        nothing = f"{item}: {len(matches)} files match, none of a format that is read"
    else:
        raise not_there(item, "Check the path.")
    if not inside:
        raise UserError(nothing, hint=f"{unread_note(other)}. {_FORMATS}" if other else _FORMATS)
    unread |= other
    return inside


def _sorted_out(places: Iterable[Place], unread: dict[Place, str]) -> list[Place]:
    """Those of the files found that are read; the others are put into `unread`."""
    read: list[Place] = []
    for p in places:
        if isinstance(p, Path) and p.is_symlink() and not p.exists():
            unread[p] = _LINK
        elif isinstance(p, Path) and not p.is_file():
            unread[p] = _ODD
        elif not _readable(p):
            unread[p] = _KIND
        else:
            read.append(p)
    return read


def _hidden_at(where: Remote, url: str, unread: dict[Place, str]) -> bool:
    """Whether a file that a URL names is hidden below what the URL spells out; it is put into `unread` then."""
    spelt = re.split(r"[*\[]", url)[0]
    below = where.url.removeprefix(spelt) if where.url.startswith(spelt) else where.name
    hidden = any(part.startswith(".") for part in below.split("/"))
    if hidden:
        unread[where] = _HIDDEN
    return hidden


def _outside(folder: Path | None, paths: Iterable[Path]) -> list[Path]:
    if folder is None:
        return list(paths)
    # Not Path.resolve, which fails where a link leads back to itself.
    home = Path(os.path.realpath(folder))
    return [p for p in paths if not Path(os.path.realpath(p)).is_relative_to(home)]


def unread_note(unread: Mapping[Place, str]) -> str:
    """What stands in folders and is not read, and why, in a line.

    >>> unread_note({Path("a.txt"): "link", Path("b.pdf"): "kind", Path("c.html"): "kind", Path(".d.txt"): "hidden"})
    '4 files were not read: 1 link to nothing (a.txt), 2 of kinds that are not read (.html, .pdf), 1 hidden (.d.txt)'
    """
    folders = sum(isinstance(p, Path) and p.is_dir() for p in unread)
    what = "file" if not folders else "folder" if folders == len(unread) else "files and folders"
    parts = []
    for reason, (one, many) in _REASONS.items():
        if places := [p for p, why in unread.items() if why == reason]:
            names = sorted({_kind(p) if reason == _KIND else p.name for p in places})
            parts.append(f"{len(places):,} {one if len(places) == 1 else many} ({first_of(names, 3)})")
    plural = "s" * (len(unread) != 1 and what != "files and folders")
    return f"{len(unread):,} {what}{plural} w{'as' if len(unread) == 1 else 'ere'} not read: {', '.join(parts)}"


def _kind(path: Place) -> str:
    return suffix_of(path) + ".gz" * packed(path) or "no suffix"


def iter_documents(
    inputs: Sequence[str | Path] | str | Path,
    *,
    column: str | None = None,
    report: ReadReport | None = None,
    max_characters: int = MOST_CHARACTERS,
    entities: bool = False,
    document: Parting = "auto",
    say: Callable[[str], None] | None = None,
) -> Iterator[Document]:
    """Stream documents, without exact copies (a 64-bit hash per document is remembered: 100 MB per million).

    .txt: separated by blank lines, or one per line in a file without blank lines; .md: one per file; .jsonl, .csv,
        .tsv,
    .parquet: one per row, in `column` (default: the first of text, content, body, document, abstract that is there).
    `hf:NAME[:split]` streams a Hugging Face dataset. Files at URLs (s3://, gs://, hf://, https://) are read by fsspec.
    A file named twice is read once.

    Args:
        report: filled as documents are read.
        max_characters: a longer document is cut at white space.
        entities: read "entities" of .jsonl rows, a list of {"start", "end"} in characters of the text.
        document: where documents end in .txt files ('auto'), and in .md files where it is not 'auto'.
        say: see `resolve`.
    """
    inputs = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    report = ReadReport() if report is None else report
    if document not in get_args(Parting):
        raise UserError(f"document={document}", hint=f"Expected one of {', '.join(get_args(Parting))}.")
    seen = set[bytes]()
    raw = _raw(resolve(inputs, say=say), column, report, max_characters, entities, document)
    for found, encoded in sound_documents(raw, report):
        if (mark := mark_of(encoded)) in seen:
            report.duplicates += 1
            continue
        seen.add(mark)
        report.documents += 1
        report.characters += len(found.text)
        yield found
    check_read(inputs, report, document)


def mark_of(encoded: bytes) -> bytes:
    """By which copies of a document are known."""
    return hashlib.blake2b(encoded, digest_size=8).digest()


def sound_documents(raw: Iterable[Document], report: ReadReport) -> Iterator[tuple[Document, bytes]]:
    """Documents without white space around them, and their UTF-8; empty ones and those of no Unicode are counted."""
    for found in raw:
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
        found.entities = moved(found.entities, found.text.index(text))
        found.text = text
        yield found, encoded


FEW_UNDECODABLE, MOST_UNDECODABLE = 20, 0.05
"""Lines or rows that are not UTF-8 are left out and told of; above both this number and this share of the documents the
text is refused: it is of another encoding, and what is left would be chosen by it."""


def check_read(inputs: Sequence[str | Path], report: ReadReport, document: Parting) -> None:
    """Refuse where no text was read, much of it is not UTF-8, or `document` was given without a file it is for."""
    if document != "auto" and not report.parted:
        raise UserError(f"document={document}: no .txt or .md file in {first_of(inputs, 3)}", hint="Leave it out.")
    if not report.documents:
        why = f"{report.empty} empty, {report.undecodable} not UTF-8" if inputs else "nothing was given"
        raise UserError(f"no text found in {first_of(inputs, 3)} ({why})", hint="; ".join(report.examples[:3]))
    if report.undecodable > max(FEW_UNDECODABLE, MOST_UNDECODABLE * (report.documents + report.undecodable)):
        bad, good = f"{report.undecodable:,} lines or rows are not UTF-8", f"documents that are: {report.documents:,}"
        first = first_undecodable(report.examples)
        convert = "" if "surrogate" in first else " Convert such files: iconv -f latin1 -t utf-8 FILE > NEW."
        raise UserError(f"{first_of(inputs, 3)}: {bad}, {good}", hint=f"The first: {first}.{convert}")


def _raw(
    files: Sequence[str], column: str | None, report: ReadReport, longest: int, entities: bool, parting: Parting
) -> Iterator[Document]:
    read: set[Place] = set()
    for name in files:
        if on_hub(name):
            yield from cut(hub_documents(name[3:], column), report, longest)
        elif (path := place(name)) not in read:
            read.add(path)
            yield from file_documents(path, column, report, longest, entities, parting)


def file_documents(
    path: Place,
    column: str | None,
    report: ReadReport,
    longest: int = MOST_CHARACTERS,
    entities: bool = False,
    parting: Parting = "auto",
    span: Span = WHOLE,
) -> Iterator[Document]:
    """The documents of one file as they stand in it. `longest`: characters; longer documents are cut; `span`: the part
    of it that is read, which begins and ends between two documents; lines are counted from there."""
    if size_of(path) == 0:
        report.empty += 1
        report.note(str(path), "empty file")
        return
    kind = suffix_of(path)
    if kind == ".parquet":
        yield from cut(parquet_documents(path, column, span), report, longest)
        return
    if not span.begin:
        refuse_binary(path)
    if kind == ".jsonl":
        yield from cut(jsonl_documents(path, column, report, entities, span), report, longest)
    elif kind in (".csv", ".tsv"):
        yield from cut(csv_documents(path, column, report, "\t" if kind == ".tsv" else ","), report, longest)
    else:
        way = document_ends(path, parting)
        if not span.begin:
            report.parted[way] = report.parted.get(way, 0) + 1
        yield from plain_documents(path, report, longest, way, span)


def document_ends(path: Place, parting: Parting) -> Parting:
    """Where documents of a plain text file end, 'auto' decided."""
    return parting if parting != "auto" else ("file" if suffix_of(path) == ".md" else parting_of(path))


PART = 1024
"""Texts whose keys are drawn at a time."""
EXAMINED = 100_000
"""Texts that some are drawn of; the rest of a larger corpus, which may be a terabyte on a hub, is not read."""


def drawn(texts: Iterable[str], most: int, *, seed: int = 0, of: int = EXAMINED) -> tuple[list[str], str]:
    """At most `most` texts of the first `of`, drawn by `seed` in one pass and given in their order; and which were left
    out, in words, '' where none was.

    >>> drawn(["a", "b", "c"], 5)
    (['a', 'b', 'c'], '')
    >>> drawn("abcdef", 2, of=4)
    (['a', 'b'], '2 of the first 4 texts, drawn by the seed')
    """
    of = max(of, most)
    kept: list[tuple[int, int, str]] = []  # a heap of the smallest keys, the largest of them on top
    there, unread = 0, iter(texts)
    rest = itertools.islice(unread, of)
    while part := list(itertools.islice(rest, PART)):
        keys = hash_keys(seed, np.arange(there, there + len(part)), Salt.JUDGED_DOCUMENT).tolist()
        for number, (key, text) in enumerate(zip(keys, part, strict=True), start=there):
            if len(kept) < most:
                heapq.heappush(kept, (-key, number, text))
            elif -key > kept[0][0]:
                heapq.heapreplace(kept, (-key, number, text))
        there += len(part)
    cut = next(unread, None) is not None
    left_out = f"{len(kept):,} of {'the first ' if cut else ''}{there:,} texts, drawn by the seed"
    return [text for _, _, text in sorted(kept, key=lambda one: one[1])], left_out if cut or there > most else ""


def table_rows(data: Any) -> list[dict[str, Any]] | None:
    """The rows of a pandas, polars or Arrow table, or of columns by name (a dict of lists), as column -> value, a
    missing one None; None of anything else.

    >>> table_rows({"text": ["a", "b"], "label": [1, 0]})
    [{'text': 'a', 'label': 1}, {'text': 'b', 'label': 0}]
    """
    if isinstance(data, Mapping):
        columns = {str(name): values_of(values) for name, values in data.items() if not isinstance(values, str)}
        if len(columns) < len(data) or len(set(map(len, columns.values()))) != 1:
            raise UserError(
                f"columns {', '.join(map(str, data))}: not lists of one length", hint='Give {"text": [...], ...}.'
            )
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if not hasattr(data, "columns"):
        return None
    import narwhals as nw

    table = nw.from_native(data, eager_only=True, pass_through=True)
    if not isinstance(table, nw.DataFrame):
        return None
    return [{k: None if no_value(v) else v for k, v in row.items()} for row in table.iter_rows(named=True)]


def texts_in(data: Any) -> list[str]:
    """Texts in memory (`listed`), or the documents of files, folders and globs."""
    named = [data] if isinstance(data, str | Path) else data if isinstance(data, list | tuple) else []
    if not named or not all(isinstance(one, Path) or (isinstance(one, str) and os.path.exists(one)) for one in named):
        return listed(data)
    return [document.text for document in iter_documents(named)]


def listed(texts: Any, name: str = "texts") -> list[str]:
    """A text, or several, as a list: of a table those in its one column, or in its column `text`.

    >>> listed("one"), listed(("one", "two"))
    (['one'], ['one', 'two'])
    """
    if isinstance(texts, str):
        return [texts]
    rows = table_rows(texts)
    if rows is not None:
        names = list(rows[0]) if rows else list(texts if isinstance(texts, Mapping) else texts.columns)
        column = names[0] if len(names) == 1 else "text"
        if column not in names:
            raise UserError(
                f"{name}: a table with columns {first_of(list(map(str, names)))}", hint="Give one column of it."
            )
        texts = [row[column] for row in rows]
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise UserError(f"{name}={texts!r:.60}: no text", hint="Give a text, or a list of texts.")
    found = values_of(texts)
    if wrong := [f"{name}[{place}] is {one!r:.60}" for place, one in enumerate(found) if not isinstance(one, str)]:
        raise UserError(f"{first_of(wrong)}: no text", hint="Give texts alone; leave out what is missing.")
    return found
