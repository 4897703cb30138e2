"""Which module imports which, read from the source: imports in functions and under TYPE_CHECKING count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import unmask

Graph = Mapping[str, frozenset[str]]


@cache
def imports() -> Graph:
    """Module of the package -> modules of the package that it imports."""
    root = Path(unmask.__file__).parent
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = ["unmask", *path.relative_to(root).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return {name: frozenset(m for m in _named(tree, set(found)) if m != name) for name, tree in found.items()}


def _named(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "imports name the whole module"
            for name in node.names:
                whole = f"{node.module}.{name.name}"
                yield from {whole if whole in modules else node.module or ""} & modules
        elif isinstance(node, ast.Import):
            yield from {name.name for name in node.names} & modules


def within(graph: Graph, package: str) -> Graph:
    """The modules of a package, and their arrows to each other."""
    own = {name for name in graph if name == package or name.startswith(package + ".")}
    return {name: graph[name] & own for name in own}


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules that all import each other, directly or through others (Tarjan 1972)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], number[other])
        if lowest[name] == number[name]:
            start = stack.index(name)
            if len(stack) - start > 1:
                found.append(sorted(stack[start:]))
            del stack[start:]

    for name in sorted(graph):
        if name not in number:
            visit(name)
    return found


def upward(graph: Graph, layer: Mapping[str, int]) -> list[str]:
    """Arrows from a lower layer to a higher one, or between rooms of one layer.

    Args:
        layer: prefix of module names (a room) -> its layer, 0 for the lowest; the longest prefix counts.

    Raises:
        KeyError: a module in no room.
    """
    rooms = sorted(layer, key=len, reverse=True)

    def room(name: str) -> str:
        for prefix in rooms:
            if name == prefix or name.startswith(prefix + "."):
                return prefix
        raise KeyError(f"{name} is in no room: say in which layer it stands")

    return [
        f"{name} -> {other}"
        for name, others in sorted(graph.items())
        for other in sorted(others)
        if room(name) != room(other) and layer[room(name)] <= layer[room(other)]
    ]
