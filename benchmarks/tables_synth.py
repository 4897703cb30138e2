"""Synthesis beside its rivals: do hazard ratios, curves and predictions survive, and is nothing copied?

    python benchmarks/tables_synth.py --quick     # 1 seed, whas500 and gbsg2
    python benchmarks/tables_synth.py             # 10 seeds, whas500, gbsg2, ckd_uae, support2

Every generator sees a random half of the rows (the other half is the holdout of the privacy figures) and draws as many.
Columns that lack more than 5 % of their cells are left out, then rows that lack any: nothing is judged against cells
that some method filled in. `bootstrap` (real rows again) is the ceiling, `independent` (shuffled columns) the floor.
Also the published Masked Clinical Modelling procedure (arXiv 2410.16811 and its released code), re-implemented:
`mcm-leaky-P` as released (the attention scores see the hidden values), `mcm-closed-P` with the leak closed, with P % of
each real row hidden and filled in one pass. Its rows keep 100-P % of a real row. CTGAN and TVAE (300 epochs), a
Gaussian copula and UnmaskingTrees (as it comes: 50 masking orders a row, trees of depth 4) run where UNMASK_PEERS names
a Python that has them (benchmarks only: not all licences allow more).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from rivals import PeerError, elsewhere

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[1] / ".." / "shared")) / "data" / "tables"
PAIRS = {
    "whas500": ("time", "event"),
    "gbsg2": ("time", "event"),
    "ckd_uae": ("TimeToEventMonths", "EventCKD35"),
    "support2": ("time", "event"),
}
OUT = {"ckd_uae": ("TIME_YEAR", "Age.3.categories"), "support2": ("pid", "num_surv2m", "num_surv6m")}
"""Columns left out of the comparison: derived from others, or predictions of the outcome."""
LACKING = 0.05
"""Columns that lack a larger share are left out."""
MOST = 4000
"""Rows used of a larger table, drawn anew for every seed."""
METHODS = (
    "bootstrap",
    "independent",
    "unmask",
    "mcm-leaky-25",
    "mcm-leaky-50",
    "mcm-leaky-100",
    "mcm-closed-25",
    "mcm-closed-50",
    "mcm-closed-100",
    "copula",
    "ctgan",
    "tvae",
    "utrees",
)


def mcm(columns, sizes, seed, share, leaky, epochs=500):
    """The released procedure: Box-Cox, 0..1, attention filter + MLP, then real rows with a share hidden and filled."""
    import torch
    from scipy.special import inv_boxcox
    from scipy.stats import boxcox
    from torch import nn

    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    coded, undo = [], []
    for x, size in zip(columns, sizes, strict=True):
        if size:
            coded.append(x / max(size - 1, 1))
            undo.append(lambda v, s=size: np.clip(np.round(v * max(s - 1, 1)), 0, s - 1))
            continue
        start = x.min()
        y, power = boxcox(x - start + 1)
        low, span = y.min(), max(y.max() - y.min(), 1e-9)
        decimals = next((d for d in range(8) if np.array_equal(np.round(x, d), x)), 8)
        coded.append((y - low) / span)
        undo.append(
            lambda v, lo=low, sp=span, p=power, s=start, d=decimals, top=x.max(): np.round(
                np.nan_to_num(np.clip(inv_boxcox(np.clip(v, 0, 1) * sp + lo, p) - 1 + s, s, top), nan=top), d
            )
        )
    x = torch.tensor(np.column_stack(coded), dtype=torch.float32)
    rows, width = x.shape
    scores = nn.Linear(width, width, bias=False)
    mlp = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width), nn.Sigmoid())
    optimiser = torch.optim.Adam([*scores.parameters(), *mlp.parameters()], lr=1e-3)

    def forward(values, seen):
        score = scores(values if leaky else values * seen).masked_fill(seen == 0, -1e9)
        return mlp(torch.softmax(score, -1) * values * (seen if not leaky else 1))

    def hide(n, ratios):
        seen = torch.ones(n, width)
        for i, r in enumerate(ratios):
            seen[i, torch.randperm(width)[: int(width * r)]] = 0
        return seen

    for _ in range(epochs):
        for part in torch.randperm(rows).split(16):
            seen = hide(len(part), rng.uniform(0.10, 0.95, len(part)))
            loss = (((forward(x[part], seen) - x[part]) * (1 - seen)) ** 2).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    with torch.no_grad():
        seen = hide(rows, [share] * rows)
        new = (seen * x + (1 - seen) * forward(x, seen)).numpy()
    return [np.where(s > 0.5, c, u(v)) for c, u, v, s in zip(columns, undo, new.T, seen.numpy().T, strict=True)]


_PEER = """
import sys, numpy as np, pandas as pd, json
source, target, name, sizes, seed = *sys.argv[1:4], json.loads(sys.argv[4]), int(sys.argv[5])
x = np.load(source); frame = pd.DataFrame(x, columns=[f"c{i}" for i in range(x.shape[1])])
named = [f"c{i}" for i, s in enumerate(sizes) if s]
np.random.seed(seed)
if name == "copula":
    from copulas.multivariate import GaussianMultivariate
    m = GaussianMultivariate(); m.fit(frame); out = m.sample(len(frame))
