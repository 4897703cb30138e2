"""What a column's type says of its categories is read: of pandas, polars and Arrow, and what stands in for missing."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

import unmask
from unmask.modalities.table.imputation.multiple import MultipleImputation
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.reading.frame import frame_of
from unmask.modalities.table.schema.infer import infer

X = np.random.default_rng(0).normal(size=120).round(2)
PAIN = np.array(["NA", "mild", "severe"], object)[np.digitize(X, [-0.5, 0.5])]


@pytest.mark.parametrize("bins", [[-9, -1, 0, 1, 9], [-9.5, 0.5, 9]])
def test_intervals_with_missing_cells_are_categories(bins):
    """Where cells are missing pandas gives the cells of integer intervals with floats: (0.0, 40.0] beside (0, 40]."""
    cut = pd.cut(pd.Series(X), bins)
    levels = tuple(map(str, cut.cat.categories))
    cut[::7] = np.nan
    frame = pd.DataFrame({"x": X, "group": cut})
    assert infer(frame_of(frame))[0].columns[1].categories == levels
    filled = unmask.impute(frame, steps=1, console=False)["group"]
    assert filled.dtype == cut.dtype
    assert not filled.isna().any()
    assert (filled[cut.notna()] == cut[cut.notna()]).all()


TYPED = {
    "pandas": lambda: pd.DataFrame({"x": X, "pain": pd.Categorical(PAIN)}),
    "pandas, ordered": lambda: pd.DataFrame(
        {"x": X, "pain": pd.Categorical(PAIN, ["NA", "mild", "severe"], ordered=True)}
    ),
    "polars": lambda: pl.DataFrame({"x": X, "pain": pl.Series(list(PAIN), dtype=pl.Enum(["NA", "mild", "severe"]))}),
}


@pytest.mark.parametrize("kind", TYPED)
def test_a_level_that_the_type_declares_is_a_value(kind):
    frame = TYPED[kind]()
    with pytest.warns(UserWarning, match=r"'pain' holds 'NA' \(.* cells\) .* taken for a value"):
        filled = unmask.impute(frame, steps=1, console=False)
    assert list(filled["pain"]) == list(PAIN)


def test_codes_of_a_category_are_no_numbers_where_one_is_na():
    codes = pd.Categorical(np.where(PAIN == "NA", "NA", np.where(PAIN == "mild", "1", "2")))
    column = infer(frame_of(pd.DataFrame({"x": X, "code": codes})))[0].columns[1]
    assert (column.kind, column.categories) == ("nominal", ("1", "2", "NA"))


@pytest.mark.parametrize(
    "verb",
    [
        lambda frame: unmask.impute(frame, steps=1, console=False),
        lambda frame: unmask.synthesize(frame, 20, steps=1, console=False),
        lambda frame: MultipleImputation(2).fit(frame),
        lambda frame: TableModel.fit(frame, steps=1),
        lambda frame: unmask.MaskedImputer(steps=1).fit(frame),
    ],
)
def test_what_is_taken_for_missing_is_said(verb):
    with pytest.warns(UserWarning, match=r"'pain': taken for missing: 'NA' \(.* cells\)"):
        verb(pd.DataFrame({"x": X, "pain": PAIN}))


def test_sparse_columns_are_read_as_dense_ones():
    x = np.where(X > 1, np.nan, X)
    frame = pd.DataFrame({"x": pd.arrays.SparseArray(x), "y": X})
    assert np.array_equal(frame_of(frame).columns[0], x, equal_nan=True)
    filled = unmask.impute(frame, steps=1, console=False)["x"]
    assert filled.dtype == frame["x"].dtype
    assert not filled.isna().any()
