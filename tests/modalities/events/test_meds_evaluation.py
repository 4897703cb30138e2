"""Predictions are what the package meds-evaluation reads, and its figures are ours."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from event_data import main_ok

import unmask
from unmask.modalities.events.records.labels import as_predictions
from unmask.modalities.events.uses.query_answers import judged

package = pytest.importorskip("meds_evaluation.evaluate", reason="meds-evaluation is not installed")


def same(frame: pl.DataFrame) -> None:
    """AUROC, AUPRC and Brier score, over points."""
    ours = judged(frame.with_columns(probability=pl.col("predicted_boolean_probability")))["model"]
    theirs = package.evaluate_binary_classification(frame)["samples_equally_weighted"]
    pairs = {"auroc": "roc_auc_score", "auprc": "average_precision_score", "brier": "brier_score"}
    for name, of_theirs in pairs.items():
        assert ours[name] == pytest.approx(theirs[of_theirs], abs=1e-6), name


def test_predictions_of_an_outcome(home: Path, tmp_path: Path):
    unmask.finetune(home / "model", home / "meds", tmp_path / "outcome", labels=home / "task", epochs=2)
    out = tmp_path / "predictions.parquet"
    given = [str(tmp_path / "outcome"), str(home / "meds"), "--labels", str(home / "task")]
    main_ok(["predict", *given, "--out", str(out), "--meds-evaluation"])
    same(pl.read_parquet(out))


def test_answers_to_a_task(home: Path):
    rows = pl.read_parquet(home / "task" / "*.parquet")
    wave = pl.int_range(pl.len()) * 37 % 101 / 101  # ties and all
    frame = rows.with_columns(probability=wave, predicted_boolean_probability=wave, question=pl.lit("A"))
    frame = frame.with_columns(probability=pl.when(pl.int_range(pl.len()) > 3).then("probability"))  # unanswered
    same(as_predictions(frame))