elif name == "utrees":
    from utrees import UnmaskingTrees
    m = UnmaskingTrees(random_state=seed).fit(x, ["categorical" if s else "continuous" for s in sizes])
    out = pd.DataFrame(m.generate(len(x)))
else:
    import torch, ctgan; torch.manual_seed(seed)
    m = (ctgan.CTGAN if name == "ctgan" else ctgan.TVAE)(epochs=300); m.fit(frame, named); out = m.sample(len(frame))
np.save(target, out.to_numpy(float))
"""


def peer(name, columns, sizes, seed):
    out, _ = elsewhere("UNMASK_PEERS", _PEER, np.column_stack(columns), name, json.dumps(sizes), str(seed))
    return [
        np.clip(np.round(v), 0, s - 1) if s else np.clip(v, c.min(), c.max())
        for v, s, c in zip(out.T, sizes, columns, strict=True)
    ]


@functools.lru_cache(maxsize=1)
def prepared(name: str, seed: int):
    """(model fitted to the training half, both halves coded, seconds of the fit); None where the file is missing."""
    from unmask.modalities.table.model import TableModel
    from unmask.modalities.table.reading.frame import Frame
    from unmask.modalities.table.reading.parse import is_missing
    from unmask.modalities.table.reading.readers import read_frame
    from unmask.modalities.table.schema.values import encode

    path = SHARED / f"{name}.csv"
    if not path.exists():
        return None
    whole = read_frame(path)
    lacking = [is_missing(c) for c in whole.columns]
    keep = [i for i, n in enumerate(whole.names) if n not in OUT.get(name, ()) and lacking[i].mean() <= LACKING]
    rows = np.flatnonzero(~np.any([lacking[i] for i in keep], axis=0))
    order = np.random.default_rng([seed, 9]).permutation(rows)[:MOST]
    halves = [
        Frame(names=[whole.names[i] for i in keep], columns=[whole.columns[i][rows] for i in keep], source=name)
        for rows in (order[: len(order) // 2], order[len(order) // 2 :])
    ]
    start = time.perf_counter()
    model = TableModel.fit(halves[0], seed=seed, schema=_schema(whole, keep, *PAIRS[name]))
    fitted = time.perf_counter() - start
    return model, [encode(h, model.schema) for h in halves], fitted


def run(name: str, method: str, seed: int) -> dict | None:
    from unmask.modalities.table.evaluate import outcome_of
    from unmask.modalities.table.evaluation import fidelity, privacy
    from unmask.modalities.table.synthesis.synthesize import synthesize

    ready = prepared(name, seed)
    if ready is None:
        return None
    model, (real, held_out), fitted = ready
    sizes = model.schema.sizes
    start = time.perf_counter()
    if method == "bootstrap":
        new = fidelity.bootstrap(real, seed)
    elif method == "independent":
        new = fidelity.independent(real, seed)
    elif method == "unmask":
        new = [np.nan_to_num(c) for c in synthesize(model, len(real[0]), seed=seed).columns]
    elif method.startswith("mcm"):
        _, kind, share = method.split("-")
        new = mcm(real, sizes, seed, int(share) / 100, kind == "leaky")
    else:
        new = peer(method, real, sizes, seed)
    seconds = time.perf_counter() - start + (fitted if method == "unmask" else 0.0)
    (a, names), (b, _), (c, _) = (outcome_of(model, x) for x in (real, new, held_out))
    try:
        found = fidelity.survival_figures(a, b, names)
        # Both regressions are judged on the half that neither saw.
        found |= {"c_index_real": fidelity.transfer(a, c), "c_index_synthetic": fidelity.transfer(b, c)}
    except (ValueError, np.linalg.LinAlgError):
        found = {}
    found.pop("hazard_ratios", None)
    found["marginal_distance"] = float(np.mean(fidelity.marginals(real, new, sizes)))
    found["correlation_gap"] = fidelity.correlation_gap(real, new, sizes)
    found["two_sample_auc"] = fidelity.two_sample_auc(held_out, new, seed)
    found |= privacy.privacy(real, held_out, new, sizes, seed=seed) | privacy.copies(real, new)
    return found | {"seconds": round(seconds, 2)}


def _schema(whole, keep, duration, event):
    """Kinds from all rows, so that both halves have the same categories."""
    from unmask.modalities.table.schema.infer import infer_schema

    return infer_schema(
        [whole.names[i] for i in keep], [whole.columns[i] for i in keep], duration=duration, event=event
    )


def table(path: Path) -> None:
    lines = [json.loads(t) for t in path.read_text().splitlines()] if path.exists() else []
    if not lines:
        print(f"nothing in {path}")
        return
    shown = (
        "mean_log_hr_difference",
        "interval_overlap",
        "km_area",
        "c_index_real",
        "c_index_synthetic",
        "correlation_gap",
        "two_sample_auc",
        "dcr_share",
        "membership_auc",
        "identical_rows",
        "identical_cells",
        "seconds",
    )
    for name in dict.fromkeys(r["set"] for r in lines):
        print(f"\n{name:16}" + "".join(f"{s[:15]:>17}" for s in shown))
        for method in dict.fromkeys(r["method"] for r in lines if r["set"] == name):
            of = [r for r in lines if r["set"] == name and r["method"] == method]
            cells = []
            for s in shown:
                v = [r[s] for r in of if r.get(s) is not None]
                cells.append(f"{np.mean(v):9.3f}±{np.std(v):.3f}" if v else "-")
            print(f"{method:16}" + "".join(f"{c:>17}" for c in cells) + f"  n={len(of)}")
        of = {m: [r for r in lines if r["set"] == name and r["method"] == m] for m in ("unmask", "bootstrap")}
        if all(of.values()):
            mean = {m: {s: np.mean([r[s] for r in v if r.get(s) is not None]) for s in shown} for m, v in of.items()}
            ratio = mean["unmask"]["mean_log_hr_difference"] / mean["bootstrap"]["mean_log_hr_difference"]
            lost = mean["unmask"]["c_index_real"] - mean["unmask"]["c_index_synthetic"]
            ceiling = mean["bootstrap"]["c_index_real"] - mean["bootstrap"]["c_index_synthetic"]
            print(f"log HR difference / ceiling's {ratio:.2f}; C-index lost {lost:.3f} (ceiling {ceiling:.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sets", default=None)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--out", default="tables_synth.jsonl")
    parser.add_argument("--table", action="store_true")
    a = parser.parse_args()
    path = Path(a.out)
    if a.table:
        return table(path)
    sets = a.sets.split(",") if a.sets else ("whas500", "gbsg2") if a.quick else tuple(PAIRS)
    done = {(r["set"], r["seed"], r["method"]) for r in map(json.loads, path.open())} if path.exists() else set()
    for seed in range(a.seeds or (1 if a.quick else 10)):
        for name in sets:
            for method in a.methods.split(","):
                if (name, seed, method) in done:
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    try:
                        found = run(name, method, seed)
                    except ModuleNotFoundError as missing:
                        print(f"skipped {method}: {missing}", file=sys.stderr)
                        continue
                    except PeerError as error:
                        print(f"failed {method} on {name}: {error}", file=sys.stderr)
                        continue
                if found is None:
                    print(f"skipped {name}: not at {SHARED}", file=sys.stderr)
                    continue
                row = {"set": name, "seed": seed, "method": method, **found}
                with path.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, file=sys.stderr, flush=True)
    return table(path)


if __name__ == "__main__":
    main()
