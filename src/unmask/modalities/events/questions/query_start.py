"""What the answers of a model begin with, of training patients: how often each code comes in each bin of horizons,
which values follow a last one, and a regression of each code's questions on what is plain of the record.

The network learns what these cannot say. It has to learn less, and its answers are no worse than those of so plain a
model from the first step on.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.errors import UserError, setting
from unmask.modalities.events.questions.queries import BINS, PARTS, QueryDraws, features
from unmask.modalities.events.questions.query_head import (
    COVARIATES,
    FEWEST,
    GROUPS,
    MARGINS,
    NEXT_LEVELS,
    PRIOR,
    WEIGHTS,
    QueryHead,
    along_bins,
    covariates_of,
)
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import DEATH, HOUR, STATIC
from unmask.modalities.events.records.vocabulary import FIRST

COUNTED = 4000
"""Training patients that are looked at."""
MOMENTS = 8000
"""Moments that base rates are counted and questions drawn at, more per patient where patients are few."""
DRAWS = 20
"""Times that each patient is asked at for the regressions, at most."""
FEW = 20
"""Pairs of values that follow each other, per group."""


def start(
    head: QueryHead, histories: Histories, train: np.ndarray, draws: QueryDraws, edges: np.ndarray, count: int
) -> None:
    """Let a head begin at what the training patients say.

    Args:
        draws, count: of the same patients, and questions drawn at a time.
    """
    some = np.random.default_rng(0).permutation(train)[:COUNTED]
    head.edges.copy_(torch.from_numpy(edges))
    head.share.copy_(torch.from_numpy(draws.share))
    with torch.no_grad():
        head.base.weight.copy_(torch.from_numpy(base_rates(histories, some, draws.last, edges)).float())
        for held, found in zip((head.lasts, head.nexts), following(histories, some), strict=True):
            held.copy_(torch.from_numpy(found))
    weights = _code_weights(head, histories, some, draws, count)
    with torch.no_grad():
        head.code_weights.weight.copy_(head.inverse(weights))


def base_rates(histories: Histories, train: np.ndarray, last: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """(codes, bins) what softplus makes each code's rate of: yes in a bin of those who had not said yes before, at
    moments evenly in time between the first event and the end of observation."""
    events, size = histories.events, len(histories.vocabulary)
    came, risk = np.zeros((size, BINS)), np.zeros(BINS)
    low = np.r_[0.0, edges[:-1]]
    deadly = events.begins(DEATH)
    count = -(-MOMENTS // max(len(train), 1))
    for i in train.tolist():
        rows = histories.rows(i)
        rows = rows[events.time[rows] != STATIC]
        time = events.time[rows]
        for share in np.arange(count) / count if len(time) else ():
            moment = int(time[0]) + int(share * (last[i] - time[0]))
            known = int(np.searchsorted(time, moment, side="right"))
            if last[i] <= moment or deadly[events.code[rows[:known]]].any():
                continue
            code, first = np.unique(histories.code[rows[known:]], return_index=True)
            hours = (time[known:][first] - moment) / HOUR
            end = (last[i] - moment) / HOUR
            risk += np.clip((end - low) / (edges - low), 0, 1)
            here = hours <= edges[-1]
            np.add.at(came, (code[here], np.searchsorted(edges, hours[here])), 1)
    # Those who said yes are at risk no more.
    left = np.maximum(risk - (np.cumsum(came, 1) - came), came + 1)
    mean = came.sum() / max(left[FIRST:].sum(), 1)
    rate = -np.log1p(-np.minimum((came + 2 * mean) / (left + 2), 0.98))
    return np.log(np.expm1(np.maximum(rate, 1e-5)))


def following(histories: Histories, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`QueryHead.lasts` and `nexts`: of each code, its values in groups by the value that came before."""
    events, size = histories.events, len(histories.vocabulary)
    lasts = np.full((size, GROUPS), np.nan, np.float32)
    nexts = np.full((size, GROUPS, len(NEXT_LEVELS)), np.nan, np.float32)
    pairs = []
    for i in train.tolist():
        rows = histories.rows(i)
        rows = rows[(events.time[rows] != STATIC) & np.isfinite(histories.score[rows])]
        rows = rows[np.lexsort((histories.score[rows], events.time[rows], histories.code[rows]))]
        code, score = histories.code[rows], histories.score[rows]
        again = np.flatnonzero(code[1:] == code[:-1])
        pairs.append((code[again], score[again], score[again + 1]))
    code, last, after = (np.concatenate(part) for part in zip(*pairs, strict=True))
    order = np.lexsort((last, code))
    names, begin = np.unique(code[order], return_index=True)
    for c, here in zip(names.tolist(), np.split(order, begin[1:]), strict=False):  # of no pairs there is one part
        groups = np.array_split(here, max(1, min(GROUPS, len(here) // FEW))) if c >= FIRST else []
        for g in range(GROUPS if groups else 0):
            group = groups[min(g, len(groups) - 1)]
            lasts[c, g], nexts[c, g] = last[group].mean(), np.quantile(after[group], NEXT_LEVELS)
    return lasts, nexts


def _code_weights(head: QueryHead, histories: Histories, some: np.ndarray, draws: QueryDraws, count: int) -> Tensor:
    """(3 * codes, WEIGHTS) of each code below a value, by itself and above one: what makes the questions drawn of these
    patients likeliest, for all codes together, and for each with `FEWEST` questions or more by itself, drawn toward
    that of all."""
    found = np.zeros((len(head.share), 3, WEIGHTS))
    found[..., : 2 * COVARIATES] = PRIOR.ravel()
    drawn = _drawn(histories, some, draws, count)
    with torch.no_grad():
        asked = {name: drawn[name][:, None] for name in (*PARTS, "features")}
        values = {"covariates": covariates_of(asked, head.next_share(asked))[:, 0, 0].double()}
        values |= {name: drawn[name] for name in ("first", "end", "weight")}
        values["base"] = F.softplus(head.base(drawn["code"][:, 0])).log().double()
    code, side = drawn["code"][:, 0].numpy(), drawn["side"][:, 0].numpy()
    for sides in ((-1, 1), (0,)):
        of_all = np.flatnonzero(np.isin(side, sides))
        common = _regression(head, {n: part[of_all] for n, part in values.items()}, found[0, sides[0] + 1])
        for s in sides:
            found[:, s + 1] = common
            mine = of_all[side[of_all] == s]
            for c in np.flatnonzero(np.bincount(code[mine], minlength=len(found)) >= FEWEST).tolist():
                here = mine[code[mine] == c]
                found[c, s + 1] = _regression(head, {n: part[here] for n, part in values.items()}, common)
    return torch.from_numpy(found).flatten(0, 1)


def _drawn(histories: Histories, some: np.ndarray, draws: QueryDraws, count: int) -> dict[str, Tensor]:
    """Questions about one code each, drawn of these patients, and what came."""
    questions: dict[str, list[np.ndarray]] = {name: [] for name in (*PARTS, "features", "first", "end", "weight")}
    for epoch in range(min(DRAWS, -(-MOMENTS // len(some)))):
        for i in some.tolist():
            # Epochs below 0: none of these questions is one of the training's.
            came = draws.draw(i, count, seed=0, epoch=-1 - epoch)
            if came is None:
                continue
            chosen = np.flatnonzero((came.asked.code[:, 1:] < 0).all(1))
            asked = came.asked.some(chosen)
            questions["features"].append(features(histories, asked, i, came.moment)[:, :1])
            for name in PARTS:
                questions[name].append(getattr(asked, name)[:, :1])
            questions["first"].append(came.first[chosen])
            questions["weight"].append(came.weight[chosen])
            questions["end"].append(np.full(len(chosen), came.end))
    if not questions["end"]:
        raise UserError(
            f"no question can be asked of {len(some):,} training patients: nothing is observed after their first time",
            hint=f"{setting('until', '2024-06-30')}, the day of the extract, where records are of one time each.",
        )
    return {name: torch.from_numpy(np.concatenate(parts)) for name, parts in questions.items()}


@torch.enable_grad()
def _regression(head: QueryHead, values: dict[str, Tensor], begin: np.ndarray) -> np.ndarray:
    """(WEIGHTS,) what makes what came likeliest, less its squared distance from `begin`; no margin weighs below 0."""
    from scipy.optimize import minimize

    toward = torch.from_numpy(begin)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        weights = torch.tensor(x, requires_grad=True)
        more = (
            along_bins(weights[: 2 * COVARIATES].view(2, COVARIATES), values["covariates"]) + weights[2 * COVARIATES :]
        )
        rates = torch.exp(values["base"] + more).clamp(1e-7, 50)
        each = head.loss(rates, values["first"], values["end"]) * values["weight"]
        whole = each.sum() + ((weights - toward) ** 2).sum()
        whole.backward()
        assert weights.grad is not None
        return float(whole.detach()), weights.grad.numpy()

    free = [(None, None)]
    bounds = 2 * ([(0, None)] * MARGINS + (COVARIATES - MARGINS) * free) + BINS * free
    return minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 200, "ftol": 1e-6}).x
