"""Hostile conditions, rules and formulas are refused at once, in plain words."""

import resource
import time

import numpy as np
import pandas as pd
import pytest

from unmask import MultipleImputation, TableModel
from unmask.errors import UserError
from unmask.modalities.table.rules.conditions import LONGEST, parse_constraints, parse_where

FRAME = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)).round(2), columns=["a", "b"])
HOSTILE = {
    "f-string": f"a == f'{{{'1+' * 150_000}1}}'",
    "chain of and": " and ".join(["a > 0"] * 40_000),
    "brackets": "(" * 900 + "a" + ")" * 900,
    "signs": "a > " + "-" * 1900 + "1",
    "not": "not " * 450 + "a",
    "short f-string": "a == f'{b}'",
    "set of lists": "a in {[1]}",
    "zero byte": "a > 0\0",
    "call": "__import__('os').system('x') > 0",
    "nested lists": "a in " + "[" * 150 + "]" * 150,
    "dict": "a == {1: {2: 3}}",
    "bytes": "a == b'x'",
    "complex": "a > 1j",
    "walrus": "(a := 1)",
    "lambda": "a == (lambda: 1)",
    "quotes": "a == " + "'" * 1001,
    "backticks": "`" * 1999,
    "huge power": "c := a ** 9 ** 9 ** 9 ** 9",
}


@pytest.fixture(scope="module")
def schema():
    return TableModel.fit(FRAME, steps=0, members=2).schema


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("read", [lambda t, s: parse_where([t], s), lambda t, s: parse_constraints([t], s)])
def test_it_is_refused_at_once(schema, name, read):
    held, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(UserError) as refused:
        read(HOSTILE[name], schema)
    assert len(str(refused.value)) < 3 * LONGEST
    assert time.process_time() - began < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held < 200_000


def test_formulas_too():
    for text in (
        "a ~ " + "b + " * 3000 + "b",
        "a ~ " + "*".join(["b"] * 40),
        "a ~ " + "(" * 300 + "b" + ")" * 300,
        "a ~ I(" + "-" * 300 + "b)",
    ):
        with pytest.raises(UserError):
            MultipleImputation(2, rounds=1, formula=text).fit(FRAME.assign(b=FRAME.b.where(FRAME.a > 0)))


def test_what_people_write_is_read(schema):
    assert parse_where([" and ".join(["a > 0"] * 90)], schema)
    assert len(" and ".join(["a > 0"] * 90)) < LONGEST
    assert parse_where(["a > " + "-1"], schema)
