"""Formulas of analyses: outcome, terms, and the design that they make of complete columns.

A formula is worked out on coded columns (a quantity's values, a category's number), for imputation needs it for
thousands of candidate values. `formula_text` reads formulas as R and Python write them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unmask.errors import UserError, option
from unmask.modalities.table.imputation.families import FAMILIES, Family, Response
from unmask.modalities.table.rules.conditions import Computed
from unmask.modalities.table.schema.schema import Column, Schema


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One factor of a term: a column, or an expression of columns.

    Attributes:
        places: of the columns it reads, among the modelled ones.
        value: None for a column as it is.
        reference: of a category, the number of the level that the others are compared with.
        full: of a category, an indicator for every level, the reference too; see `formula_text._coded`.
    """

    name: str
    places: tuple[int, ...]
    value: Computed | None = None
    reference: int = 0
    full: bool = False


@dataclass(frozen=True, kw_only=True)
class Term:
    """A product of factors; an indicator for each level but the reference where a factor is a category."""

    factors: tuple[Factor, ...]

    @property
    def places(self) -> frozenset[int]:
        return frozenset(p for f in self.factors for p in f.places)

    @property
    def key(self) -> frozenset[str]:
        return frozenset(f.name for f in self.factors)


@dataclass(frozen=True, kw_only=True)
class Formula:
    """An analysis: its outcome and its terms, over the modelled columns of a schema.

    Attributes:
        family: one of `families.FAMILIES`.
        outcome: the place of the outcome; of time and event of a survival pair.
        cause: of competing causes, the number of the one that is analysed; 0: of all of them.
        offsets: added to the linear predictor, with a coefficient of 1.
    """

    text: str
    schema: Schema
    family: str
    outcome: tuple[int, ...]
    terms: tuple[Term, ...]
    intercept: bool
    cause: int = 0
    offsets: tuple[Factor, ...] = ()

    @property
    def model(self) -> Family:
        """What the family is."""
        return FAMILIES[self.family]

    @property
    def survival(self) -> bool:
        """Whether the outcome is a survival pair."""
        return len(self.outcome) == 2

    def response(self, columns: Sequence[np.ndarray]) -> Response:
        """The outcome of complete columns."""
        y, event = columns[self.outcome[0]], columns[self.outcome[-1]]
        causes = len(self.schema.column(self.outcome[1]).categories) - 1 if self.survival else 1
        with np.errstate(all="ignore"):
            offset = sum((f.value(columns) for f in self.offsets if f.value is not None), np.zeros(len(y)))
        entry = entry_of(self, columns) if self.survival else None
        return Response(y=y, event=event, causes=causes, cause=self.cause, entry=entry, offset=offset)

    @property
    def covariates(self) -> tuple[int, ...]:
        """Places of the columns on its right-hand side."""
        return tuple(sorted({p for t in self.terms for p in t.places}))

    @property
    def names(self) -> list[str]:
        """Of the columns of the design."""
        return [":".join(n) for t in self.terms for n in itertools.product(*map(self._names, t.factors))]

    @property
    def references(self) -> dict[str, str]:
        """Category on the right-hand side -> the level that its indicators are compared with."""
        return {c.name: c.categories[f.reference] for c, f in self._compared}

    def reference_rows(self, columns: Sequence[np.ndarray]) -> dict[str, int]:
        """Category on the right-hand side -> rows of complete columns that have its reference level."""
        return {c.name: int((columns[f.places[0]] == f.reference).sum()) for c, f in self._compared}

    @property
    def _compared(self) -> list[tuple[Column, Factor]]:
        own = [(self.schema.column(f.places[0]), f) for t in self.terms for f in t.factors if f.value is None]
        return [(c, f) for c, f in own if not c.is_quantity and not f.full]

    @property
    def modelled(self) -> str:
        """Of a logistic regression which level's odds it is about, and against which; of ordered categories their
        order; of competing causes which of them; else empty.

        Of two levels it is the second in the schema's order: as declared where a type (or the schema) ranks them, else
        sorted.
        """
        column = self.schema.column(self.outcome[-1])
        if self.model.takes == "binary":
            return f"{column.name} = {column.categories[1]} against {column.categories[0]}"
        if self.model.takes == "ordered":
            return f"{column.name}, higher against lower ({' < '.join(column.categories)})"
        if not self.cause:
            return ""
        others = "compete" if self.family == "fine-gray" else "are censored"
        return f"{column.name} = {column.categories[self.cause]}; other causes {others}"

    @property
    def thresholds(self) -> list[str]:
        """Names of what ordered categories have in place of a constant, as R's polr calls them."""
        column = self.schema.column(self.outcome[0])
        return [f"{a}|{b}" for a, b in itertools.pairwise(column.categories)] if self.model.takes == "ordered" else []

    def design(self, columns: Sequence[np.ndarray], terms: Sequence[Term] | None = None) -> np.ndarray:
        """(rows, regressors) of complete columns, without the constant; of some of the terms on request."""
        rows = next((len(x) for x in columns if x is not None), 0)
        parts: list[np.ndarray] = []
        for term in self.terms if terms is None else terms:
            block = self._block(term.factors[0], columns)
            for factor in term.factors[1:]:
                other = self._block(factor, columns)
                block = (block[:, :, None] * other[:, None, :]).reshape(len(block), -1)
            parts.append(block)
        return np.hstack(parts) if parts else np.zeros((rows, 0))

    def widths(self) -> list[int]:
        """Regressors of each term."""
        return [int(np.prod([len(self._names(f)) for f in t.factors])) for t in self.terms]

    def _names(self, factor: Factor) -> list[str]:
        if factor.value is not None:
            return [factor.name]
        column, levels = self.schema.column(factor.places[0]), self._levels(factor)
        if column.is_quantity or (levels == [1] and column.categories in (("0", "1"), ("False", "True"))):
            return [column.name]
        return [f"{column.name}={column.categories[level]}" for level in levels]

    def _levels(self, factor: Factor) -> list[int]:
        """Numbers of the levels of a category that have an indicator; none of a quantity."""
        levels = range(len(self.schema.column(factor.places[0]).categories))
        return [level for level in levels if factor.full or level != factor.reference]

    def _block(self, factor: Factor, columns: Sequence[np.ndarray]) -> np.ndarray:
        if factor.value is not None:
            return factor.value(columns)[:, None]
        column, x = self.schema.column(factor.places[0]), columns[factor.places[0]]
        levels = self._levels(factor)
        if column.is_quantity or (len(column.categories) == 2 and levels == [1]):
            return x[:, None]
        return (x[:, None] == np.array(levels)).astype(float)


