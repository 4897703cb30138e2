"""Shapes check what clients send, name every wrong place, and say the same as JSON Schema."""

from __future__ import annotations

import time

import jsonschema
import pytest

from unmask.errors import UserError
from unmask.serving.shapes import Either, Field, Flag, ListOf, MapOf, Nothing, Number, Record, Text, checked

SHAPE = Record(
    texts=Field(Either((Text(), ListOf(Text(), most=3)), "a text or a list of texts"), "Texts."),
    top=Field(Number(1, 9, whole=True), "How many.", 5),
    mode=Field(Text(known=("unit", "slot")), "How.", "unit"),
    flag=Field(Flag(), "Whether.", None),
    cells=Field(MapOf(Either((Number(), Nothing()), "a number or null")), "Cells.", None),
)
GOOD = [
    {"texts": "a"},
    {"texts": ["a", "b"], "top": 9, "mode": "slot", "flag": True, "cells": {"x": 1.5, "y": None}},
    {"texts": [], "top": 2.0},
]
BAD = [
    ({}, "texts: not there"),
    ({"texts": ["a", 3]}, "texts[1]: a number, expected a text"),
    ({"texts": 3}, "texts: a number, expected a text or a list of texts"),
    ({"texts": ["a"] * 4}, "texts: 4 values, at most 3 per request"),
    ({"texts": "a", "top": 10}, "top: 10, expected 1 to 9"),
    ({"texts": "a", "top": True}, "top: true, expected a whole number"),
    ({"texts": "a", "top": 1.5}, "top: a number, expected a whole number"),
    ({"texts": "a", "mode": "units"}, "mode: 'units'"),
    ({"texts": "a", "flag": 1}, "flag: a number, expected true or false"),
    ({"texts": "a", "cells": {"x": "1"}}, "cells.x: a text, expected a number or null"),
    ({"texts": "a", "tpo": 1}, "tpo: no such key"),
    ([], "a list, expected an object"),
    (None, "null, expected an object"),
]


@pytest.mark.parametrize("body", GOOD)
def test_what_fits_is_read_with_defaults(body):
    found = checked(SHAPE, body)
    assert set(found) == set(SHAPE["properties"])
    assert found["top"] in (2, 5, 9)
    jsonschema.validate(body, SHAPE)


@pytest.mark.parametrize(("body", "message"), BAD)
def test_what_does_not_fit_is_named(body, message):
    with pytest.raises(UserError) as caught:
        checked(SHAPE, body)
    assert message in caught.value.what
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(body, SHAPE)


def test_all_wrong_places_are_named_at_once():
    with pytest.raises(UserError) as caught:
        checked(SHAPE, {"texts": [1, 2], "top": 0, "nonsense": 1})
    assert all(part in caught.value.what for part in ("texts[0]", "texts[1]", "top: 0", "nonsense"))


def test_null_stands_for_a_default_but_not_for_what_is_needed():
    assert checked(SHAPE, {"texts": "a", "top": None})["top"] == 5
    jsonschema.validate({"texts": "a", "top": None}, SHAPE)
    with pytest.raises(UserError, match="texts"):
        checked(SHAPE, {"texts": None})


CELLS = Record(rows=Field(ListOf(MapOf(Either((Nothing(), Flag(), Number(), Text()), "a cell"), 1000)), "Rows."))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: {"rows": [{f"c{row}_{k}": 1 for k in range(400)} for row in range(512)]}, ""),
        (lambda: {"rows": [], **{f"k{n}": 0 for n in range(500_000)}}, "k4: no such key; and 499,995 more"),
        (lambda: {"rows": [3] * 500_000}, "rows[4]: a number, expected an object; and 499,995 more"),
        (lambda: {"rows": [{f"k{n}": 0 for n in range(500_000)}]}, "rows[0]: 500,000 keys, at most 1,000 are read"),
    ],
)
def test_large_bodies_are_checked_at_once(make, said):
    body = make()
    began, found = time.process_time(), ""
    try:
        checked(CELLS, body)
    except UserError as error:
        found = error.what
    assert found.endswith(said)
    assert bool(found) == bool(said)
    assert time.process_time() - began < 0.8


def test_cells_that_any_shape_lets_through_are_not_read_one_by_one():
    rows = [{f"c{k}": cell for k, cell in enumerate([1, 2.5, "a", None, True] * 80)} for _ in range(1024)]
    began = time.process_time()
    assert checked(CELLS, {"rows": rows}) == {"rows": rows}
    assert time.process_time() - began < 0.15
    rows[1000]["c399"] = []
    with pytest.raises(UserError, match=r"rows\[1000\]\.c399: a list, expected a cell"):
        checked(CELLS, {"rows": rows})


@pytest.mark.parametrize(
    "shape",
    [
        *(
            Text(),
            Text(longest=3),
            Text(known=("a",)),
            Number(),
            Number(0),
            Number(whole=True),
            Flag(),
            Nothing(),
        ),
        *(Either((Nothing(), Number()), ""), Either((Number(whole=True), Number()), "")),
        *(ListOf(Text()), MapOf(Number()), SHAPE),
    ],
)
def test_what_a_shape_takes_by_its_type_it_takes_as_it_is(shape):
    for value in ("", "a", "aaaa", 0, -1, 1.0, -2.5, 10**30, True, None, [], ["a"], {}, {"a": 1}):
        if type(value) in shape.taken:
            assert checked(shape, value) is value
