"""Multiple imputation for causes, subdistribution hazards and interactions on a simulated truth, beside R's smcfcs.

    python benchmarks/tables_outcomes.py --replications 20     # a look
    python benchmarks/tables_outcomes.py                       # 200; goes on where an earlier run stopped
    python benchmarks/tables_outcomes.py --sheet               # docs/results/tables-outcomes.json from what is there

Three designs of 400 rows in which one covariate goes by the outcome, about 40 %:

    compet       two causes with hazards .10 exp(.8 x + .4 z) and .08 exp(-.5 x + .3 z), censored from 1 to 12; x is 0/1
                 with logit .5 z, and goes by cause and time; Cox regressions of both causes
    fine-gray    P(cause 1 by t) = 1 - (1 - .5 (1 - exp(-t)))^exp(.7 x + .4 z) (Fine & Gray 1999), else cause 2 with
                 hazard exp(.3 x); censored from 0.2 to 4; x as before; Fine-Gray regression of cause 1
    interaction  y = 1 + .5 x + .5 z + .5 x z + e; x = .5 z + noise, and goes by y and z; ours is told the formula

Beside ours (5 tables): complete rows, full data, and by R where Rscript is found, 5 tables each: smcfcs ("compet";
"coxph" of subdistribution times, each table with censoring times of its own, drawn as smcfcs.finegray of later versions
draws them; "lm"); and a naive run of mice: x by its default method from time and event as they stand, or from y with
x z as just another variable.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sheets import FOLDER, Sheet, Table, written
from tables_mi import as_frame, expit, holed, read, run_missing

ROWS, DRAWS, BLOCK = 400, 5, 20
TRUTH = {
    "compet": {"x, cause 1": 0.8, "z, cause 1": 0.4, "x, cause 2": -0.5, "z, cause 2": 0.3},
    "fine-gray": {"x": 0.7, "z": 0.4},
    "interaction": {"(Intercept)": 1.0, "x": 0.5, "z": 0.5, "x:z": 0.5},
}
METHODS = ("ours", "smcfcs", "naive", "complete rows", "full data")
PAIR = {"duration": "time", "event": "event", "event_level": ["1.0", "2.0"]}
NAMES = {
    "naive": "mice, time and event (or the product) as columns",
    "ours": "ours",
}
COX, LINEAR = "Surv(time, event) ~ x + z", "y ~ x + z + x:z"


def simulate(design: str, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Columns, and which of their values go."""
    rng = np.random.default_rng([seed, list(TRUTH).index(design)])
    z, noise, more = rng.normal(size=(3, ROWS))
    u = rng.random((5, ROWS))
    if design == "interaction":
        x = 0.5 * z + noise
        y = 1 + 0.5 * x + 0.5 * z + 0.5 * x * z + more
        return {"x": x, "z": z, "y": y}, {"x": u[0] < 0.75 * expit(y - 1.5) + 0.05}
    x = (u[1] < expit(0.5 * z)).astype(float)
    if design == "compet":
        first = -np.log(u[2]) / (0.10 * np.exp(0.8 * x + 0.4 * z))
        second = -np.log(u[3]) / (0.08 * np.exp(-0.5 * x + 0.3 * z))
        died, cause, left = np.minimum(first, second), np.where(first <= second, 1, 2), 1 + 11 * u[4]
    else:
        eta = np.exp(0.7 * x + 0.4 * z)
        share = 1 - 0.5**eta
        own = u[2] < share
        died = np.where(own, -np.log(1 - (1 - (1 - u[3] * share) ** (1 / eta)) / 0.5), -np.log(u[3]) / np.exp(0.3 * x))
        cause, left = np.where(own, 1, 2), 0.2 + 3.8 * u[4]
    time, event = np.minimum(died, left), np.where(died <= left, cause, 0).astype(float)
    score = 1.2 * (event == 1) - 0.8 * (np.log(time) - np.log(time).mean()) - 0.6
    return {"x": x, "z": z, "time": time, "event": event}, {"x": u[0] < 0.75 * expit(score) + 0.05}


def pooled(design: str, done) -> dict:
    """Estimates and intervals of the design's analysis, of completed tables or of a fitted single one."""
    if design == "compet":
        parts = [done.pool_cox(["x", "z"], cause=cause) for cause in PAIR["event_level"]]
    elif design == "fine-gray":
        parts = [done.pool_fine_gray(["x", "z"], cause="1.0")]
    else:
        parts = [done.pool(LINEAR)]
    return {k: np.concatenate([getattr(p, k) for p in parts]).tolist() for k in ("estimate", "low", "high", "fmi")}


def ours(design: str, columns: dict[str, np.ndarray], seed: int, draws: int = DRAWS) -> dict:
    from unmask import MultipleImputation

    options: dict = {"formula": LINEAR} if design == "interaction" else {**PAIR, "formula": COX}
    if design == "fine-gray":
        options |= {"family": "fine-gray", "cause": "1.0"}
    return pooled(design, MultipleImputation(draws, seed=seed, **options).fit(as_frame(columns)))


