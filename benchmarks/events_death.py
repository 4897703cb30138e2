"""In-hospital death at 48 h, PhysioNet-2012, sets a and c together: ours, with and without pretraining, beside others.

Splits of 70/15/15 by patient; nothing is chosen here, so the middle part is not looked at. Vocabulary, scales and
pretraining see the training patients, without labels; heads and rivals a share of their labels. What is said of the
test patients is kept in a folder, from which a run goes on, and from which the sheet is made.

    python benchmarks/events_death.py --folder runs [--splits 5] [--sheet]           LightGBM where it is installed

benchmarks/events_axes.py adds an encoder that is tuned as a whole, pretrained or not, to the folder. Trained on one
set and judged on another: benchmarks/events_away.py.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from events_away import LIGHT
from sheets import Table, write_sheet

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[2] / "shared"))
SHARES = {1.0: 1, 0.1: 2, 0.02: 3}
"""Share of the training labels, and how many subsets of them are drawn for each split."""
DRAWS = 1000
OURS, PRETRAINED, SCRATCH = "ours", "pretrained", "from scratch"


def parts(split: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points to train on, and to test on: each patient has one."""
    order = np.random.default_rng([17, split]).permutation(count)
    return np.sort(order[: round(0.7 * count)]), np.sort(order[round(0.85 * count) :])


