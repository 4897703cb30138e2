"""Imputation beside its rivals, on held-out cells of real tables: accuracy, intervals, time.

    python benchmarks/tables_impute.py --quick            # one seed, MCAR 30 %, the small tables
    python benchmarks/tables_impute.py                    # 10 seeds x MCAR, MAR, MNAR x 10, 30, 50 %; hours
    python benchmarks/tables_impute.py --table            # print what --out holds

Every result is one line of the JSON-lines file --out; what is there is not run again. A method is fitted on the holed
table and fills it (transductive, as its rivals do). `unmask-unseen` is fitted on four fifths of the rows and judged on
the rest, `unmask-seen` fitted on all and judged on the same rows. Peers: mean/mode, KNN, IterativeImputer with
BayesianRidge and with ExtraTrees, MissForest (chained forests after Stekhoven & Buehlmann 2012, 100 trees, at most 10
rounds, stopped when the change grows); miceforest where UNMASK_PEERS names a Python that has it, hyperimpute where
UNMASK_HYPERIMPUTE does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from rivals import PeerError, elsewhere

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[1] / ".." / "shared")) / "data" / "tables"
SETS = ("whas500", "gbsg2", "ckd_uae", "breast_cancer", "diabetes", "actg320", "flchain", "support2")
METHODS = (
    "mean",
    "knn",
    "ridge",
    "extratrees",
    "missforest",
    "miceforest",
    "hyperimpute",
    "unmask",
    "unmask-seen",
    "unmask-unseen",
)


def load(name: str):
    """(values with NaN, number of categories of each column or 0), by the schema this library infers."""
    from unmask.modalities.table.reading.frame import Frame
    from unmask.modalities.table.reading.readers import read_frame
    from unmask.modalities.table.schema.infer import infer_schema
    from unmask.modalities.table.schema.values import encode

    if name in ("breast_cancer", "diabetes"):
        from sklearn import datasets

        found = getattr(datasets, f"load_{name}")()
        x = np.column_stack([found.data, found.target])
        frame = Frame(names=[*map(str, found.feature_names), "target"], columns=list(x.T))
    else:
        path = SHARED / f"{name}.csv"
        if not path.exists():
            return None
        frame = read_frame(path)
    schema = infer_schema(frame.names, frame.columns, source=name)
    sizes = [0 if schema.columns[i].is_quantity else len(schema.columns[i].categories) for i in schema.modelled]
    return np.column_stack(encode(frame, schema)), sizes


def holes(x: np.ndarray, mechanism: str, rate: float, seed: int) -> np.ndarray:
    """Which observed cells are taken out.

    MCAR: any. MAR: in a random half of the columns, more where a random mix of the other half is high. MNAR: more where
    the cell's own value is high. Rates hold over all columns (MAR: over the columns with holes, at most 80 %).
    """
    rng = np.random.default_rng([seed, len(x)])
    seen = ~np.isnan(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        z = np.nan_to_num((x - np.nanmean(x, 0)) / (np.nanstd(x, 0) + 1e-9))
    if mechanism == "MCAR":
        return seen & (rng.random(x.shape) < rate)
    if mechanism == "MNAR":
        lift = z
        columns = np.ones(x.shape[1], bool)
    else:
        columns = np.zeros(x.shape[1], bool)
        columns[rng.permutation(x.shape[1])[: max(1, x.shape[1] // 2)]] = True
        mixing = rng.normal(size=(int((~columns).sum()), x.shape[1]))
        lift = z[:, ~columns] @ mixing
        lift /= lift.std(0) + 1e-9
    out = np.zeros(x.shape, bool)
    for j in np.flatnonzero(columns):
        low, high = -20.0, 20.0
        for _ in range(50):
            middle = (low + high) / 2
            p = 1 / (1 + np.exp(-(1.5 * lift[:, j] + middle)))
            low, high = (middle, high) if p.mean() < rate else (low, middle)
        out[:, j] = seen[:, j] & (rng.random(len(x)) < p)
    return out


def measures(truth: np.ndarray, filled: np.ndarray, gone: np.ndarray, sizes: list[int]) -> dict[str, float]:
    """How far filled cells are from the truth; every figure is a mean over columns, lower is better.

    rmse, wasserstein, mean_error: of quantities, over the column's deviation; mean_error is the distance between the
        means
    of the hidden cells and of what was filled in. error: share of categories that are wrong. share_error: half the sum
    over levels of the distance between their true and filled shares (0: the same shares, 1: no level in common).
    """
    rmse, error, distance, mean_error, share_error = [], [], [], [], []
    for j, size in enumerate(sizes):
        hit = gone[:, j]
        if not hit.any():
            continue
        t, f = truth[hit, j], filled[hit, j]
        if size:
            error.append(float((t != np.round(f)).mean()))
            shares = [np.bincount(np.round(v).astype(int), minlength=size) / len(v) for v in (t, f)]
            share_error.append(float(np.abs(shares[0] - shares[1]).sum() / 2))
            continue
        scale = np.nanstd(truth[:, j])
        if scale > 0:
            rmse.append(float(np.sqrt(((t - f) ** 2).mean()) / scale))
            distance.append(float(np.abs(np.sort(t) - np.sort(f)).mean() / scale))
            mean_error.append(float(abs(t.mean() - f.mean()) / scale))
    mean = lambda v: float(np.mean(v)) if v else None  # noqa: E731
    return {
        "rmse": mean(rmse),
        "error": mean(error),
        "wasserstein": mean(distance),
        "mean_error": mean(mean_error),
        "share_error": mean(share_error),
    }


def one_hot(x: np.ndarray, sizes: list[int]):
    """Categories as indicators (NaN where missing) and the way back."""
    parts, spans = [], []
    for j, size in enumerate(sizes):
        column = x[:, j : j + 1]
        if size > 2:
            column = np.where(np.isnan(column), np.nan, (column == np.arange(size)).astype(float))
        spans.append((sum(p.shape[1] for p in parts), column.shape[1]))
        parts.append(column)
    return np.hstack(parts), spans


def back(wide: np.ndarray, spans, sizes: list[int]) -> np.ndarray:
    out = np.zeros((len(wide), len(sizes)))
    for j, (start, width) in enumerate(spans):
        part = wide[:, start : start + width]
        out[:, j] = part.argmax(1) if width > 1 else part[:, 0]
        if sizes[j] and width == 1:
            out[:, j] = (part[:, 0] > 0.5).astype(float)
    return out


def impute_mean(x, sizes, seed):
    out = x.copy()
    for j, size in enumerate(sizes):
        seen = x[~np.isnan(x[:, j]), j]
        value = (np.bincount(seen.astype(int)).argmax() if size else seen.mean()) if len(seen) else 0.0
        out[np.isnan(x[:, j]), j] = value
    return out


def _scaled(estimator):
    def run(x, sizes, seed):
        from sklearn.preprocessing import StandardScaler

        wide, spans = one_hot(x, sizes)
        scaler = StandardScaler().fit(wide)
        filled = scaler.inverse_transform(estimator(seed).fit_transform(scaler.transform(wide)))
        out = back(filled, spans, sizes)
        return np.where(np.isnan(x), out, x)

    return run


def knn(seed):
    from sklearn.impute import KNNImputer

    return KNNImputer(n_neighbors=10, weights="distance", keep_empty_features=True)


def ridge(seed):
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    return IterativeImputer(max_iter=20, random_state=seed, keep_empty_features=True)


def extratrees(seed):
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    trees = ExtraTreesRegressor(50, min_samples_leaf=2, max_features=0.5, random_state=seed)
    return IterativeImputer(trees, max_iter=5, random_state=seed, keep_empty_features=True, skip_complete=True)


def missforest(x, sizes, seed):
    """Chained random forests; columns with fewer holes first; stops when the change between rounds grows."""
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    gone = np.isnan(x)
    filled, before, last = impute_mean(x, sizes, seed), None, (np.inf, np.inf)
    for _ in range(10):
        new = filled.copy()
        for j in np.argsort(gone.sum(0)):
            if not gone[:, j].any() or gone[:, j].all():
                continue
            others = np.delete(new, j, 1)
            kind = RandomForestClassifier if sizes[j] else RandomForestRegressor
            forest = kind(100, max_features="sqrt", n_jobs=2 if len(x) > 3000 else 1, random_state=seed)
            forest.fit(others[~gone[:, j]], x[~gone[:, j], j])
            new[gone[:, j], j] = forest.predict(others[gone[:, j]])
        numeric = [j for j, s in enumerate(sizes) if not s]
        named = [j for j, s in enumerate(sizes) if s]
        change = (
            float(((new[:, numeric] - filled[:, numeric]) ** 2).sum() / max((new[:, numeric] ** 2).sum(), 1e-9)),
            float((new[:, named] != filled[:, named]).mean()) if named else 0.0,
        )
        before, filled = filled, new
        if all(c >= p for c, p in zip(change, last, strict=True)):
            return before
        last = change
    return filled


_MICEFOREST = """
import json, sys, time, numpy as np, pandas as pd, miceforest as mf
x = np.load(sys.argv[1]); sizes = json.loads(sys.argv[3]); seed = int(sys.argv[4])
frame = pd.DataFrame(x, columns=[f"c{i}" for i in range(x.shape[1])])
for i, s in enumerate(sizes):
    if s: frame[f"c{i}"] = frame[f"c{i}"].astype("Int64").astype("category")
