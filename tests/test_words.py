"""Names are the field's words: what is on this list is not used for a new one, and goes where a file is touched.

The word that stands instead is PyTorch's, transformers', scikit-learn's, lifelines' or MEDS': requested, notes,
warnings, masked, missing, baseline, evaluation, schedule, checkpointer, co-occurrence.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "unmask"
MOST = {
    "told": 0,
    "said": 0,
    "asked": 0,
    "asking": 0,
    "gone": 0,
    "beside": 0,
    "look": 0,
    "looks": 0,
    "looked": 0,
    "apart": 0,
    "parted": 2,
    "begun": 0,
    "mine": 0,
    "company": 0,
    "whose": 0,
    "tells": 0,
    "goes": 0,
    "stands": 0,
    "standing": 0,
    "course": 0,
    "keeper": 0,
    "trouble": 0,
    "whom": 0,
}
"""Names that still hold each word; a number here only ever falls."""


def bound(tree: ast.AST) -> list[str]:
    """Names that a module binds: variables, arguments, attributes, functions, classes."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.append(node.id)
        elif isinstance(node, ast.arg):
            found.append(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.append(node.attr)
        elif isinstance(node, ast.alias) and node.asname:
            found.append(node.asname)
    return found


def words_of(name: str) -> set[str]:
    """Its words in small letters: of a class those that begin with capitals."""
    spaced = "".join(f"_{c}" if c.isupper() and not name.isupper() else c for c in name)
    return set(spaced.lower().split("_"))


def test_no_new_name_holds_a_word_of_the_list():
    counts: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        for name in bound(ast.parse(path.read_text(encoding="utf-8"))):
            counts.update(words_of(name) & MOST.keys())
    more = {word: counts[word] for word in MOST if counts[word] > MOST[word]}
    assert not more, f"names with these words (git grep -w): {more}, at most { ({w: MOST[w] for w in more}) }"
    fewer = {word: counts[word] for word in MOST if counts[word] < MOST[word]}
    assert not fewer, f"fewer names hold them now, so lower MOST: {fewer}"


def test_words_of_names():
    assert words_of("said_of_empty") & MOST.keys() == {"said"}
    assert words_of("_AskedFor") & MOST.keys() == {"asked"}
    assert words_of("MOST_ASKED") & MOST.keys() == {"asked"}
    assert not words_of("lookup") & MOST.keys()
