"""How near new patients are to real ones, and how near to those they were learnt from: `compare`.

Each figure stands beside two ends: other real patients (ceiling), and real patients whose codes were shuffled, each
code alone (floor): right codes, and nothing that holds them together.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

import numpy as np

from unmask.errors import UserError, option
from unmask.evaluation.meanings import HIGHER, LOWER, Meaning, placed
from unmask.evaluation.shown import Printed, Shown
from unmask.modalities.events.outcome.clinical import descriptions
from unmask.modalities.events.records.meds import BIRTH, STATIC, Events, as_events
from unmask.modalities.events.synthesis.conditions import drawn_under, who_meet
from unmask.modalities.events.synthesis.sequences import FEWEST_PATIENTS, LEAST

COMPARED = 5000
"""Patients of each kind that are compared: of more, a sample."""
CODES = 500
"""The most frequent codes, between which correlations and distances are taken."""
VALUES = 20
"""Values that a code must have on both sides to be compared."""
SAME = 0.05
"""Share of the held-out patients that may be found among the others, as records of a few events are by chance."""

MEANINGS = {
    "prevalence_error": Meaning(
        "error of prevalence", LOWER, 0, "Share of the patients who have a code: mean absolute error over codes."
    ),
    "correlation_gap": Meaning(
        "gap of correlations", LOWER, 0, "Correlation of how often two codes come: mean absolute error over pairs."
    ),
    "gap_distance": Meaning(
        "distance of gaps", LOWER, 0, "Time between one time stamp and the next: Kolmogorov-Smirnov distance."
    ),
    "events_distance": Meaning("distance of events", LOWER, 0, "Events per patient: Kolmogorov-Smirnov distance."),
    "value_distance": Meaning(
        "distance of values", LOWER, 0, "Wasserstein distance of values in their code's deviations, mean over codes."
    ),
    "nearest_training": Meaning(
        "nearest learnt patient", HIGHER, 1, "Median cosine distance of a new patient's codes to the nearest."
    ),
    "nearest_held_out": Meaning("nearest other patient", HIGHER, 1, "The same, to as many that nothing was learnt of."),
    "nearer_training": Meaning(
        "share nearer to learnt", "near 0.5", 0.5, "Of the new patients, those nearer to a learnt one: 1 are copies."
    ),
}


@dataclass(frozen=True)
class _Group:
    """Events of some patients: (events,) patient, time (`STATIC` of facts), code (a number into all names), value."""

    size: int
    patient: np.ndarray
    time: np.ndarray
    code: np.ndarray
    value: np.ndarray

    def take(self, patients: np.ndarray) -> _Group:
        """Some of the patients, numbered anew."""
        place = np.full(self.size, -1)
        place[patients] = np.arange(len(patients))
        kept = place[self.patient] >= 0
        return _Group(len(patients), place[self.patient[kept]], *(x[kept] for x in (self.time, self.code, self.value)))

    def shuffled(self, rng: np.random.Generator) -> _Group:
        """Each code's events go to other patients, at the same distance from their first time stamp."""
        timed = self.time != STATIC
        begin = np.full(self.size, np.iinfo(np.int64).max)
        np.minimum.at(begin, self.patient[timed], self.time[timed])
        order = np.argsort(self.code, kind="stable")
        patient = np.empty_like(self.patient)
        for part in np.split(order, np.flatnonzero(np.diff(self.code[order])) + 1):
            patient[part] = rng.permutation(self.size)[self.patient[part]]
        time = self.time.copy()
        both = timed & (begin[patient] < np.iinfo(np.int64).max)
        time[both] += begin[patient[both]] - begin[self.patient[both]]
        return replace(self, patient=patient, time=time)

    def counts(self, codes: np.ndarray) -> np.ndarray:
        """(patients, codes) log of one more than how often each code comes."""
        column = np.full(max(int(codes.max(initial=-1)), int(self.code.max(initial=-1))) + 1, -1)
        column[codes] = np.arange(len(codes))
        good = column[self.code] >= 0
        cell = self.patient[good] * len(codes) + column[self.code[good]]
        return np.log1p(np.bincount(cell, minlength=self.size * len(codes)).reshape(self.size, -1)).astype(np.float32)

    def prevalence(self, codes: int) -> np.ndarray:
        """(codes,) share of the patients who have each."""
        return np.bincount(np.unique(self.patient * codes + self.code) % codes, minlength=codes) / self.size

    def gaps(self) -> np.ndarray:
        """Microseconds between time stamps of a patient, one after the other."""
        timed = self.time != STATIC
        patient, time = self.patient[timed], self.time[timed]
        order = np.lexsort((time, patient))
        gap = np.diff(time[order])[np.diff(patient[order]) == 0]
        return gap[gap > 0]


