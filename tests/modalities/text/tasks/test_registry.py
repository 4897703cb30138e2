"""A task is one class, found by name; an installed package adds one by an entry point."""

from __future__ import annotations

from pathlib import Path

import pytest
from event_data import main_ok

from tiny_folders import folder
from unmask.errors import UserError
from unmask.modalities.text.tasks.finetune import evaluate, finetune, predict
from unmask.modalities.text.tasks.registry import TASKS, task_class
from unmask.modalities.text.tasks.task import TextTask

LENGTH = '''
from pathlib import Path

import numpy as np
import torch.nn.functional as F
import torch
from unmask.modalities.text.tasks.encoding import Prepared
from unmask.modalities.text.tasks.task import TextTask


class Length(TextTask):
    """How many letters a text has, in tens."""

    name, head, metric = "length", "sequence", "rmse"

    @classmethod
    def read(cls, data, columns, *, labelled, problems):
        return (Path(data).read_text().splitlines() if isinstance(data, str) else list(data)), None

    @classmethod
    def from_items(cls, encoder, items, settings):
        return cls(encoder, {"name": "length", "slots": encoder.slots})

    @classmethod
    def outputs_of(cls, about):
        return 1

    def prepare(self, items, *, labelled):
        target = torch.tensor([len(text) / 10 for text in items])
        return Prepared(items, self.encoder.whole(list(items)), [[i] for i in range(len(items))], {"target": target})

    def loss(self, model, batch, prepared, numbers):
        return F.mse_loss(model(batch, len(numbers)).float()[:, 0], prepared.extra["target"][torch.from_numpy(numbers)])

    def decode(self, found, prepared):
        return [{"length": 10 * float(x[0])} for x in found]

    def score(self, predictions, items):
        wrong = [p["length"] - len(text) for p, text in zip(predictions, items)]
        return {"rmse": float(np.sqrt(np.mean(np.square(wrong))))}
'''


def install(site: Path, entries: str, **modules: str) -> None:
    """A package in a folder, as pip would leave it."""
    for name, text in modules.items():
        (site / f"{name}.py").write_text(text)
    about = site / "stranger-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[unmask.tasks]\n{entries}\n")


def test_an_installed_package_adds_a_task(tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    install(site, "length = stranger_length:Length", stranger_length=LENGTH)
    monkeypatch.syspath_prepend(site)
    texts = ["the fox " * (1 + i % 5) for i in range(60)]
    options = {"epochs": 2, "learning_rate": 3e-3, "precision": "fp32"}
    found = finetune(
        folder(tmp_path / "model"), texts, task="length", validation=texts[:20], out=tmp_path / "out", **options
    )
    assert TASKS.names()[-1] == found["task"] == "length"
    assert found["value"] == min(row["rmse"] for row in found["history"])
    assert evaluate(tmp_path / "out", texts[:20])["rmse"] == pytest.approx(found["value"], abs=1e-4)
    assert set(predict(tmp_path / "out", texts[:2])[0]) == {"length"}
    (tmp_path / "texts").write_text("\n".join(texts))
    line = ["finetune", "length", tmp_path / "model", tmp_path / "texts", "--steps", "2", "--out", tmp_path / "again"]
    main_ok([str(word) for word in line])
    assert "unmask.json" in {path.name for path in (tmp_path / "again").iterdir()}


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ("length = no_such_module:Length", "cannot be imported: ModuleNotFoundError"),
        ("length = json:loads", "is announced under that name"),
        ("size = json:loads", "task 'length'"),
    ],
)
def test_a_task_that_cannot_be_had_is_one_clear_line(tmp_path, monkeypatch, entries, told):
    install(tmp_path, entries)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=told):
        task_class("length")


def test_every_built_in_name_is_its_class():
    assert [task_class(name).name for name in TASKS.built_in] == list(TASKS.built_in)


def test_a_task_that_lacks_a_method_is_refused_when_it_is_made():
    class Half(TextTask):
        name, metric = "half", "rmse"

    with pytest.raises(TypeError, match=r"decode.*from_items.*loss.*prepare.*read.*score"):
        Half(None, {})
