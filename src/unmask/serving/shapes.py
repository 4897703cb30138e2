"""Shapes of JSON values: each checks a value, names the place of everything that is wrong, and is a JSON Schema too.

>>> shape = Record(texts=Field(ListOf(Text())), top=Field(Number(1, 50, whole=True), default=5))
>>> checked(shape, {"texts": ["a"]})
{'texts': ['a'], 'top': 5}
>>> checked(shape, {"texts": ["a", 3], "topp": 1})
Traceback (most recent call last):
unmask.errors.UserError: texts[1]: a number, expected a text; topp: no such key
  Did you mean 'top'?
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from unmask.errors import UserError, suggest

NAMED = 5
"""Wrong places that a message names."""
REQUIRED: Any = object()
"""The default of a field that must be given."""


class Shape(ABC):
    """What a JSON value must look like.

    Attributes:
        taken: types whose values all fit, and stay as they are: where all of many values have one, none is read.
    """

    taken: frozenset[type] = frozenset()

    @abstractmethod
    def read(self, value: Any, at: str, wrong: Wrong) -> Any:
        """The value, with defaults where keys are left out; notes in `wrong` what does not fit.

        Args:
            at: the place of the value, such as 'texts[3]'; '' for the whole body.
        """

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """As JSON Schema."""


class Wrong:
    """What does not fit, by its place, and what to do about it; of the first places, and how many more there are."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.more = 0
        self.hint = ""

    def note(self, at: str, what: str, hint: str = "") -> None:
        if len(self.said) == NAMED:
            self.more += 1
            return
        self.said.append(f"{at}: {what}" if at else what)
        self.hint = self.hint or hint

    def fits(self, shape: Shape, value: Any, at: str) -> bool:
        """Whether a value has a shape, without noting what does not."""
        tried = Wrong()
        shape.read(value, at, tried)
        return not tried.said


def checked(shape: Shape, value: Any) -> Any:
    """A value read as a shape."""
    wrong = Wrong()
    found = shape.read(value, "", wrong)
    if wrong.said:
        more = [f"and {wrong.more:,} more"] if wrong.more else []
        raise UserError("; ".join(wrong.said + more), hint=wrong.hint or "The shapes of all requests stand at /docs.")
    return found


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


@dataclass(frozen=True)
class Text(Shape):
    """A text, of at most `longest` characters where that is given; `known`: one of these."""

    longest: int | None = None
    known: tuple[str, ...] = ()

    @property
    def taken(self) -> frozenset[type]:  # type: ignore[override]
        return frozenset() if self.known or self.longest is not None else frozenset({str})

    def read(self, value: Any, at: str, wrong: Wrong) -> Any:
        if not isinstance(value, str):
            wrong.note(at, f"{kind_of(value)}, expected a text")
        elif self.known and value not in self.known:
            wrong.note(at, repr(value[:60]), suggest(value[:60], self.known))
        elif self.longest is not None and len(value) > self.longest:
            wrong.note(at, f"{len(value):,} characters, at most {self.longest:,} are read")
        return value

    def schema(self) -> dict[str, Any]:
        more = {} if self.longest is None else {"maxLength": self.longest}
        return {"type": "string", **({"enum": list(self.known)} if self.known else more)}


@dataclass(frozen=True)
class Number(Shape):
    """A number from `low` to `high`, both included."""

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False

    @property
    def taken(self) -> frozenset[type]:  # type: ignore[override]
        return frozenset() if self.whole or self._range() != "-inf or more" else frozenset({int, float})

    def read(self, value: Any, at: str, wrong: Wrong) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float) or (self.whole and value != int(value)):
            wrong.note(at, f"{kind_of(value)}, expected a {'whole ' if self.whole else ''}number")
            return value
        if not self.low <= value <= self.high:
            wrong.note(at, f"{value:g}, expected {self._range()}")
        return int(value) if self.whole else value

    def _range(self) -> str:
        if self.high == math.inf:
            return f"{self.low:g} or more"
        return f"{self.low:g} to {self.high:g}" if self.low > -math.inf else f"{self.high:g} or less"

    def schema(self) -> dict[str, Any]:
        ends = {"minimum": self.low, "maximum": self.high}
        return {
            "type": "integer" if self.whole else "number",
            **{name: end for name, end in ends.items() if math.isfinite(end)},
        }


@dataclass(frozen=True)
class Flag(Shape):
    """true or false."""

    taken = frozenset({bool})

    def read(self, value: Any, at: str, wrong: Wrong) -> Any:
        if not isinstance(value, bool):
            wrong.note(at, f"{kind_of(value)}, expected true or false")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Anything(Shape):
    """Any JSON value: what reads it says what is wrong with it."""

    def read(self, value: Any, at: str, wrong: Wrong) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class ListOf(Shape):
    """A list of `least` to `most` values of one shape."""

    each: Shape
    most: int | None = None
    least: int = 0

    def read(self, value: Any, at: str, wrong: Wrong) -> Any:
        if not isinstance(value, list):
            wrong.note(at, f"{kind_of(value)}, expected a list")
            return value
        if self.most is not None and len(value) > self.most:
            wrong.note(at, f"{len(value):,} values, at most {self.most:,} per request", "Send them in parts.")
            return value
        if len(value) < self.least:
            wrong.note(at, f"{len(value)} values, {self.least} or more are needed")
        if self.each.taken.issuperset(map(type, value)):
            return value
        return [self.each.read(one, f"{at}[{number}]", wrong) for number, one in enumerate(value)]

    def schema(self) -> dict[str, Any]:
        ends = {"minItems": self.least or None, "maxItems": self.most}
        return {
            "type": "array",
            "items": self.each.schema(),
            **{name: end for name, end in ends.items() if end is not None},
        }


