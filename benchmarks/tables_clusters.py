"""Two-level multiple imputation on a simulated truth, beside R's mice (2l.pan, 2lonly.pmm) and jomo.

    python benchmarks/tables_clusters.py --replications 20     # a look
    python benchmarks/tables_clusters.py                       # 200; goes on where an earlier run stopped
    python benchmarks/tables_clusters.py --published           # popmis and toenail, exported by Rscript from mice

30 centres of 20 rows: y = 1 + .5 x1 + .5 x2 + .5 w + u + e, where w is yes or no of a whole centre, u of a centre and e
of a row, var(u) = ICC = .1, .3 or .5 and var(e) = 1 - ICC; x1 and the noise of x2 = .3 x1 + noise are made of centres
and rows in the same shares. x1 is missing by y, .8 / (1 + exp(2 - y)) + .05 of the rows; x2 was never measured in 8
centres, w is not known of 6.

Analysis: y ~ x1 + x2 + w + (1 | centre) by REML: ours, and lme4 for what R completed (equal to 1e-5), pooled alike,
with degrees of freedom between centres for the constant and w. Beside ours with cluster="centre": the naive run,
without it; complete rows; full data. ICC: its estimate alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

NAMES = ("(Intercept)", "x1", "x2", "w=yes", "ICC")
TRUTH = {icc: np.array([1, 0.5, 0.5, 0.5, icc]) for icc in (0.1, 0.3, 0.5)}
METHODS = ("ours", "naive", "mice", "jomo", "complete rows", "full data")
FORMULA = "y ~ x1 + x2 + w + (1 | centre)"
CENTRES, ROWS, BLOCK = 30, 20, 10


def simulate(icc: float, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table, and with its holes."""
    rng = np.random.default_rng([seed, round(10 * icc)])
    at = np.repeat(np.arange(CENTRES), ROWS)

    def noise() -> np.ndarray:
        return rng.normal(size=CENTRES)[at] * icc**0.5 + rng.normal(size=len(at)) * (1 - icc) ** 0.5

    w = (np.arange(CENTRES) % 2)[rng.permutation(CENTRES)][at]
    x1 = noise()
    x2 = 0.3 * x1 + noise()
    y = 1 + 0.5 * x1 + 0.5 * x2 + 0.5 * w + noise()
    full = pd.DataFrame({"centre": [f"c{i}" for i in at], "y": y, "x1": x1, "x2": x2})
    full["w"] = np.where(w > 0, "yes", "no")
    part = full.copy()
    part.loc[rng.random(len(at)) < 0.8 / (1 + np.exp(2 - y)) + 0.05, "x1"] = np.nan
    part.loc[np.isin(at, rng.permutation(CENTRES)[:8]), "x2"] = np.nan
    part.loc[np.isin(at, rng.permutation(CENTRES)[:6]), "w"] = None
    return full, part


def by_us(method: str, icc: float, seed: int, draws: int) -> dict:
    import unmask

    full, part = simulate(icc, seed)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method in ("ours", "naive"):
            cluster = {"cluster": "centre"} if method == "ours" else {}
            known = {"columns": {"centre": {"kind": "id"}}}
            done = unmask.MultipleImputation(draws, seed=seed, schema=known, **cluster).fit(part)
        else:  # one table, as if it had been completed twice
            table = full if method == "full data" else part.dropna()
            one = table.assign(x1=table["x1"].where(np.arange(len(table)) != 0))
            done = unmask.MultipleImputation(2, rounds=1, cluster="centre", seed=seed).fit(one)
            whole = done._values[0].copy()
            whole[1] = table["x1"].to_numpy()
            done._values = [whole, whole]
        found = done.pool(FORMULA)
    return {
        "estimate": [*found.estimate.tolist(), found.variances["ICC"]],
        "low": [*found.low.tolist(), np.nan],
        "high": [*found.high.tolist(), np.nan],
        "seconds": time.process_time() - start,
    }


def by_r(method: str, icc: float, seeds: list[int], draws: int) -> Iterator[tuple[int, dict]]:
    """One R process for several replications; tables and results go through files."""
    from unmask.modalities.table.imputation.pooling import pool

    with tempfile.TemporaryDirectory() as folder:
        table, result = Path(folder) / "in.csv", Path(folder) / "out.csv"
        pd.concat([simulate(icc, s)[1].assign(rep=s) for s in seeds]).to_csv(table, index=False, na_rep="NA")
        start = time.time()
        run_r(method, str(draws), str(table), str(result))
        seconds = (time.time() - start) / len(seeds)
        found = pd.read_csv(result)
    degrees = np.array([CENTRES - 2, CENTRES * ROWS - CENTRES - 2, CENTRES * ROWS - CENTRES - 2, CENTRES - 2])
    for seed, part in found.groupby("rep"):
        q, u = (part.pivot_table(index="draw", columns="place", values=k).to_numpy() for k in ("estimate", "error"))
        one = pool(q[:, :4], u[:, :4], complete_df=degrees)
        ends = {"low": [*one.low.tolist(), np.nan], "high": [*one.high.tolist(), np.nan]}
        yield int(seed), {"estimate": [*one.estimate.tolist(), float(q[:, 4].mean())], **ends, "seconds": seconds}


