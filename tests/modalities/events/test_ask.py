"""`unmask ask` and the same verb in Python: questions in words, answers, the page, and what is refused."""

from __future__ import annotations

import contextlib
import json
import re
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from event_data import main_fails, main_ok

import unmask
from unmask.errors import UserError
from unmask.modalities.events.questions.queries import ITEMS
from unmask.modalities.events.questions.query_text import parsed
from unmask.modalities.events.records.labels import read_labels
from unmask.modalities.events.records.meds import read_meds
from unmask.modalities.events.records.vocabulary import LEVELS

QUICK = ["--set", "slots=64", "--set", "batch_slots=1024", "--set", "width=32", "--precision", "fp32"]


@pytest.fixture(scope="module")
def asking(home: Path) -> Path:
    """A model that answers, trained for a moment on the simulated patients."""
    out = home / "asking"
    more = ["--recipe", "ask", "--steps", "12", *QUICK, "--set", "holdout=0.2", "--set", "until=2026-01-01"]
    main_ok(["pretrain", "events", str(home / "meds"), "--out", str(out), *more])
    return out


def code_of(model: unmask.events.EventModel, *, valued: bool) -> str:
    """The most frequent code with (or without) values."""
    vocabulary = model.folder.vocabulary
    chosen = vocabulary.valued[-len(vocabulary.codes) :] == valued
    share = model.folder.model.queries.share[-len(vocabulary.codes) :].numpy()
    return next(c for c, v, s in zip(vocabulary.codes, chosen, share, strict=True) if v and s)


def test_every_patient_gets_an_answer_to_every_question(asking: Path, home: Path, tmp_path: Path, capsys):
    model = unmask.load(asking)
    code, lab = code_of(model, valued=False), code_of(model, valued=True)
    cut = float(model.folder.vocabulary.knots[model.folder.vocabulary.numbers([lab])[0], len(LEVELS) // 2])
    days = float(model.folder.model.queries.edges[-1]) / 48
    questions = [
        f"{code} within {days} days",
        f"{lab} > {cut} within {days} days",
        f"any of {code}, {lab} within {days} days",
    ]
    questions.append(questions[2].replace("any", "none"))
    capsys.readouterr()
    page = tmp_path / "a.html"
    main_ok(
        [
            "ask",
            str(asking),
            str(home / "meds"),
            *questions,
            "--out",
            str(tmp_path / "a.parquet"),
            "--report",
            str(page),
            "--examples",
            "--json",
        ]
    )
    said = json.loads(capsys.readouterr().out)
    frame = pl.read_parquet(tmp_path / "a.parquet")
    assert said["rows"] == len(frame) == 4 * frame["subject_id"].n_unique()
    assert frame["question"].unique(maintain_order=True).to_list() == questions
    p = frame["probability"].to_numpy().reshape(-1, 4)
    known = np.isfinite(p[:, 0])
    assert known.any()
    assert ((p[known] >= 0) & (p[known] <= 1)).all()
    np.testing.assert_allclose(p[known, 2] + p[known, 3], 1, atol=1e-6)
    unanswered = frame.filter(pl.col("probability").is_null())
    assert unanswered["unanswered"].is_not_null().all()
    assert sum(said["unanswered"].values()) == len(unanswered)
    assert "<svg" in page.read_text()
    assert questions[0].split(" within ")[0] in page.read_text()
    assert 'aria-label="Answers along the record: ' in page.read_text()
    notes = re.findall(r"Each answer was given[^<]*", page.read_text())
    assert notes
    assert all(note.count("any of") == 1 for note in notes)  # that none of them comes is no event
    assert "none of" not in "".join(notes)
    told = [float(years) for note in notes for years in re.findall(r"first ([\d.]+) years", note)]
    assert all(years < 10 for years in told)  # after the first event, not after birth
    at = model.ask(home / "meds", questions[:1], home / "task")
    assert at.columns == frame.columns
    assert len(at) == len(unmask.events.read_labels(home / "task", unmask.events.read_meds(home / "meds")))


def test_everybody_is_asked_at_the_date_of_the_extract(asking: Path, home: Path, tmp_path: Path, capsys):
    model = unmask.load(asking)
    days = float(model.folder.model.queries.edges[-1]) / 48
    question = f"{code_of(model, valued=False)} within {days} days"
    words = ["ask", str(asking), str(home / "meds"), question, "--out", str(tmp_path / "a.parquet")]
    main_ok([*words, "--until", "2025-12-31T12:00"])
    frame = pl.read_parquet(tmp_path / "a.parquet")
    assert frame["prediction_time"].drop_nulls().unique().to_list() == [datetime(2025, 12, 31, 12)]
    assert "--at and --until" in main_fails([*words, "--until", "2026-01-01", "--at", home / "task"], capsys)
    assert "--until=soon: not a day" in main_fails([*words, "--until", "soon"], capsys)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--patient", "3"], "--patient without --report"),
        (["--examples"], "--examples without --report"),
        (["--report", "page", "--patient", "3", "--examples"], "--examples with --patient: nothing reads this"),
        (["--at", "task", "--until", "2024-06-30"], "--at and --until"),
    ],
)
def test_options_that_nothing_reads_are_refused(asking: Path, home: Path, tmp_path: Path, capsys, given, said):
    out = tmp_path / "a.parquet"
    places = {"task": str(home / "task"), "page": str(tmp_path / "a.html")}
    given = [places.get(word, word) for word in given]
    assert said in main_fails(["ask", asking, home / "meds", "VISIT within 9 days", "--out", out, *given], capsys)
    assert not out.exists()