def terms_not_kept(analysis: Formula, imputed: Formula | None) -> list[str]:
    """Terms of an analysis that imputation does not keep, as they are written.

    Args:
        imputed: the formula that imputation agreed with: its terms are kept for its outcome. For another outcome, and
            where there was none, the columns themselves are, but neither products nor functions of them.
    """

    def key(term: Term) -> frozenset[str]:
        return frozenset(re.sub(r"\s", "", f.name).replace("^", "**") for f in term.factors)

    if imputed is not None and set(imputed.outcome) == set(analysis.outcome):
        known = {key(t) for t in imputed.terms}
        left = [t for t in analysis.terms if key(t) not in known]
    else:
        left = [t for t in analysis.terms if len(t.factors) > 1 or t.factors[0].value is not None]
    return [":".join(f.name for f in t.factors) for t in left]


def finite_design(formula: Formula, columns: Sequence[np.ndarray], number: np.ndarray | None = None) -> np.ndarray:
    """The design of complete columns. `number`: (rows,) of each row in the table, from 0; by default they are all its
    rows."""
    with np.errstate(all="ignore"):
        x = formula.design(columns)
    bad = ~np.isfinite(x)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        others = int(bad.any(1).sum()) - 1
        raise UserError(
            f"formula {formula.text!r}: {formula.names[column]!r} is not a number in row "
            f"{(row if number is None else number[row]) + 1}"
            + (f" and {others} {'other' if others == 1 else 'others'}" if others else ""),
            hint="A logarithm of 0, a division by 0, or a column that is empty by its meaning: leave the term out. "
            f"Where only an imputed value is at fault, impute with {option('formula', formula.text)}.",
        )
    return x


def refuse_impossible_outcome(
    formula: Formula, columns: Sequence[np.ndarray], row_name: Callable[[int], Any] = lambda row: row + 1
) -> None:
    """Refuse counts that are none, and offsets that are no number, with their row. `columns`: NaN where missing."""
    y, where = columns[formula.outcome[0]], f"formula {formula.text!r}, row "
    name = formula.schema.column(formula.outcome[0]).name
    bad = (y < 0) | (y != np.round(y)) if formula.model.counts else np.zeros(len(y), bool)
    bad &= ~np.isnan(y)
    if bad.any():
        raise UserError(
            f"{where}{row_name(int(bad.argmax()))}: {y[bad][0]:g} in {name!r} is no count",
            hint="Counts are 0, 1, 2, and so on.",
        )
    for factor in formula.offsets:
        assert factor.value is not None
        with np.errstate(all="ignore"):
            bad = ~np.isfinite(factor.value(columns))
        if bad.any():
            values = ", ".join(
                f"{formula.schema.column(p).name!r} is {columns[p][bad][0]:g}".replace("is nan", "has no value")
                for p in factor.places
            )
            raise UserError(
                f"{where}{row_name(int(bad.argmax()))}: {factor.name} is no number, {values}",
                hint="An exposure is observed in every row, and above 0 inside a logarithm: leave those rows out.",
            )


def entry_of(formula: Formula, columns: Sequence[np.ndarray]) -> np.ndarray | None:
    """Times from which rows are at risk, where the formula's outcome is the schema's pair and it has late entry."""
    schema = formula.schema
    if schema.entry is None or schema.duration is None or formula.outcome[0] != schema.place(schema.duration):
        return None
    return columns[schema.place(schema.entry)]


def cox_formula(schema: Schema, places: Sequence[int], *, family: str = "cox", cause: int = 0) -> Formula:
    """Proportional hazards of the schema's survival pair given these columns. `cause`: its number; 0: all."""
    assert schema.duration is not None
    assert schema.event is not None
    columns = [schema.column(p) for p in places]
    terms = tuple(Term(factors=(Factor(name=c.name, places=(p,)),)) for c, p in zip(columns, places, strict=True))
    pair = schema.place(schema.duration), schema.place(schema.event)
    right = " + ".join(c.name for c in columns) or "1"
    return Formula(
        text=f"Surv({schema.duration}, {schema.event}) ~ {right}",
        schema=schema,
        family=family,
        cause=cause,
        outcome=pair,
        terms=terms,
        intercept=True,
    )
