"""In-hospital death at 48 h (PhysioNet-2012 set-a): ours, pretrained or not, beside baselines in the same call.

Patient-wise folds, stratified by outcome. Vocabulary, value scales, masked pretraining, heads and baselines see the
training patients of a fold alone; at 10 % of the labels pretraining still sees all training patients, without labels.

    python benchmarks/events_outcome.py [--folds 0,1,2,3,4] [--steps 2500] [--seeds 5] [--shares 1.0,0.1] [--set
    key=value] [--out F.json] python benchmarks/events_outcome.py --tune         fine-tune the encoder too, pretrained
    and from scratch (slower) python benchmarks/events_outcome.py --ablate       states alone of each target,
    architecture and ratio (fewer folds)

Trained on one set and judged on another: benchmarks/events_away.py.
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
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[2] / "shared"))
ABLATIONS: dict[str, dict[str, Any]] = {
    "ours": {},
    "code alone": {"value_weight": 0.0, "time_weight": 0.0},
    "value alone": {"code_weight": 0.0, "time_weight": 0.0},
    "time alone": {"code_weight": 0.0, "value_weight": 0.0, "time_weight": 1.0},
    "code 0.2": {"code_weight": 0.2},
    "no value": {"value_weight": 0.0},
    "in place": {"architecture": "in_place"},
    "ratio 0.15": {"ratio": 0.15, "ratio_from": None},
    "ratio 0.3": {"ratio": 0.3, "ratio_from": None},
    "ratio 0.6": {"ratio": 0.6, "ratio_from": None},
    "single events": {"hide": "event"},
    "whole visits": {"hide": "visit"},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", default="0,1,2,3,4", help="numbers of the folds to run")
    parser.add_argument("--steps", type=int, default=2500, help="pretraining steps per fold; 0 leaves it out")
    parser.add_argument("--seeds", type=int, default=5, help="label subsets at shares below 1")
    parser.add_argument("--shares", default="1.0,0.1")
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--trees", type=int, default=500)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--ablate", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one fold, 20 steps, one label subset")
    parser.add_argument("--out")
    a = parser.parse_args()
    if a.quick:
        a.folds, a.steps, a.seeds = "0", 20, 1
    return a


class Fold:
    """One split: features of all points by name, made once, and what the heads say of the test patients."""

    def __init__(self, events: Any, points: Any, train: np.ndarray, test: np.ndarray, a: argparse.Namespace) -> None:
        from unmask.modalities.events.outcome.features import last_values, summarise, usual
        from unmask.modalities.events.records.histories import Histories
        from unmask.modalities.events.records.vocabulary import Vocabulary

        self.events, self.points, self.train, self.test, self.a = events, points, train, test, a
        histories = Histories(events, Vocabulary.fit(events, subjects=np.unique(points.subject[train])))
        self.x, names = summarise(histories, points)
        used = usual(names)
        self.plain, self.last = self.x[:, used], last_values([n for n, u in zip(names, used, strict=True) if u])

    def encoder(self, steps: int, changes: dict[str, Any]) -> Any:
        """A model pretrained on the training patients; 0 steps: untrained."""
        import torch

        from unmask.modalities.events.recipes import EventSettings, with_overrides
        from unmask.modalities.events.uses.folder import EventFolder, load_folder, new_model
        from unmask.modalities.events.uses.model import EventModel
        from unmask.modalities.events.uses.pretrain import pretrain

        settings = with_overrides(EventSettings(), {"steps": max(steps, 1), **changes})
        with tempfile.TemporaryDirectory() as folder:
            run = {"settings": settings, "subjects": self.points.subject[self.train], "console": False}
            pretrain(self.events, folder, **run)
            found = load_folder(folder)
        if not steps:
            found = EventFolder(
                model=new_model(settings, len(found.vocabulary)).eval(), vocabulary=found.vocabulary, settings=settings
            )
        return EventModel(folder=found, device=torch.device("cpu"), precision="fp32")

    def states(self, model: Any) -> np.ndarray:
        """Pooled states of all points."""
        return model.states(model.histories(self.events), self.points)

    def tuned(self, model: Any, few: np.ndarray, seed: int) -> np.ndarray:
        """What a copy of the encoder, fine-tuned on the labels of `few`, says of the test patients."""
        from unmask.modalities.events.outcome.targets import Binary
        from unmask.modalities.events.recipes import OutcomeSettings

        target = Binary()
        tuner = model.tuner(model.histories(self.events), self.points, target, OutcomeSettings(seed=seed))
        return tuner.predict(tuner.fit(model.folder.model, few, target.encode(self.points)[few]), self.test)

    def ours(
        self, features: np.ndarray, few: np.ndarray, seed: int, trees: int | None = None, others: Any = ()
    ) -> np.ndarray:
        from unmask.modalities.events.outcome.outcome import fit_head
        from unmask.modalities.events.outcome.targets import Binary
        from unmask.modalities.events.recipes import OutcomeSettings

        target = Binary()
        y = target.encode(self.points)
        settings = OutcomeSettings(members=self.a.members, seed=seed, trees=self.a.trees if trees is None else trees)
        head = fit_head(features[few], y[few], self.points.subject[few], settings, target)
        return head.predict(features[self.test], target, others)[:, 0]

    def baselines(self, few: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """The report's baselines, and the trees of our head on the usual summaries alone."""
        from sklearn.ensemble import ExtraTreesClassifier
        from sklearn.impute import SimpleImputer
        from sklearn.pipeline import make_pipeline

        from unmask.modalities.events.outcome.candidates import class_models

        y, x, test = self.points.value[few], self.plain[few], self.plain[self.test]
        found = {n: p[:, 1] for n, p in class_models(x, y, test, last=self.last, seed=seed).items()}
        trees = ExtraTreesClassifier(self.a.trees, min_samples_leaf=3, max_features=0.1, random_state=seed)
        model = make_pipeline(SimpleImputer(strategy="median", keep_empty_features=True), trees)
        return {**found, "extra trees": model.fit(x, y).predict_proba(test)[:, 1]}

    def labelled(self, share: float, seed: int, number: int) -> np.ndarray:
        rng = np.random.default_rng([seed, number])
        return np.sort(rng.permutation(self.train)[: round(share * len(self.train))])


