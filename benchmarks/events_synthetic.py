"""New patients of `unmask events generate` beside real ones: how near they are, and death predicted.

PhysioNet-2012, set a, with a code at the end of those who died in hospital, and records of Synthea. Half of the
patients are learnt from, the other half judges. Trees on counts and last values of codes predict death in that half,
learnt from new patients or from the real ones, as many; codes at the time of a death are left out.

    python benchmarks/events_synthetic.py [--data synthea_r4] [--sheet]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from sheets import Table, write_sheet

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("UNMASK_SHARED", ROOT.parent / "shared"))
DIED = "MEDS_DEATH"
DATA = {"physionet2012_a": ("PhysioNet-2012", "tasks/in_hospital_death"), "synthea_r4": ("Synthea", "")}
"""Folder -> its name, and the labels that become a last event."""
SAYS = (
    "Half of the patients are learnt from, as many drawn, the other half judges. Ceiling: those learnt from, beside the"
    " other half. Floor: these, each code shuffled alone; of the AUROC chance. Trees on counts and last values of the"
    " codes before the time of death predict in the other half who died; in PhysioNet that is MEDS_DEATH, a minute"
    " after the last event of those who died in hospital. Processor seconds of learning and drawing:"
)


def table(folder: Path) -> pl.DataFrame:
    """All events of a MEDS folder, without labels in categories."""
    columns = ["subject_id", "time", "code", "numeric_value"]
    return pl.concat(pl.read_parquet(p).select(columns) for p in sorted((folder / "data").rglob("*.parquet")))


def labelled(frame: pl.DataFrame, task: Path) -> pl.DataFrame:
    """With a last event of those who died."""
    labels = pl.concat(pl.read_parquet(p) for p in sorted(task.rglob("*.parquet")))
    frame = frame.join(labels.select("subject_id").unique(), on="subject_id", how="semi")
    frame = frame.filter(~pl.col("code").str.starts_with("MEDS_DEATH"))
    died = labels.filter("boolean_value").select("subject_id").unique()
    last = frame.group_by("subject_id").agg(pl.col("time").max()).join(died, on="subject_id", how="semi")
    last = last.with_columns(
        code=pl.lit(DIED),
        numeric_value=pl.lit(None, frame.schema["numeric_value"]),
        time=pl.col("time").dt.offset_by("1m"),
    )
    return pl.concat([frame, last.select(frame.columns)]).sort(
        "subject_id", "time", nulls_last=False, maintain_order=True
    )


def features(frame: pl.DataFrame, codes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """(patients, 2 codes) counts and last values before the time of death, and whether each died."""
    death = frame.filter(pl.col("code").str.starts_with(DIED)).group_by("subject_id").agg(died=pl.col("time").min())
    frame = frame.join(death, on="subject_id", how="left", maintain_order="left")
    before = pl.col("time").is_null() | pl.col("died").is_null() | (pl.col("time") < pl.col("died"))
    frame = frame.filter(before | pl.col("code").str.starts_with(DIED))
    subjects = frame["subject_id"].unique(maintain_order=True).to_list()
    row = frame["subject_id"].replace_strict({s: i for i, s in enumerate(subjects)}).to_numpy()
    column = frame["code"].replace_strict({c: i for i, c in enumerate(codes)}, default=-1).to_numpy()
    value = frame["numeric_value"].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    counts, last = np.zeros((len(subjects), len(codes))), np.full((len(subjects), len(codes)), np.nan)
    good = column >= 0
    np.add.at(counts, (row[good], column[good]), 1)
    good &= np.isfinite(value)
    last[row[good], column[good]] = value[good]
    died = np.zeros(len(subjects), bool)
    died[row[frame["code"].str.starts_with(DIED).to_numpy()]] = True
    return np.hstack([counts, last]), died


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sheet", action="store_true", help="write docs/results/events-synthetic.json")
    parser.add_argument("--data", nargs="*", default=list(DATA), choices=list(DATA))
    parser.add_argument("--processor", default="one busy core")
    given = parser.parse_args()
    tables, says = [], ""
    for name in given.data:
        folder = SHARED / "data/events" / name
        if not folder.exists():
            print(f"{folder} is not there: nothing to measure")
            return
        frame = table(folder)
        if DATA[name][1]:
            frame = labelled(frame, folder / DATA[name][1])
        rows, patients, codes, seconds = judged(frame)
        tables.append(Table(columns=(DATA[name][0], "new", "ceiling", "floor"), rows=rows))
        says += (
            f" {DATA[name][0]}: {patients:,} patients learnt from and as many drawn, {codes} codes, {seconds:.0f} s."
        )
        if given.sheet:
            write_sheet(
                "events-synthetic",
                *tables,
                title="New patients beside real ones",
                says=f"{SAYS}{says}",
                command=f"python benchmarks/events_synthetic.py --data {' '.join(given.data)} --sheet",
                processor=given.processor,
                seeds="one",
                sources="src/unmask/modalities/events/synthesis",
            )


def judged(frame: pl.DataFrame) -> tuple[tuple[tuple[str, ...], ...], int, int, float]:
    """Rows of the table; patients, codes, and seconds of one processor."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score

    from unmask.events import compare, generate
    from unmask.modalities.events.synthesis.judge import MEANINGS

    subjects = np.random.default_rng(0).permutation(frame["subject_id"].unique().sort().to_numpy())
    halves = [frame.filter(pl.col("subject_id").is_in(part.tolist())) for part in np.array_split(subjects, 2)]
    count = halves[0]["subject_id"].n_unique()
    with tempfile.TemporaryDirectory() as scratch:
        begin = time.process_time()
        made = generate(halves[0], count, Path(scratch) / "new")
        seconds = time.process_time() - begin
        new = table(Path(scratch) / "new")
    found = compare(new, halves[0], held_out=halves[1])
    print(found, f"{seconds:.0f} s", sep="\n", flush=True)
    codes = [c for c in halves[0]["code"].unique().sort().to_list() if not c.startswith(DIED)]
    x, y = features(halves[1], codes)
    rows = [
        (
            m.label,
            *("" if v is None else f"{v:.3f}" for v in (found[k], found["ceiling"].get(k), found["floor"].get(k))),
        )
        for k, m in MEANINGS.items()
    ]
    trains = [features(train, codes) for train in (new, halves[0])]
    kept = [n for n in range(x.shape[1]) if all(len(np.unique(t[:, n][np.isfinite(t[:, n])])) > 1 for t, _ in trains)]
    scores = []
    for seen, died in trains:
        trees = HistGradientBoostingClassifier(learning_rate=0.05, max_iter=200, max_leaf_nodes=15, random_state=0)
        scores.append(f"{roc_auc_score(y, trees.fit(seen[:, kept], died).predict_proba(x[:, kept])[:, 1]):.3f}")
        print(f"{len(died):,} patients, {died.mean():.3f} died, {len(kept)} columns", flush=True)
    rows.append(("AUROC of death, learnt from them", *scores, "0.500"))
    print(rows[-1], flush=True)
    return tuple(rows), count, made["codes"], seconds


if __name__ == "__main__":
    main()
