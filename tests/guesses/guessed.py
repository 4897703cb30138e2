"""What people type who come from another library: each call works as they mean it, or an error names ours.

One file per kind of data holds the calls (`text.toml`, `table.toml`, `images.toml`, `events.toml`), and a module beside
it (`guess_text.py`, ...) has a function `names(home)`: it makes the files that the calls read, in `home`, which is the
current folder while they run, and returns the names that they use besides `unmask`. `test_guesses.py` runs every row;
docs/make/doc_guesses.py draws the page docs/reference/names-people-guess.md from the same rows. A row is

    [[guess]]
    known_from = "sentence-transformers"       # the library, or habit
    call = 'unmask.load("lm").encode(texts)'   # as they type it; of several lines the last is an expression
    gives = "found.shape == (2, 32)"           # works as meant: true of its value `found` (no key `says` then)
    says = "model.generate(prefix"             # refused: what the error holds, our call in it (no key `gives` then)
    ours = 'unmask.load("lm").embed(texts)'    # the call of ours; "" where theirs is it

An error is a `UserError`, `AttributeError`, `TypeError` or `ImportError`: nothing else may come of a call.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

KINDS = {"text": "Text", "table": "Tables", "images": "Pictures", "events": "Patient events"}


@dataclass(frozen=True, kw_only=True)
class Guess:
    """A call that people guess; the module's docstring says what the fields hold."""

    known_from: str
    call: str
    ours: str = ""
    gives: str | None = None
    says: str | None = None

    def __post_init__(self) -> None:
        if (self.gives is None) == (self.says is None):
            raise ValueError(f"{self.call}: it either gives something or says something")


def guesses(kind: str) -> list[Guess]:
    """The rows of a kind of data."""
    path = Path(__file__).with_name(f"{kind}.toml")
    return [Guess(**row) for row in tomllib.loads(path.read_text())["guess"]] if path.exists() else []
