"""Data in memory means what the file means: every kind of table gives what its CSV file gives, or the same refusal."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from tables import patients

from unmask.errors import UserError
from unmask.modalities.table.evaluate import evaluate_model
from unmask.modalities.table.imputation.multiple import MultipleImputation
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.reading.readers import read_frame
from unmask.modalities.table.schema.describe import describe
from unmask.modalities.table.synthesis.synthesize import augmented
from unmask.modalities.table.writing.writers import as_polars

PAIR = {"duration": "time", "event": "event"}


def cohort() -> pd.DataFrame:
    """Whole and decimal numbers, texts, dates, truth values and identifiers, with holes."""
    rng = np.random.default_rng(1)
    table = patients(60, missing=0.1)
    table["crp"] = np.where(rng.random(60) < 0.1, np.nan, np.exp(rng.normal(size=60)).round(2))
    table["seen"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, 60), unit="D")
    table["smoker"] = pd.Series(rng.random(60) < 0.4).astype(object)
    table.loc[::9, ["seen", "smoker"]] = None
    return table.assign(code=[f"P{k:04d}" for k in range(60)])


def single(table: pd.DataFrame) -> pd.DataFrame:
    return table.astype({c: "float32" for c in table if table[c].dtype == float})


KINDS = {
    "nullable": lambda t: t.convert_dtypes(),
    "of Arrow": lambda t: t.convert_dtypes(dtype_backend="pyarrow"),
    "categories": lambda t: t.astype({"sex": "category", "stage": "category"}),
    "index": lambda t: t.set_axis([f"r{k}" for k in range(len(t))]),
    "single precision": single,
    "sparse": lambda t: t.assign(event=pd.arrays.SparseArray(t.event)),
    "pandas": lambda t: t,
    "polars": pl.from_pandas,
    "polars of single precision": lambda t: pl.from_pandas(single(t)),
    "arrow": lambda t: pl.from_pandas(t).to_arrow(),
    "dict of columns": lambda t: t.to_dict("list"),
    "list of dicts": lambda t: t.to_dict("records"),
    "parquet": lambda t: pl.from_pandas(t).write_parquet("t.parquet") or "t.parquet",
}


def plain(table) -> dict[str, list]:
    """Names and values, as a CSV file would hold them."""

    def cell(value):
        if value is None or value is pd.NaT or value is pd.NA or value != value or value == "":
            return None
        if hasattr(value, "isoformat"):
            return value.isoformat()[:10]
        try:
            return str(value) if isinstance(value, bool | np.bool_) else float(f"{float(value):.6g}")
        except ValueError:
            return value

    frame = read_frame(table)
    return {n: [cell(v) for v in c.tolist()] for n, c in zip(frame.names, frame.columns, strict=True)}


def found(data) -> dict:
    """What every verb makes of a table, but for how cells are written."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = TableModel.fit(data, steps=0, members=1, **PAIR)
        done = MultipleImputation(2, rounds=1, **PAIR).fit(data)
        out = {
            "impute": plain(model.impute(data)),
            "draws": plain(model.impute(data, draws=1)[0]),
            "score": [r["score"] for r in model.score(data)],
            "least likely": [r["least_likely"]["column"] for r in model.score(data)],
            "embed": model.embed(data),
            "intervals": read_frame(model.intervals(data)).columns[5 if hasattr(data, "iloc") else 6],
            "synthesize": plain(model.synthesize(15)),
            "augment": plain(augmented(model, read_frame(data), ['sex == "F"'], 5, 0, [])[0]),
            "evaluate": evaluate_model(model, read_frame(data), rows=30)["two_sample_auc"],
            "multiple": plain(done.completed[0]),
            "pooled": done.pool_cox(["age", "sex"]).estimate,
            "methods": done.methods_,
        }
    kinds = {c.name: (c.kind, c.decimals, c.categories, c.low, c.high, c.structural) for c in model.schema.columns}
    said = sorted(str(w.message) for w in caught if issubclass(w.category, UserWarning))
    return out | {"schema": kinds, "said": said, "notes": model.facts["notes"]}


@pytest.fixture(scope="module")
def of_the_file(tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("file") / "t.csv"
    cohort().to_csv(path, index=False)
    return found(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_in_memory_gives_what_its_file_gives(kind, of_the_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = found(KINDS[kind](cohort()))
    for verb, expected in of_the_file.items():
        if verb in ("score", "embed", "intervals", "pooled"):
            np.testing.assert_allclose(np.array(own[verb], float), np.array(expected, float), atol=1e-5, err_msg=verb)
        else:
            assert own[verb] == expected, verb


@pytest.mark.parametrize(
    "data",
    [
        [[1, 2], [3, 4]],
        (row for row in cohort().to_dict("records")),
        cohort()["age"],
        pl.from_pandas(cohort()).lazy(),
        pl.Series([1.0, 2.0]),
    ],
)
def test_what_is_no_table_is_refused_alike_by_every_verb(data):
    model = TableModel.fit(patients(40), steps=0, members=1)
    verbs = (TableModel.fit, MultipleImputation(2).fit, model.impute, model.score, model.embed, model.intervals)
    verbs = (*verbs, describe)
    said = set()
    for verb in verbs:
        with pytest.raises(UserError) as error:
            verb(data)
        said.add(str(error.value))
    (words,) = said
    assert words.startswith(f"a {type(data).__name__} is not a table\n  Expected a path, pandas, polars, Arrow, NumPy")


def test_results_name_rows_as_the_table_does(tmp_path):
    """The label of a pandas index, the line of a file, else the number from 0; an index stays."""
    table = patients(40, missing=0.1).set_axis([f"r{k}" for k in range(40)])
    model = TableModel.fit(table, steps=0, members=1)
    assert [r["row"] for r in model.score(table)] == list(table.index)
    assert set(model.intervals(table)["row"]) <= set(table.index)
    assert list(model.impute(table).index) == list(table.index)
    assert list(MultipleImputation(2, rounds=1).fit(table).completed[1].index) == list(table.index)
    own = pl.from_pandas(table)
    assert [r["row"] for r in model.score(own)] == list(range(40))
    own.write_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv", index=False)
    assert [r["row"] for r in model.score(tmp_path / "t.parquet")] == list(range(40))
    assert [r["row"] for r in model.score(tmp_path / "t.csv")] == list(range(2, 42))
    lines = model.intervals(tmp_path / "t.csv")["row"].to_numpy()
    assert (lines - 2 == model.intervals(own)["row"].to_numpy()).all()
    assert set(as_polars(model.intervals(tmp_path / "t.parquet"))["row"]) == set(model.intervals(own)["row"])
