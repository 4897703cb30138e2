"""The fine-tuning loop on a module of one number per member: what is kept, when it stops, and that it goes on where it
was."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from unmask.training.finetune import EpochOrder, Evaluation, Finetunable, FinetuneResult, constant_rate, finetune
from unmask.training.finetune_checkpoints import Checkpointer


class Counting(Finetunable):
    """Every step adds 1 to all members; the looks' scores are given."""

    def __init__(self, scores: list[list[float]], members: int = 1, stop_at: int | None = None) -> None:
        super().__init__(nn.Linear(1, members, bias=False))
        nn.init.zeros_(self.module.weight)
        self.scores, self.stop_at, self.checkpointer = scores, stop_at, None
        self.looks = 0

    def batches(self, epoch: int) -> list[np.ndarray]:
        return [np.arange(2)] * 3

    def backward(self, items: np.ndarray, *, step: int, epoch: int) -> Tensor:
        if self.checkpointer is not None and step == self.stop_at:
            self.checkpointer.signals.requested = True
        self.module.weight.grad = -torch.ones_like(self.module.weight)
        return torch.zeros(())

    def evaluate(self) -> Evaluation:
        self.looks += 1
        return Evaluation(scores=np.array(self.scores[self.looks - 1]), metrics={"looks": float(self.looks)})

    def saved(self) -> dict[str, int]:
        return {"looks": self.looks}

    def restore(self, saved: dict[str, int]) -> None:
        self.looks = saved["looks"]


def run(
    work: Counting, *, steps: int = 6, patience: int | None = None, keep_best: bool = True, **more
) -> FinetuneResult:
    optimiser = torch.optim.SGD(work.module.parameters(), lr=1.0)
    work.keep_best = keep_best
    settings = constant_rate(steps=steps, validate_every=1, patience=patience)
    return finetune(work, optimiser, settings, members=len(work.module.weight), **more)


def weights(work: Counting) -> list[float]:
    return work.module.weight.detach().flatten().tolist()


@pytest.mark.parametrize(
    ("scores", "patience", "kept", "steps", "stopped"),
    [
        ([1, 3, 2, 2, 9, 9], None, 5, 6, "finished"),
        ([1, 3, 2, 2, 9, 9], 2, 2, 4, "early"),
        ([np.nan, 1, np.nan, 0, 0, 0], 2, 2, 4, "early"),
        ([1, 2, 3, 4, 5, 6], 1, 6, 6, "finished"),
    ],
)
def test_the_best_look_is_kept_and_patience_ends_the_run(scores, patience, kept, steps, stopped):
    work = Counting([[s] for s in scores])
    found = run(work, patience=patience)
    assert (found.kept_step, found.steps, found.stopped) == (kept, steps, stopped)
    assert weights(work) == [kept]
    assert found.metrics == {"looks": kept}
    assert work.looks == kept  # what the kind keeps goes back with the weights


def test_the_state_before_the_steps_may_be_the_best():
    work = Counting([[1.0]] * 6)
    found = run(work, first=Evaluation.of(2.0, {"looks": 0.0}))
    assert (found.kept_step, weights(work)) == (0, [0.0])
    assert len(found.history) == 7


def test_members_stop_and_are_kept_each_by_itself():
    work = Counting([[1, 1], [2, 0], [1, 3], [1, 2], [1, 2], [9, 9]], members=2)
    found = run(work, patience=2)
    assert (weights(work), found.steps, found.stopped) == ([2.0, 3.0], 5, "early")


def test_the_last_state_is_kept_where_that_is_asked_for():
    work = Counting([[6], [5], [4], [3], [2], [1]])
    assert (run(work, keep_best=False).metrics, weights(work)) == ({"looks": 6.0}, [6.0])


def test_it_goes_on_where_a_signal_ended_it(tmp_path):
    scores = [[1.0], [4.0], [2.0], [3.0], [2.0], [1.0]]
    whole, first, second = Counting(scores), Counting(scores, stop_at=3), Counting(scores)
    expected = run(whole)
    first.checkpointer = Checkpointer(tmp_path, seconds=1e9, fingerprint={}, resume=False)
    assert run(first, checkpointer=first.checkpointer).stopped == "signal"
    found = run(second, checkpointer=Checkpointer(tmp_path, seconds=1e9, fingerprint={}, resume=True))
    assert (found.history, found.kept_step, weights(second)) == (expected.history, expected.kept_step, weights(whole))
    assert second.looks == whole.looks


@pytest.mark.parametrize("seed", [0, 1])
def test_an_order_within_an_epoch_is_drawn_again_and_the_generator_goes_on(seed):
    def made():
        generator = np.random.default_rng(seed)
        return EpochOrder(generator), generator

    whole, generator = made()
    first = whole.permutation(9, 0)
    generator.random(3)
    saved = json.loads(json.dumps(whole.saved()))
    expected = [generator.random(), *whole.permutation(9, 1)]
    resumed, other = made()
    other.random(50)
    resumed.restore(saved)
    assert resumed.permutation(9, 0).tolist() == first.tolist()
    assert [other.random(), *resumed.permutation(9, 1)] == expected
