"""Rows that are wrong are all named and refused, or left out and said; predictions carry their inputs; figures of
classes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from commands import run
from tiny_folders import folder, sentiment
from unmask.errors import UserError
from unmask.modalities.text.tasks.answer import as_questions
from unmask.modalities.text.tasks.conll import as_sentences
from unmask.modalities.text.tasks.data import Problems
from unmask.modalities.text.tasks.finetune import evaluate, finetune, predict

PLAIN = {"start": "plain", "steps": 1, "precision": "fp32"}
CONLL = "Readers\tO\n\u00a0\tO\nriver\tB-PLACE\n\nrows\tO\nbank\tX\n\n" + "fox\tO\nriver\tB-PLACE\n\n" * 8


def squad(path, wrong: int):
    asked = []
    for i in range(10):
        context = f"It is near the river {i}."
        start = context.index("river") + (i < wrong)
        asked.append(
            {
                "context": context,
                "qas": [{"id": f"q{i}", "question": "Where?", "answers": [{"text": "river", "answer_start": start}]}],
            }
        )
    path.write_text(json.dumps({"data": [{"paragraphs": asked}]}))
    return path


def test_bad_conll_lines_are_all_named_or_left_out(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(CONLL)
    with pytest.raises(
        UserError, match=r"2 lines are wrong: .*a\.conll:2: the word is white space.*a\.conll:6: tag 'X'"
    ):
        as_sentences(path, labelled=True)
    said: list[str] = []
    found = as_sentences(path, labelled=True, problems=Problems(lenient=True, say=said.append))
    assert [s.text for s in found[:2]] == ["Readers river", "fox river"]
    assert len(found) == 9
    assert said[0].endswith("words in column 1, tags in column 2 of 2")
    assert said[1].startswith("2 lines left out")


def test_wrong_offsets_are_all_named_or_left_out(tmp_path):
    path = squad(tmp_path / "a.json", 3)
    with pytest.raises(UserError, match=r"3 questions are wrong: .*'q0'.*'q1'.*'q2'"):
        as_questions(path, labelled=True)
    said: list[str] = []
    assert len(as_questions(path, labelled=True, problems=Problems(lenient=True, say=said.append))) == 7
    assert "3 questions left out" in said[0]


def test_evaluate_reads_what_finetune_reads(tmp_path, capsys):
    model, tagged, asked = folder(tmp_path / "model"), tmp_path / "a.conll", squad(tmp_path / "a.json", 0)
    tagged.write_text("fox O\nriver B-PLACE\n\n" * 8)
    for task, path in (("tag", tagged), ("answer", asked)):
        finetune(model, path, task=task, out=tmp_path / task, **PLAIN)
        code, out, _ = run(capsys, "evaluate", tmp_path / task, path, "--precision", "fp32", "--json")
        assert code == 0
        found = json.loads(out)
        assert (found["task"], found["precision"]) == (task, "fp32")
        assert found["metrics"]["f1"] == found["value"]
    code, out, _ = run(capsys, "evaluate", tmp_path / "tag", tagged, "--precision", "fp32")
    figures = dict(line.split()[:2] for line in out.splitlines() if line.startswith(("precision", "recall")))
    assert set(figures) == {"precision", "recall"}  # of entities: --json has the number format under precision


def test_lenient_on_the_command_line(tmp_path, capsys):
    model, path = folder(tmp_path / "model"), tmp_path / "a.conll"
    path.write_text(CONLL)
    given = ["finetune", "tag", model, path, "--out", tmp_path / "out", "--steps", "1", "--set", "start=plain"]
    assert run(capsys, *given)[0] == 2
    assert not (tmp_path / "out").exists()
    code, _, said = run(capsys, *given, "--lenient", "--precision", "fp32")
    assert code == 0
    assert "2 lines left out" in said


def test_predictions_carry_their_rows(tmp_path):
    finetune(folder(tmp_path / "model"), sentiment(12), task="classify", out=tmp_path / "out", **PLAIN)
    path = tmp_path / "in.csv"
    path.write_text("ID,ward,text,label\n7,A,the fox,good\n8,B,the bank,bad\n")
    rows = predict(tmp_path / "out", path)
    assert [r["id"] for r in rows] == ["7", "8"]
    assert rows[0]["input"] == {"ID": "7", "ward": "A", "text": "the fox", "label": "good"}
    assert {"label", "probability"} <= set(rows[0])
    assert "input" not in predict(tmp_path / "out", ["the fox"])[0]


def test_classes_have_areas_sensitivity_and_specificity(tmp_path):
    data = [(f"{text} {n}", label) for n, (text, label) in enumerate(sentiment(24))]
    finetune(folder(tmp_path / "model"), data, task="classify", out=tmp_path / "out", **PLAIN)
    found = evaluate(tmp_path / "out", data, draws=5)
    said = np.array([p["label"] for p in predict(tmp_path / "out", [t for t, _ in data])])
    truth = np.array([label for _, label in data])
    assert found["positive"] == "good"
    assert found["sensitivity"]["value"] == pytest.approx((said[truth == "good"] == "good").mean())
    assert found["specificity"]["value"] == pytest.approx((said[truth == "bad"] == "bad").mean())
    for name in ("auroc", "auprc", "sensitivity", "specificity"):
        low, high = found[name]["interval"]
        assert low <= found[name]["value"] <= high
    assert found["figures"]["most_frequent_accuracy"] == 0.5


def test_rows_with_labels_that_the_model_lacks_are_all_named_or_left_out(tmp_path):
    rows = [(f"{t} {i}", "ab"[i % 2]) for i, t in enumerate(["the quick fox", "the lazy dog"] * 8)]
    finetune(folder(tmp_path / "model"), rows, task="classify", out=tmp_path / "m", start="plain", epochs=1)
    odd = [*rows[:6], ("a brown fox", "c"), ("a brown dog", "d")]
    with pytest.raises(UserError, match=r"2 rows are wrong: row 7: label 'c' is not among .*row 8: label 'd'"):
        evaluate(tmp_path / "m", odd, draws=2)
    said = []
    found = evaluate(tmp_path / "m", odd, draws=2, lenient=True, say=said.append)
    assert found["rows"] == 6
    assert any("2 rows left out: row 7: label 'c'" in line for line in said)
