"""One run: which folders it takes, in which precision it computes, and that patience survives a resume."""

from __future__ import annotations

from typing import Any

import pytest

from tiny_run import lines, trained
from unmask.errors import UserError
from unmask.training import run as room
from unmask.training.checkpoint import load_latest
from unmask.training.run import run_folder


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
            run_folder(tmp_path / out, resume=False)
    assert run_folder(tmp_path / "new" / "run", resume=False) == tmp_path / "new" / "run"


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
    real = room.save_checkpoint

    def killed(*given: Any, **named: Any) -> None:
        real(*given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(room, "save_checkpoint", killed)
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
