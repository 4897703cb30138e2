"""Conditions on columns ("sex == 0 and age >= 70") and constraints between them ("dbp < sbp"), as limits per cell;
and the expressions that these and the formulas of an imputation are written in."""

from __future__ import annotations

import ast
import dataclasses
import datetime as dt
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np

from unmask.errors import UserError, suggest
from unmask.modalities.table.reading.parse import FORMATS, days, text_of
from unmask.modalities.table.schema.schema import Column, Schema

_HINT = "For example: sex == 0 and age >= 70, or tgrade in ['I', 'II'], or `HistoryHTN ` == 1."
_FLIP: dict[type, type] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What one column may be: within [low, high] (ends included), or one of some categories. `allowed`: (categories,)
    booleans, None for a quantity."""

    low: float = -math.inf
    high: float = math.inf
    allowed: np.ndarray | None = None

    @classmethod
    def of(cls, column: Column) -> Limit:
        """What the column itself allows: its range, or all its categories."""
        if not column.is_quantity:
            return cls(allowed=np.ones(len(column.categories), bool))
        low = -math.inf if column.low is None else column.low
        return cls(low=low, high=math.inf if column.high is None else column.high)

    def __and__(self, other: Limit) -> Limit:
        allowed = self.allowed if other.allowed is None else other.allowed
        if self.allowed is not None and other.allowed is not None:
            allowed = self.allowed & other.allowed
        return Limit(low=max(self.low, other.low), high=min(self.high, other.high), allowed=allowed)

    @property
    def empty(self) -> bool:
        return self.low > self.high or (self.allowed is not None and not self.allowed.any())

    def holds(self, x: np.ndarray) -> np.ndarray:
        """Which values meet it; a missing one does not."""
        if self.allowed is not None:
            known = ~np.isnan(x)
            return known & self.allowed[np.where(known, x, 0).astype(int)]
        return (x >= self.low) & (x <= self.high)

    def inverse(self) -> Limit | None:
        """Everything else, where that is one limit."""
        if self.allowed is not None:
            return Limit(allowed=~self.allowed)
        if self.low == -math.inf and self.high < math.inf:
            return Limit(low=math.nextafter(self.high, math.inf))
        if self.high == math.inf and self.low > -math.inf:
            return Limit(high=math.nextafter(self.low, -math.inf))
        return None


def _tree(text: str, schema: Schema, what: str) -> tuple[ast.expr, dict[str, str]]:
    quoted: dict[str, str] = {}
    code = text if len(text) > LONGEST else plain(text, schema.names, quoted, " and ")
    return parsed(code, f"{what} {text!r}", hint=_HINT), quoted


def parse_where(texts: Sequence[str] | str | Mapping[str, object] | None, schema: Schema) -> dict[int, Limit]:
    """Conditions as a limit per place among the modelled columns; several are joined by 'and'. `texts`: expressions, or
    a mapping of column -> value."""
    if not texts:
        return {}
    if isinstance(texts, Mapping):
        texts = [f"`{k}` == {_literal(v)}" for k, v in texts.items()]
    out: dict[int, Limit] = {}
    for text in [texts] if isinstance(texts, str) else texts:
        tree, quoted = _tree(text, schema, "condition")
        for part in _conjuncts(tree, text):
            for place, limit in _comparison(part, schema, quoted, text):
                out[place] = out[place] & limit if place in out else limit
                if out[place].empty:
                    raise UserError(
                        f"condition {text!r}: nothing is left for {schema.column(place).name!r}",
                        hint=f"The conditions contradict each other{_precision(schema.column(place))}.",
                    )
    return out


def _literal(value: object) -> str:
    """A value as it is written in a condition."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[s]").item()
    if isinstance(value, dt.date):
        return repr(value.strftime("%Y-%m-%d %H:%M:%S" if isinstance(value, dt.datetime) else "%Y-%m-%d"))
    return repr(value.item() if isinstance(value, np.generic) else value)


def _conjuncts(tree: ast.expr, text: str) -> list[ast.expr]:
    if isinstance(tree, ast.BoolOp):
        if isinstance(tree.op, ast.Or):
            raise UserError(f"condition {text!r}: 'or' is not supported", hint="Use `in [...]`, or one call each.")
        return [part for value in tree.values for part in _conjuncts(value, text)]
    return [tree]


