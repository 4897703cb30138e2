"""A table in one call: imputed and synthesised by a model of its own."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from tables import patients

import unmask
from unmask.errors import UserError
from unmask.modalities.table.fitting.imputation_quality import with_care

FAST = {"steps": 0, "members": 1}


def cohort():
    table = patients(60, missing=0.2)
    table.index = [f"p{i}" for i in range(len(table))]
    return table


def test_a_frame_is_filled_and_stays_what_it_is(capsys):
    given = cohort()
    before = given.copy()
    filled = unmask.impute(given, **FAST)
    assert list(filled.index) == list(given.index)
    assert list(filled.columns) == list(given.columns)
    assert not filled.isna().any().any()
    seen = before.notna()
    pd.testing.assert_frame_equal(filled.where(seen), before.where(seen), check_dtype=False)
    pd.testing.assert_frame_equal(given, before)
    said = capsys.readouterr().err
    assert "fitted to the table itself: 60 rows x 7 columns, 0 steps, " in said
    unmask.impute(given, console=False, **FAST)
    assert capsys.readouterr().err == ""


def test_it_is_the_model_that_a_fit_makes():
    given = cohort()
    model = unmask.TableModel.fit(given, seed=3, **FAST)
    pd.testing.assert_frame_equal(unmask.impute(given, random_state=3, **FAST), model.impute(given))
    pd.testing.assert_frame_equal(
        unmask.synthesize(given, num_rows=5, seed=3, **FAST), model.synthesize(5, seed=3), check_dtype=False
    )


def test_a_file_is_filled_into_a_file(tmp_path):
    cohort().to_csv(tmp_path / "cohort.csv", index=False)
    filled = unmask.impute(tmp_path / "cohort.csv", tmp_path / "f.csv", intervals=tmp_path / "cells.csv", **FAST)
    assert isinstance(filled, pl.DataFrame)
    assert pl.read_csv(tmp_path / "f.csv").equals(filled)
    cells = pl.read_csv(tmp_path / "cells.csv")
    assert cells.columns[0] == "line"
    one = cells.filter(pl.col("column") == "age").row(0, named=True)
    lines = (tmp_path / "f.csv").read_text().splitlines()
    assert float(lines[one["line"] - 1].split(",")[0]) == float(one["value"])


def test_rows_of_a_frame_are_named_by_its_index(tmp_path):
    unmask.impute(cohort(), intervals=tmp_path / "cells.csv", **FAST)
    cells = pd.read_csv(tmp_path / "cells.csv")
    assert cells.columns[0] == "row"
    assert set(cells["row"]) <= set(cohort().index)


def test_columns_with_holes_that_are_poorly_imputed_are_warned_of():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"noise": rng.normal(size=200), "whole": rng.normal(size=200)})
    table.loc[::4, "noise"] = np.nan
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        unmask.impute(table, steps=0, members=2)
    said = [w for w in caught if "with care" in str(w.message)]
    assert len(said) == 1
    assert "noise" in str(said[0].message)
    assert "whole" not in str(said[0].message)
    assert said[0].filename == __file__
    assert with_care([]) == ""


def test_draws_are_a_list_of_tables():
    first, second = unmask.impute(cohort(), m=2, **FAST)
    assert not first.equals(second)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: unmask.impute(m), r"unmask\.load\('model'\)\.impute\(data\)"),
        (lambda m: unmask.impute("."), r"several files.*\n.*TableModel.fit\(files\).impute_files\(files, 'filled'\)"),
        (lambda m: unmask.impute(["a.csv", "b.csv"]), "several files, not one table"),
        (lambda m: unmask.impute(cohort(), "f.csv", draws=2), "draws= with out="),
        (lambda m: unmask.impute(cohort(), strategy="median"), "none to choose"),
        (lambda m: unmask.impute(cohort(), stepps=3), "Did you mean 'steps'"),
        (lambda m: unmask.synthesize(m, 3, steps=3), "fitted already"),
        (lambda m: unmask.synthesize(cohort(), metadata=None), "schema="),
    ],
)
def test_what_cannot_be_meant_is_refused(call, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = unmask.TableModel.fit(cohort(), **FAST)
    with pytest.raises(UserError, match=words):
        call(model)
    assert list(tmp_path.iterdir()) == []


def test_synthesize_takes_a_model_and_its_folder_and_keeps_the_kind(tmp_path):
    run = unmask.table.pretrain(cohort(), tmp_path / "model", console=False, **FAST)
    again = unmask.load(tmp_path / "model")
    assert isinstance(run.model.synthesize(3), pd.DataFrame)
    assert isinstance(again.synthesize(3), pd.DataFrame)
    table = unmask.synthesize(tmp_path / "model", 3, tmp_path / "new.csv", where="age >= 60")
    assert (table["age"] >= 60).all()
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "new.csv"), table, check_dtype=False)
    assert len(unmask.synthesize(again)) == 60


def test_a_run_without_a_folder_lives_as_long_as_its_result():
    run = unmask.table.pretrain(cohort(), console=False, settings={"members": 1}, steps=0)
    assert run.model.table.settings.members == 1
    folder = run.folder
    assert (folder / "model.safetensors").exists()
    del run
    assert not folder.exists()


def test_models_descriptions_and_figures_print_themselves(tmp_path):
    model = unmask.TableModel.fit(cohort(), **FAST)
    lines = str(model).splitlines()
    assert lines[0] == repr(model)
    assert {line.split()[0] for line in lines[3:10]} == set(cohort().columns)
    found = unmask.table.evaluate(model, patients(60, seed=5))
    assert str(found).startswith("Synthetic rows beside 60 real ones")
    assert found["rows"] == 60
    assert "<table>" in found._repr_html_()
    described = unmask.table.describe(cohort())
    assert str(described).startswith(described.lines()[0])
    assert described.to_frame()["missing"].sum() == cohort().isna().sum().sum()
