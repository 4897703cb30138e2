"""Rows of Python mean what the same rows in a file mean: pairs, missing labels, empty texts."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from scipy.sparse import csr_array, csr_matrix

import unmask
from commands import run
from tiny_folders import folder, sentiment
from unmask.errors import UserError
from unmask.modalities.text.reading.sources import listed
from unmask.modalities.text.tasks.answer import as_questions
from unmask.modalities.text.tasks.classify import names_of
from unmask.modalities.text.tasks.conll import as_sentences
from unmask.modalities.text.tasks.data import as_items
from unmask.modalities.text.tasks.finetune import evaluate, finetune, predict
from unmask.modalities.text.tasks.row_files import Columns

QUICK = {"start": "plain", "steps": 1, "precision": "fp32"}
PAIRS = [("the fox", "the dog"), ("a fox jumps", "rarely check"), ("the dog", "the fox")]
FIRST, SECOND = [a for a, _ in PAIRS], [b for _, b in PAIRS]
SHAPES = {
    "tuples": PAIRS,
    "lists": [list(p) for p in PAIRS],
    "X1, X2": (FIRST, SECOND),
    "arrays": (np.array(FIRST), np.array(SECOND)),
    "with a label": [(*p, 1) for p in PAIRS],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    home = tmp_path_factory.mktemp("pairs")
    base = folder(home / "base")
    graded = [(*p, score) for p, score in zip(PAIRS, (0.0, 1.0, 0.5), strict=True)]
    finetune(base, graded, task="similarity", out=home / "similarity", **QUICK)
    finetune(
        base, [(*p, y) for p, y in zip(PAIRS * 2, "abaaba", strict=True)], task="classify", out=home / "pair", **QUICK
    )
    finetune(base, sentiment(12), task="classify", out=home / "single", **QUICK)
    return home


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["similarity", "pair"])
def test_a_model_of_pairs_reads_the_second_text(models, name, shape):
    expected = predict(models / name, [{"text": a, "text2": b} for a, b in PAIRS])
    assert predict(models / name, SHAPES[shape]) == [{k: v for k, v in r.items() if k != "input"} for r in expected]


def test_a_model_of_single_texts_reads_labelled_rows_as_before(models):
    rows = sentiment(4)
    assert predict(models / "single", rows) == predict(models / "single", [text for text, _ in rows])
    with pytest.raises(UserError, match="row 1: the model was fine-tuned on pairs and is given single texts"):
        predict(models / "pair", FIRST)
    with pytest.raises(UserError, match=r"row 2 is \('the dog', 0.5\)\n.*\(text, text2\)"):
        predict(models / "pair", [PAIRS[0], ("the dog", 0.5)])


def test_positive_pairs_are_learnt_from_tuples(tmp_path):
    result = finetune(folder(tmp_path / "m"), PAIRS, task="similarity", out=tmp_path / "s", **QUICK)
    assert result["rows"] == 3
    assert "score" in predict(tmp_path / "s", PAIRS)[0]


MISSING = [None, "", "  ", float("nan"), np.nan, pd.NA, pd.NaT]


@pytest.mark.parametrize("value", MISSING, ids=repr)
@pytest.mark.parametrize("shape", ["rows", "X, y", "dicts", "frame", "series"])
def test_a_missing_label_is_refused(value, shape):
    texts, labels = ["a", "b", "c"], ["x", value, "y"]
    frame = pd.DataFrame({"text": texts, "label": pd.Series(labels, dtype=object)})
    data = {
        "rows": list(zip(texts, labels, strict=True)),
        "X, y": (texts, labels),
        "dicts": [{"text": t, "label": y} for t, y in zip(texts, labels, strict=True)],
        "frame": frame,
        "series": (frame["text"], frame["label"]),
    }[shape]
    with pytest.raises(UserError, match="row 2: column 'label' is empty"):
        as_items(data)


def test_missing_labels_of_a_nullable_column_are_refused_together():
    frame = pd.DataFrame({"text": ["a", "b", "c"], "label": pd.array([1, None, None], dtype="Int64")})
    with pytest.raises(UserError, match="2 rows are wrong: row 2: column 'label' is empty; row 3: column 'label' is"):
        as_items(frame)


@pytest.mark.parametrize("shape", ["rows", "triples", "X, y", "dicts"])
def test_empty_texts_are_refused_together(shape):
    texts = ["a", "", " \n", "d"]
    data = {
        "rows": [(t, "x") for t in texts],
        "triples": [("first", t, "x") for t in texts],
        "X, y": (texts, ["x"] * 4),
        "dicts": [{"text": t, "label": "x"} for t in texts],
    }[shape]
    column = "text2" if shape == "triples" else "text"
    with pytest.raises(UserError, match=f"2 rows are wrong: row 2: column '{column}' is empty; row 3: column") as error:
        as_items(data)
    assert "lenient=True" in (error.value.hint or "")


def test_wrong_rows_of_python_are_left_out_with_lenient(tmp_path):
    said: list[str] = []
    rows = [*sentiment(12), ("", "good"), ("the fox", None)]
    result = finetune(folder(tmp_path / "m"), rows, task="classify", lenient=True, say=said.append, **QUICK)
    assert result["rows"] == 12
    assert "2 rows left out: row 13: column 'text' is empty; row 14: column 'label' is empty" in said


MATRIX = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1]])


@pytest.mark.parametrize(
    "labels",
    [
        MATRIX,
        MATRIX.astype(bool),
        MATRIX.astype(float),
        csr_matrix(MATRIX),
        csr_array(MATRIX),
        torch.tensor(MATRIX),
        MATRIX.tolist(),
    ],
    ids=["int", "bool", "float", "csr_matrix", "csr_array", "tensor", "lists"],
)
def test_an_indicator_matrix_is_labels_by_place(labels):
    items, _ = as_items((["a", "b", "c"], labels))
    assert [item.label for item in items] == [(1, 0, 1), (0, 0, 0), (0, 1, 1)]


@pytest.mark.parametrize("labels", [np.array([[0], [1]]), [[0], [1]], csr_array([[0], [1]]), np.array([["a"], ["b"]])])
def test_a_column_vector_of_labels_is_refused(labels):
    with pytest.raises(UserError, match="labels are a column"):
        as_items((["a", "b"], labels))


def test_sets_are_several_labels_and_other_objects_none():
    items, _ = as_items([("x", {"b", "a"}), ("y", frozenset({"c"})), ("z", set()), ("w", {1, 0})])
    assert [item.label for item in items] == [("a", "b"), ("c",), (), ("0", "1")]
    for wrong in ({"a": 1}, object(), b"a", [["a"]], [{"a": 1}]):
        one = wrong[0] if isinstance(wrong, list) else wrong
        with pytest.raises(UserError, match=f"row 2: column 'label' is an object of type {type(one).__name__}"):
            as_items([("x", "a"), ("y", wrong)])
    with pytest.raises(UserError, match="row 1: column 'label' has an empty label"):
        as_items([("x", ["a", None])])


@pytest.mark.parametrize(
    "cell", ["[1, 0]", "[1 0]", "[1. 0.]", "[True, False]", "[ True False]", "['a', 'b']", "{'a', 'b'}", "(1, 0)"]
)
def test_lists_written_as_text_are_refused(tmp_path, cell):
    path = tmp_path / "d.csv"
    pd.DataFrame({"text": ["a", "b"], "label": [cell, "x"]}).to_csv(path, index=False)
    with pytest.raises(UserError, match=r"d.csv:2: column 'label' is a list written as text"):
        as_items(path)
    path.write_text("text,label\na,(1)\nb,[x]\n")
    assert [item.label for item in as_items(path)[0]] == ["(1)", "[x]"]


@pytest.mark.parametrize("values", [[False, True], [0.0, 1.0], [0, 1]])
def test_labels_are_spelled_alike_by_all_routes(tmp_path, values):
    frame = pd.DataFrame({"text": [f"text {i}" for i in range(6)], "label": values * 3})
    frame.to_csv(tmp_path / "pandas.csv", index=False)
    pl.from_pandas(frame).write_csv(tmp_path / "polars.csv")
    frame.to_json(tmp_path / "d.jsonl", orient="records", lines=True)
    frame.to_parquet(tmp_path / "d.parquet")
    routes = [frame, pl.from_pandas(frame), (frame["text"], frame["label"]), list(zip(*frame.to_dict("list").values()))]  # noqa: B905
    routes += [tmp_path / name for name in ("pandas.csv", "polars.csv", "d.jsonl", "d.parquet")]
    found = [[names_of(item) for item in as_items(route)[0]] for route in routes]
    assert all(names == found[0] for names in found)


@pytest.mark.parametrize(("learnt", "given"), [(("false", "true"), (False, True)), (("0.0", "1.0"), (0.0, 1))])
def test_a_model_trained_before_labels_were_spelled_alike_is_evaluated(tmp_path, learnt, given):
    rows = [(t, learnt[i % 2]) for i, (t, _) in enumerate(sentiment(12))]
    rows[0] = (rows[0][0], "other")  # keeps the spelling of the file
    finetune(folder(tmp_path / "m"), rows, task="classify", out=tmp_path / "c", **QUICK)
    expected = evaluate(tmp_path / "c", rows[1:])
    found = evaluate(tmp_path / "c", [(t, given[learnt.index(y)]) for t, y in rows[1:]])
    assert found == expected
    validation = [(t, given[learnt.index(y)]) for t, y in rows[1:]]
    finetune(tmp_path / "m", rows, task="classify", validation=validation, **QUICK)


@pytest.mark.parametrize("nothing", [None, float("nan"), pd.NA])
def test_rows_whose_text_is_missing_have_null_predictions(models, tmp_path, nothing):
    texts = ["the fox", nothing, "the dog"]
    frame = pd.DataFrame({"text": pd.Series(texts, dtype=object)})
    frame.to_parquet(tmp_path / "d.parquet")
    frame.to_json(tmp_path / "d.jsonl", orient="records", lines=True)
    for data in (texts, frame, [{"text": t} for t in texts], tmp_path / "d.parquet", tmp_path / "d.jsonl"):
        said: list[str] = []
        rows = predict(models / "single", data, say=said.append)
        assert [row["label"] is None for row in rows] == [False, True, False]
        assert "1 of 3 rows have no text: their predictions are null" in said
        if "input" in rows[1]:
            assert rows[1]["input"] == {"text": None}
    pairs = [("the fox", nothing), (nothing, "the fox"), PAIRS[0]]
    for data in (pairs, pd.DataFrame(pairs, columns=["text", "text2"])):
        assert [row["score"] is None for row in predict(models / "similarity", data)] == [True, True, False]


def test_an_indicator_frame_without_labels_is_refused_as_its_csv(tmp_path):
    frame = pd.DataFrame({"text": ["a", "b"], "spam": [0, 1], "ham": [1, 0]})
    frame.to_csv(tmp_path / "d.csv", index=False)
    for data in (frame, tmp_path / "d.csv"):
        with pytest.raises(UserError, match="no label column among text, spam, ham"):
            as_items(data)


def test_entities_that_are_null_or_there_twice(tmp_path):
    path, entity = tmp_path / "d.jsonl", {"start": 4, "end": 7, "label": "ANIMAL"}
    rows = [{"text": "the fox", "entities": [entity, entity]}, {"text": "nothing", "entities": None}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for data in (path, rows, pd.DataFrame(rows)):
        assert [s.spans for s in as_sentences(data, labelled=True)] == [((4, 7, "ANIMAL"),), ()]
    said: list[str] = []
    finetune(folder(tmp_path / "m"), path, task="tag", out=tmp_path / "t", say=said.append, **QUICK)
    assert not [line for line in said if "over another one" in line]
    with pytest.raises(UserError, match="row 1: entity 2 has no 'label'"):
        as_sentences([{"text": "the fox", "entities": [entity, {"start": 0, "end": 3}]}], labelled=True)
    with pytest.raises(UserError, match="row 1: no 'entities'"):
        as_sentences([{"text": "the fox"}], labelled=True)
    for nothing in (None, float("nan"), pd.NA):
        for data in (["the fox", nothing], [{"text": "the fox"}, {"text": nothing}]):
            found, said = predict(tmp_path / "t", data, say=said.append), said
            assert [row["entities"] is None for row in found] == [False, True]
            assert said.pop() == "1 of 2 rows have no text: their predictions are null"


@pytest.mark.parametrize(
    "tagged", [{"entities": [(0, 5, "PER")]}, [(0, 5, "PER")], [{"start": 0, "end": 5, "label": "PER"}]]
)
def test_texts_with_their_entities_are_read(tagged):
    (found,) = as_sentences([("Peter went", tagged)], labelled=True)
    assert (found.text, found.spans) == ("Peter went", ((0, 5, "PER"),))


@pytest.mark.parametrize("read", [as_sentences, as_questions])
@pytest.mark.parametrize("row", [3, b"x", ("a", "b", "c"), ["a"], [1, 2]])
def test_rows_that_are_none_are_refused(read, row):
    with pytest.raises(UserError, match=r"row 1 is .*\n  Expected a "):
        read([row], labelled=True)


@pytest.mark.parametrize("nothing", [None, float("nan"), pd.NA])
def test_questions_without_a_text_have_null_answers(tmp_path, nothing):
    answer = {"text": "fox", "answer_start": 4}
    rows = [{"question": "who?", "context": "the fox jumps", "answers": [answer]}] * 4
    finetune(folder(tmp_path / "m"), rows, task="answer", out=tmp_path / "a", **QUICK)
    texts = [("who?", "the fox"), ("who?", nothing), (nothing, "the fox")]
    asked = [{"question": q, "context": c} for q, c in texts]
    for data in (asked, pd.DataFrame(asked)):
        found = predict(tmp_path / "a", data)
        assert [row["answer"] is None for row in found] == [False, True, True]
        assert found[1]["nbest"] is None
    with pytest.raises(UserError, match="row 2: context"):
        finetune(tmp_path / "m", [rows[0], rows[0] | {"context": nothing}], task="answer", **QUICK)


def test_arrow_arrays_are_texts_and_labels(models):
    texts = ["the fox", "the dog"]
    assert listed(pa.array(texts)) == listed(pa.chunked_array([texts[:1], texts[1:]])) == texts
    model = unmask.load(models / "base", device="cpu", precision="fp32")
    np.testing.assert_array_equal(model.embed(pa.array(texts)), model.embed(texts))
    assert [i.label for i in as_items((pa.array(texts), pa.array(["x", "y"])))[0]] == ["x", "y"]
    assert [i.label for i in as_items({"text": pa.array(texts), "label": pa.array([0, 1])})[0]] == [0, 1]


def test_fill_keeps_the_place_of_a_blank_line(models, tmp_path, capsys):
    path = tmp_path / "t.txt"
    path.write_text("the [MASK]\n\na [MASK] jumps\n \n")
    code, out, err = run(capsys, "fill", models / "base", path, "--json", "--precision", "fp32")
    results = json.loads(out)["results"]
    assert code == 0
    assert [(r["text"], len(r["slots"])) for r in results] == [
        ("the [MASK]", 1),
        ("", 0),
        ("a [MASK] jumps", 1),
        (" ", 0),
    ]
    assert "2 of 4 texts are blank" in err
    path.write_text("the [MASK]\n\nno blank\n")
    code, _, err = run(capsys, "fill", models / "base", path)
    assert (code, "text 3 has no [MASK]" in err) == (2, True)
    path.write_text("\n\n")
    assert run(capsys, "fill", models / "base", path)[0] == 2


def test_several_columns_of_0_and_1_are_labels_by_name(tmp_path):
    """As multi-label tables of spreadsheets have them; one of the columns alone was read, as one label per text."""
    rows = [(f"text {i}", i % 2, i % 3 == 0, i % 5 == 0) for i in range(30)]
    frame = pd.DataFrame(rows, columns=["text", "law", "med", "fin"]).astype({"med": float})
    frame.to_csv(tmp_path / "a.csv", index=False)
    columns = Columns(label=("law", "med", "fin"))
    expected = [tuple(n for n, mark in zip(("law", "med", "fin"), row[1:], strict=True) if mark) for row in rows]
    for data in (str(tmp_path / "a.csv"), frame):
        items, read_from = as_items(data, columns)
        assert [item.label for item in items] == expected
    assert read_from.line() == "text: 'text', label: 'law', 'med', 'fin'"
    again, _ = as_items(frame, Columns().trained_on(read_from.named))
    assert [item.label for item in again] == expected
    frame["fin"] = frame["fin"].astype(object)
    frame.loc[3, "fin"] = "yes"
    with pytest.raises(UserError, match=r"row 4: column 'fin' is 'yes', not 0 or 1"):
        as_items(frame, columns)
    with pytest.raises(UserError, match="no column 'tax'"):
        as_items(frame, Columns(label=("law", "tax")))


@pytest.mark.parametrize(
    "data",
    [
        (FIRST, np.array([[0.25, 0.75], [0.9, 0.1], [0.5, 0.5]])),
        [(text, [0.25, 0.75]) for text in FIRST],
        pl.DataFrame({"text": FIRST, "label": [[36.6, 120.0], [37.5, 140.0], [38.0, 130.0]]}),
    ],
)
def test_several_numbers_per_text_are_no_names_of_labels(data):
    """They were classes called '0.1' and '0.25'."""
    with pytest.raises(UserError, match=r"row 1: column 'label' .*other numbers than 0 and 1"):
        as_items(data)
