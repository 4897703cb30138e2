"""A step of many slots runs in parts: the same weights, less memory; windows of one text are items of their own."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from tiny_folders import folder, sentiment
from unmask.errors import UserError
from unmask.memory import Free
from unmask.modalities.text.tasks import loop
from unmask.modalities.text.tasks.finetune import finetune
from unmask.training import budget
from unmask.training.budget import Need

PLAIN = {"start": "plain", "epochs": 2, "batch": 8, "learning_rate": 1e-3, "precision": "fp32", "dropout": 0.0}


def spans(n: int = 16):
    return [
        {
            "text": f"the fox {i} runs in Berlin and the dog {'sleeps ' * (i % 5)}",
            "entities": [{"start": 0, "end": 3, "label": "X"}],
        }
        for i in range(n)
    ]


@pytest.mark.parametrize(
    ("task", "data", "options"),
    [("classify", sentiment(24), {}), ("classify", sentiment(24), {"class_weights": "balanced"}), ("tag", spans(), {})],
)
def test_a_step_in_parts_gives_the_weights_of_the_whole_step(task, data, options, tmp_path):
    model = folder(tmp_path / "model")
    found = []
    for name, slots in (("whole", 10_000), ("parts", 12)):
        finetune(model, data, task=task, out=tmp_path / name, micro_slots=slots, **PLAIN, **options)
        found.append(load_file(tmp_path / name / "model.safetensors"))
    for name, whole in found[0].items():
        assert np.abs(whole - found[1][name]).max() < 1e-5, name


def test_no_forward_pass_is_larger_than_asked_for(tmp_path, monkeypatch):
    """Eight questions about a text of some 25 windows: 200 windows, of which a step takes eight, and a pass two."""
    model = folder(tmp_path / "model")
    context = "the fox runs over the lazy dog . " * 60
    data = [
        {"question": f"what {i} ?", "context": context, "answers": {"text": ["fox"], "answer_start": [4]}}
        for i in range(8)
    ]
    seen = []
    whole = loop.batch_of
    monkeypatch.setattr(
        loop, "batch_of", lambda examples, numbers, *rest: seen.append(len(numbers)) or whole(examples, numbers, *rest)
    )
    result = finetune(
        model,
        data,
        task="answer",
        out=tmp_path / "out",
        slots=32,
        stride=8,
        micro_slots=64,
        steps=4,
        batch=8,
        precision="fp32",
    )
    assert result["steps"] == 4
    assert max(seen) == 2
    assert len(seen) == 2 + 16  # two to see what memory they take


def test_less_goes_through_the_encoder_where_memory_is_short_and_the_weights_are_the_same(tmp_path, monkeypatch):
    model, said, found = folder(tmp_path / "model"), [], []
    need = Need(lasting=0.0, saving=0.0, any_batch=0.0, row=100e6)
    monkeypatch.setattr(loop, "measure_loss", lambda *_, **__: need)
    for name, free in (("whole", 20e9), ("parts", 600e6)):
        monkeypatch.setattr(budget, "free_memory", lambda *_, free=free, **__: Free(free, "a test"))
        result = finetune(model, sentiment(24), task="classify", out=tmp_path / name, say=said.append, **PLAIN)
        found.append(load_file(tmp_path / name / "model.safetensors"))
        assert result["expected_memory_mb"] > 150
    assert [line.startswith("memory: about") for line in said if "memory" in line] == [True, True]
    assert [line for line in said if "no more than" in line and "slots go through" in line]
    for name, whole in found[0].items():
        assert np.abs(whole - found[1][name]).max() < 1e-5, name


def test_a_model_that_cannot_be_trained_in_the_memory_is_refused_before_it_starts(tmp_path):
    with pytest.raises(UserError, match="too little memory: training with one text at a time"):
        finetune(folder(tmp_path / "model"), sentiment(24), task="classify", out=tmp_path / "out", memory=0.01, **PLAIN)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]