class SyntheticPatients(Printed, dict[str, Any]):
    """Figures by name, `ceiling` and `floor` with the same; `print` shows them side by side, and what they say."""

    def shown(self) -> Shown:
        """The figures as `print` shows them; the frame has what each is, too."""
        rows, groups = [], dict[str, list[str]]()
        for key, m in MEANINGS.items():
            if key in self:
                ceiling, floor = (self.get(end, {}).get(key) for end in ("ceiling", "floor"))
                group, words = _verdict(key, self[key], ceiling, floor, (self["rows"], self["real"]))
                groups.setdefault(group, []).append(m.label)
                rows.append((m.label, self[key], ceiling, floor, words, m.better, m.sentence))
        lines = [f"{group}: {', '.join(groups[group])}" for group in VERDICTS if group in groups]
        sentences = [part for line in lines for part in wrap(line, 100, subsequent_indent="  ")]
        notes = ["ceiling: other real patients; floor: real patients, each code shuffled alone", *sentences]
        if "conditions" in self:
            under = f"drawn under {' and '.join(self['conditions'])!r}: compared with the {self['met']:,} real patients"
            notes = [*wrap(f"{under} of {self['among']:,} who meet it", 100, subsequent_indent="  "), *notes]
        return Shown(
            title=f"{self['rows']:,} new patients beside {self['real']:,} real ones",
            columns=("figure", "new", "ceiling", "floor", "in words", "better", "what it is"),
            rows=rows,
            notes=notes + ([self["note"]] if "note" in self else []),
            printed=("figure", "new", "ceiling", "floor", "in words"),
        )


VERDICTS = ("As real patients are", "Nearer to real than to shuffled", "Nearer to shuffled", "Off")
"""What a figure says, best first."""
AS_REAL = 0.9
"""Share of the way from the floor to the ceiling; where the floor is no worse, the ceiling over the figure."""


def _verdict(
    key: str, value: float, ceiling: float | None, floor: float | None, patients: tuple[int, int]
) -> tuple[str, str]:
    """Which of `VERDICTS`, and a few words; `patients`: of both kinds."""
    good, near, far, off = VERDICTS
    m, chance = MEANINGS[key], 1.36 * float(np.sqrt(sum(1 / n for n in patients)))  # Kolmogorov-Smirnov, 5 %
    if key == "nearer_training":
        by_chance = value <= 0.5 + patients[0] ** -0.5  # two standard errors
        return (good, "no nearer than to others") if by_chance else (off, "nearer than by chance; 1 are copies")
    if m.better == HIGHER:
        copied = ceiling is not None and value < ceiling / 2
        return (off, "much nearer than real patients are") if copied else (good, "as far as real patients are")
    if ceiling is None or floor is None:
        return good, ""
    share, marked = placed(m, value, ceiling, floor)
    if (share or 0) >= AS_REAL or (marked and AS_REAL * value <= ceiling):
        return good, "at the ceiling"
    if "Kolmogorov" in m.sentence and value <= chance:
        return good, "no further than by chance"
    if share is None:  # shuffling keeps what is of one code alone
        return off, f"{value / max(ceiling, 1e-9):.1f} times the ceiling"
    words = f"{share:.0%} of the way from floor to ceiling" if share > 0 else "no better than the floor"
    return (near if share > 0.5 else far), words


