"""New cells beyond the training range are said, each column in a sentence; what new patients bring is not."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest

from unmask.cli import main
from unmask.errors import UserError
from unmask.modalities.table.evaluate import evaluate_model
from unmask.modalities.table.imputer import MaskedImputer
from unmask.modalities.table.model import TableModel
from unmask.modalities.table.synthesis.synthesize import augment, perturb


def people(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    height = np.round(rng.uniform(1.51, 1.95, rows), 2)
    return pd.DataFrame(
        {
            "height": height,
            "weight": np.round(height**2 * rng.normal(25, 3, rows), 1),
            "age": rng.integers(20, 90, rows),
            "seen": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), "D"),
            "sex": rng.choice(["F", "M"], rows),
        }
    )


@pytest.fixture(scope="module")
def model() -> TableModel:
    return TableModel.fit(people(200, 0), steps=0, members=2, schema={"columns": {"weight": {"low": 30, "high": 250}}})


def said(call, *given, **options) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call(*given, **options)
    return [str(w.message) for w in found if "beyond" in str(w.message)]


def holed(rows: int = 60, seed: int = 1) -> pd.DataFrame:
    frame = people(rows, seed)
    frame.loc[::7, "sex"] = None
    return frame


@pytest.mark.parametrize("use", ["impute", "intervals", "draws"])
def test_another_unit_is_said_once_per_column_and_loudly(model, use):
    frame = holed().assign(height=lambda d: d.height * 100)
    call = (lambda d: model.impute(d, draws=2)) if use == "draws" else getattr(model, use)
    (text,) = said(call, frame)
    assert text.startswith("'height': 60 of 60 cells lie beyond the training range 1.5")
    assert "(15" in text
    assert "the model takes them for its ends" in text
    assert "NOT to be trusted" in text


@pytest.mark.parametrize(("code", "column"), [(-9, "age"), (999, "age"), (-9, "height"), (-99, "weight")])
def test_codes_of_no_value_are_said_with_what_to_do(model, code, column):
    frame = holed()
    frame.loc[4, column] = code
    text = said(model.impute, frame)[0]
    assert f"{column!r}: 1 of 60 cells" in text
    assert f"({code}, row 4)" in text
    assert f"If {code} means no value: empty it" in text


def test_a_row_has_one_name_in_warnings_errors_and_results(model):
    """Warnings and errors counted rows of a frame from 1 where results gave their labels: 41 was 40, or 1040."""
    plain = holed().assign(age=lambda d: d.age.where(d.index != 4, 999))
    for index, name in ((plain.index, 4), (plain.index + 1000, 1004), ([f"P{k}" for k in range(60)], "P4")):
        frame = plain.set_axis(index)
        assert f"(999, row {name})" in said(model.impute, frame)[0]
        with pytest.warns(UserWarning, match="999"):
            scored = model.score(frame)
        assert scored[4]["row"] == name
        with pytest.raises(UserError, match=f"column 'sex', row {name}: category 'X'"):
            model.impute(frame.assign(sex=frame.sex.where(frame.index != name, "X")))
    with pytest.raises(UserError, match="row 4: category 'X'"):
        model.impute(pl.from_pandas(plain.assign(sex=plain.sex.where(plain.index != 4, "X"))))


def test_one_value_far_beyond_is_said(model):
    frame = holed().assign(weight=lambda d: d.weight.where(d.index != 3, 1e30))
    training, bounds = said(model.impute, frame)
    assert "(1e+30, row 3)" in training
    assert "NOT" not in training
    assert "beyond the bounds that the schema gives, low 30 and high 250 (1e+30, row 3)" in bounds
    assert "bounds" in said(model.impute, frame.assign(weight=29.5))[-1]


@pytest.mark.parametrize("seed", range(2, 8))
def test_new_patients_are_not_spoken_of(model, seed):
    assert not said(model.impute, holed(200, seed))
    near = holed(60, seed)
    near.loc[[0, 1], "height"] = [2.0, 1.4]
    assert not said(model.impute, near)
    assert not said(model.impute, people(200, 0).assign(sex=None))


def test_few_training_rows_have_ends_that_chance_oversteps():
    small = TableModel.fit(people(25, 0)[["height", "age"]], steps=0, members=2)
    assert not [t for seed in range(1, 9) for t in said(small.impute, people(25, seed)[["height", "age"]])]


def test_many_cells_just_beyond_are_said(model):
    (text,) = said(model.impute, holed().assign(height=lambda d: d.height.where(d.index > 9, 2.0)))
    assert "'height': 10 of 60 cells" in text
    assert "(2)" in text
    assert not said(model.impute, holed().assign(height=lambda d: d.height.where(d.index > 2, 2.0)))


def test_dates_are_said_as_dates(model):
    (text,) = said(model.impute, holed().assign(seen=pd.Timestamp("2035-03-04")))
    assert "(2035-03-04)" in text
    assert "training range 2020-01-0" in text
    assert text.endswith("the model takes them for its ends")  # new patients are new: no unit is asked about


def test_a_constant_column_and_an_empty_one():
    model = TableModel.fit(
        people(50, 0)[["height", "age"]].assign(k=3.5),
        steps=0,
        members=2,
        schema={"columns": {"k": {"kind": "numeric"}}},
    )
    assert (
        "'k': 1 of 50"
        in said(model.impute, people(50, 0)[["height", "age"]].assign(k=lambda d: np.where(d.index, 3.5, 4)))[0]
    )
    assert not said(model.impute, people(50, 0)[["height", "age"]].assign(k=np.nan))


def test_the_transformer_warns_too():
    columns = ["height", "age"]
    fitted = MaskedImputer(steps=0, members=2).fit(people(100, 0)[columns])
    (text,) = said(fitted.transform, people(50, 1)[columns].assign(age=lambda d: d.age.where(d.index != 3, -9)))
    assert "no value: empty it" in text
    assert "'age': 1 of 50 cells" in text
    assert not said(fitted.transform, people(50, 1)[columns])


@pytest.mark.parametrize("use", ["evaluate", "augment", "perturb"])
def test_every_use_of_a_table_says_another_unit(model, use):
    frame = people(60, 1).assign(height=lambda d: d.height * 100)
    call = {
        "evaluate": lambda d: evaluate_model(model, d, rows=60),
        "augment": lambda d: augment(model, d, where="sex == 'F'", rows=5),
        "perturb": lambda d: perturb(model, d),
    }[use]
    (text,) = said(call, frame)
    assert text.startswith("'height': 60 of 60 cells lie beyond the training range 1.5")
    assert not said(call, people(60, 1))


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_command_line(model, tmp_path, capsys, form):
    model.save(tmp_path / "m")
    frame = holed()
    frame.loc[4, "age"] = -9
    frame.to_csv(tmp_path / "n.csv", index=False)
    arguments = ["impute", str(tmp_path / "m"), str(tmp_path / "n.csv"), "--out", str(tmp_path / "o.csv"), *form]
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    printed = capsys.readouterr()
    assert "warning: 'age': 1 of 60 cells" in printed.err
    assert "row 6" in printed.err
    if form:
        assert "'age': 1 of 60" in json.loads(printed.out)["warnings"][0]
    else:
        assert "warning" not in printed.out
    with pytest.raises(SystemExit, match="0"):
        main([*arguments, "--missing", "-9"])
    assert "beyond" not in capsys.readouterr().err


def test_scores_and_embeddings_warn_too(model, tmp_path, capsys):
    """They read the cells as imputing does; neither said a word of them, nor of columns that the table lacks."""
    new = people(40, 5).assign(height=lambda t: t.height * 100)
    for use in (model.score, model.embed):
        with pytest.warns(UserWarning, match="'height': 40 of 40 cells lie beyond"):
            use(new)
        with pytest.warns(UserWarning, match="not in the table, so hidden in every row: 'age'"):
            use(people(40, 5).drop(columns="age"), absent="age")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            use(people(40, 5))
    model.save(tmp_path / "m")
    new.to_csv(tmp_path / "t.csv", index=False)
    for command in (["score"], ["embed", "--out", str(tmp_path / "e.npy")]):
        found = [command[0], str(tmp_path / "m"), str(tmp_path / "t.csv"), *command[1:], "--json"]
        with pytest.raises(SystemExit, match="0"):
            main(found)
        text, error = capsys.readouterr()
        assert "'height': 40 of 40" in json.loads(text)["warnings"][0]
        assert error.count("warning: 'height'") == 1
