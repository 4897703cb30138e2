"""How well a risk orders times to an event that are partly censored."""

from __future__ import annotations

import numpy as np


def concordance(risk: np.ndarray, time: np.ndarray, event: np.ndarray) -> float:
    """Harrell's C: the share of comparable pairs in which the higher risk fails first; ties in risk count half."""
    order = np.argsort(time, kind="stable")
    risk, time, event = risk[order], time[order], event[order] > 0
    right = total = 0.0
    for i in np.flatnonzero(event):
        first, later = np.searchsorted(time, time[i], side="left"), np.searchsorted(time, time[i], side="right")
        others = risk[later:]
        tied = risk[first:later][~event[first:later]]  # censored at that very time: known to have lived longer
        others = np.r_[others, tied]
        total += len(others)
        right += float((others < risk[i]).sum()) + 0.5 * float((others == risk[i]).sum())
    return right / total if total else float("nan")
