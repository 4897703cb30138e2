"""How a task is trained: one frozen dataclass, on the names of `TrainSettings`. torch is not imported here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from unmask.errors import UserError, setting
from unmask.training.settings import RunSettings, refuse_unread, require

Problem = Literal["auto", "single", "multi", "regression"]
Loss = Literal["auto", "cosent", "multiple_negatives", "simcse"]


@dataclass(frozen=True, kw_only=True)
class TaskSettings(RunSettings):
    """How long, how fast and how carefully to fine-tune; `RunSettings` has the rest of the attributes.

    Attributes:
        epochs: passes over the training data.
        steps: optimiser steps instead of epochs.
        minutes: of training instead of either; the rate falls by the clock, and what was chosen on rows held out of the
            training rows is not trained again on all of them.
        batch: items in an optimiser step; of texts read in windows (tag, answer) windows. They are packed, so a step
            costs what its tokens cost.
        micro_slots: slots in one forward pass; a larger step is run in parts whose gradients add up. None: 2 048 on a
            CPU, 32 768 on a GPU.
        start: 'probe': the head starts as a linear probe of the frozen encoder, rows are held out where no validation
            data is given, and the result is compared with baselines; 'plain': a random head, all rows trained on,
            nothing compared.
        group: column of what must not be split (author, patient, document) between rows trained on and held out, folds
            of probes and of what is calibrated; intervals resample whole groups. Of SQuAD's json 'title' is one.
        baseline: 'tfidf', 'frozen' (vectors of pairs) or 'lookup' (words of tags, sentences of answers): save this
            baseline of the comparison in place of encoder and head.
        held: share of the training rows held out where no validation data is given (at least 40 rows); 0 for none.
        refit: after choosing by rows held out of the training rows, train on all of them by the same recipe. None:
            where a tenth of the rows or more was held out, or the state before training is kept, whose head alone is
            fitted again.
        learning_rate: the peak at the head; None: 5e-5 for an encoder 768 wide, 1e-4 for 384, in inverse proportion.
        layer_decay: each layer learns at this fraction of the rate of the one above it (Howard & Ruder 2018, sec. 3.2);
            1 gives all the same rate.
        beta2, epsilon: AdamW's usual ones.
        dropout: on hidden states and attention, None for the model's own.
        slots: longest input in tokens, None for what the model takes; longer ones are cut (classify, similarity) or
            read in overlapping windows (tag, answer).
        stride: tag, answer: tokens by which such windows overlap.
        evaluate_every: steps between looks at the validation data, None for once per epoch.
        patience: looks without improvement before the run stops; the best state is kept in any case.
        freeze: layers (from the embeddings up) that stay as they are; their output is computed once and kept.
        checkpointing: recompute layers in the backward pass: less memory, about a third more time.
        class_weights: classify: 'balanced' weighs a class by 1 / its frequency; of several labels per text the rows
            that have one by (1 - f) / f, f its frequency.
        problem: classify: what the labels are; 'auto' looks at them.
        abstain: classify: below this probability the answer is marked as abstained; None never.
        threshold: classify: multi-label probability that counts as yes.
        scheme: tag: how spans are written as tags.
        null_threshold: answer: how much likelier no-answer must be than the best span; None fits it on validation data.
        loss: similarity: what is optimised; 'auto' goes by the columns.
        temperature: similarity: of the softmax over in-batch similarities, and CoSENT's scale.
        mlm_weight: similarity: weight of the masked-token loss beside SimCSE's (Gao et al. 2021, sec. 3.1).
        pooling: similarity: 'mean', 'first' or 'max' of the states; 'auto': as the folder says, else mean.
        memory: gigabytes (10^9 bytes) that the process may hold in all; None takes what is free. Less goes through the
            encoder at a time where a step would not fit.
        checkpoint_seconds: seconds between checkpoints, where they are kept.
        examples: show held-out rows in report.html: those it was most wrong about.

    Raises:
        UserError: naming the key, the value and what was expected; settings that nothing reads beside the others.
    """

    epochs: float | None = 3.0
    steps: int | None = None
    minutes: float | None = None
    batch: int = 32
    micro_slots: int | None = None
    start: Literal["probe", "plain"] = "probe"
    group: str | None = None
    baseline: Literal["none", "tfidf", "frozen", "lookup"] = "none"
    held: float = 0.15
    refit: bool | None = None
    learning_rate: float | None = None
    layer_decay: float = 1.0
    beta2: float = 0.999
    epsilon: float = 1e-8
    dropout: float | None = None
    slots: int | None = None
    stride: int = 64
    evaluate_every: int | None = None
    freeze: int = 0
    checkpointing: bool = False
    class_weights: Literal["none", "balanced"] = "none"
    problem: Problem = "auto"
    abstain: float | None = None
    threshold: float = 0.5
    scheme: Literal["bio", "bilou"] = "bio"
    null_threshold: float | None = None
    loss: Loss = "auto"
    temperature: float = 0.05
    mlm_weight: float = 0.1
    pooling: Literal["auto", "mean", "first", "max"] = "auto"
    checkpoint_seconds: float = 300.0
    examples: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, lambda v: v > 0, "more than 0", "epochs", "temperature")
        require(self, lambda v: v > 0, "more than 0, or none", "steps", "learning_rate")
        alone = self.epochs is None and self.steps is None
        require(self, lambda v: v > 0 and alone, "more than 0, instead of epochs and steps", "minutes")
        require(self, lambda v: v > 0, "1 or more", "batch")
        require(self, lambda v: v > 0, "1 or more, or none", "micro_slots", "evaluate_every")
        require(self, lambda v: v >= 8, "8 or more, or none", "slots")
        require(self, lambda v: v >= 0, "0 or more", "stride", "freeze", "mlm_weight")
        require(self, lambda v: 0 <= v <= 0.5, "between 0 and 0.5", "held")
        require(self, lambda v: 0 < v <= 1, "between 0 and 1", "layer_decay")
        require(self, lambda v: 0 <= v < 1, "between 0 and 1, or none", "dropout")
        require(self, lambda v: 0 <= v <= 1, "a probability, or none", "abstain")
        require(self, lambda v: 0 < v < 1, "a probability", "threshold")
        if self.steps is not None and self.epochs is not None:
            refuse_unread(self, ["epochs"], f"with {setting('steps', self.steps)}")
        if self.start == "plain":
            refuse_unread(
                self, ["held", "refit", "baseline"], f"with {setting('start', 'plain')}, which holds no rows out"
            )
        if self.held == 0:
            refuse_unread(self, ["refit"], f"with {setting('held', 0)}")
        if self.minutes is not None:
            refuse_unread(self, ["refit"], f"with {setting('minutes', self.minutes)}")


SLOWEST, FASTEST = 2e-5, 2e-4
"""Rates that are chosen stay between these."""


READ_BY = {
    "classify": ("class_weights", "problem", "abstain", "threshold"),
    "tag": ("scheme",),
    "answer": ("null_threshold",),
    "similarity": ("loss", "temperature", "mlm_weight", "pooling"),
}
"""Settings that one task alone reads."""


def refuse_of_other_tasks(task: str, settings: TaskSettings, *, windowed: bool) -> None:
    """Refuse what this task does not read; `windowed`: it reads long texts in windows."""
    if not windowed:
        refuse_unread(settings, ["stride"], f"of {task}, which cuts long texts")
    default = TaskSettings()
    for other, names in READ_BY.items():
        for name in names if other != task else ():
            if getattr(settings, name) != getattr(default, name):
                raise UserError(
                    setting(name, getattr(settings, name)), hint=f"{other} alone reads it, not {task}: leave it out."
                )


def settled(settings: TaskSettings, width: int) -> TaskSettings:
    """The settings with a rate: 5e-5 for an encoder 768 wide, in inverse proportion to the width for others."""
    if settings.learning_rate is not None:
        return settings
    rate = min(FASTEST, max(SLOWEST, 5e-5 * 768 / width))
    return dataclasses.replace(settings, learning_rate=float(f"{rate:.2g}"))
