"""One run: which folders it takes, in which precision it computes, and that patience survives a resume."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from tiny_run import job, lines, trained
from unmask.errors import UserError
from unmask.training import compute, validation
from unmask.training import run as room
from unmask.training.processes import load_latest
from unmask.training.run import check_run_folder, run
from unmask.training.settings import TrainSettings


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_model_that_no_run_here_made_is_not_replaced(tmp_path, name, resume):
    (tmp_path / name).write_text("mine")
    with pytest.raises(UserError, match="already holds a run or a model"):
        trained(tmp_path, resume)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_file_is_no_runs_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in ("file", "file/run"):
        with pytest.raises(UserError, match="file is not a folder"):
            check_run_folder(tmp_path / out, resume=False)
    assert check_run_folder(tmp_path / "new" / "run", resume=False) == tmp_path / "new" / "run"


def test_a_launchers_precision_is_not_on_top_of_ours(tmp_path, monkeypatch):
    from accelerate.state import AcceleratorState

    trained(tmp_path / "alone")
    AcceleratorState._reset_state(reset_partial_state=True)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    trained(tmp_path / "launched")
    AcceleratorState._reset_state(reset_partial_state=True)
    alone, launched = ([line["loss"] for line in lines(tmp_path / n, "train")] for n in ("alone", "launched"))
    assert alone == launched


def test_a_resumed_run_validates_where_the_whole_one_does(tmp_path, monkeypatch):
    trained(tmp_path / "whole", steps=50)
    real = compute.save_checkpoint

    def killed(*given: Any, **named: Any) -> None:
        real(*given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(compute, "save_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parts", steps=50, checkpoint_every=5)
    monkeypatch.undo()
    trained(tmp_path / "parts", True, steps=50, checkpoint_every=5)
    whole, parts = ([line["step"] for line in lines(tmp_path / n, "validation")] for n in ("whole", "parts"))
    assert whole == parts


def test_a_run_that_stopped_early_stays_so_until_it_is_given_another_end(tmp_path):
    impatient = {"patience": 1, "validate_every": 1, "learning_rate": 1e-9}
    first = trained(tmp_path, steps=40, **impatient)
    assert first.stopped == "early"
    again = trained(tmp_path, True, steps=40, **impatient)
    assert (again.stopped, again.steps) == ("early", first.steps)
    assert again.validation == first.validation
    assert load_latest(tmp_path).step == first.steps
    assert trained(tmp_path, True, steps=41, **impatient).steps > first.steps


def falling_then_rising(monkeypatch, losses: list[float]) -> None:
    """Held-out losses as planned; what the model does otherwise stays as it is."""
    looks = iter(losses)
    monkeypatch.setattr(validation.Validation, "metrics", lambda *_: {"loss": next(looks, 9.0)})


@pytest.mark.parametrize("resumed", [False, True])
def test_patience_keeps_the_best_weights_not_the_last(tmp_path, monkeypatch, resumed):
    """Looks of 3, 1, 2, 2: the run stops after the fourth step and keeps the weights of the second."""
    states: dict[int, Any] = {}
    keep = room.BestWeights.keep

    def noted(self: Any, model: Any, step: int, *, write: bool) -> None:
        keep(self, model, step, write=write)
        states[step] = self.state

    monkeypatch.setattr(room.BestWeights, "keep", noted)
    impatient = {"patience": 2, "validate_every": 1, "checkpoint_every": 1}
    if resumed:
        falling_then_rising(monkeypatch, [3.0, 1.0, 2.0])
        real = compute.save_checkpoint

        def killed(*given: Any, **named: Any) -> None:
            real(*given, **named)
            if named["step"] == 3:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(compute, "save_checkpoint", killed)
            with pytest.raises(KeyboardInterrupt):
                trained(tmp_path, steps=40, **impatient)
        falling_then_rising(monkeypatch, [2.0])
    else:
        falling_then_rising(monkeypatch, [3.0, 1.0, 2.0, 2.0])
    saved: list[Any] = []
    settings = TrainSettings(steps=40, precision="fp32", device="cpu", **impatient)
    for again in (resumed, True):  # once more: the run is over, and gives the same model
        result = run(
            job(), tmp_path, settings, resume=again, console=False, save=lambda m: saved.append(m.state_dict())
        )
        assert (result.stopped, result.steps, result.kept_step) == ("early", 4, 2)
        assert all((saved[-1][name] == tensor).all() for name, tensor in states[2].items())


def test_a_guard_that_speaks_at_once_leaves_the_model_as_it_was(tmp_path, monkeypatch):
    work = dataclasses.replace(job(), stop_when=lambda metrics: True)
    before = {name: tensor.clone() for name, tensor in work.model.state_dict().items()}
    settings = TrainSettings(steps=10, validate_every=1, precision="fp32", device="cpu")
    result = run(work, tmp_path, settings, console=False)
    assert (result.stopped, result.steps, result.kept_step) == ("early", 1, 0)
    assert all((work.model.state_dict()[name] == tensor).all() for name, tensor in before.items())


def test_compiling_is_refused_on_cpus_with_what_was_measured(tmp_path):
    """It took 186 s for 8 steps, with 43 graph breaks and 39 recompilations."""
    with pytest.raises(UserError, match=r"compile=true on a CPU: .* 186 s"):
        trained(tmp_path / "run", compile=True)
    assert not list((tmp_path / "run").glob("*.json*"))


def test_checkpoints_by_the_clock_cost_at_most_two_percent(tmp_path, monkeypatch):
    """At 110 M parameters they stopped the loop for 7 s every 120 s. One that takes 50 ms is due every 2.5
    s at most."""
    real, made = compute.save_checkpoint, []

    def slow(*given: Any, **named: Any) -> None:
        made.append(named["step"])
        clock[0] += 0.05
        real(*given, **named)

    clock = [0.0]
    monkeypatch.setattr(compute, "save_checkpoint", slow)
    monkeypatch.setattr(room.time, "monotonic", lambda: clock[0])

    def step(*given: Any, **named: Any) -> Any:
        clock[0] += 0.25
        return update(*given, **named)

    update = room.step
    monkeypatch.setattr(room, "step", step)
    trained(tmp_path, steps=40, checkpoint_seconds=0.5)
    between = [b - a for a, b in itertools.pairwise(made)]
    assert made[0] == 3
    assert set(between[:-1]) <= {10, 11}  # 2.5 s


def test_another_number_of_threads_is_warned_of(tmp_path, monkeypatch):
    trained(tmp_path, steps=2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    with pytest.warns(UserWarning, match=r"computed on \d+ threads and goes on with 7: .*bit for bit"):
        trained(tmp_path, True, steps=4)
