"""Fine-tuning of the encoder: what it may look at, what it leaves alone, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from event_data import main_ok

import unmask
from unmask.core.hashing import Salt, uniform
from unmask.errors import UserError
from unmask.modalities.events.outcome.scoring import figures
from unmask.modalities.events.outcome.targets import Binary
from unmask.modalities.events.outcome.tune import Tuner, thinned
from unmask.modalities.events.recipes import OutcomeSettings, TuneSettings
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.labels import read_labels
from unmask.modalities.events.records.meds import read_meds
from unmask.modalities.events.uses.finetune import finetune_outcome
from unmask.modalities.events.uses.next_visit import finetune_next_visit

TUNED = OutcomeSettings(
    epochs=4,
    members=2,
    hidden=16,
    trees=0,
    curve=False,
    baselines=False,
    encoder="tuned",
    tune=TuneSettings(epochs=3, least_steps=1),
)


def test_thinned_histories_keep_facts_and_places(home: Path):
    model, events = unmask.load(home / "model"), read_meds(home / "meds")
    example = model.histories(events).example(5, slots=64)
    example = replace(example, values={**example.values, "place": np.arange(len(example))})
    thin = thinned(example, 0.5, np.random.default_rng(0))
    assert 3 < len(thin) < len(example)
    special = np.asarray(example.special)
    assert np.asarray(thin.special).sum() == special.sum()
    for name, array in example.values.items():
        np.testing.assert_array_equal(np.asarray(array)[thin.values["place"]], thin.values[name])
    np.testing.assert_array_equal(np.asarray(example.position)[thin.values["place"]], thin.position)
    assert len(thinned(example, 0.0, np.random.default_rng(0))) == len(example)


def test_an_encoder_learns_what_stands_in_a_record(home: Path, monkeypatch: pytest.MonkeyPatch):
    """Whether a patient has diabetes; the same data judge it, so this is no estimate of anything."""
    model, events = unmask.load(home / "model"), read_meds(home / "meds")
    histories, ill = model.histories(events), events.codes.index("DIABETES")
    points = read_labels(home / "task", events)
    has = np.array([(events.code[events.before(s, None)] == ill).any() for s in points.subject.tolist()])
    points, target = replace(points, value=has.astype(np.int64)), Binary()
    y, every = target.encode(points), np.arange(len(points))
    tune = TuneSettings(epochs=3, least_steps=1, batch=16, drop=0.1)
    tuner = model.tuner(histories, points, target, replace(TUNED, tune=tune))
    before = {k: v.clone() for k, v in model.folder.model.state_dict().items()}
    better = iter(range(100))
    monkeypatch.setattr(Tuner, "watch", lambda *_: -next(better))  # each look is the best: what is trained is kept
    net = tuner.fit(model.folder.model, every, y)
    assert all(torch.equal(v, before[k]) for k, v in model.folder.model.state_dict().items())  # a copy was trained
    assert not torch.equal(net.masked.codec.code.weight, model.folder.model.codec.code.weight)
    p = tuner.predict(net, every)
    assert figures(y[:, 0].astype(np.int64), p[:, 0], draws=2)["auroc"] > 0.8
    shuffled = np.random.default_rng(0).permutation(len(points))
    np.testing.assert_allclose(tuner.predict(net, shuffled), p[shuffled], atol=1e-5)


def test_states_of_many_points_are_not_held(home: Path, monkeypatch: pytest.MonkeyPatch):
    from unmask.modalities.events.outcome import tune

    model, events = unmask.load(home / "model"), read_meds(home / "meds")
    points, held, watched = read_labels(home / "task", events), list[int](), list[int]()
    pooled, watch = Tuner._pooled, Tuner.watch
    monkeypatch.setattr(tune, "OUTPUT_POINTS", 50)
    monkeypatch.setattr(tune, "WATCHED", 20)
    monkeypatch.setattr(tune, "LEAST_STEPS_BETWEEN", 1)
    monkeypatch.setattr(Tuner, "_pooled", lambda *given: held.append(len(given[2])) or pooled(*given))
    monkeypatch.setattr(Tuner, "watch", lambda *given: watched.append(len(given[2])) or watch(*given))
    tuner = model.tuner(model.histories(events), points, Binary(), TUNED)
    tuner.fit(model.folder.model, np.arange(len(points)), Binary().encode(points))
    assert held == [50, 20]
    assert watched
    assert set(watched) == {20}


def test_held_out_patients_are_not_looked_at_while_fitting(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from unmask.modalities.events.outcome import tune

    seen: list[int] = []
    fit, example = tune.Tuner.fit, Histories.example

    def watched(*given, **named):
        seen.append(given[1])
        return example(*given, **named)

    def fitted(*given):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Histories, "example", watched)
            return fit(*given)

    monkeypatch.setattr(tune.Tuner, "fit", fitted)
    short = replace(TUNED, tune=TuneSettings(epochs=1, least_steps=1))
    finetune_outcome(home / "model", home / "meds", home / "task", tmp_path / "m", settings=short)
    held = np.flatnonzero(uniform(0, read_meds(home / "meds").subjects, Salt.HELD_OUT_POINT) < TUNED.holdout)
    assert len(set(seen)) == 240 - len(held)
    assert not set(seen) & set(held.tolist())


def test_folders_hold_both_encoders(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    small = [
        "epochs=4",
        "members=2",
        "hidden=16",
        "trees=0",
        "encoder=tuned",
        "tune.epochs=3",
        "tune.least_steps=1",
        "curve=false",
    ]
    sets = [x for pair in small for x in ("--set", pair)]
    command = ["finetune", "outcome", home / "model", home / "meds", "--labels", home / "task", "--out", tmp_path / "m"]
    main_ok([str(a) for a in command] + sets)
    assert "tuned encoder alone" in capsys.readouterr().out
    base, both = unmask.load(home / "model"), unmask.load(tmp_path / "m")
    for name, weight in base.folder.model.state_dict().items():
        assert torch.equal(weight, both.folder.model.state_dict()[name])
    one = both.predicted(home / "meds", home / "task")[0]
    alone = replace(both.folder, tuned=None)
    two = replace(both, folder=alone).predicted(home / "meds", home / "task")[0]
    assert not one.equals(two)  # the tuned encoder has a voice
    assert (tmp_path / "m" / "report.html").exists()


def test_next_visits_may_tune_too(home: Path, tmp_path: Path):
    settings = replace(TUNED, codes="DIABETES,HYPERTENSION", tune=TuneSettings(epochs=2, least_steps=1))
    run = finetune_next_visit(home / "model", home / "meds", tmp_path / "m", settings=settings)
    assert set(run.figures["results"]) == {"ours", "networks alone", "tuned encoder alone"}
    frame, _ = unmask.load(tmp_path / "m").predicted(home / "meds", home / "task")
    p = np.array(frame["predicted_probabilities"].to_list())
    assert ((p > 0) & (p < 1)).all()


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"drop": 1.0}, {"learning_rate": 0.0}, {"batch": 0}])
def test_settings_are_checked(wrong: dict[str, float]):
    with pytest.raises(UserError, match=next(iter(wrong))):
        TuneSettings(**wrong)  # type: ignore[arg-type]
