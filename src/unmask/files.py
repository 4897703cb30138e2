"""What every room that reads or writes files needs."""

from __future__ import annotations

import contextlib
import csv
import difflib
import glob
import gzip
import json
import os
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UserError, option, suggest
from unmask.memory import refuse_more_than_memory
from unmask.remote import is_url, nearly_url

PART = 1 << 24
"""Bytes that are unpacked at once."""


_PATH = re.compile(r"[^\s\[\]<>]*(/[^\s\[\]<>]*|\.[A-Za-z][A-Za-z0-9]*)")
"""A word without a blank that has a slash, or ends as the name of a file."""


def check_there(source: str | Path, expected: str, *, text: bool = False) -> None:
    """Refuse what is to be read and is not there, before anything is imported that reads it.

    URLs, hf:NAME, stdin (-) and patterns that match are left to who reads them.

    Args:
        expected: the hint, where nothing there has nearly this name.
        text: the source may be a text itself: what can only be meant for a path is refused.
    """
    name = str(source)
    if not name or name == "-" or is_url(name) or name.startswith("hf:") or os.path.lexists(Path(name).expanduser()):
        return
    if (text and not _PATH.fullmatch(name)) or (glob.has_magic(name) and glob.glob(name, recursive=True)):
        return
    raise not_there(source, expected)


def not_there(source: str | Path, expected: str) -> UserError:
    """The error for a file or folder that is not there: what has nearly its name, or else what is expected."""
    path = Path(source)
    near = [p.name for p in path.parent.iterdir()] if os.path.isdir(path.parent) else []
    hint = suggest(path.name, near) if difflib.get_close_matches(path.name, near, n=1) else expected
    if nearly_url(str(source)):
        hint = "A URL has two slashes, as s3://bucket/folder."
    return UserError(f"{source}: no such file or folder", hint=hint)


def read_text(path: str | Path, *, hint: str = "Give a file that is there.") -> str:
    """A UTF-8 text file, .gz or not, without its byte order mark.

    Args:
        hint: what is expected, where it is absent or no file.
    """
    path = Path(path)
    try:
        # As bytes: reading as text would turn a lone carriage return inside a line into a line's end.
        raw = unpacked(path) if path.suffix.lower() == ".gz" else path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file", hint=hint) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error})", hint="Copy the file again.") from None
    except OSError as error:  # a folder, say, or no permission
        raise UserError(f"{path}: cannot be read ({error.strerror or error})", hint=hint) from None
    return decoded(raw, path)


def unpacked(path: Path) -> bytes:
    """A gzipped file, unpacked part by part."""
    parts, size = [], 0
    with gzip.open(path) as file:
        while part := file.read(PART):
            parts.append(part)
            size += len(part)
            # Joined once more, and once more as text or numbers.
            refuse_more_than_memory(f"{path}: unpacked it has {size:,} bytes and more", 2.0 * size)
    return b"".join(parts)


