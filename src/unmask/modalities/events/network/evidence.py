"""What the visible codes of a hidden event's time stamp say of its code, straight to the head.

A matrix of codes by codes, read where both stand in one set. It starts at the counts of the training patients (a
tempered naive Bayes on the rest of the set) and is trained with everything else. Attention alone took more than two
minutes to come near what those counts know (docs/explanation/measured-events.md).
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.modalities.events.records.histories import Histories, ranks
from unmask.modalities.events.records.vocabulary import CLS, FIRST

CELLS = 2**19
"""Entries of the matrix at most: with 570 codes all tell of all, with 20,000 the 64 most frequent ones tell."""
FEWEST_CODES = 64
PATIENTS = 20_000
"""Whose counts the matrix starts at."""
TEMPER = 0.3
"""Events of one set repeat each other, so naive Bayes counts them too often; see benchmarks/events_codes.py."""
PSEUDO = 2.0


def sets_of(values: dict[str, Tensor], masked: Bool[Tensor, "rows slots"]) -> Int[Tensor, "rows slots"]:
    """A number for each time stamp of each example of the batch, whose slots stand beside each other.

    It changes with the number of the visit, at the first slot of an example, behind it, and at the start of a row.
    """
    visit = values["visit"]
    new = torch.ones_like(masked)
    first = (values["code"] == CLS) & ~masked
    new[:, 1:] = (visit[:, 1:] != visit[:, :-1]) | first[:, 1:] | first[:, :-1]
    return (new.flatten().cumsum(0) - 1).view(visit.shape)


class Evidence(nn.Module):
    """Of every code, how much each of the most frequent codes speaks for it when they share a time stamp.

    Args:
        codes: numbers in the vocabulary.
    """

    def __init__(self, codes: int) -> None:
        super().__init__()
        self.telling = min(codes - FIRST, max(FEWEST_CODES, CELLS // codes))
        self.weight = nn.Parameter(torch.zeros(codes, self.telling))

    def present(
        self, values: dict[str, Tensor], hidden: Bool[Tensor, "rows slots"], wanted: Int[Tensor, " wanted"]
    ) -> Float[Tensor, "wanted telling"]:
        """Which of the telling codes stand visibly in the set of each slot of `wanted`."""
        group = sets_of(values, hidden).flatten()
        asked = torch.zeros_like(group)
        asked[group[wanted]] = 1
        # Sets with a wanted slot get the first rows; how many there are is known on the device alone, so there is one
        # for each wanted slot, and a last one for all that does not tell: nothing here waits for the device.
        place = asked.cumsum(0) - 1
        code = values["code"].flatten() - FIRST
        tells = (~hidden.flatten()) & (code >= 0) & (code < self.telling) & (asked[group] > 0)
        out = torch.zeros(len(wanted) + 1, self.telling, device=group.device)
        at = torch.where(tells, place[group], len(wanted))
        out[at, torch.where(tells, code, 0)] = 1.0
        return out[place[group[wanted]]]

    @torch.no_grad()
    def start(self, histories: Histories, train: np.ndarray) -> np.ndarray:
        """Begin at the counts of the training patients; returns each code's log share, what the head's bias
        begins at."""
        pairs, count, there, total = counted(histories, train, self.telling)
        share = (total + 0.5) / (total.sum() + 0.5 * len(total))
        chance = (pairs + PSEUDO * there) / (count[:, None] + PSEUDO)
        told = np.log(np.maximum(chance, 1e-4) / np.maximum(there, 1e-4))
        told[:FIRST] = 0
        self.weight.copy_(torch.from_numpy(TEMPER * told).float())
        return np.log(share)


def counted(
    histories: Histories, train: np.ndarray, telling: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Over the sets of at most `PATIENTS` training patients: (codes, telling) how often a code has a telling one beside
    it; (codes,) in how many sets a code stands; (telling,) share of the sets with each; (codes,) how often each code is
    seen."""
    from scipy.sparse import csr_matrix

    size = len(histories.vocabulary)
    pairs, count, total = np.zeros((size, telling)), np.zeros(size), np.zeros(size)
    there, sets = np.zeros(telling), 0
    chosen = np.random.default_rng(0).permutation(train)[:PATIENTS]
    for block in np.array_split(chosen, max(1, len(chosen) // 256)):
        code, number, start = [], [], 0
        for i in block.tolist():
            rows = histories.rows(i)
            code.append(histories.code[rows])
            number.append(ranks(histories.events.time[rows]) + start)
            start = int(number[-1][-1]) if len(rows) else start
        codes, group = np.concatenate(code), np.concatenate(number) - 1
        seen = csr_matrix((np.ones(len(codes)), (group, codes)), shape=(start, size))
        total += np.asarray(seen.sum(0)).ravel()
        seen.sum_duplicates()
        once = seen.copy()
        once.data[:] = 1
        told = once[:, FIRST : FIRST + telling]
        found = np.asarray((once.T @ told).todense())
        # A code beside itself: that it stands there twice.
        twice = seen.copy()
        twice.data = (twice.data > 1).astype(float)
        found[np.arange(FIRST, FIRST + telling), np.arange(telling)] = np.asarray(twice.sum(0)).ravel()[
            FIRST : FIRST + telling
        ]
        pairs += found
        count += np.asarray(once.sum(0)).ravel()
        there += np.asarray(told.sum(0)).ravel()
        sets += start
    return pairs, count, there / max(sets, 1), total
