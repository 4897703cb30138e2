"""Completed tables by index and below each other, and what is printed of them and of pooled estimates."""

from __future__ import annotations

import html

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from unmask import MultipleImputation
from unmask.errors import UserError

ROWS = 60


def frame():
    rng = np.random.default_rng(0)
    age = np.round(rng.normal(60, 9, ROWS), 1)
    sex = np.where(rng.random(ROWS) < 0.5, "f", "m")
    time = np.round(rng.exponential(900, ROWS)) + 1
    table = pd.DataFrame({"age": age, "sex": sex, "time": time, "dead": (rng.random(ROWS) < 0.7).astype(int)})
    table.loc[::7, "age"] = np.nan
    table.index = [f"p{i}" for i in range(ROWS)]
    return table


@pytest.fixture(scope="module")
def done():
    return MultipleImputation(m=3, duration_col="time", event_col="dead", maxit=2, random_state=1).fit(frame())


def test_the_names_of_other_libraries_are_taken(done):
    assert (done.draws, done.duration, done.event, done.rounds, done.seed) == (3, "time", "dead", 2, 1)


def test_tables_are_a_sequence(done):
    assert len(done) == 3 == len(list(done))
    assert done[0] is done.completed[0]
    assert done[-1] is done.complete(3)
    assert [t is u for t, u in zip(done, done.complete("all"), strict=True)] == [True] * 3
    with pytest.raises(IndexError):
        done[3]


@pytest.mark.parametrize("which", [0, 4, "broad"])
def test_a_table_that_is_not_there_is_refused_with_what_is(done, which):
    with pytest.raises(UserError, match="Expected 1 to 3, 'long' or 'all'"):
        done.complete(which)


def test_below_each_other_as_mice_has_it(done):
    long = done.complete("long", include=True)
    assert list(long.columns) == [".imp", ".id", "age", "sex", "time", "dead"]
    assert long[".imp"].tolist() == [0] * ROWS + [1] * ROWS + [2] * ROWS + [3] * ROWS
    assert long[".id"].tolist() == list(frame().index) * 4
    assert long["age"].isna().sum() == frame()["age"].isna().sum()
    pd.testing.assert_frame_equal(done.to_frame(), long[ROWS:].reset_index(drop=True), check_dtype=False)


@pytest.mark.parametrize("kind", ["polars", "arrow", "file", "array"])
def test_other_kinds_of_table(kind, tmp_path):
    given = frame()
    given.to_csv(tmp_path / "cohort.csv", index=False)
    data = {
        "polars": pl.from_pandas(given),
        "arrow": pa.Table.from_pandas(given, preserve_index=False),
        "file": tmp_path / "cohort.csv",
        "array": given[["age", "time"]].to_numpy(),
    }[kind]
    found = MultipleImputation(2, rounds=1).fit(data)
    if kind == "array":
        with pytest.raises(UserError, match=r"np\.stack\(done\.completed\)"):
            found.complete("long")
        return
    long = found.complete("long", include=True)
    assert isinstance(long, pa.Table if kind == "arrow" else pl.DataFrame)
    long = pl.DataFrame(long)
    assert long.columns[:3] == [".imp", ".id", "age"]
    assert long[".imp"].to_list() == [0] * ROWS + [1] * ROWS + [2] * ROWS
    assert long[".id"].to_list() == list(range(ROWS)) * 3
    assert long["age"].null_count() == int(given["age"].isna().sum())


def test_before_fit_there_is_nothing():
    waiting = MultipleImputation(2)
    assert len(waiting) == 0
    assert str(waiting) == "MultipleImputation(2 draws, not fitted)\n\nnext: fit(data)"
    with pytest.raises(UserError, match="Call fit"):
        waiting.complete(1)


def test_the_data_are_not_taken_for_the_number_of_tables():
    with pytest.raises(UserError, match=r"MultipleImputation\(5\)\.fit\(data\)"):
        MultipleImputation(frame())


