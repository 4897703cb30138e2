"""Files at URLs, read as they come: s3://, gs://, hf://, https:// and whatever else fsspec knows.

What reads files here takes a `Path` or a `Remote`, which has the few members that readers use. Credentials and
endpoints are those of the store's own package: environment variables, its files, or fsspec's configuration.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar

from unmask.errors import UserError

R = TypeVar("R")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NEARLY = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)")
_PACKAGES = {"http": "aiohttp", "https": "aiohttp"}
"""What a store needs where that is not the package its class is in."""


def is_url(text: object) -> bool:
    """Whether this is meant for a URL.

    >>> is_url("s3://bucket/a.jsonl"), is_url("a.jsonl"), is_url("hf:org/name")
    (True, False, False)
    """
    return _URL.match(str(text)) is not None


def nearly_url(text: str) -> bool:
    """Whether this is a URL that lacks a slash, as a path that was normalised."""
    return _NEARLY.match(text) is not None and not is_url(text)


def of_hub(name: str, fetch: Callable[[], R]) -> R:
    """What is fetched from the Hugging Face hub, or from what was fetched before."""
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    try:
        return fetch()
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{name}: neither a folder here nor to be had from the hub ({reason})",
            hint="Check the name or the network.",
        ) from None


def check_on_hub(name: str) -> None:
    """Refuse a name that the hub does not know, by one small file: seconds before what loads a model is imported."""
    from huggingface_hub import snapshot_download

    of_hub(name, lambda: snapshot_download(name, allow_patterns=["config.json"]))


@dataclass(frozen=True, slots=True)
class Remote:
    """A file at a URL, with those members of a `Path` that readers use."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the URL, what follows a question mark left out."""
        return PurePosixPath(self.url.partition("?")[0]).name

    @property
    def suffix(self) -> str:
        """The last suffix of the name."""
        return PurePosixPath(self.name).suffix

    def with_suffix(self, suffix: str) -> PurePosixPath:
        """The name with another suffix."""
        return PurePosixPath(self.name).with_suffix(suffix)

    def size(self) -> int | None:
        """Bytes; None where the store does not say."""
        with reading(self.url):
            system, path = _system(self.url)
            size = system.info(path).get("size")
        return None if size is None else int(size)

    def mark(self) -> str:
        """What changes when the file does: the store's own mark of it (ETag, time), its size."""
        with reading(self.url):
            system, path = _system(self.url)
            return f"{system.ukey(path)} {system.info(path).get('size')}"

    def exists(self) -> bool:
        """Whether there is such a file."""
        with reading(self.url):
            system, path = _system(self.url)
            return bool(system.exists(path))

    def __truediv__(self, below: str) -> Remote:
        return Remote(f"{self.url.rstrip('/')}/{below}")

    @contextlib.contextmanager
    def open(self, mode: str = "rb") -> Iterator[IO[bytes]]:
        """The file's bytes, fetched as they are read; not kept."""
        with reading(self.url):
            system, path = _system(self.url)
            opened = system.open(path, mode)
        with opened as file:
            yield file


Place = Path | Remote
"""A file on a disk, or at a URL."""


def place(item: str | Path | Remote) -> Place:
    """What a name stands for."""
    return item if isinstance(item, Remote) else Remote(item) if is_url(item) else Path(item)  # type: ignore[arg-type]


def size_of(where: Place) -> int | None:
    """Bytes of a file; None where its store does not say."""
    return where.size() if isinstance(where, Remote) else where.stat().st_size


def files_at(url: str) -> list[Remote]:
    """The files that a URL names: itself, those below it, or those that match where it is a pattern; sorted."""
    with reading(url):
        system, path = _system(url)
        if any(c in path for c in "*["):
            found = [p for p, about in system.glob(path, detail=True).items() if about.get("type") != "directory"]
        elif system.isfile(path):
            return [Remote(url)]
        else:
            found = list(system.find(path))
        if not found:
            raise FileNotFoundError(url)
        return [Remote(str(system.unstrip_protocol(p))) for p in sorted(map(str, found))]


def shared(url: str) -> bool:
    """Whether other processes see what is at the URL: not what is in this one's memory."""
    return not url.startswith("memory://")


@contextlib.contextmanager
def reading(url: str) -> Iterator[None]:
    """Within, a store is asked; what it refuses is the user's to mend."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError:
        raise UserError(
            f"{url}: no such file or folder", hint="Check the URL, the network, and who may read it."
        ) from None
    except Exception as error:  # each store raises kinds of its own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{url}: cannot be read ({reason[:200]})", hint="Check the URL, the network and the credentials."
        ) from None


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    import fsspec
    from fsspec.registry import known_implementations

    protocol = url.partition("://")[0]
    known = known_implementations.get(protocol)
    if known is None and protocol not in fsspec.registry:
        hint = "Known are s3, gs, az, hf, https, file and others of fsspec."
        raise UserError(f"{url}: no kind of store is called {protocol!r}", hint=hint)
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError:
        package = _PACKAGES.get(protocol) or str((known or {}).get("class", protocol)).partition(".")[0]
        raise UserError(f"{url} needs the package {package}", hint=f"Run: pip install {package}") from None
    return system, str(path)
