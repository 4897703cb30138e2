"""How well a risk orders times to an event that are partly censored."""

from __future__ import annotations

import numpy as np


def concordance(risk: np.ndarray, time: np.ndarray, event: np.ndarray, entry: np.ndarray | None = None) -> float:
    """Harrell's C: the share of comparable pairs in which the higher risk fails first; ties in risk count half.

    A pair is an event and one that is known to have lived longer: a later time, or censored at that very time. Pairs are counted
    by sorting, not one by one: 200 000 rows take about a second (with late entry, counted row by row, 20 000 take 9).

    Args:
        event: above 0 where the event happened; of competing risks, give `event == cause`.
        entry: time from which each row is at risk: pairs are of rows that were, when the first of them failed.
    """
    if entry is not None and (entry > time.min()).any():
        return _among_entered(risk, time, event, entry)
    happened = event > 0
    # Those after an event are the ones that lived longer, and other events of its time, which are taken off again.
    order = np.lexsort((risk, ~happened, time))
    time, happened = time[order], happened[order]
    rank = np.unique(risk[order], return_inverse=True)[1].reshape(-1)
    at = np.flatnonzero(happened)
    pairs = np.unique(time[at], return_counts=True)[1]
    total = float((len(time) - 1 - at).sum() - (pairs * (pairs - 1) // 2).sum())
    # Events of one time are in the order of their risk: among them no later one has a lower risk, some have the same.
    pairs = np.unique(np.stack([time[at], rank[at]]), axis=1, return_counts=True)[1]
    tied = float(_later_equal(rank, happened) - (pairs * (pairs - 1) // 2).sum())
    return (_later_lower(rank, happened) + 0.5 * tied) / total if total else float("nan")


def _among_entered(risk: np.ndarray, time: np.ndarray, event: np.ndarray, entry: np.ndarray) -> float:
    order = np.argsort(time, kind="stable")
    risk, time, event, entry = risk[order], time[order], event[order] > 0, entry[order]
    right = total = 0.0
    for i in np.flatnonzero(event):
        first, later = np.searchsorted(time, time[i], side="left"), np.searchsorted(time, time[i], side="right")
        longer = np.r_[np.flatnonzero(~event[first:later]) + first, np.arange(later, len(time))]
        others = risk[longer[entry[longer] < time[i]]]
        total += len(others)
        right += float((others < risk[i]).sum()) + 0.5 * float((others == risk[i]).sum())
    return right / total if total else float("nan")


def _later_lower(rank: np.ndarray, counts: np.ndarray) -> int:
    """Pairs of a place that counts and a later one of lower rank: in halves, halves of halves, and so on."""
    place, many, found, width = np.arange(len(rank)), int(rank.max(initial=0)) + 1, 0, 1
    while width < len(rank):
        block = place // (2 * width) * many
        right = place // width % 2 == 1
        sorted_ = np.sort(block[right] + rank[right])
        asks = ~right & counts
        lower = np.searchsorted(sorted_, block[asks] + rank[asks]) - np.searchsorted(sorted_, block[asks])
        found, width = found + int(lower.sum()), 2 * width
    return found


def _later_equal(rank: np.ndarray, counts: np.ndarray) -> int:
    """Pairs of a place that counts and a later one of the same rank."""
    order = np.argsort(rank, kind="stable")
    end = np.cumsum(np.bincount(rank))[rank[order]]
    return int((end - 1 - np.arange(len(rank)))[counts[order]].sum())
