"""Ids of subjects and encounters as the whole numbers that MEDS has."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import polars as pl

from unmask.errors import UserError

WHOLE = r"^-?(?:0|[1-9]\d*)(?:\.0+)?$"
"""A whole number, also as a spreadsheet writes it (7.0). With leading zeros it is a text: 007 and 7 may be two people.
"""


@dataclass
class Subjects:
    """Numbers of subjects. Whole numbers stand for themselves; other ids (texts) are numbered in the order they come,
    and memory grows with them.

    Which of the two a source has is decided by the first ids seen: texts where more than half are no whole numbers, or
    one is beyond 64 bits.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    texts: bool | None = None

    def number(self, name: str) -> int:
        """Of one id that is a text."""
        return self.numbers.setdefault(name, len(self.numbers))

    def of(self, column: pl.Series) -> pl.Series:
        """Int64; null where an id is empty, or no whole number in a source of whole numbers."""
        if column.dtype.is_integer() and not self.texts:
            exact = column.cast(pl.Int64, strict=False)
            if exact.null_count() == column.null_count():
                self.texts = False
                return exact
        given = _text(column)
        whole = given.str.contains(WHOLE)
        number = _whole(given)
        beyond = given.filter((whole & number.is_null()).fill_null(False))
        if self.texts is None and given.null_count() < len(given):
            self.texts = bool(len(beyond)) or 2 * int(whole.sum()) < len(given) - given.null_count()
        if not self.texts:
            if len(beyond):
                raise UserError(
                    f"subject {beyond[0]}: beyond 64 bits, and subjects before it are whole numbers of up to 64 bits",
                    hint="Give ids that fit, or texts (with a letter in front).",
                )
            return number
        found = given.unique(maintain_order=True).drop_nulls()
        new = pl.Series([self.number(name) for name in found.to_list()], dtype=pl.Int64)
        return given.replace_strict(found, new, default=None, return_dtype=pl.Int64)


def encounters(column: pl.Series) -> pl.Series:
    """Int64 of encounters' ids: whole numbers stand for themselves, texts are hashed (63 bits); null where empty."""
    if column.dtype.is_integer() and column.cast(pl.Int64, strict=False).null_count() == column.null_count():
        return column.cast(pl.Int64)
    if column.null_count() == len(column):
        return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(column))
    given = _text(column)
    whole = _whole(given)
    rest = given.filter(whole.is_null()).unique().drop_nulls()
    if not len(rest):
        return whole
    hashed = pl.Series([hashed_id(name) for name in rest.to_list()], dtype=pl.Int64)
    return whole.fill_null(given.replace_strict(rest, hashed, default=None, return_dtype=pl.Int64))


def hashed_id(name: str) -> int:
    """63 bits of a text's hash, the same on any machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def _text(column: pl.Series) -> pl.Series:
    trimmed = pl.col("id").cast(pl.String).str.strip_chars()
    return column.rename("id").to_frame().select(pl.when(trimmed != "").then(trimmed).alias("id"))["id"]


def _whole(given: pl.Series) -> pl.Series:
    """Whole numbers in any of the spellings of `WHOLE`; null elsewhere."""
    number = given.cast(pl.Int64, strict=False)
    if (number.cast(pl.String) == given).fill_null(True).all() and number.null_count() == given.null_count():
        return number
    return given.str.extract(r"^(-?(?:0|[1-9]\d*))(?:\.0+)?$").cast(pl.Int64, strict=False)
