"""What is printed of a result: aligned, escaped, and the same numbers in the frame."""

from __future__ import annotations

import builtins

import pytest

from unmask.evaluation.metrics import Estimate
from unmask.evaluation.shown import Printed, Shown

NAN = float("nan")
TABLE = Shown(
    title="Three figures <b>",
    columns=("", "value", "p", "n"),
    rows=[("age", 0.045, 0.0004, 12), ("sex=2", -1.25, 0.03, 1200), ("bmi", NAN, None, None)],
    notes=["a < b"],
    next_step="done.pool(...)",
    formats={"p": lambda p: "<0.001" if p < 0.001 else f"{p:.3f}"},
)


def test_columns_stand_below_each_other():
    assert TABLE.text().splitlines() == [
        "Three figures <b>",
        "",
        "         value       p      n",
        "age     0.0450  <0.001     12",
        "sex=2  -1.2500   0.030  1,200",
        "bmi          –       –      –",
        "",
        "a < b",
        "next: done.pool(...)",
    ]


def test_an_interval_stands_beside_its_number_and_small_numbers_are_not_printed_as_zero():
    shown = Shown(title="T", columns=("v",), rows=[(Estimate(0.51, 0.49, 0.53, 9),), (Estimate(2e-7, NAN, NAN, 1),)])
    assert shown.text().splitlines()[3:] == ["0.5100 [0.4900, 0.5300]", "2e-7"]


def test_a_title_alone_is_one_line():
    assert Shown(title="T").text() == "T"


def test_a_notebook_shows_the_same_and_nothing_of_the_data_is_markup():
    page = TABLE.html()
    assert "Three figures &lt;b&gt;" in page
    assert "&lt;0.001" in page
    assert "a &lt; b" in page
    assert "done.pool(...)" in page
    assert page.count("<tr>") == 4


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_frame_holds_the_numbers(library, monkeypatch):
    if library == "polars":
        real = builtins.__import__

        def without(name, *rest):
            if name == "pandas":
                raise ImportError(name)
            return real(name, *rest)

        monkeypatch.setattr(builtins, "__import__", without)
    frame = TABLE.frame()
    assert type(frame).__module__.startswith(library)
    assert list(frame["p"])[:2] == [0.0004, 0.03]
    assert list(frame["n"])[:2] == [12, 1200]


def test_the_frame_has_columns_of_the_intervals():
    frame = Shown(title="T", columns=("v",), rows=[(Estimate(0.5, 0.4, 0.6, 9),)]).frame()
    assert {name: frame[name][0] for name in frame.columns} == {"v": 0.5, "v_low": 0.4, "v_high": 0.6}


def test_a_result_prints_what_it_shows():
    class Figures(Printed):
        def shown(self):
            return TABLE

    result = Figures()
    assert str(result) == repr(result) == TABLE.text()
    assert result._repr_html_() == TABLE.html()
    assert list(result.to_frame()["n"])[:2] == [12, 1200]