for strategy in ("normal", "fast"):  # the default fails on columns that a tree tells perfectly: infinite log-odds
    start = time.time()
    try:
        kernel = mf.ImputationKernel(
            frame, num_datasets=1, random_state=seed, mean_match_candidates=5, mean_match_strategy=strategy
        )
        kernel.mice(5, verbose=False, n_jobs=2)
        break
    except ValueError:
        if strategy == "fast":
            raise
out = kernel.complete_data(0).astype(float).to_numpy()
np.save(sys.argv[2], out); print(time.time() - start)
"""


# Numbers of categories as numbers: it takes columns with few values for categories by itself. Needs pandas below 3.
_HYPERIMPUTE = """
import sys, time, warnings, numpy as np, pandas as pd
from hyperimpute.plugins.imputers import Imputers
warnings.simplefilter("ignore")
x = np.load(sys.argv[1]); frame = pd.DataFrame(x, columns=[f"c{i}" for i in range(x.shape[1])])
start = time.time()
out = Imputers().get("hyperimpute", random_state=int(sys.argv[4])).fit_transform(frame)
np.save(sys.argv[2], np.asarray(out, float)); print(); print(time.time() - start)
"""


def in_own_python(variable, code):
    def run(x, sizes, seed):
        filled, printed = elsewhere(variable, code, x, json.dumps(sizes), str(seed))
        return filled, float(printed.split()[-1])

    return run


PEERS = {
    "mean": impute_mean,
    "knn": _scaled(knn),
    "ridge": _scaled(ridge),
    "extratrees": _scaled(extratrees),
    "missforest": missforest,
    "miceforest": in_own_python("UNMASK_PEERS", _MICEFOREST),
    "hyperimpute": in_own_python("UNMASK_HYPERIMPUTE", _HYPERIMPUTE),
}


def unmask(x, sizes, seed, truth, gone, overrides, unseen=False):
    """Point values, and the share of hidden quantities inside their 90 % interval."""
    from unmask.modalities.table.fitting.cell_table import CellTable

    rows = np.arange(len(x))
    train = rows % 5 > 0 if unseen else np.ones(len(x), bool)
    start = time.perf_counter()
    model = CellTable.fit([x[train, j] for j in range(x.shape[1])], sizes, seed=seed, **overrides)
    fitted = time.perf_counter() - start
    target = ~train if unseen else train
    found = model.impute([x[target, j] for j in range(x.shape[1])], interval=0.9)
    filled = x.copy()
    filled[target] = np.column_stack(found.point)
    inside = []
    for j, size in enumerate(sizes):
        hit = gone[target, j]
        if not size and hit.any():
            t = truth[target, j][hit]
            inside.append(float(((found.low[j][hit] <= t) & (t <= found.high[j][hit])).mean()))
    return filled, {"coverage": float(np.mean(inside)) if inside else None, "fit_seconds": round(fitted, 3)}


def run(name, mechanism, rate, seed, method, overrides, most=None):
    loaded = load(name)
    if loaded is None:
        return None
    truth, sizes = loaded
    if most is not None and len(truth) > most:
        truth = truth[np.random.default_rng([seed, 3]).permutation(len(truth))[:most]]
    gone = holes(truth, mechanism, rate, seed)
    x = np.where(gone, np.nan, truth)
    start, extra = time.perf_counter(), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method.startswith("unmask"):
            unseen = method.endswith("unseen")
            filled, extra = unmask(x, sizes, seed, truth, gone, overrides, unseen)
            if method != "unmask":
                gone = gone & (np.arange(len(x)) % 5 == 0)[:, None]
        else:
            filled = PEERS[method](x, sizes, seed)
    seconds = round(time.perf_counter() - start, 3)
    if isinstance(filled, tuple):  # a rival in a Python of its own: its start and imports are not charged
        filled, seconds = filled
    return measures(truth, filled, gone, sizes) | extra | {"seconds": seconds}


def table(path: Path) -> None:
    """Means over seeds; over the cases in which all methods ran, mean ranks and the worst ratio to the best
    of a case."""
    lines = [json.loads(t) for t in path.read_text().splitlines()] if path.exists() else []
    if not lines:
        print(f"nothing in {path}")
        return
    methods = list(dict.fromkeys(r["method"] for r in lines))
    ranked = [m for m in methods if not m.endswith("seen")]
    cases: dict = {}
    for r in lines:
        cases.setdefault((r["set"], r["mechanism"], r["rate"]), {}).setdefault(r["method"], []).append(r)
    for measure in ("rmse", "error", "wasserstein", "mean_error", "share_error"):
        print(f"\n{measure}" + " " * (22 - len(measure)) + "".join(f"{m[:13]:>14}" for m in methods))
        ranks: dict = {m: [] for m in ranked}
        ratios: dict = {m: [] for m in ranked}
        for case, found in sorted(cases.items()):
            mean = {m: np.mean([r[measure] for r in found[m]]) for m in found if found[m][0].get(measure) is not None}
            spread = {m: np.std([r[measure] for r in found[m]]) for m in mean}
            shown = "".join(f"{mean[m]:8.4f}±{spread[m]:.3f}" if m in mean else f"{'-':>14}" for m in methods)
            print(f"{case[0]:14}{case[1]:5}{case[2]:4.0%}" + shown)
            if all(m in mean for m in ranked):
                values = np.array([mean[m] for m in ranked])
                place = (values[:, None] > values).sum(1) + ((values[:, None] == values).sum(1) + 1) / 2
                for m, p, v in zip(ranked, place, values, strict=True):
                    ranks[m].append(p)
                    ratios[m].append((v / max(values.min(), 1e-9), case))
        count = len(ranks[ranked[0]])
        print(f"mean rank over {count} cases:", {m: round(float(np.mean(v)), 2) for m, v in ranks.items() if v})
        for m, v in ratios.items():
            if v and m.startswith("unmask"):
                worst, case = max(v)
                print(f"{m}: worst ratio to the best {worst:.3f} ({case}); mean {np.mean([r for r, _ in v]):.3f}")
    print()
    for m in methods:
        of = [r for r in lines if r["method"] == m]
        cover = [r["coverage"] for r in of if r.get("coverage") is not None]
        print(
            f"{m:14} runs {len(of):4}  seconds {np.mean([r['seconds'] for r in of]):8.2f}"
            + (f"  coverage {np.mean(cover):.3f} ({min(cover):.3f} to {max(cover):.3f})" if cover else "")
        )
    for m in methods:
        for mechanism in ("MCAR", "MAR", "MNAR"):
            cover = {}
            for r in lines:
                if r["method"] == m and r["mechanism"] == mechanism and r.get("coverage") is not None:
                    cover.setdefault(r["set"], []).append(r["coverage"])
            if cover:
                print(f"{m:14} coverage {mechanism:5}", {k: round(float(np.mean(v)), 3) for k, v in cover.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sets", default=None)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--mechanisms", default=None)
    parser.add_argument("--rates", default=None)
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--rows", type=int, default=None, help="of a table at most, a random sample a seed")
    parser.add_argument("--set", action="append", default=[], help="setting of ours, key=value")
    parser.add_argument("--name", default=None, help="how our runs are called, with --set")
    parser.add_argument("--out", default="tables_impute.jsonl")
    parser.add_argument("--table", action="store_true")
    a = parser.parse_args()
    path = Path(a.out)
    if a.table:
        return table(path)
    sets = a.sets.split(",") if a.sets else SETS
    most = a.rows or (2000 if a.quick else None)
    mechanisms = a.mechanisms.split(",") if a.mechanisms else ["MCAR"] if a.quick else ["MCAR", "MAR", "MNAR"]
    rates = [float(r) for r in a.rates.split(",")] if a.rates else [0.3] if a.quick else [0.1, 0.3, 0.5]
    seeds = a.seeds or (1 if a.quick else 10)
    overrides = dict(pair.split("=", 1) for pair in a.set)
    done = set()
    if path.exists():
        done = {(r["set"], r["mechanism"], r["rate"], r["seed"], r["method"]) for r in map(json.loads, path.open())}
    for seed in range(seeds):
        for name in sets:
            for mechanism in mechanisms:
                for rate in rates:
                    for method in a.methods.split(","):
                        shown = a.name if a.name and method == "unmask" else method
                        key = (name, mechanism, rate, seed, shown)
                        if key in done:
                            continue
                        try:
                            found = run(name, mechanism, rate, seed, method, overrides, most)
                        except (ModuleNotFoundError, PeerError) as missing:
                            print(f"skipped {method}: {missing}", file=sys.stderr)
                            continue
                        if found is None:
                            print(f"skipped {name}: not at {SHARED}", file=sys.stderr)
                            continue
                        row = dict(zip(("set", "mechanism", "rate", "seed", "method"), key, strict=True)) | found
                        with path.open("a") as file:
                            file.write(json.dumps(row) + "\n")
                        print(row, file=sys.stderr, flush=True)
    return table(path)


if __name__ == "__main__":
    main()
