"""What the outcome report says to a clinician."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from event_data import main_ok

from unmask.modalities.events.outcome.clinical import descriptions, named, roc, span, thresholds
from unmask.modalities.events.uses.next_visit import figures


def test_thresholds_count_what_they_say():
    y, p = np.array([1, 1, 0, 0, 0]), np.array([0.6, 0.04, 0.35, 0.1, 0.01])
    rows = {r["threshold"]: r for r in thresholds(y, p, np.arange(5))}
    at = rows[0.3]
    assert (at["flagged"], at["sensitivity"], at["ppv"]) == (2, 0.5, 0.5)
    assert (at["specificity"], at["npv"]) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert rows[0.5]["ppv"] == 1
    assert thresholds(y, p * 0.1, np.arange(5))[-1]["ppv"] is None
    # One patient, asked five times, tells nothing of others.
    one = thresholds(y, p, np.zeros(5, int))[3]
    assert one["sensitivity_interval"] is None


def test_roc_goes_from_corner_to_corner_and_takes_ties_together():
    false, true = roc(np.array([1, 0, 1, 0]), np.array([0.9, 0.5, 0.5, 0.1]))
    assert false.tolist() == [0, 0, 0.5, 1]
    assert true.tolist() == [0, 0.5, 1, 1]


def test_spans_are_told_in_units_that_fit():
    assert [span(h) for h in (47, 49, 24 * 700, 24 * 3652.5)] == ["47 hours", "2.04 days", "700 days", "10 years"]


def test_next_visit_figures_have_intervals_over_patients(rng: np.random.Generator):
    p = rng.random((60, 30))
    came, before = (rng.random((60, 30)) < p).astype(float), (rng.random((60, 30)) < 0.5).astype(float)
    found = figures(came, before, p, draws=60)
    for part in ("all", "onsets", "repeats"):
        for name in ("auroc", "auprc", "recall_at_5"):
            low, high = found[part]["intervals"][name]
            assert low < found[part][name] < high


def test_the_report_names_the_outcome_and_describes_codes(home: Path, tmp_path: Path):
    codes = home / "meds" / "metadata" / "codes.parquet"
    pl.read_parquet(codes).with_columns(
        description=pl.when(pl.col("code") == "GLUCOSE").then(pl.lit("Glucose in blood")).otherwise(pl.lit(None))
    ).write_parquet(codes)
    words = descriptions(home / "meds")
    assert named("GLUCOSE", words) == "Glucose in blood (GLUCOSE)"
    assert named("VISIT", words) == "VISIT"
    given = ["--set", "curve=false", "--set", "trees=5", "--set", "epochs=2", "--set", "members=2"]
    task = str(home / "task")
    where = ["--labels", task, "--out", str(tmp_path / "m")]
    main_ok(["finetune", "outcome", str(home / "model"), str(home / "meds"), *where, *given, "--examples"])
    page = (tmp_path / "m" / "report.html").read_text()
    for said in (
        "Prediction of task",
        "positive (",
        "after the first event",
        "ROC curve",
        "chance",
        "perfect calibration",
        "Slope ",
        "intercept ",
        "sensitivity",
        "PPV",
        "Glucose in blood (GLUCOSE)",
        "resampl",
    ):
        assert said in page, said
