"""Whether a config that was read from a file can be: every number of its kind and of a size that models have."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from typing import Any

from unmask.errors import UserError

LARGEST = 2**27
"""Of all whole numbers of a config: widths, layers, slots. What is larger is damage."""


def check(config: Any, where: str = "") -> None:
    """Check the types and sizes of a config's fields, and of the configs in it."""
    for name, kind in typing.get_type_hints(type(config)).items():
        value, place = getattr(config, name), f"{where}{name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            check(value, f"{place}.")
        if not _fits(value, kind):
            raise UserError(f"{place}={value!r} cannot be", hint="Check config.json and unmask.json.")


def _fits(value: Any, kind: Any) -> bool:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, k) for k in typing.get_args(kind))
    if origin is typing.Literal:
        return any(type(value) is type(k) and value == k for k in typing.get_args(kind))
    if origin is tuple:
        inner = typing.get_args(kind)
        return isinstance(value, tuple) and all(_fits(v, inner[0]) for v in value)
    if kind is bool or kind is types.NoneType:
        return isinstance(value, kind)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    return isinstance(value, kind) if isinstance(kind, type) else True
