"""Multiple imputation on a simulated truth: bias, coverage and fraction of missing information of every estimate.

    python benchmarks/tables_mi.py --replications 20       # a look
    python benchmarks/tables_mi.py                         # 200; goes on where an earlier run stopped
    python benchmarks/tables_mi.py --methods ours --designs linear,cox --sizes 150
    python benchmarks/tables_mi.py --pool                  # our pool beside mice::pool on the same tables

Four designs in which one covariate goes by the outcome, with 150 and 1 000 rows: missing with probability
.8 / (1 + exp(-s)) + .05, about 45 %, where s is the outcome less its mean.

    linear     y = 1 + x1 + x2 + e; x2 = .5 x1 + noise; x1 goes by y, a fifth of x2 at random
    binary     y = 1 + x + g + e; g is 0/1 with logit .5 x, and goes by y
    quadratic  y = 1 + x + .5 x^2 + z + e; z = .5 x + noise; x goes by y; ours is told the formula
    cox        log hazard ratios .7 and -.5; x1 goes by event and time; one follow-up time in a hundred goes at random
    mean       x ~ N(0, 1), half missing completely at random: the fraction of missing information of its mean is .5

Five of columns as clinical tables have them, each with its own number of rows:

    markers    300 rows; two log-normal markers, half of the rows lack both, completely at random; a survival pair that
               has nothing to do with them
    square     500 rows; y = 1 + x + .3 x^2 + .5 z + e; x log-normal, .1 + .4 / (1 + exp(-(y - median))) missing; ours
               is told the formula
    zeros      400 rows; y = 1 + x + .5 z + e; half of x is 0, the rest log-normal by z; .7 / (1 + exp(2 - y)) missing;
               ours is told the formula
    small      60 rows; x = .6 z + noise, missing with probability 1 / (1 + exp(.8 - z))
    ordinal    400 rows; o of four levels, proportional odds of x; y = 1 + .5 x + .5 o + e; o goes by y; ours is told
               the formula

One with late entry; R's imputations have no such thing:

    late       600 rows that were still followed at entry; log hazard ratios .9 and 0; w = .5 x + noise; x goes with
               probability 1 / (1 + exp(-w)); ours is told the formula

Beside ours (default settings, 20 tables): complete rows, full data (before holes), and where Rscript with the packages
mice and smcfcs is found: mice with norm, logreg and polr; mice's defaults (pmm, logreg, polr); smcfcs (norm, logreg,
podds). mice has 5 rounds (1 for one incomplete column) and for Cox the event and Nelson-Aalen hazard as predictors;
smcfcs has 10. Both leave out rows without follow-up time. Each R process handles many replications.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

FORMULA = {
    "linear": "y ~ x1 + x2",
    "binary": "y ~ x + g",
    "quadratic": "y ~ x + I(x**2) + z",
    "cox": "Surv(time, event) ~ x1 + x2",
    "mean": "",
    "markers": "Surv(time, event) ~ m1 + m2",
    "square": "y ~ x + I(x**2) + z",
    "zeros": "y ~ x + z",
    "small": "",
    "ordinal": "y ~ x + o",
    "late": "Surv(time, event) ~ x + w",
}
SIZES = {"markers": (300,), "square": (500,), "zeros": (400,), "small": (60,), "ordinal": (400,), "late": (600,)}
HOLED = {
    "linear": ("x1", "x2"),
    "binary": ("g",),
    "quadratic": ("x",),
    "cox": ("x1",),
    "mean": ("x",),
    "markers": ("m1", "m2"),
    "square": ("x",),
    "zeros": ("x",),
    "small": ("x",),
    "ordinal": ("o",),
    "late": ("x",),
}
MARKER, RATIO = float(np.exp(0.625)), float(np.exp(0.245))
"""Means of the log-normal columns of designs markers and square."""
LATE = -0.286
"""Mean of x among those who are still followed at entry, by simulation."""
TRUTH = {
    "linear": {"(Intercept)": 1, "x1": 1, "x2": 1, "mean x1": 0, "mean x2": 0},
    "binary": {"(Intercept)": 1, "x": 1, "g": 1, "mean g": 0.5},
    "quadratic": {"(Intercept)": 1, "x": 1, "I(x**2)": 0.5, "z": 1, "mean x": 0},
    "cox": {"x1": 0.7, "x2": -0.5, "mean x1": 0},
    "mean": {"mean x": 0},
    "markers": {"m1": 0, "m2": 0, "mean m1": MARKER, "mean m2": MARKER},
    "square": {"(Intercept)": 1, "x": 1, "I(x**2)": 0.3, "z": 0.5, "mean x": RATIO},
    "zeros": {"(Intercept)": 1, "x": 1, "z": 0.5, "mean x": 0.5 * float(np.exp(0.305))},
    "small": {"mean x": 0},
    "ordinal": {"(Intercept)": 1, "x": 0.5, "o[1]": 0.5, "o[2]": 1, "o[3]": 1.5, "mean o": 1.5},
    "late": {"x": 0.9, "w": 0, "mean x": LATE},
}
WITH_R = ("norm", "pmm", "smcfcs")
RIVALS = dict.fromkeys(FORMULA, WITH_R) | {"mean": ("norm", "pmm"), "small": ("norm", "pmm"), "late": ()}
TOLD = ("quadratic", "square", "zeros", "ordinal", "late")
"""Designs whose formula ours is told."""
PAIRS = ("cox", "markers", "late")
CUTS = (-1.3, 0.0, 1.3)
"""Of the ordinal column; symmetric, so that its mean is 1.5."""
BLOCK = 20
"""Replications of one R process."""


def simulate(design: str, n: int, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Columns, and which of their values go."""
    order = ("binary", "cox", "linear", "mean", "quadratic", "markers", "square", "zeros", "small", "ordinal", "late")
    rng = np.random.default_rng([seed, n, order.index(design)])
    one, two, noise = rng.normal(size=(3, n))
    u = rng.random((4, n))
    gone = {}
    if design == "linear":
        columns = {"x1": one, "x2": 0.5 * one + two}
        columns["y"] = 1 + columns["x1"] + columns["x2"] + noise
        gone["x2"] = u[1] < 0.2
        score = columns["y"] - 1
    elif design == "binary":
        g = (u[2] < expit(0.5 * one)).astype(float)
        columns = {"x": one, "g": g, "y": 1 + one + g + noise}
        score = columns["y"] - 1.5
    elif design == "quadratic":
        z = 0.5 * one + two
        columns = {"x": one, "z": z, "y": 1 + one + 0.5 * one**2 + z + noise}
        score = columns["y"] - 1.5
    elif design == "cox":
        x2 = 0.5 * one + two
        died, left = -np.log(u[2]) * np.exp(-0.7 * one + 0.5 * x2), -np.log(u[3]) * 2
        columns = {"x1": one, "x2": x2, "time": np.minimum(died, left), "event": (died <= left).astype(float)}
        score = 2 * (columns["event"] - 0.6) - (np.log(columns["time"]) + 0.9)
        gone["time"] = rng.random(n) < 0.01
    elif design == "markers":
        columns = {"m1": np.exp(one + 0.5 * two), "m2": np.exp(one + 0.5 * noise)}
        columns |= {"time": -5 * np.log(u[2]), "event": (u[3] < 0.6).astype(float)}
        return columns, dict.fromkeys(("m1", "m2"), u[0] < 0.5)
    elif design == "square":
        x = np.exp(0.7 * (0.4 * one + 0.84**0.5 * two))
        columns = {"x": x, "z": one, "y": 1 + x + 0.3 * x**2 + 0.5 * one + noise}
        return columns, {"x": u[0] < 0.1 + 0.4 * expit(columns["y"] - np.median(columns["y"]))}
    elif design == "zeros":
        x = np.where(u[2] < 0.5, 0, np.exp(0.5 * one + 0.6 * two))
        columns = {"x": x, "z": one, "y": 1 + x + 0.5 * one + noise}
        return columns, {"x": u[0] < 0.7 * expit(columns["y"] - 2)}
    elif design == "small":
        return {"x": 0.6 * one + 0.8 * two, "z": one}, {"x": u[0] < expit(one - 0.8)}
    elif design == "ordinal":
        o = np.digitize(one + np.log(u[2] / (1 - u[2])), CUTS).astype(float)
        columns = {"x": one, "o": o, "y": 1 + 0.5 * one + 0.5 * o + noise}
        score = columns["y"] - 1.75
    elif design == "late":
        x = rng.normal(size=4 * n)
        died, left = rng.exponential(5 * np.exp(-0.9 * x)), rng.uniform(2, 12, 4 * n)
        entry = rng.uniform(0, 4, 4 * n)
        kept = np.flatnonzero(np.minimum(died, left) > entry + 1e-3)[:n]
        x, died, left, entry = (v[kept] for v in (x, died, left, entry))
        columns = {"x": x, "w": 0.5 * x + two, "time": np.minimum(died, left), "event": (died <= left).astype(float)}
        return columns | {"entry": entry}, {"x": u[0] < expit(columns["w"])}
    else:
        return {"x": one, "z": two}, {"x": u[0] < 0.5}
    gone[HOLED[design][0]] = u[0] < 0.8 * expit(score) + 0.05
    return columns, gone


