"""Multiple imputation judges itself: what speaks against its tables is warned of, once, and in the report."""

import json
import warnings

import numpy as np
import polars as pl
import pytest
from tables import patients

from commands import run
from unmask.modalities.table.imputation.diagnostics import doubtful, r_hat, unmixed
from unmask.modalities.table.imputation.multiple import MultipleImputation


def block(seed: int = 0, rows: int = 120) -> pl.DataFrame:
    """A dozen skewed markers that half of the rows lack together, and a survival pair."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(rows, 2))
    markers = np.exp(shared @ rng.normal(0, 0.6, (2, 12)) + rng.normal(0, 0.5, (rows, 12))).round(3)
    markers[rng.random(rows) < 0.55] = np.nan
    columns = {f"m{k}": pl.Series(markers[:, k]).fill_nan(None) for k in range(12)}
    return pl.DataFrame(columns | {"time": rng.exponential(9, rows).round(2) + 0.01, "event": rng.random(rows) < 0.6})


def told(call) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in caught]


def test_chains_that_have_not_mixed_are_warned_of_by_fit_by_the_first_pooling_and_in_the_report(tmp_path):
    done = MultipleImputation(4, duration="time", event="event")
    said = told(lambda: done.fit(block()))
    assert sum("have not mixed after 40 rounds" in text for text in said) == 1
    assert done.trace_.shape[1] == 40
    first, second = (told(lambda: done.pool_cox(["m0"], penalizer=0.0)) for _ in range(2))
    assert sum("in doubt" in text and "have not mixed" in text for text in first) == 1
    assert not any("in doubt" in text for text in second)
    page = done.report(tmp_path / "r.html").read_text()
    assert "have not mixed" in page
    assert "Nothing to note" not in page


def test_the_command_line_warns_of_it_too(capsys, tmp_path):
    block().with_columns(pl.col("event").cast(int)).write_csv(tmp_path / "t.csv")
    pair = ["--duration", "time", "--event", "event", "--out", tmp_path / "f.csv"]
    code, text, errors = run(capsys, "impute", tmp_path / "t.csv", "--proper", 3, *pair, "--json")
    assert code == 0
    assert "warning: the chains have not mixed" in errors
    found = json.loads(text)
    assert "--rounds 160" in found["warnings"][0]
    assert not set(found["warnings"]) & set(found["notes"])
    run(capsys, "impute", tmp_path / "t.csv", "--proper", 2, *pair, "--rounds", 2)


@pytest.mark.parametrize("seed", [0, 1])
def test_tables_that_are_well_imputed_are_not_warned_of(seed):
    table = patients(200, seed=seed, missing=0.1).drop(columns=["time", "event"])
    done = MultipleImputation(5, seed=seed)
    assert told(lambda: done.fit(table)) == []
    assert done.doubts_ == []


def test_r_hat_is_warned_of_beyond_chance():
    rng = np.random.default_rng(0)
    alike = rng.normal(size=(400, 6, 10))
    assert np.mean([unmixed(traces) for traces in alike]) < 0.05
    apart = alike[:, :, :] + 3 * rng.normal(size=(400, 6, 1))
    assert np.mean([unmixed(traces) for traces in apart]) > 0.95
    still = np.repeat(rng.normal(size=(6, 1)), 10, axis=1)
    assert r_hat(still) == np.inf
    assert unmixed(still)
    assert r_hat(np.ones((6, 10))) == pytest.approx(1)


def autoregressive(share: float, rng: np.random.Generator, *, chains: int = 5, rounds: int = 40) -> np.ndarray:
    """(400, chains, rounds) from the stationary distribution."""
    out = rng.normal(size=(400, chains, rounds))
    for t in range(1, rounds):
        out[..., t] = share * out[..., t - 1] + (1 - share**2) ** 0.5 * out[..., t]
    return out


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.8])
def test_rounds_that_resemble_those_before_are_no_doubt(share):
    """Of such chains R-hat exceeds 1.2 by its own noise: the halves of a chain are short."""
    traces = autoregressive(share, np.random.default_rng(0))
    assert np.mean([doubtful(t, 1) for t in traces]) < 0.05
    assert share < 0.5 or np.mean([unmixed(t) for t in traces]) > 0.2


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_chains_that_stand_apart_or_remember_their_start_are_doubted(share):
    rng = np.random.default_rng(0)
    traces = autoregressive(share, rng)
    assert np.mean([doubtful(t, 1) for t in traces + 3 * rng.normal(size=(400, 5, 1))]) > 0.9
    slow = np.cumsum(rng.normal(size=(400, 5, 40)), 2)
    assert np.mean([doubtful(t, 1) for t in slow]) > 0.8


@pytest.mark.parametrize("cells", [1, 2])
def test_one_or_two_imputed_cells_are_not_called_far_from_observed_ones(cells):
    rng = np.random.default_rng(0)
    for seed in range(12):
        z = rng.normal(size=150)
        x = pl.Series(z + rng.normal(size=150)).scatter(rng.choice(150, cells, replace=False), None)
        assert told(lambda f=pl.DataFrame({"x": x, "z": z}), s=seed: MultipleImputation(5, seed=s).fit(f)) == []


def test_imputed_values_far_from_observed_ones_are_warned_of():
    """Any observed value, where another column tells which; what that column tells is near."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=300)
    x = z + rng.normal(size=300)
    done = MultipleImputation(5, method="sample")
    gone = rng.random(300) < 0.4
    frame = pl.DataFrame({"x": pl.Series(np.where(gone, np.nan, x)).fill_nan(None), "z": z, "w": x + 0.1 * z})
    said = told(lambda: done.fit(frame))
    assert sum("far from observed ones" in text and "'x'" in text for text in said) == 1
    assert told(lambda: MultipleImputation(5).fit(frame)) == []


