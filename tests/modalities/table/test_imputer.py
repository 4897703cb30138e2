"""`MaskedImputer` inside scikit-learn and with every kind of table: rows, columns and types stay what they were."""

import datetime as dt
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from tables import patients

from unmask.errors import UserError
from unmask.modalities.table.imputer import MaskedImputer


def linear(**options) -> MaskedImputer:
    """The linear part alone: milliseconds."""
    return MaskedImputer(steps=0, members=2, **options)


@pytest.fixture(scope="module")
def shuffled() -> pd.DataFrame:
    """A mixed table whose index is neither sorted nor unique."""
    table = patients(80, missing=0.2).drop(columns=["time", "event"])
    return table.set_axis(np.random.default_rng(0).integers(0, 60, len(table)))


def check_filled(out: pd.DataFrame, table: pd.DataFrame, *, types: bool = True) -> None:
    """Index, columns, types and observed cells are those of the table, and nothing is missing."""
    assert out.index.equals(table.index)
    assert list(out.columns) == list(table.columns)
    if types:
        assert out.dtypes.equals(table.dtypes)
    seen = table.notna().to_numpy()
    assert (out.to_numpy(object)[seen] == table.to_numpy(object)[seen]).all()
    assert out.notna().to_numpy().all()


# Rows stay where they are.


def test_rows_stay_with_their_index(shuffled):
    check_filled(linear().set_output(transform="pandas").fit_transform(shuffled), shuffled)


