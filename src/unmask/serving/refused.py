"""Requests that are not answered as asked: one form for all of them, as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from unmask.errors import UserError


class Refused(UserError):
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


def told(error: UserError) -> dict[str, Any]:
    """The body of an answer that says what is wrong: {"error": {"status", "what", "hint", "message"}}. OpenAI's clients
    show `message`, which is both sentences."""
    message = f"{error.what}. {error.hint}".rstrip(" .") + "."
    return {"error": {"status": status_of(error), "what": error.what, "hint": error.hint, "message": message}}


def in_words_of_tei(error: Mapping[str, Any]) -> dict[str, Any]:
    """The same as text-embeddings-inference says it, whose clients show a text: {"error", "error_type"}.

    Args:
        error: of the body of `told`.
    """
    kinds = {429: "Overloaded", 503: "Unhealthy"}
    return {
        "error": error["message"],
        "error_type": kinds.get(error["status"], "Backend" if error["status"] >= 500 else "Validation"),
    }


def status_of(error: UserError) -> int:
    """400 for what a person sent, unless the error says otherwise."""
    return error.status if isinstance(error, Refused) else 400
