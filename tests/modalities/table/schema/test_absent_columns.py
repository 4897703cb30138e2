"""New patients without the columns that are not known yet: hidden in every row, said, and typing mistakes
still caught."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from tables import patients

from unmask.errors import UserError
from unmask.modalities.table.imputation.complete import complete
from unmask.modalities.table.imputation.multiple import MultipleImputation
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.describe import describe
from unmask.modalities.table.writing.writers import write_table


@pytest.fixture(scope="module")
def model() -> TableModel:
    return TableModel.fit(patients(200), steps=0, members=2)


@pytest.fixture
def new() -> pd.DataFrame:
    return patients(40, seed=3, missing=0.3).drop(columns=["time", "event"])


def test_the_outcome_may_be_unknown(model, new):
    with pytest.warns(UserWarning, match="hidden in every row: 'time', 'event'"):
        filled = model.impute(new)
    assert list(filled.columns) == list(new.columns)
    assert filled.notna().all(axis=None)
    seen = new.notna()
    assert filled.where(seen).equals(new.where(seen))
    hidden = model.impute(new.assign(time=np.nan, event=np.nan))
    assert filled.equals(hidden[list(new.columns)])


def test_draws_intervals_scores_and_states_do_without_it(model, new):
    with pytest.warns(UserWarning, match="hidden"):
        draws = model.impute(new, draws=2)
    assert all(d.notna().all(axis=None) for d in draws)
    with pytest.warns(UserWarning, match="hidden"):
        cells = model.intervals(new)
    assert set(cells.column) <= set(new.columns)
    assert [r["slots"] for r in model.score(new)] == new.notna().sum(axis=1).tolist()
    assert len(model.embed(new)) == len(new)


def test_identifiers_that_are_not_there_are_not_said_to_stay_empty(new):
    model = TableModel.fit(patients(200).assign(record=[f"R{k}" for k in range(200)]), steps=0, members=2)
    assert not [n for n in complete(model, new).notes if "'record'" in n]
    with_ids = new.assign(record=[None, *(f"N{k}" for k in range(39))])
    assert [n for n in complete(model, with_ids).notes if "1 empty cells of 'record' stay empty" in n]


def test_other_columns_must_be_named(model, new):
    short = new.drop(columns=["sbp", "stage"])
    with pytest.raises(UserError, match="no column 'sbp', 'stage'") as refused:
        model.impute(short)
    assert "absent='sbp,stage'" in refused.value.hint
    with pytest.raises(UserError, match="no column 'sbp'"):
        model.score(short, absent=["stage"])
    found = complete(model, short, absent=["sbp", "stage"])
    assert found.absent == ["sbp", "stage", "time", "event"]
    assert found.cells == int(short.dropna(how="all").isna().sum().sum())
    assert complete(model, short, absent="any").tables[0].equals(found.tables[0])


@pytest.mark.parametrize("wrong", ["Time", "time ", "tme"])
def test_a_typing_mistake_is_no_absent_column(model, wrong):
    table = patients(20).rename(columns={"time": wrong})
    for absent in ((), "any"):
        with pytest.raises(UserError) as refused:
            model.impute(table, absent=absent)
        assert f"Is {wrong!r} meant for 'time'?" in refused.value.hint
    assert complete(model, table, absent=["time"]).absent == ["time"]


def test_what_is_named_must_be_a_column_that_is_lacking(model, new):
    with pytest.raises(UserError, match="no column 'timee'"):
        model.impute(new, absent="timee")
    with pytest.raises(UserError, match="has a column 'age'"):
        model.impute(new, absent=["age"])
    with pytest.raises(UserError, match="none of the model's columns"):
        model.impute(pd.DataFrame({"a": [1.0], "b": [2.0]}), absent="any")


def test_unknown_columns_and_the_order_of_columns_are_kept(model, new):
    table = new.assign(ward="A")[["ward", "stage", "dbp", "sbp", "sex", "age"]]
    filled = complete(model, table).tables[0]
    assert list(filled.columns) == list(table.columns)
    assert (filled.ward == "A").all()


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.from_pandas])
def test_absent_columns_are_added_on_request(model, new, kind):
    found = complete(model, kind(new), add_absent=True).tables[0]
    assert list(found.columns) == [*new.columns, "time", "event"]
    assert set(found["event"].to_list()) <= {0, 1}
    assert min(found["time"].to_list()) >= 1


def test_a_cell_empty_by_its_meaning_is_not_filled_where_its_reason_is_unknown(new):
    table = patients(200)
    table["cause"] = np.where(table.event == 1, np.where(table.age > 65, "heart", "cancer"), None)
    model = TableModel.fit(table, steps=0, members=2)
    found = complete(model, new.assign(cause=None))
    assert found.tables[0].cause.isna().all()
    assert "which is not known" in found.notes[1]
    partly = table.assign(event=table.event.where(table.index % 2 == 0).astype(float), cause=None)
    filled = complete(model, partly, draws=1).tables[0]
    assert (filled.cause.isna() == (filled.event == 0)).all()


def test_rows_without_any_value_are_nobody(tmp_path):
    """A line of commas is no patient: it is said, not counted, and nothing is invented for it; an id alone is a
    patient."""
    table = patients(80, missing=0.1).drop(columns=["time", "event"])
    table.insert(0, "mrn", [f"M{i}" for i in range(80)])
    lines = table.to_csv(index=False).splitlines()
    lines[10:10] = [",,,,,", "M900,,,,,"]
    (tmp_path / "t.csv").write_text("\n".join([*lines, ",,,,,"]) + "\n")
    model = TableModel.fit(tmp_path / "t.csv", steps=0, members=2)
    assert model.facts["rows"] == 81
    assert model.facts["notes"][0] == "warning: rows 11, 84 hold no value in any column: not counted in the fit"
    done = complete(model, read_frame(tmp_path / "t.csv"))
    write_table(done.tables[0], tmp_path / "out.csv")
    written = (tmp_path / "out.csv").read_text().splitlines()
    assert written[10] == written[-1] == ",,,,,"
    assert written[11].startswith("M900,")
    assert "" not in written[11].split(",")
    assert done.warnings[0].startswith("rows 11, 84 hold no value in any column: left empty")
    warned = [f for f in describe(tmp_path / "t.csv").findings if f.code == "empty_rows"]
    assert "rows 11, 84" in warned[0].text
    with pytest.warns(UserWarning, match="rows 11, 84 hold no value"):
        MultipleImputation(draws=2, rounds=1).fit(tmp_path / "t.csv")