def test_rows_stay_together_in_a_column_transformer(shuffled):
    parts = ColumnTransformer(
        [("some", linear(), ["sex", "age", "dbp"]), ("others", linear(), ["stage", "sbp"])],
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    check_filled(parts.fit_transform(shuffled)[list(shuffled)], shuffled)


def test_a_filled_column_can_be_assigned(shuffled):
    table = shuffled.set_axis(np.random.default_rng(1).permutation(len(shuffled)))
    out = table.copy()
    out["age"] = linear().set_output(transform="pandas").fit(table).transform(table)["age"]
    seen = table.age.notna()
    assert (out.age[seen] == table.age[seen]).all()


def test_an_array_is_the_default(shuffled):
    imputer = linear().fit(shuffled)
    out = imputer.transform(shuffled)
    assert isinstance(out, np.ndarray)
    check_filled(pd.DataFrame(out, shuffled.index, shuffled.columns), shuffled, types=False)
    numbers = linear().fit_transform(shuffled[["age", "dbp"]])
    assert numbers.dtype == np.float64
    assert linear().fit_transform(shuffled[["age", "dbp"]].astype(np.float32)).dtype == np.float32


# Every type of column, in every kind of table.

DATES = [dt.datetime(2020, 1, 1) + dt.timedelta(days=7 * k) for k in range(40)]
HOLES = np.random.default_rng(3).random(40) < 0.25
TEXTS = ["low", "mid", "high"] * 13 + ["low"]
LEVELS = ["low", "mid", "high"]
NUMBERS = list(range(0, 80, 2))
X = np.arange(40.0) * 7 % 40


def holed(values: list, nothing=None) -> list:
    return [nothing if hole else v for v, hole in zip(values, HOLES, strict=True)]


PANDAS = {
    "float32": pd.Series(holed(NUMBERS, np.nan), dtype="float32"),
    "int64 without holes": pd.Series(NUMBERS),
    "bool without holes": pd.Series([n % 4 == 0 for n in NUMBERS]),
    "Int64": pd.Series(holed(NUMBERS, pd.NA), dtype="Int64"),
    "Float64": pd.Series(holed(NUMBERS, pd.NA), dtype="Float64"),
    "boolean": pd.Series(holed([n % 4 == 0 for n in NUMBERS], pd.NA), dtype="boolean"),
    "objects of booleans": pd.Series(holed([n % 4 == 0 for n in NUMBERS]), dtype=object),
    "string": pd.Series(holed(TEXTS, pd.NA), dtype="string"),
    "objects of texts": pd.Series(holed(TEXTS), dtype=object),
    "objects of numbers": pd.Series(holed(NUMBERS), dtype=object),
    "category": pd.Series(pd.Categorical(holed(TEXTS), categories=[*LEVELS, "never"])),
    "ordered category": pd.Series(pd.Categorical(holed(TEXTS), categories=LEVELS, ordered=True)),
    "category of numbers": pd.Series(pd.Categorical(holed([k % 3 + 0.5 for k in range(40)]))),
    "datetime64": pd.Series(pd.to_datetime(pd.Series(holed(DATES, pd.NaT)))),
    "datetime64 in seconds": pd.Series(pd.Series(holed(DATES, pd.NaT)).astype("datetime64[s]")),
    "datetime64 with a zone": pd.Series(pd.Series(holed(DATES, pd.NaT)).dt.tz_localize("Europe/Berlin")),
    "Arrow integers": pd.Series(holed(NUMBERS), dtype=pd.ArrowDtype(pa.int32())),
    "Arrow texts": pd.Series(holed(TEXTS), dtype=pd.ArrowDtype(pa.string())),
    "constant": pd.Series(holed([5.0] * 40, np.nan)),
    "one level": pd.Series(holed(["low"] * 40), dtype=object),
    "one level of a category": pd.Series(pd.Categorical(holed(["low"] * 40))),
    "0 and 1": pd.Series(holed([float(k % 3 == 0) for k in range(40)], np.nan)),
}


@pytest.mark.parametrize("name", PANDAS)
def test_every_type_of_pandas_is_kept(name):
    table = pd.DataFrame({"c": PANDAS[name], "x": X}).set_index(pd.Index(range(100, 60, -1)))
    known = {"columns": {"c": {"missing": [""]}}} if name.startswith("one level") else None
    imputer = linear(schema=known).set_output(transform="pandas")
    check_filled(imputer.fit_transform(table), table)
    check_filled(imputer.transform(table.iloc[::-1]), table.iloc[::-1])
    check_filled(imputer.transform(table.iloc[:1]), table.iloc[:1])
    assert imputer.transform(table.iloc[:0]).dtypes.equals(table.dtypes)
    array = imputer.set_output(transform="default").transform(table)
    assert isinstance(array, np.ndarray)
    assert not pd.isna(array).any()
    assert isinstance(imputer.set_output(transform="polars").transform(table), pl.DataFrame)


POLARS = {
    "Float32": pl.Series(holed(NUMBERS), dtype=pl.Float32),
    "Int16": pl.Series(holed(NUMBERS), dtype=pl.Int16),
    "Boolean": pl.Series(holed([n % 4 == 0 for n in NUMBERS])),
    "String": pl.Series(holed(TEXTS)),
    "Categorical": pl.Series(holed(TEXTS), dtype=pl.Categorical),
    "Enum": pl.Series(holed(TEXTS), dtype=pl.Enum(LEVELS)),
    "Date": pl.Series(holed([d.date() for d in DATES])),
    "Datetime": pl.Series(holed(DATES), dtype=pl.Datetime("ms")),
    "Decimal": pl.Series(holed([str(n) for n in NUMBERS])).cast(pl.Decimal(10, 2)),
}


@pytest.mark.parametrize("name", POLARS)
def test_every_type_of_polars_and_arrow_is_kept(name):
    table = pl.DataFrame({"c": POLARS[name], "x": X})
    imputer = linear().set_output(transform="polars").fit(table)
    out = imputer.transform(table)
    assert out.schema == table.schema
    assert out.null_count().row(0) == (0, 0)
    seen = ~HOLES
    assert (out["c"].filter(seen) == table["c"].filter(seen)).all()
    arrow = linear().set_output(transform="polars").fit(table.to_arrow()).transform(table.to_arrow())
    assert (arrow["c"].cast(pl.String) == out["c"].cast(pl.String)).all()


def test_lengths_of_time_are_refused():
    table = pd.DataFrame({"x": X[:9], "stay": pd.to_timedelta(np.arange(9), "D")})
    for kind in (table, pl.from_pandas(table)):
        with pytest.raises(UserError, match=r"'stay'.*timedelta"):
            linear().fit(kind)


def test_an_ordered_category_is_ordinal_in_its_order():
    arrow = pa.DictionaryArray.from_arrays(
        [None if h else LEVELS.index(t) for t, h in zip(TEXTS, HOLES, strict=True)], LEVELS, ordered=True
    )
    for table in (
        pd.DataFrame({"c": PANDAS["ordered category"], "x": X}),
        pl.DataFrame({"c": POLARS["Enum"], "x": X}),
        pa.table({"c": arrow, "x": X}),
    ):
        column = linear().fit(table).schema_.columns[0]
        assert (column.kind, column.categories) == ("ordinal", tuple(LEVELS))


# No cell stays empty, or it is said.


def test_cells_empty_by_their_meaning():
    table = patients(120).drop(columns=["time"])
    table["cause"] = np.where(table.event == 1, np.where(table.age > 65, "heart", "cancer"), None)
    with pytest.warns(UserWarning, match="'cause' is empty where 'event' is '0'.*structural='keep'"):
        filled = linear().set_output(transform="pandas").fit_transform(table)
    assert filled.notna().to_numpy().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = linear(structural="keep").set_output(transform="pandas").fit_transform(table)
    assert kept.cause.isna().equals(table.cause.isna())


def test_identifiers_with_holes():
    table = patients(60, missing=0.2)[["age", "dbp"]].assign(
        record=[None if k % 7 == 0 else f"R{k}" for k in range(60)]
    )
    imputer = linear().set_output(transform="pandas")
    with pytest.warns(UserWarning, match="'record'.*stay empty.*identifiers='drop'"):
        out = imputer.fit_transform(table)
    assert out.record.equals(table.record)
    out = linear(identifiers="drop").set_output(transform="pandas").fit_transform(table)
    assert list(out) == ["age", "dbp"]
    assert out.notna().to_numpy().all()


@pytest.mark.parametrize(
    ("empty", "value"),
    [
        (pd.Series([np.nan] * 30), 0.0),
        (pd.Series([pd.NA] * 30, dtype="Int64"), 0),
        (pd.Series([None] * 30), "missing_value"),
        (pd.Series(pd.Categorical([None] * 30, categories=["a"])), "missing_value"),
        (pd.Series([pd.NA] * 30, dtype="boolean"), False),
        (pd.Series([pd.NA] * 30, dtype="string"), "missing_value"),
    ],
)
def test_columns_in_which_nothing_was_ever_observed(empty, value):
    table = pd.DataFrame({"x": X[:30], "empty": empty})
    out = linear(keep_empty_features=True).set_output(transform="pandas").fit_transform(table)
    assert (out["empty"] == value).all()
    with pytest.warns(UserWarning, match="'empty' holds no value"):
        assert list(linear().set_output(transform="pandas").fit_transform(table)) == ["x"]


# Values that a fold of the training rows did not have.


@pytest.mark.parametrize(
    ("train", "new"),
    [
        ([0.0, 1.0] * 10, 2.0),
        ([0.0] * 20, 1.0),
        ([5.0] * 20, 6.0),
        (["a", "b"] * 10, "c"),
        (["a"] * 20, "b"),
        ([True, False] * 10, 2),
    ],
)
def test_a_value_not_seen_in_training_is_returned_as_it_is(train, new):
    imputer = linear().set_output(transform="pandas").fit(pd.DataFrame({"c": train, "x": X[:20]}))
    later = pd.DataFrame({"c": pd.Series([new, None, new], dtype=object), "x": [1.0, 2.0, None]})
    out = imputer.transform(later)
    assert [out.c[0], out.c[2]] == [new, new]
    assert out.notna().to_numpy().all()


@pytest.mark.parametrize("kind", [pd.CategoricalDtype(["a", "z"]), pl.Enum(["a", "z"])])
def test_a_level_that_the_type_of_a_later_table_lacks(kind):
    train = pd.DataFrame({"c": ["b"] * 18 + ["a"] * 2, "x": X[:20]})
    later = pd.DataFrame({"c": ["a", None, "z"], "x": [1.0, 2.0, 3.0]})
    later = (
        later.astype({"c": kind}) if isinstance(kind, pd.CategoricalDtype) else pl.from_pandas(later).cast({"c": kind})
    )
    out = linear().set_output(transform="pandas").fit(train).transform(later)
    assert out.c.astype(str).tolist() == ["a", "b", "z"]


def test_what_an_unseen_category_becomes():
    table = pd.DataFrame({"c": ["a", "b"] * 10, "x": X[:20]})
    later = pd.DataFrame({"c": ["z", None], "x": [1.0, 2.0]})
    filled = linear(unseen="missing").set_output(transform="pandas").fit(table).transform(later)
    assert set(filled.c) <= {"a", "b"}
    with pytest.raises(UserError, match="'z' was not seen"):
        linear(unseen="error").fit(table).transform(later)


def test_a_column_coded_otherwise_is_said():
    """All of a column's levels were taken as missing, and other columns imputed without it."""
    table = pd.DataFrame({"sex": ["male", "female"] * 10, "dm": [0, 1] * 10, "x": X[:20]})
    fitted = linear().fit(table)
    for later, says in [
        (table.assign(sex=table.sex.str.title()), "'sex': none of its 20 cells .*'Female', 'Male'; known: 'female'"),
        (table.assign(dm=table.dm.astype(bool)), "'dm': none of its 20 cells .*'False', 'True'; known: '0', '1'"),
    ]:
        with pytest.warns(UserWarning, match=says):
            fitted.transform(later)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.transform(table.assign(sex=["other", *table.sex[1:]]))


def test_a_rare_level_spoils_no_fold():
    table = patients(60, missing=0.1)[["age", "sex", "stage"]]
    table.loc[7, "stage"] = "IV"
    target = np.random.default_rng(0).random(60) < 0.5
    model = make_pipeline(linear(), OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    scores = cross_val_score(model, table, target, cv=KFold(5))
    assert np.isfinite(scores).all()


# Inside scikit-learn.


def numeric(rows: int = 80) -> tuple[pd.DataFrame, np.ndarray]:
    table = patients(rows, missing=0.2)[["age", "dbp", "sbp"]]
    return table, np.random.default_rng(0).random(rows) < 0.5


def test_in_a_grid_search_and_a_union():
    x, y = numeric()
    union = FeatureUnion([("filled", linear()), ("holes", FunctionTransformer(lambda t: t.isna().astype(float)))])
    assert union.fit_transform(x).shape == (80, 6)
    search = GridSearchCV(
        make_pipeline(linear(), LogisticRegression()),
        {"maskedimputer__add_indicator": [False, True]},
        cv=2,
        error_score="raise",
    )
    assert np.isfinite(search.fit(x, y).cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize("wanted", ["pandas", "polars"])
def test_a_pipeline_of_frames(wanted, shuffled):
    pipeline = make_pipeline(linear(add_indicator=True), FunctionTransformer()).set_output(transform=wanted)
    out = pipeline.fit_transform(shuffled)
    assert list(out.columns) == [*shuffled, *(f"missingindicator_{c}" for c in shuffled)]
    assert out["missingindicator_age"].to_numpy().tolist() == shuffled.age.isna().tolist()


def test_copies_are_whole(shuffled):
    imputer = linear(random_state=1).set_output(transform="pandas")
    expected = imputer.fit_transform(shuffled)
    pd.testing.assert_frame_equal(pickle.loads(pickle.dumps(imputer)).transform(shuffled), expected)
    pd.testing.assert_frame_equal(clone(imputer).fit_transform(shuffled), expected)


def test_columns_in_another_order_are_refused(shuffled):
    with pytest.raises(ValueError, match="same order"):
        linear().fit(shuffled).transform(shuffled[list(shuffled)[::-1]])


def test_names_that_are_numbers(shuffled):
    table = shuffled[["age", "dbp", "sbp"]].set_axis([0, 1, 2], axis=1)
    check_filled(linear().set_output(transform="pandas").fit_transform(table).set_axis([0, 1, 2], axis=1), table)


def test_a_name_held_twice_is_refused(shuffled):
    with pytest.raises(UserError, match="'age' twice"):
        linear().fit(shuffled[["age", "dbp", "age"]])


def test_bounds_leave_dates_and_texts_alone():
    table = pd.DataFrame({"x": holed(NUMBERS, np.nan), "d": PANDAS["datetime64"], "c": PANDAS["category"]})
    out = linear(min_value=30, max_value=40).set_output(transform="pandas").fit_transform(table)
    assert out.x[HOLES].between(30, 40).all()
    check_filled(out, table)


# The outcome, at the fit alone.


def informative(rows: int = 400, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, np.ndarray]:
    """(table, times, events, truth): the longer they lived, the less was measured; x2 follows x1."""
    rng = np.random.default_rng(seed)
    x1 = rng.normal(size=rows)
    x2 = x1 + rng.normal(size=rows)
    died, left = rng.exponential(np.exp(-1.5 * x1)), rng.exponential(3.0, rows)
    time, event = np.minimum(died, left), died <= left
    table = pd.DataFrame({"x1": np.where(time > np.median(time), np.nan, x1), "x2": x2})
    table.loc[rng.random(rows) < 0.15, "x1"] = np.nan
    seen = rng.random(rows) < 0.3
    table.loc[seen, "x1"] = x1[seen]
    return table, time, event, x1


def test_the_fit_may_see_a_survival_pair():
    table, time, event, truth = informative()
    gone = table.x1.isna().to_numpy()
    y = np.array(list(zip(event, time, strict=True)), dtype=[("event", bool), ("time", float)])
    plain = linear().fit(table, y)
    by_y = linear(use_outcome=True).fit(table, y)
    by_name = linear().fit(table, duration=time, event=event)
    blind, told, named = (i.transform(table)[gone, 0] for i in (plain, by_y, by_name))
    assert np.array_equal(told, named)
    assert np.array_equal(blind, linear().fit(table).transform(table)[gone, 0])
    assert abs(told.mean() - truth[gone].mean()) < abs(blind.mean() - truth[gone].mean())


def test_the_pair_is_routed_to_the_fit():
    table, time, event, _ = informative(120)
    with sklearn.config_context(enable_metadata_routing=True):
        imputer = linear().set_fit_request(duration=True, event=True)
        pipeline = make_pipeline(imputer, LogisticRegression())
        pipeline.fit(table, event, duration=time, event=event)
        expected = linear().fit(table, duration=time, event=event).transform(table)
        assert np.array_equal(pipeline[:-1].transform(table), expected)
        scores = cross_val_score(pipeline, table, event, cv=2, params={"duration": time, "event": event})
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("y", [np.arange(80) % 3, np.random.default_rng(0).normal(size=80), np.array(["a", "b"] * 40)])
def test_the_fit_may_see_numbers_and_classes(y):
    x, _ = numeric()
    assert np.isfinite(linear(use_outcome=True).fit(x, y).transform(x)).all()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"duration": np.ones(80)}, "no event"),
        ({"duration": np.ones(9), "event": np.ones(9)}, "9 outcomes for 80 rows"),
        ({"duration": -np.ones(80), "event": np.ones(80)}, "-1"),
        ({"duration": np.ones(80), "event": np.full(80, 2)}, "2"),
        ({"y": np.zeros(80, dtype=[("a", float), ("b", float)])}, "a: float64"),
        ({}, "without an outcome"),
    ],
)
def test_an_outcome_that_is_none_is_refused(options, match):
    x, _ = numeric()
    with pytest.raises(UserError, match=match):
        linear(use_outcome=True).fit(x, **options)


@pytest.mark.parametrize("drawn", [False, True])
def test_rules_of_the_schema_hold(drawn):
    table = patients(80)[["dbp", "sbp"]].assign(pulse=lambda t: t.sbp - t.dbp)
    holes = np.random.default_rng(0).random(table.shape) < 0.2
    imputer = linear(schema={"constraints": ["pulse := sbp - dbp"]}, sample_posterior=drawn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = imputer.set_output(transform="pandas").fit_transform(table.mask(holes))
    assert out.pulse.to_numpy() == pytest.approx((out.sbp - out.dbp).to_numpy())
