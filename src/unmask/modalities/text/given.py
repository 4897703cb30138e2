"""Texts as callers of Python give them: one, or several of any sequence or column of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from unmask.errors import UserError, first_of


def listed(texts: Any, name: str = "texts") -> list[str]:
    """A text, or several, as a list.

    Args:
        name: of the argument, for the message.

    Raises:
        UserError: they are no texts, naming the places of the first that are none.

    >>> listed("one"), listed(("one", "two"))
    (['one'], ['one', 'two'])
    """
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
        raise UserError(f"{name}={texts!r:.60}: no text", hint="Give a text, or a list of texts.")
    found = list(texts)
    if wrong := [f"{name}[{place}] is {one!r:.60}" for place, one in enumerate(found) if not isinstance(one, str)]:
        raise UserError(f"{first_of(wrong)}: no text", hint="Give texts alone; leave out what is missing.")
    return found
