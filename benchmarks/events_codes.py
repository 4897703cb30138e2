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

from unmask.modalities.events.records.meds import STATIC

SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[2] / "shared"))
RANKS = (1, 5, 10)
LATEST = 60
"""Test histories are cut to what the shortest recipe can hold: BEHRT has 128 slots, and a separator a visit."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--steps", type=int, help="instead of minutes")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--no-rules", action="store_true", help="the model alone")
    parser.add_argument("--recipes", default="ours,behrt,medbert,cehrbert,corebehrt")
    parser.add_argument("--small", action="store_true", help="every recipe 64 wide with 2 layers")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--set", action="append", default=[], help="key=value, of ours")
    parser.add_argument("--validation", action="store_true", help="ask other patients than the test ones: to choose by")
    parser.add_argument("--next-visit", action="store_true", help="conditions of the next visit too")
    parser.add_argument("--alone", action="store_true", help="each asked code is hidden by itself, all others shown")
    parser.add_argument("--out")
    a = parser.parse_args()
    if a.quick:
        a.minutes, a.seeds, a.recipes = 0.1, 1, "ours,behrt"
    data = SHARED / "data/events/synthea_r4"
    if not data.exists():
        print(f"{data} is not there: nothing to measure")
        return
    from events_rivals import shuffled
    from unmask.core.hashing import uniform
    from unmask.modalities.events.records.meds import read_meds

    events = read_meds(data)
    test = np.flatnonzero(uniform(0, events.subjects, 63) < 0.2)
    if a.validation:
        drawn = uniform(0, events.subjects, 63)
        chosen, left = np.flatnonzero((drawn >= 0.2) & (drawn < 0.4)), np.flatnonzero(drawn >= 0.4)
    train = left if a.validation else np.setdiff1d(np.arange(len(events)), test)
    test = chosen if a.validation else test
    a.rules = not a.no_rules
    found: list[dict[str, Any]] = []
    for seed in range(a.seeds):
        for recipe in a.recipes.split(","):
            found += trained(shuffled(events, 100 + seed), recipe, train, test, a, seed)
        table(found)
        if a.out:
            Path(a.out).write_text(json.dumps({"arguments": vars(a), "results": found}, indent=1))


def trained(
    events: Any, recipe: str, train: np.ndarray, test: np.ndarray, a: argparse.Namespace, seed: int
) -> list[dict[str, Any]]:
    import torch

    from unmask.modalities.events.recipes import RECIPES, EventSettings, with_overrides
    from unmask.modalities.events.uses.folder import load_folder
    from unmask.modalities.events.uses.model import EventModel
    from unmask.modalities.events.uses.pretrain import pretrain

    more: dict[str, Any] = {"steps": a.steps} if a.steps else {"minutes": a.minutes}
    more |= {"seed": seed, "precision": "fp32"}
    if a.small:
        more |= {"width": 64, "layers": 2, "heads": 4, "inner": 128}
    if recipe == "ours":
        more |= dict(pair.split("=", 1) for pair in a.set)
    settings = with_overrides(with_overrides(EventSettings(), RECIPES[recipe]), parsed(more))
    with tempfile.TemporaryDirectory() as folder:
        run = pretrain(events, folder, settings=settings, subjects=train, console=False)
        found = load_folder(folder)
        out = [{"recipe": recipe, "seed": seed, "steps": run.result.steps, **masked(events, found, train, test, a)}]
        a.rules = False
        if recipe == "ours" and a.next_visit:
            model = EventModel(folder=found, device=torch.device("cpu"), precision="fp32")
            out += next_visit(events, model, train, test, seed)
    return out


def parsed(more: dict[str, Any]) -> dict[str, Any]:
    """Text as numbers where it is one."""

    def read(value: Any) -> Any:
        try:
            return json.loads(value) if isinstance(value, str) else value
        except ValueError:
            return value

    return {key: read(value) for key, value in more.items()}


def questions_of(events: Any, folder: Any, asked: np.ndarray, mixed: Any) -> list[dict[str, Any]]:
    """Hidden events of the asked patients, and what stands around them; `mixed` are the events with shuffled ties."""
    from unmask.core.hashing import uniform
    from unmask.modalities.events.recipes import structure_of
    from unmask.modalities.events.records.histories import Histories
    from unmask.modalities.events.records.vocabulary import FIRST

    settings = folder.settings
    histories = Histories(mixed, folder.vocabulary, structure_of(settings).marks)
    # Which events are asked for is chosen in the canonical order: the same ones for every recipe and every shuffle.
    plain = Histories(events, folder.vocabulary)
    out = []
    for i in asked.tolist():
        example = histories.example(i, slots=settings.slots)
        rows = plain.rows(i)
        rows = rows[(plain.code[rows] >= FIRST) & (events.time[rows] != STATIC)][-LATEST:]
        gone = uniform(5, np.full(len(rows), i), np.arange(len(rows))[::-1]) < 0.15
        wanted = list(zip(events.time[rows[gone]], plain.code[rows[gone]], plain.score[rows[gone]], strict=True))
        cut, codes, _ = histories.cut(i, slots=settings.slots)
        slots, free = [], np.ones(len(cut), bool)
        for when, code, score in wanted:
            same = (mixed.time[cut] == when) & (codes == code) & free
            exact = np.flatnonzero(
                same & (np.nan_to_num(histories.score[cut], nan=-99) == np.nan_to_num(score, nan=-99))
            )
            if len(exact):
                free[exact[0]] = False
                slots.append(int(exact[0]))
        if slots:
            out.append(
                {
                    "example": example,
                    "hidden": np.array(slots) + 1,
                    "code": codes,
                    "time": mixed.time[cut],
                    "subject": i,
                }
            )
    return out


def masked(events: Any, folder: Any, train: np.ndarray, test: np.ndarray, a: argparse.Namespace) -> dict[str, Any]:
    """Accuracy at 1, 5 and 10 of the model and of simple rules, on the same hidden codes; ties are shuffled."""
    from events_rivals import KNOBS, Rules, shuffled
    from unmask.core.fill import Question, answers
    from unmask.core.hashing import uniform
    from unmask.modalities.events.records.histories import Histories
    from unmask.modalities.events.records.vocabulary import FIRST

    mixed = shuffled(events, 1)
    questions = questions_of(events, folder, test, mixed)
    # Codes hidden in one set cannot be told apart by anything that does not read the order of rows.
    best = sum(len(np.unique(q["time"][q["hidden"] - 1])) for q in questions) / sum(len(q["hidden"]) for q in questions)
    print(f"hidden together, at most {best:.3f} can be right at 1" if not a.alone else "each hidden alone", flush=True)
    questions = one_by_one(questions) if a.alone else questions
    asked = [Question(example=q["example"], hidden=q["hidden"]) for q in questions]
    ranks: dict[str, list[int]] = {}
    subject = np.repeat(np.arange(len(events)), np.diff(events.offsets))
    rows = Histories(mixed, folder.vocabulary)
    rules = {}
    inner = train[uniform(0, events.subjects[train], 64) < 0.75]
    if a.rules:
        size = len(folder.vocabulary) - FIRST
        rules = {
            n: Rules(rows.code[:] - FIRST, mixed.time, subject, who, size)
            for n, who in (("all", train), ("inner", inner))
        }
        looked = questions_of(events, folder, np.setdiff1d(train, inner), mixed)
        looked = one_by_one(looked) if a.alone else looked
        knobs = tuned(rules["inner"], [s for q in looked for s in around(q, rows, mixed)], KNOBS)
        print(f"naive Bayes as chosen on left-out training patients: {knobs}", flush=True)
    for numbers, prediction, places in answers(folder.model, asked, slots=folder.settings.slots):
        for n, at in zip(numbers, places, strict=True):
            scores = prediction.logits[at][:, FIRST:].cpu().numpy()
            true = questions[n]["code"][questions[n]["hidden"] - 1] - FIRST
            for row, code in zip(scores, true.tolist(), strict=True):
                ranks.setdefault("model", []).append(rank_of(row, code))
    for q in questions if a.rules else ():
        for code, *given in around(q, rows, mixed):
            for name, score in rules["all"].scores(*given, knobs).items():
                ranks.setdefault(name, []).append(rank_of(score, code))
    return {n: {f"at_{k}": float((np.array(r) < k).mean()) for k in RANKS} | {"n": len(r)} for n, r in ranks.items()}


def one_by_one(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each hidden event as a question of its own."""
    return [q | {"hidden": q["hidden"][k : k + 1]} for q in questions for k in range(len(q["hidden"]))]


