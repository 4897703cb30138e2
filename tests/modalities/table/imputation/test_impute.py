"""Imputation: observed cells stay, rows are alone, seeds decide, odd tables work, and values are better than means."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.utils.estimator_checks import parametrize_with_checks
from tables import patients

from unmask.errors import UserError
from unmask.modalities.table.fitting.cell_table import CellTable
from unmask.modalities.table.fitting.fit import folds
from unmask.modalities.table.fitting.point_values import ROWS
from unmask.modalities.table.imputation.multiple import MultipleImputation
from unmask.modalities.table.imputer import MaskedImputer
from unmask.modalities.table.model import TableModel, load
from unmask.modalities.table.recipes import settings_of
from unmask.writing import note_weights

FAST = {"steps": 3, "members": 2}


@parametrize_with_checks([MaskedImputer(steps=2, members=2)])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return patients(150, missing=0.2)


@pytest.fixture(scope="module")
def model(table) -> TableModel:
    return TableModel.fit(table, **FAST)


def test_hidden_values_come_back_better_than_means():
    full = patients(300, seed=2)
    holed = full.copy()
    gone = np.random.default_rng(0).random(300) < 0.3
    holed.loc[gone, ["sbp", "stage"]] = None
    filled = TableModel.fit(holed, seed=1, steps=60).impute(holed)
    error = np.sqrt(((filled.sbp - full.sbp)[gone] ** 2).mean())
    assert error < 0.85 * full.sbp[gone].std()
    assert (filled.stage == full.stage)[gone].mean() > (full.stage[gone] == full.stage.mode()[0]).mean()


def test_a_row_does_not_depend_on_the_others(table, model):
    whole = model.impute(table)
    alone = pd.concat([model.impute(table.iloc[i : i + 1]) for i in (0, 7, 33)])
    pd.testing.assert_frame_equal(alone, whole.loc[alone.index])
    draws = model.impute(table, draws=1, seed=5)[0]
    pd.testing.assert_frame_equal(model.impute(table.iloc[::-1], draws=1, seed=5)[0].iloc[:0], draws.iloc[:0])
    pd.testing.assert_frame_equal(model.impute(table.iloc[:40], draws=1, seed=5)[0], draws.iloc[:40])


def test_cores_make_no_difference(table, model):
    many = pd.concat([table] * 12, ignore_index=True)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append((model.impute(many), model.impute(many, draws=1)[0], [r["score"] for r in model.score(many)]))
    finally:
        torch.set_num_threads(before)
    assert len(many) > 3 * ROWS
    for one, other in zip(*found, strict=True):
        pd.testing.assert_frame_equal(pd.DataFrame(one), pd.DataFrame(other), check_exact=True)


def test_columns_may_come_in_any_order(table, model):
    shuffled = table[list(table.columns[::-1])]
    pd.testing.assert_frame_equal(model.impute(shuffled)[list(table.columns)], model.impute(table))


def test_the_seed_decides(table):
    fits = [TableModel.fit(table, seed=s, **FAST) for s in (0, 0, 1)]
    pd.testing.assert_frame_equal(fits[0].impute(table), fits[1].impute(table))
    assert np.array_equal(fits[0].embed(table), fits[1].embed(table))
    assert not np.array_equal(fits[0].embed(table), fits[2].embed(table))


def test_draws_differ_and_stay_in_range(table, model):
    draws = model.impute(table, draws=4, seed=1)
    gone = table.dbp.isna()
    assert len({tuple(d.dbp[gone]) for d in draws}) == 4
    for d in draws:
        assert d.dbp.between(table.dbp.min(), table.dbp.max()).all()
        assert (d.dbp == d.dbp.round()).all()
        assert set(d.stage) <= {"I", "II", "III"}


def test_a_shift_moves_drawn_values(table, model):
    gone = table.dbp.isna()
    plain, moved = (model.impute(table, draws=2, seed=1, shift=s)[0].dbp[gone].mean() for s in (None, {"dbp": 5.0}))
    assert 2 < moved - plain < 6
    with pytest.raises(UserError, match="shift= without draws="):  # it was passed over
        model.impute(table, shift={"dbp": 5.0})


@pytest.mark.parametrize("name", ["stage", "nope"])
def test_only_a_quantity_can_be_shifted(table, model, name):
    with pytest.raises(UserError, match=name):
        model.impute(table, draws=2, shift={name: 1.0})
    with pytest.raises(UserError, match=name):
        MultipleImputation(draws=2, shift={name: 1.0}).fit(table)


def test_structural_cells_are_left_empty():
    table = patients(200)
    table["cause"] = np.where(table.event == 1, np.where(table.age > 65, "heart", "cancer"), None)
    table.loc[table.index[table.event == 1][:5], "cause"] = None
    filled = TableModel.fit(table, **FAST).impute(table)
    assert filled.cause[table.event == 0].isna().all()
    assert filled.cause[table.event == 1].notna().all()


def test_intervals_hold_the_value_and_are_ordered(table, model):
    found = model.intervals(table, coverage=0.8)
    assert len(found) == int(table.isna().sum().sum())
    ends = found[found.low.notna()]
    assert (ends.low <= ends.high).all()
    bound = TableModel.fit(table, schema={"columns": {"dbp": {"low": 68.0}}}, **FAST).intervals(table)
    assert bound[bound.column == "dbp"][["value", "low"]].min(axis=None) == 68.0
    with pytest.raises(UserError, match="coverage"):
        model.intervals(table, coverage=1.5)


@pytest.mark.parametrize("rows", [60, 150])
def test_intervals_of_a_small_table_hold_new_patients(rows):
    """20 columns with 4 causes: a linear part judged by the rows it was fitted to would be too sure (0.80, 0.86)."""
    held = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        causes = rng.normal(size=(20, 4))
        old, new = (rng.normal(size=(n, 4)) @ causes.T + 0.7 * rng.normal(size=(n, 20)) for n in (rows, 800))
        gone = rng.random(new.shape) < 0.3
        table = CellTable.fit(list(old.T), [0] * 20, seed=seed, steps=20)
        found = table.impute([np.where(g, np.nan, x) for x, g in zip(new.T, gone.T, strict=True)], interval=0.9)
        held.append(((np.column_stack(found.low) <= new) & (new <= np.column_stack(found.high)))[gone].mean())
    assert 0.88 < np.mean(held) < 0.95


def test_held_out_rows_are_shared_out_equally():
    for members in (2, 3, 4, 5):
        share = np.bincount(folds(6000, settings_of(members=members))) / 6000
        assert abs(share - 1 / members).max() < 0.02


def test_a_fit_leaves_the_random_state_alone(table):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    TableModel.fit(table, **FAST)
    assert torch.equal(torch.rand(1), expected)


def test_points_alone_are_neither_drawn_nor_given_ends(table):
    model = TableModel.fit(table, settings=settings_of("mcm", steps=2))
    for options in ({"draws": 3}, {"interval": 0.9}):
        with pytest.raises(UserError, match="point values alone"):
            model.impute_frame(table, **options)


def test_an_interval_ends_on_the_very_number_the_table_holds(rng):
    """A quantity of two values that single precision cannot hold: most intervals end on them, and must reach them."""
    x = np.where(rng.random(200) < 0.5, 0.0506801187398187, -0.0446416365069889)
    columns = [np.where(rng.random(200) < 0.3, np.nan, x), x + rng.normal(size=200)]
    found = CellTable.fit(columns, [0, 0], steps=0).impute(columns, interval=0.99)
    gone = np.isnan(columns[0])
    assert ((found.low[0][gone] <= x[gone]) & (x[gone] <= found.high[0][gone])).mean() > 0.9


def test_saved_and_loaded_it_is_the_same(table, model, tmp_path):
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    pd.testing.assert_frame_equal(again.impute(table), model.impute(table))
    pd.testing.assert_frame_equal(again.intervals(table.iloc[:20]), model.intervals(table.iloc[:20]))
    (tmp_path / "m" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(UserError, match=r"model\.safetensors: 1 bytes, .* were written"):
        load(tmp_path / "m")
    note_weights(tmp_path / "m")
    with pytest.raises(UserError, match="damaged"):
        load(tmp_path / "m")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", lambda c: c.pop("train")),
        ("config.json", lambda c: c.update(new_setting=1)),
        ("config.json", lambda c: c.update(width=100)),
        ("config.json", lambda c: c.update(width="wide")),
        ("unmask.json", lambda c: c.pop("facts")),
        ("unmask.json", lambda c: c["schema"]["columns"].pop()),
        ("unmask.json", lambda c: c.update(schema=[])),
        ("unmask.json", lambda c: c.update(types="?")),
    ],
)
def test_a_damaged_folder_is_said_to_be(model, tmp_path, name, change):
    path = model.save(tmp_path / "m") / name
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError):
        load(tmp_path / "m")


def test_the_least_likely_cell_is_found():
    table = patients(300)
    model = TableModel.fit(table, steps=20)
    odd = table.iloc[:20].copy()
    odd.loc[3, "sbp"] = odd.dbp[3] - 0.0
    worst = model.score(odd)
    assert min(worst, key=lambda r: r["least_likely"]["log_probability"])["row"] == 3


@pytest.mark.parametrize(
    "x",
    [
        np.array([[1.0, 2.0], [np.nan, 3.0], [2.0, np.nan]]),
        np.array([[5.0, 3.0]] * 20 + [[np.nan, np.nan]]),
        np.array([[1.0, np.nan]] * 10),
        np.array([[1.0], [2.0], [np.nan], [4.0]]),
        np.array([[1.0, 2.0]]),
    ],
    ids=["three rows", "constant", "empty column", "one column", "one row"],
)
def test_odd_arrays(x):
    out = MaskedImputer(**FAST, keep_empty_features=True).fit_transform(x)
    assert out.shape == x.shape
    assert np.isfinite(out).all()
    seen = ~np.isnan(x)
    assert np.array_equal(out[seen], x[seen])


def test_five_thousand_categories():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"code": [f"C{k}" for k in rng.integers(0, 5000, 8000)], "x": rng.normal(size=8000)})
    table.loc[5, "code"] = None
    schema = {"columns": {"code": {"kind": "nominal"}}}
    filled = TableModel.fit(table, schema=schema, steps=2, members=2).impute(table)
    assert filled.code.notna().all()


def test_nothing_to_model():
    with pytest.raises(UserError, match="no column to model"):
        TableModel.fit(pd.DataFrame({"note": [f"text {i}" for i in range(50)]}))


def test_bounds_indicator_and_names(table):
    numeric = table[["age", "dbp", "sbp"]]
    made = MaskedImputer(**FAST, min_value=60, max_value=[70, 75, 120], add_indicator=True).set_output(
        transform="pandas"
    )
    out = made.fit_transform(numeric)
    assert list(out.columns) == [*numeric.columns, *[f"missingindicator_{c}" for c in numeric.columns]]
    assert out.age[numeric.age.isna()].between(60, 70).all()
    assert out.dbp[numeric.dbp.isna()].between(60, 75).all()


def test_mixed_frames_keep_numeric_columns(table):
    out = MaskedImputer(**FAST).set_output(transform="pandas").fit_transform(table[["age", "sex", "sbp"]])
    assert out.age.dtype == float
    assert set(out.sex) == {"F", "M"}


@pytest.mark.parametrize("missing", [-999, "unknown", pd.NA])
def test_a_missing_value_of_ones_own(table, missing):
    """In numeric columns and in those of texts, alone or side by side."""
    known = patients(80)[["age", "dbp", "sex", "stage"]]
    gone = np.random.default_rng(0).random(known.shape) < 0.2
    holed = (known if isinstance(missing, int) else known.astype(object)).mask(gone, missing)
    for names in (["age", "dbp"], ["age", "dbp", "sex", "stage"]):
        out = MaskedImputer(**FAST, missing_values=missing).set_output(transform="pandas").fit_transform(holed[names])
        filled = out.to_numpy()[gone[:, : len(names)]]
        assert not pd.isna(filled).any()
        assert not {-999, "-999", "unknown"} & set(filled)
        assert out.age.between(known.age.min(), known.age.max()).all()


def test_posterior_draws_follow_random_state(table):
    numeric = table[["age", "dbp", "sbp"]]
    a, b, c = (MaskedImputer(**FAST, sample_posterior=True, random_state=s).fit_transform(numeric) for s in (1, 1, 2))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


CELLS = st.one_of(
    st.none(), st.integers(-3, 3).map(float), st.floats(-1e3, 1e3, allow_nan=False).map(lambda v: round(v, 2))
)


@given(st.lists(st.tuples(CELLS, CELLS, st.sampled_from(["a", "b", "ü", None])), min_size=4, max_size=24))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_table(rows):
    """Observed cells unchanged bit for bit; filled ones within the observed range, or an observed category."""
    table = pd.DataFrame(rows, columns=["x", "y", "c"])
    table = table.astype({"x": float, "y": float, "c": object})
    schema = {
        "columns": {"c": {"kind": "nominal", "missing": [""]}, "x": {"kind": "numeric"}, "y": {"kind": "numeric"}}
    }
    filled = (
        TableModel.fit(table, schema=schema, steps=1, members=2).impute(table) if table.notna().any().any() else table
    )
    for name in table:
        seen = table[name].notna()
        assert filled[name][seen].equals(table[name][seen])
        if seen.any():
            assert filled[name].notna().equals(table.notna().any(axis=1))  # rows without any value stay empty
            own = filled[name].dropna()
            if name == "c":
                assert set(own) <= set(table.c[seen])
            else:
                assert own.between(table[name].min(), table[name].max()).all()


def test_cells_that_get_no_number_are_named_and_not_counted(table, model, monkeypatch):
    from unmask.modalities.table.imputation.complete import complete

    place = [c.name for c in (model.schema.columns[i] for i in model.schema.modelled)].index("sbp")
    impute = CellTable.impute

    def without(self, columns, **options):
        found = impute(self, columns, **options)
        found.point[place][np.flatnonzero(np.isnan(columns[place]))[:2]] = np.nan
        return found

    monkeypatch.setattr(CellTable, "impute", without)
    done = complete(model, table)
    assert done.cells == int(table.isna().sum().sum()) - done.tables[0].isna().sum().sum()
    assert done.tables[0]["sbp"].isna().sum() == 2
    assert any("2 cells of 'sbp' stay empty" in text for text in done.warnings)
