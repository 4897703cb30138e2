"""Fine-tuning looks at the labels of training patients alone, whatever those of the others say."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from event_data import main_ok

import unmask
from unmask.core.hashing import Salt, uniform
from unmask.errors import UserError
from unmask.modalities.events.outcome.scoring import scored
from unmask.modalities.events.outcome.targets import Classes, NumberTarget, TimeToEvent
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.records.labels import read_labels
from unmask.modalities.events.records.meds import Labels, read_meds
from unmask.modalities.events.uses.finetune import finetune_outcome, label_remarks

QUICK = OutcomeSettings(epochs=8, members=2, hidden=16, trees=20, curve=False, baselines=False)


def task(folder: Path, home: Path, **columns: object) -> Path:
    """The simulated patients' prediction points with other labels."""
    folder.mkdir()
    points = pl.read_parquet(home / "task" / "0.parquet").select("subject_id", "prediction_time")
    points.with_columns(**columns).write_parquet(folder / "0.parquet")  # type: ignore[arg-type]
    return folder


@pytest.fixture
def held(home: Path) -> np.ndarray:
    """Which patients the default settings hold out."""
    return (
        uniform(0, pl.read_parquet(home / "task" / "0.parquet")["subject_id"].to_numpy(), Salt.HELD_OUT_POINT)
        < QUICK.holdout
    )


def test_held_out_labels_change_nothing_that_is_fitted(home: Path, tmp_path: Path, held: np.ndarray):
    settings = replace(QUICK, trees=0)
    rng = np.random.default_rng(0)
    days, seen = rng.exponential(60, 240), rng.random(240) < 0.5
    assert 20 < held.sum() < 80
    folders = []
    for name, factor, flip in (("a", 1.0, False), ("b", 1000.0, True)):
        columns = {
            "float_value": pl.Series(np.where(held, days * factor, days), dtype=pl.Float32),
            "boolean_value": pl.Series(np.where(held, seen ^ flip, seen)),
        }
        labels = task(tmp_path / f"task_{name}", home, **columns)
        folders.append(
            finetune_outcome(home / "model", home / "meds", labels, tmp_path / name, settings=settings).folder
        )
    about = [json.loads((f / "unmask.json").read_text()) for f in folders]
    assert about[0]["outcome"] == about[1]["outcome"]  # the cuts of the time among it
    frames = [unmask.load(f).predicted(home / "meds", tmp_path / "task_a")[0] for f in folders]
    assert frames[0].equals(frames[1])


def test_labels_that_may_be_none_or_one_are_said():
    def of(**given) -> Labels:
        return Labels(subject=np.zeros(40, np.int64), time=np.arange(40), **given)

    names = ["home", "Home", "ward", "NA"] * 10
    counted, missing, spelt = label_remarks(Classes(names=("NA", "Home", "home", "ward")), of(names=names))
    assert counted == "classes: Home (10), NA (10), home (10), ward (10)"
    assert "10 of 40 labels are 'NA', as missing values are written" in missing
    assert spelt.endswith("count as classes apart: 'Home' and 'home'")
    days = np.r_[np.linspace(2, 11, 36), [-1.0] * 4]
    (odd,) = label_remarks(NumberTarget.fit(of(number=days)), of(number=days))
    assert "labels -1 (4 times) stand apart" in odd
    assert label_remarks(NumberTarget.fit(of(number=days.clip(2))), of(number=days.clip(2))) == []


