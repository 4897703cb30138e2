"""`unmask finetune next-visit`: which diagnoses stand in a patient's next visit, new onsets apart from repeats.

A visit is an encounter where the data names them, else events close in time (`visits`); what is known is what stood in
the record before its first event. Chronic codes repeat at every visit, so a model that copies the past scores well on
all codes together: every figure is given three times, for all codes, for those the patient had before (repeats), and
for those never seen before (onsets).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError, setting
from unmask.evaluation.charts import number, table
from unmask.evaluation.classes import area
from unmask.evaluation.metrics import share_interval
from unmask.evaluation.report import Report
from unmask.evaluation.resampling import auroc_auprc, bootstrap_weights, fewest_groups
from unmask.modalities.events.outcome.clinical import descriptions, named
from unmask.modalities.events.outcome.targets import MultiLabel
from unmask.modalities.events.recipes import OutcomeSettings, check_outcome_read
from unmask.modalities.events.records.encounters import own_events, visits_of
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import STATIC, Labels
from unmask.modalities.events.records.splits import who_trained
from unmask.modalities.events.records.vocabulary import FIRST
from unmask.modalities.events.uses.finetune import FEWEST, OutcomeRun, begin, finished, held_out, stopped, work_of
from unmask.modalities.events.uses.model import EventModel
from unmask.modalities.events.uses.outcome_report import figure_cell
from unmask.training.finetune_checkpoints import StoppedBySignal
from unmask.training.processes import join_others
from unmask.training.settings import refuse_unread
from unmask.writing import final_place, writes_model

RANKS = (5, 10)
CODES = 15
"""Codes shown one by one."""
PARTS = ("all", "onsets", "repeats")


@dataclass(frozen=True, kw_only=True)
class NextVisits:
    """Points just before the first event of each patient's last visit that has one of the codes `names`; (points,
    codes) whether the visit has each, and whether the patient had it before: then it is a repeat, else an onset; and
    whether the visit is an encounter of the data, else events close in time: `gap` hours without an event begin another
    one."""

    points: Labels
    names: list[str]
    came: np.ndarray
    before: np.ndarray
    encounter: np.ndarray
    gap: float | None

    def words(self) -> str:
        """What a visit is here."""
        named, count = int(self.encounter.sum()), len(self.encounter)
        if named == count:
            return "an encounter of the data"
        gaps = f"events with no more than {self.gap:g} hours between them" if self.gap else "events of one time stamp"
        if not named:
            return f"{gaps} (the data names no encounters there)"
        return f"an encounter of the data ({named:,} of {count:,}), where none is named {gaps}"


def next_visits(histories: Histories, prefixes: tuple[str, ...], gap: float = 24.0) -> NextVisits:
    """The last visit (the one that begins last) with a code of the prefixes, of every patient with events before it;
    `gap`: as `visits_of` has it."""
    vocabulary, events = histories.vocabulary, histories.events
    chosen_codes = [i for i, c in enumerate(vocabulary.codes) if c.startswith(prefixes)]
    if not chosen_codes:
        kinds = sorted({c.split("//")[0] for c in vocabulary.codes})
        raise UserError(
            f"no code begins with {' or '.join(prefixes)}", hint=f"Codes begin with {', '.join(kinds[:20])}."
        )
    column = np.full(len(vocabulary), -1)
    column[np.array(chosen_codes) + FIRST] = np.arange(len(chosen_codes))
    own = own_events(events)
    visits: list[tuple[int, int, bool, np.ndarray, np.ndarray]] = []
    all_encounters = True
    for i in range(len(events)):
        rows = histories.rows(i)
        rows = rows[events.time[rows] != STATIC]
        when, which = events.time[rows], column[histories.code[rows]]
        usable = np.flatnonzero(which >= 0)
        if not len(usable):
            continue
        named = None if events.visit is None else events.visit[rows]
        found = visits_of(when, named, gap, own[events.code[rows]])
        all_encounters &= bool(found.encounter.all())
        usable = usable[when[usable] >= found.begin[found.of[usable]]]  # what is dated before its visit is known before
        if not len(usable):
            continue
        of_codes = found.of[usable]
        last = int(of_codes[np.lexsort((of_codes, found.begin[of_codes]))[-1]])
        begin = int(found.begin[last])
        if when[0] >= begin:
            continue
        both = np.zeros((2, len(chosen_codes)), np.float32)
        for hot, chosen in zip(both, ((found.of == last) & (when >= begin), when < begin), strict=True):
            hot[which[chosen & (which >= 0)]] = 1
        visits.append((i, begin - 1, bool(found.encounter[last]), *both))
    if not visits:
        raise UserError(
            "no patient has a visit before one with such a code", hint="Give patients with two visits or more."
        )
    subject, moment, encounter, came, before = (np.array(column) for column in zip(*visits, strict=True))
    return NextVisits(
        points=Labels(subject=subject.astype(np.int64), time=moment.astype(np.int64)),
        names=[vocabulary.codes[i] for i in chosen_codes],
        came=came,
        before=before,
        encounter=encounter,
        gap=None if all_encounters else gap,
    )


@writes_model
def finetune_next_visit(
    model: str | Path | EventModel,
    data: Any,
    out: str | Path,
    *,
    settings: OutcomeSettings | None = None,
    checkpoints: bool = False,
    resume: bool = False,
) -> OutcomeRun:
    """Fit a head that says which codes come next, and write its report.

    Args:
        checkpoints, resume: as `finetune_outcome` has them.

    Raises:
        UserError: for anything wrong with model or data; `out` holds a model.
    """
    settings = settings or OutcomeSettings()
    started, out = time.perf_counter(), Path(out)
    resume = join_others(out, settings.device, resume=resume)
    loaded, events = begin(model, data, settings)
    check_outcome_read(
        settings, MultiLabel.kind, own_splits=events.held_out is not None, checkpoints=checkpoints or resume
    )
    histories = loaded.histories(events)
    visits = next_visits(histories, tuple(p.strip() for p in settings.codes.split(",")), settings.visit_gap)
    if visits.gap is None:
        refuse_unread(settings, ["visit_gap"], "of data in which all visits are encounters")
    held = held_out(events, visits.points, settings)
    if (~held).sum() < FEWEST:
        raise UserError(
            f"{int((~held).sum())} patients to train on",
            hint=f"Give {FEWEST} or more, or a smaller {setting('holdout')}.",
        )
    target = MultiLabel(names=tuple(visits.names))
    given: dict[str, Any] = {"checkpoints": checkpoints, "resume": resume}
    work = work_of(out, loaded, histories, visits.points, target, visits.came, held, settings, **given)
    try:
        fitted = work.fit(np.flatnonzero(~held))
    except StoppedBySignal as stop:
        return stopped(out, loaded, target, stop)
    predicted = {}
    if held.any():
        predicted = work.predict(fitted, np.flatnonzero(held))
        predicted |= baselines(visits, ~held, held) if settings.baselines else {}
    results = {n: figures(visits.came[held], visits.before[held], p) for n, p in predicted.items()}
    found: dict[str, Any] = {
        "kind": target.kind,
        "codes": len(visits.names),
        "training": int((~held).sum()),
        "held_out": int(held.sum()),
        "visit": visits.words(),
        "encounters": int(visits.encounter.sum()),
        "results": results,
    }
    if held.any():
        found["by_code"] = by_code(visits.names, visits.came[held], visits.before[held], predicted["ours"])
    patients, words = who_trained(events, visits.points, held), descriptions(data)
    return finished(out, work, loaded, fitted, found, started, patients, lambda new: _report(new, found, words))


def baselines(visits: NextVisits, train: np.ndarray, test: np.ndarray) -> dict[str, np.ndarray]:
    """Frequency; what the patient had before; and co-occurrence: the mean of P(code | earlier code) over
    earlier ones."""
    came, before = visits.came[train], visits.before[train]
    share = (came.sum(0) + 0.5) / (len(came) + 1)
    together = (before.T @ came + 2 * share) / (before.sum(0)[:, None] + 2)
    earlier = visits.before[test]
    mean = (earlier @ together + share) / (earlier.sum(1, keepdims=True) + 1)
    return {
        "frequency": np.tile(share, (len(earlier), 1)),
        "seen before": 0.5 * earlier + 0.5 * share,
        "co-occurrence": mean,
    }


def figures(came: np.ndarray, before: np.ndarray, p: np.ndarray, *, draws: int = 200, seed: int = 0) -> dict[str, Any]:
    """AUROC and AUPRC over all (patient, code) pairs, and recall among the k likeliest codes: all, onsets, repeats.

    Under `intervals` each figure's 95 % interval, resampling patients with all of their pairs.
    """
    out: dict[str, Any] = {"n": len(came)}
    times = (
        bootstrap_weights(np.arange(len(came)), draws, seed) if len(came) > 1 else np.zeros((0, len(came)), np.int32)
    )
    for part, counted in zip(PARTS, (np.ones_like(before, bool), before == 0, before == 1), strict=True):
        y, q, who = came[counted], p[counted], np.nonzero(counted)[0]
        found: dict[str, Any] = {"pairs": len(y), "positives": int(y.sum()), "intervals": {}}
        if 0 < y.sum() < len(y):
            drawn = dict(zip(("auroc", "auprc"), auroc_auprc(y, q, times, who), strict=True))
            found |= dict(zip(drawn, auroc_auprc(y, q)[:, 0].tolist(), strict=True))
            among = np.where(counted, p, -1.0)
            order = np.argsort(-among, axis=1, kind="stable")
            each = (came * counted).sum(1)
            for k in RANKS:
                top = np.take_along_axis(came * counted, order[:, :k], 1).sum(1)
                found[f"recall_at_{k}"] = float(top.sum() / y.sum())
                positives = times @ each
                drawn[f"recall_at_{k}"] = (times @ top)[positives > 0] / positives[positives > 0]
            for name, values in drawn.items():
                fewest = fewest_groups(y, who)
                if interval := share_interval(values, found[name], fewest, fewest):
                    found["intervals"][name] = interval
        out[part] = found
    return out


def by_code(names: list[str], came: np.ndarray, before: np.ndarray, p: np.ndarray) -> list[dict[str, Any]]:
    """The `CODES` codes that most held-out patients have in their visit: how many, how many of them as an onset, the
    mean prediction for patients with and without it, and AUROC over patients with its 95 % interval."""
    out = []
    for i in np.argsort(-came.sum(0), kind="stable")[:CODES]:
        y, q = came[:, i], p[:, i]
        row: dict[str, Any] = {
            "code": names[i],
            "patients": int(y.sum()),
            "onsets": int((y * (before[:, i] == 0)).sum()),
        }
        if 0 < y.sum() < len(y):
            row |= {"with": float(q[y == 1].mean()), "without": float(q[y == 0].mean())}
            judged = area(y == 1, q) or {}
            row |= {"auroc": judged["value"], "intervals": {"auroc": judged["interval"]}}
            out.append(row)
    return out


def _report(out: Path, found: dict[str, Any], words: dict[str, str]) -> None:
    page = Report("Diagnoses of the next visit", str(final_place(out)))
    page.facts(
        {
            "Training patients": found["training"],
            "Held-out patients": found["held_out"],
            "Codes": found["codes"],
            "A visit is": found["visit"],
            "Time": f"{found['seconds']:.0f} s",
        }
    )
    page.section(
        "When predictions are asked for",
        "A moment before the first event of the patient's last visit that has one of the codes: "
        "nothing of that visit is known. Probabilities are of a next visit that has such a code, whenever it comes: "
        "they do not say whether or when one comes (`ask` does).",
    )
    note = (
        "Held-out patients; pairs of a patient and a code; 95 % intervals resample patients. Higher is better. Beside "
        "ours: how frequent a code is, what the patient had before, and which codes follow which."
    )
    ranks = [k for k in RANKS if k < found["codes"]]  # among as many as there are all are found
    keys = {"auroc": "AUROC", "auprc": "AUPRC"} | {f"recall_at_{k}": f"found among the {k} likeliest" for k in ranks}
    if ranks:
        note += (
            " Found among the likeliest: the share of what came that stands among so many codes named for each patient."
        )
    for part, heading in zip(PARTS, ("All codes", "New onsets", "Repeats"), strict=True):
        judged = {name: r[part] for name, r in found["results"].items()}
        rows = [[name, *(figure_cell(k, r) for k in keys)] for name, r in judged.items() if "auroc" in r]
        pairs, came = next(((r["pairs"], r["positives"]) for r in judged.values()), (0, 0))
        some = f"{came:,} of {pairs:,} pairs of a held-out patient and a code came true."
        if rows:
            page.section(heading, table(["model", *keys.values()], rows), note=f"{note} {some}")
        else:
            page.section(heading, f"Nothing to judge by: {some}")
    rows = [
        [
            named(r["code"], words),
            r["patients"],
            r["onsets"],
            number(r["with"], percent=True),
            number(r["without"], percent=True),
            figure_cell("auroc", r),
        ]
        for r in found.get("by_code", ())
    ]
    if rows:
        headers = [
            "code",
            "held-out patients with it",
            "of them new",
            "predicted, with it",
            "predicted, without",
            "AUROC",
        ]
        page.section(
            "The most frequent codes",
            table(headers, rows),
            note="Ours. Predicted: the mean probability given to patients who then had the code, and to those who did "
            "not. AUROC: how often a patient with it is given more than one without (0.5 is chance).",
        )
    page.write(out / "report.html")
