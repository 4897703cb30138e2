"""What one request, and all waiting ones together, may take."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unmask.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a server; what goes beyond is refused with an answer that says so.

    Args:
        body: bytes of a request (413).
        items: texts, rows, pictures or patients per request (400).
        characters: of all texts of a request (400): they are counted before they are tokenised.
        slots: tokens (or cells, patches, events) per request (400).
        waiting: requests that wait or are worked on, of all models together (429).
        waiting_bytes: of their bodies, together (429).
        seconds: until an answer (504).
        receive: seconds until a request has arrived whole (408).
        ready: seconds until each model answers a request of its own, when `/ready` is called (503).
        headers: bytes of the headers of a request (431).
        send: seconds in which nothing of an answer is taken, until its connection is closed.
        connections: open at once; another one takes the place of an idle one (503 where none is idle).
        per_address: of them from one address.
        pixels: of a picture, before it is decoded (400).
        draws: completed tables, or synthetic rows in thousands, per request (400).
    """

    body: int = 16 << 20
    items: int = 1024
    characters: int = 4_000_000
    slots: int = 1 << 18
    waiting: int = 512
    waiting_bytes: int = 256 << 20
    seconds: float = 60.0
    receive: float = 20.0
    send: float = 20.0
    ready: float = 5.0
    headers: int = 32 << 10
    connections: int = 1024
    per_address: int = 512
    pixels: int = 40_000_000
    draws: int = 100

    @property
    def values(self) -> int:
        """Keys and values of JSON per request (400), counted before they are read: of each slot at most four, as an
        event has them."""
        return 4 * self.slots


class Refusal(UserError):
    """A request that the server does not answer as asked.

    Args:
        status: of HTTP.
        what, hint: as `UserError` has them.
        wait: seconds after which it may be asked again, for the header Retry-After.
    """

    def __init__(self, status: int, what: str, *, hint: str = "", wait: float | None = None) -> None:
        super().__init__(what, hint=hint)
        self.status, self.wait = status, wait

    @property
    def headers(self) -> dict[str, str]:
        """Of the answer, besides those of every JSON."""
        return {} if self.wait is None else {"retry-after": str(max(1, math.ceil(self.wait)))}


def in_words_of_kserve(error: Mapping[str, Any]) -> dict[str, Any]:
    """The same as KServe's V2 says it."""
    return {"error": error["message"]}


def in_words_of_tei(error: Mapping[str, Any]) -> dict[str, Any]:
    """The same as text-embeddings-inference says it, whose clients show a text: {"error", "error_type"}.

    Args:
        error: of the body of a `Reply` that says what is wrong.
    """
    kinds = {429: "Overloaded", 503: "Unhealthy"}
    return {
        "error": error["message"],
        "error_type": kinds.get(error["status"], "Backend" if error["status"] >= 500 else "Validation"),
    }