def main() -> None:
    a = arguments()
    data = SHARED / "data/events/physionet2012_a"
    if not data.exists():
        print(f"{data} is not there: nothing to measure")
        return
    from unmask.modalities.events.records.labels import read_labels
    from unmask.modalities.events.records.meds import read_meds
    from unmask.training.settings import parse_set

    events = read_meds(data)
    points = read_labels(data / "tasks/in_hospital_death", events)
    y, found = points.value, []
    assert y is not None
    folds = list(StratifiedKFold(5, shuffle=True, random_state=0).split(y, y))
    for number in map(int, a.folds.split(",")):
        train, test = folds[number]
        start = time.perf_counter()
        fold = Fold(events, points, train, test, a)
        inputs, encoders = {"ours, summaries alone": fold.x}, {}
        if a.ablate:
            for name, changes in ABLATIONS.items():
                inputs[name] = fold.states(fold.encoder(a.steps, parse_set(a.set) | changes))
                print(f"fold {number}: {name}, {time.perf_counter() - start:.0f} s", flush=True)
        elif a.steps:
            for name, steps in (("ours, pretrained", a.steps), ("ours, from scratch", 0)):
                encoders[name] = fold.encoder(steps, parse_set(a.set))
                states = fold.states(encoders[name])
                inputs[name] = np.concatenate([fold.x, states], 1)
                if steps:
                    inputs["ours, pretrained states alone"] = states
        print(f"fold {number}: features after {time.perf_counter() - start:.0f} s", flush=True)
        for share in (float(s) for s in a.shares.split(",")):
            for seed in range(1 if share == 1 else a.seeds):
                few = fold.labelled(share, seed, number)
                predicted = {} if a.ablate else fold.baselines(few, seed)
                for name, features in inputs.items():
                    predicted[name] = fold.ours(features, few, seed)
                if "ours, pretrained" in inputs:
                    predicted["  its networks alone"] = fold.ours(inputs["ours, pretrained"], few, seed, trees=0)
                for name, model in encoders.items() if a.tune else ():
                    alone = fold.tuned(model, few, seed)
                    predicted[f"{name}, tuned"] = fold.ours(inputs[name], few, seed, others=[alone])
                    predicted[f"{name}, tuned encoder alone"] = alone[:, 0]
                for name, p in predicted.items():
                    row = {"fold": number, "share": share, "seed": seed, "model": name}
                    row["auroc"] = float(roc_auc_score(y[test], p))
                    row["auprc"] = float(average_precision_score(y[test], p))
                    found.append(row)
        print(f"fold {number}: done after {time.perf_counter() - start:.0f} s", flush=True)
        table(found)
        if a.out:
            Path(a.out).write_text(json.dumps({"arguments": vars(a), "results": found}, indent=1))


def table(found: list[dict]) -> None:
    for share, name in dict.fromkeys((r["share"], r["model"]) for r in found):
        mine = [r for r in found if (r["share"], r["model"]) == (share, name)]
        folds = {r["fold"] for r in mine}
        auroc, auprc = (
            np.array([np.mean([r[k] for r in mine if r["fold"] == f]) for f in folds]) for k in ("auroc", "auprc")
        )
        print(
            f"labels {share:4.0%}  {name:30} AUROC {auroc.mean():.3f} (sd over folds {auroc.std():.3f})  AUPRC "
            f"{auprc.mean():.3f} (sd {auprc.std():.3f})  folds {len(folds)}, runs {len(mine)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
