"""Settings of `unmask pretrain events` and `finetune outcome`, and recipes as data. No torch import."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from unmask.errors import UserError, setting
from unmask.training.settings import (
    TrainSettings,
    apply_run_overrides,
    check_types,
    refuse_unread,
    require,
    require_counts,
    require_shares,
    require_whole_rows,
)


@dataclass(frozen=True, kw_only=True)
class Structure:
    """How a published model reads a history; data, see `STRUCTURES`.

    Attributes:
        clock: parts of `clock.Clock` that encode the time; joined: concatenated with the code's embedding, not added.
        hides: 'all' of a hidden event (code, value, time), or its 'code' and value alone: then its time is known, and
            not a target.
        values: numeric values are read.
        evidence: the head sees which codes are visible in the set of a hidden event, see `codec.Evidence`.
        marks: slots between visits: 'sep' behind each visit (BEHRT), 'visit' [VS] ... [VE] around each and time tokens
            between (CEHR-BERT); never hidden.
        positions: of slots.
        gated: a gated feed-forward.
        post: the norm stands behind each block (BERT) instead of before.
    """

    clock: tuple[str, ...] = ("scales",)
    joined: bool = False
    hides: Literal["all", "code"] = "all"
    values: bool = True
    evidence: bool = False
    marks: Literal["none", "sep", "visit"] = "none"
    positions: Literal["learned", "rotary", "none"] = "rotary"
    gated: bool = False
    post: bool = False


STRUCTURES: dict[str, Structure] = {
    "ours": Structure(evidence=True),
    "behrt": Structure(
        clock=("age_months", "visit_waves", "segment"),
        hides="code",
        values=False,
        marks="sep",
        positions="none",
        post=True,
    ),
    "medbert": Structure(clock=("visit_number",), hides="code", values=False, positions="learned", post=True),
    "cehrbert": Structure(
        clock=("time_sines", "age_sines", "order_waves"),
        joined=True,
        hides="code",
        marks="visit",
        positions="none",
        post=True,
    ),
    "corebehrt": Structure(clock=("segment", "time2vec_age", "time2vec_time"), hides="code", values=False, gated=True),
}
"""BEHRT: a position is the number of the visit. Med-BERT: the visit number as segment, no time. CEHR-BERT: time, age
and visit order joined to the code, artificial time tokens. CORE-BEHRT: Time2Vec of age and of absolute time."""


def structure_of(settings: EventSettings) -> Structure:
    """The structure that the settings name."""
    return STRUCTURES[settings.structure]


@dataclass(frozen=True, kw_only=True)
class EventSettings:
    """What is trained on patients' events. `train` says how long and how fast.

    Attributes:
        structure: how a history is read: 'ours', or as behrt, medbert, cehrbert, corebehrt did; see STRUCTURES.
        architecture: 'visible_only' (hidden slots dropped, small decoder) or 'in_place'.
        width, layers, heads, inner: of the encoder.
        slots: longest history; of longer ones static events and the latest whole time stamps are kept.
        window: time stamps on either side that a slot sees in local layers; 0: every layer sees the whole history. Pays
            for histories of some thousand slots: docs/explanation/measured-events.md.
        global_every: with a window, layers 0, this, twice this, ... see the whole history; 0: none does.
        floor: codes seen less often share one number.
        rollup: shorter codes: 'parts:N', 'characters:N' (of the last part), or 'parents', which lets a rare code stand
            for its parent in metadata/codes.parquet.
        ratio: share of the events to hide.
        ratio_from: each history's share is drawn between this and `ratio`, anew each epoch: a model that was trained on
            half records alone predicts badly for a record with a single hole. None: `ratio` for all.
        hide: whole 'visit's (events of one time stamp), single 'event's, or 'mixed': visits in every fourth history,
            drawn anew each epoch.
        select: 'package.module:name' of a selector of your own, instead of `hide`; see CONTRIBUTING.md.
        mask, random, keep: what stands in hidden slots.
        code_weight, value_weight, time_weight: of the three targets; 0 leaves one out.
        questions: questions per history and epoch ("is this code in the record within dt after t?"), trained in
            addition to the masked events; `unmask ask` needs them. 0: none.
        question_weight: weight of a question's loss; that of a hidden event is 1.
        horizon_from, horizon: the shortest and the longest dt of the questions, in hours. None: the longest is the
            length that nine in ten records do not exceed, five years at most; the shortest a thousandth of it, an hour
            at least.
        until: with questions, the end of observation of all patients (the extract's date, '2024-06-30', or a time,
            UTC), or 'last' where the last event is the end. None: the OBSERVATION_END events, or without these the last
            event, which is refused where visits are rare (see `queries.check_end_known`).
        holdout: share of patients held out for validation, 4,096 patients at most. Not read where the data's splits
            have a tuning part: then those are.
        store: 'memory' keeps the events there (16 bytes each), 'disk' in files that are mapped; auto takes the disk for
            more than a quarter of the free memory, or 2 GB.
        store_folder: where those files go; none is the folder `events` of the run. Several runs can share a folder
            given here.
    """

    structure: Literal["ours", "behrt", "medbert", "cehrbert", "corebehrt"] = "ours"
    architecture: Literal["visible_only", "in_place"] = "visible_only"
    width: int = 64
    layers: int = 2
    heads: int = 4
    inner: int = 128
    slots: int = 512
    window: int = 0
    global_every: int = 3
    floor: int = 5
    rollup: str = ""
    ratio: float = 0.6
    ratio_from: float | None = 0.1
    hide: Literal["mixed", "visit", "event"] = "mixed"
    select: str | None = None
    mask: float = 1.0
    random: float = 0.0
    keep: float = 0.0
    code_weight: float = 1.0
    value_weight: float = 1.0
    time_weight: float = 0.1
    questions: int = 0
    question_weight: float = 4.0
    horizon_from: float | None = None
    horizon: float | None = None
    until: str | None = None
    holdout: float = 0.05
    store: Literal["auto", "memory", "disk"] = "auto"
    store_folder: str | None = None
    train: TrainSettings = field(
        default_factory=lambda: TrainSettings(epochs=10.0, batch_slots=4096, learning_rate=2e-3)
    )

    def __post_init__(self) -> None:
        check_types(self)
        require_counts(self, "width", "layers", "heads", "inner", "slots", "floor")
        require(self, lambda v: v >= 0, "a whole number, 0 or more", "window", "global_every", "questions")
        require(self, lambda v: 0 < v < math.inf, "a number above 0", "question_weight")
        require(self, lambda v: v is None or 0 < v < math.inf, "hours above 0, or none", "horizon_from", "horizon")
        if self.horizon is not None and self.horizon <= (self.horizon_from or 0):
            raise UserError(
                f"horizon={self.horizon} and horizon_from={self.horizon_from}", hint="The longest is above the other."
            )
        if self.until not in (None, "last"):
            moment_of(self.until, "until")
        require_shares(self, "ratio", "holdout")
        expected = f"a share up to ratio={self.ratio}, or none"
        require(self, lambda v: v is None or 0 <= v <= self.ratio, expected, "ratio_from")
        require(self, lambda v: v >= 0, "a number, 0 or more", "code_weight", "value_weight", "time_weight")
        if not (self.code_weight or self.value_weight or self.time_weight):
            raise UserError("code_weight, value_weight and time_weight are all 0", hint="Train one of them at least.")
        shape = STRUCTURES[self.structure]
        for name, wrong in (("time_weight", shape.hides == "code"), ("value_weight", not shape.values)):
            if wrong and getattr(self, name):
                raise UserError(
                    f"{name}={getattr(self, name)} with structure={self.structure}",
                    hint=f"What this structure shows of hidden events is no target: {name}=0.",
                )
        require_whole_rows(self)


def check_read(settings: EventSettings) -> None:
    """Refuse a setting that nothing reads with the others."""
    if not settings.questions:
        of_questions = ("question_weight", "horizon_from", "horizon", "until")
        refuse_unread(settings, of_questions, f"without {setting('questions', 16)}")
    if not settings.window:
        refuse_unread(settings, ["global_every"], "without a window")
    if settings.architecture == "visible_only":
        dropped = setting("architecture", "visible_only")
        refuse_unread(settings, ("mask", "random", "keep"), f"with {dropped}, which drops hidden slots")
    if settings.select is not None:
        refuse_unread(settings, ["hide"], f"with {setting('select', settings.select)}")
    if settings.store == "memory":
        refuse_unread(settings, ["store_folder"], f"with {setting('store', 'memory')}")


def moment_of(given: str, name: str) -> int:
    """Microseconds of a day (its end) or a time, UTC where it names no zone.

    >>> moment_of("1970-01-02T00:00", "until")
    86400000000
    """
    try:
        found = datetime.fromisoformat(given)
    except ValueError:
        raise UserError(
            f"{name}={given}: not a day or a time", hint="Such as 2024-06-30, or 2024-06-30T12:00."
        ) from None
    found = found.replace(tzinfo=found.tzinfo or UTC)
    whole = len(given) <= len("2024-06-30")
    return round(found.timestamp() * 1_000_000) + (24 * 3_600_000_000 - 1 if whole else 0)


Problem = Literal["auto", "single", "regression"]
"""What labels that are numbers are: one class per point, or an amount; 'auto' looks at them, and asks where they may be
either."""


@dataclass(frozen=True, kw_only=True)
class OutcomeSettings:
    """The outcome head.

    Attributes:
        problem: of labels that are whole numbers, whether they are classes ('single') or amounts ('regression').
        level: of amounts, the share of the points whose interval should hold the number.
        members: small networks averaged; each stops early on a different share of the training patients. 0 for none, of
            a yes or no and of classes.
        trees: randomised trees averaged with the networks, for binary labels, classes and numbers only; 0 for none.
        boosting: rounds of gradient boosting averaged with both, for the same labels; 0 for none.
        hidden: width of a member's hidden layer.
        dropout, weight_decay, learning_rate, epochs, patience: of a member's training.
        holdout: share of labelled patients that no member and no baseline sees: the report is about them. Where
            the data's splits hold patients out, those are.
        states: use the pretrained encoder's pooled states. None: where the model knows more codes than the summaries
            hold (200), or where these are left out; with every code in the summaries, states added nothing.
        summaries: use each code's last, min, max, mean and count.
        answers: use the model's answers to a panel of questions about what is to come; it must have been pretrained
            with questions (--recipe ask).
        worth: measure on the training patients alone, in five folds, how much states, answers, summaries, networks,
            trees and boosting each improve predictions, and leave out those that do not; some twenty more fits.
        baselines: also fit prevalence, last values, logistic regression and gradient boosting; for next visits
            frequency, what was seen before and co-occurrence.
        codes: next-visit: the prefixes of the codes to predict, separated by commas.
        visit_gap: next-visit: hours without an event after which another visit begins, where the data names no
            encounters; 0: every time stamp is a visit.
        curve: of outcomes, fit all of them on 10, 25 and 50 % of the training labels too.
        most_unknown: data of whose events a larger share has codes that the model does not know is refused.
        checkpoint_seconds: between checkpoints, where they are kept, from which an interrupted run is resumed.
        examples: of outcomes, show the record of the held-out patient at highest risk in report.html.
        seed, precision, device: as in pretraining.
    """

    problem: Problem = "auto"
    level: float = 0.9
    members: int = 5
    trees: int = 300
    boosting: int = 300
    hidden: int = 64
    dropout: float = 0.3
    weight_decay: float = 0.3
    learning_rate: float = 2e-3
    epochs: int = 40
    patience: int = 6
    holdout: float = 0.2
    states: bool | None = None
    summaries: bool = True
    answers: bool = False
    worth: bool = False
    baselines: bool = True
    curve: bool = True
    most_unknown: float = 0.5
    codes: str = "CONDITION,DIAGNOSIS"
    visit_gap: float = 24.0
    checkpoint_seconds: float = 120.0
    examples: bool = False
    seed: int = 0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        check_types(self)
        require_counts(self, "hidden", "epochs", "patience")
        require(self, lambda v: v >= 0, "a whole number, 0 or more", "members", "trees", "boosting")
        require_shares(self, "dropout", "holdout")
        require(self, lambda v: 0 <= v <= 1, "a share between 0 and 1", "most_unknown")
        require(self, lambda v: 0 <= v < math.inf, "hours, 0 or more", "visit_gap")
        require(self, lambda v: 0.5 <= v < 1, "a share from 0.5, below 1", "level")
        require(self, lambda v: 0 < v < math.inf, "a number above 0", "checkpoint_seconds", "learning_rate")
        require(self, lambda v: 0 <= v < math.inf, "a number, 0 or more", "weight_decay")
        if self.states is False and not (self.summaries or self.answers):
            raise UserError("states=false, summaries=false and answers=false", hint="The head needs one of them.")
        if not (self.members or self.trees or self.boosting):
            raise UserError("members=0, trees=0 and boosting=0", hint="The head needs one of them.")


def check_outcome_read(settings: OutcomeSettings, kind: str, *, own_splits: bool, checkpoints: bool) -> None:
    """Refuse settings that nothing reads with a target of this kind ('multi_label' is that of next-visit), with splits
    of the data's own, or without checkpoints."""
    amounts, visits = kind == "number", kind == "multi_label"
    if not amounts:
        refuse_unread(settings, ["level"], "of labels that are no amounts")
    if kind not in ("binary", "classes", "number"):
        unread = [name for name in ("trees", "boosting") if getattr(settings, name)]
        refuse_unread(settings, unread, "of next visits" if visits else "of times to an event")
    if not settings.members and kind not in ("binary", "classes"):
        raise UserError(
            f"members=0 {'of amounts' if amounts else 'of next visits' if visits else 'of times to an event'}",
            hint=f"Networks alone say all that is predicted of them: {setting('members', 5)}.",
        )
    if visits:
        refuse_unread(settings, ["problem", "worth", "examples"], "in finetune next-visit")
    else:
        refuse_unread(settings, ["codes", "visit_gap"], "in finetune outcome")
    if own_splits:
        refuse_unread(settings, ["holdout"], "of data whose splits say who is held out")
    if not checkpoints:
        refuse_unread(settings, ["checkpoint_seconds"], "where no checkpoints are kept")