def labelled(split: int, share: float, subset: int, train: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng([split, subset, round(1000 * share)])
    return train if share == 1 else np.sort(rng.permutation(train)[: round(share * len(train))])


class Split:
    """Features of all points, made when first asked for, and what each model learns from the labels of `few`."""

    def __init__(self, number: int, events: Any, points: Any) -> None:
        from unmask.modalities.events.outcome.features import last_values, summarise, usual
        from unmask.modalities.events.outcome.targets import Binary
        from unmask.modalities.events.records.histories import Histories
        from unmask.modalities.events.records.vocabulary import Vocabulary

        self.events, self.points, self.target = events, points, Binary()
        self.train, self.test = parts(number, len(points))
        histories = Histories(events, Vocabulary.fit(events, subjects=points.subject[self.train]))
        self.x, names = summarise(histories, points)
        self.usual = usual(names)
        self.last = last_values([n for n, used in zip(names, self.usual, strict=True) if used])

    def head(self, few: np.ndarray) -> np.ndarray:
        from unmask.modalities.events.outcome.outcome import fit_head
        from unmask.modalities.events.recipes import OutcomeSettings

        y = self.target.encode(self.points)[few]
        head = fit_head(self.x[few], y, self.points.subject[few], OutcomeSettings(), self.target)
        return head.predict(self.x[self.test], self.target)[:, 0]

    def rivals(self, few: np.ndarray) -> dict[str, np.ndarray]:
        from unmask.modalities.events.outcome.candidates import class_models

        plain, y = self.x[:, self.usual], self.points.value[few]
        found = {n: p[:, 1] for n, p in class_models(plain[few], y, plain[self.test], last=self.last).items()}
        try:
            from lightgbm import LGBMClassifier
        except ImportError:
            return found
        model = LGBMClassifier(random_state=0, n_jobs=1, verbose=-1, **LIGHT[1])
        return found | {"LightGBM": model.fit(self.x[few], y).predict_proba(self.x[self.test])[:, 1]}


def measured(folder: Path, splits: int) -> np.ndarray:
    """Measure what the folder has not; returns the outcome of every point."""
    import polars as pl

    from unmask.modalities.events.records.labels import read_labels
    from unmask.modalities.events.records.meds import as_events

    sets = [SHARED / f"data/events/physionet2012_{name}" for name in "ac"]
    events = as_events(pl.concat([pl.read_parquet(s / "data/*.parquet") for s in sets], how="diagonal_relaxed"))
    tasks = [pl.read_parquet(s / "tasks/in_hospital_death/*.parquet") for s in sets]
    points = read_labels(pl.concat(tasks, how="diagonal_relaxed"), events)
    assert len(np.unique(points.subject)) == len(points), "a patient has two points"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(splits):
        made: list[Split] = []

        def split(made: list[Split] = made, number: int = number) -> Split:
            if not made:
                made.append(Split(number, events, points))
            return made[0]

        jobs: dict[str, Callable[[np.ndarray], dict[str, np.ndarray]]] = {
            "rivals": lambda few: split().rivals(few),
            "ours": lambda few: {OURS: split().head(few)},
        }
        for name, job in jobs.items():
            for share, subset in ((share, subset) for share, count in SHARES.items() for subset in range(count)):
                file = folder / f"{number}-{share:g}-{subset}-{name}.npz"
                if not file.exists():
                    found = job(labelled(number, share, subset, parts(number, len(points))[0]))
                    np.savez(file, **found)
                    print(file.stem, flush=True)
    return points.value


Areas = dict[str, dict[tuple[int, int], np.ndarray]]
"""Of each model, split and subset of the labels (2, 1 + draws) AUROC and AUPRC: first as it is, then of resampled
patients."""


def areas(folder: Path, y: np.ndarray, share: float, times: np.ndarray) -> Areas:
    """A patient that is drawn twice is twice in every test part it is in."""
    from unmask.evaluation.resampling import auroc_auprc

    found: Areas = {}
    for file in sorted(folder.glob("*.npz")):
        split, of, subset, _ = file.stem.split("-")
        if float(of) != share:
            continue
        test = parts(int(split), len(y))[1]
        with np.load(file) as said:
            for name in said:
                here = auroc_auprc(y[test], said[name], times[:, test])
                found.setdefault(name, {})[int(split), int(subset)] = here
    return found


def gap(found: Areas, one: str, other: str) -> tuple[str, str]:
    """AUROC and AUPRC of one less those of another, where both were measured, with intervals over patients."""
    both = found[one].keys() & found[other].keys()
    gaps = np.mean([found[one][k] - found[other][k] for k in sorted(both)], 0)
    auroc, auprc = (f"{g[0]:+.3f} ({{:+.3f}} to {{:+.3f}})".format(*np.quantile(g[1:], [0.025, 0.975])) for g in gaps)
    return auroc, auprc


def tables(folder: Path, y: np.ndarray) -> list[Table]:
    """One per share of the labels; then what pretraining adds."""

    def splits(by: dict[tuple[int, int], np.ndarray]) -> str:
        return str(len({split for split, _ in by}))

    rng, count, out, added = np.random.default_rng(0), len(y), [], []
    drawn = (np.bincount(rng.integers(0, count, count), minlength=count) for _ in range(DRAWS))
    times = np.stack([np.ones(count, np.int64), *drawn])
    for share in SHARES:
        found, rows, of = areas(folder, y, share, times), [], f"{share:.0%} of the labels"
        for name, by in sorted(found.items(), key=lambda one: -np.mean([v[1, 0] for v in one[1].values()])):
            means = (f"{v:.3f}" for v in np.mean([v[:, 0] for v in by.values()], 0))
            less = ("", "") if name == OURS else gap(found, OURS, name)
            rows.append((name, splits(by), *means, *less))
            if name.endswith(PRETRAINED):
                scratch = name.replace(PRETRAINED, SCRATCH)
                added.append((of, name.removesuffix(f", {PRETRAINED}"), splits(by), *gap(found, name, scratch)))
        columns = ("splits", f"AUROC, {share:.0%}", f"AUPRC, {share:.0%}", "AUROC, ours less it", "AUPRC, ours less it")
        out.append(Table(columns=(of, *columns), rows=tuple(rows)))
    columns = ("labels", "pretrained less scratch", "splits", "AUROC", "AUPRC")
    return [*out, Table(columns=columns, rows=tuple(added))] if added else out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="what was measured")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--sheet", action="store_true", help="write docs/results/events-death.json")
    parser.add_argument("--processor", default="one busy core")
    given = parser.parse_args()
    if not (SHARED / "data/events/physionet2012_c").exists():
        print(f"{SHARED}/data/events/physionet2012_c is not there: nothing to measure")
        return
    found = tables(given.folder, measured(given.folder, given.splits))
    for table in found:
        print(*("\t".join(row) for row in (table.columns, *table.rows)), sep="\n")
    if given.sheet:
        write_sheet(
            "events-death",
            *found,
            title="In-hospital death, PhysioNet-2012, sets a and c",
            says="8,000 stays, 70/15/15 by patient (the middle part is not used): figures on the 1,200 test stays of "
            "a split, mean over splits, at fewer labels over two (10 %) and three (2 %) subsets of each. Vocabulary, "
            "scales and pretraining see the training stays alone. Two axes: four minutes of pretraining on a core, "
            "mean of two fine-tunings, by a draft of its script; with it, mean log-odds of networks, trees, boosting "
            "and encoder, each counting alike. Rivals read the same summaries, with fixed settings. Intervals of 95 % "
            "resample patients, paired.",
            command="python benchmarks/events_death.py --folder runs; python benchmarks/events_axes.py --folder runs; "
            "python benchmarks/events_death.py --folder runs --sheet",
            processor=given.processor,
            seeds="of the splits, as many as the column says",
            sources="src/unmask/modalities/events/outcome",
        )


if __name__ == "__main__":
    main()
