"""What every room that reads or writes files needs."""

from __future__ import annotations

import contextlib
import errno
import glob
import gzip
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any

from unmask.errors import UserError, option


def read_text(path: str | Path, *, hint: str = "Give a file that is there.") -> str:
    """A UTF-8 text file, .gz or not, without its byte order mark.

    Args:
        hint: what is expected, where it is absent or no file.

    Raises:
        UserError: it is absent, a folder, may not be read, a broken gzip, not UTF-8, or holds a zero byte.
    """
    path = Path(path)
    try:
        # As bytes: reading as text would turn a lone carriage return inside a line into a line's end.
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.suffix.lower() == ".gz" else raw
    except FileNotFoundError:
        raise UserError(f"{path}: no such file", hint=hint) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({error})", hint="Copy the file again.") from None
    except OSError as error:  # a folder, say, or no permission
        raise UserError(f"{path}: cannot be read ({error.strerror or error})", hint=hint) from None
    return decoded(raw, path)


def decoded(raw: bytes, source: str | Path) -> str:
    """The bytes of a UTF-8 text file as text, without its byte order mark.

    Raises:
        UserError: naming the source and the line of what is not UTF-8, or a zero byte.
    """
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


def fsync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: str | Path) -> Any:
    """What a JSON file holds; None where there is no file.

    Raises:
        UserError: it is no plain file (a folder, a broken link, a pipe), cannot be read, or is not JSON.
    """
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
    """The JSON object in a file; None where there is no file.

    Raises:
        UserError: as `read_json`, or it holds something else than an object.
    """
    found = read_json(path)
    if found is not None and not isinstance(found, dict):
        raise UserError(f"{path}: {type(found).__name__} in it, not an object", hint="Copy the file again.")
    return found


@contextlib.contextmanager
def damaged(folder: str | Path) -> Iterator[None]:
    """Within, a folder's files are put together: what does not go together is the folder's fault, not the program's.

    Raises:
        UserError: for whatever went wrong, with the first line of it.
    """
    try:
        yield
    except (
        OSError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RuntimeError,
        MemoryError,
    ) as error:
        said = (str(error) or type(error).__name__).splitlines()[0]
        what = f"no {said}" if isinstance(error, KeyError) else said
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


def check_place(path: str | Path) -> Path:
    """A file's path, if its folder is there: asked before long work whose result goes there.

    Raises:
        UserError: there is no such folder, or the path is a folder itself.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path}: a folder", hint="Give the name of a file to write.")
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist", hint="Create it first.")
    return path


def check_results(results: Iterable[str | Path | None], sources: Iterable[str | Path | None]) -> None:
    """Places of results, before long work: each can be written, and none is what is read, or the place of another
    result.

    Args:
        results: None is passed over.
        sources: files, folders, patterns, or anything else (a text, None), which is passed over. No file in a folder
            that is read is written over.

    Raises:
        UserError: naming the place at fault.
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
    """A folder's path, if it is one or can be made one: asked before long work whose results go there.

    Raises:
        UserError: something else has its name, or that of a folder above it, or nothing may be written there.
    """
    folder = Path(folder)
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.exists(place))
    if not there.is_dir():
        raise UserError(f"{folder}: {there} is not a folder", hint=f"Choose another {option('out')}.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{folder}: no permission to write in {there}", hint=f"Choose another {option('out')}.")
    return folder


def check_new_model(folder: str | Path) -> Path:
    """`check_folder`, of a folder for a new model: it holds none yet.

    Raises:
        UserError: it does, or is no folder that can be written to.
    """
    folder = check_folder(folder)
    if (folder / "config.json").exists() or (folder / "unmask.json").exists():
        raise UserError(f"{folder} already holds a model", hint=f"Choose another {option('out')}, or remove it.")
    return folder


