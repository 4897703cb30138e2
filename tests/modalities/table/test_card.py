"""The model card of a table folder: what it says, and above all what it does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from tables import patients

from unmask.evaluation.card import is_ours
from unmask.modalities.table.evaluate import evaluate_model
from unmask.modalities.table.model import TableModel, load
from unmask.modalities.table.pretrain import pretrain
from unmask.modalities.table.recipes import settings_of
from unmask.modalities.table.schema.describe import describe


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TableModel]:
    """A fit of a table with a level of one patient and ends of two."""
    table = patients(160, missing=0.1)
    table["stage"] = table["stage"].astype(object)
    table.loc[3, "stage"] = "ZEBRA"
    table.loc[5, "sbp"] = 287.0
    table.loc[6, "age"] = 103.0
    table["site"] = [f"S{i % 3}" for i in range(160)]
    place = tmp_path_factory.mktemp("card")
    table.to_csv(place / "secret-cohort.csv", index=False)
    done = pretrain(
        place / "secret-cohort.csv",
        place / "model",
        duration="time",
        event="event",
        settings=settings_of(steps=5),
        console=False,
    )
    return place, done.model


def test_the_card(fitted: tuple[Path, TableModel]):
    place, model = fitted
    assert is_ours(place / "model" / "README.md")
    made = ModelCard.load(place / "model" / "README.md")
    assert made.data.to_dict()["library_name"] == "unmask"
    assert {"tabular", "imputation", "synthetic-data", "survival"} <= set(made.data.tags)
    assert "From secret-cohort.csv." in made.text
    assert "160 rows of 8 columns" in made.text
    assert "Follow-up time in 'time', the event in 'event'." in made.text
    judged = {f["column"]: f for f in model.facts["columns_imputed"]}
    assert f"{judged['age']['error']:.4g}" in made.text
    assert "not anonymous" in made.text
    assert load(place / "model").facts["rows"] == 160


def test_no_value_of_a_patient_reaches_the_card(fitted: tuple[Path, TableModel]):
    place, model = fitted
    text = (place / "model" / "README.md").read_text()
    assert "ZEBRA" not in text
    ends = [end for c in model.schema.columns if c.is_quantity for end in (c.low, c.high)]
    assert {103.0, 287.0} <= set(ends)
    for column in model.schema.columns:
        for level in column.categories or ():
            if not level.isdigit():
                assert not re.search(rf"\b{re.escape(level)}\b", text), level
    numbers = set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", text))
    assert not numbers & {"103", "287", "103.0", "287.0"}
    assert str(place) not in text


def test_pages_end_with_what_to_do(fitted: tuple[Path, TableModel], tmp_path: Path):
    place, model = fitted
    assert f"unmask impute {place / 'model'} new.csv" in (place / "model" / "report.html").read_text()
    evaluate_model(model, patients(60, seed=1).assign(site="S1"), report=tmp_path / "e.html", folder=place / "model")
    page = (tmp_path / "e.html").read_text()
    assert page.index("What the figures mean") < page.index("Use this model")
    describe(place / "secret-cohort.csv").write_report(tmp_path / "d.html")
    assert "unmask pretrain table" in (tmp_path / "d.html").read_text()
