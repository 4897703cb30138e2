"""Law 8. Order within a time stamp says nothing: events of one time stamp are a set, for every recipe.

What of a hidden event's place is known is the rank of its time stamp.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from unmask.core.batch import Example, pack
from unmask.core.corruption import hide
from unmask.modalities.events.recipes import RECIPES, EventSettings, structure_of, with_overrides
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.meds import HOUR, STATIC, Events, Labels
from unmask.modalities.events.records.vocabulary import Vocabulary
from unmask.modalities.events.uses.folder import EventFolder, new_model
from unmask.modalities.events.uses.model import EventModel
from unmask.modalities.events.uses.pretrain import corruption_of

SMALL = {"width": 16, "layers": 2, "heads": 2, "inner": 24, "slots": 16, "ratio": 0.3}


def simulated(seed: int) -> Events:
    """Patients of visits of one to six events, with values, repeated codes, and facts without a time."""
    rng = np.random.default_rng(seed)
    names = ["MEDS_BIRTH", *(f"C{i:02}" for i in range(12))]
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for _ in range(8):
        sizes = rng.integers(1, 7, rng.integers(2, 8))
        when = np.repeat(np.cumsum(rng.integers(1, 900, len(sizes))), sizes) * HOUR
        time = np.r_[np.full(3, STATIC), -500_000 * HOUR, when]
        code = np.r_[rng.integers(10, 13, 3), 0, rng.integers(1, 10, len(when))]
        value = np.where(rng.random(len(time)) < 0.6, rng.normal(size=len(time)), np.nan).astype(np.float32)
        parts.append((time, code, value))
    time, code, value = (np.concatenate(p) for p in zip(*parts, strict=True))
    ends = np.cumsum([len(p[0]) for p in parts])
    return Events(subjects=np.arange(8) + 100, offsets=np.r_[0, ends], time=time, code=code, value=value, codes=names)


def shuffled(events: Events, rng: np.random.Generator) -> Events:
    """The rows of each time stamp in another order."""
    who = np.repeat(np.arange(len(events)), np.diff(events.offsets))
    order = np.lexsort((rng.random(len(who)), events.time, who))
    return dataclasses.replace(events, time=events.time[order], code=events.code[order], value=events.value[order])


class Case:
    """A recipe, a random model of it, and one extract in two orders."""

    def __init__(self, recipe: str, seed: int) -> None:
        self.settings = with_overrides(with_overrides(EventSettings(), RECIPES[recipe]), SMALL | {"seed": seed})
        self.events = simulated(seed)
        self.again = shuffled(self.events, np.random.default_rng([seed, 1]))
        self.vocabulary = Vocabulary.fit(self.events, floor=1)
        network = new_model(self.settings, len(self.vocabulary)).eval()
        with torch.no_grad():  # large enough that every effect can be seen
            for p in network.parameters():
                p.add_(torch.randn_like(p) * 0.2)
        self.folder = EventFolder(model=network, vocabulary=self.vocabulary, settings=self.settings)
        self.model = EventModel(folder=self.folder, device=torch.device("cpu"), precision="fp32")

    def histories(self, events: Events) -> Histories:
        return Histories(events, self.vocabulary, structure_of(self.settings).marks)

    def examples(self, events: Events) -> list[Example]:
        return [self.histories(events).example(i, slots=self.settings.slots) for i in range(len(events))]


@pytest.fixture(params=RECIPES)
def case(request: pytest.FixtureRequest, seed: int) -> Case:
    return Case(request.param, seed)


def test_the_two_extracts_differ_in_order_alone(seed: int):
    case = Case("ours", seed)
    assert (case.events.code != case.again.code).any()
    assert (case.events.time == case.again.time).all()


def test_equal_sets_give_equal_examples_and_equal_masks(case: Case):
    """Bit for bit, those that are cut to the model's length too."""
    two = [case.examples(e) for e in (case.events, case.again)]
    assert any(len(e) >= case.settings.slots - 6 for e in two[0])
    for a, b in zip(*two, strict=True):
        for name in a.values:
            np.testing.assert_array_equal(a.values[name], b.values[name], err_msg=name)
        for name in ("unit", "special", "position"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    hidden = [
        corruption_of(case.settings).draw(pack(examples, slots=case.settings.slots), seed=0, epoch=1)
        for examples in two
    ]
    assert torch.equal(hidden[0].flat, hidden[1].flat)
    assert len(hidden[0].flat)


def test_no_time_stamp_is_cut_in_two(case: Case):
    """Of histories longer than the model, whole time stamps are kept."""
    histories = case.histories(case.events)
    cut = 0
    for i in range(len(case.events)):
        rows, _, _ = histories.slots_of(i)
        kept, _, _ = histories.cut(i, slots=case.settings.slots)
        cut += len(kept) < len(rows)
        for when in np.unique(case.events.time[kept]):
            assert (case.events.time[kept] == when).sum() == (case.events.time[rows] == when).sum()
    assert cut


def test_slots_of_one_time_stamp_may_change_places(case: Case):
    """Hidden and visible events of a set in another order: each is predicted as before. Nothing reads which
    row it was."""
    example = case.examples(case.events)[0]
    visit, free = np.asarray(example.values["visit"]), ~np.asarray(example.special)
    order = np.arange(len(example))
    for v in np.unique(visit[free]):
        here = np.flatnonzero((visit == v) & free)
        order[here] = here[::-1]
    assert (order != np.arange(len(order))).any()
    turned = dataclasses.replace(example, values={n: np.asarray(v)[order] for n, v in example.values.items()})
    hidden = np.flatnonzero(free)[::3]
    there = np.flatnonzero(np.isin(order, hidden))
    with torch.no_grad():
        a, b = (
            case.folder.model(pack([e], slots=len(e)), hide(torch.from_numpy(h))).logits
            for e, h in ((example, hidden), (turned, there))
        )
    torch.testing.assert_close(a[np.searchsorted(hidden, order[there])], b, atol=1e-5, rtol=1e-5)


def test_score_fill_and_embed_are_the_same(case: Case, tmp_path: Path):
    one, two = case.events, case.again
    points = Labels(subject=np.arange(8), time=np.array([one.time[one.offsets[i + 1] - 1] for i in range(8)]))
    np.testing.assert_allclose(case.model.embed(one), case.model.embed(two), atol=1e-5)
    np.testing.assert_allclose(case.model.embed(one, points), case.model.embed(two, points), atol=1e-5)
    for made in (_filled, _scored):
        a, b = (made(case.model, e) for e in (one, two))
        assert len(a)
        assert a.columns == b.columns
        for name in a.columns:
            if a[name].dtype.is_float():
                x, y = (f[name].fill_null(0).to_numpy() for f in (a, b))
                np.testing.assert_allclose(x, y, atol=2e-5, rtol=1e-5, err_msg=name)
            else:
                assert a[name].to_list() == b[name].to_list(), name


def _filled(model: EventModel, events: Events) -> pl.DataFrame:
    return _sorted(model.fill(events))


def _scored(model: EventModel, events: Events) -> pl.DataFrame:
    return _sorted(model.score(events, by="event"))


def _sorted(frame: pl.DataFrame) -> pl.DataFrame:
    keys: list[Any] = [c for c in ("subject_id", "kind", "time", "code", "value") if c in frame.columns]
    return frame.with_columns(pl.col("value").round(4)).sort(keys, nulls_last=True)
