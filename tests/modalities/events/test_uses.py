"""What a trained model is used for: labels of every kind, filling, next visits, the report."""

from __future__ import annotations

import dataclasses
import json
import re
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from event_data import DAY, labels, main_fails, main_ok, shard, table

import unmask
from unmask.cli import main
from unmask.cli.events.tasks import _visit_lines
from unmask.errors import UserError
from unmask.evaluation.survival import kaplan_meier, step_values
from unmask.modalities.events.outcome.calibrating import on_line
from unmask.modalities.events.outcome.scoring import scored
from unmask.modalities.events.outcome.targets import Binary, TimeToEvent, from_dict
from unmask.modalities.events.recipes import EventSettings, OutcomeSettings, with_overrides
from unmask.modalities.events.records.encounters import own_events, visits_of
from unmask.modalities.events.records.histories import Histories
from unmask.modalities.events.records.labels import read_labels
from unmask.modalities.events.records.meds import HOUR, Labels, as_events, read_meds
from unmask.modalities.events.records.vocabulary import FIRST, Vocabulary
from unmask.modalities.events.uses.fill import next_events, timeline
from unmask.modalities.events.uses.finetune import finetune_outcome
from unmask.modalities.events.uses.folder import EventFolder
from unmask.modalities.events.uses.next_visit import figures, finetune_next_visit, next_visits
from unmask.modalities.events.uses.outcome_report import subgroups
from unmask.modalities.events.uses.pretrain import pretrain

QUICK = OutcomeSettings(epochs=12, members=2, hidden=16, trees=20, curve=False)


def relabelled(home: Path, out: Path, **columns: pl.Expr) -> Path:
    """The task's labels as other kinds."""
    out.mkdir()
    frame = pl.read_parquet(home / "task" / "0.parquet")
    frame.select("subject_id", "prediction_time", **columns).write_parquet(out / "0.parquet")
    return out


def test_classes(home: Path, tmp_path: Path):
    kind = (
        pl.when(pl.col("boolean_value"))
        .then(pl.lit("dialysis"))
        .otherwise(pl.when(pl.col("subject_id") % 2 == 0).then(pl.lit("even")).otherwise(pl.lit("odd")))
    )
    task = relabelled(home, tmp_path / "task", categorical_value=kind)
    run = finetune_outcome(home / "model", home / "meds", task, tmp_path / "m", settings=QUICK)
    assert run.figures["results"]["ours"]["log_loss"] < run.figures["results"]["prevalence"]["log_loss"]
    assert set(run.figures["results"]) == {
        "ours",
        "networks alone",
        "trees alone",
        "boosting alone",
        "prevalence",
        "age and number of events",
        "last values",
        "logistic regression",
        "gradient boosting",
    }
    frame, _ = unmask.load(tmp_path / "m").predicted(home / "meds", task)
    p = frame.select(pl.col("^predicted_probability_.*$")).to_numpy()
    assert frame.columns[2:4] == ["categorical_value", "predicted_categorical_value"]
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)


def test_one_part_alone_is_saved_and_its_probabilities_are_on_the_line(home: Path, tmp_path: Path):
    settings = dataclasses.replace(QUICK, members=0, trees=0, boosting=30)
    run = finetune_outcome(home / "model", home / "meds", home / "task", tmp_path / "m", settings=settings)
    assert not any(name.endswith("alone") for name in run.figures["results"])
    model, events = unmask.load(tmp_path / "m"), read_meds(home / "meds")
    head, target = model.folder.head, from_dict(model.folder.fine_tuning["target"])
    points = read_labels(home / "task", events)
    x = model.features(model.histories(events), points, states=False, summaries=True)
    voices = head.voices(x, target)
    assert list(voices) == ["boosting"]
    assert target.points >= 100
    expected = on_line(voices["boosting"][:, 0], target.intercept, target.slope)
    np.testing.assert_allclose(model.probabilities(model.histories(events), points)[1][:, 0], expected)
    assert np.abs(expected - voices["boosting"][:, 0]).max() > 1e-3
    with pytest.raises(UserError, match="members=0, trees=0 and boosting=0"):
        dataclasses.replace(settings, boosting=0)


