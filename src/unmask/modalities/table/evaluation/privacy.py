"""What a release of synthetic rows gives away of real ones: copies, distances and attacks, on observed cells alone.

Tables are columns of values or category numbers with NaN where nothing was observed. Two rows are compared on the cells
that both have, so that what stands in a real row's holes, which nobody knows, makes it neither more nor less alike.
Pairs that share too little to be told from a chance agreement are not compared: see `most_alike` and `Space`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from unmask.evaluation.classes import area
from unmask.kernels.threads import on_cores
from unmask.modalities.table.evaluation.fidelity import bootstrap, independent

Columns = Sequence[np.ndarray]
BLOCK = 512
"""Rows compared with all others at once."""
TILE = 64, 8192
"""Rows and real rows compared at once, in memory that stays in the caches."""
COMPARED = 5000
"""Rows that are compared with all others: a sample where there are more, the others are never sampled."""


def _codes(tables: Sequence[Columns]) -> list[np.ndarray]:
    """Each table as (rows, columns) of small integers, equal where the values are; -1 where there is none."""
    parts: list[list[np.ndarray]] = [[] for _ in tables]
    for together in zip(*tables, strict=True):
        whole = np.concatenate(together)
        seen = ~np.isnan(whole)
        code = np.full(len(whole), -1, np.int32)
        code[seen] = np.unique(whole[seen], return_inverse=True)[1]
        ends = np.cumsum([len(x) for x in together])[:-1]
        for part, own in zip(parts, np.split(code, ends), strict=True):
            part.append(own)
    return [np.column_stack(p) for p in parts]


def most_alike(rows: Columns, real: Columns) -> np.ndarray:
    """Per row the largest share of equal cells with any real row, over the cells that both have.

    A pair counts if both rows have the same cells, of the columns that any of `rows` has. Otherwise it counts if the
    shared cells of the real row are so rare that, with independent columns, at most one row in 20 would agree with some
    real row in all of them by chance. NaN where no pair counts.
    """
    a, b = _codes([rows, real])
    seen = [(x >= 0).astype(np.float32) for x in (a, b)]
    rarity = np.zeros(b.shape, np.float32)
    for c, code in enumerate(b.T):
        known = code >= 0
        count = np.bincount(code[known])
        rarity[known, c] = np.log(known.sum() / count[code[known]])
    b[b < 0] = -2  # equal to nothing
    out = np.full(len(a), np.nan)
    present = seen[0].any(0)
    cells = [x[:, present].sum(1) for x in seen]
    enough = np.log(20 * max(len(b), 2))
    across = np.ascontiguousarray(b.T)

    def work(start: int) -> None:
        here = slice(start, start + TILE[0])
        best = np.full(len(a[here]), -1.0, np.float32)
        for first in range(0, len(b), TILE[1]):
            there = slice(first, first + TILE[1])
            shared = seen[0][here] @ seen[1][there].T
            counts = (shared == cells[0][here, None]) & (shared == cells[1][None, there])
            if not counts.all():
                counts |= seen[0][here] @ rarity[there].T >= enough
            same = np.zeros(shared.shape, np.int16)
            for x, y in zip(a[here].T, across, strict=True):
                same += x[:, None] == y[None, there]
            np.maximum(best, np.where(counts, same / np.maximum(shared, 1), -1.0).max(1), out=best)
        out[here] = np.where(best < 0, np.nan, best)

    on_cores(work, range(0, len(a), TILE[0]))
    return out


def sampled(columns: Columns, seed: int, most: int = COMPARED) -> list[np.ndarray]:
    """The rows that are compared: all, or so many at random, in their order."""
    rows = len(columns[0])
    if rows <= most:
        return list(columns)
    take = np.sort(np.random.default_rng([seed, 5]).permutation(rows)[:most])
    return [x[take] for x in columns]


def copies(real: Columns, synthetic: Columns, seed: int = 0) -> dict[str, float]:
    """Share of synthetic rows that equal a real one in all cells, and mean share of equal cells with the most alike
    real row, of the rows that have one to compare with. A real row released with other values in its holes is a copy,
    where chance does not explain that the others agree: see `most_alike`. Of more than `COMPARED` synthetic rows a
    sample is compared, with all real ones."""
    most = most_alike(sampled(synthetic, seed), real)
    if np.isnan(most).all():
        return {}
    return {"identical_rows": float((most == 1).mean()), "identical_cells": float(np.nanmean(most))}


class Space:
    """Where distances between rows are taken: quantities in deviations of the reference, categories equal or not.

    A distance is the root of the mean squared difference per shared column, times the root of their number.
    """

    def __init__(self, reference: Columns, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        known = [None if s or np.isnan(x).all() else x for x, s in zip(reference, sizes, strict=True)]
        self.center = [0.0 if x is None else float(np.nanmean(x)) for x in known]
        self.scale = [1.0 if x is None else max(float(np.nanstd(x)), 1e-9) for x in known]

    def _placed(self, columns: Columns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(rows, features) with 0 where nothing is seen, the same shape of what is seen, and (rows, columns) of it."""
        parts, seen, whole = [], [], []
        for x, size, center, scale in zip(columns, self.sizes, self.center, self.scale, strict=True):
            here = ~np.isnan(x)
            part = (
                (x[:, None] == np.arange(size)) / np.sqrt(2)
                if size
                else (np.where(here, x, center)[:, None] - center) / scale
            )
            parts.append(part.astype(np.float64))
            seen.append(np.repeat(here[:, None], part.shape[1], 1))
            whole.append(here)
        return np.hstack(parts), np.hstack(seen).astype(np.float64), np.column_stack(whole).astype(np.float64)

    def nearest(self, rows: Columns, others: Columns) -> np.ndarray:
        """Distance of each row to the nearest of the others; infinite where none shares half of the columns."""
        a, b = self._placed(rows), self._placed(others)
        if not len(a[0]):
            return np.zeros(0)
        out = np.full(len(a[0]), np.inf)
        for first in range(0, len(b[0]), TILE[1]):
            part = (b[0][first : first + TILE[1]], b[1][first : first + TILE[1]], b[2][first : first + TILE[1]])
            out = np.minimum(out, np.concatenate([np.sqrt(d.min(1)) for d in _squared(a, part)]))
        return out