def test_a_class_that_training_lacks_is_reported(
    home: Path, tmp_path: Path, held: np.ndarray, capsys: pytest.CaptureFixture[str]
):
    names = np.where(np.arange(240) % 2 == 0, "even", "odd").astype(object)
    names[np.flatnonzero(held)[:3]] = "rare"
    labels = task(tmp_path / "task", home, categorical_value=pl.Series(names.tolist()))
    quick = [f"--set={k}={getattr(QUICK, k)}" for k in ("epochs", "members", "hidden", "trees", "curve")]
    command = [
        "finetune",
        "outcome",
        home / "model",
        home / "meds",
        "--labels",
        labels,
        "--out",
        tmp_path / "m",
        *quick,
    ]
    main_ok([str(a) for a in command] + ["--json"])
    found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert found["unseen_classes"] == {"rare": 3}
    figures = {"n", "patients", "classes", "intervals", "accuracy", "macro_auroc", "log_loss"}
    assert set(found["results"]["ours"]) == figures
    assert "rare (3)" in (tmp_path / "m" / "report.html").read_text()
    counts = {name: names.tolist().count(name) for name in ("even", "odd", "rare")}
    assert found["notes"] == ["classes: " + ", ".join(f"{name} ({n})" for name, n in counts.items())]
    main_ok(["evaluate", *map(str, (tmp_path / "m", home / "meds", "--labels", labels))])
    assert "3 labels are of classes that no training label has" in capsys.readouterr().out
    assert unmask.load(tmp_path / "m").evaluate(home / "meds", labels)["unseen_classes"] == {"rare": 3}
    frame, _ = unmask.load(tmp_path / "m").predicted(home / "meds", labels)
    assert [c for c in frame.columns if c.startswith("predicted_p")] == [
        "predicted_probability_even",
        "predicted_probability_odd",
    ]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"float_value": pl.lit(3.0, pl.Float32), "boolean_value": pl.lit(False)}, "no event was seen in"),
        ({"categorical_value": pl.lit("one")}, "every label to train on is the same"),
    ],
)
def test_labels_that_tell_nothing_are_named(home: Path, tmp_path: Path, columns: dict[str, pl.Expr], says: str):
    with pytest.raises(UserError, match=says):
        finetune_outcome(home / "model", home / "meds", task(tmp_path / "t", home, **columns), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_too_few_labels_are_named(home: Path, tmp_path: Path):
    labels = task(tmp_path / "t", home, boolean_value=pl.Series(np.arange(240) % 2 == 0))
    pl.read_parquet(labels / "0.parquet").head(8).write_parquet(labels / "0.parquet")
    with pytest.raises(UserError, match=r"\d labels to train on"):
        finetune_outcome(home / "model", home / "meds", labels, tmp_path / "m")


def test_an_unknown_class_counts_against_accuracy_alone():
    labels = Labels(subject=np.arange(4), time=np.zeros(4, np.int64), names=["a", "b", "a", "new"])
    p = np.array([[0.9, 0.1], [0.1, 0.9], [0.9, 0.1], [0.5, 0.5]])
    found = scored(Classes(names=("a", "b")), labels, p, draws=20)
    assert (found["accuracy"], found["classes"]) == (0.75, [2, 1])
    assert found["log_loss"] == pytest.approx(-np.log(0.9))
    nothing = scored(Classes(names=("a", "b")), labels.take(np.array([3])), p[3:], draws=20)
    assert "log_loss" not in nothing
    assert "macro_auroc" not in nothing
    json.dumps(nothing, allow_nan=False)


def test_the_names_of_the_cuts_differ():
    days = 10_000 + np.arange(120) / 1000
    seen = np.r_[np.ones(119, np.int64), 0]
    labels = Labels(subject=np.arange(120), time=np.zeros(120, np.int64), value=seen, days=days)
    target = TimeToEvent.fit(labels)
    assert target.encode(labels)[seen == 1, 0].max() == target.outputs - 1  # no event lies behind the last cut
    shown = target.columns(np.full((120, target.outputs), 0.5), labels)
    assert len([c for c in shown if c.startswith("predicted_probability_by_")]) == target.outputs


def test_a_member_without_patients_to_stop_on_is_trained_all_the_same(home: Path, tmp_path: Path):
    """Labels of fewer than five patients leave some members nobody to stop on."""
    start = datetime(2016, 1, 1)
    rows = [(s, start + timedelta(days=d), (s + d) % 2 == 0) for s in range(3) for d in range(8)]
    (tmp_path / "t").mkdir()
    schema = {"subject_id": pl.Int64, "prediction_time": pl.Datetime("us"), "boolean_value": pl.Boolean}
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(tmp_path / "t" / "0.parquet")
    settings = OutcomeSettings(epochs=8, members=5, hidden=16, trees=0, curve=False, baselines=False, holdout=0.0)
    run = finetune_outcome(home / "model", home / "meds", tmp_path / "t", tmp_path / "m", settings=settings)
    assert run.figures["training"] == 24
    linear = unmask.load(tmp_path / "m").folder.head.linear[2:]  # the three patients are in folds 0, 0 and 1
    assert (linear.abs().amax((1, 2)) > 5e-3).all()  # a member that stops after one epoch has hardly moved


def test_points_without_a_label_keep_the_labels_of_the_others(home: Path, tmp_path: Path):
    finetune_outcome(home / "model", home / "meds", home / "task", tmp_path / "m", settings=QUICK)
    model, first = unmask.load(tmp_path / "m"), pl.int_range(pl.len()) == 1
    truth = pl.read_parquet(home / "task" / "0.parquet")
    holed = task(tmp_path / "t", home, boolean_value=pl.when(~first).then(truth["boolean_value"]))
    frame, points = model.predicted(home / "meds", holed)
    assert frame["boolean_value"].to_list() == [None if i == 1 else v for i, v in enumerate(truth["boolean_value"])]
    assert frame.drop("boolean_value").equals(model.predicted(home / "meds", home / "task")[0].drop("boolean_value"))
    with pytest.raises(UserError, match="row 1: boolean_value is null"):
        model.evaluate(home / "meds", holed)
    assert points.take(np.array([0, 1])).null["value"].tolist() == [False, True]


@pytest.mark.parametrize(
    ("target", "columns", "written"),
    [
        (Classes(names=("a", "b")), {"categorical_value": ["a", None, "b"]}, {}),
        (Classes(names=("1", "2")), {"integer_value": [1, None, 2]}, {"categorical_value": ["1", None, "2"]}),
        (NumberTarget(centre=0.0, spread=1.0), {"float_value": [1.5, None, 2.5]}, {}),
        (NumberTarget(centre=0.0, spread=1.0), {"integer_value": [3, None, 4]}, {"float_value": [3.0, None, 4.0]}),
        (
            TimeToEvent(cuts=(1.0, 2.0), lived=(0.0, 0.0)),
            {"float_value": [1.5, None, 2.5], "boolean_value": [True, False, None]},
            {},
        ),
    ],
)
def test_null_labels_of_every_kind_stay_null(home: Path, tmp_path: Path, target, columns, written):
    points = pl.read_parquet(home / "task" / "0.parquet").head(3).select("subject_id", "prediction_time")
    points.with_columns(**{name: pl.Series(values) for name, values in columns.items()}).write_parquet(tmp_path / "t")
    read = read_labels(tmp_path / "t", read_meds(home / "meds"), need_value=False)
    found = target.columns(np.full((3, target.outputs), 0.5), read)
    for name, values in (written or columns).items():
        assert pl.Series(found[name]).to_list() == values
