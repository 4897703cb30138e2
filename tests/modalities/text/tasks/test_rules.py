"""`evaluate` sets what a rule without a model scores on the same rows beside every task's figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from commands import run
from tiny_folders import folder
from unmask.modalities.text.tasks.finetune import evaluate, finetune

QUICK = {"start": "plain", "steps": 1, "precision": "fp32"}
TEXTS = [
    f"{name} checks the sources. The {animal} jumps over it" for name in ("Ada", "Eva") for animal in ("fox", "dog")
]
TEXTS = [f"{text} {n}" for n in range(3) for text in TEXTS]
ROWS = {
    "tag": [{"text": text, "entities": [{"start": 0, "end": 3, "label": "PER"}]} for text in TEXTS],
    "answer": [
        {"question": "what jumps", "context": t, "answers": [{"text": "jumps", "answer_start": t.index("jumps")}]}
        for t in TEXTS
    ],
    "similarity": [
        {"text": text, "text2": other, "score": float(text[:3] == other[:3])} for text in TEXTS[:4] for other in TEXTS
    ],
    "classify": [{"text": text, "label": 0.5 + n % 5} for n, text in enumerate(TEXTS)],
}
NAMES = {
    "tag": "most frequent tag of each word",
    "answer": "sentence with the most words in common",
    "similarity": "cosine of TF-IDF vectors",
    "classify": "mean",
}


@pytest.fixture(scope="module", params=ROWS)
def tuned(request, tmp_path_factory):
    place, task = tmp_path_factory.mktemp("rules"), request.param
    finetune(folder(place / "model"), ROWS[task], task=task, out=place / "out", say=list, **QUICK)
    return task, place / "out"


def test_evaluate_tells_what_a_rule_scores(tuned, tmp_path, capsys):
    task, out = tuned
    found = evaluate(out, ROWS[task], draws=2, say=list)
    beside = found["figures"]["rule"]
    assert beside.pop("name") == NAMES[task]
    assert set(beside) == set(found["metrics"])
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, ROWS[task])))
    code, said, _ = run(capsys, "evaluate", out, tmp_path / "d.jsonl")
    assert code == 0
    (line,) = [line for line in said.splitlines() if line.startswith(found["metric"] + " ")]
    assert line.endswith(f"; {NAMES[task]}: {beside[found['metric']]:.4f}")
    code, said, _ = run(capsys, "evaluate", out, tmp_path / "d.jsonl", "--json")
    assert json.loads(said)["figures"]["rule"] == {"name": NAMES[task], **beside}


def test_rules_score_what_they_should(tuned):
    task, out = tuned
    beside = evaluate(out, ROWS[task], draws=2, say=list)["figures"]["rule"]
    if task == "classify":
        values = np.array([row["label"] for row in ROWS[task]])
        assert (beside["rmse"], beside["pearson"]) == (pytest.approx(values.std()), 0)
    elif task == "tag":
        assert beside["f1"] == 1  # names of other rows, in other rows' sentences
    elif task == "answer":
        assert (beside["exact"], 0 < beside["f1"] < 100) == (0, True)  # the right sentence, whole
    else:
        assert 0 < beside["spearman"] < 1


def test_a_word_is_tagged_by_other_rows_alone(tmp_path):
    rows = [
        {"text": name, "entities": [{"start": 0, "end": len(name), "label": "PER"}]} for name in ("fox", "dog", "Ada")
    ]
    finetune(folder(tmp_path / "model"), rows, task="tag", out=tmp_path / "out", say=list, **QUICK)
    assert evaluate(tmp_path / "out", rows, draws=2, say=list)["figures"]["rule"]["f1"] == 0


def test_no_answer_is_the_rule_where_it_is_right_more_often(tmp_path):
    rows = [row | {"answers": row["answers"] if n < 2 else []} for n, row in enumerate(ROWS["answer"])]
    finetune(folder(tmp_path / "model"), rows, task="answer", out=tmp_path / "out", say=list, **QUICK)
    beside = evaluate(tmp_path / "out", rows, draws=2, say=list)["figures"]["rule"]
    assert (beside["name"], beside["exact"]) == ("no answer", pytest.approx(100 * 10 / 12))


def test_fine_tuning_compares_with_no_answer_too(tmp_path):
    rows = [row | {"answers": row["answers"] if n < 6 else []} for n, row in enumerate(ROWS["answer"])]
    out, how = tmp_path / "out", QUICK | {"start": "probe", "learning_rate": 1e-9}
    found = finetune(folder(tmp_path / "model"), rows, task="answer", validation=rows[4:], out=out, say=list, **how)
    values = {row["model"]: row["value"] for row in found["comparison"]}
    assert values["no answer"] == 75
    (line,) = [line for line in found["lines"] if "always answering" in line]
    assert "than always answering no answer" in line
    given = finetune(folder(tmp_path / "n"), rows[:6], task="answer", validation=rows[:6], say=list, **how)
    assert "no answer" not in {row["model"] for row in given["comparison"]}
