"""What the answers of a model begin with (the training patients), and how they are calibrated (on held-out ones)."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.core.batch import PackedBatch
from unmask.core.corruption import Hidden
from unmask.core.hashing import Salt, uniform
from unmask.core.inference import inference_mode
from unmask.core.model import MaskedModel
from unmask.evaluation.survival import kaplan_meier, step_values
from unmask.modalities.events.network.codec import EventCodec, EventPrediction
from unmask.modalities.events.questions.queries import QueryDraws, check_end_known, ends, horizons
from unmask.modalities.events.questions.query_batches import history_of, query_batch
from unmask.modalities.events.questions.query_head import FEWEST, QueryHead, questions_in
from unmask.modalities.events.questions.query_start import start
from unmask.modalities.events.recipes import EventSettings, moment_of
from unmask.modalities.events.records.histories import Histories

EPOCHS = 20
"""Times that each held-out patient is asked at."""
CALIBRATED = 1024
"""Held-out patients at most."""
KEPT = ("code", "side", "share", "first", "end", "weight")


def start_questions(model: Any, histories: Histories, train: np.ndarray, settings: EventSettings) -> QueryDraws | None:
    """What draws a run's questions; None where it asks none. The model's answers begin at what the training
    patients say (`query_start`)."""
    if not settings.questions:
        return None
    if settings.until is None:
        check_end_known(histories.events, train)
    until = None if settings.until in (None, "last") else moment_of(settings.until, "until")
    last = ends(histories.events, train, until)
    edges = horizons(histories.events, train, last, settings.horizon_from, settings.horizon)
    draws = QueryDraws(histories, train, last, QueryDraws.shares(histories, train))
    start(model.queries, histories, train, draws, edges, settings.questions)
    return draws


def calibrate(
    model: Any, draws: QueryDraws, held_out: np.ndarray, settings: EventSettings, seconds: float | None = None
) -> list[dict[str, Any]]:
    """Fit what the answers go through on questions drawn of held-out patients; with too few, there is nothing to fit.

    Args:
        seconds: that the drawing may take; None: until every held-out patient was asked (`CALIBRATED` at most).

    Returns:
        figures of the answers by kind of question (`by_kind`), each calibrated on the other half of these patients.
    """
    found = _held_out_answers(model, draws, held_out, settings, seconds)
    if found is None:
        return []
    device = next(model.parameters()).device
    head = model.queries.to("cpu")
    with torch.no_grad():
        told = (torch.from_numpy(found[name]) for name in ("code", "side", "share"))
        found["beyond"] = head.share_of(*told).double().numpy()
    names = ("rates", "beyond", "first", "end", "weight", "patient")
    rows: list[dict[str, Any]] = []
    if len(found["rates"]) >= 2 * FEWEST and len(np.unique(found["patient"])) > 1:
        hours = float(torch.sqrt(head.edges[0] * head.edges[-1]))
        p = np.zeros(len(found["rates"]))
        for half in (0, 1):
            fit, judged = (np.flatnonzero(found["patient"] % 2 == other) for other in (1 - half, half))
            head.calibrate(*(found[name][fit] for name in names))
            with torch.no_grad():
                rates, beyond = (torch.from_numpy(found[name][judged]).float() for name in ("rates", "beyond"))
                p[judged] = head.probability(rates, torch.full((len(judged),), hours), beyond).numpy()
        rows = by_kind(found, p, hours)
    head.calibrate(*(found[name] for name in names))
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
            beside = query_batch(draws.histories, rows, [[c] for c in came], slots=settings.slots, number=len(came))
            beside = {name: value.to(device) for name, value in beside.items()}
            asked = {name[6:]: value for name, value in beside.items() if name.startswith("asked.")}
            values = {n[8:]: v for n, v in beside.items() if n.startswith("history.") and not n.startswith("history..")}
            rates = model.rates(values, beside["history..segment"], beside["history..position"], asked)
            real = (asked["segment"] != 0).cpu()
            found["rates"].append(rates.double().cpu()[real].numpy())
            found["patient"].append(np.full(int(real.sum()), number))
            for name in KEPT:
                found[name].append(asked[name].cpu()[real].numpy())
    return {name: np.concatenate(parts) for name, parts in found.items()} if found["rates"] else None


def by_kind(found: dict[str, np.ndarray], p: np.ndarray, hours: float) -> list[dict[str, Any]]:
    """Of each kind of question: how many, the mean answer, how many came (Kaplan-Meier), and the Brier score beside
    that of answering every one with that mean (censored ones by inverse probability, Graf and others 1999).

    Args:
        found: code, side, beyond, first, end and weight of the questions.
        p: answers, that each comes within `hours`.
    """
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
        if chosen.sum() < FEWEST:
            continue
        first, end, w, q = (part[chosen] for part in (found["first"], found["end"], found["weight"], p))
        time, yes = np.minimum(first, end), first <= end
        came = 1 - float(step_values(*kaplan_meier(time, yes, weight=w), np.array([hours]))[0])
        at, kept = kaplan_meier(time, ~yes, weight=w)
        known = np.where(yes & (time <= hours), True, time >= hours)
        # The chance of not being censored before it was known; a yes stands before the end at the same time.
        chance = step_values(at, kept, np.nextafter(np.minimum(time, hours), 0))
        w = w * known / np.maximum(chance, 1e-3)
        y = yes & (time <= hours)
        score, flat = (float((w * (a - y) ** 2).sum() / w.sum()) for a in (q, np.full(len(q), came)))
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
        asked = questions_in(batch)
        if asked is not None:
            prediction.beside = self.weight * self.question_loss(batch, asked).sum()
        return prediction

    def question_loss(self, batch: PackedBatch, asked: dict[str, Tensor]) -> Float[Tensor, "rows asked"]:
        """Nats of each question, weighted; 0 at padding."""
        values, segment, position = history_of(batch)
        rates = self.rates(values, segment, position, asked)
        loss = self.queries.loss(rates.flatten(0, 1), asked["first"].flatten(), asked["end"].flatten())
        return loss.view(asked["first"].shape) * asked["weight"].float() * (asked["segment"] != 0)

    def rates(
        self, values: dict[str, Tensor], segment: Tensor, position: Tensor, asked: dict[str, Tensor]
    ) -> Float[Tensor, "rows asked bins"]:
        """Of questions about histories in which nothing is hidden."""
        nothing = torch.zeros(segment.shape, dtype=torch.bool, device=segment.device)
        states = self.encoder(self.codec.embed(values, nothing), segment=segment, position=position)
        return self.queries(states, segment, asked)
