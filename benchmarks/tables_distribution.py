"""Imputations judged by their distribution: ours as points, draws of the fitted model and multiple imputation, beside
mice, miceforest and chained extra trees.

    python benchmarks/tables_distribution.py --quick     # one seed, 30 %, the small tables
    python benchmarks/tables_distribution.py             # 72 cases, 10 seeds on the small tables; hours
    python benchmarks/tables_distribution.py --table     # print what --out holds

Tables, holes and the measures of single cells are those of `tables_impute.py`. Two measures are of the whole table:

    energy   energy distance between the rows before holes and the filled ones (Szekely & Rizzo 2013, eq. 5; as Naef et
             al. 2025 judge imputations): distances of rows are Euclidean, quantities over their deviation, a category
             that differs counts 1. Over that of random observed values of each column, so 1 is no better than those
    iscore   Imputation Score (Naef, Spohn, Michel & Meinshausen 2022): on 20 random projections of 2 to 6 columns, the
             mean log density ratio of rows observed there to rows imputed there, at the imputed ones of the first two
             tables, by random forests out of bag. It knows no truth; higher is better. The truth itself ("truth") does
             not have the highest: copies of observed rows are told less easily than other rows of the same distribution

Every method makes five filled tables (`points`, `extratrees` and `missforest` one), and its figures are means over
them. The peers in their usual settings: mice's defaults (pmm, logreg, polyreg), all columns by cart, all by rf, five
rounds each; miceforest five rounds, mean matching with five candidates; extra trees as in `tables_impute.py`. R runs
where Rscript with mice is found, miceforest where UNMASK_PEERS names a Python that has it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from rivals import PeerError, elsewhere
from sheets import FOLDER, Sheet, Table, written
from tables_impute import _MICEFOREST, PEERS, SETS, holes, load, measures

SMALL = ("whas500", "gbsg2", "ckd_uae", "breast_cancer", "diabetes", "actg320")
TABLES = 5
METHODS = (
    "truth",
    "observed",
    "points",
    "draws",
    "proper",
    "mice pmm",
    "mice cart",
    "mice rf",
    "miceforest",
    "extratrees",
    "missforest",
)
IN_R = """
suppressMessages(library(mice))
a <- commandArgs(TRUE)
x <- read.csv(a[1]); sizes <- scan(a[2], quiet = TRUE)
for (j in seq_along(sizes)) if (sizes[j] > 0) x[[j]] <- factor(x[[j]])
for (j in seq_along(sizes)) if (length(unique(na.omit(x[[j]]))) < 2) x[[j]] <- as.numeric(as.character(x[[j]]))
method <- if (a[4] == "pmm") NULL else a[4]
start <- proc.time()[3]
m <- mice(x, m = as.integer(a[6]), maxit = 5, method = method, seed = as.integer(a[5]), printFlag = FALSE)
seconds <- proc.time()[3] - start
for (i in seq_len(m$m)) {
    done <- complete(m, i)
    done[] <- lapply(done, function(v) as.numeric(as.character(v)))
    write.csv(done, paste0(a[3], i, ".csv"), row.names = FALSE)
}
cat(seconds)
"""
IN_MICEFOREST = _MICEFOREST.replace("num_datasets=1", f"num_datasets={TABLES}").replace(
    "out = kernel.complete_data(0).astype(float).to_numpy()",
    f"out = np.stack([kernel.complete_data(i).astype(float).to_numpy() for i in range({TABLES})])",
)


def observed_values(x: np.ndarray, sizes: list[int], seed: int) -> list[np.ndarray]:
    """Every hole with any observed value of its column: what knows of no relation."""
    rng = np.random.default_rng([seed, 11])
    tables = []
    for _ in range(TABLES):
        out = x.copy()
        for j in range(x.shape[1]):
            seen = x[~np.isnan(x[:, j]), j]
            gone = np.isnan(x[:, j])
            out[gone, j] = rng.choice(seen, int(gone.sum())) if len(seen) else 0.0
        tables.append(out)
    return tables


def truth_itself(truth: np.ndarray, sizes: list[int], seed: int) -> np.ndarray:
    """The table before holes; cells that it lacks itself have any value of their column."""
    return observed_values(truth, sizes, seed)[0]


def fitted(x: np.ndarray, sizes: list[int], seed: int, draws: int) -> list[np.ndarray]:
    """Best values, or draws, of a model with default settings."""
    from unmask.table import TableModel

    frame, schema = as_frame(x, sizes)
    done = TableModel.fit(frame, schema=schema, seed=seed).impute(frame, draws=draws, seed=seed)
    return [as_array(table, x, sizes) for table in (done if draws else [done])]


def proper(x: np.ndarray, sizes: list[int], seed: int) -> list[np.ndarray]:
    """Multiple imputation with default settings."""
    from unmask.table import MultipleImputation

    frame, schema = as_frame(x, sizes)
    return [as_array(table, x, sizes) for table in MultipleImputation(TABLES, schema=schema, seed=seed).fit(frame)]


def as_frame(x: np.ndarray, sizes: list[int]):
    """A data frame, and a schema that says which columns are categories and nothing else."""
    import polars as pl

    columns, kinds = {}, {}
    for j, size in enumerate(sizes):
        cells = [None if np.isnan(v) else (f"k{int(v)}" if size else float(v)) for v in x[:, j]]
        columns[f"c{j}"] = pl.Series(f"c{j}", cells, dtype=pl.String if size else pl.Float64)
        whole = bool((x[:, j][~np.isnan(x[:, j])] % 1 == 0).all())
        kinds[f"c{j}"] = {"kind": "integer" if whole else "numeric"}
        if size:
            levels = [f"k{k}" for k in range(size)]
            kinds[f"c{j}"] = {"kind": "binary" if size <= 2 else "nominal", "categories": levels, "missing": [""]}
    return pl.DataFrame(columns), {"columns": kinds}


def as_array(table, x: np.ndarray, sizes: list[int]) -> np.ndarray:
    out = x.copy()
    for j, size in enumerate(sizes):
        gone = np.isnan(x[:, j])
        cells = [0.0 if v is None else float(v[1:]) if size else float(v) for v in table[f"c{j}"].to_list()]
        out[gone, j] = np.array(cells)[gone]
    return out


def in_r(method: str):
    def run(x: np.ndarray, sizes: list[int], seed: int) -> tuple[list[np.ndarray], float]:
        with tempfile.TemporaryDirectory() as folder:
            source, spans, target = (str(Path(folder) / n) for n in ("x.csv", "sizes", "out"))
            lines = [",".join(f"c{j}" for j in range(x.shape[1]))]
            lines += [",".join("" if np.isnan(v) else repr(float(v)) for v in row) for row in x]
            Path(source).write_text("\n".join(lines))
            Path(spans).write_text(" ".join(map(str, sizes)))
            script = Path(folder) / "run.R"
            script.write_text(IN_R)
            command = ["Rscript", str(script), source, spans, target, method, str(seed + 1), str(TABLES)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise PeerError(done.stderr.strip().splitlines()[-1])
            tables = [np.genfromtxt(f"{target}{i + 1}.csv", delimiter=",", skip_header=1) for i in range(TABLES)]
        left = observed_values(x, sizes, seed)[0]  # mice leaves out columns that others tell exactly: as it says
        return [np.where(np.isnan(t), left, t) for t in tables], float(done.stdout.split()[-1])

    return run


def miceforest(x: np.ndarray, sizes: list[int], seed: int) -> tuple[list[np.ndarray], float]:
    found, printed = elsewhere("UNMASK_PEERS", IN_MICEFOREST, x, json.dumps(sizes), str(seed))
    return list(found), float(printed.split()[-1])


FILL = {
    "observed": observed_values,
    "points": lambda x, sizes, seed: fitted(x, sizes, seed, 0),
    "draws": lambda x, sizes, seed: fitted(x, sizes, seed, TABLES),
    "proper": proper,
    "mice pmm": in_r("pmm"),
    "mice cart": in_r("cart"),
    "mice rf": in_r("rf"),
    "miceforest": miceforest,
    "extratrees": lambda x, sizes, seed: [PEERS["extratrees"](x, sizes, seed)],
    "missforest": lambda x, sizes, seed: [PEERS["missforest"](x, sizes, seed)],
}


def wide(x: np.ndarray, truth: np.ndarray, sizes: list[int]) -> np.ndarray:
    """Rows whose Euclidean distances are those of `energy`. Cells that nobody knows the truth of tell nothing."""
    parts = []
    for j, size in enumerate(sizes):
        known = ~np.isnan(truth[:, j])
        if size:
            parts.append((np.round(x[:, j, None]) == np.arange(size)) * known[:, None] / np.sqrt(2))
        else:
            parts.append(
                (np.where(known, x[:, j] - np.nanmean(truth[:, j]), 0) / (np.nanstd(truth[:, j]) + 1e-12))[:, None]
            )
    return np.hstack(parts)


def energy(truth: np.ndarray, filled: np.ndarray, sizes: list[int]) -> float:
    from scipy.spatial.distance import cdist

    a, b = wide(truth, truth, sizes), wide(filled, truth, sizes)
    return float(2 * cdist(a, b).mean() - cdist(a, a).mean() - cdist(b, b).mean())


def iscore(x: np.ndarray, filled: np.ndarray, sizes: list[int], seed: int) -> float:
    """See above; the projections are the same for all methods."""
    from sklearn.ensemble import RandomForestClassifier

    rng, scores = np.random.default_rng([seed, 5]), []
    holed = np.flatnonzero(np.isnan(x).any(0))
    for _ in range(20):
        first = rng.choice(holed)
        rest = rng.permutation(np.setdiff1d(np.arange(x.shape[1]), [first]))
        columns = np.r_[first, rest[: rng.integers(1, min(6, x.shape[1]))]]
        imputed = np.isnan(x[:, columns]).any(1)
        if min(imputed.sum(), (~imputed).sum()) < 20:
            continue
        forest = RandomForestClassifier(
            40, min_samples_leaf=5, oob_score=True, class_weight="balanced", random_state=seed
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a row in every bag: it has no score and is left out
            forest.fit(_features(filled, columns, sizes), imputed)
        p = np.clip(forest.oob_decision_function_[imputed, 1], 0.01, 0.99)
        p = p[~np.isnan(p)]
        scores.append(float(np.log((1 - p) / p).mean()))
    return float(np.mean(scores)) if scores else float("nan")


def _features(x: np.ndarray, columns: np.ndarray, sizes: list[int]) -> np.ndarray:
    parts = [(np.round(x[:, [j]]) == np.arange(sizes[j])) if sizes[j] > 2 else x[:, [j]] for j in columns]
    return np.hstack(parts).astype(float)


def run(name: str, mechanism: str, rate: float, seed: int, method: str, most: int):
    loaded = load(name)
    if loaded is None:
        return None
    truth, sizes = loaded
    if len(truth) > most:
        truth = truth[np.random.default_rng([seed, 3]).permutation(len(truth))[:most]]
    gone = holes(truth, mechanism, rate, seed)
    x = np.where(gone, np.nan, truth)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tables = [truth_itself(truth, sizes, seed)] if method == "truth" else FILL[method](x, sizes, seed)
    seconds = round(time.perf_counter() - start, 3)
    if isinstance(tables, tuple):  # a rival in a process of its own: its start and imports are not charged
        tables, seconds = tables
    floor = np.mean([energy(truth, t, sizes) for t in observed_values(x, sizes, seed)])
    found = [measures(truth, t, gone, sizes) | {"energy": energy(truth, t, sizes) / floor} for t in tables]
    mean = {k: float(np.mean([f[k] for f in found])) if found[0][k] is not None else None for k in found[0]}
    return mean | {"iscore": float(np.mean([iscore(x, t, sizes, seed) for t in tables[:2]])), "seconds": seconds}


OURS = ("points", "draws", "proper")
NAMES = {
    "truth": "the truth",
    "observed": "observed values at random",
    "points": "ours, best values",
    "draws": "ours, draws of the model",
    "proper": "ours, multiple imputation",
    "extratrees": "extra trees",
    "missforest": "MissForest",
}
SHOWN = {
    "energy": "energy distance",
    "iscore": "I-Score",
    "wasserstein": "Wasserstein",
    "rmse": "RMSE",
    "error": "categories wrong",
}


def ranked(path: Path, methods: list[str]) -> tuple[int, dict[str, dict[str, tuple[float, int, float]]]]:
    """Cases in which all methods ran; and measure -> method -> mean rank, cases it was first in, mean. Over seeds and
    tables means come first."""
    cases: dict = {}
    for r in (json.loads(text) for text in path.read_text().splitlines()):
        if r["method"] in methods and "failed" not in r:
            cases.setdefault((r["set"], r["mechanism"], r["rate"]), {}).setdefault(r["method"], []).append(r)
    whole = [found for _, found in sorted(cases.items()) if all(m in found for m in methods)]
    out: dict = {}
    for measure in (*SHOWN, "share_error", "mean_error", "seconds"):
        ranks, values = {m: [] for m in methods}, {m: [] for m in methods}
        for found in whole:
            mean = {m: [r[measure] for r in found[m] if r[measure] is not None] for m in methods}
            if not all(mean.values()):
                continue
            v = np.array([np.mean(mean[m]) for m in methods])
            order = -v if measure == "iscore" else v
            place = (order[:, None] > order).sum(1) + ((order[:, None] == order).sum(1) + 1) / 2
            for m, p, own in zip(methods, place, v, strict=True):
                ranks[m].append(p)
                values[m].append(own)
        out[measure] = {
            m: (float(np.mean(ranks[m])), sum(p < 2 for p in ranks[m]), float(np.mean(values[m]))) for m in methods
        }
    return len(whole), out


def table(path: Path, methods: list[str]) -> None:
    """Print mean ranks, in brackets in how many cases first, and means."""
    count, found = ranked(path, methods)
    print(f"{count} cases in which all ran: mean rank (first in), mean")
    for measure, by in found.items():
        print(f"\n{measure}")
        for m, (rank, first, mean) in sorted(by.items(), key=lambda item: item[1][0]):
            print(f"  {m:12} {rank:5.2f} ({first:2})  {mean:8.4f}")


def _best_in_bold(found: dict, methods: list[str]) -> dict[str, list[str]]:
    """Method -> its mean ranks as text."""
    best = {s: min(v[0] for v in found[s].values()) for s in SHOWN}
    cells = {m: {s: f"{found[s][m][0]:.2f}" for s in SHOWN} for m in methods}
    return {m: [f"**{c}**" if found[s][m][0] == best[s] else c for s, c in cells[m].items()] for m in methods}


def sheet(path: Path, methods: list[str], commit: str, says: str, command: str, seeds: str) -> Sheet:
    """The file that the page draws its table from."""
    true = [r["iscore"] for r in map(json.loads, path.read_text().splitlines()) if r["method"] == "truth"]
    methods = [m for m in methods if m != "truth"]
    count, found = ranked(path, methods)
    rows = []
    for m, cells in _best_in_bold(found, methods).items():
        means = [f"{found[s][m][2]:.3f}".replace("0.", ".", 1) for s in ("energy", "wasserstein", "iscore")]
        rows.append((NAMES.get(m, m), *cells, *means, f"{found['seconds'][m][2]:.1f}"))
    rows.append((NAMES["truth"], *["-"] * (len(SHOWN) + 2), f"{np.mean(true):.3f}".replace("0.", ".", 1), "-"))
    peers, alone = [m for m in methods if m not in (*OURS, "observed")], []
    for m in (m for m in OURS if m in methods):
        _, among = ranked(path, [m, *peers])
        alone.append((NAMES[m], *(f"{among[s][m][0]:.2f}" for s in SHOWN)))
    return Sheet(
        name="tables-distribution",
        title="Imputations judged by their distribution",
        says=says,
        command=command,
        commit=commit,
        date=str(datetime.date.today()),
        processor="2 shared cores, other work beside",
        seeds=seeds,
        since=commit,
        sources=("src/unmask/core", "src/unmask/modalities/table"),
        tables=(
            Table(
                columns=(
                    f"mean rank of {len(methods)}, {count} cases",
                    *SHOWN.values(),
                    *(f"{what}, mean" for what in ("energy", "Wasserstein", "I-Score")),
                    "seconds",
                ),
                rows=tuple(rows),
            ),
            Table(columns=(f"mean rank among {len(peers)} peers, alone", *SHOWN.values()), rows=tuple(alone)),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sets", default=None)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--mechanisms", default="MCAR,MAR,MNAR")
    parser.add_argument("--rates", default=None)
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--rows", type=int, default=800, help="of a table at most, a random sample a seed")
    parser.add_argument("--out", default="tables_distribution.jsonl")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--sheet", default="", help="write docs/results/tables-distribution.json; what to say of it")
    parser.add_argument("--commit", default="HEAD", help="that was measured; for the sheet")
    parser.add_argument("--run", default="python benchmarks/tables_distribution.py", help="command; for the sheet")
    parser.add_argument("--seeds-said", default="ten on the small tables", help="for the sheet")
    a = parser.parse_args()
    path, methods = Path(a.out), a.methods.split(",")
    if a.table:
        table(path, methods)
        return
    if a.sheet:
        found = sheet(path, methods, a.commit, a.sheet, a.run, a.seeds_said)
        (Path(FOLDER) / "tables-distribution.json").write_text(written(found))
        return
    sets = a.sets.split(",") if a.sets else SMALL if a.quick else SETS
    rates = [float(r) for r in a.rates.split(",")] if a.rates else [0.3] if a.quick else [0.1, 0.3, 0.5]
    done = set()
    if path.exists():
        for text in path.read_text().splitlines():
            r = json.loads(text)
            done.add((r["set"], r["mechanism"], r["rate"], r["seed"], r["method"]))
    for seed in range(a.seeds or (1 if a.quick else 10)):
        for name in sets:
            if seed and name not in SMALL:
                continue
            for mechanism in a.mechanisms.split(","):
                for rate in rates:
                    for method in methods:
                        key = {
                            "set": name,
                            "mechanism": mechanism,
                            "rate": rate,
                            "seed": seed,
                            "method": method,
                        }
                        if tuple(key.values()) in done:
                            continue
                        try:
                            found = run(name, mechanism, rate, seed, method, a.rows)
                        except (ModuleNotFoundError, FileNotFoundError, PeerError) as e:
                            found = {"failed": str(e)}
                        if found is None:
                            continue
                        with path.open("a") as file:
                            file.write(json.dumps(key | found) + "\n")
                        print(
                            key, {k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}, flush=True
                        )


if __name__ == "__main__":
    main()
