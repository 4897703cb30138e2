"""Shapes of JSON values, as JSON Schema; `checked` reads a value by one and names the place of all that is wrong.

A shape is a JSON Schema, of the keywords that the functions here write.

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
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from unmask.errors import UserError, suggest

NAMED = 5
"""Wrong places that a message names."""
REQUIRED: Any = object()
"""The default of a field that must be given."""
TYPES: Mapping[type, str] = {
    str: "string",
    list: "array",
    dict: "object",
    bool: "boolean",
    type(None): "null",
    int: "number",
    float: "number",
}
WORDS = {
    "string": "a text",
    "array": "a list",
    "object": "an object",
    "boolean": "true or false",
    "null": "null",
    "number": "a number",
    "integer": "a whole number",
}


class Shape(dict[str, Any]):
    """A JSON Schema; what is read off it for every value is kept."""

    @cached_property
    def alike(self) -> Mapping[type, Sequence[Shape]]:
        """Of several shapes ("anyOf") those that values of a type may have."""
        names = {kind: (name, "integer") if name == "number" else (name,) for kind, name in TYPES.items()}
        return {kind: [one for one in self["anyOf"] if one.get("type") in of] for kind, of in names.items()}

    @cached_property
    def taken(self) -> set[type]:
        """Types whose values all fit, and stay as they are: where all of many values have one, none is read."""
        if "anyOf" in self:
            return {kind for kind, found in self.alike.items() if len(found) == 1 and kind in found[0].taken}
        kinds = {kind for kind, name in TYPES.items() if name == self.get("type") and kind not in (list, dict)}
        return set() if self.keys() - {"type", "description"} else kinds

    @cached_property
    def fields(self) -> Sequence[tuple[str, Shape, bool]]:
        """Of a record: name, shape, and whether it must be given."""
        needed = self.get("required", ())
        return [(n, one if n in needed else one["anyOf"][0], n in needed) for n, one in self["properties"].items()]


def Text(longest: int | None = None, known: Sequence[str] = ()) -> Shape:
    """A text, of at most `longest` characters where that is given; `known`: one of these."""
    return _shape(type="string", enum=list(known) or None, maxLength=None if known else longest)


def Number(low: float = -math.inf, high: float = math.inf, whole: bool = False) -> Shape:
    """A number from `low` to `high`, both included."""
    ends = {name: end if math.isfinite(end) else None for name, end in (("minimum", low), ("maximum", high))}
    return _shape(type="integer" if whole else "number", **ends)


def Flag() -> Shape:
    """true or false."""
    return _shape(type="boolean")


def Anything() -> Shape:
    """Any JSON value: what reads it says what is wrong with it."""
    return _shape()


def Nothing() -> Shape:
    """null."""
    return _shape(type="null")


def ListOf(each: Shape, most: int | None = None, least: int = 0) -> Shape:
    """A list of `least` to `most` values of one shape."""
    return _shape(type="array", items=each, minItems=least or None, maxItems=most)


def MapOf(each: Shape, most: int | None = None) -> Shape:
    """An object with any keys, at most so many, whose values have one shape."""
    return _shape(type="object", additionalProperties=each, maxProperties=most)


def Either(shapes: Sequence[Shape], expected: str) -> Shape:
    """A value of the first of several shapes that it fits; `expected` says which, in words."""
    return _shape(title=expected, anyOf=list(shapes))


class Field(NamedTuple):
    """A key of a `Record`; one without a default must be given, and null stands for a default."""

    shape: Shape
    about: str = ""
    default: Any = REQUIRED


def Record(**fields: Field) -> Shape:
    """An object with the keys given, and no others."""
    properties = {}
    for name, (shape, about, default) in fields.items():
        needed = default is REQUIRED
        own = shape if needed else {"anyOf": [shape, Nothing()]}
        properties[name] = _shape(**own, description=about or None, default=None if needed else default)
    required = [name for name, field in fields.items() if field.default is REQUIRED]
    return _shape(type="object", properties=properties, additionalProperties=False, required=required or None)


def Open(**fields: Field) -> Shape:
    """A record of which only some keys are named, as answers have them: not for requests."""
    return Shape(Record(**fields), additionalProperties=True)


def maybe(shape: Shape) -> Shape:
    """The shape, or null."""
    return Either((shape, Nothing()), "a value or null")


def _shape(**keywords: Any) -> Shape:
    return Shape((name, value) for name, value in keywords.items() if value is not None)


class Wrong:
    """What does not fit, by its place, and what to do about it; of the first places, and how many more there are."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self.more = 0
        self.hint = ""

    def note(self, at: str, what: str, hint: str = "") -> None:
        if len(self.places) == NAMED:
            self.more += 1
            return
        self.places.append(f"{at}: {what}" if at else what)
        self.hint = self.hint or hint


