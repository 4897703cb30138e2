"""A fine-tuned model reads the columns that it was trained on; which were read is said."""

from __future__ import annotations

import csv
import json

import pytest

from commands import run
from tiny_folders import folder
from unmask.modalities.text.tasks.finetune import evaluate, finetune, predict
from unmask.modalities.text.tasks.row_files import Columns

QUICK = {"start": "plain", "steps": 1, "precision": "fp32"}
ROWS = [
    {"id": i, "comment": f"seen by {i % 3}", "note_text": f"the fox number {i}", "rating": i % 5, "dose": i / 7}
    for i in range(12)
]


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    home = tmp_path_factory.mktemp("columns")
    data = write(home / "train.csv", ROWS)
    columns = Columns(text="note_text", label="dose")
    finetune(
        folder(home / "model"), data, task="classify", out=home / "m", columns=columns, problem="regression", **QUICK
    )
    return home / "m", data, home


def test_predict_and_evaluate_read_the_columns_of_training(trained):
    model, data, _ = trained
    assert json.loads((model / "unmask.json").read_text())["task"]["columns"] == {"text": "note_text", "label": "dose"}
    said: list[str] = []
    notes = predict(model, [r["note_text"] for r in ROWS])
    assert [p["value"] for p in predict(model, data, say=said.append)] == [p["value"] for p in notes]
    assert said == ["columns: text: 'note_text'"]
    asked = evaluate(model, data, columns=Columns(text="note_text", label="dose"), draws=2)
    assert evaluate(model, data, draws=2)["rmse"] == asked["rmse"]
    assert evaluate(model, data, columns=Columns(label="rating"), draws=2)["rmse"] != asked["rmse"]


def test_other_columns_are_read_with_a_warning(trained, capsys):
    model, _, home = trained
    other = write(home / "other.csv", [{k: v for k, v in r.items() if k != "note_text"} for r in ROWS])
    code, _, error = run(capsys, "predict", model, other, "--out", home / "o.jsonl")
    assert code == 0
    assert "warning: read other columns than the model was trained on: text 'comment' ('note_text'" in error
    code, _, error = run(capsys, "predict", model, other, "--text", "comment", "--out", home / "o.jsonl")
    assert (code, "warning" in error) == (0, False)