def test_complete_rows_are_advised_where_donors_cannot_pass_the_largest_value():
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(size=200))
    y = x + 0.3 * x**2 + rng.normal(size=200)
    holed = pl.Series(np.where(rng.random(200) < 0.3, np.nan, x)).fill_nan(None)
    frame = pl.DataFrame({"x": holed, "y": y})
    said = told(lambda: MultipleImputation(3, formula="y ~ x + I(x**2)", method="pmm").fit(frame))
    assert sum("complete rows" in text for text in said) == 1
    said = told(lambda: MultipleImputation(3, formula="y ~ x + I(x**2)").fit(frame))
    assert not any("complete rows" in text for text in said)


def test_an_outcome_alone_is_as_well_left_out_and_the_report_prints_the_call(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=100)
    y = pl.Series(np.where(rng.random(100) < 0.3, np.nan, x + rng.normal(size=100))).fill_nan(None)
    done = MultipleImputation(3, formula="y ~ x", seed=4).fit(pl.DataFrame({"x": x, "y": y}))
    assert any("complete rows give its estimates as well" in note for note in done.notes_)
    page = done.report(tmp_path / "r.html").read_text()
    assert "MultipleImputation(3, formula=&#39;y ~ x&#39;, seed=4).fit" in page


def test_a_column_that_one_centre_lacks_is_imputed_where_the_formula_reads_it_and_else_not_judged():
    rng = np.random.default_rng(0)
    centre, age = rng.choice(["A", "B", "C"], 200), rng.normal(60, 10, 200).round()
    lab = pl.Series(np.where(centre == "C", np.nan, 50 + 0.5 * age + rng.normal(0, 4, 200))).fill_nan(None)
    frame = pl.DataFrame({"centre": centre, "age": age, "lab": lab, "y": age + rng.normal(size=200)})
    done = MultipleImputation(3, formula="y ~ age + lab")
    said = told(lambda: done.fit(frame))
    assert sum("'lab' is empty" in text for text in [*said, *done.notes_]) == 2  # once each
    assert sum("'lab' is empty in every row where 'centre' is 'C'" in text for text in said) == 1
    assert done.completed[0]["lab"].null_count() == 0
    assert done.doubts_ == []
    drawn = np.mean([t["lab"].to_numpy()[centre == "C"].mean() for t in done.completed])
    assert drawn == pytest.approx(50 + 0.5 * age[centre == "C"].mean(), abs=2)
    assert np.isfinite(done.pool("y ~ age + lab").estimate).all()
    kept = MultipleImputation(3)
    said = told(lambda: kept.fit(frame))
    assert not any("'lab'" in text for text in said if "far" in text or "mixed" in text)
    assert sum("left empty" in text and "structural = false" in text for text in said) == 1
    assert kept.completed[0]["lab"].null_count() == lab.null_count()
