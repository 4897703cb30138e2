"""The public names: what `unmask` and the modules of its modalities offer, and the types that these hand out."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import unmask

MODULES = ("unmask", "text", "table", "images", "events")


@dataclass(frozen=True)
class Name:
    """A public name.

    Args:
        title: as users write it: `TextModel.fill`.
        thing: the object; of a method the plain function, of a property its getter.
        kind: "class", "function", "method", "property" or "value".
    """

    title: str
    thing: Any
    kind: str

    @property
    def documentation(self) -> str:
        """Its own docstring; "" where it has none but what Python writes for a dataclass by itself."""
        text = inspect.getdoc(self.thing) or ""
        automatic = self.kind == "class" and text.startswith(f"{self.thing.__name__}(")
        return "" if automatic or self.kind == "value" else text


def module(name: str) -> ModuleType:
    """The public module called `unmask` or `unmask.NAME`."""
    return unmask if name == "unmask" else getattr(unmask, name)


@functools.cache
def homes() -> dict[int, tuple[str, str]]:
    """Object -> (module, name) where the reference describes it: at its modality, else in `unmask`; under its own name
    where it has several."""
    found: dict[int, tuple[str, str]] = {}
    for place in (*MODULES[1:], "unmask"):
        for name, thing in offered(place).items():
            own = getattr(thing, "__name__", name) == name
            if id(thing) not in found or (own and found[id(thing)][0] == place):
                found[id(thing)] = (place, name)
    return found


@functools.cache
def offered(place: str) -> dict[str, Any]:
    """Name -> object of a public module, without modules."""
    found = {name: getattr(module(place), name) for name in dir(module(place))}
    return {n: thing for n, thing in found.items() if not inspect.ismodule(thing) and not n.startswith("_")}


def described(place: str) -> list[Name]:
    """The names that the page of a module describes, without members."""
    names = offered(place)
    return [_name(n, thing) for n, thing in names.items() if homes()[id(thing)] == (place, n)]


def aliases(place: str) -> dict[str, tuple[str, str]]:
    """The other names of a module: name -> (module, name) where the same object is described."""
    found = {n: homes()[id(thing)] for n, thing in offered(place).items()}
    return {n: home for n, home in found.items() if home != (place, n)}


def _name(title: str, thing: Any) -> Name:
    if inspect.isclass(thing):
        return Name(title, thing, "class")
    return Name(title, thing, "function" if callable(thing) else "value")


def members(name: Name) -> Iterator[Name]:
    """The public methods and properties of a class that unmask itself defines, inherited ones too."""
    if name.kind != "class":
        return
    fields = {f.name for f in dataclasses.fields(name.thing)} if dataclasses.is_dataclass(name.thing) else set()
    for key in dir(name.thing):
        if key.startswith("_") or key in fields:
            continue
        found = inspect.getattr_static(name.thing, key)
        prop = isinstance(found, (property, functools.cached_property))
        thing = (found.fget if isinstance(found, property) else found.func) if prop else found
        thing = getattr(thing, "__func__", thing)
        if callable(thing) and str(getattr(thing, "__module__", "")).startswith("unmask"):
            yield Name(f"{name.title}.{key}", thing, "property" if prop else "method")


@functools.cache
def handed_out() -> list[Name]:
    """Classes of unmask that public functions and methods return or take, and that no public module offers."""
    seen = set(homes())
    found: dict[str, Name] = {}
    waiting = [name for place in MODULES for name in described(place)]
    while waiting:
        name = waiting.pop()
        for one in (name, *members(name)):
            for thing in _classes_of(one.thing):
                if (
                    id(thing) not in seen
                    and thing.__module__.startswith("unmask")
                    and not thing.__name__.startswith("_")
                ):
                    seen.add(id(thing))
                    found[thing.__name__] = Name(thing.__name__, thing, "class")
    return [found[n] for n in sorted(found)]


def _classes_of(thing: Any) -> Iterator[type]:
    """The classes in the hints of a function; of a class, of its fields."""
    try:
        hints = typing.get_type_hints(thing)
    except (NameError, TypeError):
        return
    waiting = list(hints.values())
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        if inspect.isclass(hint):
            yield hint


def all_names() -> list[Name]:
    """Everything the reference describes: names, the types handed out, and the members of both."""
    tops = [name for place in MODULES for name in described(place)] + handed_out()
    return [one for top in tops for one in (top, *members(top)) if one.kind != "value"]
