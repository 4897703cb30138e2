"""How much work choosing and training again on all rows come to, beside the usual loop over the same rows.

It is counted, not timed: the same command does the same on any machine, busy or not, and so does an interrupted run
that goes on. The unit is a slot of a forward pass of the encoder. A slot of a training step counts three; attention
makes slots of longer rows dearer, as in `loop.batch_of`. Optimiser steps are left out (of a MiniLM's on one core one
takes as long as training on 11 slots), and so are convex solves.
"""

from __future__ import annotations

import numpy as np

from unmask.modalities.text.tasks import loop
from unmask.modalities.text.tasks.fit import FittedTask
from unmask.modalities.text.tasks.settings import TaskSettings

USUAL = 8
"""Rows per step of the usual loop, padded to the longest of them: the defaults of transformers' Trainer."""
TRAINING = 3.0
"""Forward passes that a forward and a backward pass take as long as."""
PADDING = 1.07
"""Slots of packed steps for each slot of their texts (1.04 to 1.10 on five sets, steps of 32)."""


def beyond(fitted: FittedTask, settings: TaskSettings) -> float:
    """What choosing took and training again would take, for each unit that the usual loop takes over all rows, for as
    many epochs.

    Args:
        fitted: with rows held out, a state after some training kept.
    """
    checked, outcome = fitted.checked, fitted.outcome
    assert checked is not None
    width = fitted.folder.text.model.encoder.config.width
    rest, held = (cost(np.array([len(e) for e in part.examples]), width) for part in (fitted.training, checked))
    everything = np.concatenate([rest, held])
    items = len(loop.training_items(fitted.task, fitted.training))
    epochs = outcome.steps / -(-items // settings.batch)
    passes = int(fitted.probed is not None) + int(fitted.compared_vectors)
    spent = rest.sum() * (passes + TRAINING * PADDING * epochs) + held.sum() * (passes + 2 + len(outcome.history))
    share = outcome.kept_step / outcome.total
    again = everything.sum() * (passes + TRAINING * PADDING * epochs * share)
    return float((spent + again) / usual(everything, epochs, settings.seed))


def usual(costs: np.ndarray, epochs: float, seed: int) -> float:
    """Work of the usual loop over examples of these costs: every one costs as much as the longest of its step."""
    order = np.random.default_rng([seed, 37]).permutation(len(costs))
    steps = np.split(costs[order], range(USUAL, len(costs), USUAL))
    return float(TRAINING * epochs * sum(len(step) * step.max() for step in steps))


def cost(lengths: np.ndarray, width: int) -> np.ndarray:
    """Work of a forward pass over examples, in slots of a very short one."""
    return lengths * (1 + lengths / (1.85 * width))
