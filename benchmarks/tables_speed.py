"""How fast a table model fits, transforms and samples, on simulated tables; the median of a few runs.

    python benchmarks/tables_speed.py [--quick] [--threads 2] [--out tables_speed.json]

Bars on 2 cores: 1 000 x 20 fit within 5 s, 10 000 x 40 within 30 s, transform at least 50 000 rows/s, sampling at least
5 000 rows/s at 30 columns. Tables: correlated quantities, a quarter of the columns categories, 10 % missing.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch


def simulate(rows: int, columns: int, seed: int = 0, missing: float = 0.1):
    """(columns, categories of each)."""
    rng = np.random.default_rng([seed, rows, columns])
    z = rng.normal(size=(rows, 5)) @ rng.normal(size=(5, columns)) + rng.normal(size=(rows, columns))
    sizes = [0 if j % 4 else (2, 3, 5)[j // 4 % 3] for j in range(columns)]
    out = []
    for j, size in enumerate(sizes):
        x = np.exp(z[:, j] / 3) if j % 3 == 0 else z[:, j].round(2)
        if size:
            x = np.searchsorted(np.quantile(z[:, j], np.linspace(0, 1, size + 1)[1:-1]), z[:, j]).astype(float)
        out.append(np.where(rng.random(rows) < missing, np.nan, x))
    return out, sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="once each, the large fit left out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", default="tables_speed.json")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    from unmask.modalities.table.fitting.cell_table import CellTable
    from unmask.modalities.table.model import TableModel
    from unmask.modalities.table.reading.frame import Frame
    from unmask.modalities.table.synthesis.synthesize import synthesize

    repeats = 1 if a.quick else a.repeats
    found: dict = {"threads": a.threads, "repeats": repeats}

    def timed(name: str, bar: float, work, rows: int | None = None) -> None:
        spent = []
        for _ in range(repeats):
            start = time.perf_counter()
            work()
            spent.append(time.perf_counter() - start)
        middle = float(np.median(spent))
        value = middle if rows is None else rows / middle
        found[name] = {"value": round(value, 3), "bar": bar, "seconds": [round(s, 3) for s in spent]}
        print(f"{name:34}{value:12,.2f}  (bar {bar:,})  runs {[round(s, 2) for s in spent]} s", flush=True)
        Path(a.out).write_text(json.dumps(found, indent=1))

    small = simulate(1000, 20)
    CellTable.fit(*simulate(200, 5), steps=5)  # imports and first calls
    timed("fit 1000 x 20, s", 5, lambda: CellTable.fit(*small))
    table = CellTable.fit(*small)
    many = simulate(50_000, 20, seed=1)[0]
    timed("impute 20 columns, rows/s", 50_000, lambda: table.impute(many), 50_000)
    # On these simulated (linear) tables the network may have learnt nothing and be skipped; here it is not.
    table.network.linear_only = False
    timed("the same with the network, rows/s", 50_000, lambda: table.impute(many), 50_000)
    columns, _ = simulate(2000, 30, missing=0)
    frame = Frame(names=[f"c{i}" for i in range(30)], columns=columns, native=np.column_stack(columns))
    model = TableModel.fit(frame, steps=60)
    timed("sample 30 columns, rows/s", 5000, lambda: synthesize(model, 10_000), 10_000)
    if not a.quick:
        large = simulate(10_000, 40)
        timed("fit 10000 x 40, s", 30, lambda: CellTable.fit(*large))


if __name__ == "__main__":
    main()
