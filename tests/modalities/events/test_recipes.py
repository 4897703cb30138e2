"""Every recipe, whole: what it hides stays hidden, targets stand where they belong, marks and facts are
never hidden."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from unmask.core.batch import PackedBatch, pack
from unmask.core.inference import first_slots
from unmask.core.model import MaskedModel
from unmask.errors import UserError
from unmask.modalities.events.recipes import RECIPES, STRUCTURES, EventSettings, OutcomeSettings, with_overrides
from unmask.modalities.events.records.histories import Histories, time_token
from unmask.modalities.events.records.meds import HOUR, STATIC, Events, read_meds
from unmask.modalities.events.records.vocabulary import (
    FIRST,
    LONG,
    MONTHS,
    SEP,
    VISIT_END,
    VISIT_START,
    WEEKS,
    Vocabulary,
)
from unmask.modalities.events.uses.demo import simulate
from unmask.modalities.events.uses.folder import load_folder, new_model
from unmask.modalities.events.uses.pretrain import corruption_of

KINDS = {**RECIPES, "local": {"window": 4, "global_every": 2}}
"""The recipes, and ours with local attention in its second layer (bands: rows are long enough for them)."""
SMALL = {"width": 32, "layers": 2, "heads": 2, "inner": 32, "slots": 64, "batch_slots": 512}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Events:
    return read_meds(simulate(tmp_path_factory.mktemp("sim"), patients=40))


class Built:
    """A small model of a recipe and a batch of its patients."""

    def __init__(self, name: str, events: Events) -> None:
        self.settings = with_overrides(with_overrides(EventSettings(), KINDS[name]), SMALL)
        self.vocabulary = Vocabulary.fit(events, floor=1)
        self.histories = Histories(events, self.vocabulary, STRUCTURES[self.settings.structure].marks)
        self.model: MaskedModel = new_model(self.settings, len(self.vocabulary)).eval()
        self.examples = [self.histories.example(i, slots=64) for i in range(12)]
        self.batch: PackedBatch = pack(self.examples, slots=128)
        self.hidden = corruption_of(replace(self.settings, ratio=max(self.settings.ratio, 0.15))).draw(
            self.batch, seed=3
        )


@pytest.fixture(params=KINDS)
def built(request: pytest.FixtureRequest, events: Events) -> Built:
    return Built(request.param, events)


def test_targets_are_the_events_of_their_slots(built: Built):
    """As many targets as hidden slots, each the code that stood there; marks and facts are not among them."""
    target = built.model.codec.targets(built.batch.values, built.hidden.flat)
    assert len(target) == len(built.hidden) > 5
    index = built.batch.index.flatten()[built.hidden.flat]
    place = built.hidden.flat - torch.from_numpy(first_slots(built.batch, 12))[index]
    for row, i, p in zip(target.tolist(), index.tolist(), place.tolist(), strict=True):
        rows, codes, _ = built.histories.cut(i, slots=64)
        assert row[0] == codes[p - 1] == built.histories.code[rows[p - 1]]
        assert row[0] >= FIRST
        assert built.histories.events.time[rows[p - 1]] != STATIC


def test_what_is_hidden_changes_nothing(built: Built):
    from unmask.core.corruption import MASK

    hidden = replace(built.hidden, action=torch.full_like(built.hidden.action, MASK))
    values = {k: v.clone() for k, v in built.batch.values.items()}
    for name in built.model.codec.channels:
        new = values[name].view(-1)
        new[hidden.flat] = new[hidden.flat.flip(0)] + (1 if name in ("value", "hours") else 0)
    with torch.no_grad():
        one, two = (built.model(replace(built.batch, values=v), hidden) for v in (built.batch.values, values))
    assert torch.equal(one.logits, two.logits)
    assert (one.time is None) == (built.settings.structure != "ours")


def test_a_patient_is_the_same_alone(built: Built):
    e = built.examples[3]
    slots = np.flatnonzero(~np.asarray(e.special))[2:5]
    place = (built.batch.index.flatten() == 3).nonzero().flatten()[slots]
    from unmask.core.corruption import hide

    with torch.no_grad():
        alone = built.model(pack([e], slots=len(e)), hide(torch.from_numpy(slots)))
        packed = built.model(built.batch, hide(place))
    torch.testing.assert_close(alone.logits, packed.logits, atol=1e-4, rtol=1e-4)


def test_time_arrives(built: Built):
    """A visible event at another time changes the predictions of others, but where visits alone count (Med-BERT)."""
    if built.settings.structure == "medbert":
        pytest.skip("Med-BERT reads no time")
    values = {k: v.clone() for k, v in built.batch.values.items()}
    values["hours"] *= 40
    with torch.no_grad():
        one, two = (built.model(replace(built.batch, values=v), built.hidden) for v in (built.batch.values, values))
    assert (one.logits - two.logits).abs().max() > 1e-5


def test_a_step_trains_every_recipe(built: Built):
    model = built.model.train()
    loss = model(built.batch, built.hidden).loss(model.codec.targets(built.batch.values, built.hidden.flat))
    loss.backward()
    assert torch.isfinite(loss)
    assert model.codec.code.weight.grad.abs().sum() > 0


def test_marks_stand_between_visits():
    day = 24 * HOUR
    time = np.array([STATIC, 0, 0, 8 * day, 100 * day, 500 * day])
    events = Events(
        subjects=np.array([1]),
        offsets=np.array([0, 6]),
        time=time,
        code=np.arange(6),
        value=np.full(6, np.nan),
        codes=list("sabcde"),
    )
    vocabulary = Vocabulary.fit(events, floor=1)
    s, a, b, c, d, e = vocabulary.numbers(events.codes).tolist()
    sep = Histories(events, vocabulary, "sep").slots_of(0)
    assert sep[1].tolist() == [s, a, b, SEP, c, SEP, d, SEP, e, SEP]
    rows, codes, static = Histories(events, vocabulary, "visit").slots_of(0)
    start, end = VISIT_START, VISIT_END
    assert codes.tolist() == [
        s,
        start,
        a,
        b,
        end,
        WEEKS + 1,
        start,
        c,
        end,
        MONTHS + 3,
        start,
        d,
        end,
        LONG,
        start,
        e,
        end,
    ]
    assert rows.tolist() == [0, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5]
    assert static == 1
    example = Histories(events, vocabulary, "visit").example(0, slots=8)
    assert example.values["code"].tolist()[1:] == [s, LONG, start, e, end]  # d has room without its marks alone
    assert np.asarray(example.special).tolist() == [True, True, True, True, False, True]


def test_time_tokens():
    day = 24 * HOUR
    assert time_token(np.array([0, 27, 28, 359, 360]) * day).tolist() == [WEEKS, WEEKS + 3, MONTHS, MONTHS + 11, LONG]


def test_what_is_shown_is_no_target():
    with pytest.raises(UserError, match="time_weight"):
        with_overrides(EventSettings(), {**RECIPES["cehrbert"], "time_weight": 0.1})
    with pytest.raises(UserError, match="all 0"):
        with_overrides(EventSettings(), {"code_weight": 0.0, "value_weight": 0.0, "time_weight": 0.0})
    with pytest.raises(UserError, match="value_weight"):
        with_overrides(EventSettings(), {**RECIPES["behrt"], "value_weight": 0.1})


@pytest.mark.parametrize(("window", "global_every", "arrives"), [(0, 3, True), (1, 3, True), (1, 0, False)])
def test_a_window_keeps_what_is_far_away_out(events: Events, window: int, global_every: int, arrives: bool):
    """Two layers of one time stamp on either side see two away, unless one of them sees everything."""
    more = {"window": window, "global_every": global_every, "architecture": "in_place"}
    settings = with_overrides(EventSettings(), {**SMALL, **more})
    vocabulary = Vocabulary.fit(events, floor=1)
    model = new_model(settings, len(vocabulary)).eval()
    histories = Histories(events, vocabulary)
    longest = max(range(len(events)), key=histories.length)
    batch = pack([histories.example(longest, slots=64)], slots=64)
    code, rank = batch.values["code"].clone(), batch.position[0]
    last = int(rank.max())
    assert last >= 6
    middle = int((rank == last - 1).nonzero()[0])
    code[0, middle] = FIRST + (code[0, middle] - FIRST + 1) % (len(vocabulary) - FIRST)
    with torch.no_grad():
        one, two = (
            model.states(replace(batch, values=batch.values | {"code": c}))[0] for c in (batch.values["code"], code)
        )
    changed = (one - two).abs().amax(-1) > 1e-7
    assert changed[rank >= last - 3].any()
    assert bool(changed[rank < last - 3].any()) == arrives


@pytest.mark.parametrize("wrong", [{"window": -1}, {"global_every": -1}])
def test_windows_are_checked(wrong: dict[str, int]):
    with pytest.raises(UserError, match=next(iter(wrong))):
        with_overrides(EventSettings(), wrong)


def test_the_decoders_width_fits_its_heads():
    """Half of the encoder's width need not be a multiple of the heads."""
    for width, heads, want in ((272, 8, 144), (136, 4, 72), (64, 4, 64), (288, 12, 192), (50, 1, 26)):
        settings = with_overrides(EventSettings(), {"width": width, "heads": heads})
        assert new_model(settings, FIRST + 3).decoder.config.width == want
    odd = with_overrides(EventSettings(), {"width": 264, "heads": 8})
    with pytest.raises(UserError, match="rotary positions turn pairs"):
        new_model(odd, FIRST + 3)


