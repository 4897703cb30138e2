"""A user's own selector, named in the settings of any modality: `--set select=package.module:name`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.core.corruption import Ratio, Selector, Slots
from unmask.errors import UserError
from unmask.plugins import resolve


@dataclass(frozen=True, kw_only=True)
class OwnSelector:
    """A selector of somebody else, whose answers are checked.

    Args:
        reference: where it is, for messages.
        select: chooses among slots, as `core.corruption.Selector` says.
    """

    reference: str
    select: Callable[..., Any]

    def __call__(self, slots: Slots, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        chosen = np.asarray(self.select(slots, key=key, progress=progress))
        if chosen.dtype != bool or chosen.shape != slots.flat.shape:
            raise UserError(
                f"select={self.reference}: it gave {chosen.dtype} of shape {chosen.shape}",
                hint=f"Expected one boolean per maskable slot, shape {slots.flat.shape}.",
            )
        return chosen


def own_selector(reference: str, ratio: Ratio) -> Selector:
    """The selector behind "package.module:name": a function of (slots, key=, progress=), or a class of such objects.

    Args:
        ratio: what the settings ask for; a class whose constructor has an argument `ratio` is given it.
    """
    found = resolve(reference)
    if isinstance(found, type):
        found = found(ratio=ratio) if "ratio" in inspect.signature(found).parameters else found()
    if not callable(found):
        raise UserError(
            f"select={reference}: a {type(found).__name__}", hint="Expected a selector, or a class of them."
        )
    return OwnSelector(reference=reference, select=found)
