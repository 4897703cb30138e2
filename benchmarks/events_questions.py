"""Questions that nobody trained for: `unmask ask` beside boosting trained for each of them.

100 questions per data set are drawn by a seed ("does code c, its value beyond v, or any of several, come within dt?"),
at points drawn of every patient's record; a fifth of the patients are held out of everything. The model is pretrained
on the others and answers without a label. Beside it, for each question: gradient boosting on the house's summaries,
trained on 100 labels and on all; the rule of the last value; the prevalence.

    python benchmarks/events_questions.py physionet|synthea [--steps 400] [--set key=value] [--cache DIR] [--out F.json]
    python benchmarks/events_questions.py cost [--steps 60]
    python benchmarks/events_questions.py worth [--steps 400] [--out F.json]
    python benchmarks/events_questions.py death [--steps 400] [--folds 0,1,2,3,4] [--shares 0.1,1] [--out F.json]

`cost`: pretraining with questions beside the masked events alone. `worth`: what states, answers, summaries and trees
are each worth to the head (`finetune outcome --set worth=true`) with a quarter of the training labels of fold 0.
`death`: in-hospital death (PhysioNet-2012) with 10 % of the labels, five subsets per fold, and with all: what answers
(--variants: states) add to summaries and trees. It goes on from the folds that F.json has.
`events_questions_sheet.py` makes the sheets of docs/results of what --out wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, log_loss, roc_auc_score

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[2] / "shared"))
DATA = {"physionet": ("physionet2012_a", 1), "synthea": ("synthea_r4", 4)}
"""Folder, and points per patient."""
LABELS, SUBSETS = 100, 3
LEAF = 20
PREVALENCE = (0.05, 0.95)
FEWEST = 10
"""Held-out points with yes, and with no."""
VARIANTS = {
    "summaries": ("summaries",),
    "summaries, states": ("summaries", "states"),
    "summaries, answers": ("summaries", "answers"),
    "summaries, states, answers": ("summaries", "states", "answers"),
    "answers": ("answers",),
    "states": ("states",),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=[*DATA, "death", "worth", "cost"])
    parser.add_argument("--folds", default="0,1,2,3,4", help="death: numbers of the folds to run")
    parser.add_argument("--shares", default="0.1,1", help="death: shares of the training labels")
    parser.add_argument("--subsets", type=int, default=5, help="death: label subsets per fold; of all labels one")
    parser.add_argument(
        "--variants", default="summaries; summaries, answers; answers", help=f"death: of {'; '.join(VARIANTS)}"
    )
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--cache", help="folder where what boosting said is kept between runs")
    parser.add_argument("--recipe", default="ask")
    parser.add_argument("--out")
    parser.add_argument("--keep", help="folder for the model")
    return parser.parse_args()


class Bench:
    """Patients in two parts, points, questions, and what came."""

    def __init__(self, a: argparse.Namespace) -> None:
        from unmask.modalities.events.questions.queries import QueryDraws, ends, horizons
        from unmask.modalities.events.records.histories import Histories
        from unmask.modalities.events.records.meds import HOUR, STATIC, Labels, read_meds
        from unmask.modalities.events.records.vocabulary import Vocabulary

        name, each = DATA[a.data]
        self.events, rng = read_meds(SHARED / "data/events" / name), np.random.default_rng([a.seed, 7])
        order = rng.permutation(len(self.events))
        cut = len(order) // 5
        self.test_patients, self.train_patients = np.sort(order[:cut]), np.sort(order[cut:])
        self.histories = Histories(self.events, Vocabulary.fit(self.events, subjects=self.train_patients))
        last = ends(self.events, self.train_patients)
        self.edges = horizons(self.events, self.train_patients, last, None, None)
        self.share = QueryDraws.shares(self.histories, self.train_patients)
        subject, moment = [], []
        for i in range(len(self.events)):
            time = self.events.time[self.events.offsets[i] : self.events.offsets[i + 1]]
            stamps = np.unique(time[time != STATIC])
            if len(stamps) > 1:
                chosen = rng.choice(len(stamps) - 1, min(each, len(stamps) - 1), replace=False)
                subject += [i] * len(chosen)
                moment += stamps[np.sort(chosen)].tolist()
        self.points = Labels(subject=np.array(subject), time=np.array(moment))
        self.end = (last[self.points.subject] - self.points.time) / HOUR
        self.test = np.isin(self.points.subject, self.test_patients)
        self.draw(a.questions, rng)

    def draw(self, count: int, rng: np.random.Generator) -> None:
        """Questions that can be judged: not nearly always yes or no, ten of either among held-out patients."""
        from unmask.modalities.events.questions.queries import ITEMS, joined, made

        kept, came, known, self.hours, self.drawn = [], [], [], [], 0
        valued = self.histories.vocabulary.valued
        while len(kept) < count:
            self.drawn += 1
            items = 1 if rng.random() > 0.25 else int(rng.integers(2, ITEMS + 1))
            code = np.full((1, ITEMS), -1)
            code[0, :items] = rng.choice(len(self.share), items, p=self.share)
            side, cut = np.zeros((1, ITEMS), np.int64), np.zeros((1, ITEMS))
            for j in range(items):
                if valued[code[0, j]] and rng.random() < 0.6:
                    side[0, j] = rng.choice([-1, 1])
                    cut[0, j] = np.interp(
                        rng.uniform(0.05, 0.95),
                        self.histories.vocabulary.levels,
                        self.histories.vocabulary.knots[code[0, j]],
                    )
            hours = float(np.exp(rng.uniform(*np.log(self.edges[[0, -1]]))))
            asked = made(self.histories, code, side, cut)
            first = self.first(asked)
            observed = self.end >= hours
            y = first <= hours
            train, test = observed & ~self.test, observed & self.test
            if train.sum() < 2 * LABELS or not PREVALENCE[0] <= y[train].mean() <= PREVALENCE[1]:
                continue
            if min(y[test].sum(), (~y[test]).sum()) < FEWEST:
                continue
            kept.append(asked)
            came.append(y)
            known.append(observed)
            self.hours.append(hours)
        self.asked, self.came, self.known = joined(kept), np.stack(came, 1), np.stack(known, 1)

    def first(self, asked: Any) -> np.ndarray:
        """(points,) hours to the first yes."""
        from unmask.modalities.events.questions.queries import first_after
        from unmask.modalities.events.records.meds import HOUR

        out = np.full(len(self.points), np.inf)
        for p, (subject, moment) in enumerate(
            zip(self.points.subject.tolist(), self.points.time.tolist(), strict=True)
        ):
            later = slice(self.events.before(subject, moment).stop, int(self.events.offsets[subject + 1]))
            code = self.numbers()[self.events.code[later]]
            hours = (self.events.time[later] - moment) / HOUR
            out[p] = first_after(asked, hours, code, self.events.value[later])[0]
        return out

    def numbers(self) -> np.ndarray:
        if not hasattr(self, "_numbers"):
            self._numbers = self.histories.vocabulary.numbers(self.events.codes)
        return self._numbers

    def boosting(self) -> dict[str, np.ndarray]:
        """(points, questions) of boosting trained on 100 labels (several subsets) and on all."""
        from unmask.modalities.events.outcome.features import summarise, usual

        x, names = summarise(self.histories, self.points)
        used = usual(names)
        x = x[:, used]
        out = {n: np.full(self.came.shape, np.nan) for n in ("all", *(f"{LABELS}, {s}" for s in range(SUBSETS)))}
        for q in range(len(self.asked)):
            start = time.process_time()
            train, test = np.flatnonzero(self.known[:, q] & ~self.test), np.flatnonzero(self.known[:, q] & self.test)
            y = self.came[:, q].astype(np.int64)
            for name in out:
                some = train
                if name != "all":
                    rng = np.random.default_rng([q, int(name.split(", ")[1])])
                    some = rng.permutation(train)[:LABELS]
                varies = splittable(x[some])
                seen = np.unique(y[some])
                if len(seen) < 2:
                    out[name][test, q] = seen[0]
                    continue
                found = boosted(x[some][:, varies], y[some], x[test][:, varies], q)
                out[name][test, q] = found
            print(f"question {q}: boosting took {time.process_time() - start:.1f} s", flush=True)
        return out

    def rule(self) -> np.ndarray:
        """The last value, or how long ago the code was last seen: the higher, the likelier is yes."""
        from unmask.modalities.events.questions.queries import features

        out = np.zeros(self.came.shape)
        side, score = self.asked.side, self.asked.score
        for p in np.flatnonzero(self.test):
            f = features(self.histories, self.asked, int(self.points.subject[p]), int(self.points.time[p]))
            recent = np.where(f[..., 0] > 0, 5 - f[..., 2], -5.0)
            beyond = np.where(f[..., 4] > 0, (f[..., 5] - score) * side, -5.0)
            each = np.where(side != 0, beyond, recent)
            out[p] = np.where(self.asked.code >= 0, each, -9.0).max(-1)
        return out


def splittable(x: np.ndarray) -> np.ndarray:
    """Features that `LEAF` rows differ in from the others: no tree with leaves of so many splits by another one."""
    out = []
    for column in x.T:
        _, count = np.unique(column[~np.isnan(column)], return_counts=True)
        out.append(len(column) - max(int(np.isnan(column).sum()), int(count.max(initial=0))) >= LEAF)
    return np.array(out)


def boosted(x: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    """The gradient boosting of the outcome's report (`candidates.class_models`)."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    model = HistGradientBoostingClassifier(
        learning_rate=0.05,
        max_iter=200,
        max_leaf_nodes=15,
        min_samples_leaf=LEAF,
        l2_regularization=1.0,
        random_state=seed,
    )
    return model.fit(x, y).predict_proba(test)[:, 1]