def _comparison(node: ast.expr, schema: Schema, quoted: dict[str, str], text: str) -> list[tuple[int, Limit]]:
    if not isinstance(node, ast.Compare):
        raise UserError(f"condition {text!r}: {ast.unparse(node)!r} is not a comparison", hint=_HINT)
    sides = [node.left, *node.comparators]
    out = []
    for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
        kind: type = type(op)
        if not isinstance(left, ast.Name | ast.Attribute) and isinstance(right, ast.Name | ast.Attribute):
            left, right, kind = right, left, _FLIP.get(kind, kind)
        place = _place(left, schema, quoted, f"condition {text!r}: ")
        out.append((place, _limit(schema.column(place), kind, _value(right, text), text)))
    return out


def _place(node: ast.expr, schema: Schema, quoted: dict[str, str], where: str) -> int:
    return schema.place(quoted.get(ast.unparse(node), ast.unparse(node)), where=where)


def _value(node: ast.expr, text: str) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):  # a set of lists
        if isinstance(node, ast.Name):
            return node.id
        raise UserError(f"condition {text!r}: {ast.unparse(node)!r} is not a value", hint=_HINT) from None


def _day(column: Column, value: object, text: str) -> float:
    """A date of a condition, written as the column's dates are or as 2020-01-31, as days since 1970."""
    shown = column.format or "%Y-%m-%d"
    forms = [shown, *(form for form in FORMATS if form.startswith("%Y"))]  # the others may mean two days
    found = [days(np.array([value], dtype=object), form) for form in forms if isinstance(value, str)]
    good = [float(day[0]) for day, bad in found if not bad[0]]
    if not good:
        raise UserError(
            f"condition {text!r}: {column.name!r} is a date, {value!r} is none",
            hint=f"Write it in quotes, as '2020-01-31' or as the column does ({shown}).",
        )
    return good[0]


def _precision(column: Column) -> str:
    """What a column's values are where they are rounded: between two of them lies none."""
    if column.decimals is None or column.kind == "datetime":
        return ""
    return f", or name none of its values: {'whole numbers' if not column.decimals else f'{column.decimals} decimals'}"


def _limit(column: Column, kind: type, value: object, text: str) -> Limit:
    if not column.is_quantity:
        ordered = column.kind == "ordinal"
        values = list(value) if isinstance(value, list | tuple | set) else [value]
        for v in values:
            if text_of(v) not in column.categories:
                raise UserError(
                    f"condition {text!r}: {column.name!r} has no category {text_of(v)!r}",
                    hint=suggest(text_of(v), column.categories),
                )
        hit = np.isin(column.categories, [text_of(v) for v in values])
        place = int(hit.argmax())
        rank = np.arange(len(hit))
        found = {ast.Eq: hit, ast.In: hit, ast.NotEq: ~hit, ast.NotIn: ~hit}
        if ordered:
            found |= {ast.Lt: rank < place, ast.LtE: rank <= place, ast.Gt: rank > place, ast.GtE: rank >= place}
        if kind not in found:
            raise UserError(f"condition {text!r}: {column.name!r} has no order", hint="Use ==, != or in.")
        return Limit(allowed=found[kind])
    if column.kind == "datetime":
        value = _day(column, value, text)
    if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > 1e200:
        raise UserError(
            f"condition {text!r}: {column.name!r} is a quantity", hint="Compare it with a number, up to 1e200."
        )
    at_least, below, at_most, above = value, math.nextafter(value, -math.inf), value, math.nextafter(value, math.inf)
    # In decimals, as the number is written: .29 * 100 is not 29 in floats.
    if column.decimals is not None and abs(steps := Decimal(str(value)).scaleb(column.decimals)) < 10**15:
        least, most = math.ceil(steps), math.floor(steps)
        ends = np.array([least, least - 1, most, most + 1]) / 10.0**column.decimals
        at_least, below, at_most, above = (float(end) for end in ends)
    limits = {
        ast.Eq: (at_least, at_most),
        ast.Lt: (-math.inf, below),
        ast.LtE: (-math.inf, at_most),
        ast.Gt: (above, math.inf),
        ast.GtE: (at_least, math.inf),
    }
    if kind not in limits:
        raise UserError(f"condition {text!r}: not possible for a quantity", hint="Use ==, <, <=, > or >=.")
    return Limit(low=limits[kind][0], high=limits[kind][1])


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """A rule between columns: an order ("a < b"), an implication ("a == 1 -> b == 0"), or a formula ("c := a / b").

    Attributes:
        columns: places among the modelled ones.
        formula: values by place -> the computed column.
        solve: column of the formula -> what it must be, given the others and the computed one. Columns that the formula
            names once can be solved for; of a power the positive root is taken.
        implied: it follows from what the columns are, and was not given by the user.
    """

    text: str
    kind: str
    columns: tuple[int, ...]
    strict: bool = False
    implied: bool = False
    premise: Limit = Limit()
    conclusion: Limit = Limit()
    formula: Computed | None = dataclasses.field(default=None, compare=False)
    solve: dict[int, Computed] = dataclasses.field(default_factory=dict, compare=False)


