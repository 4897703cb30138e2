"""How sure an imputed cell is: a frame of the table's own kind, typed, with every level's probability."""

import csv
import datetime as dt
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tables import patients

from unmask.cli.table.impute import Drawing, Filling, impute_table
from unmask.cli.table.reading import TableReading
from unmask.modalities.table.imputation import uncertainty
from unmask.modalities.table.model import TableModel


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Numbers, texts, a category of 0 and 1, and dates; an index of labels."""
    found = patients(90, missing=0.2).drop(columns=["time"])
    found["event"] = found["event"].astype(float)
    found["seen"] = [pd.Timestamp(2020, 1, 1) + pd.Timedelta(days=7 * k % 400) for k in range(len(found))]
    found.loc[found.index % 9 == 0, ["event", "seen"]] = None
    return found.set_axis([f"P{k}" for k in np.random.default_rng(0).permutation(len(found))])


@pytest.fixture(scope="module")
def model(table) -> TableModel:
    return TableModel.fit(table, steps=0)


def test_a_pandas_frame_of_a_pandas_frame(table, model):
    found, filled = model.intervals(table), model.impute(table)
    assert list(found) == ["row", "column", "value", "low", "high", "probability", "probabilities"]
    assert len(found) == table.isna().sum().sum()
    for cell in found.itertuples():
        assert pd.isna(table.loc[cell.row, cell.column])
        assert cell.value == filled.loc[cell.row, cell.column]
    numbers, levels = found[found.column == "sbp"], found[found.column == "stage"]
    assert all(isinstance(v, int | float) for v in numbers.value)
    assert ((numbers.low <= numbers.value) & (numbers.value <= numbers.high)).all()
    assert numbers.probability.isna().all()
    for cell in levels.itertuples():
        assert set(cell.probabilities) == {"I", "II", "III"}
        assert sum(cell.probabilities.values()) == pytest.approx(1, abs=1e-5)
        assert cell.probability == cell.probabilities[cell.value] == max(cell.probabilities.values())
    assert set(found[found.column == "event"].value) <= {0, 1}
    assert isinstance(found[found.column == "seen"].low.iloc[0], dt.datetime)


def test_polars_and_arrow_keep_their_kind(table, model):
    frame = pl.from_pandas(table)
    found, expected = model.intervals(frame), model.intervals(table)
    assert isinstance(found, pl.DataFrame)
    assert found.filter(pl.col("column") == "sbp")["low"].to_list() == expected[expected.column == "sbp"].low.tolist()
    assert (
        found.filter(pl.col("column") == "stage")["category"].to_list()
        == expected[expected.column == "stage"].value.tolist()
    )
    assert found["row"].to_list() == [table.index.get_loc(r) for r in expected.row]
    level = found.filter(pl.col("column") == "stage").row(0, named=True)
    assert {p["level"]: p["probability"] for p in level["probabilities"]}[level["category"]] == level["probability"]
    assert found["date_low"].dtype == pl.Datetime("us")
    arrow = model.intervals(frame.to_arrow())
    assert isinstance(arrow, pa.Table)
    assert pl.from_arrow(arrow).equals(found)


def test_nothing_missing_is_a_frame_without_rows(table, model):
    whole = model.impute(table)
    assert model.intervals(whole).shape == (0, 7)
    assert model.intervals(pl.from_pandas(whole)).height == 0


def test_a_file_of_cells_counts_lines_and_gives_every_level(table, tmp_path):
    table.to_csv(tmp_path / "t.csv", index=False)
    TableModel.fit(tmp_path / "t.csv", steps=0).save(tmp_path / "m")
    places = [str(tmp_path / name) for name in ("m", "t.csv", "o.csv")]
    impute_table(Filling(intervals=str(tmp_path / "i.csv")), Drawing(), TableReading(), *places)
    before, after = (list(csv.reader((tmp_path / f"{n}.csv").open())) for n in "to")
    cells = list(csv.DictReader((tmp_path / "i.csv").open()))
    assert len(cells) == sum(row.count("") for row in before)
    for cell in cells:
        line, place = int(cell["line"]) - 1, before[0].index(cell["column"])
        assert before[line][place] == ""
        same = after[line][place], cell["value"]
        assert len(set(same)) == 1 or len(set(map(float, same))) == 1
        if cell["column"] == "stage":
            shares = json.loads(cell["probabilities"])
            assert set(shares) == {"I", "II", "III"}
            assert float(cell["probability"]) == shares[cell["value"]]
            assert cell["low"] == ""
        if cell["column"] == "seen":
            assert cell["low"] <= cell["value"] <= cell["high"]


@pytest.mark.parametrize("part", [4096, 7])
def test_the_lines_of_filled_cells_are_made_as_they_are_written(table, model, tmp_path, monkeypatch, part):
    """All were held until the last was made, with 142 of 350 MB for 200 000 rows."""
    at_once, really = [], uncertainty.decode
    monkeypatch.setattr(uncertainty, "PART", part, raising=False)
    monkeypatch.setattr(uncertainty, "decode", lambda x, column: at_once.append(len(x)) or really(x, column))
    model.save(tmp_path / "model")
    table.to_csv(tmp_path / "t.csv", index=False)
    places = [str(tmp_path / name) for name in ("model", "t.csv", "o.csv")]
    impute_table(Filling(intervals=str(tmp_path / "c.csv")), Drawing(), TableReading(), *places)
    assert max(at_once) <= part
    with (tmp_path / "c.csv").open() as file:
        cells = [(int(r["line"]), r["column"], r["value"], r["low"], r["high"]) for r in csv.DictReader(file)]
    expected = model.intervals(pl.read_csv(tmp_path / "t.csv"))
    assert [(line - 2, column) for line, column, *_ in cells] == expected.select("row", "column").rows()
    known = dict(zip(expected.select("row", "column").rows(), expected["low"].to_list(), strict=True))
    assert all(
        float(low) == pytest.approx(known[line - 2, name], abs=1e-6) for line, name, _, low, _ in cells if name == "sbp"
    )
