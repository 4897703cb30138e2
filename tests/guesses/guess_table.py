"""What the guesses of table.toml read: a cohort, a model of it, completed tables, pooled estimates.

`quick` are settings that make a fit of milliseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import unmask

QUICK: dict[str, Any] = {"steps": 0, "members": 1}


def names(home: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    df = pd.DataFrame(
        {
            "age": np.round(rng.normal(60, 9, 60), 1),
            "sex": np.where(rng.random(60) < 0.5, "f", "m"),
            "bmi": np.round(rng.normal(27, 3, 60), 1),
            "time": np.round(rng.exponential(900, 60)) + 1,
            "dead": (rng.random(60) < 0.7).astype(int),
        }
    )
    df.loc[::7, "age"] = np.nan
    df.loc[::5, "bmi"] = np.nan
    df.to_csv(home / "cohort.csv", index=False)
    run = unmask.table.pretrain(df, home / "m", duration="time", event="dead", console=False, **QUICK)
    done = unmask.MultipleImputation(3, rounds=2, duration="time", event="dead").fit(df)
    X = df[["age", "bmi", "time"]].to_numpy()
    return {
        "np": np,
        "pd": pd,
        "df": df,
        "X": X,
        "new": df.head(9),
        "quick": QUICK,
        "model": run.model,
        "done": done,
        "pooled": done.pool_cox(["age", "sex"]),
    }
