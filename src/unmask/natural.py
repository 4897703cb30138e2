"""The order of names: classes and categories are listed alike in every room."""

from __future__ import annotations

import math


def natural(name: str) -> tuple[int, float, str]:
    """Sort key: numbers by value, before texts ("nan" is a text: it has no place among numbers)."""
    try:
        number = float(name)
    except ValueError:
        number = math.nan
    return (1, 0.0, name) if math.isnan(number) else (0, number, name)
