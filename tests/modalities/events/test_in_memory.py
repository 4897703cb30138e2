"""Events in memory are what the parquet of the same MEDS table is, through every verb: equal, or refused alike."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import unmask
from unmask.errors import UserError
from unmask.modalities.events.audit.audit_points import audit
from unmask.modalities.events.recipes import EventSettings, OutcomeSettings, with_overrides
from unmask.modalities.events.records.histories import Histories, odd_values
from unmask.modalities.events.records.labels import read_labels
from unmask.modalities.events.records.meds import as_events, read_meds
from unmask.modalities.events.records.vocabulary import FIRST, Vocabulary
from unmask.modalities.events.uses.demo import simulate
from unmask.modalities.events.uses.finetune import finetune_outcome
from unmask.modalities.events.uses.pretrain import pretrain

SMALL = {"slots": 64, "batch_slots": 1024, "width": 32, "steps": 2, "precision": "fp32"}
QUICK = OutcomeSettings(members=1, trees=3, epochs=1, baselines=False, curve=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(MEDS folder, its table, a model of it)."""
    root = tmp_path_factory.mktemp("memory")
    meds = simulate(root, 30, 0)
    pretrain(meds, root / "model", settings=with_overrides(EventSettings(), SMALL), console=False)
    parts = sorted((meds / "data").rglob("*.parquet"))
    return meds, pl.concat([pl.read_parquet(p) for p in parts]), unmask.load(root / "model", precision="fp32")


FORMS = {
    "polars": lambda table: table,
    "pandas": lambda table: table.to_pandas(),
    "Arrow": lambda table: table.to_arrow(),
    "columns": lambda table: table.to_dict(as_series=False),
    "rows": lambda table: iter(table.to_dicts()),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_verb_takes_a_table_as_its_folder(made, tmp_path, form):
    meds, table, model = made

    def given():
        return FORMS[form](table)

    np.testing.assert_array_equal(model.embed(given()), model.embed(meds))
    assert model.score(given()).equals(model.score(meds))
    assert model.fill(given()).equals(model.fill(meds))
    assert audit(given())[1] == audit(meds)[1]
    weights = []
    for number, data in enumerate((given(), meds)):
        out = tmp_path / str(number)
        pretrain(data, out, settings=with_overrides(EventSettings(), SMALL), console=False)
        weights.append((out / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.reverse(), "again|backwards"),
        (lambda t: t.drop("code"), "code"),
        (lambda t: t.with_columns(pl.lit(None, pl.String).alias("code")), "code"),
        (lambda t: t.cast({"numeric_value": pl.String}), "numeric_value"),
    ],
)
def test_a_table_is_refused_as_its_file_is(made, tmp_path, change, said):
    _, table, model = made
    wrong = change(table)
    (tmp_path / "m" / "data").mkdir(parents=True)
    path = tmp_path / "m" / "data" / "t.parquet"
    wrong.write_parquet(path)
    texts = []
    for data in (wrong, tmp_path / "m"):
        with pytest.raises(UserError, match=said) as error:
            model.embed(data)
        texts.append(str(error.value).replace(str(path), "the table"))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("data", [None, 3, [1, 2], np.zeros((3, 3))])
def test_what_is_no_table_is_refused(made, data):
    with pytest.raises(UserError, match="no table of events"):
        made[2].embed(data)


@pytest.fixture(scope="module")
def outcome(made, tmp_path_factory):
    """(MEDS folder, its table, task folder, the labels of it in another order, a model with questions and an outcome
    head)."""
    meds, table, _ = made
    root, task = tmp_path_factory.mktemp("outcome"), meds.parent / "task"
    more = SMALL | {"questions": 4, "holdout": 0.2, "until": "last"}
    pretrain(meds, root / "asking", settings=with_overrides(EventSettings(), more), console=False)
    finetune_outcome(root / "asking", meds, task, root / "head", settings=QUICK)
    labels = pl.concat([pl.read_parquet(p) for p in sorted(task.rglob("*.parquet"))])
    return meds, table, task, labels.sample(fraction=1, shuffle=True, seed=1), root / "head"


def found(model, folder, data, labels, out):
    """What every verb says at labels. `data` and `labels` make them anew for each."""
    questions = [f"{code} within 10 days" for code in model.folder.vocabulary.codes[:2]]
    run = finetune_outcome(folder, data(), labels(), out, settings=QUICK)
    return {
        "predict": model.predicted(data(), labels())[0].to_dict(as_series=False),
        "evaluate": model.evaluate(data(), labels()),
        "ask": model.ask(data(), questions, labels()).to_dict(as_series=False),
        "ask at the last events": model.ask(data(), questions).to_dict(as_series=False),
        "embed": model.embed(data(), labels()).tolist(),
        "audit": audit(data(), labels()),
        "finetune": run.figures["results"],
    }


