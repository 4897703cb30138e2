"""The line through the log-odds of predictions."""

from __future__ import annotations

import numpy as np
import pytest

from unmask.modalities.events.outcome.calibrating import log_odds, logistic_line, on_line
from unmask.modalities.events.outcome.scoring import calibration_line
from unmask.modalities.events.outcome.targets import Binary, from_dict


def drawn(points: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Predictions that are too near to the middle and too low on the whole, and what came."""
    rng = np.random.default_rng(seed)
    true = rng.normal(-1, 2, points)
    return 1 / (1 + np.exp(-(true - 1) / 2)), (rng.random(points) < 1 / (1 + np.exp(-true))).astype(float)


def test_predictions_on_the_line_are_calibrated():
    p, y = drawn(20_000)
    intercept, slope = logistic_line(p, y)
    assert (intercept, slope) == pytest.approx((1, 2), abs=0.1)
    np.testing.assert_allclose(calibration_line(y, on_line(p, intercept, slope))[:, 0], [0, 1], atol=0.01)
    fitted = Binary().calibrated(p[:, None], y[:, None])
    again = from_dict(fitted.to_dict())
    np.testing.assert_array_equal(again.finished(p[:, None], None, None)[:, 0], on_line(p, intercept, slope))
    np.testing.assert_array_equal(Binary().finished(p[:, None], None, None)[:, 0], p)


def test_few_points_do_not_turn_the_slope_round_and_a_perfect_split_has_a_line():
    p = np.array([0.1, 0.2, 0.3, 0.8])
    for y in (np.array([1, 0, 0, 0]), np.array([0, 0, 0, 1])):
        intercept, slope = logistic_line(p, y)
        assert 0 < slope < 2
        assert abs(intercept) < 5
    assert logistic_line(p, np.zeros(4)) == (0, 1)


def test_sure_predictions_have_log_odds():
    assert np.isfinite(log_odds(np.array([0.0, 1.0]))).all()
