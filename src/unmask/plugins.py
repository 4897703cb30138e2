"""What stands under a name or a reference ("package.module:name"): of unmask, of installed packages, or a user's own.

Nothing is imported before it is asked for.
"""

from __future__ import annotations

import ast
import functools
import gc
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.elsewhere import FUNCTIONS, ours
from unmask.errors import UserError, suggest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True, kw_only=True)
class Plugins:
    """The things of one sort, by name.

    Args:
        group: of the entry points, such as 'unmask.tasks'.
        noun: what one of them is called in messages.
        built_in: name -> 'package.module:name' of those that unmask brings; they are known without metadata too, so
            that it runs from a source tree.
    """

    group: str
    noun: str
    built_in: Mapping[str, str]

    def names(self) -> list[str]:
        """All names: unmask's own first, then those of other packages, sorted. Nothing is imported."""
        return [*self.built_in, *sorted({point.name for point in self._foreign()})]

    def load(self, name: str) -> Any:
        """What stands under a name."""
        if name in self.built_in:
            return resolve(self.built_in[name])
        points = [point for point in self._foreign() if point.name == name]
        if not points:
            raise UserError(f"{self.noun} {name!r}", hint=suggest(name, self.names()))
        if len({point.value for point in points}) > 1:
            raise UserError(
                f"{self.noun} {name!r} is announced twice: by {' and '.join(map(_package, points))}",
                hint="Uninstall one of them.",
            )
        try:
            return points[0].load()
        except UserError:
            raise
        except Exception as error:  # importing somebody else's package raises anything
            raise UserError(
                f"{self.noun} {name!r} of {_package(points[0])} cannot be imported: {type(error).__name__}: {error}",
                hint="Mend, update or uninstall that package.",
            ) from error

    def origin(self, name: str) -> str:
        """Which package a name comes from, in words."""
        return next((_package(point) for point in self._foreign() if point.name == name), "unmask")

    def left_out(self) -> list[str]:
        """What other packages announce under a name of unmask's own, in words: unmask's stands."""
        points = [point for point in _announced(self.group, tuple(sys.path)) if point.name in self.built_in]
        return [
            f"{self.noun} {point.name!r} of {_package(point)} is left out: the name is unmask's own"
            for point in points
            if point.value != self.built_in[point.name] and (point.dist is None or point.dist.name != "unmask")
        ]

    def _foreign(self) -> list[EntryPoint]:
        points = _announced(self.group, tuple(sys.path))
        return [point for point in points if point.name not in self.built_in]


@functools.cache
def _announced(group: str, path: tuple[str, ...]) -> list[EntryPoint]:
    """The entry points of a group, for as long as `sys.path` stays; looking takes 10 ms."""
    from importlib.metadata import entry_points  # with a third of what `import unmask` takes

    return list(entry_points(group=group))


def _package(point: EntryPoint) -> str:
    return f"package {point.dist.name} ({point.value})" if point.dist else point.value


def resolve(reference: str) -> Any:
    """What "package.module:name" (or "package.module:class.method") refers to.

    Imported without garbage collection: where torch comes with it, a tenth of a second sooner (of one).
    """
    module, colon, name = reference.partition(":")
    if not (module and colon and name):
        raise UserError(f"{reference!r} is no reference", hint='Expected "package.module:name".')
    collecting = gc.isenabled()
    gc.disable()
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise UserError(
            f"{reference}: no module {error.name!r}", hint="Is its package installed, or its folder on PYTHONPATH?"
        ) from None
    finally:
        if collecting:
            gc.enable()
    try:
        return functools.reduce(getattr, name.split("."), found)
    except AttributeError:
        raise UserError(f"{reference}: {module} has no {name!r}", hint=f"Looked in {found.__file__}.") from None


def lazily(module: str, **homes: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a module whose `if TYPE_CHECKING:` block says which names it passes on:
    those that are imported `as` themselves, and those set equal to one. Each is imported when it is first used.

    Args:
        module: its name.
        homes: further names -> "package.module:name" of where they are.
    """
    source = inspect.getsource(sys.modules[module])
    (block,) = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    public = set(homes)
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            homes |= {alias.name: f"{node.module}:{alias.name}" for alias in node.names}
            public |= {alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            (name,) = (target.id for target in node.targets if isinstance(target, ast.Name))
            homes[name] = homes[node.value.id]
            public.add(name)

    def get(name: str) -> Any:
        if name not in public:
            call = ours(name, FUNCTIONS)
            if call and name[:1].isupper():  # `from unmask import` has words of its own for an AttributeError
                raise UserError(f"{module} has no {name!r}", hint=f"Here it is {call}.")
            raise AttributeError(
                f"module {module!r} has no attribute {name!r}" + (f": here it is {call}" if call else "")
            )
        submodule = homes[name] == f"{module}:{name}"
        return importlib.import_module(f"{module}.{name}") if submodule else resolve(homes[name])

    return get, lambda: sorted(public), sorted(public)


MODELS = Plugins(group="unmask.models", noun="model", built_in={})
"""Models that installed packages bring: a name, and a function without arguments that returns the folder."""


def installed_model(name: str | Path) -> Path | None:
    """The folder of an installed model of this name; None where no package announces one, or a
    folder of that name is here.
    """
    if not isinstance(name, str) or Path(name).exists() or name not in MODELS.names():
        return None
    folder = Path(MODELS.load(name)())
    if not folder.is_dir():
        raise UserError(
            f"model {name!r} of {MODELS.origin(name)}: {folder} is no folder", hint="Install that package again."
        )
    return folder
