"""A corpus nobody has to download: the docstrings of the Python packages installed with unmask.

Read from the source files with `ast`, without importing them.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sysconfig
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path


def docstrings(
    most_characters: int = 20_000_000, *, packages: Collection[str] | None = None
) -> Iterator[tuple[str, str]]:
    """(where, text) of every docstring of at least 8 words in the installed packages, in a fixed order."""
    root = Path(sysconfig.get_paths()["purelib"])
    total = 0
    for path in sorted(root.rglob("*.py")):
        # Of the packages, not of where they are installed: a clone is likely to be called unmask.
        parts = path.relative_to(root).parts
        if {"unmask", "tests", "_vendor"} & set(parts) or (packages is not None and parts[0] not in packages):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError):
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.get_docstring(node, clean=False)
            if text is None or len(text.split()) < 8:
                continue
            text = re.sub(r"[ \t]+", " ", inspect.cleandoc(text)).strip()
            total += len(text)
            yield str(path.relative_to(root)), text
            if total > most_characters:
                return


def write_corpus(path: Path) -> dict[str, int]:
    """Docstrings to a jsonl file, one document each; exact copies are dropped when it is read."""
    documents = characters = 0
    with path.open("w", encoding="utf-8") as file:
        for where, text in docstrings():
            text = text.encode("utf-8", "replace").decode("utf-8")
            file.write(json.dumps({"source": where, "text": text}, ensure_ascii=False) + "\n")
            documents, characters = documents + 1, characters + len(text)
    return {"documents": documents, "characters": characters}
