"""Tables as they are served: the model's own numbers, row by row, and survival curves that add up."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from huggingface_hub import InferenceClient
from tables import patients

import unmask
from running_server import running
from unmask.modalities.table.survival.hazards import BaselineHazard, Outcome
from unmask.modalities.table.synthesis.survival_outcome import survival
from unmask.serving.limits import Limits
from unmask.serving.models import load_served
from unmask.serving.table import frame_of


@pytest.fixture(scope="module")
def model(table_folder):
    return unmask.load(table_folder)


@pytest.fixture(scope="module")
def server(table_served):
    with running({"m": table_served}) as asked:
        yield asked


ROWS = [{"age": 70, "sex": "F", "dbp": None, "sbp": 140, "stage": None}, {"age": None, "sex": "M", "sbp": 120.0}]


def test_missing_cells_are_filled_with_the_intervals_of_the_model(server, model):
    import polars as pl

    status, found = server.post("/models/m/impute", {"rows": ROWS, "absent": ["stage"]})
    assert status == 400  # a column that is there is not absent
    status, found = server.post("/models/m/impute", {"rows": ROWS})
    assert status == 200, found
    frame = pl.DataFrame([{"dbp": None, "stage": None, **row} for row in ROWS])
    own = model.intervals(frame, add_absent=True).to_dicts()
    by_cell = {(r["row"], r["column"]): r for r in own}
    assert {(c["row"], c["column"]) for c in found["intervals"]} == set(by_cell)
    for cell in found["intervals"]:
        other = by_cell[cell["row"], cell["column"]]
        if cell["probabilities"] is None:
            assert cell["low"] <= cell["value"] <= cell["high"]
            assert cell["low"] == pytest.approx(other["low"])
        else:
            assert cell["probability"] == pytest.approx(other["probability"])
            assert sum(cell["probabilities"].values()) == pytest.approx(1)
        assert found["rows"][cell["row"]][cell["column"]] == cell["value"]
    assert found["rows"][0]["age"] == 70


def test_dates_are_filled_in_the_format_of_their_column(tmp_path):
    """One column held 2022-05-01 as it came and 2019-07-09T00:00:00 as it was filled."""
    days = (pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(60) * 9 % 400, "D")).strftime("%d.%m.%Y")
    model = unmask.TableModel.fit(pd.DataFrame({"seen": days, "x": np.arange(60) / 7}), steps=0, members=2)
    folders = {"m": str(model.save(tmp_path / "m"))}
    with running(load_served(folders, Limits(), device="auto", precision="auto")) as asked:
        rows = [{"seen": "03.02.2020", "x": 1.0}, {"seen": None, "x": 2.0}]
        found = asked.post("/models/m/impute", {"rows": rows})[1]
    (cell,) = found["intervals"]
    assert [found["rows"][0]["seen"], found["rows"][1]["seen"]] == ["03.02.2020", cell["value"]]
    for text in (cell["low"], cell["value"], cell["high"]):
        pd.to_datetime(text, format="%d.%m.%Y")


def test_draws_differ_and_are_whole(server):
    found = server.post("/models/m/impute", {"rows": ROWS, "draws": 4, "seed": 3})[1]["draws"]
    assert len(found) == 4
    assert all(value is not None for table in found for row in table for value in row.values())
    assert len({row["dbp"] for table in found for row in table}) > 2
    again = server.post("/models/m/impute", {"rows": ROWS, "draws": 4, "seed": 3})[1]["draws"]
    assert again == found


def test_scores_and_vectors_are_those_of_the_model(server, model):
    import polars as pl

    rows = patients(5, seed=4).to_dict("records")
    found = server.post("/models/m/score", {"rows": rows})[1]["results"]
    own = model.score(pl.DataFrame(rows))
    assert [r["score"] for r in found] == pytest.approx([r["score"] for r in own], rel=1e-5)
    assert [r["row"] for r in found] == list(range(5))
    vectors = server.post("/models/m/embed", {"rows": rows})[1]["embeddings"]
    np.testing.assert_allclose(vectors, model.embed(pl.DataFrame(rows)), atol=1e-5)


def test_new_rows_meet_their_conditions(server):
    body = {"rows": 12, "where": ["age >= 70", "sex == 'F'"], "seed": 1}
    found = server.post("/models/m/synthesize", body)[1]
    assert len(found["rows"]) == 12
    assert all(row["age"] >= 70 and row["sex"] == "F" for row in found["rows"])


@pytest.mark.parametrize(
    ("verb", "body", "said"),
    [
        ("impute", {"rows": [{"agee": 3}]}, "none of the model's columns"),
        ("impute", {"rows": [{"age": "old", "sex": "F", "dbp": 1, "sbp": 2, "stage": "I"}]}, "'age'"),
        ("impute", {"rows": [{}]}, "rows without a column"),
        ("impute", {"rows": [{"age": [1]}]}, "rows[0].age: a list"),
        ("impute", {"rows": []}, "rows: 0 values"),
        ("synthesize", {"rows": 2, "where": ["agee > 3"]}, "agee"),
        ("synthesize", {"rows": 0}, "rows: 0"),
        ("survival", {"rows": ROWS, "times": [-1]}, "times[0]"),
    ],
)
def test_what_does_not_fit_is_refused(server, verb, body, said):
    status, found = server.post(f"/models/m/{verb}", body)
    assert status == 400
    assert said in found["error"]["what"]


def test_survival_falls_from_one_and_age_lowers_it(server):
    rows = [{"age": age, "sex": "F", "dbp": 75, "sbp": 130, "stage": "II"} for age in (50, 85)]
    found = server.post("/models/m/survival", {"rows": rows, "times": [0, 100, 400, 900]})[1]
    young, old = (np.array(r["survival"]) for r in found["results"])
    for curve in (young, old):
        assert curve[0] == 1
        assert (np.diff(curve) <= 0).all()
    assert (old[1:] < young[1:]).all()  # the hazard of these patients grows by age
    event = np.array(found["results"][0]["incidence"][next(iter(found["results"][0]["incidence"]))])
    np.testing.assert_allclose(young + event, 1, atol=1e-9)


def test_curves_of_one_cause_are_the_textbook_s_and_of_two_add_up():
    at, hazard = np.array([1.0, 2.0, 5.0]), np.array([0.1, 0.3, 0.35])
    one = BaselineHazard(beta=np.array([0.5]), at=at, hazard=hazard)
    two = BaselineHazard(beta=np.array([-1.0]), at=np.array([2.0, 3.0]), hazard=np.array([0.2, 0.4]))
    rest = {"censoring": one, "center": np.zeros(1), "scale": np.ones(1), "end": 6.0}
    x, when = np.array([[0.0], [2.0]]), np.array([0.5, 1.0, 2.5, 9.0])
    alive, struck = Outcome(causes=(one,), **rest).curves(x, when)
    steps = np.array([0, 0.1, 0.3, 0.35])
    np.testing.assert_allclose(alive, np.exp(-steps[None] * np.exp(0.5 * x)))
    np.testing.assert_allclose(struck[0], 1 - alive)
    alive, struck = Outcome(causes=(one, two), **rest).curves(x, when)
    np.testing.assert_allclose(alive + struck.sum(0), 1)
    together = np.array([0, 0.1, 0.3, 0.35])[None] * np.exp(0.5 * x) + np.array([0, 0, 0.2, 0.4])[None] * np.exp(-x)
    np.testing.assert_allclose(alive, np.exp(-together))


def test_curves_of_late_rows_are_given_that_they_came_so_far():
    one = BaselineHazard(beta=np.array([0.5]), at=np.array([1.0, 2.0, 5.0]), hazard=np.array([0.1, 0.3, 0.35]))
    two = BaselineHazard(beta=np.array([-1.0]), at=np.array([2.0, 3.0]), hazard=np.array([0.2, 0.4]))
    outcome = Outcome(causes=(one, two), censoring=one, center=np.zeros(1), scale=np.ones(1), end=6.0)
    x, when = np.array([[0.0], [2.0], [1.0]]), np.array([0.5, 2.0, 2.5, 4.0, 9.0])
    plain, had = outcome.curves(x, when)
    alive, struck = outcome.curves(x, when, np.array([2.0, 1.5, np.nan]))
    reached, before = outcome.curves(x, np.array([2.0, 1.5, 0.0]))
    own = np.arange(3)
    np.testing.assert_allclose(alive, np.minimum(plain / reached[own, own, None], 1))
    conditional = (had - before[:, own, own, None]) / reached[own, own, None]
    np.testing.assert_allclose(struck, np.maximum(conditional, 0), atol=1e-12)


def test_survival_begins_at_the_row_s_own_entry():
    """Of a man observed from 70, the survival at 60 was .895, without a word."""
    rng = np.random.default_rng(0)
    begin = rng.uniform(0, 20, 200)
    table = pd.DataFrame({"time": begin + rng.exponential(10, 200), "event": 1, "entry": begin, "x": begin % 5})
    model = unmask.TableModel.fit(table, duration="time", event="event", entry="entry", steps=0)
    rows = frame_of([{"x": 1, "entry": 0.1}, {"x": 1, "entry": 15}])
    early, late = survival(model, rows, absent=(), times=[5, 15, 25], draws=1, seed=0)["results"]
    assert early["survival"][0] < 1
    assert late["survival"][:2] == [1, 1]
    assert late["survival"][2] == pytest.approx(early["survival"][2] / early["survival"][1], rel=1e-6)


def test_survival_says_that_a_follow_up_is_not_read_and_takes_cells_beyond_the_range_for_its_ends(server, model):
    row = {"age": 70, "sex": "F", "dbp": 75, "sbp": 130, "stage": "II"}
    ask = {"times": [100, 400]}
    plain, followed, end, far = (
        server.post("/models/m/survival", {"rows": [row | more], **ask})[1]
        for more in ({}, {"time": 90, "event": 0}, {"age": model.table.codings[0].scale.knot_x[-1]}, {"age": 999})
    )
    assert plain["warnings"] == []
    assert plain["results"] == followed["results"]
    assert (
        "'time' and 'event' of these rows are not read: this is the survival from the start" in followed["warnings"][0]
    )
    assert "takes them for its ends" in far["warnings"][0]
    assert end["results"] == far["results"]


def test_the_hub_s_tabular_tasks(server):
    client = InferenceClient(base_url=f"{server.url}/models/m/pipeline/tabular-classification")
    whole = {"age": [70, 50], "dbp": [80, 70], "sbp": [140, 120], "stage": ["I", "II"], "time": [9, 9], "event": [1, 0]}
    assert set(client.tabular_classification(table=whole)) <= {"F", "M"}
    numbers = {"sex": ["F", "M"], **{k: v for k, v in whole.items() if k != "age"}}
    # The client has a method for it, which knows no provider: the body is the same.
    status, found = server.post("/models/m/pipeline/tabular-regression", {"table": numbers})
    assert status == 200
    assert all(20 < age < 110 for age in found)
    assert server.post("/models/m/pipeline/tabular-regression", {"table": whole})[0] == 400
    status, found = server.post("/models/m/pipeline/tabular-regression", {"table": {"age": [1] * 1025}})
    assert (status, found["error"]["what"]) == (400, "table.age: 1,025 values, at most 1,024 per request")


def test_rows_with_columns_of_their_own_are_refused_before_a_table_is_made_of_them(server):
    rows = [{f"own_{i}_{k}": 1 for k in range(400)} for i in range(512)]
    tracemalloc.start()
    try:
        status, found = server.post("/models/m/impute", {"rows": rows[:200]})
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()
    assert status in (400, 413, 422), found
    assert "different columns" in json.dumps(found), found
