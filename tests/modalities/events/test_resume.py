"""An interrupted fine-tuning of an event model goes on to the very weights of one that was not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from event_data import main_ok

from unmask.cli import main
from unmask.errors import UserError
from unmask.modalities.events.outcome.outcome import HeadFinetuning
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.uses.finetune import finetune_outcome
from unmask.modalities.events.uses.next_visit import finetune_next_visit
from unmask.training.finetune import Finetunable

SHORT = OutcomeSettings(
    epochs=3,
    members=2,
    hidden=8,
    trees=5,
    curve=False,
    baselines=False,
    checkpoint_seconds=1e-9,
)


class Killed(BaseException):
    """What no handler catches."""


def killed() -> None:
    raise Killed


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def at_step(number: int, what: Callable[[], None], work: type[Finetunable], patched: pytest.MonkeyPatch) -> list[int]:
    """Do something in the middle of a step, counted over all trainings of a kind; the steps that were taken."""
    really, taken = work.backward, list[int]()

    def backward(self, *items, **about):
        taken.append(about["step"])
        if len(taken) == number:
            what()
        return really(self, *items, **about)

    patched.setattr(work, "backward", backward)
    return taken


def tuned(task: str, home: Path, out: Path, settings: OutcomeSettings = SHORT, **more) -> dict:
    if task == "outcome":
        return finetune_outcome(
            home / "model", home / "meds", home / "task", out, settings=settings, checkpoints=True, **more
        ).figures
    chosen = replace(settings, codes="DIABETES,HYPERTENSION", trees=0)
    return finetune_next_visit(home / "model", home / "meds", out, settings=chosen, checkpoints=True, **more).figures


@pytest.fixture(autouse=True)
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither figures nor a page: they take longer than the training."""
    monkeypatch.setattr("unmask.modalities.events.uses.finetune.scored", lambda *given, **more: {})
    monkeypatch.setattr("unmask.modalities.events.uses.outcome_report.write", lambda *given, **more: {})


@pytest.mark.parametrize("task", ["outcome", "next-visit"])
def test_resumed_is_uninterrupted(task: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Killed within an epoch of the head's members."""
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        steps = at_step(0, killed, HeadFinetuning, patched)
        whole = tuned(task, home, tmp_path / "whole")
    assert len(steps) >= 18
    with monkeypatch.context() as patched:
        taken = at_step(17, killed, HeadFinetuning, patched)
        with pytest.raises(Killed):
            tuned(task, home, out, resume=True)
    assert taken == steps[:17]
    assert not out.exists()
    with monkeypatch.context() as patched:
        left = at_step(0, killed, HeadFinetuning, patched)
        found = tuned(task, home, out, resume=True)
    assert left == steps[16:]  # what was done is not trained again
    assert found["results"] == whole["results"]
    assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "whole"]


def test_every_training_of_a_run_is_gone_on_with(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A head of its own for its line (five), the model, and each part of the learning curve; and a signal, which saves
    between two checkpoints."""
    settings = replace(SHORT, curve=True, checkpoint_seconds=1e9)
    with monkeypatch.context() as patched:
        steps = at_step(0, killed, HeadFinetuning, patched)
        whole = tuned("outcome", home, tmp_path / "whole", settings)
    assert steps.count(1) == 8
    last = len(steps) - 2
    with monkeypatch.context() as patched:
        at_step(last, terminated, HeadFinetuning, patched)
        stopped = tuned("outcome", home, tmp_path / "out", settings)
    assert (stopped["stopped"], stopped["steps"]) == ("signal", steps[last - 1])
    assert not (tmp_path / "out").exists()
    found = tuned("outcome", home, tmp_path / "out", settings, resume=True)
    assert [row["labels"] for row in found["curve"]] == [row["labels"] for row in whole["curve"]]
    one, other = (tmp_path / name / "model.safetensors" for name in ("whole", "out"))
    assert one.read_bytes() == other.read_bytes()


def test_an_interrupted_run_is_neither_overwritten_nor_mixed_up(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    words = ["finetune", "next-visit", str(home / "model"), str(home / "meds"), "--out", str(tmp_path / "out")]
    small = {"codes": "DIABETES", "epochs": "2", "members": "2", "trees": "0"}
    words += [word for pair in small.items() for word in ("--set", "=".join(pair))]
    with monkeypatch.context() as patched:
        at_step(2, terminated, HeadFinetuning, patched)
        with pytest.raises(SystemExit) as stopped:
            main(words)
    assert stopped.value.code == 128 + signal.SIGTERM
    assert "--resume" in capsys.readouterr().out
    given = {"checkpoints": True, "settings": OutcomeSettings(codes="DIABETES", epochs=2, members=2, trees=0)}
    with pytest.raises(UserError, match=r"\.out\.training: the checkpoint of an interrupted run\n.*resume=True"):
        finetune_next_visit(home / "model", home / "meds", tmp_path / "out", **given)
    other = replace(given["settings"], holdout=0.5)
    with pytest.raises(UserError, match=r"holdout=0\.5, was 0\.2; the labels: not the same"):
        finetune_next_visit(home / "model", home / "meds", tmp_path / "out", settings=other, resume=True)
    main_ok([*words, "--resume"])
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert not list(tmp_path.glob(".out*"))