def pretrained(events: Any, patients: np.ndarray, a: argparse.Namespace, out: str) -> tuple[Any, float]:
    """A model of the training patients, and the processor seconds it took."""
    from unmask.modalities.events.recipes import RECIPES, EventSettings, with_overrides
    from unmask.modalities.events.uses.model import load
    from unmask.modalities.events.uses.pretrain import pretrain
    from unmask.training.settings import parse_set

    changes = {**RECIPES[a.recipe], "steps": a.steps, "seed": a.seed, "precision": "fp32", **parse_set(a.set)}
    settings, start = with_overrides(EventSettings(), changes), time.process_time()
    if (Path(out) / "model.safetensors").exists():  # kept by an earlier run of the same steps
        return load(out, precision="fp32"), float("nan")
    pretrain(events, out, settings=settings, subjects=patients, console=False)
    return load(out, precision="fp32"), time.process_time() - start


def death(a: argparse.Namespace) -> None:
    """Fold by fold: a model of the training patients, heads on subsets of their labels, judged on the test patients."""
    from sklearn.model_selection import StratifiedKFold

    from unmask.modalities.events.outcome.targets import Binary
    from unmask.modalities.events.records.labels import read_labels
    from unmask.modalities.events.records.meds import read_meds

    data = SHARED / "data/events/physionet2012_a"
    if not data.exists():
        print(f"{data} is not there: nothing to measure")
        return
    events = read_meds(data)
    points = read_labels(data / "tasks/in_hospital_death", events)
    y = Binary().encode(points)
    folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(y, y[:, 0]))
    done = json.loads(Path(a.out).read_text())["each"] if a.out and Path(a.out).exists() else {}
    for number in a.folds.split(","):
        if number not in done:
            done[number] = death_fold(events, points, y, int(number), *folds[int(number)], a)
        tell_death(done, a)