@contextlib.contextmanager
def written(path: str | Path) -> Iterator[Path]:
    """A place to write a file, of the same suffix; after the block the file stands at `path`, whole or not at all.

    Raises:
        UserError: its folder is not there, or it cannot be written; what was there before is untouched.
    """
    path = check_place(path)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.new{path.suffix}")
    try:
        yield temporary
        fsync(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror or error})", hint="Free space, or choose another place."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: str | Path, *, wait: Callable[[str], None] | None = None, busy: str) -> Iterator[None]:
    """Within, no other process of this machine holds the same lock. It is gone with its process, however that ends.

    Args:
        path: of the lock's file, made where it is not there; it stays, empty of meaning.
        wait: told who holds the lock; then this process waits. None: it does not wait.
        busy: what is going on there, for the message.

    Raises:
        UserError: another process holds the lock and `wait` is None.
    """
    try:
        import fcntl
    except ImportError:  # not on Windows: as before there
        yield
        return
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):  # a file system without locks: as before there
                yield
                return
            file.seek(0)
            holder = file.read().strip() or "another process"
            if wait is None:
                raise UserError(
                    f"{path.parent}: {holder} {busy}", hint="Wait until it has ended, or choose another folder."
                ) from None
            wait(f"{path.parent}: {holder} {busy}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield


def check_room(folder: Path, size: float, *, what: str, hint: str) -> None:
    """Refuse to begin what the disk has no room for.

    Raises:
        UserError: fewer than `size` bytes are free where the folder is.
    """
    free = shutil.disk_usage(folder).free
    if size > free:
        raise UserError(f"{folder}: {what} take {size / 1e9:.1f} GB, {free / 1e9:.1f} GB are free", hint=hint)


def replace_json(path: Path, content: Any) -> None:
    """Write JSON in place of what is there; after a crash the one or the other stands there, whole."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    fsync(temporary)
    os.replace(temporary, path)
    fsync(path.parent)


def json_text(content: Any, **options: Any) -> str:
    """JSON as people read it, but for half surrogate pairs, which JSON can spell and UTF-8 cannot: those are spelled.

    Args:
        options: of `json.dumps`.
    """
    text = json.dumps(content, ensure_ascii=False, **options)
    return json.dumps(content, **options) if any("\ud800" <= c <= "\udfff" for c in text) else text


def write_json_lines(rows: Iterable[Mapping[str, Any]], path: str | Path) -> None:
    """One JSON object per line, the file whole or not at all.

    Raises:
        UserError: its folder is not there, or it cannot be written.
    """
    with written(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json_text(row) + "\n")


_FINAL: ContextVar[Mapping[Path, Path]] = ContextVar("final places", default=MappingProxyType({}))


@contextlib.contextmanager
def stands_for(new: str | Path, folder: str | Path) -> Iterator[None]:
    """Within, `new` is where the files of `folder` are written before they are brought there."""
    token = _FINAL.set({**_FINAL.get(), Path(new).absolute(): Path(folder)})
    try:
        yield
    finally:
        _FINAL.reset(token)


def final_place(path: str | Path) -> Path:
    """Where a folder that is written now will stand: itself, but within `stands_for` that of a folder on the way.

    >>> with stands_for("/tmp/.new", "/tmp/model"):
    ...     final_place("/tmp/.new").name
    'model'
    """
    path, known = Path(path), _FINAL.get()
    for _ in known:
        path = known.get(path.absolute(), path)
    return path


@contextlib.contextmanager
def written_folder(folder: str | Path) -> Iterator[Path]:
    """A folder to write a model's files into; after the block they stand in `folder`.

    A new folder appears by one rename. In one that exists the files are renamed one by one, the weights last, so that
    new weights have everything else new beside them; its other files stay.

    Raises:
        UserError: the folder cannot be written; what was there before is untouched.
    """
    from safetensors import SafetensorError

    folder = Path(folder)
    exists = folder.is_dir()
    new = folder / ".saving" if exists else folder.with_name(f".{folder.name}.{os.getpid()}.saving")
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        with stands_for(new, folder):
            yield new
        for path in new.iterdir():
            if path.is_file():  # safetensors' own files are for their owner alone: like those beside them
                path.chmod(new.stat().st_mode & 0o666)
        for path in (*new.iterdir(), new):
            fsync(path)
        if not exists:
            os.rename(new, folder)
            return
        for path in sorted(new.iterdir(), key=lambda p: p.suffix == ".safetensors"):
            os.replace(path, folder / path.name)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{folder}: cannot be written ({reason})", hint="Free space, or choose another folder."
        ) from None
    finally:
        shutil.rmtree(new, ignore_errors=True)


def demo_folder(out: str | Path) -> Path:
    """An empty folder for a demo; that of an earlier demo is emptied.

    Raises:
        UserError: `out` exists and is not an earlier demo, or cannot be made.
    """
    out = check_folder(out)
    if out.exists():
        if not (out / "demo.json").exists() and any(out.iterdir()):
            raise UserError(f"{out} exists and is not an earlier demo", hint=f"Choose another {option('out')}.")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / "demo.json").write_text("{}")
    return out
