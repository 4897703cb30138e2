"""A small table, and a MEDS folder of a few patients, for what all kinds have in common."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl

from unmask.modalities.events.sources.convert import convert

N = 40
"""Rows, and patients."""


def clinic() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(60, 10, N), "crp": rng.normal(5, 2, N), "sex": rng.choice(["f", "m"], N)})
    frame.loc[::5, "crp"] = np.nan
    return frame


def hospital(folder: Path) -> Path:
    rows = [(s, f"2020-01-{d + 1:02} 08:00:00", f"LAB//{(s + d) % 4}", float(d)) for s in range(N) for d in range(6)]
    pl.DataFrame(rows, schema=["subject_id", "time", "code", "numeric_value"], orient="row").write_csv(folder / "e.csv")
    convert(folder / "e.csv", folder / "meds")
    return folder / "meds"