def decoded(raw: bytes, source: str | Path) -> str:
    """The bytes of a UTF-8 text file as text, without its byte order mark."""
    if b"\0" in raw:
        line = raw[: raw.index(b"\0")].count(b"\n") + 1
        raise UserError(
            f"{source}:{line}: a zero byte: no UTF-8 text", hint="Give UTF-8 text; UTF-16 must be converted first."
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(f"{source}:{line}: not UTF-8 text", hint="Convert the file to UTF-8.") from None


def split_lines(text: str) -> list[str]:
    """The lines of a text file: parted by LF or CRLF alone.

    `str.splitlines` also parts at form feeds and Unicode separators, which stand inside texts: then the n-th output
    would no longer belong to the n-th line that other tools count.

    >>> split_lines("one\\u2028still one\\r\\n\\nthree\\n")
    ['one\\u2028still one', '', 'three']
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if not lines[-1] else lines


LONGEST_CELL = 1 << 28
"""Characters of a cell of a separated file; a longer one is a quote that nobody closed."""
_QUOTED = re.compile(r'"(?:[^"]|"")*"', re.DOTALL)


def encloses(lines: Iterable[str]) -> bool:
    """Whether quotes enclose cells in the lines of a .tsv, as csv writers (pandas, R) have it.

    They do where all cells of the first line stand in quotes, or where a cell that begins and ends with a quote has
    doubled quotes inside, and single ones nowhere: that is how writers spell a quote inside a cell.

    >>> encloses(["text\\tlabel", '"he said ""stop"" twice"\\tgood'])
    True
    >>> encloses(["text\\tlabel", '"Stop," he said.\\tgood', '"Stop it."\\tbad'])
    False
    """
    for number, line in enumerate(lines):
        if '"' not in line:
            continue
        cells = line.rstrip("\r\n").split("\t")
        quoted = [cell for cell in cells if _QUOTED.fullmatch(cell)]
        if (number == 0 and len(quoted) == len(cells)) or any('""' in cell[1:-1] for cell in quoted):
            return True
    return False


def separated(
    lines: Iterable[str], source: object, separator: str, *, quoted: bool = True, strict: bool = True, above: int = 0
) -> Iterator[tuple[int, int, list[str]]]:
    """Rows of a .csv or .tsv: numbers of the first and the last line of each, and its cells; empty lines have none.

    Args:
        lines: parted by line ends alone: str.splitlines would also part them at form feeds and Unicode separators.
        source: what errors call it.
        quoted: quotes enclose cells.
        strict: text behind a closing quote is an error, not a part of the cell.
        above: lines of the source before these.
    """
    csv.field_size_limit(LONGEST_CELL)
    quoting: Any = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=separator, quoting=quoting, strict=strict)
    first = 1
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            spans = f" to {above + reader.line_num}" if reader.line_num > first else ""
            raise UserError(
                f"{source}:{above + first}{spans}: {_plain(str(error))}",
                hint='Is a quote left open there? A quote inside a quoted cell is written twice ("").',
            ) from None
        if cells is None:
            return
        yield above + first, above + reader.line_num, cells
        first = reader.line_num + 1


def _plain(error: str) -> str:
    if "unexpected end" in error:
        return "a quote opens a cell and nothing closes it"
    if "expected after" in error:
        return "text follows a closing quote"
    return error


def fsync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fingerprint(path: Path) -> list[int]:
    """Size and CRC-32 of a file."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return [path.stat().st_size, checksum]


def check_files(
    folder: str | Path, written: Mapping[str, Sequence[int]], *, hint: str, most: int | None = None
) -> None:
    """Compare files with what was noted when they were written.

    Args:
        written: name in the folder -> `fingerprint`.
        most: bytes that are read through to know their CRC-32: all of the small files, and of the large ones some,
            evenly spread; default all. The size of every file is compared.
    """
    by_size = sorted(written, key=lambda name: int(written[name][0]))
    total = sum(int(written[name][0]) for name in by_size)
    small = [name for name in by_size if int(written[name][0]) <= 1 << 20]
    large = by_size[len(small) :]
    read = {*small, *large[:: 1 if most is None else max(1, -(-total // most))]}
    for name in by_size:
        file = Path(folder) / name
        if not file.is_file():
            raise UserError(f"{file}: missing", hint=hint)
        size = file.stat().st_size
        if size != written[name][0]:
            raise UserError(f"{file}: {size:,} bytes, {written[name][0]:,} were written", hint=hint)
        if name in read and fingerprint(file) != list(written[name]):
            raise UserError(f"{file}: altered since it was written", hint=hint)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """JSON with a CRC-32 of all else in it, for `unsealed`."""
    return {**content, "crc32": zlib.crc32(json.dumps(content).encode())}


def unsealed(content: dict[str, Any], path: Path, *, hint: str) -> dict[str, Any]:
    """What was `sealed`; that of a version which wrote no CRC-32 is taken without it."""
    rest = {key: value for key, value in content.items() if key != "crc32"}
    if "crc32" in content and content["crc32"] != zlib.crc32(json.dumps(rest).encode()):
        raise UserError(f"{path}: altered since it was written", hint=hint)
    return rest


def check_weights(folder: str | Path, about: Mapping[str, Any]) -> None:
    """Compare the weights of a model folder with what its unmask.json notes of them, those that are there.

    Args:
        about: contents of unmask.json; without "files" nothing is compared.
    """
    hint = 'Copy the folder again; if the weights were changed on purpose, remove "files" from its unmask.json.'
    written = about.get("files", {})
    try:
        there = {name: known for name, known in written.items() if (Path(folder) / name).is_file()}
        check_files(folder, there, hint=hint)
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError):
        raise UserError(f"{folder}/unmask.json: files {written!r}", hint=hint) from None


def read_json(path: str | Path) -> Any:
    """What a JSON file holds; None where there is no file."""
    path = Path(path)
    try:
        if not os.path.lexists(path):
            return None
        if not path.is_file():  # opening a pipe would wait for somebody to write into it
            raise UserError(f"{path}: not a plain file", hint="Copy the file again.")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", hint="Copy the file again.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({str(error).splitlines()[0]})", hint="Copy the file again.") from None


def read_object(path: str | Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is no file."""
    found = read_json(path)
    if found is not None and not isinstance(found, dict):
        raise UserError(f"{path}: {type(found).__name__} in it, not an object", hint="Copy the file again.")
    return found


@contextlib.contextmanager
def damaged(folder: str | Path) -> Iterator[None]:
    """Within, a folder's files are put together: what does not go together is the folder's fault, not the program's."""
    try:
        yield
    except (UserError, ImportError):
        raise
    except Exception as error:  # safetensors has one of its own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        what = f"no {reason}" if isinstance(error, KeyError) else reason
        raise UserError(f"{folder}: damaged ({what[:200]})", hint="Copy the folder again.") from error


def files_below(folder: str | Path, *, hidden: list[Path] | None = None) -> list[Path]:
    """All files in a folder and those below it, sorted; links to folders are followed, and no folder twice.

    Args:
        hidden: where given, files and folders whose names begin with a dot are put here, and not looked into.
    """
    found: list[Path] = []
    seen: set[str] = set()
    for here, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        if hidden is not None:
            hidden += (Path(here, name) for name in (*folders, *files) if name.startswith("."))
            folders[:] = [name for name in folders if not name.startswith(".")]
            files = [name for name in files if not name.startswith(".")]
        folders.sort()
        found += (Path(here, name) for name in files)
    return sorted(found)


def are_files(data: Any) -> bool:
    """Whether data are files, none or many: a list of paths, a folder, or a pattern; not one file."""
    if isinstance(data, str | Path):
        return os.path.isdir(data) or (glob.has_magic(str(data)) and not os.path.exists(data))
    return isinstance(data, list | tuple) and len(data) > 0 and all(isinstance(one, str | Path) for one in data)


def check_place(path: str | Path) -> Path:
    """A file's path, if its folder is there: asked before long work whose result goes there."""
    path = Path(path)
    if str(path) == "-":
        raise UserError("-: this is not written to standard output", hint="Give the name of a file to write.")
    if path.is_dir():
        raise UserError(f"{path}: a folder", hint="Give the name of a file to write.")
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist", hint="Create it first.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"{path}: no permission to write in {path.parent}", hint="Choose another place.")
    return path


def check_results(results: Iterable[str | Path | None], sources: Iterable[str | Path | None]) -> None:
    """Places of results, before long work: each can be written, and none is what is read, or the place of another
    result.

    Args:
        results: None is passed over.
        sources: files, folders, patterns, or anything else (a text, None), which is passed over. No file in a folder
            that is read is written over.
    """
    read = [found for p in sources if p is not None for found in _found(p)]
    folders = [Path(p).resolve() for p in read if os.path.isdir(p)]
    seen: set[Path] = set()
    for place in (check_place(p) for p in results if p is not None):
        inside = any(folder in place.resolve().parents for folder in folders)
        if os.path.exists(place) and (inside or any(os.path.samefile(place, p) for p in read)):
            raise UserError(f"{place} is a file that is read", hint="Choose another place; the original is kept.")
        if place.resolve() in seen:
            raise UserError(f"{place}: two results in one file", hint="Give each a file of its own.")
        seen.add(place.resolve())


def _found(source: str | Path) -> list[str]:
    """The files and folders that a person names: by name, or by a pattern."""
    name = str(source)
    if os.path.exists(name):
        return [name]
    return glob.glob(name, recursive=True) if glob.has_magic(name) and name.split() == [name] else []


def check_folder(folder: str | Path) -> Path:
    """A folder's path, if it is one or can be made one: asked before long work whose results go there."""
    folder = Path(folder)
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.exists(place))
    if not there.is_dir():
        raise UserError(f"{folder}: {there} is not a folder", hint=f"Choose another {option('out')}.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: no permission to write in {there}", hint=f"Choose another {option('out')}.")
    return folder


def check_new_model(folder: str | Path) -> Path:
    """`check_folder`, of a folder for a new model: it holds none yet."""
    folder = check_folder(folder)
    if (folder / "config.json").exists() or (folder / "unmask.json").exists():
        raise UserError(f"{folder} already holds a model", hint=f"Choose another {option('out')}, or remove it.")
    return folder


def check_room(folder: Path, size: float, *, what: str, hint: str) -> None:
    """Refuse to begin what the disk has no room for."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise UserError(f"{folder}: {what} take {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free", hint=hint)


def json_text(content: Any, **options: Any) -> str:
    """JSON as people read it, but for half surrogate pairs, which JSON can spell and UTF-8 cannot: those are spelled.

    Args:
        options: of `json.dumps`.
    """
    text = json.dumps(content, ensure_ascii=False, **options)
    return json.dumps(content, **options) if any("\ud800" <= c <= "\udfff" for c in text) else text