def expit(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def holed(columns: dict[str, np.ndarray], gone: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {k: np.where(gone[k], np.nan, v) if k in gone else v for k, v in columns.items()}


def as_frame(columns: dict[str, np.ndarray]):
    import polars as pl

    return pl.DataFrame({k: pl.Series(v).fill_nan(None) for k, v in columns.items()})


SCHEMA = {
    "binary": {"columns": {"g": {"kind": "binary"}}},
    "ordinal": {"columns": {"o": {"kind": "ordinal", "categories": ["0.0", "1.0", "2.0", "3.0"]}}},
    "late": {"entry": "entry"},
}


def ours(design: str, columns: dict[str, np.ndarray], draws: int, seed: int, method: str | None = None) -> dict:
    from unmask import MultipleImputation

    options: dict = {"duration": "time", "event": "event"} if design in PAIRS else {}
    options |= {"method": method, "schema": SCHEMA.get(design)}
    if design in TOLD:
        options["formula"] = FORMULA[design]
    start = time.process_time()
    done = MultipleImputation(draws, seed=seed, **options).fit(as_frame(columns))
    seconds = time.process_time() - start
    n = len(next(iter(columns.values())))
    parts = [done.pool(FORMULA[design])] if FORMULA[design] else []

    def means(table):
        x = table.select(HOLED[design]).to_numpy().astype(float)
        return x.mean(0), x.std(0, ddof=1) / np.sqrt(n)

    parts.append(done.pool(means, complete_df=n - 1))
    joined = {k: np.concatenate([getattr(p, k) for p in parts]).tolist() for k in ("estimate", "low", "high", "fmi")}
    return joined | {"seconds": seconds}


def plain(design: str, columns: dict[str, np.ndarray], rows: np.ndarray) -> dict:
    """The analysis of complete rows alone."""
    from scipy import stats

    from unmask.modalities.table.imputation.formula_fit import fit_formula
    from unmask.modalities.table.imputation.formula_text import parse_formula
    from unmask.modalities.table.reading.readers import read_frame
    from unmask.modalities.table.rules.rules import schema_for
    from unmask.modalities.table.schema.values import encode

    part = {k: v[rows] for k, v in columns.items()}
    estimate, error, df = [], [], len(next(iter(part.values()))) - 1
    if FORMULA[design]:
        frame = read_frame(as_frame(part))
        pair = {"duration": "time", "event": "event"} if design in PAIRS else {"duration": None, "event": None}
        schema = schema_for(frame, SCHEMA.get(design), **pair)
        fit = fit_formula(parse_formula(FORMULA[design], schema), encode(frame, schema))
        estimate, error, df = fit.beta.tolist(), fit.error.tolist(), fit.df
    for name in HOLED[design]:
        estimate.append(float(part[name].mean()))
        error.append(float(part[name].std(ddof=1) / np.sqrt(len(part[name]))))
    q, e = np.array(estimate), np.array(error) * stats.t.ppf(0.975, df)
    return {"estimate": estimate, "low": (q - e).tolist(), "high": (q + e).tolist(), "fmi": [0.0] * len(q)}


def by_r(design: str, method: str, n: int, seeds: list[int], draws: int) -> Iterator[tuple[int, dict]]:
    """One R process for many replications; tables and results go through files."""
    from scipy import stats

    with tempfile.TemporaryDirectory() as folder:
        table, result = Path(folder) / "in.csv", Path(folder) / "out.csv"
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            for number, seed in enumerate(seeds):
                columns = holed(*simulate(design, n, seed))
                if number == 0:
                    writer.writerow(["rep", *columns])
                for row in zip(*columns.values(), strict=True):
                    writer.writerow([seed, *("NA" if v != v else repr(float(v)) for v in row)])
        start = time.time()
        run_r(design, method, str(draws), str(table), str(result))
        seconds = (time.time() - start) / len(seeds)
        found: dict[int, list[dict]] = {}
        with result.open() as file:
            for row in csv.DictReader(file):
                found.setdefault(int(row["rep"]), []).append({k: float(v) for k, v in row.items()})
        for seed in seeds:
            rows = found.get(seed)
            if rows is None:
                continue
            half = [stats.t.ppf(0.975, r["df"]) * r["error"] for r in rows]
            q = [r["estimate"] for r in rows]
            ends = {
                "low": [a - b for a, b in zip(q, half, strict=True)],
                "high": [a + b for a, b in zip(q, half, strict=True)],
            }
            yield seed, {"estimate": q, **ends, "fmi": [r["fmi"] for r in rows], "seconds": seconds}


def run_r(*arguments: str) -> None:
    script = Path(__file__).with_name("tables_mi.R")
    subprocess.run(["Rscript", str(script), *arguments], check=True, stdout=subprocess.DEVNULL)


def compare_pool(draws: int) -> float:
    """Largest relative difference between our pool and mice::pool on the same completed tables."""
    from unmask import MultipleImputation

    done = MultipleImputation(draws, seed=1).fit(as_frame(holed(*simulate("linear", 150, 0))))
    mine = done.pool(FORMULA["linear"])
    with tempfile.TemporaryDirectory() as folder:
        table, result = Path(folder) / "in.csv", Path(folder) / "out.csv"
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["draw", *done.completed[0].columns])
            for number, one in enumerate(done.completed):
                writer.writerows([number, *(repr(float(v)) for v in row)] for row in one.rows())
        run_r("pool", "-", "-", str(table), str(result))
        with result.open() as file:
            rows = list(csv.DictReader(file))
    worst = 0.0
    for key in ("estimate", "error", "df", "p", "low", "high", "fmi", "riv"):
        theirs = np.array([float(r[key]) for r in rows])
        worst = max(worst, float((np.abs(getattr(mine, key) - theirs) / np.maximum(np.abs(theirs), 1e-3)).max()))
    return worst


def read(path: Path) -> dict[tuple[str, int, str], dict[int, dict]]:
    found: dict[tuple[str, int, str], dict[int, dict]] = {}
    if path.is_file():
        for line in path.read_text().splitlines():
            r = json.loads(line)
            found.setdefault((r["design"], r["n"], r["method"]), {})[r["seed"]] = r
    return found


def summary(path: Path) -> str:
    """A Markdown table: bias, coverage and fraction of missing information of each estimate by each method."""
    lines = []
    results = read(path)
    for design in FORMULA:
        for n in sorted({k[1] for k in results if k[0] == design}):
            names = list(TRUTH[design])
            truth = np.array([TRUTH[design][k] for k in names], float)
            lines += [
                "",
                f"**{design}, n = {n}**",
                "",
                f"| | {' | '.join(names)} | replications |",
                "|---" * (len(names) + 2) + "|",
            ]
            for (d, size, method), by_seed in results.items():
                if (d, size) != (design, n):
                    continue
                q, low, high, fmi = (
                    np.array([r[k] for r in by_seed.values()]) for k in ("estimate", "low", "high", "fmi")
                )
                bias, cover = q.mean(0) - truth, ((low <= truth) & (high >= truth)).mean(0)
                error = q.std(0, ddof=1) / np.sqrt(len(q))
                parts = zip(bias, error, cover, fmi.mean(0), strict=True)
                cells = [f"{b:+.3f} ± {e:.3f}; {c:.3f}; {f:.2f}" for b, e, c, f in parts]
                lines.append(f"| {method} | {' | '.join(cells)} | {len(by_seed)} |")
    return "\n".join(
        ["Bias ± its Monte Carlo error; coverage of 95 % intervals; mean fraction of missing information.", *lines]
    )


def run_missing(a: argparse.Namespace, path: Path, rows: int, block: int, results_of) -> None:
    """Run the replications that a file lacks, block by block, so that all methods have about as many.

    Args:
        a: `replications`, and `methods` and `designs` with commas between.
        results_of: (design, method, seeds) -> a line of the file for each replication.
    """
    for first in range(0, a.replications, block):
        last = min(first + block, a.replications)
        for method in a.methods.split(","):
            for design in a.designs.split(","):
                have = read(path).get((design, rows, method), {})
                with path.open("a") as file:
                    for row in results_of(design, method, [s for s in range(first, last) if s not in have]):
                        file.write(json.dumps(row) + "\n")
                        file.flush()
        print(f"{last} replications", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--designs", default=",".join(FORMULA))
    parser.add_argument("--sizes", help="rows; by default those of each design")
    parser.add_argument(
        "--methods", default="ours,complete rows,full data,norm,pmm,smcfcs", help="'ours pmm': ours told the method"
    )
    parser.add_argument("--pool", action="store_true", help="compare pool with mice::pool and stop")
    parser.add_argument(
        "--out", default="tables_mi.jsonl", help="one line per replication and method; read and added to"
    )
    a = parser.parse_args()
    has_r = shutil.which("Rscript") is not None
    if a.pool:
        print(
            f"largest relative difference to mice::pool: {compare_pool(a.draws):.2g}" if has_r else "no Rscript found"
        )
        return
    path = Path(a.out)
    path.touch()
    methods = a.methods.split(",")
    if not has_r and set(methods) & set(WITH_R):
        print("no Rscript found: mice and smcfcs are left out", file=sys.stderr)
    # All designs and sizes advance together, so that a run that is stopped has something of each.
    for block in range(0, a.replications, BLOCK):
        for method in methods:
            for design in a.designs.split(","):
                for n in map(int, a.sizes.split(",")) if a.sizes else SIZES.get(design, (150, 1000)):
                    have = read(path).get((design, n, method), {})
                    seeds = [s for s in range(block, min(block + BLOCK, a.replications)) if s not in have]
                    with path.open("a") as file:
                        for row in results_of(design, method, n, seeds, a.draws, has_r=has_r):
                            file.write(json.dumps(row) + "\n")
                            file.flush()
        print(f"{min(block + BLOCK, a.replications)} replications", flush=True)
    print(summary(path))


def results_of(design: str, method: str, n: int, seeds: list[int], draws: int, *, has_r: bool) -> Iterator[dict]:
    """A record per replication."""
    common = {"design": design, "n": n, "method": method, "draws": draws}
    if method in WITH_R:
        if has_r and seeds and method in RIVALS[design]:
            for seed, result in by_r(design, method, n, seeds, draws):
                yield common | {"seed": seed} | result
        return
    for seed in seeds:
        yield common | {"seed": seed} | by_us(design, method, n, seed, draws)


def by_us(design: str, method: str, n: int, seed: int, draws: int) -> dict:
    columns, gone = simulate(design, n, seed)
    if method.startswith("ours"):
        return ours(design, holed(columns, gone), draws, seed, method[5:] or None)
    keep = np.ones(n, bool)
    if method == "complete rows":
        for g in gone.values():
            keep &= ~g
    return plain(design, columns, keep)


if __name__ == "__main__":
    main()
