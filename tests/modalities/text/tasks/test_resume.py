"""An interrupted fine-tuning run goes on to the very weights of one that was not."""

from __future__ import annotations

import itertools
import json
import os
import signal

import pytest

from tiny_folders import folder, sentiment
from unmask.errors import UserError
from unmask.modalities.text.tasks import compare, loop
from unmask.modalities.text.tasks.classify import Classify
from unmask.modalities.text.tasks.finetune import finetune
from unmask.modalities.text.tasks.similarity import Similarity
from unmask.modalities.text.tasks.training import TaskTraining

RUN = {
    "start": "plain",
    "epochs": 3,
    "batch": 8,
    "learning_rate": 3e-3,
    "dropout": 0.1,
    "precision": "fp32",
}
DATA = sentiment(24)


def terminate_at(step, monkeypatch, task):
    """SIGTERM in the middle of a step, once; two more losses are asked for before the first, to see what memory they
    take."""
    really, calls = task.loss, []

    def loss(self, *given):
        calls.append(1)
        if len(calls) == step + 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return really(self, *given)

    monkeypatch.setattr(task, "loss", loss)


@pytest.mark.parametrize(
    ("name", "task", "data", "validation", "more"),
    [
        ("classify", Classify, DATA, DATA[:9], {"evaluate_every": 2}),
        ("classify", Classify, DATA, DATA[:9], {"evaluate_every": 2, "freeze": 1}),
        ("similarity", Similarity, [t for t, _ in DATA], None, {"loss": "simcse", "mlm_weight": 0.5}),
    ],
)
def test_resumed_is_uninterrupted(name, task, data, validation, more, tmp_path, monkeypatch):
    model, whole, out = folder(tmp_path / "model"), tmp_path / "whole", tmp_path / "out"
    given = {"validation": validation, "checkpoints": True, **RUN, **more}
    expected = finetune(model, data, task=name, out=whole, **given)
    terminate_at(5, monkeypatch, task)
    stopped = finetune(model, data, task=name, out=out, **given)
    assert (stopped["stopped"], stopped["steps"], stopped["value"]) == ("signal", 5, None)
    assert not out.exists()
    found = finetune(model, data, task=name, out=out, resume=True, **given)
    assert (found["history"], found["value"]) == (expected["history"], expected["value"])
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    steps = [row["step"] for row in map(json.loads, (out / "metrics.jsonl").open()) if row.get("kind") == "validation"]
    assert steps == [row["step"] for row in expected["history"]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "out", "whole"]


def test_an_interrupted_run_is_neither_overwritten_nor_mixed_up(tmp_path, monkeypatch):
    model, out = folder(tmp_path / "model"), tmp_path / "out"
    terminate_at(2, monkeypatch, Classify)
    finetune(model, DATA, task="classify", out=out, checkpoints=True, **RUN)
    with pytest.raises(UserError, match=r"checkpoint of an interrupted run\n.*resume=True"):
        finetune(model, DATA, task="classify", out=out, checkpoints=True, **RUN)
    other = {"learning_rate": 1e-3}
    for data, settings, told in (
        (DATA[:20], RUN, "the training data: not the same\n"),
        (DATA, RUN | other, r"_rate=0.001, was "),
    ):
        with pytest.raises(UserError, match="started with other data or settings: .*" + told):
            finetune(model, data, task="classify", out=out, resume=True, **settings)
    assert finetune(model, DATA, task="classify", out=out, resume=True, **RUN)["stopped"] == "finished"


def test_with_the_default_start_it_goes_on_from_every_phase(tmp_path, monkeypatch):
    """Killed while the head's start is solved, while the state is chosen (twice), and while all rows are trained on."""

    class Killed(BaseException):
        """What no handler catches."""

    def killed_at(step):
        really, calls = Classify.loss, []

        def loss(self, *given):
            calls.append(1)
            if len(calls) == step:
                raise Killed
            return really(self, *given)

        monkeypatch.setattr(Classify, "loss", loss)
        return calls

    def no_start(*given, **more):
        raise Killed

    monkeypatch.setattr(loop.TextFinetuning, "forecast", lambda self: (0.0, []))  # it asks for losses too
    data, looks = [(f"{text} {i}", label) for i, (text, label) in enumerate(sentiment(48))], itertools.count()
    model, whole, out = folder(tmp_path / "model"), tmp_path / "whole", tmp_path / "out"
    given = RUN | {
        "start": "probe",
        "epochs": 2,
        "evaluate_every": 3,
        "checkpoint_seconds": 1e-3,
        "checkpoints": True,
        "refit": True,
    }
    monkeypatch.setattr(loop, "merit", lambda *given: next(looks))  # each look is better than the one before
    monkeypatch.setattr(compare, "gain", lambda *given, **more: (1.0, 0.0))
    calls = killed_at(0)
    expected = finetune(model, data, task="classify", out=whole, **given)
    chosen, again = expected["steps"], len(calls) - expected["steps"]
    assert (expected["rows_trained_on"], again >= 2) == (48, True)
    with monkeypatch.context() as patched:
        patched.setattr(TaskTraining, "start_head", no_start)
        with pytest.raises(Killed):
            finetune(model, data, task="classify", out=out, **given)
    assert not list(tmp_path.glob(".out*"))  # there was nothing to go on from
    for step in (5, chosen - 4 + 2):  # while choosing, and on all rows
        killed_at(step)
        with pytest.raises(Killed):
            finetune(model, data, task="classify", out=out, resume=True, **given)
        assert not out.exists()
    calls_now = killed_at(0)
    found = finetune(model, data, task="classify", out=out, resume=True, **given)
    assert len(calls_now) == again  # what was chosen is kept, and is not worked out again
    assert (found["history"], found["value"], found["kept"]) == tuple(expected[k] for k in ("history", "value", "kept"))
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "out", "whole"]
