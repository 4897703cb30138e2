"""In-hospital death at 48 h (PhysioNet-2012 set-a): ours, pretrained or from scratch, beside baselines in the same call.

Patient-wise folds, stratified by outcome. Vocabulary, value scales, masked pretraining, heads and baselines see the
training patients of a fold alone; at 10 % of the labels pretraining still sees all training patients, without labels.

    python benchmarks/events_outcome.py [--folds 5] [--steps 200] [--seeds 5] [--shares 1.0,0.1] [--set key=value] [--out F.json]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[2] / "shared"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=5, help="how many of the 5 folds to run")
    parser.add_argument("--steps", type=int, default=200, help="pretraining steps a fold; 0 leaves it out")
    parser.add_argument("--seeds", type=int, default=5, help="label subsets at shares below 1")
    parser.add_argument("--shares", default="1.0,0.1")
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out")
    a = parser.parse_args()
    data = SHARED / "data/events/physionet2012_a"
    if not data.exists():
        print(f"{data} is not there: nothing to measure")
        return
    from unmask.events.histories import Histories
    from unmask.events.meds import read_labels, read_meds
    from unmask.events.model import EventModel
    from unmask.events.outcome import baselines, fit_head
    from unmask.events.pretrain import pretrain
    from unmask.events.recipes import EventSettings, OutcomeSettings, with_overrides
    from unmask.events.summaries import summarise, usual
    from unmask.training.settings import parse_set

    events = read_meds(data)
    points = read_labels(data / "tasks/in_hospital_death", events)
    assert points.value is not None
    y, found = points.value, []
    splits = list(StratifiedKFold(5, shuffle=True, random_state=0).split(y, y))
    for fold, (train, test) in enumerate(splits[: a.folds]):
        import torch

        from unmask.events.folder import load_folder

        start = time.perf_counter()
        steps = max(a.steps, 1)
        settings = with_overrides(EventSettings(), {"steps": steps, "precision": "fp32", **parse_set(a.set)})
        with tempfile.TemporaryDirectory() as folder:
            pretrain(events, folder, settings=settings, subjects=points.subject[train], console=False)
            model = EventModel(folder=load_folder(folder), device=torch.device("cpu"), precision="fp32")
        spent = time.perf_counter() - start
        histories = Histories(events, model.folder.vocabulary)
        x, names = summarise(histories, points)
        plain = x[:, usual(names)]
        inputs = {"summaries alone": x}
        if a.steps:
            inputs["pretrained"] = np.concatenate([x, model.states(histories, points)], 1)
        print(f"fold {fold}: pretraining {spent:.0f} s, {time.perf_counter() - start:.0f} s in all", flush=True)
        for share in (float(s) for s in a.shares.split(",")):
            for seed in range(1 if share == 1 else a.seeds):
                rng = np.random.default_rng([seed, fold])
                few = np.sort(rng.permutation(train)[: round(share * len(train))])
                predicted = baselines(plain[few], y[few], plain[test], seed=seed)
                for name, features in inputs.items():
                    head = fit_head(
                        features[few], y[few], points.subject[few], OutcomeSettings(members=a.members, seed=seed)
                    )
                    predicted[name] = head.predict(features[test])
                for name, p in predicted.items():
                    row = {"fold": fold, "share": share, "seed": seed, "model": name}
                    row |= {
                        "auroc": float(roc_auc_score(y[test], p)),
                        "auprc": float(average_precision_score(y[test], p)),
                    }
                    found.append(row)
        table(found)
        if a.out:
            Path(a.out).write_text(json.dumps({"arguments": vars(a), "results": found}, indent=1))


def table(found: list[dict]) -> None:
    for share, name in dict.fromkeys((r["share"], r["model"]) for r in found):
        mine = [r for r in found if (r["share"], r["model"]) == (share, name)]
        auroc, auprc = (np.array([r[k] for r in mine]) for k in ("auroc", "auprc"))
        print(
            f"labels {share:4.0%}  {name:20} AUROC {auroc.mean():.3f} (sd {auroc.std():.3f})  AUPRC {auprc.mean():.3f} "
            f"(sd {auprc.std():.3f})  n={len(mine)}", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
