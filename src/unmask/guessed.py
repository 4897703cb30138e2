"""Keywords and attributes that people know by other names: taken as what they mean, or refused by our call.

They are declared where the thing is. What names of other libraries are here stands in `elsewhere.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from unmask.elsewhere import ours
from unmask.errors import UnknownSetting, UserError, flags_are_named, suggest

P = ParamSpec("P")
R = TypeVar("R")


def also_called(
    instead: Mapping[str, str] | None = None, **synonyms: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keywords of a function under the names that people know them by.

    Args:
        instead: keyword that the function does not have -> what to write.
        synonyms: name that people guess -> the keyword that means it.

    >>> @also_called({"tol": "there is no tolerance"}, num_rows="rows")
    ... def draw(rows=1):
    ...     return rows
    >>> draw(num_rows=5)
    5
    >>> draw(row=5)
    Traceback (most recent call last):
        ...
    TypeError: draw() got an unexpected keyword argument 'row'. Did you mean 'rows'?
    """
    refused = instead or {}

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
        by_place = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

        @functools.wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> R:
            if len(args) > len(by_place) + getattr(function, "takes_labels", False):  # see `writing.makes_folder`
                shown = ", ".join(key for key in by_place if key != "self") or "nothing"
                raise TypeError(f"{name}() takes {shown} by place; give the rest by name: {', '.join(parameters)}")
            for guess in [guess for guess in given if guess not in parameters]:
                ours = synonyms.get(guess)
                placed = [key for key in by_place[: len(args)] if key != "self"]
                if ours is not None and ours in placed:
                    what = f"{name}: {guess}= is {ours}, and another stands in its place"
                    raise UserError(what, hint=f"By place it takes {', '.join(by_place).removeprefix('self, ')}.")
                if ours is not None and ours in given:
                    raise UserError(f"{name}: {guess}= and {ours}=", hint="They mean the same: give one of them.")
                if ours is not None:
                    given[ours] = given.pop(guess)
                elif guess in refused:
                    raise UserError(f"{name} has no {guess}=", hint=f"{refused[guess]}.")
                elif not takes_all:
                    hint = suggest(guess, [key for key in parameters if key != "self"])
                    raise TypeError(f"{name}() got an unexpected keyword argument {guess!r}. {hint}")
            try:
                return function(*args, **given)
            except UnknownSetting as error:
                if error.name not in given or flags_are_named():
                    raise
                own = [p.name for p in parameters.values() if p.name != "self" and p.kind is not p.VAR_KEYWORD]
                close = suggest(error.name, [*own, *error.known])
                if not close.startswith("Known"):
                    raise UserError(f"{name} has no {error.name}=", hint=close) from None
                settings = ", ".join(key for key in error.known if key not in own)
                hint = f"It takes {', '.join(own)}; and settings of the network: {settings}."
                raise UserError(f"{name} has no {error.name}=", hint=hint) from None

        return call

    return decorated


class Guessed:
    """A class whose attributes are known by other names too.

    Attributes:
        guesses: name, or pattern of names -> a function of the object that gives what is meant; or a sentence that
            names our call, for an `AttributeError`.
    """

    guesses: ClassVar[Mapping[str, Callable[[Any], Any] | str]] = {}

    if not TYPE_CHECKING:  # editors and type checkers know the names that are there

        def __getattr__(self, name: str) -> Any:
            meant = None if name.startswith("_") else ours(name, type(self).guesses)
            if meant is None or isinstance(meant, str):
                end = f": {meant}" if meant else ""
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}{end}", name=name, obj=self
                )
            return meant(self)
