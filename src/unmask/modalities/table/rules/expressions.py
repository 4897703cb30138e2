"""Expressions that people and requests bring (conditions, rules, formulas), read by Python's grammar and never
evaluated; what would take long to read is refused before. A name that is not a Python name is put in backticks."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from unmask.errors import UserError

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
    stands in quotes is a value and stays.

    Args:
        names: of all columns.
        quoted: gets the names that were replaced, by what stands for them.
        conjunction: stands for `&`.
    """

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
