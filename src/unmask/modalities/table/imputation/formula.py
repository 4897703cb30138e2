"""Formulas of analyses, as R and Python write them: "y ~ x + I(x**2) + sex:dose", "Surv(time, event) ~ age * stage".

Text is parsed with Python's own grammar after terms are split, never evaluated as code. A formula is worked out on
coded columns (a quantity's values, a category's number), for imputation asks it for thousands of candidate values.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from unmask.errors import UserError, option, suggest
from unmask.modalities.table.reading.parse import text_of
from unmask.modalities.table.rules.conditions import LONGEST, Computed, computed, parsed, plain
from unmask.modalities.table.rules.rules import Rules
from unmask.modalities.table.schema.schema import Column, Schema
from unmask.modalities.table.schema.survival_pair import event_levels
from unmask.modalities.table.survival.hazards import MOST_LEVELS

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "I": lambda x: x,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "abs": np.abs,
}
CATEGORIES = ("C", "factor")
_NOT_BUILT = "Not built here: put the column that it makes into the table, or analyse `tables()` in R and pool there."
ABSENT = {
    **dict.fromkeys(("strata", "offset", "cluster", "frailty", "tt", "pspline"), _NOT_BUILT),
    **dict.fromkeys(("ns", "bs", "cr", "cc", "poly", "rcs", "s", "te", "scale", "center", "standardize"), _NOT_BUILT),
}
"""Functions of R's and patsy's formulas that are refused by name."""
_SURV = re.compile(r"\s*Surv\(\s*(`[^`]+`|[^,()`]+?)\s*,\s*(`[^`]+`|[^,()`]+?)\s*\)\s*~")
MOST_CROSSED = 6
"""Factors of one `a*b*c`, which makes a term of every set of them."""
_HINT = "For example: y ~ x + I(x**2) + sex:dose, or Surv(time, event) ~ age + stage; odd names go in backticks."


@dataclass(frozen=True, kw_only=True)
class Factor:
    """One factor of a term: a column, or an expression of columns.

    Attributes:
        places: of the columns it reads, among the modelled ones.
        value: None for a column as it is.
        reference: of a category, the number of the level that the others are compared with.
        full: of a category, an indicator for every level, the reference too; see `_coded`.
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
        family: "ols" (a quantity), "logit" (two categories) or "cox" (a survival pair).
        outcome: the place of the outcome; of time and event for a Cox regression.
    """

    text: str
    schema: Schema
    family: str
    outcome: tuple[int, ...]
    terms: tuple[Term, ...]
    intercept: bool

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
        """Of a logistic regression which level's odds it is about, and against which; else empty.

        It is the second of the two levels in the schema's order: as declared where a type (or the schema) ranks them,
            else sorted.
        """
        if self.family != "logit":
            return ""
        column = self.schema.column(self.outcome[0])
        return f"{column.name} = {column.categories[1]} against {column.categories[0]}"

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


def beyond(analysis: Formula, imputed: Formula | None) -> list[str]:
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


def parse_formula(text: str, schema: Schema, *, family: str | None = None) -> Formula:
    """A formula over the columns of a schema.

    Args:
        text: `outcome ~ terms`; terms are columns, products (`a:b`, `a*b`), `I(...)`, log, exp, sqrt, abs, `.` (every
            other column), `- 1` (no constant), `C(g, Treatment('b'))` (another level to compare with). Categories are
            coded as R's model.matrix codes them.
        family: "ols", "logit" or "cox"; by default what the outcome's kind asks for.
    """
    left, tilde, right = text.partition("~")
    if not tilde or not left.strip() or not right.strip():
        raise UserError(f"formula {text!r}: no outcome ~ terms", hint=_HINT)
    reader = _Reader(text, schema)
    outcome, kind = reader.outcome(left)
    if family is not None and family not in ("ols", "logit", "cox"):
        raise UserError(f"family {family!r}", hint="Expected ols, logit or cox.")
    if family is not None and family != kind:
        raise UserError(f"formula {text!r}: the outcome asks for {kind}, not {family}", hint=_HINT)
    terms, intercept = reader.terms(right, outcome)
    for term in terms:
        if term.places & set(outcome):
            raise UserError(f"formula {text!r}: the outcome stands on both sides", hint=_HINT)
    return Formula(
        text=text,
        schema=schema,
        family=kind,
        outcome=outcome,
        terms=_coded(terms, schema, constant=intercept or kind == "cox"),
        intercept=intercept or kind == "cox",
    )


def _coded(terms: Sequence[Term], schema: Schema, *, constant: bool) -> tuple[Term, ...]:
    """The terms by their number of factors, each category in them coded as R codes it.

    A category has an indicator for every level where the rest of its term is part of no term before: in `g + x:g` each
    level has a slope of its own. Without a constant the first category has one for every level too (R's TermCode and
    model.matrix, src/library/stats/src/model.c).
    """
    ordered = sorted(terms, key=lambda t: len(t.factors))
    out: list[Term] = []
    for number, term in enumerate(ordered):
        before = [t.key for t in ordered[:number]]
        factors = []
        for factor in term.factors:
            rest = term.key - {factor.name}
            full = bool(rest) and not any(rest <= key for key in before)
            factors.append(replace(factor, full=full and _is_category(factor, schema)))
        out.append(Term(factors=tuple(factors)))
    first = next((n for n, t in enumerate(out) if any(_is_category(f, schema) for f in t.factors)), None)
    if not constant and first is not None:
        named = next(f.name for f in out[first].factors if _is_category(f, schema))
        out[first] = Term(factors=tuple(replace(f, full=f.full or f.name == named) for f in out[first].factors))
    return tuple(out)


def _is_category(factor: Factor, schema: Schema) -> bool:
    return factor.value is None and not schema.column(factor.places[0]).is_quantity


class _Reader:
    def __init__(self, text: str, schema: Schema) -> None:
        if len(text) > 5 * LONGEST:
            raise UserError(
                f"formula {text[:60]!r}...: {len(text):,} characters", hint=f"Up to {5 * LONGEST:,} are read."
            )
        self.text, self.schema = text, schema
        self.quoted: dict[str, str] = {}
        self.written: dict[int, str] = {}

    def outcome(self, left: str) -> tuple[tuple[int, ...], str]:
        tree = self._parsed(plain(left, self.schema.names, self.quoted))
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "Surv":
            if len(tree.args) != 2:
                raise UserError(f"formula {self.text!r}: Surv takes time and event", hint=_HINT)
            time, event = (self._place(a) for a in tree.args)
            check_pair(
                self.schema, self.schema.column(time), self.schema.column(event), where=f"formula {self.text!r}: "
            )
            return (time, event), "cox"
        if not isinstance(tree, ast.Name):
            raise UserError(
                f"formula {self.text!r}: {left.strip()!r} is not a column",
                hint="Put the transformed outcome in a column of its own, or write Surv(time, event).",
            )
        place = self._place(tree)
        column = self.schema.column(place)
        if not column.is_quantity and len(column.categories) != 2:
            raise UserError(
                f"formula {self.text!r}: {column.name!r} has {len(column.categories)} categories",
                hint="Outcomes are quantities, columns of two categories, or Surv(time, event).",
            )
        return (place,), "ols" if column.is_quantity else "logit"

    def terms(self, right: str, outcome: tuple[int, ...]) -> tuple[list[Term], bool]:
        found: list[Term] = []
        intercept = True
        for sign, part in _split(plain(right, self.schema.names, self.quoted), "+-"):
            part = part.strip()
            if part in ("0", "1"):
                intercept = (part == "1") == (sign == "+")
                continue
            for term in self._expanded(part, outcome):
                found = [t for t in found if t.key != term.key]
                if sign == "+":
                    found.append(term)
        if not found and not intercept:
            raise UserError(f"formula {self.text!r}: no terms", hint=_HINT)
        return found, intercept

    def _expanded(self, part: str, outcome: tuple[int, ...]) -> list[Term]:
        if part == ".":
            own = (self.schema.duration, self.schema.event)
            entry = self.schema.entry if tuple(self.schema.column(p).name for p in outcome) == own else None
            places = [p for p in range(len(self.schema.modelled)) if p not in outcome]
            others = [
                p for p in places if entry is None or self.schema.column(p).name != entry
            ]  # it does not explain the outcome
            return [Term(factors=(self._own(p, self.schema.column(p).name),)) for p in others]
        pieces = [[self._factor(f) for _, f in _split(piece, ":")] for _, piece in _split(part, "*")]
        if len(pieces) > MOST_CROSSED:
            raise UserError(
                f"formula {self.text!r}: {len(pieces)} factors crossed, which makes 2^{len(pieces)} - 1 terms",
                hint=f"Cross up to {MOST_CROSSED}, or name the products that are meant (a:b).",
            )
        out: list[Term] = []
        for choice in range(1, 1 << len(pieces)):
            factors = [f for k, piece in enumerate(pieces) if choice >> k & 1 for f in piece]
            out.append(Term(factors=tuple({f.name: f for f in factors}.values())))
        return sorted(out, key=lambda t: len(t.factors))

    def _factor(self, text: str) -> Factor:
        tree = self._parsed(text.strip().replace("^", "**").replace("as.factor(", "factor("))
        reference, called = None, isinstance(tree, ast.Call)
        if isinstance(tree, ast.Call) and ast.unparse(tree.func) in CATEGORIES and tree.args:
            tree, reference = self._category(tree)
        if isinstance(tree, ast.Name | ast.Attribute):
            place = self._place(tree)
            column = self.schema.column(place)
            if reference is not None and reference not in column.categories:
                raise UserError(
                    f"formula {self.text!r}: {column.name!r} has no level {reference!r}",
                    hint=suggest(reference, column.categories),
                )
            at = 0 if reference is None else column.categories.index(reference)
            against = "" if reference is None else f", Treatment({reference!r})"
            written = f"{text.split('(')[0].strip()}({column.name}{against})" if called else column.name
            return self._own(place, written, reference=at)
        if isinstance(tree, ast.BinOp | ast.UnaryOp):
            raise UserError(
                f"formula {self.text!r}: {text.strip()!r} is arithmetic outside of I()",
                hint=f"Write I({text.strip()}) for the number that it comes to; a:b is a product of terms, a*b both "
                f"and their product.",
            )
        places: list[int] = []
        value = self._compiled(tree, places)
        if not places:
            raise UserError(f"formula {self.text!r}: {text.strip()!r} reads no column", hint=_HINT)
        return Factor(name=self._shown(text.strip()), places=tuple(dict.fromkeys(places)), value=value)

    def _own(self, place: int, written: str, *, reference: int = 0) -> Factor:
        """A column as a factor."""
        column = self.schema.column(place)
        first = self.written.setdefault(place, written)
        if first != written and not column.is_quantity:
            raise UserError(
                f"formula {self.text!r}: {first!r} and {written!r} are two variables of one column",
                hint=f"Write {column.name!r} in one way throughout.",
            )
        return Factor(name=column.name, places=(place,), reference=reference)

    def _category(self, call: ast.Call) -> tuple[ast.expr, str | None]:
        """The column of `C(g)`, `factor(g)` or `C(g, Treatment('b'))`, and the level that is asked for as reference."""
        column, *more = call.args
        if not isinstance(column, ast.Name | ast.Attribute) or self.schema.column(self._place(column)).is_quantity:
            raise UserError(
                f"formula {self.text!r}: {ast.unparse(call.func)}({ast.unparse(column)}) is a quantity",
                hint="Declare the column nominal in the schema: then its imputations are categories too.",
            )
        more += [word.value for word in call.keywords]
        if not more:
            return column, None
        given = more[0]
        if len(more) == 1 and isinstance(given, ast.Call) and ast.unparse(given.func) == "Treatment":
            levels = [*given.args, *(word.value for word in given.keywords if word.arg == "reference")]
            if len(levels) == 1 and isinstance(levels[0], ast.Constant):
                return column, text_of(levels[0].value)
        raise UserError(
            f"formula {self.text!r}: {ast.unparse(call)}",
            hint=f"Another level to compare with is C({ast.unparse(column)}, Treatment('level')); other contrasts "
            "(Sum, Poly, Helmert) are not built here.",
        )

    def _compiled(self, node: ast.expr, places: list[int]) -> Computed:
        """The value of an expression; the `places` of the columns that it reads are added."""

        def column_of(node: ast.expr) -> int:
            place = self._place(node)
            column = self.schema.column(place)
            if not column.is_quantity and column.categories not in (("0", "1"), ("False", "True")):
                raise UserError(
                    f"formula {self.text!r}: {column.name!r} is a category inside an expression",
                    hint="Use it as a term of its own or in a product: sex:dose.",
                )
            places.append(place)
            return place

        return computed(node, column_of, lambda rest: self._called(rest, places))

    def _called(self, node: ast.expr, places: list[int]) -> Computed:
        """A function of columns, or minus something."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self._compiled(node.operand, places)
            return lambda columns: -inner(columns)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ABSENT:
            raise UserError(f"formula {self.text!r}: {ast.unparse(node.func)}()", hint=ABSENT[ast.unparse(node.func)])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords:
            if node.func.id not in FUNCTIONS:
                raise UserError(
                    f"formula {self.text!r}: unknown function {node.func.id!r}", hint=suggest(node.func.id, FUNCTIONS)
                )
            function, argument = FUNCTIONS[node.func.id], self._compiled(node.args[0], places)
            return lambda columns: function(argument(columns))
        raise UserError(f"formula {self.text!r}: {ast.unparse(node)!r} cannot be read", hint=_HINT)

    def _shown(self, text: str) -> str:
        return re.sub(r"column_\d+_", lambda m: self.quoted.get(m.group(), m.group()), text.replace(" ", ""))

    def _parsed(self, text: str) -> ast.expr:
        return parsed(text, f"formula {self.text!r}: {text.strip()!r}", hint=_HINT)

    def _place(self, node: ast.expr) -> int:
        name = ast.unparse(node)
        return self.schema.place(self.quoted.get(name, name), where=f"formula {self.text!r}: ")


