"""Columns with a single value and empty cells: the user must say what an empty cell means, as the table cannot.

In a tick box an empty cell means no; elsewhere the true value is unknown. Treated as missing, every empty cell would be
filled with the one value that the column has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.given import no_value
from unmask.modalities.table.reading.findings import Finding, setting, toml_text
from unmask.modalities.table.reading.parse import is_missing, numbers, text_of
from unmask.modalities.table.schema.survival_pair import CODINGS, spelled

TICKS = frozenset({"x", "+", "✓", "✔", "☑", "☒", "si", "sí", "sim", "1", "true", "t", "yes", "y", "ja", "j", "oui"})
"""Texts in small letters that tick a box; several of them in one column are one value still."""
_NO = {"x": "no"} | {happened: censored for censored, happened in reversed(CODINGS[:8])}
"""What is written where the box is not ticked."""


def with_blanks(raw: np.ndarray, blank: str | None, own: Sequence[str] = (), name: str = "") -> np.ndarray:
    """Raw cells with those that hold no value replaced by what they mean.

    Args:
        blank: what they mean; None: nothing is known of them.
        own: spellings of a missing value that a person gave, which stay missing.

    >>> with_blanks(np.array(["x", None, "NA", " "], object), "no").tolist()
    ['x', 'no', 'no', 'no']
    """
    if blank is None:
        return raw
    if raw.dtype.kind == "f":
        try:
            value: Any = float(blank)
        except ValueError:
            raise _misfit(name, blank, "numbers", "0") from None
        return np.where(blank_cells(raw, blank, own), value, raw)
    empty = blank_cells(raw, blank, own)
    example = next((v for v in raw[~empty] if not no_value(v)), None)
    value = blank
    if isinstance(example, bool | np.bool_):
        if blank.lower() not in ("true", "false"):
            raise _misfit(name, blank, "true and false", "False")
        value = blank.lower() == "true"
    out = raw.astype(object)
    out[empty] = value
    return out


def blank_cells(raw: np.ndarray, blank: str | None, own: Sequence[str]) -> np.ndarray:
    """Which cells of a column mean something though they hold nothing; see `with_blanks`."""
    return np.zeros(len(raw), bool) if blank is None else is_missing(raw) & ~_spelt(raw, own)


def blank_notes(name: str, raw: np.ndarray, blank: str | None, own: Sequence[str]) -> list[str]:
    """A sentence on these cells, where there are any."""
    count = int(blank_cells(raw, blank, own).sum())
    return [f"{name!r}: {count} empty cells are {blank!r}, as the schema says"] if count else []


def _misfit(name: str, blank: str, what: str, example: str) -> UserError:
    return UserError(
        f"column {name!r}: blank = {blank!r} in a column of {what}", hint=f"Write blank = {toml_text(example)}."
    )


def _spelt(raw: np.ndarray, own: Sequence[str]) -> np.ndarray:
    """Cells that hold a spelling which a person gave; "" for empty ones."""
    known = {text_of(t).lower() for t in own}
    return np.array([("" if no_value(v) else text_of(v).lower()) in known for v in raw.tolist()], bool)


def unexplained(
    name: str, raw: np.ndarray, empty: np.ndarray, texts: Sequence[str], own: Sequence[str], *, quantity: bool = False
) -> list[Finding]:
    """An error where a column holds one value, other cells none, and the schema does not say what these mean.

    Args:
        raw, gone: its cells, and which of them hold no value.
        texts: its distinct values.
        own: spellings of a missing value that a person gave.
        quantity: its values are numbers or dates, of which 1 alone ticks a box.
    """
    values = {" ".join(t.split()).casefold() for t in texts}
    one_value = len(values) == 1 or (bool(values) and values <= TICKS)
    if not one_value or (quantity and values != {"1"}) or values <= set(_NO.values()) or _spelt(raw[empty], own).all():
        return []
    held = int((~empty).sum())
    other = "no" if numbers(np.array(texts, object))[1].any() else "0"
    no = spelled(_NO.get(min(values), other), texts[0])
    no, unknown = setting(name, f"blank = {toml_text(no)}"), setting(name, 'missing = [""]')
    text = (
        f"column {name!r} holds {', '.join(map(repr, texts))} in {held} of {len(raw)} rows, and no value in "
        "the others: an empty cell may mean no, as in a tick box, or that nobody knows"
    )
    add = (
        f"If it means no: {no}. If nobody knows, and all are to be imputed as {texts[0]!r}: {unknown}. "
        'kind = "text" leaves the column out.'
    )
    return [Finding("error", name, "tick_box", text, add)]