def parse_constraints(texts: Sequence[str], schema: Schema) -> list[Constraint]:
    """Rules that imputed and synthetic rows meet: "a < b", "a <= b <= c", "a == 1 -> b == 0", "c := a / b**2"."""
    out = []
    for text in texts:
        if ":=" in text:
            out.append(_formula(text, schema))
        elif "->" in text:
            sides = [parse_where([side], schema) for side in text.split("->", 1)]
            if any(len(s) != 1 for s in sides):
                raise UserError(f"constraint {text!r}: one column on each side of ->", hint="Write several rules.")
            (a, premise), (b, conclusion) = (next(iter(s.items())) for s in sides)
            out.append(Constraint(text=text, kind="implies", columns=(a, b), premise=premise, conclusion=conclusion))
        else:
            out += _orders(text, schema)
    return out


def _orders(text: str, schema: Schema) -> list[Constraint]:
    """One rule per neighbouring pair of a chain of quantities."""
    tree, quoted = _tree(text, schema, "constraint")
    if not isinstance(tree, ast.Compare) or any(type(op) not in _FLIP for op in tree.ops):
        raise UserError(
            f"constraint {text!r} cannot be read", hint="Forms: a < b, a <= b <= c, a == 1 -> b == 0, c := a / b**2"
        )
    if any(isinstance(n, ast.Constant | ast.UnaryOp) for n in (tree.left, *tree.comparators)):
        raise UserError(
            f"constraint {text!r}: a rule orders columns, and this bounds one by a constant",
            hint="Bounds stand in the schema: low = 0 or high = 0 under [columns.NAME].",
        )
    sides = [_place(n, schema, quoted, f"constraint {text!r}: ") for n in (tree.left, *tree.comparators)]
    out = []
    for a, op, b in zip(sides, tree.ops, sides[1:], strict=False):
        kind = type(op)
        if kind in (ast.Gt, ast.GtE):
            a, b = b, a
        if kind in (ast.Eq, ast.NotEq) or not all(schema.column(c).is_quantity for c in (a, b)):
            raise UserError(f"constraint {text!r}: an order of two quantities is expected", hint="Use < or <=.")
        strict = kind in (ast.Lt, ast.Gt)
        pair = f"{schema.column(a).name} {'<' if strict else '<='} {schema.column(b).name}"
        out.append(Constraint(text=text if len(tree.ops) == 1 else pair, kind="order", columns=(a, b), strict=strict))
    return out


def _root(goal: np.ndarray, power: np.ndarray) -> np.ndarray:
    return np.where(goal >= 0, np.power(np.maximum(goal, 0), 1 / power), np.nan)


_UNDONE: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {
    ast.Add: (np.subtract, np.subtract),
    ast.Sub: (np.add, lambda goal, left: left - goal),
    ast.Mult: (np.divide, np.divide),
    ast.Div: (np.multiply, lambda goal, left: left / goal),
    ast.Pow: (_root, lambda goal, left: np.log(goal) / np.log(left)),
}
"""Operation -> its left, its right side from the result and the other side."""


def _formula(text: str, schema: Schema) -> Constraint:
    target, expression = (part.strip() for part in text.split(":=", 1))
    where = f"constraint {text!r}: "
    tree, quoted = _tree(expression, schema, "constraint")
    used: list[int] = []

    def quantity(name: str) -> int:
        number = schema.number(name, where=where)
        if not schema.columns[number].modelled or not schema.columns[number].is_quantity:
            raise UserError(f"{where}{name!r} is not a quantity", hint="Formulas compute with quantities.")
        return schema.place(name)

    def named(node: ast.expr) -> int:
        return quantity(quoted.get(ast.unparse(node), ast.unparse(node)))

    def noted(node: ast.expr) -> int:
        used.append(named(node))
        return used[-1]

    def other(node: ast.expr) -> Computed:
        raise UserError(
            f"constraint {text!r}: {ast.unparse(node)!r} is not allowed", hint="Use + - * / ** and numbers."
        )

    formula = computed(tree, noted, other)
    result = quantity(target.strip("`"))

    def holds(node: ast.expr, number: int) -> bool:
        return number in [named(n) for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)]

    def turned(node: ast.expr, number: int, goal: Computed) -> Computed:
        """What the column must be for the node to have a value."""
        if not isinstance(node, ast.BinOp):
            return goal
        left = holds(node.left, number)
        rest = computed(node.right if left else node.left, named, other)
        undo = _UNDONE[type(node.op)][0 if left else 1]
        return turned(node.left if left else node.right, number, lambda values: undo(goal(values), rest(values)))

    once = [c for c in used if used.count(c) == 1 and c != result]
    solve = {c: turned(tree, c, lambda values: values[result]) for c in once}
    # The order of columns: the computed one, then those it is computed from, each once.
    return Constraint(text=text, kind="formula", columns=(result, *dict.fromkeys(used)), formula=formula, solve=solve)