def whole(design: str, columns: dict[str, np.ndarray], rows: np.ndarray, seed: int) -> dict:
    """The analysis of rows without holes: two completed tables that are the same."""
    part = {k: v[rows] for k, v in columns.items()}
    return ours(design, part, seed, draws=2)


def by_r(design: str, method: str, seeds: list[int]) -> Iterator[tuple[int, dict]]:
    """One R process for many replications; tables and results go through files."""
    from scipy import stats

    with tempfile.TemporaryDirectory() as folder:
        table, result = Path(folder) / "in.csv", Path(folder) / "out.csv"
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            for number, seed in enumerate(seeds):
                columns = holed(*simulate(design, seed))
                if number == 0:
                    writer.writerow(["rep", *columns])
                for row in zip(*columns.values(), strict=True):
                    writer.writerow([seed, *("NA" if v != v else repr(float(v)) for v in row)])
        script = Path(__file__).with_suffix(".R")
        command = ["Rscript", str(script), design, method, str(DRAWS), str(table), str(result)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found: dict[int, list[dict]] = {}
        with result.open() as file:
            for row in csv.DictReader(file):
                found.setdefault(int(row["rep"]), []).append({k: float(v) for k, v in row.items()})
    for seed, rows in found.items():
        half = [stats.t.ppf(0.975, r["df"]) * r["error"] for r in rows]
        q = [r["estimate"] for r in rows]
        ends = {
            "low": [a - b for a, b in zip(q, half, strict=True)],
            "high": [a + b for a, b in zip(q, half, strict=True)],
        }
        yield seed, {"estimate": q, **ends, "fmi": [r["fmi"] for r in rows]}


def results_of(design: str, method: str, seeds: list[int]) -> Iterator[dict]:
    common = {"design": design, "n": ROWS, "method": method, "draws": DRAWS}
    if method in ("smcfcs", "naive"):
        for seed, found in by_r(design, method, seeds) if seeds else ():
            yield common | {"seed": seed} | found
        return
    for seed in seeds:
        columns, gone = simulate(design, seed)
        if method == "ours":
            found = ours(design, holed(columns, gone), seed)
        else:
            rows = ~gone["x"] if method == "complete rows" else np.ones(ROWS, bool)
            found = whole(design, columns, rows, seed)
        yield common | {"seed": seed} | found


def table_of(results: dict, design: str) -> Table:
    """Of each method bias with its Monte Carlo error, and coverage; as many replications as all methods have."""
    truth, rows = TRUTH[design], []
    by_method = {m: results.get((design, ROWS, m), {}) for m in METHODS}
    shared = sorted(set.intersection(*(set(found) for found in by_method.values())))
    for method, found in by_method.items():
        q, low, high = (np.array([found[s][k] for s in shared]) for k in ("estimate", "low", "high"))
        true = np.array(list(truth.values()))
        cover = ((low <= true) & (high >= true)).mean(0)
        error = q.std(0, ddof=1) / np.sqrt(len(q))
        parts = zip(q.mean(0) - true, error, cover, strict=True)
        rows.append((NAMES.get(method, method), *(f"{b:+.3f} ± {e:.3f}; {c:.3f}" for b, e, c in parts), str(len(q))))
    return Table(columns=(design, *truth, "replications"), rows=tuple(rows))


def sheet(path: Path, commit: str, date: str) -> Sheet:
    """The file that the page draws its tables from."""
    results = read(path)
    return Sheet(
        name="tables-outcomes",
        title="Multiple imputation for causes, subdistribution hazards and interactions",
        says="400 rows, about 40 % of one covariate missing by the outcome, 5 tables by every method. Bias ± its Monte "
        "Carlo error; coverage of 95 % intervals. Complete rows and full data are analysed as they are. smcfcs 1.7.1 "
        "has no Fine-Gray: its Cox regression of drawn subdistribution times stands for that of later versions.",
        command="python benchmarks/tables_outcomes.py --sheet",
        commit=commit,
        date=date,
        processor="2 shared cores, other work beside",
        seeds="the same tables for every method",
        since=commit,
        sources=("src/unmask/modalities/table/imputation", "src/unmask/modalities/table/survival"),
        tables=tuple(table_of(results, design) for design in TRUTH),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--designs", default=",".join(TRUTH))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--out", default="tables_outcomes.jsonl", help="a line per replication; read and added to")
    parser.add_argument("--commit", default="HEAD", help="that was measured; for the sheet")
    parser.add_argument(
        "--sheet", action="store_true", help="write docs/results/tables-outcomes.json from what is there"
    )
    a = parser.parse_args()
    path = Path(a.out)
    path.touch()
    if a.sheet:
        found = sheet(path, a.commit, str(datetime.date.today()))
        (Path(FOLDER) / f"{found.name}.json").write_text(written(found))
        return
    run_missing(a, path, ROWS, BLOCK, results_of)


if __name__ == "__main__":
    sys.exit(main())