def checked(shape: Shape, value: Any) -> Any:
    """A value read as a shape, with defaults where keys are left out."""
    wrong = Wrong()
    found = _read(shape, value, "", wrong)
    if wrong.places:
        more = [f"and {wrong.more:,} more"] if wrong.more else []
        raise UserError("; ".join(wrong.places + more), hint=wrong.hint or "The shapes of all requests stand at /docs.")
    return found


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    return str(value).lower() if isinstance(value, bool) else WORDS[TYPES[type(value)]]


def _read(shape: Shape, value: Any, at: str, wrong: Wrong) -> Any:
    """The value, with defaults; notes in `wrong` what does not fit.

    Args:
        at: the place of the value, such as 'texts[3]'; '' for the whole body.
    """
    kind, own = shape.get("type"), TYPES[type(value)]
    if kind is None:
        return _read_either(shape, value, at, wrong) if "anyOf" in shape else value
    if kind == "integer" and own == "number" and value % 1 == 0:
        value = int(value)
    elif kind != own:
        wrong.note(at, f"{kind_of(value)}, expected {WORDS[kind]}")
        return value
    reader = READERS.get(own)
    return value if reader is None else reader(shape, value, at, wrong)


def _read_text(shape: Shape, value: str, at: str, wrong: Wrong) -> str:
    if value not in shape.get("enum", (value,)):
        wrong.note(at, repr(value[:60]), suggest(value[:60], shape["enum"]))
    elif len(value) > shape.get("maxLength", math.inf):
        wrong.note(at, f"{len(value):,} characters, at most {shape['maxLength']:,} are read")
    return value


def _read_number(shape: Shape, value: float, at: str, wrong: Wrong) -> float:
    low, high = shape.get("minimum", -math.inf), shape.get("maximum", math.inf)
    if not low <= value <= high:
        ends = f"{low:g} to {high:g}" if low > -math.inf else f"{high:g} or less"
        wrong.note(at, f"{value:g}, expected {f'{low:g} or more' if high == math.inf else ends}")
    return value


def _read_list(shape: Shape, value: list[Any], at: str, wrong: Wrong) -> list[Any]:
    each, most, least = shape["items"], shape.get("maxItems", math.inf), shape.get("minItems", 0)
    if len(value) > most:
        wrong.note(at, f"{len(value):,} values, at most {most:,} per request", "Send them in parts.")
        return value
    if len(value) < least:
        wrong.note(at, f"{len(value)} values, {least} or more are needed")
    if each.taken.issuperset(map(type, value)):
        return value
    return [_read(each, one, f"{at}[{number}]", wrong) for number, one in enumerate(value)]


def _read_object(shape: Shape, value: dict[str, Any], at: str, wrong: Wrong) -> dict[str, Any]:
    before = f"{at}." if at else ""
    if "properties" not in shape:
        each, most = shape["additionalProperties"], shape.get("maxProperties", math.inf)
        if len(value) > most:
            wrong.note(at, f"{len(value):,} keys, at most {most:,} are read")
            return value
        if each.taken.issuperset(map(type, value.values())):
            return value
        return {key: _read(each, one, before + key[:60], wrong) for key, one in value.items()}
    properties, found = shape["properties"], {}
    for name, field, needed in shape.fields:
        own = value.get(name)
        if own is None and not needed:
            found[name] = properties[name].get("default")
        elif name not in value:
            wrong.note(before + name, "not there", field.get("description", ""))
        else:
            found[name] = own if type(own) in field.taken else _read(field, own, before + name, wrong)
    unknown = [name for name in value if name not in properties]
    for name in unknown[:NAMED]:
        wrong.note(before + name[:60], "no such key", suggest(name[:60], properties))
    wrong.more += len(unknown[NAMED:])
    return found


READERS: Mapping[str, Any] = {
    "string": _read_text,
    "number": _read_number,
    "array": _read_list,
    "object": _read_object,
}


def _read_either(shape: Shape, value: Any, at: str, wrong: Wrong) -> Any:
    alike = shape.alike[type(value)]
    if len(alike) == 1:
        return _read(alike[0], value, at, wrong)
    for one in shape["anyOf"]:
        tried = Wrong()
        found = _read(one, value, at, tried)
        if not tried.places:
            return found
    wrong.note(at, f"{kind_of(value)}, expected {shape['title']}")
    return value
