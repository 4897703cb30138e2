"""Multiple imputation on a simulated truth: bias and coverage of pooled estimates at 30 % missing at random.

    python benchmarks/tables_mi.py --quick     # 20 replications
    python benchmarks/tables_mi.py             # 200 replications

Two truths with 500 rows: y = 1 + 0.5 x1 - 0.7 x2 + 0.8 g + e, analysed by least squares; and proportional hazards with
log hazard ratios 0.5, -0.7, 0.8, analysed by Cox regression. x2 and g (0/1) lack 30 % each, more where x1 is high (and y,
or the event). Beside ours: complete rows only, and the full data before holes (what no imputation can beat).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

TRUTH = np.array([0.5, -0.7, 0.8])


def simulate(kind: str, seed: int, n: int = 500):
    """(columns, design columns, truth, holes)."""
    rng = np.random.default_rng([seed, n])
    x1 = rng.normal(size=n)
    x2 = 0.5 * x1 + rng.normal(size=n) * np.sqrt(0.75)
    g = (rng.random(n) < 1 / (1 + np.exp(-0.8 * x2))).astype(float)
    linear = np.column_stack([x1, x2, g]) @ TRUTH
    if kind == "linear":
        outcome = {"y": 1 + linear + rng.normal(size=n)}
        lift = outcome["y"]
    else:
        died, left = rng.exponential(np.exp(-linear)), rng.exponential(2.0, size=n)
        outcome = {"time": np.minimum(died, left), "event": (died <= left).astype(float)}
        lift = outcome["event"]
    columns = {"x1": x1, "x2": x2, "g": g, **outcome}
    score = x1 + 0.7 * (lift - lift.mean()) / lift.std()
    gone = {}
    for name in ("x2", "g"):
        low, high = -10.0, 10.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if (1 / (1 + np.exp(-score - middle))).mean() < 0.3 else (low, middle)
        gone[name] = rng.random(n) < 1 / (1 + np.exp(-score - middle))
    return columns, gone


def analyse(kind: str, columns) -> tuple[np.ndarray, np.ndarray]:
    from unmask.table.survival import fit_cox

    x = np.column_stack([columns["x1"], columns["x2"], columns["g"]])
    if kind == "cox":
        found = fit_cox(x, columns["time"], columns["event"])
        return found.beta, found.error
    design = np.column_stack([np.ones(len(x)), x])
    beta, residual = np.linalg.lstsq(design, columns["y"], rcond=None)[:2]
    covariance = np.linalg.inv(design.T @ design) * residual[0] / (len(x) - 4)
    return beta[1:], np.sqrt(np.diag(covariance))[1:]


def ours(kind: str, columns, gone, seed: int, draws: int, overrides):
    from unmask.table.data import Frame
    from unmask.table.multiple import MultipleImputation

    holed = {k: np.where(gone[k], np.nan, v) if k in gone else v for k, v in columns.items()}
    pair = {"duration": "time", "event": "event"} if kind == "cox" else {}
    frame = Frame(names=list(holed), columns=list(holed.values()), native=np.column_stack(list(holed.values())))
    done = MultipleImputation(draws=draws, seed=seed, **pair, **overrides).fit(frame)

    def one(table):
        full = dict(zip(holed, np.asarray(table, float).T, strict=True))
        return analyse(kind, full)

    return done.pool(one, complete_df=len(columns["x1"]) - 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--replications", type=int, default=None)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--kinds", default="linear,cox")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", default="tables_mi.json")
    a = parser.parse_args()
    count = a.replications or (20 if a.quick else 200)
    overrides = dict(pair.split("=", 1) for pair in a.set)
    out = {}
    for kind in a.kinds.split(","):
        found = {"ours": [], "complete rows": [], "full data": []}
        start = time.perf_counter()
        for seed in range(count):
            columns, gone = simulate(kind, seed)
            pooled = ours(kind, columns, gone, seed, a.draws, overrides)
            found["ours"].append((pooled.estimate, pooled.low, pooled.high))
            keep = ~(gone["x2"] | gone["g"])
            for name, rows in (("complete rows", keep), ("full data", np.ones(len(keep), bool))):
                beta, error = analyse(kind, {k: v[rows] for k, v in columns.items()})
                found[name].append((beta, beta - 1.96 * error, beta + 1.96 * error))
        seconds = time.perf_counter() - start
        for name, results in found.items():
            beta, low, high = (np.array([r[i] for r in results]) for i in range(3))
            row = {
                "bias": ((beta.mean(0) - TRUTH) / np.abs(TRUTH)).round(4).tolist(),
                "coverage": ((low <= TRUTH) & (high >= TRUTH)).mean(0).round(4).tolist(),
                "width": (high - low).mean(0).round(4).tolist(), "replications": count, "draws": a.draws,
            }  # fmt: skip
            out[f"{kind}, {name}"] = row | ({"seconds_each": round(seconds / count, 3)} if name == "ours" else {})
            print(f"{kind:7}{name:15} relative bias {row['bias']}  coverage {row['coverage']}  width {row['width']}")
        print(f"{kind}: {seconds / count:.2f} s a replication of {a.draws} draws")
        Path(a.out).write_text(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
