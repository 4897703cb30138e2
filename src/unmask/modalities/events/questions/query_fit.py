"""What the answers of a model begin with (the training patients), and how they are calibrated (on held-out ones).

They begin with how often each code comes in each bin of horizons, which values follow a last one, and a regression of
each code's questions on the simple features of the record. The network learns what these cannot predict: it has less to
learn, and its answers are no worse than theirs from the first step on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden
from unmask.core.hashing import Salt, uniform
from unmask.core.inference import inference_mode
from unmask.core.model import MaskedModel
from unmask.errors import UserError, setting
from unmask.evaluation.survival import censored_brier, kaplan_meier, step_values
from unmask.modalities.events.network.codec import EventCodec, EventPrediction
from unmask.modalities.events.questions.queries import (
    BINS,
    PARTS,
    QueryDraws,
    check_end_known,
    ends,
    features,
    history_of,
    horizons,
    query_batch,
    questions_in,
)
from unmask.modalities.events.questions.query_head import (
    CODE_WEIGHTS,
    COVARIATES,
    LAST_GROUPS,
    MARGINS,
    MIN_QUESTIONS,
    NEXT_QUANTILES,
    PRIOR_WEIGHTS,
    QueryHead,
    along_bins,
    covariates_of,
)
from unmask.modalities.events.recipes import EventSettings, moment_of
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
    lasts = np.full((size, LAST_GROUPS), np.nan, np.float32)
    nexts = np.full((size, LAST_GROUPS, len(NEXT_QUANTILES)), np.nan, np.float32)
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
        groups = np.array_split(here, max(1, min(LAST_GROUPS, len(here) // FEW))) if c >= FIRST else []
        for g in range(LAST_GROUPS if groups else 0):
            group = groups[min(g, len(groups) - 1)]
            lasts[c, g], nexts[c, g] = last[group].mean(), np.quantile(after[group], NEXT_QUANTILES)
    return lasts, nexts


def _code_weights(head: QueryHead, histories: Histories, some: np.ndarray, draws: QueryDraws, count: int) -> Tensor:
    """(3 * codes, CODE_WEIGHTS) of each code below a value, by itself and above one: the weights that make the
    questions drawn of these patients likeliest, for all codes together, and for each with `MIN_QUESTIONS` or more by
    itself, drawn toward those of all."""
    found = np.zeros((len(head.share), 3, CODE_WEIGHTS))
    found[..., : 2 * COVARIATES] = PRIOR_WEIGHTS.ravel()
    drawn = _drawn(histories, some, draws, count)
    with torch.no_grad():
        drawn_parts = {name: drawn[name][:, None] for name in (*PARTS, "features")}
        values = {"covariates": covariates_of(drawn_parts, head.next_share(drawn_parts))[:, 0, 0].double()}
        values |= {name: drawn[name] for name in ("first", "end", "weight")}
        values["base"] = F.softplus(head.base(drawn["code"][:, 0])).log().double()
    code, side = drawn["code"][:, 0].numpy(), drawn["side"][:, 0].numpy()
    for sides in ((-1, 1), (0,)):
        of_all = np.flatnonzero(np.isin(side, sides))
        common = _regression(head, {n: part[of_all] for n, part in values.items()}, found[0, sides[0] + 1])
        for s in sides:
            found[:, s + 1] = common
            of_side = of_all[side[of_all] == s]
            for c in np.flatnonzero(np.bincount(code[of_side], minlength=len(found)) >= MIN_QUESTIONS).tolist():
                here = of_side[code[of_side] == c]
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
            chosen = np.flatnonzero((came.queries.code[:, 1:] < 0).all(1))
            queries = came.queries.some(chosen)
            questions["features"].append(features(histories, queries, i, came.moment)[:, :1])
            for name in PARTS:
                questions[name].append(getattr(queries, name)[:, :1])
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
    """(CODE_WEIGHTS,) that make what came likeliest, less their squared distance from `begin`; margins' are not below
    0."""
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


EPOCHS = 20
"""Times that each held-out patient is asked at."""
CALIBRATED = 1024
"""Held-out patients at most."""
KEPT = ("code", "side", "share", "first", "end", "weight")


def start_questions(model: Any, histories: Histories, train: np.ndarray, settings: EventSettings) -> QueryDraws | None:
    """What draws a run's questions; None where it asks none. The model's answers begin at what the training
    patients say."""
    if not settings.questions:
        return None
    if settings.until is None:
        check_end_known(histories.events, train)
    until = None if settings.until in (None, "last") else moment_of(settings.until, "until")
    last = ends(histories.events, train, until)
    edges = horizons(histories.events, train, last, settings.horizon_from, settings.horizon)
    draws, head = QueryDraws(histories, last, QueryDraws.shares(histories, train)), model.queries
    some = np.random.default_rng(0).permutation(train)[:COUNTED]
    head.edges.copy_(torch.from_numpy(edges))
    head.share.copy_(torch.from_numpy(draws.share))
    with torch.no_grad():
        head.base.weight.copy_(torch.from_numpy(base_rates(histories, some, last, edges)).float())
        for held, found in zip((head.lasts, head.nexts), following(histories, some), strict=True):
            held.copy_(torch.from_numpy(found))
    weights = _code_weights(head, histories, some, draws, settings.questions)
    with torch.no_grad():
        head.code_weights.weight.copy_(head.inverse(weights))
    return draws


def calibrate(
    model: Any, draws: QueryDraws, held_out: np.ndarray, settings: EventSettings, seconds: float | None = None
) -> list[dict[str, Any]]:
    """Fit what the answers go through on questions drawn of held-out patients (within `seconds`; None: of `CALIBRATED`
    at most); with too few, there is nothing to fit. Returns figures by kind of question (`by_kind`), each calibrated on
    the other half of these patients."""
    found = _held_out_answers(model, draws, held_out, settings, seconds)
    if found is None:
        return []
    device = next(model.parameters()).device
    head = model.queries.to("cpu")
    with torch.no_grad():
        columns = (torch.from_numpy(found[name]) for name in ("code", "side", "share"))
        found["beyond"] = head.share_of(*columns).double().numpy()
    names = ("rates", "beyond", "first", "end", "weight", "patient")
    rows: list[dict[str, Any]] = []
    if len(found["rates"]) >= 2 * MIN_QUESTIONS and len(np.unique(found["patient"])) > 1:
        hours = float(torch.sqrt(head.edges[0] * head.edges[-1]))
        p = np.zeros(len(found["rates"]))
        for half in (0, 1):
            fit, judged = (np.flatnonzero(found["patient"] % 2 == other) for other in (1 - half, half))
            head.calibrate({name: found[name][fit] for name in names})
            with torch.no_grad():
                rates, beyond = (torch.from_numpy(found[name][judged]).float() for name in ("rates", "beyond"))
                p[judged] = head.probability(rates, torch.full((len(judged),), hours), beyond).numpy()
        rows = by_kind(found, p, hours)
    head.calibrate({name: found[name] for name in names})
    model.to(device)
    return rows


def _held_out_answers(
    model: Any, draws: QueryDraws, held_out: np.ndarray, settings: EventSettings, seconds: float | None
) -> dict[str, np.ndarray] | None:
    """Questions, their uncalibrated rates and what came, one row each; None without any."""
    device, start, seed = next(model.parameters()).device, time.monotonic(), settings.train.seed
    found: dict[str, list[np.ndarray]] = {name: [] for name in ("rates", "patient", *KEPT)}
    order = np.argsort(uniform(seed, held_out, Salt.QUESTION_UNIFORM), kind="stable")[:CALIBRATED]
    with inference_mode(model):
        for number, subject in enumerate(held_out[order].tolist()):
            if seconds is not None and number >= 2 and time.monotonic() - start > seconds:
                break
            # Epochs below 0: none of these questions is one of the training's.
            drawn = (draws.draw(subject, settings.questions, seed=seed, epoch=-1 - e) for e in range(EPOCHS))
            came = [c for c in drawn if c is not None]
            if not came:
                continue
            rows = [[subject]] * len(came)
            extra = query_batch(draws.histories, rows, [[c] for c in came], slots=settings.slots, number=len(came))
            extra = {name: value.to(device) for name, value in extra.items()}
            questions, rates = questions_in(extra), model.rates(extra)
            real = (questions["segment"] != 0).cpu()
            found["rates"].append(rates.double().cpu()[real].numpy())
            found["patient"].append(np.full(int(real.sum()), number))
            for name in KEPT:
                found[name].append(questions[name].cpu()[real].numpy())
    return {name: np.concatenate(parts) for name, parts in found.items()} if found["rates"] else None


def by_kind(found: dict[str, np.ndarray], p: np.ndarray, hours: float) -> list[dict[str, Any]]:
    """Of each kind of question: how many, the mean answer `p` (that it comes within `hours`), how many came
    (Kaplan-Meier), and the Brier score beside that of answering every one with that mean (censored ones by inverse
    probability, Graf and others 1999)."""
    single, beyond = (found["code"] >= 0).sum(1) == 1, found["beyond"]
    sided = (found["side"] != 0).any(1)
    kinds = {
        "a code": single & ~sided,
        "values beyond one that a quarter or more pass": single & sided & (beyond >= 0.25),
        "values beyond one that a twentieth to a quarter pass": single & sided & (beyond >= 0.05) & (beyond < 0.25),
        "values beyond one that less than a twentieth pass": single & sided & (beyond < 0.05),
        "any of several": ~single,
    }
    rows = []
    for kind, chosen in kinds.items():
        if chosen.sum() < MIN_QUESTIONS:
            continue
        first, end, w, q = (part[chosen] for part in (found["first"], found["end"], found["weight"], p))
        time, yes = np.minimum(first, end), first <= end
        came = 1 - float(step_values(*kaplan_meier(time, yes, weight=w), np.array([hours]))[0])
        score, flat = (censored_brier(a, time, yes, hours, w) for a in (q, np.full(len(q), came)))
        mean = float((q * found["weight"][chosen]).sum() / found["weight"][chosen].sum())
        row = {"kind": kind, "n": int(chosen.sum()), "hours": hours, "answer": mean, "came": came}
        rows.append(row | {"brier": score, "brier_of_the_mean": flat})
    return rows


ANSWERS = (
    "Questions drawn of held-out patients, calibrated on the other half of them: the mean answer beside how many came, "
    "and the Brier score beside that of giving every question of the kind the same answer."
)


def answer_rows(found: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of `by_kind`, for the report and the card."""
    if not found:
        return [], []
    headers = ["question", "n", f"answer, within {found[0]['hours']:.3g} hours", "came", "Brier", "Brier of the mean"]
    names = ("answer", "came", "brier", "brier_of_the_mean")
    return headers, [[r["kind"], f"{r['n']:,}", *(f"{r[name]:.3f}" for name in names)] for r in found]