def test_held_out_answers_stand_in_report_and_card(asking: Path):
    told = json.loads((asking / "unmask.json").read_text())["data"]["answers"]
    assert {"kind", "n", "hours", "answer", "came", "brier", "brier_of_the_mean"} == set(told[0])
    assert "Answers to questions" in (asking / "report.html").read_text()
    assert f"held-out questions about {told[0]['kind']}" in (asking / "README.md").read_text()


def test_calibrated_answers_say_so(asking: Path):
    queries = unmask.load(asking).folder.model.queries
    assert int(queries.calibrated) > 0
    assert queries.calibration.tolist() != [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("DIABETIS within 1 day", "knows no code 'DIABETIS'"),
        ("MEDS_BIRTH within 1 day", "birth"),
        ("{code} within 1 fortnight", "'fortnight' is not a unit of time"),
        ("{code} within 400 years", "The model was trained on horizons from"),
        ("{code} > 3 within {days} days", "comes without numbers"),
        ("{lab} > 1e9 within {days} days", "no value of {lab} in training was near 1e+09"),
        ("{lab} = 3 within {days} days", "'= 3' after {lab}"),
        ("{code}, {lab} within {days} days", "several codes"),
        ("any of {code}, , {lab} within {days} days", "missing between commas"),
        ("{code}", "does not end with: within NUMBER UNIT"),
        ("{code} within many days", "a horizon is 'many'"),
        ("any of " + ", ".join(["{code}"] * 65) + " within {days} days", "65 codes"),
    ],
)
def test_what_was_not_trained_is_refused(question, said, asking: Path, home: Path, tmp_path: Path, capsys):
    model = unmask.load(asking)
    words = {"code": code_of(model, valued=False), "lab": code_of(model, valued=True)}
    words["days"] = f"{float(model.folder.model.queries.edges[-1]) / 48:.3f}"
    out = tmp_path / "a.parquet"
    told = main_fails(["ask", asking, home / "meds", question.format(**words), "--out", out], capsys)
    assert said.format(**words) in told
    assert not out.exists()


def test_more_codes_than_questions_of_the_training_had_are_asked_together(asking: Path, home: Path):
    model = unmask.load(asking)
    share = model.folder.model.queries.share[-len(model.folder.vocabulary.codes) :].numpy()
    codes = [code for code, s in zip(model.folder.vocabulary.codes, share, strict=True) if s]
    within = f"within {float(model.folder.model.queries.edges[-1]) / 48:.3f} days"
    few, many = f"{codes[0]} {within}", f"any of {', '.join(codes)} {within}"
    assert len(codes) > ITEMS
    both = model.ask(home / "meds", [few, many])["probability"].to_numpy().reshape(-1, 2)
    for n, question in enumerate((few, many)):
        np.testing.assert_allclose(both[:, n], model.ask(home / "meds", question)["probability"], atol=1e-6)
    assert np.nanmean(both[:, 1]) > np.nanmean(both[:, 0])


def test_the_nearest_code_is_offered(asking: Path, home: Path):
    model = unmask.load(asking)
    code = code_of(model, valued=False)
    with pytest.raises(UserError, match="Did you mean") as told:
        model.ask(home / "meds", f"{code[:-1]} within 1 day")
    assert code in str(told.value)


def test_a_model_without_questions_says_how_to_get_one(home: Path, tmp_path: Path, capsys):
    told = main_fails(["ask", home / "model", home / "meds", "A within 1 day", "--out", tmp_path / "a.parquet"], capsys)
    assert "--recipe ask" in told


def test_words_become_items():
    query = parsed('any of "a, > b" < -2.5, LAB//x within 2 weeks')
    assert [(i.code, i.side, i.cut) for i in query.items] == [("a, > b", -1, -2.5), ("LAB//x", 0, 0.0)]
    assert query.hours == 336
    assert parsed("A b within 1 year").items[0].code == "A b"
    assert parsed("not A within 1 day").none
    cut = np.float32([parsed(f"A {mark} 9.1 within 1 day").items[0].cut for mark in (">=", "<=")])
    assert cut[0] < np.float32(9.1) < cut[1]
    assert np.nextafter(cut[0], cut[1]) == np.nextafter(cut[1], cut[0]) == np.float32(9.1)


