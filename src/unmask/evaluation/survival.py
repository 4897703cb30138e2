"""Times to an event that are partly censored: Kaplan-Meier, and how well a risk orders them."""

from __future__ import annotations

import numpy as np


def event_steps(
    time: np.ndarray, event: np.ndarray, entry: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct event times, and the events and the rows at risk at each."""
    at, deaths = np.unique(time[event > 0], return_counts=True)
    at_risk = len(time) - np.searchsorted(np.sort(time), at, side="left")
    if entry is not None:
        at_risk = at_risk - (len(entry) - np.searchsorted(np.sort(entry), at, side="left"))
    return at, deaths.astype(float), at_risk.astype(float)


def kaplan_meier(
    time: np.ndarray, event: np.ndarray, entry: np.ndarray | None = None, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Distinct event times and the survival just after each (Kaplan & Meier 1958); `weight` of each row, not with
    `entry`."""
    if weight is not None:
        at, place = np.unique(time, return_inverse=True)
        deaths, rows = (np.bincount(place.reshape(-1), part, len(at)) for part in (weight * (event > 0), weight))
        at_risk = rows[::-1].cumsum()[::-1]
        return at, np.cumprod(1 - deaths / np.maximum(at_risk, 1e-300))
    at, deaths, at_risk = event_steps(time, event, entry)
    return at, np.cumprod(1 - deaths / at_risk)


def step_values(at: np.ndarray, values: np.ndarray, t: np.ndarray, start: float = 1.0) -> np.ndarray:
    """A right-continuous step function at times t."""
    return np.r_[start, values][np.searchsorted(at, t, side="right")]


def censored_brier(
    p: np.ndarray, time: np.ndarray, event: np.ndarray, at: float, weight: np.ndarray | None = None
) -> float:
    """Brier score of probabilities `p` that the event came by the time `at`; others stand for those censored before it,
    by inverse probability (Graf and others 1999)."""
    event, weight = event > 0, np.ones(len(time)) if weight is None else weight
    steps, uncensored = kaplan_meier(time, ~event, weight=weight)
    came = event & (time <= at)
    # The chance of not being censored before it was known; an event stands before the end at the same time.
    chance = step_values(steps, uncensored, np.nextafter(np.minimum(time, at), 0))
    w = weight * (came | (time >= at)) / np.maximum(chance, 1e-3)
    return float((w * (p - came) ** 2).sum() / max(w.sum(), 1e-300))


def concordance(risk: np.ndarray, time: np.ndarray, event: np.ndarray, entry: np.ndarray | None = None) -> float:
    """Harrell's C: the share of comparable pairs in which the higher risk fails first; ties in risk count half. A pair
    is an event (above 0; of competing risks, give `event == cause`) and one that is known to have lived longer: a later
    time, or censored at that very time. With `entry`, the time from which each row is at risk, pairs are of rows that
    were, when the first of them failed. Pairs are counted by sorting, not one by one: 200 000 rows take about a
    second."""
    if not len(time):
        return float("nan")
    happened, rank = event > 0, np.unique(risk, return_inverse=True)[1].reshape(-1)
    counts = _lived_longer(rank, time, happened)
    if entry is not None:
        counts = counts - _entered_later(rank, time, happened, entry)
    lower, tied, total = (float(c) for c in counts)
    return (lower + 0.5 * tied) / total if total else float("nan")


def _lived_longer(rank: np.ndarray, time: np.ndarray, happened: np.ndarray) -> np.ndarray:
    """Pairs of an event and one that lived longer: of lower risk, of the same risk, and all."""
    # Those after an event are the ones that lived longer, and other events of its time, which are taken off again.
    order = np.lexsort((rank, ~happened, time))
    time, happened, rank = time[order], happened[order], rank[order]
    at = np.flatnonzero(happened)
    pairs = np.unique(time[at], return_counts=True)[1]
    total = (len(time) - 1 - at).sum() - (pairs * (pairs - 1) // 2).sum()
    # Events of one time are in the order of their risk: among them no later one has a lower risk, some have the same.
    pairs = np.unique(np.stack([time[at], rank[at]]), axis=1, return_counts=True)[1]
    tied = _later_equal(rank, happened) - (pairs * (pairs - 1) // 2).sum()
    return np.array([_later_lower(rank, happened), tied, total])


def _entered_later(rank: np.ndarray, time: np.ndarray, happened: np.ndarray, entry: np.ndarray) -> np.ndarray:
    """Pairs of an event and one that entered at its time or later, and so lived longer: as `_lived_longer`
    counts them."""
    failed = time[happened]
    at = np.r_[failed, entry]
    is_event = np.arange(len(at)) < len(failed)
    order = np.lexsort((~is_event, at))
    both, counts = np.r_[rank[happened], rank][order], is_event[order]
    # Pairs of an event and anything later, less those of two events.
    alone, every = both[counts], np.ones(len(failed), bool)
    lower = _later_lower(both, counts) - _later_lower(alone, every)
    tied = _later_equal(both, counts) - _later_equal(alone, every)
    return np.array([lower, tied, (len(entry) - np.searchsorted(np.sort(entry), failed)).sum()])


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


def rounded_up(x: float) -> float:
    """A time to six digits, and not below `x`."""
    near = float(f"{x:.6g}")
    return near if near >= x else float(f"{x + abs(x) * 1e-5:.6g}")
