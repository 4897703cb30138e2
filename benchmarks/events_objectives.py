"""What else makes states and answers worth having: other objectives and settings, each for the same processor time.

Fold 0 of in-hospital death (PhysioNet-2012): a model of the training patients, pretrained for so many seconds of one
processor (the clock of the run is `time.process_time`, so that other work on the machine changes little), then heads on
three subsets of 10 % of the labels, judged on the test patients and 900 training patients without labels. Beside it the
loss and AUROC of questions drawn of test patients at horizons of 6 and 24 hours, the same ones for all.

    python benchmarks/events_objectives.py [plain] [next] [tokens] [key=value ...] [--seconds 60] [--out F.json]

next: in half of the histories all events from a drawn time stamp on are hidden. tokens: values stand as ten codes of
each code, its tenths. key=value: a setting of the pretraining.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[2] / "shared"))
LABELS, SUBSETS, BESIDE = 320, 3, 900
ASKED = 32
"""Questions per test patient."""
HOURS = (6.0, 24.0)


class Next:
    """Half of the histories lose all that comes from a drawn time stamp on, the others single events or visits."""

    def __init__(self, ratio: Any) -> None:
        from unmask.core.corruption import Mixture, Uniform, Units

        self.others = Mixture(first=Units(ratio=ratio), second=Uniform(ratio=ratio), share=0.25)

    def future(self, slots: Any, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        from unmask.core.hashing import uniform

        most = np.zeros(int(slots.example.max(initial=-1)) + 1, np.int64)
        np.maximum.at(most, slots.example, slots.unit)
        last = most[slots.example]
        cut = np.floor(1 + (0.4 + 0.6 * uniform(*key, slots.identity, 991)) * last)
        return slots.unit >= np.minimum(cut, last)

    def __call__(self, slots: Any, *, key: tuple[int, int], progress: float = 0.0) -> np.ndarray:
        from unmask.core.corruption import Mixture

        return Mixture(first=self.future, second=self.others)(slots, key=key, progress=progress)


def as_tokens(events: Any, learnt_from: np.ndarray) -> Any:
    """The events with values as codes: tenths by the training patients."""
    of_training = np.isin(np.repeat(np.arange(len(events)), np.diff(events.offsets)), learnt_from)
    codes, code, value = list(events.codes), np.array(events.code), np.array(events.value)
    for number, name in enumerate(events.codes):
        here = (code == number) & np.isfinite(value)
        if here.sum() < 500:
            continue
        edges = np.unique(np.nanquantile(value[here & of_training], np.linspace(0, 1, 11)[1:-1]))
        code[here] = len(codes) + np.searchsorted(edges, value[here], side="right")
        codes += [f"{name}//Q{i}" for i in range(len(edges) + 1)]
        value[here] = np.nan
    return dataclasses.replace(events, codes=codes, code=code.astype(np.int32), value=value.astype(np.float32))


def drawn_questions(model: Any, histories: Any, learnt_from: np.ndarray, test: np.ndarray) -> dict[str, float]:
    """Mean loss, and AUROC, of questions drawn of test patients."""
    import torch

    from unmask.core.inference import inference_mode
    from unmask.modalities.events.questions.queries import QueryDraws, ends, query_batch

    net, slots = model.folder.model, model.folder.settings.slots
    head = net.queries
    draws = QueryDraws(histories, ends(histories.events, learnt_from), head.share.numpy())
    nats, p, y, weights = [], [], [], []
    with inference_mode(net):
        for subject in test.tolist():
            came = draws.draw(subject, ASKED, seed=0, epoch=-77)
            if came is None:
                continue
            beside = query_batch(histories, [[subject]], [[came]], slots=slots, number=1)
            asked = {name[6:]: value for name, value in beside.items() if name.startswith("asked.")}
            values = {n[8:]: v for n, v in beside.items() if n.startswith("history.") and not n.startswith("history..")}
            rates = net.rates(values, beside["history..segment"], beside["history..position"], asked)
            real = asked["segment"] != 0
            first, end, weight = asked["first"][real], asked["end"][real], asked["weight"][real].float()
            nats.append([float((head.loss(rates[real], first, end) * weight).sum()), float(weight.sum())])
            for hours in HOURS:
                seen = end >= hours
                beyond = head.share_of(*(asked[name][real] for name in ("code", "side", "share")))
                p.append(head.probability(rates[real], torch.full(first.shape, hours), beyond)[seen].numpy())
                y.append((first <= hours)[seen].numpy())
                weights.append(weight[seen].numpy())
    total, of = np.sum(nats, 0)
    p, y, weights = (np.concatenate(part) for part in (p, y, weights))
    return {"question_nats": float(total / of), "question_auroc": float(roc_auc_score(y, p, sample_weight=weights))}


def measured(changes: list[str], seconds: float) -> dict[str, Any]:
    """A pretraining with these changes, and what its states and answers are worth."""
    from sklearn.model_selection import StratifiedKFold

    from unmask.modalities.events.outcome.targets import Binary
    from unmask.modalities.events.recipes import ASK, EventSettings, with_overrides
    from unmask.modalities.events.records.labels import read_labels
    from unmask.modalities.events.records.meds import read_meds
    from unmask.modalities.events.uses import query_answers
    from unmask.modalities.events.uses.model import load
    from unmask.modalities.events.uses.pretrain import pretrain
    from unmask.training.schedule import RunClock
    from unmask.training.settings import parse_set

    data = SHARED / "data/events/physionet2012_a"
    events = read_meds(data)
    points = read_labels(data / "tasks/in_hospital_death", events)
    y = Binary().encode(points)
    train, test = next(StratifiedKFold(5, shuffle=True, random_state=0).split(y, y[:, 0]))
    learnt_from, sets = points.subject[train], [c for c in changes if "=" in c]
    if "tokens" in changes:
        events, query_answers.CODES = as_tokens(events, learnt_from), 400
    sets += ["select=events_objectives:Next"] if "next" in changes else []
    settings = with_overrides(
        EventSettings(), {**ASK, "minutes": seconds / 60, "seed": 0, "precision": "fp32", **parse_set(sets)}
    )
    RunClock.elapsed = lambda self: time.process_time() - vars(self).setdefault("begun", time.process_time())  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as out:
        result = pretrain(events, out, settings=settings, subjects=learnt_from, console=False).result
        model = load(out, precision="fp32")
    histories = model.histories(events)
    found = {"changes": changes, "steps": result.steps}
    found |= drawn_questions(model, histories, learnt_from, points.subject[test])
    few = [np.sort(np.random.default_rng([k, 0]).permutation(train)[:LABELS]) for k in range(SUBSETS)]
    left = np.setdiff1d(train, np.concatenate(few))
    judged = np.concatenate([np.sort(np.random.default_rng(5).permutation(left)[:BESIDE]), test])
    return found | {"auroc": heads(model, histories, points, y, few, judged)}


def heads(model: Any, histories: Any, points: Any, y: np.ndarray, few: list[np.ndarray], judged: np.ndarray) -> Any:
    """AUROC by subset of heads that read the parts."""
    from unmask.modalities.events.outcome.outcome import fit_head
    from unmask.modalities.events.outcome.targets import Binary
    from unmask.modalities.events.recipes import OutcomeSettings

    needed = np.unique(np.concatenate([*few, judged]))
    some, parts = points.take(needed), ("summaries", "states", "answers")
    x = {p: model.features(histories, some, **{name: name == p for name in parts})[:] for p in parts}
    read = {p: x[p] for p in parts} | {f"summaries, {p}": np.concatenate([x["summaries"], x[p]], 1) for p in parts[1:]}
    out: dict[str, list[float]] = {}
    for seed, labelled in enumerate(few):
        here = np.searchsorted(needed, labelled)
        for name, features in read.items():
            settings = OutcomeSettings(members=10, trees=500, seed=seed)
            head = fit_head(features[here], y[labelled], points.subject[labelled], settings, Binary())
            p = head.predict(features[np.searchsorted(needed, judged)], Binary())[:, 0]
            out.setdefault(name, []).append(float(roc_auc_score(y[judged, 0], p)))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("changes", nargs="*", help="plain, next, tokens, key=value")
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time in the training loop")
    parser.add_argument("--out", help="JSON; runs of earlier calls stay in it")
    a = parser.parse_args()
    if not (SHARED / "data/events/physionet2012_a").exists():
        print(f"{SHARED / 'data/events'} is not there: nothing to measure")
        return
    found = measured(a.changes or ["plain"], a.seconds) | {"seconds": a.seconds}
    print(json.dumps(found, indent=1))
    if a.out:
        earlier = json.loads(Path(a.out).read_text()) if Path(a.out).exists() else {}
        Path(a.out).write_text(json.dumps(earlier | {f"{' '.join(found['changes'])}, {a.seconds:g}": found}, indent=1))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
