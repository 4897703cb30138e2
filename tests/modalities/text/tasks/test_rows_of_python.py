"""Rows of Python mean what the same rows in a file mean: pairs, missing labels, empty texts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tiny_folders import folder, sentiment
from unmask.errors import UserError
from unmask.modalities.text.tasks.data import as_items
from unmask.modalities.text.tasks.finetune import finetune, predict

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
    finetune("similarity", base, graded, out=home / "similarity", **QUICK)
    finetune("classify", base, [(*p, y) for p, y in zip(PAIRS * 2, "abaaba", strict=True)], out=home / "pair", **QUICK)
    finetune("classify", base, sentiment(12), out=home / "single", **QUICK)
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
    result = finetune("similarity", folder(tmp_path / "m"), PAIRS, out=tmp_path / "s", **QUICK)
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
    result = finetune("classify", folder(tmp_path / "m"), rows, lenient=True, say=said.append, **QUICK)
    assert result["rows"] == 12
    assert "2 rows left out: row 13: column 'text' is empty; row 14: column 'label' is empty" in said
