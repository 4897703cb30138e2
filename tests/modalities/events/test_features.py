"""The outcome head reads its features some points at a time: from disk as from memory, with the same result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from unmask.modalities.events.outcome import candidates, features
from unmask.modalities.events.outcome.features import Features, gather
from unmask.modalities.events.outcome.outcome import OutcomeHead, fit_head, scale_of
from unmask.modalities.events.outcome.targets import Binary
from unmask.modalities.events.outcome.trees import Trees
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.records.labels import read_labels
from unmask.modalities.events.records.meds import read_meds
from unmask.modalities.events.uses import work as uses_work
from unmask.modalities.events.uses.finetune import finetune_outcome
from unmask.modalities.events.uses.model import load
from unmask.modalities.events.uses.work import OutcomeWork

SETTINGS = OutcomeSettings(members=3, hidden=8, epochs=4, trees=12, boosting=10)


def made(seed: int, points: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(3, 20, (points, 9)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    x[:, 4] = 7
    y = (np.nan_to_num(x[:, 0]) + rng.normal(0, 5, points) > 3).astype(np.float32)[:, None]
    return x, y, rng.integers(0, points // 3, points)


def trained(x: np.ndarray | Features, seed: int, **more: float) -> OutcomeHead:
    _, y, groups = made(seed)
    return fit_head(x, y, groups, SETTINGS, Binary(), **more)


@pytest.mark.parametrize("seed", range(3))
def test_inputs_made_for_each_step_train_the_same_networks(seed: int):
    x, _, _ = made(seed)
    kept, streamed = trained(x, seed), trained(Features(x), seed, most=300 * 4 * 26 - 1)
    for name, value in kept.state_dict().items():
        if not name.startswith(("forest", "boosted")):
            assert torch.equal(value, streamed.state_dict()[name]), name
    assert kept.forest is not None
    assert streamed.forest is not None
    assert len(streamed.forest.root) == 12
    whole = trained(Features(x), seed, most=300 * 4 * 26)
    np.testing.assert_array_equal(kept.predict(x, Binary()), whole.predict(Features(x), Binary()))


def test_blocks_give_the_same_scale_and_predictions(monkeypatch: pytest.MonkeyPatch):
    x, _, _ = made(0)
    head = trained(x, 0)
    p = head.predict(x, Binary())
    monkeypatch.setattr(features, "POINTS", 17)
    centre, spread, flagged = (torch.from_numpy(part) for part in scale_of(x))
    torch.testing.assert_close(centre.float(), head.centre, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(spread.float(), head.spread, rtol=1e-6, atol=1e-6)
    assert torch.equal(flagged, head.flagged)
    np.testing.assert_allclose(head.predict(x, Binary()), p, rtol=1e-5)
    seen = ~np.isnan(x)
    np.testing.assert_allclose(head.centre, np.nanmean(x.astype(np.float64), 0), rtol=1e-6)
    assert head.spread[4] == np.inf
    assert seen.any()


def test_every_point_is_seen_by_some_trees():
    x, y, _ = made(1)
    asked: list[np.ndarray] = []

    def read(part: np.ndarray) -> np.ndarray:
        asked.append(part)
        return x[part]

    forest = Trees.grow(read, y[:, 0].astype(int), trees=40, classes=2, seed=0, most=80)
    assert sorted(np.concatenate(asked).tolist()) == list(range(300))
    assert max(len(part) for part in asked) <= 80
    p, yes = forest.predict(x)[:, 1], y[:, 0] == 1
    assert (p[yes][:, None] > p[~yes]).mean() > 0.8


def test_features_on_disk_are_those_in_memory(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(features, "POINTS", 50)
    model = load(home / "model")
    events = read_meds(home / "meds")
    points, histories = read_labels(home / "task", events), model.histories(events)
    here, names = gather(histories, points, model.states)
    there, _ = gather(histories, points, model.states, most=0)
    assert here.shape == there.shape == (len(points), len(names) + 64)
    np.testing.assert_array_equal(here[:], there[:])
    chosen = np.array([3, 1, 5])
    np.testing.assert_array_equal(here.part(chosen)[:], there[chosen])
    np.testing.assert_array_equal(here.part(chosen).some(np.array([2, 0]))[1:], there[chosen][1:, [2, 0]])
    states = here.some(np.arange(len(names), len(names) + 64))[:]
    np.testing.assert_allclose(states, model.states(histories, points), rtol=1e-4, atol=1e-5)
    settings = OutcomeSettings(members=2, hidden=4, epochs=2, trees=4)
    work = OutcomeWork(model, histories, points, Binary(), Binary().encode(points), settings)
    train, test = np.arange(0, 200), np.arange(200, len(points))
    assert set(work.candidates.predict(train, test)) >= {"prevalence", "gradient boosting"}
    monkeypatch.setattr(candidates, "BASELINE_BYTES", 8.0 * work.candidates.plain.shape[1] * 120)
    assert set(work.candidates.predict(train, test)) >= {"prevalence (120 points)", "gradient boosting (120 points)"}


@pytest.mark.parametrize(("most", "read"), [(features.MOST_CODES, False), (3, True)])
def test_states_are_read_where_summaries_leave_codes_out(
    home: Path, tmp_path: Path, monkeypatch, most: int, read: bool
):
    for module in (features, uses_work):
        monkeypatch.setattr(module, "MOST_CODES", most)
    settings = OutcomeSettings(members=1, hidden=4, epochs=2, trees=4, boosting=0, curve=False, baselines=False)
    run = finetune_outcome(home / "model", home / "meds", home / "task", tmp_path / "m", settings=settings)
    outcome, head = run.model.folder.outcome, run.model.folder.head
    assert outcome["states"] is read
    codes = min(most, len(run.model.folder.vocabulary.codes))
    assert head.sizes["features"] == codes * len(features.KINDS) + 2 + (2 * 32 if read else 0)
    assert len(run.model.predict(home / "meds", labels=home / "task")) > 0