def _squared(
    a: tuple[np.ndarray, np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> Iterator[np.ndarray]:
    (x, seen_x, whole_x), (y, seen_y, whole_y) = a, b
    columns = whole_x.shape[1]
    for start in range(0, len(x), BLOCK):
        here = slice(start, start + BLOCK)
        # What is not seen is 0 in x and y, so the cross product needs no mask.
        total = (x[here] ** 2) @ seen_y.T + seen_x[here] @ (y**2).T - 2 * x[here] @ y.T
        shared = whole_x[here] @ whole_y.T
        mean = np.maximum(total, 0) / np.maximum(shared, 1) * columns
        yield np.where(2 * shared >= columns, np.where(mean < 1e-9, 0.0, mean), np.inf)


def membership(members: np.ndarray, others: np.ndarray, name: str = "membership") -> dict[str, float]:
    """`{name}_auc`, `_low` and `_high`: area under the ROC curve of scores that should be higher for members, with its
    95 % interval; NaN where there are none of either."""
    is_member = np.arange(len(members) + len(others)) < len(members)
    found = area(is_member, np.concatenate([members, others])) or {"value": np.nan, "interval": [np.nan, np.nan]}
    return {f"{name}_auc": found["value"], f"{name}_low": found["interval"][0], f"{name}_high": found["interval"][1]}


def privacy(
    train: Columns, held_out: Columns, synthetic: Columns, sizes: Sequence[int], seed: int = 0
) -> dict[str, float]:
    """How much nearer synthetic rows are to the training rows than to held-out ones, and what an attacker makes of it.

    Args:
        train, held_out: real rows, NaN where nothing was observed; equal numbers of both are compared. The nearest row
            is looked for among all rows, of at most `COMPARED` rows of a kind.
        sizes: categories of each column, 0 for a quantity.

    Returns:
        `dcr_share`: share of the synthetic rows that are nearer to a training row (.5: no memory of them);
        `dcr_median`: median distance to the nearest training row;
        `membership_auc`, `membership_low`, `membership_high`: how well a row's distance to the nearest synthetic row
        tells training rows from held-out ones (.5: not at all), with its 95 % interval;
        `membership_auc_copies`, `membership_auc_shuffled`: the same attack on a bootstrap of the training rows (what it
        can find) and on training columns shuffled one by one (nothing to find);
        `identical_rows_held_out`: share of held-out rows equal to a training row: copies that chance makes.
    """
    n = min(len(train[0]), len(held_out[0]))
    rng = np.random.default_rng([seed, 4])
    members, others = ([x[take] for x in t] for t in (train, held_out) for take in [rng.permutation(len(t[0]))[:n]])
    space = Space(train, sizes)
    queries = sampled(synthetic, seed)
    near = space.nearest(queries, members), space.nearest(queries, others)
    known = np.isfinite(near[0]) & np.isfinite(near[1])
    a, b = near[0][known], near[1][known]
    found: dict[str, float] = {}
    if len(a):
        found |= {"dcr_share": float(((a < b) + 0.5 * (a == b)).mean()), "dcr_median": float(np.median(a))}

    def attack(release: Columns) -> dict[str, float]:
        reached = [-space.nearest(sampled(x, seed), release) for x in (members, others)]
        return membership(*(r[np.isfinite(r)] for r in reached))

    found |= attack(synthetic)
    found["membership_auc_copies"] = attack(bootstrap(members, seed, len(synthetic[0])))["membership_auc"]
    found["membership_auc_shuffled"] = attack(independent(members, seed))["membership_auc"]
    chance = copies(train, others, seed).get("identical_rows")
    return found if chance is None else found | {"identical_rows_held_out": chance}


def likelihood_attack(train: np.ndarray, held_out: np.ndarray) -> dict[str, float]:
    """What someone who holds the model itself can tell: training rows from held-out ones, by their mean
    log-probability per cell under the model (`CellTable.log_prob`, NaN where nothing was observed)."""
    scores = []
    for table in (train, held_out):
        seen = ~np.isnan(table)
        scores.append((np.nansum(table, 1) / np.maximum(seen.sum(1), 1))[seen.any(1)])
    return membership(scores[0], scores[1], "model_membership")