@pytest.fixture(scope="module")
def of_files(outcome, tmp_path_factory):
    """What every verb says at labels of a file, and the model."""
    meds, _, _, labels, folder = outcome
    root = tmp_path_factory.mktemp("files")
    labels.write_parquet(root / "labels.parquet")
    model = unmask.load(folder, precision="fp32")
    return found(model, folder, lambda: meds, lambda: root / "labels.parquet", root / "out"), model


@pytest.mark.parametrize("form", [*FORMS, "read"])
def test_every_verb_takes_events_and_labels_as_their_files(outcome, of_files, tmp_path, form):
    _, table, _, labels, folder = outcome
    expected, model = of_files

    def events():
        return as_events(table) if form == "read" else FORMS[form](table)

    def points():
        return read_labels(labels, as_events(table)) if form == "read" else FORMS[form](labels)

    own = found(model, folder, events, points, tmp_path / "out")
    for verb, figures in expected.items():
        assert own[verb] == figures, verb
    assert own["predict"]["subject_id"] == labels["subject_id"].to_list()
    assert own["predict"]["prediction_time"] == labels["prediction_time"].to_list()


SEVERAL = {
    "tuple": tuple,
    "generator": iter,
    "NumPy": np.array,
    "pandas": pd.Series,
    "polars": pl.Series,
    "Arrow": pa.array,
}


@pytest.mark.parametrize("form", SEVERAL)
def test_answers_name_their_questions_in_the_order_given(outcome, of_files, form):
    meds, model = outcome[0], of_files[1]
    questions = [f"{code} within 10 days" for code in model.folder.vocabulary.codes[2::-1]]
    found = model.ask(meds, SEVERAL[form](questions))
    assert found["question"].to_list() == questions * (len(found) // 3)
    assert found.equals(model.ask(meds, questions))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.drop("prediction_time"), "prediction_time"),
        (lambda t: t.cast({"boolean_value": pl.String}), "boolean_value"),
        (lambda t: pl.concat([t, t]), "twice"),
        (lambda t: t.clear(), "no labels"),
        (lambda t: t.with_columns(subject_id=pl.lit(10**9)), "none of the"),
        (lambda t: t.with_columns(number=1.0).rename({"number": "float_value"}).drop("boolean_value"), "kind"),
    ],
)
def test_labels_are_refused_as_their_file_is(outcome, of_files, tmp_path, change, said):
    meds, _, _, labels, _ = outcome
    model, path = of_files[1], tmp_path / "labels.parquet"
    change(labels).write_parquet(path)
    texts = []
    for given in (change(labels), path):
        with pytest.raises(UserError, match=said) as error:
            model.evaluate(meds, given)
        texts.append(str(error.value).replace(str(path), "the labels"))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("labels", [3, [1, 0, 1], np.ones((3, 2)), pl.Series([True])])
def test_what_is_no_labels_is_refused_by_every_verb(outcome, of_files, tmp_path, labels):
    meds, _, _, _, folder = outcome
    model = of_files[1]
    question = f"{model.folder.vocabulary.codes[0]} within 10 days"
    verbs = (
        lambda: model.predicted(meds, labels),
        lambda: model.evaluate(meds, labels),
        lambda: model.ask(meds, question, labels),
        lambda: model.embed(meds, labels),
        lambda: finetune_outcome(folder, meds, labels, tmp_path / "out", settings=QUICK),
    )
    for verb in verbs:
        with pytest.raises(UserError, match="no table"):
            verb()


def test_labels_that_were_read_of_other_events_are_refused(outcome, of_files):
    meds, table, task, _, _ = outcome
    model, points = of_files[1], read_labels(task, read_meds(meds))
    with pytest.raises(UserError, match="other events"):
        model.predicted(table.head(20), points)
    with pytest.raises(UserError, match="no column of labels"):
        model.evaluate(meds, dataclasses.replace(points, value=None))


def test_rows_of_an_array_are_those_of_the_labels(outcome, of_files):
    meds, _, _, labels, _ = outcome
    more = pl.concat([labels, labels.head(1).with_columns(subject_id=pl.lit(10**9, pl.Int64))])
    for verb in (of_files[1].embed, of_files[1].predict_proba):
        with pytest.raises(UserError, match=f"1 of {len(more)} labels .* such as 1000000000"):
            verb(meds, more)
    question = f"{of_files[1].folder.vocabulary.codes[0]} within 10 days"
    for verb in (lambda given: of_files[1].predict(meds, labels=given), lambda at: of_files[1].ask(meds, question, at)):
        with pytest.warns(UserWarning, match=f"1 of {len(more)} labels .* such as 1000000000: left out"):
            assert len(verb(more)) == len(labels)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(verb(read_labels(more, read_meds(meds)))) == len(labels)


