"""A step of many slots runs in parts: the same weights, less memory; windows of one text are items of their own."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from tiny_folders import folder, sentiment
from unmask.modalities.text.tasks import loop
from unmask.modalities.text.tasks.finetune import finetune

PLAIN = {"start": "plain", "epochs": 2, "batch": 8, "learning_rate": 1e-3, "precision": "fp32", "dropout": 0.0}


def spans(n: int = 16):
    return [{"text": f"the fox {i} runs in Berlin and the dog {'sleeps ' * (i % 5)}", "entities": [{"start": 0, "end": 3, "label": "X"}]}
            for i in range(n)]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "data", "options"),
    [("classify", sentiment(24), {}), ("classify", sentiment(24), {"class_weights": "balanced"}), ("tag", spans(), {})],
)
def test_a_step_in_parts_gives_the_weights_of_the_whole_step(task, data, options, tmp_path):
    model = folder(tmp_path / "model")
    found = []
    for name, slots in (("whole", 10_000), ("parts", 12)):
        finetune(task, model, data, out=tmp_path / name, micro_slots=slots, **PLAIN, **options)
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
        "answer",
        model,
        data,
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
    assert len(seen) == 16
