"""Expressions that people and requests bring (conditions, rules, formulas), read by Python's grammar and never
evaluated; what would take long to read is refused before."""

from __future__ import annotations

import ast

from unmask.errors import UserError

LONGEST = 2000
"""Characters of one expression."""
DEEPEST = 40
"""Expressions within each other."""


def parsed(code: str, what: str, *, hint: str) -> ast.expr:
    """The tree of one expression.

    Args:
        what: names it in messages.
    """
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