def _split(text: str, marks: str) -> list[tuple[str, str]]:
    """(mark before, part) at the marks outside of brackets; `**` is no mark."""
    out: list[tuple[str, str]] = []
    depth, start, sign = 0, 0, "+"
    at = 0
    while at < len(text):
        c = text[at]
        depth += (c in "([") - (c in ")]")
        if c == "*" and text[at : at + 2] == "**":
            at += 2
            continue
        if depth == 0 and c in marks:
            if text[start:at].strip() or out:
                out.append((sign, text[start:at]))
            sign, start = c, at + 1
        at += 1
    out.append((sign, text[start:]))
    return out


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


def survival_pair(text: str | None) -> tuple[str, str] | None:
    """The columns of time and event that a formula names; None where its outcome is another.

    >>> survival_pair("Surv(days, `vital status`) ~ age")
    ('days', 'vital status')
    """
    found = _SURV.match(text or "")
    return (found[1].strip("`"), found[2].strip("`")) if found else None


def check_pair(schema: Schema, time: Column, event: Column, *, where: str = "") -> None:
    """Refuse columns that are no follow-up time and event, and an event whose levels do not say which of them it is."""
    if not time.is_quantity or len(event.categories) != 2:
        raise UserError(
            f"{where}{time.name!r} and {event.name!r} are no time and event of two levels",
            hint="Of competing causes, analyse a column that is 1 for one of them, or pool a function of a table.",
        )
    if time.low is not None and time.low < 0:
        raise UserError(
            f"{where}{time.name!r} goes down to {time.low:g}", hint="Follow-up times are numbers, 0 or more."
        )
    if event.name == schema.event:
        return
    levels, _ = event_levels(event.categories, where=f"{where}{event.name!r}")
    if levels != event.categories:
        raise UserError(
            f"{where}{event.name!r} has {event.categories[0]!r} first, which would turn the event over",
            hint=f"Name the pair where the table is read: {option('duration', time.name)}, "
            f"{option('event', event.name)}.",
        )