def test_time_to_event(home: Path, tmp_path: Path):
    rng = np.random.default_rng(0)
    days = pl.Series(rng.exponential(60, 240))
    time = pl.when(pl.col("boolean_value")).then(days * 0.2).otherwise(days + 60)
    task = relabelled(home, tmp_path / "task", boolean_value=pl.col("boolean_value"), float_value=time)
    run = finetune_outcome(home / "model", home / "meds", task, tmp_path / "m", settings=replace(QUICK, trees=0))
    assert run.figures["kind"] == "time_to_event"
    assert run.figures["results"]["ours"]["c_index"] > 0.6
    frame, _ = unmask.load(tmp_path / "m").predicted(home / "meds", task)
    p = frame.select(pl.col("^predicted_probability_by_.*$")).to_numpy()
    assert (np.diff(p, axis=1) >= -1e-9).all()
    assert ((p > 0) & (p < 1)).all()


def test_hazards_start_at_the_observed_ones():
    """With no feature the model is the life table: survival at the cuts is Kaplan-Meier's, up to the prior counts."""
    rng = np.random.default_rng(1)
    days, seen = rng.exponential(10, 4000), rng.random(4000) < 0.6
    labels = Labels(subject=np.arange(4000), time=np.zeros(4000, np.int64), value=seen.astype(np.int64), days=days)
    target = TimeToEvent.fit(labels)
    y = target.encode(labels)
    p = target.probabilities(torch.from_numpy(target.start(y))[None, None]).numpy()[0]
    survival = step_values(*kaplan_meier(days, seen), np.array(target.cuts))
    np.testing.assert_allclose((1 - p)[:-1], survival[:-1], atol=0.03)  # none is left at the last cut


def test_binary_report_has_what_it_promises(home: Path, tmp_path: Path):
    settings = OutcomeSettings(epochs=12, members=2, hidden=16, trees=20, examples=True)
    run = finetune_outcome(home / "model", home / "meds", home / "task", tmp_path / "m", settings=settings)
    page = (tmp_path / "m" / "report.html").read_text()
    for heading in (
        "Calibration",
        "Learning curve",
        "By subgroup",
        "A patient&#39;s timeline",
        "hidden visit by visit",
    ):
        assert heading in page
    groups = {g["group"] for g in run.figures["subgroups"]}
    assert any(g.startswith("age") for g in groups) or "GENDER//MALE" in groups
    assert {row["labels"] for row in run.figures["curve"]}


def test_subgroups_are_by_static_facts_and_by_the_last_insurance_that_was_known():
    rows = []
    for i in range(80):
        first, then = ("INSURANCE//A", "INSURANCE//B") if i % 2 else ("INSURANCE//B", "INSURANCE//A")
        rows += [(i, None, "RACE//X" if i < 45 else "RACE//Y"), (i, 10, first), (i, 20, "VISIT"), (i, 30, then)]
    frame = pl.DataFrame(rows, schema=["subject_id", "time", "code"], orient="row").with_columns(
        pl.col("time").cast(pl.Datetime("us"))
    )
    events = as_events(frame)
    histories = Histories(events, Vocabulary.fit(events))
    points = Labels(subject=np.arange(80), time=np.full(80, 25))
    found = subgroups(histories, points)
    assert {name: int(chosen.sum()) for name, chosen in found.items()} == {
        "RACE//X": 45,
        "RACE//Y": 35,
        "INSURANCE//A": 40,
        "INSURANCE//B": 40,
    }
    assert found["INSURANCE//A"][1]  # what is said later is not known yet
    assert not found["INSURANCE//A"][0]


