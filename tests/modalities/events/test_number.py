"""Labels that are numbers: what they are taken as, what is predicted, and that intervals hold as much as they say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from event_data import main_fails, main_ok

import unmask
from unmask.core.hashing import Salt, uniform
from unmask.errors import UserError
from unmask.modalities.events.audit.audit_points import outcomes
from unmask.modalities.events.outcome.candidates import number_models
from unmask.modalities.events.outcome.number import rules
from unmask.modalities.events.outcome.scoring import r2, spearman
from unmask.modalities.events.outcome.targets import Binary, Classes, NumberTarget, from_dict, target_of
from unmask.modalities.events.recipes import OutcomeSettings
from unmask.modalities.events.records.labels import read_labels
from unmask.modalities.events.records.meds import Labels, read_meds
from unmask.modalities.events.uses.finetune import finetune_outcome
from unmask.modalities.events.uses.outcome_report import in_words, ranges

SMALL = OutcomeSettings(epochs=6, members=2, hidden=16, trees=40, curve=False)


def labelled(number: list[float] | np.ndarray) -> Labels:
    values = np.asarray(number)
    return Labels(subject=np.arange(len(values)), time=np.zeros(len(values), np.int64), number=values)


@pytest.fixture(scope="module")
def task(home: Path) -> Path:
    """Twice the patient's mean glucose, and noise."""
    events = read_meds(home / "meds")
    points, glucose = read_labels(home / "task", events), events.codes.index("GLUCOSE")
    rng = np.random.default_rng(0)
    means = [
        np.nanmean(events.value[r][events.code[r] == glucose]) for r in (events.before(s, None) for s in points.subject)
    ]
    frame = pl.DataFrame(
        {
            "subject_id": events.subjects[points.subject],
            "prediction_time": pl.Series(points.time).cast(pl.Datetime("us")),
            "float_value": pl.Series(2 * np.array(means) + rng.normal(0, 0.5, len(points)), dtype=pl.Float32),
        }
    )
    folder = home / "amount"
    folder.mkdir()
    frame.write_parquet(folder / "0.parquet")
    return folder


@pytest.mark.parametrize(
    ("number", "problem", "kind"),
    [
        ([0.5, 1, 2], "auto", "number"),
        (np.arange(40), "auto", "number"),
        ([1, 2, 2], "regression", "number"),
        ([1.0, 2.0, 2.0], "single", "classes"),
    ],
)
def test_what_numbers_are_taken_as(number, problem, kind):
    target = target_of(labelled(number), problem)
    assert target.kind == kind
    assert from_dict(json.loads(json.dumps(target.to_dict()))) == target


@pytest.mark.parametrize("number", [[1, 2, 3], [1.0, 2.0, 0.0]])
def test_few_whole_numbers_are_asked_about(number):
    with pytest.raises(UserError, match=r"3 distinct values .*classes, or amounts") as raised:
        target_of(labelled(number))
    assert "problem='single'" in str(raised.value.hint)


def test_a_problem_that_labels_do_not_fit_is_refused():
    yes = replace(labelled([1, 0]), number=None, value=np.array([1, 0]))
    for labels, problem, said in (
        (labelled([0.5, 1]), "single", "fractions"),
        (yes, "regression", "yes or no"),
        (labelled([2.5, 2.5]), "auto", "is 2.5"),
    ):
        with pytest.raises(UserError, match=said):
            target_of(labels, problem)  # type: ignore[arg-type]
    assert target_of(yes) == Binary()
    classes = target_of(labelled([3, 12, 3]), "single")
    assert isinstance(classes, Classes)
    assert classes.names == ("3", "12")
    assert classes.encode(labelled([12, 7]))[:, 0].tolist() == [1, -1]


def test_numbers_that_are_none_and_two_kinds_at_once_are_refused(home: Path, task: Path, tmp_path: Path):
    events, frame = read_meds(home / "meds"), pl.read_parquet(task / "0.parquet")
    for name, wrong, said in (
        (
            "nan",
            frame.with_columns(float_value=pl.when(pl.int_range(pl.len()) == 3).then(float("nan")).otherwise(1.5)),
            "row 3",
        ),
        ("two", frame.with_columns(integer_value=1), "integer_value, float_value"),
    ):
        wrong.write_parquet(tmp_path / f"{name}.parquet")
        with pytest.raises(UserError, match=said):
            read_labels(tmp_path / f"{name}.parquet", events)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_intervals_hold_as_much_as_they_say(seed: int):
    """Skewed errors whose size differs between points, predicted by a head that knows neither their size nor their
    shape well."""
    rng = np.random.default_rng(seed)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        location, size = rng.normal(size=count), rng.uniform(0.2, 2, count)
        return np.stack([location + 0.3, 0.5 * size], 1), (location + size * (rng.exponential(size=count) - 1))[:, None]

    target = replace(NumberTarget(centre=5.0, spread=3.0), level=0.8)
    target = target.calibrated(*drawn(3000))
    p, y = drawn(20_000)
    ends = target.interval(p)
    assert ends is not None
    truth = 5 + 3 * y[:, 0]
    below, above = (truth < ends[:, 0]).mean(), (truth > ends[:, 1]).mean()
    assert abs(below - 0.1) < 0.02
    assert abs(above - 0.1) < 0.02