def formulas_in_order(rules: Sequence[Constraint]) -> list[Constraint]:
    """The formulas among the rules, each after those whose result it reads."""
    found: dict[int, Constraint] = {}
    for rule in (r for r in rules if r.kind == "formula"):
        if rule.columns[0] in found:
            raise UserError(f"{rule.text!r} and {found[rule.columns[0]].text!r}", hint="Compute a column once.")
        found[rule.columns[0]] = rule
    for rule in (r for r in rules if r.kind != "formula" and set(r.columns) & set(found)):
        raise UserError(f"constraint {rule.text!r}: on a computed column", hint="Bind what it is computed from.")
    try:
        order = list(TopologicalSorter({k: r.columns[1:] for k, r in found.items()}).static_order())
    except CycleError as error:
        rule = found[error.args[1][0]]
        raise UserError(f"constraint {rule.text!r}: computed from itself", hint="Break the circle.") from None
    return [found[k] for k in order if k in found]


LONGEST = 2000
"""Characters of one expression."""
DEEPEST = 40
"""Expressions within each other."""
OPERATIONS: dict[type, Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
}
Computed = Callable[[Any], np.ndarray]
"""Of values by column, what an expression comes to."""


def plain(text: str, names: Sequence[str], quoted: dict[str, str], conjunction: str = "&") -> str:
    """The text with odd names of columns, in backticks or as they stand, replaced by names that Python reads; what
    stands in quotes is a value and stays. `names`: of all columns; `quoted`: gets those that were replaced, by what
    stands for them; `conjunction`: stands for `&`."""

    def read(match: re.Match[str]) -> str:
        found = match.group()
        if found[0] in "'\"":
            return found
        if found == "&":
            return conjunction
        key = f"column_{len(quoted)}_"
        quoted[key] = found.strip("`")
        return key

    # Names such as flc.grp or Age.3.categories read as they stand.
    odd = [n for n in names if not n.isidentifier() and n.strip() == n and n]
    listed = "|".join(re.escape(n) for n in sorted(odd, key=len, reverse=True))
    known = rf"(?<![\w.])(?:{listed})(?![\w.])|" if listed else ""
    return re.sub(rf"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|{known}&""", read, text)


def parsed(code: str, what: str, *, hint: str) -> ast.expr:
    """The tree of one expression. `what`: names it in messages."""
    if len(code) > LONGEST:
        raise UserError(f"{what[:80]}...: {len(code):,} characters", hint=f"Up to {LONGEST:,} are read.")
    try:
        tree = ast.parse(code.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a zero byte is a ValueError
        raise UserError(f"{what} cannot be read", hint=hint) from None
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        if any(isinstance(node, ast.JoinedStr) for node in level):
            raise UserError(f"{what}: an f-string", hint=hint)
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
        if not level:
            return tree
    raise UserError(f"{what}: more than {DEEPEST} expressions within each other", hint=hint)


def computed(node: ast.expr, column: Callable[[ast.expr], int], other: Callable[[ast.expr], Computed]) -> Computed:
    """What an expression of numbers and columns comes to. `column`: the key of a column among the values, from its
    name; `other`: of what is neither a number, a column nor one of the five operations."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        constant = np.asarray(node.value, np.float64)
        return lambda values: constant
    if isinstance(node, ast.Name | ast.Attribute):
        key = column(node)
        return lambda values: values[key]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        operation = OPERATIONS[type(node.op)]
        left, right = computed(node.left, column, other), computed(node.right, column, other)
        return lambda values: operation(left(values), right(values))
    return other(node)
