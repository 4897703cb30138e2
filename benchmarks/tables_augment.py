"""Does adding synthetic patients to a stratum help predict in it? The published 5 x 2 fold-swap Cox protocol, leak
closed.

    python benchmarks/tables_augment.py --quick     # 1 replicate
    python benchmarks/tables_augment.py             # 5 replicates x 2 folds on ckd_uae and whas500

The generator sees the training half only. A Cox regression is fitted to the training half plus as many rows of one
stratum as that stratum has, from: nothing, synthetic patients (`unmask`), copies of the stratum's training rows
(`copies`), inverse-frequency weights instead of rows (`weights`), and interpolation between nearest neighbours of the
stratum (`smote`, after Chawla et al. 2002, categories by the neighbour's). Judged in the stratum on the other half:
C-index, calibration slope and error at the quartiles of follow-up (rates observed in the stratum), integrated Brier
score weighted by the inverse probability of censoring.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from pathlib import Path

import numpy as np

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[1] / ".." / "shared")) / "data" / "tables"
PAIRS = {"ckd_uae": ("TimeToEventMonths", "EventCKD35"), "whas500": ("time", "event")}
OUT = {"ckd_uae": ("TIME_YEAR", "Age.3.categories"), "whas500": ()}
METHODS = ("nothing", "unmask", "copies", "weights", "smote")


def brier(risk: np.ndarray, time: np.ndarray, event: np.ndarray, at: np.ndarray) -> float:
    """Brier score weighted for censoring (Graf et al. 1999), mean over the times `at`."""
    from unmask.evaluation.survival import kaplan_meier, step_values

    if (event == 0).any():
        times, alive = kaplan_meier(time, 1 - event)
        stays = lambda t: np.maximum(step_values(times, alive, t), 0.05)  # noqa: E731
    else:
        stays = lambda t: np.ones(len(np.atleast_1d(t)))  # noqa: E731
    scores = []
    for k, t in enumerate(at):
        died, here = (time <= t) & (event > 0), time > t
        weight = died / stays(time - 1e-9) + here / stays(np.full(len(time), t))
        scores.append(float((weight * (died - risk[:, k]) ** 2).mean()))
    return float(np.mean(scores))


def smote(columns, sizes, here, count, rng):
    """Points between a row of the stratum and one of its five nearest."""
    from sklearn.neighbors import NearestNeighbors

    from unmask.modalities.table.evaluation.fidelity import wide

    part = [c[here] for c in columns]
    features = wide(part, sizes, columns)
    near = NearestNeighbors(n_neighbors=min(6, len(features))).fit(features).kneighbors(features)[1][:, 1:]
    a = rng.integers(0, len(features), count)
    b = near[a, rng.integers(0, near.shape[1], count)]
    share = rng.random(count)
    return [c[b] if s else c[a] + share * (c[b] - c[a]) for c, s in zip(part, sizes, strict=True)]


def run(name: str, seed: int) -> list[dict]:
    from unmask.evaluation.survival import concordance
    from unmask.modalities.table.evaluate import complete, outcome_of
    from unmask.modalities.table.evaluation import fidelity
    from unmask.modalities.table.model import TableModel
    from unmask.modalities.table.reading.frame import Frame
    from unmask.modalities.table.reading.readers import read_frame
    from unmask.modalities.table.schema.infer import infer_schema
    from unmask.modalities.table.synthesis.survival_outcome import pair_places
    from unmask.modalities.table.synthesis.synthesize import synthesize

    whole = read_frame(SHARED / f"{name}.csv")
    keep = [i for i, n in enumerate(whole.names) if n not in OUT[name]]
    duration, event = PAIRS[name]
    columns = [whole.columns[i] for i in keep]
    schema = infer_schema([whole.names[i] for i in keep], columns, duration=duration, event=event)
    order = np.random.default_rng([seed, 11]).permutation(len(whole))
    out = []
    for fold, rows in enumerate((order[: len(order) // 2], order[len(order) // 2 :])):
        train_rows, test_rows = rows, np.setdiff1d(order, rows)
        halves = [Frame(names=schema.names, columns=[c[r] for c in columns]) for r in (train_rows, test_rows)]
        model = TableModel.fit(halves[0], schema=schema, seed=seed * 2 + fold)
        sizes = model.schema.sizes
        train, test = (complete(model, h, seed) for h in halves)
        (x, t, e), _ = outcome_of(model, test)
        at = np.quantile(t, [0.25, 0.5, 0.75])
        _, died = pair_places(model)
        for place, i in enumerate(schema.modelled):
            c = schema.columns[i]
            if place == died or len(c.categories) != 2:
                continue
            for level, text in enumerate(c.categories):
                here, judged = train[place] == level, test[place] == level
                if here.sum() < 15 or judged.sum() < 30 or e[judged].sum() < 5:
                    continue
                rng, count = np.random.default_rng([seed, fold, place, level]), int(here.sum())
                for method in METHODS:
                    weight, more = np.ones(len(train[0])), None
                    if method == "unmask":
                        made = synthesize(model, count, where=f"`{c.name}` == {text!r}", seed=seed)
                        more = [np.nan_to_num(v) for v in made.columns]
                    elif method == "copies":
                        take = rng.choice(np.flatnonzero(here), count)
                        more = [v[take] for v in train]
                    elif method == "weights":
                        weight = np.where(here, len(here) / (2 * here.sum()), len(here) / (2 * max((~here).sum(), 1)))
                    elif method == "smote":
                        more = smote(train, sizes, here, count, rng)
                        more[died] = np.round(more[died])
                    rows_ = train if more is None else [np.r_[a, b] for a, b in zip(train, more, strict=True)]
                    part, _ = outcome_of(model, rows_)
                    risk, linear = fidelity.risks(part, x[judged], at, weight=weight if method == "weights" else None)
                    slope, error = zip(
                        *[fidelity.calibration(risk[:, k], t[judged], e[judged], q, bins=5) for k, q in enumerate(at)],
                        strict=True,
                    )
                    out.append(
                        {
                            "set": name,
                            "seed": seed,
                            "fold": fold,
                            "stratum": f"{c.name}={text}",
                            "method": method,
                            "c_index": concordance(linear, t[judged], e[judged]),
                            "slope_error": float(np.mean(np.abs(1 - np.array(slope)))),
                            "calibration_error": float(np.mean(error)),
                            "brier": brier(risk, t[judged], e[judged], at),
                        }
                    )
    return out


def table(lines: list[dict]) -> None:
    shown = ("c_index", "brier", "calibration_error", "slope_error")
    for name in dict.fromkeys(r["set"] for r in lines):
        strata = dict.fromkeys(r["stratum"] for r in lines if r["set"] == name)
        print(f"\n{name}: {len(strata)} strata" + "".join(f"{s:>22}" for s in shown))
        for method in METHODS:
            cells, better = [], []
            for s in shown:
                per = {
                    k: np.mean([r[s] for r in lines if (r["set"], r["method"], r["stratum"]) == (name, method, k)])
                    for k in strata
                }
                base = {
                    k: np.mean([r[s] for r in lines if (r["set"], r["method"], r["stratum"]) == (name, "nothing", k)])
                    for k in strata
                }
                gain = [(per[k] > base[k]) if s == "c_index" else (per[k] < base[k]) for k in strata]
                cells.append(f"{np.mean(list(per.values())):8.4f} ({int(sum(gain))}/{len(strata)} better)")
                better.append(gain)
            print(f"{method:20}" + "".join(f"{c:>22}" for c in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sets", default=",".join(PAIRS))
    parser.add_argument("--replicates", type=int, default=None)
    parser.add_argument("--out", default="tables_augment.json")
    a = parser.parse_args()
    lines: list[dict] = []
    for name in a.sets.split(","):
        if not (SHARED / f"{name}.csv").exists():
            print(f"skipped {name}: not at {SHARED}")
            continue
        for seed in range(a.replicates or (1 if a.quick else 5)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                lines += run(name, seed)
            Path(a.out).write_text(json.dumps(lines))
    if lines:
        table(lines)


if __name__ == "__main__":
    main()