def test_the_smallest_share_is_within_the_largest():
    with pytest.raises(UserError, match=r"ratio_from=0\.1"):
        with_overrides(EventSettings(), {"ratio": 0.05})
    assert with_overrides(EventSettings(), {"ratio": 0.05, "ratio_from": None}).ratio_from is None


def test_a_folder_of_another_network_is_refused(home: Path, tmp_path: Path):
    """An earlier format's weights would fit, and mean something else."""
    shutil.copytree(home / "model", tmp_path / "old")
    about = json.loads((tmp_path / "old" / "unmask.json").read_text())
    del about["format"]
    (tmp_path / "old" / "unmask.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="another version"):
        load_folder(tmp_path / "old")


@pytest.mark.parametrize("wrong", [{"learning_rate": 0.0}, {"weight_decay": -1.0}, {"trees": -1}])
def test_settings_of_the_head_are_checked(wrong: dict[str, float]):
    with pytest.raises(UserError, match=next(iter(wrong))):
        OutcomeSettings(**wrong)  # type: ignore[arg-type]


def test_no_neighbour_tells_a_hidden_events_time(events: Events):
    """Moving an event in time, within its place in the order, changes nothing of any other slot (ours)."""
    vocabulary = Vocabulary.fit(events, floor=1)
    one = Histories(events, vocabulary).example(0, slots=64)
    rows = Histories(events, vocabulary).rows(0)
    moved = events.time.copy()
    visit = np.asarray(one.unit)
    last = visit.max()
    moved[rows[visit[1:] == last - 1]] += HOUR  # a visit in the middle; the first is the origin
    two = Histories(replace(events, time=moved), vocabulary).example(0, slots=64)
    for name, array in one.values.items():
        same = np.asarray(array) == np.asarray(two.values[name])
        assert same[visit != last - 1].all(), name
    assert (one.values["hours"] != two.values["hours"]).any()
