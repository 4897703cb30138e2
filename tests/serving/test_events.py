"""Patients as they are served: the same as from a MEDS folder, whatever the order of their events in a request."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import polars as pl
import pytest

from running_server import running
from unmask.errors import UserError
from unmask.modalities.events.records.meds import read_meds
from unmask.serving.events import events_of
from unmask.serving.limits import Limits
from unmask.serving.models import load_served


@pytest.fixture(scope="module")
def server(event_home):
    folders = {"m": str(event_home / "model"), "tuned": str(event_home / "outcome")}
    with running(load_served(folders, Limits(), device="cpu", precision="fp32")) as asked:
        yield asked


def patients(event_home, count=3):
    """The first patients of the folder as a request has them."""
    frame = pl.read_parquet(event_home / "meds" / "data" / "**" / "*.parquet").sort("subject_id", maintain_order=True)
    found = []
    for (subject,), rows in frame.group_by("subject_id", maintain_order=True):
        events = [
            {
                "time": None if row["time"] is None else row["time"].isoformat(),
                "code": row["code"],
                "numeric_value": row["numeric_value"],
            }
            for row in rows.to_dicts()
        ]
        found.append({"subject_id": subject, "events": events})
    return found[:count]


def test_events_of_a_request_are_those_of_a_folder(event_home):
    asked, whole = events_of(patients(event_home, 60)), read_meds(event_home / "meds")
    order = np.argsort(whole.subjects, kind="stable")
    assert asked.subjects.tolist() == whole.subjects[order].tolist()
    for place, subject in enumerate(order[:20]):
        own, theirs = asked.before(place, None), whole.before(int(subject), None)
        assert asked.time[own].tolist() == whole.time[theirs].tolist()
        assert [asked.codes[c] for c in asked.code[own]] == [whole.codes[c] for c in whole.code[theirs]]
        np.testing.assert_allclose(asked.value[own], whole.value[theirs])


def test_answers_are_those_of_the_model(server, event_home):
    import unmask

    model, given = unmask.load(event_home / "model", precision="fp32"), patients(event_home)
    events = events_of(given)
    vectors = server.post("/models/m/embed", {"patients": given})[1]["embeddings"]
    np.testing.assert_allclose(vectors, model.embed(events), atol=1e-5)
    found = server.post("/models/m/fill", {"patients": given, "top": 3})[1]
    own = model.fill(events, top=3)
    assert sum(map(len, found["results"])) == len(own)
    first = found["results"][0]
    assert [row["code"] for row in first if row["kind"] == "next"] == own.filter(
        (pl.col("subject_id") == given[0]["subject_id"]) & (pl.col("kind") == "next")
    )["code"].to_list()
    assert found["unknown"]["unknown_share"] == 0
    scores = server.post("/models/m/score", {"patients": given})[1]["results"]
    assert [rows[0]["score"] for rows in scores] == pytest.approx(model.score(events)["score"].to_list(), rel=1e-4)
    expected = server.post("/models/m/expect", {"patients": given})[1]["results"]
    timed = [sum(e["time"] is not None and e["code"] != "MEDS_BIRTH" for e in p["events"]) for p in given]
    assert [len(rows) for rows in expected] == timed
    assert all(0 <= row["probability"] <= 1 for rows in expected for row in rows)


def test_the_order_of_events_in_a_request_does_not_matter(server, event_home):
    (given,) = patients(event_home, 1)
    turned = {"subject_id": given["subject_id"], "events": given["events"][::-1]}
    one, other = (server.post("/models/m/embed", {"patients": [p]})[1]["embeddings"] for p in (given, turned))
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_outcomes_look_at_nothing_after_their_time(server, event_home):
    (given,) = patients(event_home, 1)
    timed = sorted(e["time"] for e in given["events"] if e["time"] is not None)
    at = timed[len(timed) // 2]
    asked = given | {"prediction_time": at}
    early = given | {
        "prediction_time": at,
        "events": [e for e in given["events"] if e["time"] is None or e["time"] <= at],
    }
    found = [server.post("/models/tuned/outcome", {"patients": [p]})[1]["results"][0] for p in (asked, early)]
    assert found[0] == pytest.approx(found[1])
    assert 0 <= found[0]["predicted_boolean_probability"] <= 1
    whole = server.post("/models/tuned/outcome", {"patients": [given]})[1]["results"][0]
    assert set(whole) == {"predicted_boolean_probability"}


def test_an_outcome_before_the_first_event_is_warned_of(server, event_home):
    given = patients(event_home, 2)
    first = min(e["time"] for e in given[1]["events"] if e["time"] is not None and e["code"] != "MEDS_BIRTH")
    given[1]["prediction_time"] = str(int(first[:4]) - 1) + first[4:]
    found = server.post("/models/tuned/outcome", {"patients": given})[1]
    assert found["warnings"] == ["patients[1]: asked before the first event of the patient"]
    assert len(found["results"]) == 2
    assert server.post("/models/tuned/outcome", {"patients": given[:1]})[1]["warnings"] == []


def test_questions_are_answered_as_by_the_model(server, event_home):
    import unmask

    model, given = unmask.load(event_home / "model", precision="fp32"), patients(event_home)
    about = server.get("/models")[1]["models"]["m"]["about"]
    questions = [about["question"], f"none of {about['question']}"]
    timed = sorted(e["time"] for e in given[1]["events"] if e["time"] is not None)
    given[1]["prediction_time"] = timed[len(timed) // 2]
    found = server.post("/models/m/ask", {"patients": given, "questions": questions})[1]["results"]
    events = events_of(given)
    own = model.ask(events, questions)
    p = own.filter(pl.col("subject_id") != given[1]["subject_id"])["probability"].to_list()
    assert [row["probability"] for n in (0, 2) for row in found[n]] == pytest.approx(p, abs=1e-5)
    assert [row["question"] for row in found[0]] == questions
    early = [e for e in given[1]["events"] if e["time"] is None or e["time"] <= given[1]["prediction_time"]]
    alone = model.ask(events_of([given[1] | {"events": early}]), questions)["probability"].to_list()
    assert [row["probability"] for row in found[1]] == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("NOTHING within 1 day", "knows no code 'NOTHING'"),
        ("GLUCOSE for ever", "within NUMBER UNIT"),
        ("GLUCOSE within 0 days", "a horizon of 0"),
    ],
)
def test_questions_that_cannot_be_answered_are_named(server, event_home, question, said):
    body = {"patients": patients(event_home, 1), "questions": [question]}
    status, found = server.post("/models/m/ask", body)
    assert status == 400
    assert said in found["error"]["what"]


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"time": "yesterday", "code": "GLUCOSE"}, "patients[0].events[0].time: 'yesterday'"),
        ({"time": "2020-01-01T00:00:00+02:00", "code": "GLUCOSE"}, "time zone"),
        ({"time": "2020-01-01", "code": ""}, "code: empty"),
        ({"time": "2020-01-01", "code": "NOTHING//KNOWN"}, "codes that the model does not know"),
        ({"time": "2020-01-01"}, "code: not there"),
        ({"time": "2020-01-01", "code": "GLUCOSE", "numeric_value": 3.5e38}, "numeric_value: 3.5e+38"),
        ({"time": "2020-01-01", "code": "GLUCOSE", "numeric_value": -(10**60)}, "beyond 3.4e38"),
    ],
)
def test_events_that_cannot_be_read_are_named(server, event, said):
    status, found = server.post("/models/m/fill", {"patients": [{"events": [event]}]})
    assert status == 400
    assert said in found["error"]["what"]


def test_an_id_that_no_table_holds_is_refused(server):
    patient = {"subject_id": 10**30, "events": [{"code": "GLUCOSE"}]}
    status, found = server.post("/models/m/embed", {"patients": [patient]})
    assert status == 400
    assert "patients[0].subject_id" in found["error"]["what"]


def test_a_patient_stands_in_a_request_once():
    event = {"time": None, "code": "A", "numeric_value": None}
    with pytest.raises(UserError, match="given twice"):
        events_of([{"subject_id": 3, "events": [event]}, {"subject_id": 3, "events": [event]}])
    assert datetime(1970, 1, 2).isoformat() == "1970-01-02T00:00:00"
    made = events_of([{"subject_id": None, "events": [event | {"time": "1970-01-02T00:00:00.5"}]}])
    assert made.time.tolist() == [86_400_500_000]
