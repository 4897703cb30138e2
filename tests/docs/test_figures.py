"""No measured figure is typed into a page: they are drawn from docs/results."""

from __future__ import annotations

import doctest

import doc_figures
from doc_figures import all_typed, drawn, stale, typed


def test_no_measured_figure_is_typed():
    assert [f"{t.page}:{t.line}: {t.figure} ({t.near})" for t in all_typed()] == []
    assert drawn() > 3000


def test_every_allowance_is_needed():
    assert stale() == []


def test_a_typed_figure_is_found():
    page = "Now 12 s,\nbefore <!-- figure: a | b | c -->20 s<!-- end -->. `x=0.5`\n```text\n0.9\n```\n3 rows\n"
    assert [(t.line, t.figure) for t in typed("docs/a.md", page)] == [(1, "12 s")]
    assert [t.figure for t in typed("docs/explanation/measured-a.md", page)] == ["12 s", "3"]
    assert typed("docs/a.md", page, ("Now 12 s",)) == []


def test_the_examples_are_true():
    assert doctest.testmod(doc_figures).failed == 0
