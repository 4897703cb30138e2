"""Small clinical tables, made in microseconds."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[3] / ".." / "shared")) / "data" / "tables"


def patients(rows: int = 200, seed: int = 0, missing: float = 0.0) -> pd.DataFrame:
    """Age, sex, two labs that go with them, a stage, and follow-up; pandas, with holes on request."""
    rng = np.random.default_rng(seed)
    age = np.round(rng.normal(65, 10, rows))
    sex = np.where(rng.random(rows) < 0.5, "F", "M")
    low = np.round(70 + 0.2 * (age - 65) + rng.normal(0, 8, rows))
    high = np.round(low + 45 + rng.gamma(4, 4, rows))
    stage = np.array(["I", "II", "III"])[np.clip((age > 60).astype(int) + (rng.random(rows) < 0.4), 0, 2)]
    died = rng.exponential(np.exp(-0.05 * (age - 65)) * 500)
    left = rng.uniform(100, 1500, rows)
    frame = pd.DataFrame(
        {
            "age": age,
            "sex": sex,
            "dbp": low,
            "sbp": high,
            "stage": stage,
            "time": np.maximum(1, np.round(np.minimum(died, left))),
            "event": (died <= left).astype(int),
        }
    )
    if missing:
        for name in ("age", "sex", "dbp", "sbp", "stage"):
            frame.loc[rng.random(rows) < missing, name] = None
    return frame
