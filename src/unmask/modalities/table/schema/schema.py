"""What a table's columns are: as data, stored with the model. `infer.py` finds it out from raw columns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from unmask.errors import UserError, suggest
from unmask.training.settings import check_types

Kind = Literal["numeric", "integer", "ordinal", "nominal", "binary", "datetime", "id", "text"]
QUANTITIES = ("numeric", "integer", "datetime")
"""Kinds that are points on a line; the others have categories, except `LEFT_OUT`."""
LEFT_OUT = ("id", "text")
"""Identifiers and free text: carried along, never modelled, drawn or stored."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column.

    Args:
        kind: numeric and integer are quantities; ordinal has ordered categories; an id (an identifier) and text (free
            text) are left out of the model.
        categories: every category as text, in order (ordinal: from low to high).
        decimals: values are rounded to this many; learnt where all data are so rounded, None for full precision.
        low, high: predicted values stay within; learnt from the data unless given. Of dates in days since 1970.
        unit: unit of measurement, for people.
        format: how dates are written (strptime).
        structural: (other column, its category): where that holds this column is empty by its meaning, and stays so.
        missing: spellings of a missing value in this column, beyond those of the table.
        blank: what a cell without a value means, e.g. "no" in a tick box; None: that its value is not known.
        decimal, thousands: the marks with which a file writes its numbers, so that new rows are written alike.
        limits: what a cell such as `<0.5` or `>90` is read as: the "value" of the limit, "half" of it (of a lower
            one), or "missing"; None: as what it says, a value below .5 or above 90 (censored).
        lod, uloq: limit of detection, upper limit of quantification: cells at it or beyond, and those that say `<LOD`,
            are known to lie beyond it and no more (censored).
        suffixes: texts that may stand after its numbers and are passed over: a unit, `*`.
        event: of the event of a survival pair, the categories at which it happened, one per cause; the first category
            is censored.
        given: which of low and high a person gave, the other being learnt; None: both that are there.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    decimals: int | None = None
    low: float | None = None
    high: float | None = None
    unit: str | None = None
    format: str | None = None
    structural: tuple[str, str] | None = None
    missing: tuple[str, ...] = ()
    blank: str | None = None
    decimal: Literal[".", ","] = "."
    thousands: str = ""
    limits: Literal["value", "half", "missing"] | None = None
    lod: float | None = None
    uloq: float | None = None
    suffixes: tuple[str, ...] = ()
    event: tuple[str, ...] = ()
    given: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        try:
            check_types(self)
        except UserError as error:
            raise UserError(f"column {self.name!r}: {error.what}", hint=error.hint) from None
        if self.low is not None and self.high is not None and self.low > self.high:
            raise UserError(f"column {self.name!r}: low={self.low} is above high={self.high}", hint="Swap them.")

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds a person gave, infinite where none was given: those learnt from the data bind best
        values alone."""
        low, high = (
            bound if bound is not None and (self.given is None or name in self.given) else infinite
            for name, bound, infinite in (("low", self.low, -math.inf), ("high", self.high, math.inf))
        )
        return low, high

    @property
    def is_quantity(self) -> bool:
        """Whether its values are numbers or dates, not categories."""
        return self.kind in QUANTITIES

    @property
    def modelled(self) -> bool:
        """Ids, free text, and columns in which nothing was ever observed, are carried along but not modelled."""
        return self.kind not in LEFT_OUT and (self.is_quantity or bool(self.categories)) and self.low != float("inf")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The columns of a table, in order, and which of them are follow-up time, event and late entry, if any.

    Args:
        entry: column of the times from which rows are at risk, where they enter late (left truncation).
        cluster: column that names what several rows belong to, a patient or centre; an identifier otherwise.
        missing: spellings of a missing value beyond the usual ones (empty, NA, NaN, null, #NULL!, ?, .).
        constraints: rules between columns that imputed and synthetic rows meet; see `conditions.parse_constraints`.
        notes: what was noticed while inferring, for people.
    """

    columns: tuple[Column, ...]
    duration: str | None = None
    event: str | None = None
    entry: str | None = None
    cluster: str | None = None
    missing: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for c in self.columns:
            if c.name in (self.duration, self.entry) and (c.lod, c.uloq) != (None, None):
                raise UserError(
                    f"column {c.name!r}: lod or uloq of a follow-up time", hint="Times end at an event or censoring."
                )
            if c.structural is None:
                continue
            other, level = c.structural
            known = self.columns[self.number(other, where=f"column {c.name!r}: structural: ")].categories
            if level not in known:
                raise UserError(
                    f"column {c.name!r}: structural: {other!r} has no category {level!r}", hint=suggest(level, known)
                )

    @property
    def names(self) -> list[str]:
        """Names of all columns, in order."""
        return [c.name for c in self.columns]

    def role(self, name: str) -> str:
        """What a column is besides a column: follow-up time, event, entry or cluster; "" for none of them."""
        roles = {self.duration: "follow-up time", self.event: "event", self.entry: "entry", self.cluster: "cluster"}
        return roles.get(name, "")

    @property
    def causes(self) -> tuple[str, ...]:
        """Categories of the event column at which the event happened, in the order of their numbers, from 1."""
        return () if self.event is None else self.columns[self.number(self.event)].categories[1:]

    @property
    def modelled(self) -> list[int]:
        """Numbers of the columns that take part in the model."""
        return [i for i, c in enumerate(self.columns) if c.modelled]

    @property
    def sizes(self) -> list[int]:
        """Number of categories of every modelled column, 0 for a quantity."""
        return [0 if c.is_quantity else len(c.categories) for c in self.columns if c.modelled]

    @property
    def emptied_by(self) -> dict[int, tuple[int, int]]:
        """Place of a structural column -> (place of the other, number of its category) that leave it empty."""
        found = {p: self.columns[i].structural for p, i in enumerate(self.modelled)}
        return {
            p: (self.place(rule[0]), self.columns[self.number(rule[0])].categories.index(rule[1]))
            for p, rule in found.items()
            if rule is not None
        }

    def column(self, place: int) -> Column:
        """The column at a place among the modelled ones."""
        return self.columns[self.modelled[place]]

    def number(self, name: str, *, where: str = "") -> int:
        """Which column has this name.

        Raises:
            UserError: none has, with the closest name.
        """
        if name not in self.names:
            raise UserError(f"{where}no column {name!r}", hint=suggest(name, self.names))
        return self.names.index(name)

    def place(self, name: str, *, where: str = "") -> int:
        """Where the column of this name stands among the modelled ones.

        Raises:
            UserError: there is none, with the closest name, or it is not modelled.
        """
        number = self.number(name, where=where)
        if not self.columns[number].modelled:
            raise UserError(
                f"{where}{name!r} is an identifier, free text or empty", hint="It is not part of the model."
            )
        return self.modelled.index(number)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, what a model's folder keeps."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Schema:
        """From what `to_dict` gave."""
        columns = []
        for c in found["columns"]:
            keys = ("categories", "structural", "event", "missing", "suffixes", "given")
            tuples = {k: tuple(c[k]) for k in keys if c.get(k) is not None}
            columns.append(Column(**{"given": (), **c, **tuples}))
        lists = {k: tuple(found.get(k, ())) for k in ("missing", "constraints", "notes")}
        return cls(**{**found, **lists, "columns": tuple(columns)})