@pytest.mark.parametrize(
    "question",
    [
        "A " * 900 + "x",
        "A" + " " * 1900 + "B within 1 day",
        "within " * 280,
        '"' * 1999,
        "a,\t" * 600,
        "<" * 1999,
        "1" * 3000,
    ],
)
def test_a_question_costs_little_however_odd(question: str):
    started = time.process_time()
    with contextlib.suppress(UserError):
        parsed(question)
    assert time.process_time() - started < 0.2  # 843 characters took 4.6 s


@pytest.mark.parametrize("question", [None, 5, b"A within 1 day", ["A within 1 day"], {"a": 1}, float("nan")])
def test_what_is_no_text_is_refused(question, asking: Path, home: Path):
    with pytest.raises(UserError, match="not a text"):
        unmask.load(asking).ask(home / "meds", [question])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "question", ['A "b" within 1 day', '"" within 1 day', "> 3 within 1 day", '"a"b > 3 within 1 day']
)
def test_a_code_is_plain_or_within_quotes(question: str):
    with pytest.raises(UserError, match="is not a code, or a code beyond a value"):
        parsed(question)


def test_a_horizon_may_stand_without_a_space():
    assert parsed("A  WITHIN 30days ").hours == 720
    assert parsed('"a within b > c" > 1e3 within 1.5 weeks').items[0].code == "a within b > c"


def task_of(code: str, folder: Path, **target: object) -> Path:
    """At each event of a code: does it come again within some days?"""
    window = {"start_inclusive": False, "end_inclusive": True}
    windows = {
        "known": {"start": None, "end": "trigger", **window, "start_inclusive": True, "index_timestamp": "end"},
        "target": {"start": "trigger", "end": "start + 40 days", **window, "label": "code", **target},
    }
    path = folder / "task.yaml"
    content = {"predicates": {"code": {"code": code}}, "trigger": "code", "windows": windows}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def test_a_task_is_asked_at_its_own_points(
    asking: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model, code = unmask.load(asking), code_of(unmask.load(asking), valued=False)
    task = task_of(code, tmp_path)
    frame = model.ask(home / "meds", task)
    question = f'"{code}" within 40 days'
    assert frame["question"].unique().to_list() == [question]
    assert frame.drop("boolean_value", "predicted_boolean_probability").equals(
        model.ask(home / "meds", question, task)  # the same points, by `read_labels`
    )
    events = read_meds(home / "meds")
    points = read_labels(task, events)
    assert frame["boolean_value"].to_list() == points.value.astype(bool).tolist()
    assert 0 < points.value.mean() < 1
    capsys.readouterr()
    out = tmp_path / "answers.parquet"
    main_ok(["ask", str(asking), str(home / "meds"), str(task), "--out", str(out), "--json"])
    found = json.loads(capsys.readouterr().out)
    answered = frame.drop_nulls("probability")
    error = (answered["probability"] - answered["boolean_value"].cast(pl.Float64)) ** 2
    assert found["results"]["model"]["brier"] == pytest.approx(error.mean())
    assert found["results"]["prevalence"]["auroc"] == 0.5
    written = pl.read_parquet(out)
    assert written["predicted_boolean_probability"].to_list() == answered["probability"].to_list()
    assert "question" not in written.columns


def test_a_bound_that_counts_itself_is_asked_beyond_the_number_before_it(asking: Path, home: Path, tmp_path: Path):
    model = unmask.load(asking)
    lab = code_of(model, valued=True)
    middle = model.folder.vocabulary.knots[model.folder.vocabulary.numbers([lab])[0], len(LEVELS) // 2]
    cut = round(float(middle)) + 0.3  # no number of single precision
    task = task_of(lab, tmp_path)
    content = yaml.safe_load(task.read_text())
    content["predicates"]["code"] |= {"value_min": cut, "value_min_inclusive": True}
    task.write_text(yaml.safe_dump(content))
    question = model.ask(home / "meds", task)["question"][0]
    assert f" >= {cut} within" in question
    item = parsed(question).items[0]
    assert np.nextafter(np.float32(item.cut), np.float32(np.inf)) == np.float32(cut)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ({"start": "trigger + 1h"}, "does not begin at the prediction time"),
        ({"start_inclusive": True}, "at the prediction time itself"),
        ({"end": "start -> code"}, "ends with an event"),
        ({"has": {"code": "(1, None)"}}, "chosen by what comes after them"),
    ],
)
def test_a_task_that_is_no_question_is_refused(target: dict, says: str, asking: Path, home: Path, tmp_path: Path):
    model = unmask.load(asking)
    task = task_of(code_of(model, valued=False), tmp_path, **target)
    with pytest.raises(UserError, match=says) as error:
        model.ask(home / "meds", task)
    assert "labels=" in error.value.hint
    with pytest.raises(UserError, match="its own points"):
        model.ask(home / "meds", task, home / "task")
