"""The one way in which files and folders are written: checked before the work, locked, whole or not at all, private."""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import inspect
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, ParamSpec, TypeVar

from unmask.errors import UserError, option
from unmask.files import check_folder, check_new_model, check_place, fingerprint, fsync, json_text, read_object

P = ParamSpec("P")
R = TypeVar("R")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A hidden name beside `path`, of the same suffix; after the block what was written there stands at `path`, whole.

    A new file is for its owner alone; one that is replaced keeps its mode. Several processes may write the same file.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        fsync(temporary)
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o600)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):  # on a disk that is read only by now nothing can be removed
            remove(temporary)


def temporary_name(path: Path) -> Path:
    """A hidden name beside `path` for what is not whole yet. What processes of this machine that have ended left there
    is removed: a killed process leaves no half of a table of patients."""
    return path.with_name(_own_name(path.parent, f".{path.stem.lstrip('.')}", f".new{path.suffix}"))


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder among the system's temporary files. What processes that have ended left there is removed, as by
    `temporary_name`."""
    return tempfile.TemporaryDirectory(prefix=_own_name(Path(tempfile.gettempdir()), "unmask", "."))


def _own_name(folder: Path, begin: str, end: str) -> str:
    """A name that no other process has; what others that have ended left under such is removed."""
    remove_left(folder, glob.escape(begin), glob.escape(end))
    return f"{begin}.{_machine()}-{os.getpid()}{end}"


def remove_left(folder: Path, begin: str = ".*", end: str = ".new") -> None:
    """Remove what was on its way in a folder when the process of this machine that wrote it ended.

    Args:
        begin, end: of its name, around machine and process, as patterns; default any file or folder on its way.
    """
    for left in folder.glob(f"{begin}.{_machine()}-*{end}*"):
        number = left.name.partition(f".{_machine()}-")[2].partition(".")[0]
        if number.isdigit() and not _runs(int(number)):
            with contextlib.suppress(OSError):
                remove(left)


def _machine() -> str:
    return re.sub(r"[^\w-]", "-", socket.gethostname())


def _runs(process: int) -> bool:
    """Whether a process of this machine is alive."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def written(path: str | Path) -> Iterator[Path]:
    """A place to write a file, of the same suffix; after the block the file stands at `path`, whole or not at all."""
    path = check_place(path)
    try:
        with replacing(path) as temporary:
            yield temporary
    except Exception as error:
        if not is_disk_error(error):
            raise
        raise _not_written(path, error) from None


def _not_written(path: Path, error: BaseException) -> UserError:
    reason = getattr(error, "strerror", None) or error
    return UserError(f"{path}: cannot be written ({reason})", hint="Free space, or choose another place.")


def is_disk_error(error: BaseException) -> bool:
    """Whether a file could not be written, also where safetensors or polars say so (by errors of their own)."""
    return isinstance(error, OSError) or type(error).__name__ == "SafetensorError" or "(os error " in str(error)


LOCK = ".lock"
"""In a folder that a process writes into; gone when it is done."""
_held: set[Path] = set()
_of_threads: dict[Path, Any] = {}
"""Path of a lock -> the one between threads of this process, which record locks do not know apart."""


@contextlib.contextmanager
def locked(path: str | Path, *, wait: Callable[[str], None] | None = None, busy: str) -> Iterator[None]:
    """Within, no other process of this machine, and no other thread of this one, holds the same lock. It is gone with
    its process, however that ends.

    A thread that holds it may take it again. Processes that it starts do not inherit it (a record lock).

    Args:
        path: of the lock's file, made where it is not there, and removed at the end.
        wait: called with who holds the lock; then this process waits. None: it does not wait.
        busy: what is going on there, for the message.
    """
    path = Path(path).absolute()
    thread_lock = _of_threads.setdefault(path, threading.RLock())
    if not thread_lock.acquire(blocking=False):
        if wait is None:
            raise _busy(path, f"process {os.getpid()}", busy)
        wait(f"{path.parent}: another thread {busy}; waiting for it")
        thread_lock.acquire()
    try:
        if path in _held:
            yield
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = _lock(path, wait, busy)
        except OSError as error:
            raise _not_written(path.parent, error) from None
        _held.add(path)
        try:
            yield
        finally:
            _held.discard(path)
            if file is not None:
                with contextlib.suppress(OSError):  # removed while it is held: who waits for it looks for it anew
                    path.unlink(missing_ok=True)
                file.close()
    finally:
        thread_lock.release()


def _busy(path: Path, holder: str, busy: str) -> UserError:
    return UserError(f"{path.parent}: {holder} {busy}", hint="Wait until it has ended, or choose another folder.")