def death_fold(
    events: Any, points: Any, y: np.ndarray, number: int, train: np.ndarray, test: np.ndarray, a: argparse.Namespace
) -> dict[str, Any]:
    """Of each share of the labels and each variant: AUROC and AUPRC by subset, and 500 bootstrap AUROCs of the mean."""
    from unmask.evaluation.resampling import auroc_auprc
    from unmask.modalities.events.outcome.outcome import fit_head
    from unmask.modalities.events.outcome.targets import Binary
    from unmask.modalities.events.recipes import OutcomeSettings

    names, rng = a.variants.split("; "), np.random.default_rng(number)
    with tempfile.TemporaryDirectory() as folder:
        out = folder if a.keep is None else f"{a.keep}/fold-{number}"
        model, seconds = pretrained(events, points.subject[train], a, out)
    print(f"fold {number}: pretraining took {seconds:.0f} s of one processor", flush=True)
    histories, used = model.histories(events), {part for name in names for part in VARIANTS[name]}
    made = {}
    for part in sorted(used):
        kept = Path(out) / f"{part}.npy"  # of an earlier run with --keep
        made[part] = np.load(kept) if kept.exists() else model.features(histories, points, **alone(part))[:]
        if a.keep is not None:
            np.save(kept, made[part])
    weights = np.stack([np.bincount(rng.integers(0, len(test), len(test)), minlength=len(test)) for _ in range(500)])
    found: dict[str, Any] = {"seconds": seconds}
    for share in map(float, a.shares.split(",")):
        found[f"{share:g}"] = here = {}
        for name in names:
            x, drawn, rows = np.concatenate([made[part] for part in VARIANTS[name]], 1), [], []
            for seed in range(1 if share == 1 else a.subsets):
                labelled = np.random.default_rng([seed, number]).permutation(train)[: round(share * len(train))]
                labelled.sort()
                settings = OutcomeSettings(members=10, trees=500, seed=seed)
                head = fit_head(x[labelled], y[labelled], points.subject[labelled], settings, Binary())
                p = head.predict(x[test], Binary())[:, 0]
                rows.append([float(roc_auc_score(y[test, 0], p)), float(average_precision_score(y[test, 0], p))])
                drawn.append(auroc_auprc(y[test, 0], p, weights)[0])
            here[name] = {"scores": rows, "drawn": np.mean(drawn, 0).round(5).tolist()}
            print(f"fold {number}, {share:.0%} of the labels, {name}: {np.mean(rows, 0).round(4)}", flush=True)
    return found