def test_what_was_never_trained_is_not_told(home: Path):
    model = unmask.load(home / "model")
    histories = model.histories(read_meds(home / "meds"))
    whole, known = model.folder, model.folder.settings

    def weighing(**weights: float) -> EventFolder:
        return dataclasses.replace(whole, settings=dataclasses.replace(known, **weights))

    assert any(row["expected"] is not None for row in timeline(whole, histories, 0, None))
    assert not any(row["expected"] is not None for row in timeline(weighing(value_weight=0.0), histories, 0, None))
    assert next_events(whole, histories)["time"].is_null().all()
    assert next_events(weighing(code_weight=0.0), histories).is_empty()
    assert next_events(whole, histories, top=10_000)["code"].n_unique() == len(model.folder.vocabulary.codes)


def test_fill_gives_missing_values_and_next_events(home: Path, tmp_path: Path):
    rows = [(1, DAY + timedelta(days=90 * v), c, x) for v in range(3) for c, x in (("VISIT", None), ("GLUCOSE", 5.5))]
    rows[-1] = (1, rows[-1][1], "GLUCOSE", None)
    meds = shard(tmp_path / "meds", table([(1, None, "GENDER//MALE", None), *rows]))
    main_ok(["fill", str(home / "model"), str(meds), "--out", str(tmp_path / "f.parquet"), "--top", "3"])
    frame = pl.read_parquet(tmp_path / "f.parquet")
    value = frame.filter(pl.col("kind") == "value").row(0, named=True)
    assert (value["code"], value["time"]) == ("GLUCOSE", rows[-1][1])
    assert value["low"] < value["value"] < value["high"]
    bare = shard(tmp_path / "bare", table([(1, None, "GENDER//MALE", None)]))
    assert unmask.load(home / "model").fill(bare, top=1)["time"].to_list() == [None]
    after = frame.filter(pl.col("kind") == "next")
    assert len(after) == 3
    p = after["probability"].to_list()
    assert p == sorted(p, reverse=True)
    assert 0 < sum(p) <= 1


def test_values_are_filled_where_a_code_usually_has_one_and_no_word_stands(home: Path, tmp_path: Path):
    model = unmask.load(home / "model")
    meds = shard(
        tmp_path / "meds",
        table(
            [
                (1, DAY, "VISIT", None),
                (1, DAY, "GLUCOSE", None),
                (1, DAY + timedelta(days=1), "GLUCOSE", None),
            ]
        ).with_columns(text_value=pl.Series([None, None, "not measured"])),
    )
    assert len(model.fill(meds, top=0)) == 1  # of the two GLUCOSE
    vocabulary = model.folder.vocabulary
    seldom = np.where(np.array(["GLUCOSE" in c for c in [""] * FIRST + vocabulary.codes]), 0.02, 1.0)
    model.folder.vocabulary = dataclasses.replace(vocabulary, share=seldom)
    assert model.fill(meds, top=0).is_empty()


def test_codes_know_how_often_they_have_a_value(home: Path):
    vocabulary = unmask.load(home / "model").folder.vocabulary
    share = dict(zip(vocabulary.codes, vocabulary.share[FIRST:], strict=True))
    assert share["GLUCOSE"] == 1
    assert share["GENDER//MALE"] == 0


