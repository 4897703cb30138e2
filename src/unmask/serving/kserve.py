"""KServe's V2 (Open Inference Protocol, inference_rest.md) over the verbs of any model: tensors in and out, as JSON.

An input is named after a key of the verb's request, such as `texts`, or, where that takes rows, after a column. The
parameter `verb` names the verb, by default the model's first one; other parameters are further keys of its request.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from unmask.errors import UserError, suggest
from unmask.serving.shapes import (
    TYPES,
    WORDS,
    Anything,
    Field,
    ListOf,
    MapOf,
    Number,
    Open,
    Record,
    Text,
    checked,
    kind_of,
)
from unmask.serving.verbs import Verb, Warned, Work

INTEGERS = tuple(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
NUMBERS = (*INTEGERS, "FP16", "FP32", "FP64")
EXPECTED = {"BYTES": "string", "BOOL": "boolean", **dict.fromkeys(NUMBERS, "number")}
"""Datatype -> what its values are in JSON."""
BINARY = ("binary_data_output", "binary_data")
"""Parameters of the binary extension, which is not spoken: who asks for it reads JSON as well."""
AXES = 8
"""Of a tensor, at most."""
UNREAD = Field(MapOf(Anything()), "Not read.", None)
TENSOR = {
    "name": Field(Text(), "A key of the verb's request, or a column."),
    "shape": Field(ListOf(Number(0, whole=True), most=AXES)),
    "datatype": Field(Text(known=tuple(EXPECTED))),
    "data": Field(ListOf(Anything()), "Nested, or flat in row-major order; null is missing."),
    "parameters": UNREAD,
}
NOTES = ("warnings", "notes")
MAIN = ("results", "rows")
"""Lists of records whose fields are outputs under their own names; those of others are LIST.FIELD."""
Json = Mapping[str, Any]


def infer(model: str, verbs: Mapping[str, Verb]) -> Verb:
    """The dialect of a model that is served under a name: any of its verbs, in tensors."""
    first = next(iter(verbs))

    def prepare(body: Any) -> Work:
        given = {name: value for name, value in (body["parameters"] or {}).items() if name not in BINARY}
        name = str(given.pop("verb", first))
        if name not in verbs:
            raise UserError(f"parameters.verb: {name[:60]!r}", hint=suggest(name[:60], verbs))
        inputs = arguments(verbs[name].request, body["inputs"])
        work = verbs[name].prepare(checked(verbs[name].request, given | inputs))
        return dataclasses.replace(work, finish=lambda answers: answered(model, body, work.finish(answers)))

    return Verb(
        about=f"KServe's V2: tensors to tensors, by {first}, or by the verb that `parameters.verb` names.",
        request=Record(
            id=Field(Text(), "Comes back in the answer.", None),
            parameters=Field(MapOf(Anything()), "`verb`, and keys of its request.", None),
            inputs=Field(ListOf(Record(**TENSOR), least=1), "What the verb is given."),
            outputs=Field(ListOf(Record(name=Field(Text()), parameters=UNREAD)), "Those to give; default all.", None),
        ),
        answer=Open(model_name=Field(Text()), outputs=Field(ListOf(Open(**TENSOR)))),
        prepare=prepare,
    )


def arguments(request: Json, inputs: Sequence[Json]) -> dict[str, Any]:
    """The body of a verb from tensors; a UserError names the place of one that does not fit."""
    keys, found, columns = request.get("properties", {}), dict[str, Any](), dict[str, list[Any]]()
    rows = next((name for name, shape in keys.items() if _takes_rows(shape)), None)
    for place, one in enumerate(inputs):
        name, at = one["name"], f"inputs[{place}]"
        values = _values(one, at)
        if name in found or name in columns:
            raise UserError(f"{at}.name: {name[:60]!r} is there twice", hint="Send each tensor once.")
        if name in keys:
            found[name] = _argument(keys[name], values, at)
        elif rows is not None:
            columns[name] = values
        else:
            raise UserError(f"{at}.name: {name[:60]!r} is no input", hint=suggest(name[:60], keys))
    if rows is not None and columns:
        if len(set(map(len, columns.values()))) > 1:
            lengths = ", ".join(f"{name[:60]}: {len(values)}" for name, values in list(columns.items())[:5])
            raise UserError(f"inputs: columns of several lengths ({lengths})", hint="Give each as many values.")
        found[rows] = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return found


def _values(one: Json, at: str) -> list[Any]:
    """The data of a tensor, nested as its shape says; a last axis of one value is left out."""
    shape, datatype = one["shape"], one["datatype"]
    flat = list(_flat(one["data"], len(shape)))
    if math.prod(shape) != len(flat):
        raise UserError(f"{at}: {len(flat):,} values, and a shape of {shape}", hint="Send as many as the shape says.")
    kind = "integer" if datatype in INTEGERS else EXPECTED[datatype]
    for number, value in enumerate(flat):
        right = value is None or TYPES[type(value)] == EXPECTED[datatype]
        if not right or (value is not None and kind == "integer" and value % 1):
            what = f"{at}.data[{number}]: {kind_of(value)}, expected {WORDS[kind]}"
            raise UserError(what, hint=f"The tensor is of {datatype}.")
    for size in reversed(shape[1:-1] if shape[1:] and shape[-1] == 1 else shape[1:]):
        flat = [flat[start : start + size] for start in range(0, len(flat), max(1, size))]
    return flat


def _flat(data: Sequence[Any], axes: int) -> Iterator[Any]:
    for value in data:
        yield from _flat(value, axes - 1) if isinstance(value, list) and axes > 1 else (value,)


def _list(shape: Json) -> Any:
    """What a shape says of lists, where it takes them, else None."""
    return next((one for one in shape.get("anyOf", [shape]) if one.get("type") == "array"), None)


def _takes_rows(shape: Json) -> bool:
    return isinstance(((_list(shape) or {}).get("items") or {}).get("additionalProperties"), dict)


def _argument(shape: Json, values: list[Any], at: str) -> Any:
    """Values as a key of a request takes them: one alone where it takes no list, and objects from their JSON."""
    listed = _list(shape)
    if listed is None:
        return values[0] if len(values) == 1 else values
    try:
        return list(map(orjson.loads, values)) if listed["items"].get("type") == "object" else values
    except orjson.JSONDecodeError as error:
        raise UserError(f"{at}.data: {error.msg}", hint="Each value is an object, as JSON in a text.") from None


def answered(model: str, body: Json, answer: Any) -> Any:
    """The answer of a verb in tensors: lists are outputs, single values parameters, and warnings go into the header."""
    answer = answer if isinstance(answer, Mapping) else {MAIN[0]: answer}
    notes = [line for name in NOTES for line in answer.get(name) or ()]
    tensors, single = dict[str, Any](), dict[str, Any]()
    for name, value in answer.items():
        if isinstance(value, list | np.ndarray) and name not in NOTES:
            parts = _fields(name, value) if len(value) and isinstance(value[0], dict) else {name: value}
            tensors |= {part: tensor(part, values) for part, values in parts.items()}
        elif name not in NOTES:
            single[name] = value if isinstance(value, str | int | float) else orjson.dumps(value, default=str).decode()
    wanted = [one["name"] for one in body["outputs"] or ()] or list(tensors)
    if wrong := [name for name in wanted if name not in tensors]:
        raise UserError(f"outputs: {wrong[0][:60]!r} is none", hint=suggest(wrong[0][:60], tensors))
    found = {"model_name": model, "id": body["id"], "parameters": single, "outputs": [tensors[n] for n in wanted]}
    found = {name: value for name, value in found.items() if value or name == "outputs"}
    return Warned(found, notes) if notes else found


def _fields(name: str, records: Any) -> dict[str, list[Any]]:
    fields = dict.fromkeys(field for record in records for field in record)
    return {f if name in MAIN else f"{name}.{f}": [record.get(f) for record in records] for f in fields}


def tensor(name: str, values: Any) -> dict[str, Any]:
    """Values as an output: numbers as FP64, or FP32 where they are computed so, texts as BYTES, what is neither as its
    JSON in BYTES. Objects of numbers with the same keys (probabilities) are a matrix, whose parameter `names` has them.
    """
    parameters: dict[str, Any] = {}
    kinds = {type(value) for value in values if value is not None} if isinstance(values, list) else set()
    if kinds == {dict} and None not in values and len({tuple(one) for one in values}) == 1:
        numbers = [list(one.values()) for one in values]
        if all(type(number) in (int, float) for one in numbers for number in one):
            parameters = {"parameters": {"names": orjson.dumps(list(values[0])).decode()}}
            values = np.array(numbers, np.float64)
    if isinstance(values, np.ndarray):
        kind, shape, data = "FP32" if values.dtype == np.float32 else "FP64", list(values.shape), values.ravel()
        return {"name": name, "datatype": kind, "shape": shape, "data": data, **parameters}
    kind = "BOOL" if kinds == {bool} else "FP64" if kinds and kinds <= {int, float} else "BYTES"
    if kind == "BYTES":
        values = [one if isinstance(one, str) else orjson.dumps(one, default=str).decode() for one in values]
    return {"name": name, "datatype": kind, "shape": [len(values)], "data": values}


def metadata(name: str, model: Json) -> dict[str, Any]:
    """What a model says of its first verb: the inputs that it needs, and its outputs.

    Args:
        model: what `Served.described` says.
    """
    verb = next(iter(model["verbs"].values()))
    columns = [
        {"name": c["name"], "datatype": "FP64" if c["kind"] == "quantity" else "BYTES", "shape": [-1]}
        for c in model["about"].get("columns") or ()
    ]
    request, inputs, outputs = verb["request"], list[dict[str, Any]](), list[dict[str, Any]]()
    for key in request.get("required", ()):
        shape = request["properties"][key]
        listed = _list(shape)
        inputs += columns if _takes_rows(shape) else [_described(key, listed["items"] if listed else shape, listed)]
    for key, shape in verb["answer"].get("properties", {}).items():
        if key in NOTES or (listed := _list(shape)) is None:
            continue
        fields = listed["items"].get("properties") or {}
        outputs += columns if _takes_rows(shape) else [] if fields else [_described(key, listed["items"], True)]
        outputs += [_described(f if key in MAIN else f"{key}.{f}", one, True) for f, one in fields.items()]
    return {"name": name, "platform": "unmask", "inputs": inputs, "outputs": outputs}


def _described(name: str, each: Json, many: Any) -> dict[str, Any]:
    """A tensor of values of one shape: a list of numbers per value is a matrix."""
    kinds = {one.get("type") for one in each.get("anyOf", [each])} - {"null"}
    vectors, probabilities = (each.get("items") or {}).get("type") == "number", each.get("additionalProperties")
    matrix = vectors or probabilities == Number(0, 1)
    number = matrix or kinds <= {"number", "integer"}
    kind = "FP32" if vectors else "FP64" if number else "BOOL" if kinds == {"boolean"} else "BYTES"
    return {"name": name, "datatype": kind, "shape": [-1, -1] if matrix else [-1 if many else 1]}