def test_unknown_settings_are_refused_before_the_fit():
    with pytest.raises(UserError, match="takes draws, schema, duration, event"):
        MultipleImputation(5, foo=1)


def test_completed_columns_are_printed(done):
    lines = str(done).splitlines()
    assert lines[2].split() == ["column", "method", "missing", "R-hat", "observed", "imputed"]
    record = done.diagnostics()[0]
    assert lines[3].split()[0] == "age"
    assert f"{record['imputed_mean']:.4g} ({record['imputed_deviation']:.3g})" in lines[3]
    assert "<table>" in done._repr_html_()


def test_pooled_hazard_ratios_are_printed_as_a_table(done):
    pooled = done.pool_cox(["age", "sex"])
    text = str(pooled)
    assert repr(pooled) == text == str(pooled.summary())
    assert text.startswith("Cox regression, pooled over 3 completed tables")
    row = next(line.split() for line in text.splitlines() if line.startswith("sex=m"))
    assert float(row[2]) == pytest.approx(np.exp(pooled.estimate[1]), abs=5e-4)
    assert float(row[4]) == pytest.approx(np.exp(pooled.low[1]), abs=5e-4)
    for words in ("exp(coef)", "FMI", "reference levels: sex = f", f"{ROWS} rows, ", "events", "pooled.plot("):
        assert words in text


def test_the_frame_and_guessed_names_have_the_same_numbers(done):
    pooled = done.pool_cox(["age", "sex"])
    table = pooled.to_frame()
    np.testing.assert_allclose(table["exp(coef) upper 95%"], np.exp(pooled.high))
    np.testing.assert_allclose(pooled.hazard_ratios_, np.exp(pooled.estimate))
    np.testing.assert_allclose(pooled.conf_int(), np.stack([pooled.low, pooled.high], 1))
    assert pooled.summary.loc["age", "p"] == pooled.p[0]
    assert pooled.summary["p"].tolist() == pooled.p.tolist()
    with pytest.raises(AttributeError, match="Rubin's rules do not pool it"):
        _ = pooled.concordance_index_


def test_least_squares_are_not_exponentiated_and_a_function_has_no_formula(done):
    assert "exp(coef)" not in str(done.pool("age ~ sex"))
    assert str(done.pool(lambda table: ([table["age"].mean()], [1.0]))).startswith("Estimates, pooled over 3")


def test_the_coverage_that_was_given_is_said(done):
    assert "coef lower 90%" in done.pool("age ~ sex", coverage=0.9).to_frame().columns


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_a_forest_is_drawn_and_written(done, suffix, tmp_path):
    pooled = done.pool_cox(["age", "sex"])
    chart = pooled.plot(tmp_path / f"forest.{suffix}")
    page = (tmp_path / f"forest.{suffix}").read_text()
    hazard = np.exp([pooled.estimate[1], pooled.low[1], pooled.high[1]])
    assert "{:.2f} ({:.2f} to {:.2f})".format(*hazard) in page
    assert page.count("<rect") == 2
    assert "<svg" in chart._repr_html_()
    with pytest.raises(UserError, match=r"\.svg or \.html"):
        chart.write(tmp_path / "forest.png")


@pytest.mark.parametrize("formula", ["age ~ sex", None])
def test_the_report_says_what_imputation_agrees_with_and_how_the_tables_were_made(formula, tmp_path):
    pair = {} if formula else {"duration": "time", "event": "dead"}
    found = MultipleImputation(2, formula=formula, rounds=1, **pair).fit(frame())
    page = found.report(tmp_path / "mi.html").read_text()
    text = html.unescape(page)
    assert f"agree with the analysis {found.formula_.text}." in text
    assert f"print(done.pool({found.formula_.text!r}))" in text
    options = "formula='age ~ sex'" if formula else "duration='time', event='dead'"
    assert f"MultipleImputation(2, {options}, rounds=1)" in text
    assert "Nothing to note" not in text