def test_nothing_below_zero_is_predicted_where_no_label_is():
    target = NumberTarget.fit(labelled([0.0, 0.5, 9.0]))
    p = np.array([[-5.0, 1.0], [1.0, 1.0]])
    target = target.calibrated(p, np.array([[-4.0], [2.0]]))
    assert target.judged(p).min() == 0
    assert NumberTarget.fit(labelled([-1.0, 0.5, 9.0])).least is None


def test_the_expected_number_is_learnt_whatever_the_deviation():
    target = NumberTarget(centre=0.0, spread=1.0)
    y = torch.tensor([[2.0], [0.0]])
    logits = torch.tensor([[[0.0, -3.0], [0.0, -3.0]]], requires_grad=True)
    target.loss(logits, y).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, :, 0].tolist() == [-2.0, 0.0]  # that of half the squared error
    assert logits.grad[0, 0, 1] < 0 < logits.grad[0, 1, 1]


def test_the_last_value_is_carried_forward_in_its_own_unit():
    rng = np.random.default_rng(0)
    value = rng.lognormal(2, 1.5, (400, 3))
    number = value[:, 1] + rng.normal(size=400)
    value[rng.random(400) < 0.2, 1] = np.nan
    carried, line = rules(value, number, ["A", "B", "C"])
    assert (carried.name, line.name) == ("last value of B", "line through the last value of B")
    seen = np.isfinite(value[:, 1])
    assert (carried.predict(value[:, 1])[seen] == value[seen, 1]).all()
    assert (carried.predict(value[:, 1])[~seen] == number.mean()).all()
    assert rules(value, 1000 + 2 * np.nan_to_num(value[:, 1]), ["A", "B", "C"])[0].name.startswith(
        "line"
    )  # another unit


def test_ridge_regression_sees_raw_values_where_they_are_better():
    rng = np.random.default_rng(0)
    raw = rng.lognormal(2, 1.5, (600, 1))
    x = np.argsort(np.argsort(raw[:, 0]))[:, None] / 600.0
    y = (raw[:, 0] - raw.mean()) / raw.std()
    raw[rng.random(600) < 0.2] = np.nan
    few = slice(0, 400), slice(400, 600)
    found = number_models(x[few[0]], y[few[0]], x[few[1]], values=(raw[few[0]], raw[few[1]]), groups=np.arange(400))
    alone = number_models(x[few[0]], y[few[0]], x[few[1]], groups=np.arange(400))
    told = np.isfinite(raw[few[1], 0])
    scores = [r2(y[few[1]][told], f["ridge regression"][told]) for f in (alone, found)]
    assert scores[0] < 0.8 < 0.95 < scores[1]
    assert np.isnan(spearman(y[few[1]], found["training mean"]))