class QueryModel(MaskedModel[EventCodec]):
    """`MaskedModel` with a `QueryHead`.

    The loss of a batch is that of its hidden events and, of the questions that lie beside it, `weight` times theirs:
    both sums, so that parts of a batch add up to the whole of it.
    """

    queries: QueryHead
    weight: float

    def forward(
        self, batch: PackedBatch, hidden: Hidden, wanted: Int[Tensor, " wanted"] | None = None
    ) -> EventPrediction:
        prediction: EventPrediction = super().forward(batch, hidden, wanted)  # type: ignore[assignment]
        if questions_in(batch.extra):
            prediction.extra = self.weight * self.question_loss(batch.extra).sum()
        return prediction

    def question_loss(self, extra: Mapping[str, Tensor]) -> Float[Tensor, "rows queries"]:
        """Nats of each question beside a batch, weighted; 0 at padding."""
        questions, rates = questions_in(extra), self.rates(extra)
        loss = self.queries.loss(rates.flatten(0, 1), questions["first"].flatten(), questions["end"].flatten())
        return loss.view(questions["first"].shape) * questions["weight"].float() * (questions["segment"] != 0)

    def rates(self, extra: Mapping[str, Tensor]) -> Float[Tensor, "rows queries bins"]:
        """Of the questions beside a batch, about histories in which nothing is hidden."""
        values, segment, position = history_of(extra)
        nothing = torch.zeros(segment.shape, dtype=torch.bool, device=segment.device)
        states = self.encoder(self.codec.embed(values, nothing), segment=segment, position=position)
        return self.queries(states, segment, questions_in(extra))
