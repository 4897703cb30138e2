"""Synthea: masked codes against frequency and co-occurrence, the recipes at equal time, and the next visit.

Test patients are held out by a hash of their id; every recipe is trained for the same number of minutes on the same
core, and asked for the same hidden codes: single events, 15 %, of the same test histories (their latest ones).

    python benchmarks/events_codes.py [--minutes 2] [--seeds 5] [--recipes ours,behrt,...] [--quick] [--out F.json]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[2] / "shared"))
RANKS = (1, 5, 10)
LATEST = 60
"""Test histories are cut to what the shortest recipe can hold: BEHRT has 128 slots, and a separator a visit."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--recipes", default="ours,behrt,medbert,cehrbert,corebehrt")
    parser.add_argument("--small", action="store_true", help="every recipe 64 wide with 2 layers")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out")
    a = parser.parse_args()
    if a.quick:
        a.minutes, a.seeds, a.recipes = 0.1, 1, "ours,behrt"
    data = SHARED / "data/events/synthea_r4"
    if not data.exists():
        print(f"{data} is not there: nothing to measure")
        return
    from unmask.core.corruption import uniform
    from unmask.events.meds import read_meds

    events = read_meds(data)
    test = np.flatnonzero(uniform(0, events.subjects, 63) < 0.2)
    train = np.setdiff1d(np.arange(len(events)), test)
    found: list[dict[str, Any]] = []
    for seed in range(a.seeds):
        for recipe in a.recipes.split(","):
            found += trained(events, recipe, train, test, a, seed)
        table(found)
        if a.out:
            Path(a.out).write_text(json.dumps({"arguments": vars(a), "results": found}, indent=1))


def trained(
    events: Any, recipe: str, train: np.ndarray, test: np.ndarray, a: argparse.Namespace, seed: int
) -> list[dict[str, Any]]:  # fmt: skip
    import torch

    from unmask.events.folder import load_folder
    from unmask.events.model import EventModel
    from unmask.events.pretrain import pretrain
    from unmask.events.recipes import RECIPES, EventSettings, with_overrides

    more: dict[str, Any] = {"minutes": a.minutes, "seed": seed}
    if a.small:
        more |= {"width": 64, "layers": 2, "heads": 4, "inner": 128}
    settings = with_overrides(with_overrides(EventSettings(), RECIPES[recipe]), more)
    with tempfile.TemporaryDirectory() as folder:
        run = pretrain(events, folder, settings=settings, subjects=train, console=False)
        found = load_folder(folder)
        out = [{"recipe": recipe, "seed": seed, "steps": run.result.steps, **masked(events, found, train, test)}]
        if recipe == "ours":
            model = EventModel(folder=found, device=torch.device("cpu"), precision="fp32")
            out += next_visit(events, model, train, test, seed)
    return out


def masked(events: Any, folder: Any, train: np.ndarray, test: np.ndarray) -> dict[str, Any]:
    """Accuracy at 1, 5 and 10 of the model, of frequency and of co-occurrence, on the same hidden codes."""
    from unmask.core.corruption import uniform
    from unmask.events.fill import Question, answers
    from unmask.events.histories import Histories
    from unmask.events.recipes import STRUCTURES
    from unmask.events.vocabulary import FIRST

    histories = Histories(events, folder.vocabulary, STRUCTURES[folder.settings.structure].marks)
    share, together = counted(histories, train)
    questions, truth, visible = [], [], []
    for i in test:
        example = histories.example(int(i), slots=folder.settings.slots)
        slots = np.flatnonzero(~np.asarray(example.special))[-LATEST:]
        slots = slots[np.asarray(example.values["code"])[slots] >= FIRST]
        # Counted from the end, so that marks between visits change nothing of the choice.
        hidden = slots[uniform(5, np.full(len(slots), int(i)), np.arange(len(slots))[::-1]) < 0.15]
        if len(hidden):
            code = np.asarray(example.values["code"])
            questions.append(Question(example=example, hidden=hidden))
            truth.append(code[hidden] - FIRST)
            visible.append(np.setdiff1d(slots, hidden))
    ranks: dict[str, list[int]] = {"model": [], "frequency": [], "co-occurrence": []}
    for n, prediction, places in answers(folder, questions):
        scores = prediction.logits[places][:, FIRST:].cpu().numpy()
        seen = np.unique(np.asarray(questions[n].example.values["code"])[visible[n]] - FIRST)
        near = np.log(together[seen]).mean(0) if len(seen) else np.log(share)
        for row, code in zip(scores, truth[n].tolist(), strict=True):
            for name, score in (("model", row), ("frequency", share), ("co-occurrence", near)):
                ranks[name].append(int((score > score[code]).sum()))
    return {n: {f"at_{k}": float((np.array(r) < k).mean()) for k in RANKS} | {"n": len(r)} for n, r in ranks.items()}