def run_r(*arguments: str) -> None:
    script = Path(__file__).with_name("tables_clusters.R")
    subprocess.run(["Rscript", str(script), *arguments], check=True, stdout=subprocess.DEVNULL)


def read(path: Path) -> dict[tuple[float, str], dict[int, dict]]:
    found: dict[tuple[float, str], dict[int, dict]] = {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        r = json.loads(line)
        found.setdefault((r["icc"], r["method"]), {})[r["seed"]] = r
    return found


def summary(path: Path) -> str:
    """A Markdown table: bias and coverage of each estimate by each method, on the replications that all have."""
    lines, results = [], read(path)
    for icc in TRUTH:
        lines += [f"\n**ICC {icc}**\n", f"| | {' | '.join(NAMES)} | seconds | replications |", "|---" * 8 + "|"]
        for method in METHODS:
            by_seed = results.get((icc, method))
            if by_seed is None:
                continue
            q, low, high = (np.array([r[k] for r in by_seed.values()], float) for k in ("estimate", "low", "high"))
            bias, error = q.mean(0) - TRUTH[icc], q.std(0, ddof=1) / len(q) ** 0.5
            cover = ((low <= TRUTH[icc]) & (high >= TRUTH[icc])).mean(0)
            cells = [f"{b:+.3f} ± {e:.3f}; {c:.3f}" for b, e, c in zip(bias, error, cover, strict=True)]
            cells[-1] = cells[-1].rpartition(";")[0]
            seconds = np.mean([r["seconds"] for r in by_seed.values()])
            lines.append(f"| {method} | {' | '.join(cells)} | {seconds:.1f} | {len(by_seed)} |")
    return "\n".join(["Bias ± its Monte Carlo error; coverage of 95 % intervals.", *lines])


PUBLISHED = {
    "popmis": ("school", ("(Intercept)", "sex", "texp", "ICC")),
    "toenail": (
        "patientID",
        (
            *("(Intercept)", "treatment", "visit", "treatment:visit"),
            *(f"{n}, mixed" for n in ("(Intercept)", "treatment", "visit", "treatment:visit")),
            "variance of patients",
        ),
    ),
}


def published(draws: int) -> None:
    """Pooled estimates and standard errors of the analyses of popmis (popular ~ sex + texp + (1 | school)) and toenail
    (logistic regression with errors robust to patients; the same with a random intercept): the same R code for all."""
    import unmask
    from unmask.modalities.table.imputation.pooling import pool

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_r("export", "-", "-", str(folder))
        for data, (cluster, names) in PUBLISHED.items():
            print(f"\n**{data}**\n\n| | {' | '.join(names)} | seconds |\n{'|---' * (len(names) + 2)}|")
            for method in ("ours", "naive", "mice", "jomo", "rows"):
                start, how = time.time(), method
                if method in ("ours", "naive"):
                    named = {"cluster": cluster} if method == "ours" else {}
                    kinds = {"columns": {cluster: {"kind": "id"}}}
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        done = unmask.MultipleImputation(draws, schema=kinds, seed=1, **named).fit(
                            folder / f"{data}.csv"
                        )
                    long, how = done.complete("long").to_pandas(), str(folder / "completed.csv")
                    long.rename(columns={".imp": "draw"}).drop(columns=".id").to_csv(how, index=False)
                run_r(data, how, str(draws), str(folder / "out.csv"))
                found = pd.read_csv(folder / "out.csv")
                q, u = (
                    found.pivot_table(index="draw", columns="place", values=k, dropna=False).to_numpy()
                    for k in ("estimate", "error")
                )
                if len(q) == 1:
                    q, u = np.repeat(q, 2, 0), np.repeat(u, 2, 0)
                one = pool(q, np.nan_to_num(u))
                cells = [
                    f"{b:.4f}" if np.isnan(own) else f"{b:.4f} ({e:.4f})"
                    for b, e, own in zip(one.estimate, one.error, u[0], strict=True)
                ]
                print(f"| {method} | {' | '.join(cells)} | {time.time() - start:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--icc", default="0.1,0.3,0.5")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--published", action="store_true", help="popmis and toenail instead")
    parser.add_argument("--out", default="tables_clusters.jsonl", help="a line per replication; read and added to")
    a = parser.parse_args()
    if a.published:
        published(a.draws)
        return
    path = Path(a.out)
    for block in range(0, a.replications, BLOCK):
        for icc in map(float, a.icc.split(",")):
            for method in a.methods.split(","):
                have = read(path).get((icc, method), {})
                seeds = [s for s in range(block, min(block + BLOCK, a.replications)) if s not in have]
                rows = (
                    (by_r(method, icc, seeds, a.draws) if seeds else ())
                    if method in ("mice", "jomo")
                    else ((s, by_us(method, icc, s, a.draws)) for s in seeds)
                )
                for seed, found in rows:
                    with path.open("a") as file:
                        file.write(json.dumps({"icc": icc, "method": method, "seed": seed, **found}) + "\n")
        print(f"{min(block + BLOCK, a.replications)} replications", flush=True)
    print(summary(path))


if __name__ == "__main__":
    main()