def compare(drawn: Any, real: Any, *, held_out: Any = None, seed: int = 0) -> SyntheticPatients:
    """Compare new patients with real ones.

    Args:
        drawn: the new patients: a MEDS folder, a table with the columns of one, or events read before, as are all. A
            folder says under which conditions they were drawn: they are compared with the real ones who meet them.
        real: the patients that were learnt from.
        held_out: others of the same source, that were not; default: those whom the splits of `real` hold out. Without
            any, new patients are judged beside one half of `real`, and nothing is said of who is nearer to whom.
        seed: of the samples and the shuffled floor.

    Returns:
        `rows` (new patients compared), `real`, `codes`, and the figures of `MEANINGS`; `ceiling` and `floor` with the
        same figures of as many real patients, as they are and shuffled; `note` where no patients were held out; of
        patients drawn under `conditions` these, and how many real ones `met` them, `among` how many.

    Raises:
        UserError: fewer than `FEWEST_PATIENTS` of a kind; held-out patients that are among the real ones.
    """
    rng = np.random.default_rng([seed, 14])
    new, learnt = as_events(drawn), as_events(real)
    by_splits = learnt.held_out if held_out is None else None
    others = as_events(held_out) if held_out is not None else None
    names = sorted({c for e in (new, learnt, others) if e is not None for c in e.codes})
    number = {c: i for i, c in enumerate(names)}
    under, words = drawn_under(drawn), descriptions(drawn) | descriptions(real)

    def real_ones(events: Events) -> tuple[_Group, np.ndarray]:
        """Those who meet the conditions, and which these are."""
        kept = who_meet(events, under, words) if under else np.arange(len(events))
        return _group(events, number).take(kept), kept

    group, (whole, kept) = _group(new, number), real_ones(learnt)
    if others is not None:
        target, train = real_ones(others)[0], whole
    else:
        chosen = by_splits[kept] if by_splits is not None else rng.permutation(whole.size) < whole.size // 2
        target, train = whole.take(np.flatnonzero(chosen)), whole.take(np.flatnonzero(~chosen))
    meet = f" who meet {' and '.join(under)!r}, under which the new ones were drawn" if under else ""
    for name, some in (("new", group), ("real", train), ("held-out", target)):
        if some.size < FEWEST_PATIENTS:
            raise UserError(
                f"{some.size} {name} patients{'' if some is group else meet}",
                hint=f"Give {FEWEST_PATIENTS} patients or more.",
            )
    known = _records(train)
    if (shared := sum(r in known for r in _records(target))) > SAME * target.size:
        raise UserError(
            f"{shared:,} of {target.size:,} held-out patients are among the real ones",
            hint=f"Give {option('held_out')} patients that were not learnt from, or leave it out.",
        )
    met = train.size + target.size
    target = _sampled(target, COMPARED, rng)
    group = _sampled(group, COMPARED, rng)
    ceiling = _sampled(train, group.size, rng)
    floor = ceiling.shuffled(rng)
    share = target.prevalence(len(names))
    frequent = np.argsort(-share, kind="stable")[:CODES]
    frequent = frequent[share[frequent] * target.size >= LEAST]
    found = SyntheticPatients(rows=group.size, real=target.size, codes=len(names))
    if under:
        found |= {"conditions": list(under), "met": met, "among": len(learnt) + (0 if others is None else len(others))}
    sides = {"new": group, "ceiling": ceiling, "floor": floor}
    figures = {side: _alike(target, some, share, frequent) for side, some in sides.items()}
    found |= figures.pop("new")
    if held_out is None and by_splits is None:
        found["note"] = "nobody was held out: nothing is known of whether new patients are nearer to those learnt from"
    else:
        size = min(train.size, target.size, COMPARED)
        members, strangers = (_sampled(some, size, rng).counts(frequent) for some in (train, target))
        a, b = (_nearest(group.counts(frequent), some) for some in (members, strangers))
        found["nearest_training"], found["nearest_held_out"] = float(np.median(a)), float(np.median(b))
        found["nearer_training"] = float(((a < b - 1e-6) + 0.5 * (np.abs(a - b) <= 1e-6)).mean())
        figures["ceiling"]["nearest_training"] = float(np.median(_nearest(strangers, members)))
        figures["ceiling"]["nearest_held_out"] = float(np.median(_nearest(members, strangers)))
        a, b = (_nearest(floor.counts(frequent), some) for some in (members, strangers))
        figures["floor"] |= {"nearest_training": float(np.median(a)), "nearest_held_out": float(np.median(b))}
    return SyntheticPatients(found | figures)


