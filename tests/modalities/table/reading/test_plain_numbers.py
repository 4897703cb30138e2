"""Reading plain numbers all at once gives what reading cell by cell gives."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unmask.modalities.table.reading import decimal_marks, parse
from unmask.modalities.table.reading.decimal_marks import Marks, spelling_of
from unmask.modalities.table.reading.parse import is_missing, numbers

ODD = [
    "",
    " ",
    "NA",
    "na",
    "None",
    "nan",
    "inf",
    "-",
    ".",
    "?",
    "1_0",
    "١٢",
    "−5",
    "+5",
    "1e5",
    " 7",
    "7 ",
    "0x1",
    "<0.5",
    "1,5",
    "1.234",
    "12.345.678",
    "x",
    "-99",
    "-99.0",
    "99.00",
    "\ud800",
    None,
    1.5,
    3,
    True,
    np.nan,
]
CELL = st.one_of(
    st.sampled_from(ODD),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False).map(str),
    st.integers(-(10**20), 10**20).map(str),
    st.text("0123456789.,-+ eE", max_size=8),
)


def both(monkeypatch: pytest.MonkeyPatch, work):
    monkeypatch.setattr(decimal_marks, "FEWEST", 10**9)
    slow = work()
    monkeypatch.setattr(decimal_marks, "FEWEST", 0)
    return slow, work()


@pytest.mark.parametrize("also", [(), ("-99",), ("99", "x"), ("7", "NA")])
@given(cells=st.lists(CELL, max_size=30))
def test_cells_are_read_and_missed_as_one_by_one(also: tuple[str, ...], cells: list) -> None:
    raw = np.array([*cells, None], object)[:-1]
    with pytest.MonkeyPatch.context() as patch:
        slow, fast = both(patch, lambda: (is_missing(raw, also), *numbers(raw), *numbers(raw, Marks(",", "."))))
    for a, b in zip(slow, fast, strict=True):
        np.testing.assert_array_equal(a, b)


@given(cells=st.lists(CELL.filter(lambda v: isinstance(v, str)), min_size=1, max_size=12))
@example(cells=["12.345.678", "-99.0"])
def test_marks_are_found_as_one_by_one(cells: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        slow, fast = both(patch, lambda: spelling_of(np.array([*cells, None], object)[:-1]))
    assert slow == fast


def test_digits_are_those_of_python() -> None:
    texts = [
        repr(v) for v in (np.random.default_rng(0).normal(size=2000) * 10.0 ** np.arange(2000).clip(0, 12)).tolist()
    ]
    found = decimal_marks.plain_numbers(texts)
    assert not np.isnan(found).all()
    assert all(f != f or f == float(t) for f, t in zip(found, texts, strict=True))
    assert decimal_marks.PLAIN.read("1.5") == parse.numbers(np.array(["1.5"] * 600, object))[0][-1] == 1.5
