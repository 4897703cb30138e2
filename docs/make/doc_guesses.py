"""The page of names that people guess, from the tables that tests/guesses runs."""

from __future__ import annotations

import sys

from doc_links import ROOT

INTRODUCTION = """# Names people guess

What people type who come from another library. The tests run each call of these tables on a tiny model: {works} work as
meant, {refused} are refused with an error that names the call of ours beside them.
"""
HEADING = ["| known from | as people type it | works | the call of ours |", "|---|---|---|---|"]


def guesses_page() -> str:
    """The page."""
    sys.path.append(str(ROOT / "tests" / "guesses"))
    from guessed import KINDS, guesses

    tables = {title: rows for kind, title in KINDS.items() if (rows := guesses(kind))}
    refused = sum(guess.says is not None for rows in tables.values() for guess in rows)
    lines = [INTRODUCTION.format(works=sum(map(len, tables.values())) - refused, refused=refused)]
    for title, rows in tables.items():
        lines += [f"## {title}", "", *HEADING]
        for guess in rows:
            cells = (guess.known_from, _code(guess.call), "no" if guess.gives is None else "yes", _code(guess.ours))
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _code(call: str) -> str:
    """A call in a cell, its lines below each other."""
    return "<br>".join("`" + line.replace("|", "\\|") + "`" for line in call.strip().splitlines())
