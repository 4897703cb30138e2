"""How a task is trained: one frozen dataclass, on the names of `TrainSettings`. torch is not imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unmask.errors import UserError
from unmask.training.settings import check_types

Problem = Literal["auto", "single", "multi", "regression"]
Loss = Literal["auto", "cosent", "multiple_negatives", "simcse"]


@dataclass(frozen=True, kw_only=True)
class FinetuneSettings:
    """How long, how fast and how carefully to fine-tune.

    Attributes:
        epochs: passes over the training data.
        steps: optimiser steps instead of epochs.
        batch: items in an optimiser step; of texts read in windows (tag, answer) windows. They are packed, so a step costs
            what its tokens cost.
        micro_slots: slots in one forward pass; a larger step is run in parts whose gradients add up. None: 4 096 on a CPU,
            32 768 on a GPU.
        learning_rate: the peak at the head; right for base-size encoders, 1e-4 and more for small ones.
        layer_decay: each layer learns at this fraction of the rate of the one above it (Howard & Ruder 2018, sec. 3.2);
            1 gives all the same rate.
        weight_decay, beta1, beta2, epsilon, clip: AdamW's; biases and norms do not decay.
        warmup: fraction of the run over which the rate rises; it then falls linearly (or by `schedule`).
        dropout: on hidden states and attention, None for the model's own.
        slots: longest input in tokens, None for what the model takes; longer ones are cut (classify, similarity) or
            read in overlapping windows (tag, answer).
        stride: tokens by which such windows overlap.
        evaluate_every: steps between looks at the validation data, None for once an epoch.
        patience: looks without improvement before the run stops; the best state is kept in any case.
        freeze: layers (from the embeddings up) that stay as they are; their output is computed once and kept.
        checkpointing: recompute layers in the backward pass: less memory, about a third more time.
        class_weights: 'balanced' weighs a class by 1 / its frequency.
        problem: classify: what the labels are; 'auto' looks at them.
        abstain: classify: below this probability the answer is marked as abstained; None never.
        threshold: classify: multi-label probability that counts as yes.
        scheme: tag: how spans are written as tags.
        null_threshold: answer: how much likelier no-answer must be than the best span; None fits it on validation data.
        loss: similarity: what is optimised; 'auto' goes by the columns.
        temperature: similarity: of the softmax over in-batch similarities, and CoSENT's scale.
        mlm_weight: similarity: weight of the masked-token loss beside SimCSE's (Gao et al. 2021, sec. 3.1).
        pooling: similarity: 'mean', 'first' or 'max' of the states.
        checkpoint_seconds: seconds between checkpoints, where they are kept.
        precision, device, seed: as in pretraining.
    """

    epochs: float = 3.0
    steps: int | None = None
    batch: int = 32
    micro_slots: int | None = None
    learning_rate: float = 5e-5
    layer_decay: float = 1.0
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    clip: float | None = 1.0
    schedule: Literal["linear", "cosine", "wsd", "constant"] = "linear"
    warmup: float = 0.06
    decay: float = 0.1
    minimum_rate: float = 0.0
    dropout: float | None = None
    slots: int | None = None
    stride: int = 64
    evaluate_every: int | None = None
    patience: int | None = None
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
    pooling: Literal["mean", "first", "max"] = "mean"
    checkpoint_seconds: float = 300.0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        check_types(self)
        rules: dict[str, tuple[bool, str]] = {
            "epochs": (self.epochs > 0, "more than 0"),
            "steps": (self.steps is None or self.steps > 0, "more than 0, or none"),
            "batch": (self.batch > 0, "1 or more"),
            "micro_slots": (self.micro_slots is None or self.micro_slots > 0, "1 or more, or none"),
            "learning_rate": (self.learning_rate > 0, "more than 0"),
            "layer_decay": (0 < self.layer_decay <= 1, "between 0 and 1"),
            "warmup": (0 <= self.warmup < 1, "between 0 and 1"),
            "dropout": (self.dropout is None or 0 <= self.dropout < 1, "between 0 and 1, or none"),
            "slots": (self.slots is None or self.slots >= 8, "8 or more, or none"),
            "stride": (self.stride >= 0, "0 or more"),
            "evaluate_every": (self.evaluate_every is None or self.evaluate_every > 0, "1 or more, or none"),
            "patience": (self.patience is None or self.patience > 0, "1 or more, or none"),
            "freeze": (self.freeze >= 0, "0 or more"),
            "abstain": (self.abstain is None or 0 <= self.abstain <= 1, "a probability, or none"),
            "threshold": (0 < self.threshold < 1, "a probability"),
            "temperature": (self.temperature > 0, "more than 0"),
            "mlm_weight": (self.mlm_weight >= 0, "0 or more"),
            "checkpoint_seconds": (self.checkpoint_seconds > 0, "more than 0"),
            "seed": (self.seed >= 0, "0 or more"),
        }
        for name, (fine, expected) in rules.items():
            if not fine:
                raise UserError(f"{name}={getattr(self, name)}", hint=f"Expected {expected}.")