@dataclass(frozen=True)
class MapOf(Shape):
    """An object with any keys, at most so many, whose values have one shape."""

    each: Shape
    most: int | None = None

    def read(self, value: Any, at: str, wrong: Wrong) -> Any:
        if not isinstance(value, dict):
            wrong.note(at, f"{kind_of(value)}, expected an object")
            return value
        if self.most is not None and len(value) > self.most:
            wrong.note(at, f"{len(value):,} keys, at most {self.most:,} are read")
            return value
        if self.each.taken.issuperset(map(type, value.values())):
            return value
        return {key: self.each.read(one, f"{at}.{key[:60]}" if at else key[:60], wrong) for key, one in value.items()}

    def schema(self) -> dict[str, Any]:
        most = {} if self.most is None else {"maxProperties": self.most}
        return {"type": "object", "additionalProperties": self.each.schema(), **most}


@dataclass(frozen=True)
class Either(Shape):
    """A value of the first of several shapes that it fits."""

    shapes: Sequence[Shape]
    expected: str

    @cached_property
    def taken(self) -> frozenset[type]:  # type: ignore[override]
        return frozenset(kind for kind, alike in self._by_type.items() if len(alike) == 1 and kind in alike[0].taken)

    def read(self, value: Any, at: str, wrong: Wrong) -> Any:
        alike = self._by_type.get(type(value), ())
        if len(alike) == 1:
            return alike[0].read(value, at, wrong)
        for shape in self.shapes:
            if wrong.fits(shape, value, at):
                return shape.read(value, at, wrong)
        wrong.note(at, f"{kind_of(value)}, expected {self.expected}")
        return value

    @cached_property
    def _by_type(self) -> dict[type, list[Shape]]:
        """Type of a value -> the shapes that such values may have: looked up for every cell of a table."""
        return {
            kind: [shape for shape in self.shapes if shape.schema().get("type") in names]
            for kind, names in JSON_TYPES.items()
        }

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [shape.schema() for shape in self.shapes]}


NUMBERS = ("number", "integer")
JSON_TYPES: dict[type, Sequence[str]] = {
    str: ("string",),
    list: ("array",),
    dict: ("object",),
    bool: ("boolean",),
    type(None): ("null",),
    int: NUMBERS,
    float: NUMBERS,
}


@dataclass(frozen=True)
class Nothing(Shape):
    """null."""

    taken = frozenset({type(None)})

    def read(self, value: Any, at: str, wrong: Wrong) -> Any:
        if value is not None:
            wrong.note(at, f"{kind_of(value)}, expected null")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "null"}


@dataclass(frozen=True)
class Field:
    """A key of a `Record`; one without a default must be given, and null stands for a default."""

    shape: Shape
    about: str = ""
    default: Any = REQUIRED


class Record(Shape):
    """An object with the keys given, and no others."""

    def __init__(self, **fields: Field) -> None:
        self.fields = fields

    def read(self, value: Any, at: str, wrong: Wrong) -> Any:
        if not isinstance(value, dict):
            wrong.note(at, f"{kind_of(value)}, expected an object")
            return value
        before = f"{at}." if at else ""
        found = {}
        for name, field in self.fields.items():
            if name in value and (value[name] is not None or field.default is REQUIRED):
                found[name] = field.shape.read(value[name], before + name, wrong)
            elif field.default is REQUIRED:
                wrong.note(before + name, "not there", field.about)
            else:
                found[name] = field.default
        unknown = [name for name in value if name not in self.fields]
        for name in unknown[:NAMED]:
            wrong.note(before + name[:60], "no such key", suggest(name[:60], self.fields))
        wrong.more += len(unknown[NAMED:])
        return found

    def schema(self) -> dict[str, Any]:
        properties = {}
        for name, field in self.fields.items():
            shape = field.shape.schema()
            if field.default is not REQUIRED:
                shape = {"anyOf": [shape, {"type": "null"}]}
            default = {} if field.default in (REQUIRED, None) else {"default": field.default}
            properties[name] = {**shape, **({"description": field.about} if field.about else {}), **default}
        required = [name for name, field in self.fields.items() if field.default is REQUIRED]
        return {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
            **({"required": required} if required else {}),
        }


class Open(Record):
    """A record of which only some keys are named, as answers have them: not for requests."""

    def schema(self) -> dict[str, Any]:
        return {**super().schema(), "additionalProperties": True}


def maybe(shape: Shape) -> Shape:
    """The shape, or null."""
    return Either((shape, Nothing()), "a value or null")
