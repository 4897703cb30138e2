"""How table models do beside other work and at size: simulated tables, each part in a process of its own.

    python benchmarks/tables_scale.py [busy] [size] [evaluate] [sample] [--rows 1000000] [--columns 60] [--out
    tables_scale.json]

busy      a fit of 1 000 x 20 with nothing else running, and beside two busy processes per core (`--per-core`), which
          this script starts and ends: wall and processor seconds. Fair sharing alone costs three times the quiet time.
size      a CSV of --rows x --columns with 10 % missing cells: read, fit, impute, write; seconds of each and peak
memory. evaluate  `evaluate_model` on --evaluate-rows rows of 20 columns with a survival pair. sample    RMSE and share
of wrong categories in hidden cells of the linear part (steps=0) fitted to 3 000, 10 000 and all of
          --sample-rows rows.

Bars: beside busy processes at most 5 times the quiet time; size within 8 GB; evaluate in minutes.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from beside import processor, quiet_and_busy, timed
from tables_speed import simulate

PARTS = ("busy", "size", "evaluate", "sample")


def peak_gb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)


def fit_once(a: argparse.Namespace) -> dict:
    from unmask.modalities.table.fitting.cell_table import CellTable

    table = simulate(1000, 20)
    CellTable.fit(*simulate(200, 5), steps=5)  # imports and first calls
    return {"runs": [timed(lambda: CellTable.fit(*table)) for _ in range(a.repeats)]}


def busy(a: argparse.Namespace) -> dict:
    return quiet_and_busy(lambda: in_process("fit_once", a), a.per_core)


def write_csv(path: Path, rows: int, columns: int, block: int = 50_000) -> None:
    """Categories as texts, every third quantity with all its digits, the others with two decimals."""
    with path.open("w") as file:
        file.write(",".join(f"c{j}" for j in range(columns)) + "\n")
        for start in range(0, rows, block):
            table, sizes = simulate(min(block, rows - start), columns, seed=start)
            cells = [
                ["" if v != v else (f"level {int(v)}" if size else repr(round(float(v), 9))) for v in x]
                for x, size in zip(table, sizes, strict=True)
            ]
            file.writelines(",".join(row) + "\n" for row in zip(*cells, strict=True))


def size(a: argparse.Namespace) -> dict:
    from unmask.modalities.table.model import TableModel
    from unmask.modalities.table.reading.readers import read_frame
    from unmask.modalities.table.writing.writers import write_table

    with tempfile.TemporaryDirectory() as folder:
        source, filled = Path(folder) / "in.csv", Path(folder) / "out.csv"
        subprocess.run(
            [
                sys.executable,
                __file__,
                "write_csv",
                "--rows",
                str(a.rows),
                "--columns",
                str(a.columns),
                "--path",
                source,
            ],
            check=True,
        )
        kept: dict = {}
        found: dict = {"rows": a.rows, "columns": a.columns, "file_gb": round(source.stat().st_size / 1e9, 2)}

        def step(name: str, work) -> None:
            found[name] = timed(work) | {"peak_gb": peak_gb()}
            print(name, found[name], flush=True)

        step("read", lambda: kept.update(frame=read_frame(source)))
        step("fit", lambda: kept.update(model=TableModel.fit(kept["frame"])))
        step("impute", lambda: kept.update(out=kept["model"].impute_frame(kept["frame"])[0][0]))
        step("write", lambda: write_table(kept["out"], filled))
        found["observed_cells_unchanged"] = unchanged(source, filled)
    return found | {"peak_gb": peak_gb()}


def unchanged(source: Path, filled: Path) -> bool:
    """Whether every cell with a value stands in the result as it was, to the letter, and no cell is empty there."""
    with source.open() as before, filled.open() as after:
        for one, other in zip(before, after, strict=True):
            for x, y in zip(one.rstrip("\n").split(","), other.rstrip("\n").split(","), strict=True):
                if (x and x != y) or not y:
                    return False
    return True


def evaluate(a: argparse.Namespace) -> dict:
    from unmask.modalities.table.evaluate import evaluate_model
    from unmask.modalities.table.model import TableModel
    from unmask.modalities.table.reading.frame import Frame

    columns, _ = simulate(a.evaluate_rows, 20, missing=0)
    rng = np.random.default_rng(0)
    times = rng.exponential(np.exp(-0.5 * columns[1]))
    ends = rng.exponential(2.0, len(times))
    table = np.column_stack([*columns, np.minimum(times, ends).round(3), times <= ends])
    holes = np.random.default_rng(1).random(table.shape) < 0.1
    holes[:, -2:] = False
    table = np.where(holes, np.nan, table)
    names = [f"c{i}" for i in range(20)] + ["time", "event"]
    frame = Frame(names=names, columns=list(table.T), native=None)
    model = TableModel.fit(frame, duration="time", event="event", steps=a.steps)
    found: dict = {}
    spent = timed(lambda: found.update(evaluate_model(model, frame)))
    figures = {k: v for k, v in found.items() if isinstance(v, float | int)}
    return {"rows": a.evaluate_rows, **spent, "peak_gb": peak_gb(), "figures": figures}


def sample(a: argparse.Namespace) -> dict:
    from unmask.modalities.table.fitting import margins
    from unmask.modalities.table.fitting.cell_table import CellTable

    full, sizes = simulate(a.sample_rows + 5000, a.columns, missing=0)
    hide = np.random.default_rng(5).random((len(full[0]), len(full))) < 0.3
    holed = [np.where(h, np.nan, x) for h, x in zip(hide.T, full, strict=True)]
    new = [x[-5000:] for x in holed]
    found = {}
    for rows in (3000, 10_000, a.sample_rows):
        margins.MOST_ROWS = rows
        made: dict = {}
        spent = timed(
            lambda made=made: made.update(t=CellTable.fit([x[:-5000] for x in holed], sizes, steps=0, calibrate=False))
        )
        point = made["t"].impute(new).point
        error = [
            np.sqrt(np.mean((p - x[-5000:])[h[-5000:]] ** 2)) / x.std()
            for p, x, h, s in zip(point, full, hide.T, sizes, strict=True)
            if not s
        ]
        wrong = [
            np.mean((p != x[-5000:])[h[-5000:]]) for p, x, h, s in zip(point, full, hide.T, sizes, strict=True) if s
        ]
        found[str(rows)] = {"rmse": round(float(np.mean(error)), 5), "wrong": round(float(np.mean(wrong)), 5), **spent}
        print(rows, found[str(rows)], flush=True)
    return found


def in_process(name: str, a: argparse.Namespace) -> dict:
    """What a part finds, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        own = [
            f"--{k.replace('_', '-')}={v}"
            for k, v in vars(a).items()
            if k not in ("parts", "path", "out") and v is not None
        ]
        subprocess.run([sys.executable, __file__, name, "--path", str(out), *own], check=True)
        return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=60)
    parser.add_argument("--evaluate-rows", type=int, default=200_000)
    parser.add_argument("--sample-rows", type=int, default=50_000)
    parser.add_argument("--per-core", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of the fit that is evaluated; default by the table's size")
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--out", default="tables_scale.json")
    a = parser.parse_args()
    if a.path and a.parts == ["write_csv"]:
        write_csv(Path(a.path), a.rows, a.columns)
        return
    if a.path:
        Path(a.path).write_text(json.dumps(globals()[a.parts[0]](a)))
        return
    found: dict = {"processor": processor(), "settings": {k: v for k, v in vars(a).items() if k not in ("path", "out")}}
    print(json.dumps(found), flush=True)
    for part in a.parts:
        found[part] = busy(a) if part == "busy" else in_process(part, a)
        print(part, json.dumps(found[part]), flush=True)
        Path(a.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
