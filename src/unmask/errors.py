"""The one exception for a person's mistake: what, where, what was expected, what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The command line prints it without a traceback and exits with code 2.

    Args:
        what: what is wrong, naming file, row, column or key and the offending value.
        hint: what was expected and what to do next.
    """

    exit_code = 2

    def __init__(self, what: str, *, hint: str = "") -> None:
        self.what, self.hint = what, hint
        super().__init__(f"{what}\n  {hint}" if hint else what)


def suggest(name: str, known: Iterable[str]) -> str:
    """A sentence naming the closest known spelling, or listing what is known.

    >>> suggest("leraning_rate", ["learning_rate", "seed"])
    "Did you mean 'learning_rate'?"
    >>> suggest("zzz", ["learning_rate", "seed"])
    'Known: learning_rate, seed.'
    >>> suggest("age", ["age ", "aged"])
    "'age ' differs in its blanks alone: strip them from the name."
    """
    known = sorted(known)
    blanks = next((k for k in known if k.strip() == name.strip()), None)
    if blanks is not None:
        odd = blanks if blanks != blanks.strip() else name
        return f"{odd!r} differs in its blanks alone: strip them from the name."
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean '{close[0]}'?" if close else f"Known: {', '.join(known)}."