def _lock(path: Path, wait: Callable[[str], None] | None, busy: str) -> IO[str] | None:
    """The lock's file, locked; None on a system or a disk without locks."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return None
    while True:
        file = path.open("a+")
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                file.close()
                return None
            file.seek(0)
            holder = file.read().strip() or "another process"
            if wait is None:
                file.close()
                raise _busy(path, holder, busy) from None
            wait(f"{path.parent}: {holder} {busy}; waiting for it")
            fcntl.lockf(file, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                file.write(f"process {os.getpid()}")
                file.flush()
                return file
        file.close()


def first_of_all() -> bool:
    """Whether this process prints messages and writes models: of several of a launcher (torchrun) the first does."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def own_folder(folder: str | Path, *, busy: str = "writes a model there") -> Iterator[Path]:
    """Within, this process alone writes into a folder, which is made for its owner alone where it is not there; of
    several processes of a launcher the first.

    A folder that was made and in which nothing was written is removed.
    """
    folder = check_folder(folder)
    if not first_of_all():
        yield folder
        return
    made = not folder.exists()
    try:
        with contextlib.ExitStack() as held:
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise UserError(
                    f"{folder}: cannot be made ({error.strerror or error})", hint=f"Choose another {option('out')}."
                ) from None
            held.enter_context(locked(folder / LOCK, busy=busy))
            yield folder
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        raise _not_written(folder, error) from None
    finally:
        if made:
            with contextlib.suppress(OSError):  # something is in it
                folder.rmdir()


@contextlib.contextmanager
def new_model(folder: str | Path) -> Iterator[Path]:
    """`own_folder` of a folder that holds no model yet: around all the work whose result goes there."""
    with own_folder(folder) as place:
        try:
            check_new_model(place)
        except UserError:
            with contextlib.suppress(OSError):
                remove(training_folder(place))
            raise
        yield place


def training_folder(out: Path) -> Path:
    """Where a fine-tuning keeps its checkpoints until its model stands in `out`."""
    return out.with_name(f".{out.name}.training")


def filling_folder(out: Path) -> Path:
    """Where the filled files of a table lie until all are there and stand in `out`."""
    return out.absolute().with_name(f".{out.absolute().name}.filling")


def replace_folder(new: Path, folder: Path) -> None:
    """A folder that is written whole takes the place of another, which stands beside it as NAME.replaced for the moment
    between two renames."""
    for path in (*new.iterdir(), new):
        fsync(path)
    replaced = folder.with_name(f"{folder.name}.replaced")
    if folder.exists():  # a folder cannot be renamed onto another
        remove(replaced)
        folder.rename(replaced)
    new.rename(folder)
    fsync(folder.parent)
    with contextlib.suppress(OSError):
        remove(replaced)


def replace_json(path: Path, content: Any) -> None:
    """Write JSON in place of what is there; after a crash the one or the other stands there, whole."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content), encoding="utf-8")
    fsync(path.parent)


def write_json_lines(rows: Iterable[Mapping[str, Any]], path: str | Path) -> int:
    """One JSON object per line, as they come, the file whole or not at all; how many."""
    count = 0
    with written(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for count, row in enumerate(rows, start=1):  # noqa: B007 - the last one is the count
            file.write(json_text(row) + "\n")
    return count


_FINAL: ContextVar[Mapping[Path, Path]] = ContextVar("final places", default=MappingProxyType({}))


@contextlib.contextmanager
def in_place_of(new: str | Path, folder: str | Path) -> Iterator[None]:
    """Within, `new` is where the files of `folder` are written before they are brought there."""
    token = _FINAL.set({**_FINAL.get(), Path(new).absolute(): Path(folder)})
    try:
        yield
    finally:
        _FINAL.reset(token)


def final_place(path: str | Path) -> Path:
    """Where a folder that is written now will stand: itself, but within `in_place_of` that of a folder on the way.

    >>> with in_place_of("/tmp/.new", "/tmp/model"):
    ...     final_place("/tmp/.new").name
    'model'
    """
    path, known = Path(path), _FINAL.get()
    for _ in known:
        path = known.get(path.absolute(), path)
    return path


def check_absent(folder: str | Path) -> Path:
    """A folder's path, if nothing is there but what a killed process may have left of it: its lock."""
    folder = Path(folder)
    if folder.exists() and not (folder.is_dir() and _is_empty(folder)):
        raise UserError(f"{folder}: exists", hint=f"Choose another {option('out')}, or remove it.")
    return folder


def _is_empty(folder: Path) -> bool:
    return all(path.name == LOCK for path in folder.iterdir())


