"""Items of a task made into examples of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from unmask.core.batch import Example


@dataclass
class Prepared:
    """Items made into examples.

    Attributes:
        items: as read.
        examples: one or more per item, in the items' order.
        groups: for each item the numbers of its examples; a step takes whole items.
        extra: whatever the task remembers about them (targets, windows).
    """

    items: Sequence[Any]
    examples: list[Example]
    groups: list[list[int]]
    extra: dict[str, Any] = field(default_factory=dict)