VALUE = pl.col("numeric_value")
THIRD = pl.int_range(pl.len()).over("code") % 3 == 0


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (VALUE, None),
        (VALUE * 18, "beyond_codes"),
        (VALUE / 18, "beyond_codes"),
        (pl.when(THIRD).then(-9999.0).otherwise(VALUE), "beyond_codes"),
        (pl.lit(None), "valueless_codes"),
        (pl.when(THIRD).then(VALUE), "valueless_codes"),
        (pl.when(~THIRD).then(VALUE), None),
    ],
    ids=["as it was", "x 18", "/ 18", "-9999", "none", "a third", "two thirds"],
)
def test_other_values_than_in_training_are_warned_of(outcome, of_files, value, key):
    _, table, task, _, _ = outcome
    model = of_files[1]
    other = table.with_columns(
        pl.when(pl.col("code") == "GLUCOSE").then(value).otherwise(VALUE).cast(pl.Float32).alias("numeric_value")
    )
    verbs = {
        "predict": lambda: model.predicted(other, task),
        "evaluate": lambda: model.evaluate(other, task),
        "ask": lambda: model.ask(other, "GLUCOSE within 10 days"),
        "fill": lambda: model.fill(other),
    }
    for name, verb in verbs.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            verb()
        assert sum(": GLUCOSE (" in str(w.message) for w in caught) == (key is not None), name
        listed = {k: list(model.unknown[k]) for k in ("beyond_codes", "valueless_codes")}
        assert listed == {k: ["GLUCOSE"] if k == key else [] for k in listed}


def test_one_patient_in_another_unit_is_said(outcome, of_files):
    """From the first value on; of patients as those in training nothing is said, one at a time too."""
    _, table, _, _, _ = outcome
    vocabulary = of_files[1].folder.vocabulary
    said = {1.0: 0, 18.0: 0, 1 / 18: 0}
    patients = [one for _, one in table.group_by("subject_id") if one.filter(pl.col("code") == "GLUCOSE").height]
    for factor in said:
        for one in patients:
            scaled = one.with_columns(pl.when(pl.col("code") == "GLUCOSE").then(VALUE * factor).otherwise(VALUE))
            scaled = scaled.with_columns(pl.col("numeric_value").cast(pl.Float32))
            said[factor] += len(odd_values(Histories(as_events(scaled), vocabulary))["beyond_codes"])
    assert said == {1.0: 0, 18.0: len(patients), 1 / 18: len(patients)}


def test_a_code_absent_from_an_extract_is_reported_of_many_patients_and_not_of_few(outcome, of_files):
    _, table, _, _, _ = outcome
    vocabulary = of_files[1].folder.vocabulary
    absent = vocabulary.codes[int(vocabulary.carried.argmax()) - FIRST]
    rows = table.filter((pl.col("code") != absent) | pl.col("time").is_null())

    def said(some: pl.DataFrame) -> list[str]:
        return list(odd_values(Histories(as_events(some), vocabulary))["absent_codes"])

    assert (said(table), said(rows)) == ([], [absent])
    few = rows["subject_id"].unique().sort()
    assert said(rows.filter(pl.col("subject_id").is_in(few[:19].implode()))) == []
    assert [said(one) for _, one in table.group_by("subject_id") if said(one)] == []


@pytest.mark.parametrize("marked", [0, 200, 2000])
def test_many_equal_values_in_the_tail_of_a_large_record_are_no_mark(marked):
    """Heart rates in whole numbers: of 100 000 a hundred lie beyond the last knot, dozens of them equal."""
    rng = np.random.default_rng(0)

    def rates(subject: int, value: np.ndarray) -> pl.DataFrame:
        first = np.datetime64("2020-01-01T00:00", "us")
        times = first + np.arange(len(value)) * np.timedelta64(60_000_000, "us")
        columns = {"subject_id": np.full(len(value), subject), "time": times, "code": ["HR"] * len(value)}
        return pl.DataFrame({**columns, "numeric_value": value.astype(np.float32)})

    trained, new = (np.round(80 + 5 * rng.standard_t(8, 100_000)) for _ in range(2))
    new[:marked] = 999
    vocabulary = Vocabulary.fit(as_events(rates(1, trained)))
    found = odd_values(Histories(as_events(rates(2, new)), vocabulary))
    assert list(found["beyond_codes"]) == (["HR"] if marked == 2000 else [])
