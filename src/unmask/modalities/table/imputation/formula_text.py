"""Formulas of analyses as text, as R and Python write them: "y ~ x + I(x**2) + sex:dose", "Surv(time, event) ~ age".

Terms are split here; each is parsed with Python's own grammar, never evaluated as code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from unmask.errors import UserError, option, suggest
from unmask.modalities.table.imputation.families import FAMILIES
from unmask.modalities.table.imputation.formula import Factor, Formula, Term
from unmask.modalities.table.reading.parse import text_of
from unmask.modalities.table.rules.conditions import LONGEST, Computed, computed, parsed, plain
from unmask.modalities.table.schema.schema import Column, Schema
from unmask.modalities.table.schema.survival_pair import event_levels

FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "I": lambda x: x,
    **{f.__name__: f for f in (np.log, np.log2, np.log10, np.log1p, np.exp, np.sqrt)},
    "abs": np.abs,
}
CATEGORIES = ("C", "factor")
_IN_R = "Not built here: put the column that it makes into the table, or analyse `tables()` in R and pool there."
NOT_BUILT = {
    **dict.fromkeys(("strata", "cluster", "frailty", "tt", "pspline"), _IN_R),
    **dict.fromkeys(("ns", "bs", "cr", "cc", "poly", "rcs", "s", "te", "scale", "center", "standardize"), _IN_R),
}
"""Functions of R's and patsy's formulas that are refused by name."""
MOST_CROSSED = 6
"""Factors of one `a*b*c`, which makes a term of every set of them."""
_HINT = "For example: y ~ x + I(x**2) + sex:dose, or Surv(time, event) ~ age + stage; odd names go in backticks."


def parse_formula(text: str, schema: Schema, *, family: str | None = None, cause: str | None = None) -> Formula:
    """A formula over the columns of a schema.

    Args:
        text: `outcome ~ terms`; terms are columns, products (`a:b`, `a*b`), `I(...)`, log, exp, sqrt, abs, `.` (every
            other column), `- 1` (no constant), `C(g, Treatment('b'))` (another level to compare with), of counts
            `offset(log(t))`. Categories are coded as R's model.matrix codes them.
        family: one of `families.FAMILIES`; by default what the outcome's kind asks for: "ols" (a quantity), "logit"
            (two categories), "polr" (ordered ones) or "cox" (a survival pair).
        cause: of a survival pair with competing causes, the one that is analysed.
    """
    left, tilde, right = text.partition("~")
    if not tilde or not left.strip() or not right.strip():
        raise UserError(f"formula {text!r}: no outcome ~ terms", hint=_HINT)
    parser = _Parser(text, schema)
    outcome, kind = parser.outcome(left)
    suitable = [name for name, f in FAMILIES.items() if f.takes == kind]
    if family is not None and family not in FAMILIES:
        raise UserError(f"family {family!r}", hint=f"Expected one of {', '.join(FAMILIES)}.")
    if family is not None and family not in suitable:
        hint = "A column of a few numbers is a count where the schema says kind = integer, ordered where it is ordinal."
        raise UserError(f"formula {text!r}: the outcome asks for {' or '.join(suitable)}, not {family}", hint=hint)
    name = family or suitable[0]
    terms, offsets, intercept = parser.terms(right, outcome)
    if any(term.places & set(outcome) for term in terms) or any(set(f.places) & set(outcome) for f in offsets):
        raise UserError(f"formula {text!r}: the outcome stands on both sides", hint=_HINT)
    if offsets and not FAMILIES[name].counts:
        hint = f"It belongs to counts: {option('family', 'poisson')}, or negative-binomial."
        raise UserError(f"formula {text!r}: {offsets[0].name} with family {name!r}", hint=hint)
    constant = intercept or not FAMILIES[name].constant
    return Formula(
        text=text,
        schema=schema,
        family=name,
        outcome=outcome,
        terms=_coded(terms, schema, constant=constant),
        intercept=constant,
        cause=cause_number(schema.column(outcome[-1]), cause, name),
        offsets=tuple(offsets),
    )


def cause_number(event: Column, cause: str | None, family: str) -> int:
    """The number of the cause that is meant; 0 where none is, which Fine-Gray regression refuses."""
    causes = event.categories[1:] if FAMILIES[family].takes == "survival" else ()
    if cause is not None and text_of(cause) in causes:
        return causes.index(text_of(cause)) + 1
    if cause is not None and causes:
        raise UserError(
            f"{option('cause', cause)}: {event.name!r} never is that", hint=f"Its causes: {', '.join(causes)}."
        )
    if cause is not None:
        raise UserError(f"{option('cause', cause)} of {event.name!r}", hint="It belongs to a survival pair.")
    if family == "fine-gray":
        raise UserError(
            "a Fine-Gray regression of no cause", hint=f"Give {option('cause')}, one of {', '.join(causes)}."
        )
    return 0


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


class _Parser:
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
            check_pair(self.schema, *map(self.schema.column, (time, event)), where=f"formula {self.text!r}: ")
            return (time, event), "survival"
        if not isinstance(tree, ast.Name):
            raise UserError(
                f"formula {self.text!r}: {left.strip()!r} is not a column",
                hint="Put the transformed outcome in a column of its own, or write Surv(time, event).",
            )
        place = self._place(tree)
        column = self.schema.column(place)
        if column.is_quantity or len(column.categories) == 2:
            return (place,), "quantity" if column.is_quantity else "binary"
        if column.kind != "ordinal":
            raise UserError(
                f"formula {self.text!r}: {column.name!r} has {len(column.categories)} categories",
                hint="Outcomes are quantities, columns of two categories, of ordered ones (kind = ordinal in the "
                "schema), or Surv(time, event).",
            )
        return (place,), "ordered"

    def terms(self, right: str, outcome: tuple[int, ...]) -> tuple[list[Term], list[Factor], bool]:
        found: list[Term] = []
        offsets: list[Factor] = []
        intercept = True
        for sign, part in _split(plain(right, self.schema.names, self.quoted), "+-"):
            part = part.strip()
            if part in ("0", "1"):
                intercept = (part == "1") == (sign == "+")
                continue
            if sign == "+" and (inner := re.fullmatch(r"offset\s*\((.*)\)", part)):
                offsets.append(replace(self._factor(f"I({inner[1]})"), name=self._shown(part)))
                continue
            for term in self._expanded(part, outcome):
                found = [t for t in found if t.key != term.key]
                if sign == "+":
                    found.append(term)
        if not found and not intercept:
            raise UserError(f"formula {self.text!r}: no terms", hint=_HINT)
        return found, offsets, intercept

    def _expanded(self, part: str, outcome: tuple[int, ...]) -> list[Term]:
        if part == ".":
            own = (self.schema.duration, self.schema.event)
            entry = self.schema.entry if tuple(self.schema.column(p).name for p in outcome) == own else None
            named = [(p, self.schema.column(p).name) for p in range(len(self.schema.modelled)) if p not in outcome]
            # Late entry does not explain the outcome.
            return [Term(factors=(self._column(p, name),)) for p, name in named if name != entry]
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
            return self._column(place, written, reference=at)
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

    def _column(self, place: int, written: str, *, reference: int = 0) -> Factor:
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
        """The column of `C(g)`, `factor(g)` or `C(g, Treatment('b'))`, and the level that is requested as reference."""
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
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in NOT_BUILT:
            raise UserError(f"formula {self.text!r}: {name}()", hint=NOT_BUILT[name])
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
    depth, start, at, sign = 0, 0, 0, "+"
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


def check_pair(schema: Schema, time: Column, event: Column, *, where: str = "") -> None:
    """Refuse columns that are no follow-up time and event, and an event whose levels do not say which of them it is."""
    if not time.is_quantity or len(event.categories) < 2 or (len(event.categories) > 2 and event.name != schema.event):
        raise UserError(
            f"{where}{time.name!r} and {event.name!r} are no time and event of two levels",
            hint=f"Competing causes are named where the table is read: {option('event', event.name)}, "
            f"{option('event_level')}.",
        )
    if time.low is not None and time.low < 0:
        raise UserError(
            f"{where}{time.name!r} goes down to {time.low:g}", hint="Follow-up times are numbers, 0 or more."
        )
    if event.name == schema.event:
        return
    levels, _ = event_levels(event.categories, name=event.name, where=f"{where}{event.name!r}")
    if levels != event.categories:
        raise UserError(
            f"{where}{event.name!r} has {event.categories[0]!r} first, which would turn the event over",
            hint=f"Name the pair where the table is read: {option('duration', time.name)}, "
            f"{option('event', event.name)}.",
        )
