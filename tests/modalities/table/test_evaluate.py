"""Synthetic rows beside real ones: figures of survival where there are events and covariates, a word where not."""

import warnings

import numpy as np
import pandas as pd
import pytest
from tables import patients

from unmask.errors import UserError
from unmask.modalities.table.evaluate import evaluate_model
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.synthesis.synthesize import augment


@pytest.fixture(scope="module")
def model() -> TableModel:
    return TableModel.fit(patients(80), steps=0)


def test_a_model_is_shown_in_one_line(model):
    shown = repr(model)
    assert shown.startswith("TableModel(masked: ")
    assert f" M parameters, {len(model.schema.modelled)} columns (" in shown
    assert shown.endswith("fitted to 80 rows)")


def test_scores_of_rows_print_themselves(model):
    found = model.score(patients(12))
    assert str(found).startswith("Pseudo-log-likelihood of 12 rows, in nats")
    assert "and 2 more" in str(found)
    assert found.to_frame()["score"].tolist() == [row["score"] for row in found]


@pytest.mark.parametrize("rows", [1, 8, 0])
def test_a_few_rows_are_nothing_to_compare(model, rows):
    with pytest.raises(UserError, match=f"{rows} synthetic"):
        evaluate_model(model, patients(40), rows=rows)


def test_without_events_figures_of_survival_are_left_out(model, tmp_path):
    found = evaluate_model(model, patients(40).assign(event=0), report=tmp_path / "r.html")
    assert "no event among the real rows" in found["note"]
    assert "km_area" not in found
    assert found["marginal_distance"] > 0
    assert found["note"] in (tmp_path / "r.html").read_text()


def test_a_bootstrap_without_events_leaves_out_the_ceiling_only(model, monkeypatch):
    from unmask.modalities.table.evaluation import fidelity

    monkeypatch.setattr(fidelity, "bootstrap", lambda columns, *_: [*columns[:-1], columns[-1] * 0])
    found = evaluate_model(model, patients(40))
    assert found["km_area"] >= 0
    assert "km_area" not in found["ceiling"]
    assert "note" not in found


def test_a_pair_alone(tmp_path):
    table = patients(80)[["time", "event"]]
    found = evaluate_model(TableModel.fit(table, steps=0), table, report=tmp_path / "r.html")
    assert "nothing explains the outcome" in found["note"]


def test_where_everyone_had_the_event_an_outcome_is_learnt():
    table = patients(80).assign(event=1)
    model = TableModel.fit(table, steps=0)
    assert set(model.synthesize(40)["event"]) == {1}
    assert evaluate_model(model, table)["km_area"] < 0.3


def test_held_out_rows_that_are_training_rows_are_said_or_refused(model):
    """Every figure of privacy was reassuring where both files were the same."""
    table = patients(80)
    with pytest.raises(UserError, match="80 of 80 held-out rows are training rows"):
        evaluate_model(model, table, train=table)
    half = pd.concat([table.head(40), patients(40, seed=6)])
    with pytest.warns(UserWarning, match="40 of 80 held-out rows are training rows"):
        assert "40 of 80" in evaluate_model(model, half, train=table)["overlap"]
    assert "overlap" not in evaluate_model(model, patients(80, seed=7), train=table)


def test_which_of_the_tables_the_model_was_fitted_to_is_known(model, tmp_path):
    """Files given the other way round, others', and the training rows alone looked like no attack and good rows."""
    own, new = patients(80), patients(80, seed=7)
    with pytest.raises(UserError, match="the first table is the one that the model was fitted to"):
        evaluate_model(model, own, train=new)
    with pytest.warns(UserWarning, match="not fitted to these training rows"):
        evaluate_model(model, new, train=patients(80, seed=8))
    with pytest.warns(UserWarning, match="the model was fitted to these rows"):
        evaluate_model(model, own)
    with pytest.warns(UserWarning, match="not the table that the model was fitted to"):
        augment(model, new, where="age > 40", rows=3)
    own.sample(frac=1, random_state=0).to_csv(tmp_path / "own.csv", index=False, float_format="%.15g")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert "overlap" not in evaluate_model(model, new, train=tmp_path / "own.csv")
        assert "overlap" not in evaluate_model(model, new)
        augment(model, own, where="age > 40", rows=3)
    assert "fitted to" not in str([c.message for c in caught])


def test_columns_that_are_not_modelled_may_be_lacking(rng):
    table = patients(60).assign(pid=np.arange(1000, 1060))
    model = TableModel.fit(table, steps=0)
    assert model.schema.columns[model.schema.number("pid")].kind == "id"
    assert evaluate_model(model, patients(40))["marginal_distance"] >= 0
    with pytest.raises(UserError, match="no column"):
        evaluate_model(model, patients(40).drop(columns=["time"]))


def test_synthetic_rows_where_real_ones_belong_are_refused(model, tmp_path):
    """The release given first, for the held-out rows, made a flawless report."""
    from unmask.modalities.table.writing.writers import write_table

    drawn = write_table(model.synthesize(60), tmp_path / "s.csv")
    for more in ({}, {"train": patients(80)}, {"rows": 40}):
        with pytest.raises(UserError, match="the very rows that the model draws"):
            evaluate_model(model, drawn, **more)
    few = patients(80)[["sex", "event"]].assign(event="no")
    few.loc[0, "event"] = "yes"
    alike = TableModel.fit(few, steps=0)  # nearly all rows are alike: such a table says nothing
    assert evaluate_model(alike, alike.synthesize(40))["identical_rows"] == 1