def test_nothing_comes_after_a_death(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [(s, DAY + timedelta(days=d), "VISIT", None) for s in (1, 2) for d in range(3)]
    dead = [(2, DAY + timedelta(days=3), "MEDS_DEATH", None), (3, None, "MEDS_DEATH", None), (3, DAY, "VISIT", None)]
    meds = shard(tmp_path / "meds", table([*rows, *dead]))
    main_ok(["fill", str(home / "model"), str(meds), "--out", str(tmp_path / "f.parquet"), "--most-unknown", "1"])
    frame = pl.read_parquet(tmp_path / "f.parquet").filter(pl.col("kind") == "next")
    assert set(frame["subject_id"]) == {1}
    assert "2 patients who died have no next events" in capsys.readouterr().out


def test_next_events_do_not_take_the_next_visit_for_one_of_a_single_event(tmp_path: Path):
    """Visits have four events, and deaths stand alone: asked by one empty slot at the end of the record, a model said
    of everybody that death (.10) comes next (.55)."""
    rng, rows = np.random.default_rng(0), []
    for subject in range(300):
        day = DAY
        for _ in range(rng.integers(2, 6)):
            day += timedelta(days=int(rng.integers(20, 100)))
            rows += [(subject, day, code, None) for code in ("ADMISSION", "LAB//A", "LAB//B", "DRUG")]
        if rng.random() < 0.4:
            rows.append((subject, day + timedelta(days=30), "MEDS_DEATH", None))
    shape = {"width": 32, "layers": 2, "heads": 2, "inner": 64, "slots": 64, "questions": 0, "steps": 250}
    settings = with_overrides(
        EventSettings(), shape | {"learning_rate": 3e-3, "precision": "fp32", "batch_slots": 1024}
    )
    pretrain(shard(tmp_path / "meds", table(rows)), tmp_path / "m", settings=settings, console=False)
    model = unmask.load(tmp_path / "m")
    visits = model.folder.vocabulary.visits
    stays = [[(day, code) for s, day, code, _ in rows if s == subject] for subject in range(300)]
    last = [len({day for day, _ in stay}) - 1 for stay in stays]
    died = sum(stay[-1][1] == "MEDS_DEATH" for stay in stays)
    assert visits[0, 0] == pytest.approx(died / sum(last), abs=0.03)  # of 250 to 300 patients
    assert visits[1, 3] == pytest.approx((sum(last) - 300) / sum(last), abs=0.03)
    assert visits.sum() == pytest.approx(1)
    living = shard(tmp_path / "living", table([row for row in rows if row[2] != "MEDS_DEATH"]))
    found = model.fill(living, top=5).filter(pl.col("kind") == "next")
    share = found.group_by("code").agg(pl.col("probability").sum() / found["subject_id"].n_unique())
    dead = dict(share.iter_rows())["MEDS_DEATH"]
    assert dead < 0.2


def test_the_value_that_stands_there_does_not_change_its_expectation(home: Path, tmp_path: Path):
    """The timeline hides a visit whole: its own values change nothing of what was expected there."""
    from unmask.modalities.events.uses.fill import timeline

    model = unmask.load(home / "model")
    events = read_meds(home / "meds")
    changed = events.value.copy()
    first = int(np.flatnonzero(np.isfinite(changed))[0])
    changed[first] += 3
    import dataclasses

    found = []
    for value in (events.value, changed):
        histories = model.histories(dataclasses.replace(events, value=value))
        found.append({r["slot"]: r["expected"] for r in timeline(model.folder, histories, 0, None)})
        slot = int(np.flatnonzero(histories.rows(0) == first)[0]) + 1
    assert found[0][slot] == found[1][slot]
    assert found[0] != found[1]  # other visits do see it


def test_next_visit_splits_onsets_from_repeats(tmp_path: Path):
    rows = [
        (1, DAY, "CONDITION//a", None),
        (1, DAY + timedelta(9), "CONDITION//a", None),
        (1, DAY + timedelta(9), "CONDITION//b", None),
        (1, DAY + timedelta(12), "LAB", 1.0),
        (2, DAY, "CONDITION//b", None),
        (3, DAY, "LAB", 1.0),
        (3, DAY + timedelta(2), "CONDITION//b", None),
    ]
    events = read_meds(shard(tmp_path, table(rows)))
    histories = Histories(events, Vocabulary.fit(events, floor=1))
    visits = next_visits(histories, ("CONDITION",))
    column = {n: i for i, n in enumerate(visits.names)}
    order = [column["CONDITION//a"], column["CONDITION//b"]]
    assert events.subjects[visits.points.subject].tolist() == [1, 3]  # the second has one visit
    assert visits.came[:, order].tolist() == [[1, 1], [0, 1]]
    assert visits.before[:, order].tolist() == [[1, 0], [0, 0]]
    for subject, moment in zip(visits.points.subject, visits.points.time, strict=True):
        known = histories.rows(int(subject), int(moment))
        assert events.time[known].max() < events.time[histories.rows(int(subject))].max()
    perfect = figures(visits.came, visits.before, visits.came)
    assert perfect["all"]["auroc"] == perfect["onsets"]["auroc"] == 1
    with pytest.raises(UserError, match="no code begins with DRUG"):
        next_visits(histories, ("DRUG",))


def test_a_visit_is_an_encounter_where_the_data_names_them(tmp_path: Path):
    """The diagnosis of a stay is asked about before the stay, not a moment before its discharge."""
    rows = [
        (1, DAY, "CONDITION//a", None, 5),
        (1, DAY + timedelta(10), "ADMISSION", None, 9),
        (1, DAY + timedelta(13), "LAB", 1.0, None),
        (1, DAY + timedelta(17), "CONDITION//b", None, 9),
        (2, DAY, "LAB", 1.0, None),
        (2, DAY + timedelta(3), "LAB", 1.0, None),
        (2, DAY + timedelta(3, hours=20), "CONDITION//b", None, None),
    ]
    frame = pl.DataFrame(
        rows,
        orient="row",
        schema={
            "subject_id": pl.Int64,
            "time": pl.Datetime("us"),
            "code": pl.String,
            "numeric_value": pl.Float32,
            "visit_id": pl.Int64,
        },
    )
    events = read_meds(shard(tmp_path, frame))
    histories = Histories(events, Vocabulary.fit(events, floor=1))
    visits = next_visits(histories, ("CONDITION",))
    times = visits.points.time.astype("datetime64[us]").tolist()
    before = timedelta(microseconds=1)
    assert times == [DAY + timedelta(10) - before, DAY + timedelta(3) - before]
    assert visits.encounter.tolist() == [True, False]
    assert [[visits.names[i] for i in np.flatnonzero(row)] for row in visits.came] == [
        ["CONDITION//b"],
        ["CONDITION//b"],
    ]
    assert "an encounter of the data (1 of 2), where none is named events with no more than 24 hours" in visits.words()
    assert next_visits(histories, ("CONDITION",), 0).points.time[1] == (
        np.datetime64(DAY + timedelta(3, hours=20) - before, "us").astype(np.int64)
    )
    bare = replace(events, visit=None)
    assert not next_visits(Histories(bare, histories.vocabulary), ("CONDITION",)).encounter.any()


def test_events_without_an_encounter_are_of_the_one_around_them_or_of_those_close_in_time():
    hours = np.array([0, 5, 40, 50, 60, 61, 100, 130]) * HOUR
    named = np.array([-1, -1, 7, -1, 7, 3, -1, -1])
    found = visits_of(hours, named, 24)
    assert found.of.tolist() == [2, 2, 0, 0, 0, 1, 3, 4]
    assert (found.begin // HOUR).tolist() == [40, 61, 0, 100, 130]
    assert found.encounter.tolist() == [True, True, False, False, False]
    assert visits_of(hours, None, 0).of.tolist() == list(range(8))
    inner = visits_of(hours, np.array([7, 7, 3, -1, 3, 7, 7, -1]), 24)  # one encounter within another
    assert inner.of.tolist() == [0, 0, 1, 1, 1, 0, 0, 2]


@pytest.mark.parametrize(
    ("admission", "discharge"), [("ADMISSION", "DISCHARGE"), ("ENCOUNTER//IMP", "ENCOUNTER_END//IMP")]
)
def test_a_row_with_a_wrong_time_moves_no_stay(tmp_path: Path, admission: str, discharge: str):
    rows = [
        (1, DAY, "LAB", 5.0, None),
        (1, DAY + timedelta(300), "LAB", 1.0, 9),  # mistyped by a year
        (1, DAY + timedelta(400), "LAB", 2.0, None),
        (1, DAY + timedelta(665), admission, None, 9),
        (1, DAY + timedelta(666), "LAB", 3.0, None),
        (1, DAY + timedelta(667), "CONDITION//b", None, 9),
        (1, DAY + timedelta(668), discharge, None, 9),
        (1, DAY + timedelta(1030), "LAB", 4.0, 9),  # mistyped the other way
        (1, DAY + timedelta(700), "LAB", 6.0, None),
    ]
    rows.sort(key=lambda row: row[1])
    kinds = {"subject_id": pl.Int64, "time": pl.Datetime("us"), "code": pl.String, "numeric_value": pl.Float32}
    events = read_meds(shard(tmp_path, pl.DataFrame(rows, orient="row", schema=kinds | {"visit_id": pl.Int64})))
    histories = Histories(events, Vocabulary.fit(events, floor=1))
    visits = next_visits(histories, ("CONDITION",))
    assert visits.points.time.tolist() == [events.time[events.code == events.codes.index(admission)][0] - 1]
    own = own_events(events)[events.code]
    found = visits_of(events.time, events.visit, 24, own)
    assert [v for v, of in zip(events.value.tolist(), found.of.tolist(), strict=True) if of == 0 and v == v] == [
        1,
        3,
        4,
    ]


def test_next_visit_is_fitted_and_predicts(home: Path, tmp_path: Path):
    settings = OutcomeSettings(epochs=12, members=2, hidden=16, trees=0, codes="DIABETES,HYPERTENSION")
    run = finetune_next_visit(home / "model", home / "meds", tmp_path / "m", settings=settings)
    assert set(run.figures["results"]) == {"ours", "frequency", "seen before", "co-occurrence"}
    assert run.figures["results"]["ours"]["all"]["auroc"] > 0.8
    frame, _ = unmask.load(tmp_path / "m").predicted(home / "meds", home / "task")
    assert frame.columns == ["subject_id", "prediction_time", "predicted_codes", "predicted_probabilities", "split"]
    page = (tmp_path / "m" / "report.html").read_text()
    for words in (
        "events with no more than 24 hours",
        "nothing of that visit is known",
        "The most frequent codes",
        "DIABETES",
    ):
        assert words in page
    assert "likeliest</th>" not in page  # of two codes both are among the five likeliest
    by_code = run.figures["by_code"]
    assert {"code", "patients", "onsets", "with", "without", "auroc", "intervals"} == set(by_code[0])
    assert by_code[0]["intervals"]["auroc"][0] <= by_code[0]["auroc"] <= by_code[0]["intervals"]["auroc"][1]
    one = dataclasses.replace(settings, codes="DIABETES", epochs=1)  # every visit asked about was chosen for it
    lines = _visit_lines(finetune_next_visit(home / "model", home / "meds", tmp_path / "one", settings=one).figures)
    assert sum("no AUROC: " in line and "give more codes" in line for line in lines) == 4


def test_kinds_of_labels_that_do_not_fit_are_named(tmp_path: Path):
    events = read_meds(shard(tmp_path, table([(1, DAY, "a", None), (2, DAY, "a", None)])))
    base = {"subject_id": [1, 2], "prediction_time": [DAY, DAY]}
    for number, (more, says) in enumerate(
        [
            ({"float_value": [1.0, 2.0], "categorical_value": ["a", "b"]}, "float_value, categorical_value"),
            ({"boolean_value": [True, False], "integer_value": [1, 2]}, "boolean_value, integer_value"),
            ({"boolean_value": [True, False], "float_value": [1.0, -2.0]}, "row 1: float_value is -2"),
            ({}, "no column of labels"),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        pl.DataFrame(base | more).write_parquet(folder / "0.parquet")
        with pytest.raises(UserError, match=says):
            read_labels(folder, events)


def test_figures_know_each_kind():
    y = np.array([0, 1] * 30)
    labels = Labels(subject=np.arange(60), time=np.zeros(60, np.int64), value=y)
    found = scored(Binary(), labels, (0.2 + 0.6 * y)[:, None], draws=20)
    assert (found["auroc"], found["auprc"]) == (1, 1)
    assert found["brier"] == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["finetune", "outcome", "{m}", "{d}", "--out", "{o}"], "without --labels"),
        (["finetune", "outcomes", "{m}", "{d}", "--out", "{o}"], "outcome"),
        (["predict", "{m}", "{d}", "--out", "{o}", "--labels", "{t}"], "no outcome head"),
        (["fill", "{m}", "{d}"], "without --out"),
        (["fill", "{m}", "{d}", "--out", "{o}", "--level", "2"], "level=2"),
        (["pretrain", "events", "{d}", "--out", "{o}", "--recipe", "bert"], "behrt"),
        (["pretrain", "events", "{o}", "--out", "{o}"], "no such file or folder"),
    ],
)
def test_commands_name_what_is_wrong(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
):
    where = {"m": home / "model", "d": home / "meds", "t": home / "task", "o": tmp_path / "out"}
    assert says in main_fails([a.format(**where) for a in arguments], capsys)
    assert not (tmp_path / "out").exists()


def test_one_class_only(home: Path, tmp_path: Path):
    task = labels(tmp_path / "task", [(i, DAY + timedelta(9000), True) for i in range(30)])
    with pytest.raises(UserError, match="every label to train on is True"):
        finetune_outcome(home / "model", home / "meds", task, tmp_path / "m")
    assert json.loads((home / "model" / "unmask.json").read_text())["kind"] == "events"


def test_predictions_say_who_trained_the_head(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from unmask.core.hashing import Salt, uniform

    given = ["--set", "baselines=false", "--set", "curve=false", "--set", "trees=5", "--set", "epochs=2"]
    meds, task = str(home / "meds"), str(home / "task")
    main_ok(["finetune", "outcome", str(home / "model"), meds, "--labels", task, "--out", str(tmp_path / "m"), *given])
    capsys.readouterr()
    main_ok(["predict", str(tmp_path / "m"), meds, "--labels", task, "--out", str(tmp_path / "p.parquet")])
    frame = pl.read_parquet(tmp_path / "p.parquet")
    held = uniform(0, frame["subject_id"].to_numpy(), Salt.HELD_OUT_POINT) < 0.2
    assert (frame["split"] == "held_out").to_list() == held.tolist()
    assert (frame["split"] == "train").sum() == (~held).sum()
    assert f"{(~held).sum()} of {len(frame)} are of patients who trained the head" in capsys.readouterr().out
    model = unmask.load(tmp_path / "m")
    judged = model.evaluate(
        meds, task
    )  # the folder has no splits: the model's own held-out patients are judged, nobody else
    assert (judged["points"], judged["trained"]) == (held.sum(), (~held).sum())
    seen = frame.filter(frame["split"] == "train").row(0, named=True)
    own = labels(tmp_path / "own", [(seen["subject_id"], seen["prediction_time"], True)])
    with pytest.raises(UserError, match="all 1 points are of patients who trained the head"):
        model.evaluate(meds, own)
    other = shard(tmp_path / "other", table([(10**6, DAY, "VISIT", None)]))
    points = labels(tmp_path / "t", [(10**6, DAY, True)])
    assert model.predicted(other, points)[0]["split"].to_list() == ["unseen"]


def test_passes_of_an_outcome_head_are_whole_numbers(home: Path, tmp_path: Path, capsys):
    words = ["finetune", "outcome", str(home / "model"), str(home / "meds"), "--labels", str(home / "task")]
    assert "--epochs" in main_fails([*words, "--out", str(tmp_path / "o"), "--epochs", "1.5"], capsys)
    with pytest.raises(SystemExit):
        main(["finetune", "outcome", "--help"])
    assert re.search(r"--epochs\s+<int>", capsys.readouterr().out)


def test_prediction_times_in_a_zone_are_said_to_be_brought_to_utc(home: Path, tmp_path: Path):
    """The same wall-clock times, marked Europe/Berlin, were shifted by an hour or two beside events that were not."""
    events, frame = read_meds(home / "meds"), pl.read_parquet(next((home / "task").rglob("*.parquet")))
    for zone, warned in (("Europe/Berlin", True), ("UTC", False)):
        folder = tmp_path / zone.replace("/", "")
        folder.mkdir()
        zoned = frame.with_columns(pl.col("prediction_time").dt.replace_time_zone(zone, ambiguous="earliest"))
        zoned.write_parquet(folder / "0.parquet")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read_labels(folder, events)
        assert any("prediction_time is in the zone Europe/Berlin" in str(w.message) for w in caught) == warned
