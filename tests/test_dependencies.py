"""What the package imports is declared, and what is declared is imported."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = {"scikit-learn": "sklearn", "pillow": "PIL", "python-calamine": "python_calamine", "pyyaml": "yaml"}
BROUGHT = {"pandas"}
"""Imported only where the user's own data, or lifelines, has brought it."""


def declared(requirements: list[str]) -> set[str]:
    names = [re.match(r"[\w-]+", r).group().lower() for r in requirements]
    return {MODULES.get(name, name) for name in names}


def imported() -> set[str]:
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module)
    return {name.partition(".")[0] for name in found} - sys.stdlib_module_names - {"unmask"}


def test_dependencies_are_those_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed, extras = declared(project["dependencies"]), project["optional-dependencies"].values()
    assert needed - imported() == set()
    assert imported() - needed - BROUGHT - set().union(*map(declared, extras)) == set()


def pins(name: str) -> dict[str, str]:
    """Package -> version of a file of constraints."""
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", (ROOT / name).read_text(), re.M)
    return {re.sub(r"[-_.]+", "-", package).lower(): version for package, version in found}


def test_every_version_that_is_tested_has_its_hashes():
    assert pins("constraints-hashed.txt") == pins("constraints.txt")
    parts = re.split(r"^(?=[\w.-]+==)", (ROOT / "constraints-hashed.txt").read_text(), flags=re.M)[1:]
    assert [p for p in parts if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", p)] == []
