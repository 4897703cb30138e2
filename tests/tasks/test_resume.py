"""An interrupted fine-tuning run goes on to the very weights of one that was not."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tiny_folders import folder, sentiment
from unmask.errors import UserError
from unmask.tasks.classify import Classify
from unmask.tasks.finetune import finetune
from unmask.tasks.similarity import Similarity

RUN = {
    "start": "plain",
    "epochs": 3,
    "batch": 8,
    "evaluate_every": 2,
    "learning_rate": 3e-3,
    "dropout": 0.1,
    "precision": "fp32",
}
DATA = sentiment(24)


def terminate_at(step, monkeypatch, task):
    """SIGTERM in the middle of a step, once."""
    really, calls = task.loss, []

    def loss(self, *given):
        calls.append(1)
        if len(calls) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return really(self, *given)

    monkeypatch.setattr(task, "loss", loss)


@pytest.mark.parametrize(
    ("name", "task", "data", "validation", "more"),
    [
        ("classify", Classify, DATA, DATA[:9], {}),
        ("classify", Classify, DATA, DATA[:9], {"freeze": 1}),
        ("similarity", Similarity, [t for t, _ in DATA], None, {"loss": "simcse", "mlm_weight": 0.5}),
    ],
)
def test_resumed_is_uninterrupted(name, task, data, validation, more, tmp_path, monkeypatch):
    model, whole, out = folder(tmp_path / "model"), tmp_path / "whole", tmp_path / "out"
    given = {"validation": validation, "checkpoints": True, **RUN, **more}
    expected = finetune(name, model, data, out=whole, **given)
    terminate_at(5, monkeypatch, task)
    stopped = finetune(name, model, data, out=out, **given)
    assert (stopped["stopped"], stopped["steps"], stopped["value"]) == ("signal", 5, None)
    assert not out.exists()
    found = finetune(name, model, data, out=out, resume=True, **given)
    assert (found["history"], found["value"]) == (expected["history"], expected["value"])
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    steps = [row["step"] for row in map(json.loads, (out / "metrics.jsonl").open()) if row.get("kind") == "validation"]
    assert steps == [row["step"] for row in expected["history"]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "out", "whole"]


def test_an_interrupted_run_is_neither_overwritten_nor_mixed_up(tmp_path, monkeypatch):
    model, out = folder(tmp_path / "model"), tmp_path / "out"
    terminate_at(2, monkeypatch, Classify)
    finetune("classify", model, DATA, out=out, checkpoints=True, **RUN)
    with pytest.raises(UserError, match=r"checkpoint of an interrupted run\n.*--resume"):
        finetune("classify", model, DATA, out=out, checkpoints=True, **RUN)
    other = {"learning_rate": 1e-3}
    for data, settings, told in (
        (DATA[:20], RUN, "the training data: not the same\n"),
        (DATA, RUN | other, r"_rate=0.001, was "),
    ):
        with pytest.raises(UserError, match="started with other data or settings: .*" + told):
            finetune("classify", model, data, out=out, resume=True, **settings)
    assert finetune("classify", model, DATA, out=out, resume=True, **RUN)["stopped"] == "finished"
