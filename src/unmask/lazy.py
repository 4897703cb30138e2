"""Names of a module that are imported when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from unmask.plugins import resolve


def lazily(module: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a module that passes on names from elsewhere.

    Args:
        module: its name.
        homes: name -> "package.module:name" of where it is.
    """

    def get(name: str) -> Any:
        if name in homes:
            return resolve(homes[name])
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get, lambda: sorted(homes), sorted(homes)