def entry_of(formula: Formula, columns: Sequence[np.ndarray]) -> np.ndarray | None:
    """Times from which rows are at risk, where the formula's outcome is the schema's pair and it has late entry."""
    schema = formula.schema
    if schema.entry is None or schema.duration is None or formula.outcome[0] != schema.place(schema.duration):
        return None
    return columns[schema.place(schema.entry)]


def cox_formula(schema: Schema, places: Sequence[int]) -> Formula:
    """Proportional hazards of the schema's survival pair given these columns."""
    assert schema.duration is not None
    assert schema.event is not None
    columns = [schema.column(p) for p in places]
    terms = tuple(Term(factors=(Factor(name=c.name, places=(p,)),)) for c, p in zip(columns, places, strict=True))
    pair = schema.place(schema.duration), schema.place(schema.event)
    right = " + ".join(c.name for c in columns) or "1"
    return Formula(
        text=f"Surv({schema.duration}, {schema.event}) ~ {right}",
        schema=schema,
        family="cox",
        outcome=pair,
        terms=terms,
        intercept=True,
    )


class Say(Protocol):
    """Notes what was done; `warn` warns of it too."""

    def __call__(self, note: str, *, warn: bool = False) -> None: ...


def agreed_analysis(formula: str | None, schema: Schema, columns: list[np.ndarray], *, say: Say) -> Formula | None:
    """The analysis that imputation agrees with: the formula, or a Cox regression of the survival pair on all
    covariates; None where there is neither.

    Args:
        columns: of the table, NaN where missing.
        say: called with why there is none, and with what is left out.
    """
    if formula is not None:
        found = parse_formula(formula, schema)
    elif schema.duration is not None and schema.event is not None:
        if len(schema.causes) > 1:
            say(
                "with competing causes covariates are not drawn to agree with a Cox regression: the event and the "
                "cumulative hazard predict them, which pulls strong effects towards zero",
                warn=True,
            )
            return None
        pair = (schema.duration, schema.event, schema.entry)
        own = [(p, schema.columns[i]) for p, i in enumerate(schema.modelled) if schema.columns[i].name not in pair]
        wide = [c.name for _, c in own if len(c.categories) > MOST_LEVELS]
        empty = [c.name for _, c in own if c.structural is not None]
        for names, why in (
            (wide, f"has more than {MOST_LEVELS} categories"),
            (empty, "is empty by its meaning in some rows"),
        ):
            for name in names:
                say(f"{name!r} {why}: left out of the Cox regression that imputation agrees with")
        found = cox_formula(schema, [p for p, c in own if c.name not in wide + empty])
        if whole := {r.columns[0]: r.text.split(":=", 1)[1] for r in Rules.of(schema).formulas}:
            # A column that is computed ("bmi := weight / height**2") moves with its parts when they are drawn.
            terms = [f"I({whole[p]})" if p in whole else f"`{schema.column(p).name}`" for p in found.covariates]
            times = ", ".join(f"`{name}`" for name in (schema.entry, schema.duration, schema.event) if name)
            with contextlib.suppress(UserError):  # dates have no such term
                found = parse_formula(f"Surv({times}) ~ {' + '.join(terms)}", schema)
    else:
        return None
    if found.family == "cox":
        time, event = (columns[p] for p in found.outcome)
        half = np.isnan(time) ^ np.isnan(event)
        none = np.isnan(time) & np.isnan(event)
        if not (event[~np.isnan(time)] > 0).any():
            say(
                "no event with a known time: covariates are not drawn to agree with a Cox regression, the event "
                "and the cumulative hazard predict them",
                warn=True,
            )
            return None
        if half.any() or none.any():
            say(
                f"{int(none.sum())} rows lack follow-up time and event, {int(half.sum())} one of them: imputed "
                "from proportional hazards of the event and of censoring"
            )
    elif np.isnan(columns[found.outcome[0]]).all():
        raise UserError(f"formula {found.text!r}: the outcome is never observed", hint="Name another outcome.")
    complete = np.all([~np.isnan(x) for x in columns], axis=0)
    if complete.any():
        finite_design(found, [x[complete] for x in columns], np.flatnonzero(complete))
    return found