def counted(histories: Any, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How frequent each code is, and P(code | a code of the same patient), from the training patients."""
    from unmask.events.vocabulary import FIRST

    size = len(histories.vocabulary) - FIRST
    counts, together = np.zeros(size), np.zeros((size, size))
    for i in train:
        code = histories.code[histories.rows(int(i))] - FIRST
        mine = np.bincount(code[code >= 0], minlength=size)
        counts += mine
        together[mine > 0] += mine
    share = (counts + 0.5) / (counts + 0.5).sum()
    together = together + 5 * share
    return share, together / together.sum(1, keepdims=True)


def next_visit(
    events: Any, model: Any, train: np.ndarray, test: np.ndarray, seed: int
) -> list[dict[str, Any]]:  # fmt: skip
    from unmask.events.next_visit import baselines, figures, next_visits
    from unmask.events.outcome import fit_head
    from unmask.events.recipes import OutcomeSettings
    from unmask.events.targets import MultiLabel

    histories = model.histories(events)
    visits = next_visits(histories, ("CONDITION",))
    held = np.isin(visits.points.subject, test)
    target, settings = MultiLabel(names=tuple(visits.names)), OutcomeSettings(seed=seed)
    predicted = baselines(visits, ~held, held)
    for name, states in (("ours", True), ("ours, summaries alone", False)):
        x = model.features(histories, visits.points, states=states, summaries=True)[:]
        head = fit_head(x[~held], visits.came[~held], visits.points.subject[~held], settings, target)
        predicted[name] = head.predict(x[held], target)
    return [
        {"next_visit": n, "seed": seed, **figures(visits.came[held], visits.before[held], p)}
        for n, p in predicted.items()
    ]


def table(found: list[dict[str, Any]]) -> None:
    for recipe in dict.fromkeys(r["recipe"] for r in found if "recipe" in r):
        mine = [r for r in found if r.get("recipe") == recipe]
        for name in ("model", "co-occurrence", "frequency"):
            shown = "  ".join(
                f"@{k} {np.mean([r[name][f'at_{k}'] for r in mine]):.3f} (sd {np.std([r[name][f'at_{k}'] for r in mine]):.3f})"
                for k in RANKS
            )
            print(f"{recipe:10} {name:14} {shown}  n={mine[0][name]['n']}, {len(mine)} seeds, {mine[0]['steps']} steps")
    for name in dict.fromkeys(r["next_visit"] for r in found if "next_visit" in r):
        mine = [r for r in found if r.get("next_visit") == name]
        for part in ("all", "onsets", "repeats"):
            auroc, recall = (np.mean([r[part].get(k, np.nan) for r in mine]) for k in ("auroc", "recall_at_10"))
            print(
                f"next visit {name:24} {part:8} AUROC {auroc:.3f}  recall@10 {recall:.3f}  {len(mine)} seeds",
                flush=True,
            )


if __name__ == "__main__":
    main()
