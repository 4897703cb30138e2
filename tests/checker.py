"""The run-time type checker of the tests: beartype with the shapes of jaxtyping, whole numbers accepted as floats.

jaxtyping's own decorator binds every call's arguments in Python and judges the parameters twice, which took four
fifths of the tests' time. This one judges the same annotations once, in code that beartype writes at a function's first
call: then every name of its module is known, those defined below it too.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.door import die_if_unbearable

CONF = BeartypeConf(is_pep484_tower=True, violation_type=TypeError)
SOURCE = Path(__file__).parents[1] / "src"
SIZES = jaxtyping.jaxtyped("context")
"""Within, the names of shapes stand for one size each, whatever they stand for in the caller."""
by_jaxtyping = jaxtyping.jaxtyped
check = beartype(conf=CONF)


def modules_with_shapes() -> list[str]:
    """Names of the package's modules whose signatures have shapes of jaxtyping."""
    paths = sorted(SOURCE.rglob("*.py"))
    found = [path for path in paths if "from jaxtyping import" in path.read_text(encoding="utf-8")]
    return [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in found]


def install(modules: Sequence[str]) -> Any:
    """Modules imported from now on are checked: their functions, and what makes their dataclasses."""
    jaxtyping.jaxtyped = checked  # type: ignore[assignment]  # what the hook writes before each of them
    return jaxtyping.install_import_hook(list(modules), "checker.check")


def checked(it: Any = None, *, typechecker: Any) -> Any:
    """Like `jaxtyping.jaxtyped`."""
    if it is None:
        return functools.partial(checked, typechecker=typechecker)
    if isinstance(it, type):
        if dataclasses.is_dataclass(it) and not hasattr(it.__init__, "__wrapped__"):
            it.__init__ = checked(it.__init__, typechecker=typechecker)  # type: ignore[misc]
        return it
    if isinstance(it, classmethod | staticmethod):
        return type(it)(checked(it.__func__, typechecker=typechecker))
    if isinstance(it, property):
        return property(*(f and checked(f, typechecker=typechecker) for f in (it.fget, it.fset, it.fdel)))
    if inspect.isgeneratorfunction(it):
        return by_jaxtyping(it, typechecker=typechecker)
    return inner(it) if "<locals>" in it.__qualname__ else outer(it)


def hint(function: Callable, name: str) -> Any:
    """The annotation of a parameter or of the result; Any where its module does not know a name of it."""
    one = types.SimpleNamespace(__annotations__={name: function.__annotations__[name]})
    try:
        return typing.get_type_hints(one, function.__globals__, include_extras=True)[name]
    except Exception:
        return Any


def hints(function: Callable) -> dict[str, Any]:
    return {name: hint(function, name) for name in function.__annotations__}


def outer(function: Any) -> Callable:
    """A function that is made once. Names that its module knows later alone are looked up at the first call, all others
    here: a test may stand something else in for them."""
    judged, known = None, {name: one for name, one in hints(function).items() if one is not Any}

    def judging() -> Callable:
        same = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        same.__kwdefaults__, same.__qualname__ = function.__kwdefaults__, function.__qualname__
        same.__module__, same.__annotations__ = function.__module__, hints(function) | known
        return check(same)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal judged
        __tracebackhide__ = True
        if judged is None:
            judged = judging()
        with SIZES:
            return judged(*args, **kwargs)

    return call


KNOWN: dict[types.CodeType, tuple[inspect.Signature, dict[str, Any]]] = {}
KINDS = inspect.Parameter


def values(kind: Any, given: Any) -> Any:
    """What is judged of a parameter: every value of `*args` and `**kwargs`."""
    if kind is KINDS.VAR_POSITIONAL:
        return given
    return given.values() if kind is KINDS.VAR_KEYWORD else (given,)


def inner(function: Any) -> Callable:
    """A function within a function, made at each call of that: its annotations are read once."""
    if function.__code__ not in KNOWN:
        KNOWN[function.__code__] = inspect.signature(function), hints(function)
    signature, wanted = KNOWN[function.__code__]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with SIZES:
            for name, given in signature.bind(*args, **kwargs).arguments.items():
                if name in wanted:
                    for value in values(signature.parameters[name].kind, given):
                        die_if_unbearable(value, wanted[name], conf=CONF)
            out = function(*args, **kwargs)
            if "return" in wanted:
                die_if_unbearable(out, wanted["return"], conf=CONF)
            return out

    return call
