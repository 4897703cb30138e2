"""Labelled texts in memory mean what a file of them means; labels as vectors; settings that nothing reads."""

import json
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import unmask
from commands import run
from tiny_folders import folder, sentiment
from unmask.errors import UserError
from unmask.modalities.text.reading.sources import listed
from unmask.modalities.text.tasks.classify import Classify, names_of
from unmask.modalities.text.tasks.conll import as_sentences
from unmask.modalities.text.tasks.data import as_items
from unmask.modalities.text.tasks.finetune import evaluate
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.modalities.text.tasks.zeroshot import zero_shot

FAST = {"steps": 1, "precision": "fp32", "device": "cpu", "start": "plain"}
ROWS = sentiment(24)
TEXTS, LABELS = [t for t, _ in ROWS], [y for _, y in ROWS]
SHAPES = {
    "rows": ROWS,
    "lists as rows": [list(r) for r in ROWS],
    "generator": (r for r in ROWS),
    "dicts": [{"text": t, "label": y} for t, y in ROWS],
    "columns": {"text": TEXTS, "label": LABELS},
    "X, y": (TEXTS, LABELS),
    "X, y as arrays": (np.array(TEXTS), np.array(LABELS)),
    "X, y as series": (pd.Series(TEXTS, index=range(9, 33)), pd.Series(LABELS)),
    "pandas": pd.DataFrame({"text": TEXTS, "label": LABELS}, index=range(9, 33)),
    "polars": pl.DataFrame({"label": LABELS, "text": TEXTS}),
    "arrow": pa.table({"text": TEXTS, "label": LABELS}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_labelled_texts_is_the_file(shape, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in ROWS))
    expected = [(i.text, i.label) for i in as_items(str(file))[0]]
    assert [(i.text, i.label) for i in as_items(SHAPES[shape])[0]] == expected == ROWS


def test_texts_of_arrow_and_of_a_generator_are_texts():
    for column in (pa.array(TEXTS), pa.chunked_array([TEXTS[:9], TEXTS[9:]])):
        assert [i.text for i in as_items(column, labelled=False)[0]] == TEXTS
        assert [s.text for s in as_sentences(column, labelled=False)] == TEXTS


def test_a_text_that_is_missing_is_named_and_a_generator_is_looked_at(tmp_path):
    with pytest.raises(UserError, match=r"texts\[1\] is None: no text"):
        unmask.pretrain(["the quick brown fox", None], steps=1)
    model = unmask.finetune(folder(tmp_path / "m"), (r for r in ROWS), **FAST).model
    assert model.classes_ == sorted(set(LABELS))


def test_numbers_of_arrays_are_numbers():
    items, _ = as_items((TEXTS[:3], np.array([0, 1, 1])))
    assert [i.label for i in items] == [0, 1, 1]
    items, _ = as_items((TEXTS[:2], np.array([0.5, 1.0])))
    assert [i.label for i in items] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((TEXTS, LABELS[:-1]), "24 texts and 23 labels"),
        ([TEXTS, LABELS], r"row 1 is \["),
        ([("a", "b"), 3], "row 2 is 3"),
        ([("a", "b", "c", "d")], "row 1 is"),
        ({"text": TEXTS, "label": "x"}, "not lists of one length"),
        (np.array(ROWS), "row 1 is array"),
    ],
)
def test_what_is_no_row_is_refused(data, said):
    with pytest.raises(UserError, match=said):
        as_items(data)


def test_a_table_of_texts_is_its_texts():
    for table in (pd.DataFrame({"note": TEXTS}), pl.DataFrame({"text": TEXTS, "n": LABELS}), pa.table({"x": TEXTS})):
        assert listed(table) == TEXTS
    assert listed(pd.Series(TEXTS)) == listed(np.array(TEXTS)) == listed(t for t in TEXTS) == TEXTS
    with pytest.raises(UserError, match="a table with columns a, b"):
        listed(pd.DataFrame({"a": TEXTS, "b": TEXTS}))
    assert listed(pd.DataFrame({"text": []})) == []


def test_every_verb_takes_a_frame_for_its_texts(tmp_path):
    model = unmask.load(folder(tmp_path / "m"), device="cpu", precision="fp32")
    frame = pd.DataFrame({"text": TEXTS[:3]})
    np.testing.assert_array_equal(model.embed(frame), model.embed(TEXTS[:3]))
    assert model.score(frame) == model.score(TEXTS[:3])
    done = unmask.finetune(tmp_path / "m", (TEXTS, LABELS), task="classify", out=tmp_path / "c", **FAST)
    assert done["rows"] + done.get("held_out", 0) >= len(TEXTS)
    said = unmask.predict(tmp_path / "c", frame)
    assert [row.pop("input") for row in said] == [{"text": t} for t in TEXTS[:3]], "as of a file's rows"
    assert said == unmask.predict(tmp_path / "c", TEXTS[:3])


VECTORS = [[1, 0, 1], [0, 0, 1], [1.0, 0.0, 0.0], (True, False, False), np.array([0, 0, 0])] * 4


