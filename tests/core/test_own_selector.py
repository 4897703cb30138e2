"""A user's own selector, named in the settings, decides what is hidden, in every modality."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from event_data import main_ok

from tiny import MODALITIES
from unmask.core.batch import pack
from unmask.core.corruption import Corruption, maskable_slots, own_selector
from unmask.errors import UserError
from unmask.modalities.events.recipes import EventSettings
from unmask.modalities.events.uses import pretrain as events
from unmask.modalities.images.network.masking import image_corruption
from unmask.modalities.images.recipes import ImageSettings
from unmask.modalities.table.distribution.cells import training_corruption
from unmask.modalities.table.recipes import settings_of
from unmask.modalities.text.recipes import TextSettings
from unmask.modalities.text.tokens.batches import corruption_of

MINE = '''
import numpy as np

class Odd:
    """Every second slot."""
    def __init__(self, ratio): self.ratio = ratio
    def __call__(self, slots, *, key, progress=0.0): return slots.slot % 2 == 1

def first(slots, *, key, progress=0.0): return slots.slot == slots.slot.min()
def words(slots, *, key, progress=0.0): return slots.slot
number = 3
'''


def texts(*lengths):
    return pack([MODALITIES["text"].example(i, n) for i, n in enumerate(lengths)], slots=12)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("kind", ["text", "events", "images", "table"])
def test_it_decides_in_every_modality(kind):
    corruption = {
        "text": lambda: corruption_of(TextSettings(select="mine:Odd")),
        "events": lambda: events.corruption_of(EventSettings(select="mine:Odd")),
        "images": lambda: image_corruption(None, own=ImageSettings(select="mine:Odd").select),
        "table": lambda: training_corruption(
            0.0, 1.0, 0.5, np.ones((2, 2), bool), settings_of(select="mine:Odd").select
        ),
    }[kind]()
    batch = texts(7, 9, 4)
    slots = maskable_slots(batch)
    hidden = corruption.draw(batch, seed=0)
    np.testing.assert_array_equal(hidden.flat.numpy(), np.sort(slots.flat[slots.slot % 2 == 1]))


@pytest.mark.usefixtures("mine")
def test_a_class_is_given_the_ratio_and_a_function_is_taken_as_it_is():
    assert own_selector("mine:Odd", 0.4).select.ratio == 0.4
    batch = texts(7)
    assert len(Corruption(select=own_selector("mine:first", 0.4)).draw(batch, seed=0)) == 1


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("mine:none", "mine has no 'none'"),
        ("yours:Odd", "no module 'yours'"),
        ("mine", "'mine'"),
        ("mine:number", "a int"),
    ],
)
def test_what_is_no_selector_is_refused(reference, message):
    with pytest.raises(UserError, match=message):
        own_selector(reference, 0.15)


@pytest.mark.usefixtures("mine")
def test_answers_of_another_shape_or_type_are_refused():
    with pytest.raises(UserError, match=r"select=mine:words: it gave int64"):
        Corruption(select=own_selector("mine:words", 0.15)).draw(texts(7), seed=0)


@pytest.mark.usefixtures("mine")
def test_from_the_command_line(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,c\n" + "".join(f"{i * i % 7},{i % 3},{i % 5}\n" for i in range(40)))
    words = ["pretrain", "table", str(tmp_path / "t.csv"), "--out", str(tmp_path / "m"), "--steps", "2"]
    main_ok([*words, "--set", "select=mine:Odd"])
    assert any("mine:Odd" in path.read_text() for path in (tmp_path / "m").glob("*.json"))
