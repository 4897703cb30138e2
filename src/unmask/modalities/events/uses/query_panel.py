"""A panel of questions whose answers serve as features: what is likely to come says how a patient is."""

from __future__ import annotations

import numpy as np
import torch

from unmask.modalities.events.questions.queries import ABOVE, BELOW, ITEMS, Queries, made
from unmask.modalities.events.questions.query_head import QueryHead
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import Labels
from unmask.modalities.events.uses.folder import EventFolder
from unmask.modalities.events.uses.query_answers import queries_of, rates_of

CODES = 64
"""Asked for, the most frequently asked ones first; of those with values also whether one lies in the outer quarters."""


def panel(histories: Histories, head: QueryHead) -> Queries:
    """The questions: each code, a value of it above its upper quartile, and one below its lower."""
    share, vocabulary = head.share.cpu().numpy(), histories.vocabulary
    order = np.argsort(-share, kind="stable")
    code: list[int] = []
    side: list[int] = []
    cut: list[float] = []
    for number in order[:CODES][share[order[:CODES]] > 0].tolist():
        for way in (0, ABOVE, BELOW) if vocabulary.valued[number] else (0,):
            code.append(number)
            side.append(way)
            cut.append(0.0 if not way else vocabulary.at(number, 0.75 if way == ABOVE else 0.25))
    shape = (len(code), ITEMS)
    codes, sides, cuts = np.full(shape, -1, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
    codes[:, 0], sides[:, 0], cuts[:, 0] = code, side, cut
    return made(histories, codes, sides, cuts)


def panel_answers(folder: EventFolder, histories: Histories, points: Labels) -> np.ndarray:
    """(points, questions) logarithm of each question's rates summed up to the middle of the horizons, what its
    probability is made of; of points at which nothing is known too, as states are."""
    head = queries_of(folder)
    asked, edges = panel(histories, head), head.edges
    within = torch.sqrt(edges[0] * edges[-1])[None]
    rates = torch.from_numpy(rates_of(folder, histories, points, asked, np.arange(len(points))))
    overlap = head.overlap(within.to(head.edges.device)).cpu()
    return (rates * overlap).sum(-1).clamp_min(1e-7).log().numpy()
