"""Simple rules for the code of a hidden event, fitted on the training patients: what a masked model has to beat.

Each gives a score for every code. They see what the model sees: the rest of the hidden event's time stamp, the rest of
the patient's record, and for the lookup table the rows above and below on shuffled ties.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def shuffled(events: Any, seed: int) -> Any:
    """The same events, the rows of one time stamp in random order."""
    import dataclasses

    subject = np.repeat(np.arange(len(events)), np.diff(events.offsets))
    order = np.lexsort((np.random.default_rng(seed).random(len(subject)), events.time, subject))
    return dataclasses.replace(events, time=events.time[order], code=events.code[order], value=events.value[order])


class Rules:
    """Counts of the training patients, and the scores of codes they give.

    Args:
        code: (rows,) code numbers from 0, negative where none.
        time, subject: (rows,) of each event.
        train: subjects to count.
        size: codes.
    """

    def __init__(self, code: np.ndarray, time: np.ndarray, subject: np.ndarray, train: np.ndarray, size: int) -> None:
        self.size = size
        used = np.isin(subject, train) & (code >= 0)
        code, time, subject = code[used], time[used], subject[used]
        self.share = (np.bincount(code, minlength=size) + 0.5) / (len(code) + 0.5 * size)
        new = np.r_[True, (subject[1:] != subject[:-1]) | (time[1:] != time[:-1])]
        group = np.cumsum(new) - 1
        who = subject[new]
        present = np.zeros((group[-1] + 1, size), np.float32)
        np.add.at(present, (group, code), 1)
        # P(x stands in the rest of the set | c in the set): of x = c, that it stands there twice.
        there = (present > 0).astype(np.float32)
        pairs = present.T @ there
        np.fill_diagonal(pairs, (present * (present > 1)).sum(0))
        self.rest = self._smooth(pairs, present.sum(0), there.mean(0))
        # P(x before | c now), by patient's earlier sets.
        before = np.zeros_like(there)
        for i in range(1, len(there)):
            if who[i] == who[i - 1]:
                before[i] = np.maximum(before[i - 1], there[i - 1])
        self.earlier = self._smooth(present.T @ before, present.sum(0), before.mean(0))
        patients = np.zeros((int(subject.max()) + 1, size), np.float32)
        np.add.at(patients, (subject, code), 1)
        together = (patients > 0).T.astype(np.float32) @ patients + 5 * self.share
        self.together = together / together.sum(1, keepdims=True)
        self.table: dict[tuple[int, int], np.ndarray] = {}
        same = subject[2:] == subject[:-2]
        for above, here, below in zip(code[:-2][same], code[1:-1][same], code[2:][same], strict=True):
            self.table.setdefault((int(above), int(below)), np.zeros(size, np.float32))[here] += 1

    @staticmethod
    def _smooth(pairs: np.ndarray, count: np.ndarray, share: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(codes, codes) logarithms of P(column | row) and of its complement, two pseudo-counts at the column's own
        share."""
        chance = ((pairs + 2 * share) / (count[:, None] + 2)).clip(1e-6, 1 - 1e-6).astype(np.float64)
        return np.log(chance), np.log1p(-chance)

    def bayes(
        self, given: np.ndarray, chance: tuple[np.ndarray, np.ndarray], absent: bool, temper: float
    ) -> np.ndarray:
        """Naive Bayes: log P(c) and the log-odds of every code of `given`; with `absent`, of those that are
        not there."""
        yes, no = chance
        evidence = yes[:, given].sum(1)
        if absent:
            evidence = evidence + no.sum(1) - no[:, given].sum(1)
        return np.log(self.share) + temper * evidence

    def scores(
        self, rest: np.ndarray, before: np.ndarray, record: np.ndarray, beside: tuple[int, int], knobs: dict[str, Any]
    ) -> dict[str, np.ndarray]:
        """Name -> score of each code.

        Args:
            rest: codes of the rest of the set; before: of earlier sets; record: of all the visible record.
            beside: codes of the rows above and below, -1 for none.
            knobs: chosen on validation patients, see `tune`.
        """
        rest, before, record = np.unique(rest), np.unique(before), np.unique(record)
        base = np.log(self.share)
        found = self.table.get(beside)
        own = self.bayes(rest, self.rest, **knobs["set"])
        past = self.bayes(before, self.earlier, **knobs["before"]) - base
        return {
            "frequency": base,
            "co-occurrence": np.log(self.together[record]).mean(0) if len(record) else base,
            "neighbours": base if found is None else np.log(found + 0.5 * self.share),
            "naive Bayes, set": own,
            "naive Bayes, set and before": own + past,
        }


KNOBS = [{"absent": a, "temper": t} for a in (False, True) for t in (0.0, 0.1, 0.2, 0.4, 0.7, 1.0)]