OURS: Mapping[str, Any] = {}
ASK: Mapping[str, Any] = {"questions": 16}
"""Ours, and questions about what is to come (EveryQuery, arXiv 2603.07900): what `unmask ask` needs."""
BEHRT: dict[str, Any] = {"structure": "behrt", "architecture": "in_place", "width": 288, "layers": 6, "heads": 12}
BEHRT |= {"inner": 512, "slots": 128, "ratio": 0.15, "ratio_from": None, "hide": "event", "mask": 0.8, "random": 0.1}
BEHRT |= {"keep": 0.1, "value_weight": 0.0, "time_weight": 0.0}
"""Li et al. 2020: 15 % of the codes, 80/10/10. 128 slots, where the original has 64 to 100."""
MEDBERT = BEHRT | {"structure": "medbert", "width": 192, "heads": 6, "inner": 64, "slots": 512, "ratio": 1e-6}
"""Rasmy et al. 2021, config.json: one code a patient (the ratio rounds to none, and at least one is always hidden)."""
CEHRBERT = BEHRT | {"structure": "cehrbert", "width": 128, "layers": 5, "heads": 8, "inner": 512, "slots": 512}
"""Pang et al. 2021: 15 %; the second objective, the visit's type, is absent from the published port and here."""
COREBEHRT = BEHRT | {"structure": "corebehrt", "width": 192, "layers": 6, "heads": 6, "inner": 384, "slots": 512}
"""Odgaard et al. 2024: background facts first, Time2Vec, rotary positions, gated feed-forward."""

RECIPES: dict[str, Mapping[str, Any]] = {
    "ours": OURS,
    "ask": ASK,
    "behrt": BEHRT,
    "medbert": MEDBERT,
    "cehrbert": CEHRBERT,
    "corebehrt": COREBEHRT,
}


with_overrides = apply_run_overrides