def _group(events: Events, number: dict[str, int]) -> _Group:
    """All patients of a folder, without births."""
    code = np.array([number[c] for c in events.codes], np.int64)[events.code]
    kept = ~events.begins(BIRTH)[events.code]
    patient = np.repeat(np.arange(len(events)), np.diff(events.offsets))
    return _Group(len(events), *(np.asarray(x)[kept] for x in (patient, events.time, code, events.value)))


def _sampled(group: _Group, most: int, rng: np.random.Generator) -> _Group:
    return group if group.size <= most else group.take(np.sort(rng.permutation(group.size)[:most]))


def _records(group: _Group) -> set[bytes]:
    """Each patient's times and codes."""
    order = np.lexsort((group.code, group.time, group.patient))
    cells = np.stack([group.time[order], group.code[order]], 1)
    ends = np.searchsorted(group.patient[order], np.arange(group.size + 1))
    return {cells[a:b].tobytes() for a, b in itertools.pairwise(ends) if b > a}


def _alike(target: _Group, other: _Group, share: np.ndarray, frequent: np.ndarray) -> dict[str, float]:
    """The figures that say how like the patients of the target others are."""
    from scipy.stats import ks_2samp, wasserstein_distance

    prevalence = other.prevalence(len(share))
    seen = (share > 0) | (prevalence > 0)
    found = {"prevalence_error": float(np.abs(share - prevalence)[seen].mean())}
    a, b = (_correlations(some.counts(frequent)) for some in (target, other))
    pairs = np.triu_indices(len(a), 1)
    if len(pairs[0]):
        found["correlation_gap"] = float(np.abs(a - b)[pairs].mean())
    gaps = target.gaps(), other.gaps()
    if all(map(len, gaps)):
        found["gap_distance"] = float(ks_2samp(*gaps, method="asymp").statistic)
    sizes = (np.bincount(some.patient, minlength=some.size) for some in (target, other))
    found["events_distance"] = float(ks_2samp(*sizes, method="asymp").statistic)
    values = [_values(some) for some in (target, other)]
    each = [
        wasserstein_distance(x, y) / max(float(x.std()), 1e-9)
        for x, y in ((values[0][c], values[1][c]) for c in values[0].keys() & values[1].keys())
        if min(len(x), len(y)) >= VALUES and x.std() > 0
    ]
    return found | ({"value_distance": float(np.mean(each))} if each else {})


def _values(group: _Group) -> dict[int, np.ndarray]:
    """The values of each code that has any."""
    good = np.flatnonzero(np.isfinite(group.value))
    good = good[np.argsort(group.code[good], kind="stable")]
    parts = np.split(good, np.flatnonzero(np.diff(group.code[good])) + 1) if len(good) else []
    return {int(group.code[part[0]]): group.value[part].astype(np.float64) for part in parts}


def _correlations(counts: np.ndarray) -> np.ndarray:
    """(codes, codes), 0 of a code that all have equally often."""
    centred = counts - counts.mean(0)
    norm = np.sqrt((centred**2).sum(0))
    centred = np.where(norm > 1e-6, centred / np.maximum(norm, 1e-6), 0.0)
    return centred.T @ centred


def _nearest(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(rows,) cosine distance to the nearest of the others."""
    a, b = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-9) for x in (rows, others))
    return np.concatenate([1 - (part @ b.T).max(1) for part in np.array_split(a, max(1, len(a) // 512))])