def rank_of(score: np.ndarray, code: int) -> int:
    """How many codes are scored above the true one; ties count half, so that a rule that knows nothing
    gains nothing."""
    return int((score > score[code]).sum() + (score == score[code]).sum() // 2)


def around(q: dict[str, Any], rows: Any, mixed: Any) -> list[tuple]:
    """Of each hidden event: its code, the codes of the rest of its set, of earlier sets, of the visible record, and of
    the rows above and below."""
    from unmask.modalities.events.records.vocabulary import FIRST

    code, time, hidden = q["code"] - FIRST, q["time"], np.zeros(len(q["code"]), bool)
    hidden[q["hidden"] - 1] = True
    seen = ~hidden & (code >= 0)
    out = []
    here = np.arange(mixed.offsets[q["subject"]], mixed.offsets[q["subject"] + 1])
    here = here[rows.code[here] >= 0]
    for slot in np.flatnonzero(hidden):
        row = np.flatnonzero((mixed.time[here] == time[slot]) & (rows.code[here] - FIRST == code[slot]))[0]
        beside = tuple(int(rows.code[here[r]] - FIRST) if 0 <= r < len(here) else -1 for r in (row - 1, row + 1))
        same = time == time[slot]
        out.append((int(code[slot]), code[seen & same], code[seen & (time < time[slot])], code[seen], beside))
    return out


def tuned(rules: Any, looked: list[tuple], grid: list[dict[str, Any]]) -> dict[str, Any]:
    """Whether absent codes count, and how much the evidence: chosen on training patients that the counts left out."""
    knobs = {"set": grid[0], "before": grid[0]}
    for part, name in (("set", "naive Bayes, set"), ("before", "naive Bayes, set and before")):
        found = []
        for option in grid:
            tried = knobs | {part: option}
            found.append(np.mean([rank_of(rules.scores(*given, tried)[name], code) < 1 for code, *given in looked]))
        knobs[part] = grid[int(np.argmax(found))]
    return knobs


def next_visit(events: Any, model: Any, train: np.ndarray, test: np.ndarray, seed: int) -> list[dict[str, Any]]:
    from unmask.modalities.events.outcome.outcome import fit_head
    from unmask.modalities.events.outcome.targets import MultiLabel
    from unmask.modalities.events.recipes import OutcomeSettings
    from unmask.modalities.events.uses.next_visit import baselines, figures, next_visits

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
        for name in (n for n in mine[0] if isinstance(mine[0][n], dict)):
            shown = [np.array([r[name][f"at_{k}"] for r in mine if name in r]) for k in RANKS]
            figures = "  ".join(f"@{k} {v.mean():.3f} (sd {v.std():.3f})" for k, v in zip(RANKS, shown, strict=True))
            print(
                f"{recipe:10} {name:28} {figures}  n={mine[0][name]['n']}, {len(shown[0])} seeds, {mine[0]['steps']} "
                "steps"
            )
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
