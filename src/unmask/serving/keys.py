"""API keys, and which pages may ask: who is answered."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from unmask.errors import UserError
from unmask.serving.limits import Refusal

SHORTEST = 16
LOOPBACK = ("localhost", "127.0.0.1", "::1")
MAKE = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
ORIGIN = re.compile(r"https?://[^/\s]+")


class Keys:
    """The keys of a file, one per line; empty lines and those that begin with # are passed over."""

    def __init__(self, path: str | Path) -> None:
        try:
            lines = [line.strip() for line in Path(path).read_text(encoding="utf-8-sig").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise UserError(f"{path}: {reason}", hint="Give a file with one key per line.") from None
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise UserError(f"{path}: no key in it", hint=f"One key per line, such as those of: {MAKE}")
        short = next((n for n, line in enumerate(lines, 1) if line in keys and len(line) < SHORTEST), 0)
        if short:
            raise UserError(
                f"{path}:{short}: a key of fewer than {SHORTEST} characters", hint=f"Take a longer one: {MAKE}"
            )
        self._digests = [_digest(key.encode()) for key in keys]

    def check(self, authorization: bytes) -> None:
        """Refuse a header that is not 'Bearer KEY' of one of these, in a time that does not tell how much was right."""
        kind, _, key = authorization.partition(b" ")
        given, right = _digest(key.strip()), False
        for known in self._digests:
            right |= hmac.compare_digest(given, known)
        if not right or kind.lower() != b"bearer":
            raise Refusal(
                401, "no key, or one that is not known here", hint="Send the header 'Authorization: Bearer KEY'."
            )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def check_origin(headers: Mapping[bytes, bytes], *, own: str, allowed: Sequence[str]) -> None:
    """Refuse what other web pages send: a browser says where a page is from, and under which name it found this server.

    A page whose name is made to mean this server's address (DNS rebinding) asks under that name. So a server has the
    names of this machine's loopback, the one that it listens on, and those of the origins that may ask; an address is
    no name, and always right.

    Args:
        own: host that it listens on.
        allowed: origins that may ask (`--cors`); '*' for all.
    """
    host = headers.get(b"host", b"").decode("latin-1")
    name = _without_port(host)
    known = {*LOOPBACK, own.lower(), *(_without_port(_host(one)).lower() for one in allowed)}
    if host and not {name, "*"} & known and not _is_address(name):
        raise Refusal(
            403,
            f"asked as {name[:60]!r}",
            hint="Ask it by its address. Behind a proxy, or under another name, whoever starts it names that origin as "
            "one that may ask.",
        )
    origin = headers.get(b"origin")
    if origin is not None and _host(page := origin.decode("latin-1")) != host and not {"*", page} & set(allowed):
        raise Refusal(
            403,
            "asked by a page of another origin",
            hint="Whoever starts the server names the origins that may ask.",
        )


def _is_address(name: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False


def check_origins(allowed: Sequence[str]) -> None:
    """Refuse what no browser would send as an origin."""
    for origin in allowed:
        if origin != "*" and not ORIGIN.fullmatch(origin):
            raise UserError(
                f"{origin!r} is no origin of pages that may ask",
                hint="Expected https://NAME or https://NAME:PORT, without a path; or *.",
            )


def _host(origin: str) -> str:
    """NAME:PORT of an origin; '*' as it is."""
    return origin.partition("://")[2] or origin


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    return (name if port.isdigit() else host).strip("[]").lower()