def weigh(a: argparse.Namespace) -> None:
    """What each part of the head is worth, in folds of a quarter of the training patients of fold 0."""
    from sklearn.model_selection import StratifiedKFold

    from unmask.modalities.events.outcome.targets import Binary
    from unmask.modalities.events.recipes import OutcomeSettings
    from unmask.modalities.events.records.labels import read_labels
    from unmask.modalities.events.records.meds import read_meds
    from unmask.modalities.events.uses.work import OutcomeWork, worth

    data = SHARED / "data/events/physionet2012_a"
    events = read_meds(data)
    points = read_labels(data / "tasks/in_hospital_death", events)
    y = Binary().encode(points)
    train, _ = next(StratifiedKFold(5, shuffle=True, random_state=0).split(y, y[:, 0]))
    with tempfile.TemporaryDirectory() as folder:
        model, _ = pretrained(events, points.subject[train], a, folder if a.keep is None else f"{a.keep}/fold-0")
    few = np.sort(np.random.default_rng([0, 0]).permutation(train)[: len(train) // 4])
    settings = OutcomeSettings(states=True, answers=True, worth=True, baselines=False)
    some, histories = points.take(few), model.histories(events)
    found = worth(OutcomeWork(model, histories, some, Binary(), y[few], settings), np.arange(len(few))).figures
    print(json.dumps(found, indent=1))
    if a.out:
        Path(a.out).write_text(json.dumps(found, indent=1))


def cost(a: argparse.Namespace) -> None:
    """Processor seconds of pretraining with questions and without, of as many steps; what both begin with left out."""
    from unmask.modalities.events.records.meds import read_meds

    found: dict[str, Any] = {"steps": a.steps, "pretraining": {}}
    for data, (name, _) in DATA.items():
        if not (SHARED / "data/events" / name).exists():
            continue
        events, spent = read_meds(SHARED / "data/events" / name), {}
        for a.recipe in ("ours", "ask"):
            for a.steps in (1, found["steps"]):
                with tempfile.TemporaryDirectory() as folder:
                    spent[a.recipe, a.steps] = pretrained(events, np.arange(len(events)), a, folder)[1]
        each = {r: spent[r, found["steps"]] - spent[r, 1] for r in ("ours", "ask")}
        found["pretraining"][data] = {**each, "ratio": each["ask"] / each["ours"]}
        print(data, found["pretraining"][data], flush=True)
    if a.out:
        Path(a.out).write_text(json.dumps(found, indent=1))


def alone(part: str) -> dict[str, bool]:
    return {name: name == part for name in ("summaries", "states", "answers")}


def tell_death(done: dict[str, Any], a: argparse.Namespace) -> None:
    """Means over folds; the difference from summaries with a 95 % interval over test patients, and fold by fold."""
    found: dict[str, Any] = {"arguments": vars(a), "each": done, "models": {}}
    for share in (f"{float(s):g}" for s in a.shares.split(",")):
        found["models"][share] = told = {}
        for name in a.variants.split("; "):
            scores = np.array([np.mean(f[share][name]["scores"], 0) for f in done.values()])
            told[name] = {"auroc": float(scores[:, 0].mean()), "auprc": float(scores[:, 1].mean()), "folds": len(done)}
            if name != "summaries" and "summaries" in told:
                base = np.array([np.mean(f[share]["summaries"]["scores"], 0) for f in done.values()])
                drawn = [np.subtract(f[share][name]["drawn"], f[share]["summaries"]["drawn"]) for f in done.values()]
                gains, interval = (scores - base)[:, 0], np.quantile(np.mean(drawn, 0), [0.025, 0.975])
                told[name] |= {"gain": [float(gains.mean()), *interval.tolist()], "by_fold": gains.tolist()}
            print(f"{share} {name}", {k: np.round(v, 4).tolist() for k, v in told[name].items()}, flush=True)
    if a.out:
        Path(a.out).write_text(json.dumps(found, indent=1))


def main() -> None:
    a = arguments()
    other = {"death": death, "worth": weigh, "cost": cost}.get(a.data)
    if other is not None:
        other(a)
        return
    if not (SHARED / "data/events" / DATA[a.data][0]).exists():
        print(f"{SHARED / 'data/events'} is not there: nothing to measure")
        return
    from unmask.modalities.events.uses.query_answers import probabilities

    bench = Bench(a)
    print(f"{len(bench.asked)} questions of {bench.drawn} drawn, {bench.test.sum()} held-out points", flush=True)
    cache = None if a.cache is None else Path(a.cache) / f"{a.data}-{a.seed}-{a.questions}.npz"
    if cache is not None and cache.exists():
        others = dict(np.load(cache))
    else:
        others = bench.boosting()
        if cache is not None:
            np.savez(cache, **others)
    with tempfile.TemporaryDirectory() as folder:
        model, seconds = pretrained(bench.events, bench.train_patients, a, a.keep or folder)
    start = time.process_time()
    points = bench.points.take(np.flatnonzero(bench.test))
    told, _ = probabilities(model.folder, model.histories(bench.events), points, bench.asked, bench.hours)
    spent = time.process_time() - start
    ours = np.full(bench.came.shape, np.nan)
    ours[bench.test] = told
    prevalence = np.tile(
        [bench.came[bench.known[:, q] & ~bench.test, q].mean() for q in range(len(bench.asked))], (len(ours), 1)
    )
    predicted = {"ours, no label": ours, "prevalence": prevalence, "last value": bench.rule(), **others}
    found = judged(bench, predicted)
    found |= {"arguments": vars(a), "drawn": bench.drawn, "pretraining_seconds": seconds}
    found |= {
        "answers_per_second": told.size / spent,
        "calibration_line": model.folder.model.queries.calibration.tolist(),
    }
    for name, r in found["results"].items():
        print(f"{name:16} " + "  ".join(f"{k} {v:.3f}" for k, v in r.items()))
    print(
        {
            k: found[k]
            for k in ("paired", "pretraining_seconds", "answers_per_second", "calibration_line", "calibration")
        }
    )
    if a.out:
        Path(a.out).write_text(json.dumps(found, indent=1))


def judged(bench: Bench, predicted: dict[str, np.ndarray]) -> dict[str, Any]:
    """Mean figures over questions, by model; differences from ours with 95 % intervals, over questions."""
    each: dict[str, list[dict[str, float]]] = {}
    pooled: list[np.ndarray] = []
    for q in range(len(bench.asked)):
        # Of the dead nothing is asked: some records go on after a death.
        here = bench.known[:, q] & bench.test & np.isfinite(predicted["ours, no label"][:, q])
        y = bench.came[here, q]
        for name, p in predicted.items():
            x = p[here, q]
            row = {"auroc": float(roc_auc_score(y, x)), "auprc": float(average_precision_score(y, x))}
            if name != "last value":
                row |= {"log_loss": float(log_loss(y, x.clip(1e-4, 1 - 1e-4))), "brier": float(((y - x) ** 2).mean())}
            each.setdefault(name, []).append(row)
        pooled.append(np.stack([predicted["ours, no label"][here, q], y], 1))
    subsets = [n for n in each if n.startswith(f"{LABELS}, ")]
    each[f"boosting, {LABELS}"] = [
        {k: float(np.mean([each[n][q][k] for n in subsets])) for k in each[subsets[0]][q]}
        for q in range(len(bench.asked))
    ]
    each["boosting, all"] = each.pop("all")
    for n in subsets:
        del each[n]
    results = {n: {k: float(np.mean([r[k] for r in rows])) for k in rows[0]} for n, rows in each.items()}
    rng, paired = np.random.default_rng(0), {}
    for name in results:
        gap = np.array([a["auroc"] - b["auroc"] for a, b in zip(each["ours, no label"], each[name], strict=True)])
        drawn = gap[rng.integers(0, len(gap), (2000, len(gap)))].mean(1)
        paired[name] = [float(gap.mean()), *np.quantile(drawn, [0.025, 0.975]).tolist(), float((gap > 0).mean())]
    both = np.concatenate(pooled)
    both = both[np.argsort(both[:, 0])]
    bins = [[*part.mean(0).tolist(), len(part)] for part in np.array_split(both, 10)]
    return {"results": results, "paired": paired, "calibration": bins, "each": each}


if __name__ == "__main__":
    main()