def writes_model(function: Callable[P, R]) -> Callable[P, R]:
    """Of a function whose result goes to its argument `out` (a folder; None: nowhere): all of it within `new_model`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def within(*args: P.args, **kwargs: P.kwargs) -> R:
        out = signature.bind(*args, **kwargs).arguments.get("out")
        with contextlib.nullcontext() if out is None else new_model(out):
            return function(*args, **kwargs)

    return within


def makes_folder(function: Callable[P, R]) -> Callable[P, R]:
    """Of a verb that makes a model of its argument `data` in the folder `out`.

    Where `out` is left out it is a temporary folder, which lives as long as what the verb returns. What stands in its
    place and is no path are the labels of the data, as scikit-learn has X and y.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def within(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs)
        out = given.arguments.get("out")
        if isinstance(out, str | os.PathLike):
            return function(*given.args, **given.kwargs)
        if out is not None:
            given.arguments["data"] = (given.arguments["data"], out)
        folder = temporary_folder()
        given.arguments["out"] = Path(folder.name) / "model"
        made = function(*given.args, **given.kwargs)
        weakref.finalize(made, folder.cleanup)
        return made

    return with_labels(within)


def with_labels(function: Callable[P, R]) -> Callable[P, R]:
    """Of a verb with arguments `data` and `out`: labels may stand behind the data, as in X and y, and `out` then by
    name or behind them."""
    place = list(inspect.signature(function).parameters).index("out")

    @functools.wraps(function)
    def paired(*args: Any, **kwargs: Any) -> R:
        if len(args) > place and ("out" in kwargs or len(args) > place + 1):
            args = (*args[: place - 1], args[place - 1 : place + 1], *args[place + 1 :])
        return function(*args, **kwargs)

    paired.takes_labels = True  # type: ignore[attr-defined]
    return paired


@contextlib.contextmanager
def written_folder(folder: str | Path) -> Iterator[Path]:
    """A folder to write a model's files into; after the block they stand in `folder`.

    A new folder appears by one rename, for its owner alone. In one that exists one rename says that all files are
    there, whole; then they are renamed one by one, which who reads or writes there next brings to an end
    (`brought_to_an_end`) where it was cut. Its other files stay. What other processes of a launcher than the first
    write goes nowhere.
    """
    folder = Path(folder)
    if not first_of_all():
        with temporary_folder() as nowhere:
            yield Path(nowhere)
        return
    with own_folder(folder):
        fresh = _is_empty(folder) and os.access(folder.parent, os.W_OK)
        new = temporary_name(folder) if fresh else folder / ".saving"
        try:
            _bring(folder)
            remove(new)
            new.mkdir(mode=0o700)
            with in_place_of(new, folder):
                yield new
            note_weights(new)
            mode = stat.S_IMODE(folder.stat().st_mode)
            for path in new.iterdir():
                path.chmod(mode if path.is_dir() else mode & 0o666)
            for path in (*new.rglob("*"), new):
                fsync(path)
            if fresh:
                new.chmod(mode)
                remove(folder / LOCK)
                os.rename(new, folder)  # onto an empty folder
                return
            os.replace(new, folder / SAVED)
            fsync(folder)
            _bring(folder)
        except Exception as error:
            if not is_disk_error(error):
                raise
            raise _not_written(folder, error) from None
        finally:
            with contextlib.suppress(OSError):
                remove(new)


SAVED = ".saved"
"""In a folder with a model, the files of another that are to take the place of its own: written, whole."""


def brought_to_an_end(folder: Path) -> None:
    """Bring to its place what a process that was ended had written whole into a folder (`written_folder`)."""
    if (folder / SAVED).is_dir():
        with own_folder(folder):
            try:
                _bring(folder)
            except OSError as error:
                raise UserError(
                    f"{folder}: a model that was saved there could not be brought to its place ({error.strerror})",
                    hint="Free space, or load it once where the folder can be written.",
                ) from None


def _bring(folder: Path) -> None:
    saved = folder / SAVED
    if saved.is_dir():
        for path in sorted(saved.iterdir()):
            if path.is_dir():
                remove(folder / path.name)
            os.replace(path, folder / path.name)
        saved.rmdir()


def note_weights(folder: Path) -> None:
    """Note size and CRC-32 of a model folder's weights in its unmask.json, where it has one; `check_weights` compares
    them."""
    about = read_object(folder / "unmask.json")
    if about is not None:
        about["files"] = {path.name: fingerprint(path) for path in sorted(folder.glob("*.safetensors"))}
        (folder / "unmask.json").write_text(json_text(about), encoding="utf-8")


def demo_folder(out: str | Path) -> Path:
    """An empty folder for a demo; that of an earlier demo is emptied."""
    out = check_folder(out)
    if out.exists():
        if not (out / "demo.json").exists() and any(out.iterdir()):
            raise UserError(f"{out} exists and is not an earlier demo", hint=f"Choose another {option('out')}.")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / "demo.json").write_text("{}")
    return out