def test_vectors_of_0_and_1_are_labels_by_place(tmp_path):
    items, _ = as_items([(t, v) for t, v in zip(TEXTS, VECTORS, strict=False)])
    assert [names_of(i) for i in items[:5]] == [["LABEL_0", "LABEL_2"], ["LABEL_2"], ["LABEL_0"], ["LABEL_0"], []]
    model, data = folder(tmp_path / "m"), (TEXTS[:20], [list(map(int, v)) for v in VECTORS])
    unmask.finetune(model, data, task="classify", out=tmp_path / "c", **FAST)
    config = json.loads((tmp_path / "c" / "config.json").read_text())
    assert config["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "one that no row has is there too"
    assert config["problem_type"] == "multi_label_classification"
    assert set(unmask.predict(tmp_path / "c", TEXTS[:1])[0]["probabilities"]) == set(config["id2label"].values())


def test_vectors_are_compared_by_place_with_a_model_that_has_names(tmp_path):
    named = [(t, n) for t, n in zip(TEXTS, [["a", "c"], ["c"], ["a"], ["b"], ["b", "c"]] * 4, strict=False)]
    unmask.finetune(folder(tmp_path / "m"), named, task="classify", out=tmp_path / "c", **FAST)
    places = [(t, [int(n in names) for n in "abc"]) for t, names in named]
    assert evaluate(tmp_path / "c", places) == evaluate(tmp_path / "c", named)
    with pytest.raises(UserError, match="2 times 0 or 1, and the model has 3 labels"):
        evaluate(tmp_path / "c", [(t, v[:2]) for t, v in places])


@pytest.mark.parametrize("other", [["a"], [1, 0], "a", []])
def test_vectors_beside_anything_else_are_refused(tmp_path, other):
    data = [(t, [1, 0, 1]) for t in TEXTS[:5]] + [("x", other)]
    with pytest.raises(UserError, match=r"row 6: labels .*, and row 1: 3 times 0 or 1"):
        unmask.finetune(folder(tmp_path / "m"), data, task="classify", out=tmp_path / "c", **FAST)


@pytest.mark.parametrize("marks", [("0", "1"), ("no", "yes"), ("False", "True"), (-1, 1)])
def test_vectors_of_two_words_are_no_names_of_labels(tmp_path, marks):
    data = [(t, [marks[int(n)] for n in v]) for t, v in zip(TEXTS, VECTORS, strict=False)]
    with pytest.raises(UserError, match=r"row 1: labels .* two names in all"):
        unmask.finetune(folder(tmp_path / "m"), data, task="classify", out=tmp_path / "c", **FAST)


def test_numbers_of_classes_are_names_as_before():
    assert [names_of(i) for i in as_items([("a", [0, 3]), ("b", [1]), ("c", [0])])[0]] == [["0", "3"], ["1"], ["0"]]


@pytest.mark.parametrize(("labels", "share"), [(10, 0.1), (20, 0.2), (3, 0.5)])
def test_balanced_weights_of_several_labels_balance_each(labels, share):
    """(1 - f) / f: the rows that have a label weigh together what those without it weigh (PyTorch's `pos_weight`)."""
    rows = 100
    marks = np.zeros((rows, labels), int)
    for k in range(labels):
        marks[(np.arange(round(rows * share)) + 7 * k) % rows, k] = 1
    items, _ = as_items([("x", list(map(int, m))) for m in marks])

    class Encoder:
        slots = 16

    task = Classify.from_items(Encoder(), items, TaskSettings(class_weights="balanced"))
    torch.testing.assert_close(task.weights, torch.full((labels,), (1 - share) / share))


@pytest.mark.parametrize(
    ("task", "name", "value"),
    [("tag", "class_weights", "balanced"), ("classify", "scheme", "bilou"), ("classify", "pooling", "max")],
)
def test_a_setting_that_another_task_reads_is_refused(tmp_path, task, name, value):
    with pytest.raises(UserError, match=f"{name}=.*\n.* alone reads it, not {task}"):
        unmask.finetune(folder(tmp_path / "m"), ROWS, task=task, out=tmp_path / "c", **FAST, **{name: value})


def test_balanced_weights_of_numbers_are_refused(tmp_path):
    data = [(t, i + 0.5) for i, t in enumerate(TEXTS)]
    with pytest.raises(UserError, match=r"class_weights=.*of numbers, which have no classes"):
        unmask.finetune(
            folder(tmp_path / "m"), data, task="classify", out=tmp_path / "c", **FAST, class_weights="balanced"
        )


def test_names_in_lists_of_labels_are_told_apart(tmp_path, capsys):
    odd, model = ["a, b", "two\nlines", "it's"], folder(tmp_path / "m")
    rows = [{"text": text, "label": [odd[n % 3], odd[n % 2]]} for n, text in enumerate(TEXTS * 3)]
    unmask.finetune(model, rows, task="classify", out=tmp_path / "c", **FAST)
    listed = "'a, b', \"it's\""
    with pytest.raises(UserError, match=re.escape(f"Known: {listed}, 'two\\nlines'.")):
        evaluate(tmp_path / "c", [{"text": TEXTS[0], "label": ["other"]}])
    assert f"3 labels: {listed}, 'two\\nlines'." in (tmp_path / "c" / "README.md").read_text()
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, said, _ = run(capsys, "evaluate", tmp_path / "c", tmp_path / "d.jsonl")
    assert code == 0
    assert [line.split("  ")[0] for line in said.splitlines() if "lines'" in line] == ["'two\\nlines'"]
    with pytest.raises(UserError, match=re.escape("The labels are 'a, b', c.")):
        zero_shot(model, "the fox", ["a, b", "c"], verbalisers={"b": ["fox"]})