def test_a_model_is_not_worse_than_the_last_value(
    home: Path, task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    events = read_meds(home / "meds")
    points, glucose = read_labels(task, events), events.codes.index("GLUCOSE")
    last = []
    for subject, moment in zip(points.subject.tolist(), points.time.tolist(), strict=True):
        known = events.before(subject, moment)
        values = events.value[known][events.code[known] == glucose]
        last.append(float(values[np.isfinite(values)][-1]) if np.isfinite(values).any() else 0.0)
    frame = pl.read_parquet(task / "0.parquet")
    (tmp_path / "task").mkdir()
    frame.with_columns(float_value=pl.Series(last, dtype=pl.Float32)).write_parquet(tmp_path / "task" / "0.parquet")
    finetune_outcome(home / "model", home / "meds", tmp_path / "task", tmp_path / "m", settings=SMALL)
    figures = json.loads((tmp_path / "m" / "metrics.jsonl").read_text())
    results = figures["results"]
    assert results["last value of GLUCOSE"]["rmse"] < 0.5 * results["training mean"]["rmse"]
    assert results["ours"]["rmse"] <= results["last value of GLUCOSE"]["rmse"] + 1e-6
    rule = figures["number"]["rule"]
    assert rule["code"] == "GLUCOSE"
    assert rule["weight"] == 1
    assert "the last value of GLUCOSE" in (tmp_path / "m" / "report.html").read_text()
    capsys.readouterr()
    main_ok(["evaluate", str(tmp_path / "m"), str(home / "meds"), "--labels", str(tmp_path / "task"), "--json"])
    judged_by = json.loads(capsys.readouterr().out)["results"]
    assert judged_by["model"]["rmse"] == pytest.approx(results["ours"]["rmse"])
    assert judged_by["last value of GLUCOSE"]["rmse"] == pytest.approx(results["last value of GLUCOSE"]["rmse"])


def test_numbers_from_labels_to_a_report(home: Path, task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sets = [x for pair in ("epochs=6", "members=2", "hidden=16", "trees=40") for x in ("--set", pair)] + ["--examples"]
    out = str(tmp_path / "m")
    main_ok(
        ["finetune", "outcome", str(home / "model"), str(home / "meds"), "--labels", str(task), "--out", out, *sets]
    )
    said = capsys.readouterr().out
    assert "labels are taken as amounts" in said
    figures = json.loads((tmp_path / "m" / "metrics.jsonl").read_text())
    ours, mean = figures["results"]["ours"], figures["results"]["training mean"]
    assert set(ours["intervals"]) == {"rmse", "mae", "r2", "spearman", "coverage"}
    assert ours["rmse"] < 0.8 * mean["rmse"]
    assert ours["coverage"] > 0.7
    assert "line through the last value of GLUCOSE" in figures["results"]
    assert figures["number"]["points"] == figures["training"]  # few labels: all five folds are set apart in turn
    page = (tmp_path / "m" / "report.html").read_text()
    for words in (
        "How far off",
        "Error by predicted value",
        "Learning curve",
        "nine in ten",
        "the one of highest predicted number",
    ):
        assert words in page
    main_ok(["predict", out, str(home / "meds"), "--labels", str(task), "--out", str(tmp_path / "p.parquet")])
    frame = pl.read_parquet(tmp_path / "p.parquet")
    assert (frame["predicted_low"] <= frame["predicted_float_value"]).all()
    assert (frame["predicted_float_value"] <= frame["predicted_high"]).all()
    assert (
        (frame["float_value"] >= frame["predicted_low"]) & (frame["float_value"] <= frame["predicted_high"])
    ).mean() > 0.7
    capsys.readouterr()
    main_ok(["evaluate", out, str(home / "meds"), "--labels", str(task), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "number"
    assert found["results"]["mean"]["r2"] == pytest.approx(0, abs=1e-6)
    assert found["results"]["model"]["rmse"] == pytest.approx(ours["rmse"])
    said = main_fails(["evaluate", out, home / "meds", "--labels", home / "task"], capsys)
    assert "number labels" in said


def test_held_out_numbers_are_not_looked_at(home: Path, task: Path, tmp_path: Path):
    held = uniform(0, read_meds(home / "meds").subjects, Salt.HELD_OUT_POINT) < SMALL.holdout
    changed, frame = tmp_path / "task", pl.read_parquet(task / "0.parquet")
    changed.mkdir()
    held_ids = read_meds(home / "meds").subjects[held].tolist()
    moved = pl.when(pl.col("subject_id").is_in(held_ids)).then(-1000.0).otherwise(pl.col("float_value"))
    frame.with_columns(float_value=moved.cast(pl.Float32)).write_parquet(changed / "0.parquet")
    found = []
    for labels, out in ((task, "a"), (changed, "b")):
        settings = replace(SMALL, baselines=False)
        finetune_outcome(home / "model", home / "meds", labels, tmp_path / out, settings=settings)
        found.append(unmask.load(tmp_path / out).predicted(home / "meds", task)[0])
    assert found[0].equals(found[1])


def test_what_a_clinician_reads_of_errors():
    rng = np.random.default_rng(0)
    y = rng.gamma(2, 3, 600)
    seen = np.stack([y + 1, y - 1, y + 3], 1)
    target = NumberTarget(centre=6.0, spread=4.0, low=-1.0, high=1.0, points=12)
    words = in_words(y, seen, target)
    assert "Half of the predictions are off by 1 or less" in words
    assert "meant to hold 90% of the numbers and hold 100.0%" in words
    assert "So few say little" in words
    rows = ranges(y, seen, seen[:, 0], np.arange(600))
    assert sum(r["points"] for r in rows) == 600  # type: ignore[misc]
    for row in rows:
        predicted, observed = row["predicted"], row["observed"]
        assert predicted.value - observed.value == pytest.approx(1)
        assert observed.low < observed.value < observed.high


def test_the_audit_asks_of_numbers_whether_they_are_high():
    assert outcomes(labelled([1.5, 2, 9]))["above 2"].tolist() == [False, False, True]
    assert list(outcomes(labelled([3, 1, 3]))) == ["1", "3"]
