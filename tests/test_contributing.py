"""The recipes of CONTRIBUTING.md work as they are written. A modality: tests/examples. A task:
tests/modalities/text/tasks/test_registry.py."""

from __future__ import annotations

import contextlib
import json
import re
import tomllib

import pytest
import torch

from commands import exit_code
from packages import ROOT, on_path, write_metadata
from text_corpus import SENTENCES, write_corpus
from tiny_folders import folder
from unmask.core.batch import pack
from unmask.core.corruption import Corruption, maskable_slots, own_selector
from unmask.errors import UserError
from unmask.families import by_name, detect

PAGE = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A package with the page's code and the entry points of its families."""
    place = tmp_path_factory.mktemp("site")
    for name, code in re.findall(r"^```python (\S+)\n(.*?)^```", PAGE, flags=re.M | re.S):
        (place / name).write_text(code)
    announced = tomllib.loads(
        re.search(r'^\[project.entry-points."unmask.families"\]\n.*?\n(?=```)', PAGE, flags=re.M | re.S)[0]
    )
    write_metadata(place, "mine", announced["project"]["entry-points"])
    with contextlib.contextmanager(on_path)(place):
        yield place


@pytest.mark.usefixtures("site")
def test_a_corruption(tmp_path):
    from tiny import MODALITIES

    batch = pack([MODALITIES["text"].example(i, 12) for i in range(20)], slots=24)
    corruption = Corruption(select=own_selector("my_selectors:Tail", 0.5))
    slots = maskable_slots(batch)
    hidden = corruption.draw(batch, seed=0).grid(batch.shape).flatten().numpy()[slots.flat]
    for example in range(slots.examples):
        mine = hidden[slots.example == example]
        assert 1 <= mine.sum() <= len(mine) / 2
        assert mine[len(mine) - mine.sum() :].all()
    corpus = write_corpus(tmp_path / "c.txt", 40)
    small = [
        "--set",
        "width=32",
        "--set",
        "layers=1",
        "--set",
        "heads=2",
        "--set",
        "slots=32",
        "--set",
        "vocabulary=200",
    ]
    words = ["pretrain", "text", corpus, "--out", tmp_path / "m", "--steps", 2, *small, "--set", "batch_slots=256"]
    assert exit_code(*words, "--set", "select=my_selectors:Tail") == 0
    assert "my_selectors:Tail" in (tmp_path / "m" / "unmask.json").read_text()


@pytest.mark.usefixtures("site")
def test_a_family(tmp_path):
    from unmask.modalities.text.network.folder import load_folder, save_folder

    bert = load_folder(folder(tmp_path / "bert"))
    config = json.loads((tmp_path / "bert" / "config.json").read_text())
    (tmp_path / "bert" / "config.json").write_text(json.dumps(config | {"model_type": "mybert"}))
    mine = load_folder(tmp_path / "bert")
    assert mine.family is by_name("mybert") is detect({"model_type": "mybert"})
    save_folder(tmp_path / "mine", model=mine.model, tokenizer=mine.tokenizer, family=mine.family)
    assert json.loads((tmp_path / "mine" / "config.json").read_text())["architectures"] == ["MyBertForMaskedLM"]
    again = load_folder(tmp_path / "mine")
    for (name, before), after in zip(bert.model.state_dict().items(), again.model.state_dict().values(), strict=True):
        assert torch.equal(before, after), name
    assert exit_code("score", tmp_path / "mine", SENTENCES[0]) == 0


def test_a_family_that_is_not_there_is_named():
    with pytest.raises(UserError, match="model_type 'yourbert'"):
        detect({"model_type": "yourbert"})
