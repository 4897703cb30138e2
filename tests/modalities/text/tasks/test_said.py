"""Small things that were passed over in silence: said, kept or refused."""

from __future__ import annotations

import json
import re
import warnings

import numpy as np
import pytest

from commands import run
from tiny_folders import folder
from unmask.errors import UserError
from unmask.evaluation.classes import class_counts
from unmask.modalities.text.tasks.answer import as_questions
from unmask.modalities.text.tasks.data import as_items, read_items
from unmask.modalities.text.tasks.finetune import evaluate, finetune, predict
from unmask.modalities.text.uses.model import load

QUICK = {"start": "plain", "steps": 1, "precision": "fp32"}


def test_texts_that_are_cut_are_counted(tmp_path):
    model, said = folder(tmp_path / "model"), []
    rows = [("the fox", "a"), ("the fox " * 40, "b"), ("the quick fox", "b")]
    finetune(model, rows, task="classify", out=tmp_path / "m", say=said.append, **QUICK)
    line = "warning: 1 of 3 texts are longer than 64 tokens: their ends are not read"
    assert line in said
    said.clear()
    predict(tmp_path / "m", [text for text, _ in rows], say=said.append)
    assert line in said
    with pytest.warns(UserWarning, match="1 of 3 texts are longer than 64 tokens"):
        predict(tmp_path / "m", [text for text, _ in rows])
    pairs = [("the fox " * 20, "the dog " * 20), ("the fox", "the dog " * 20)]
    said.clear()
    finetune(
        model,
        [(*p, s) for p, s in zip(pairs, (0, 1), strict=True)],
        task="similarity",
        out=tmp_path / "s",
        say=said.append,
        **QUICK,
    )
    assert not [entry for entry in said if "longer" in entry]  # each of 40 tokens, by itself


def test_texts_that_are_cut_are_counted_where_they_are_embedded(tmp_path, capsys):
    home, said = folder(tmp_path / "model"), []
    model = load(home, precision="fp32")
    texts = ["the fox", "the fox " * 31, "the fox " * 40, "the fox " * 200]  # the second fits: 62 words and 2 tokens
    line = "warning: 2 of 4 texts are longer than 64 tokens: their ends are not read"
    assert model.too_long(texts) == 2
    vectors = model.embed(texts, say=said.append)
    assert said == [line]
    np.testing.assert_array_equal(vectors[2], vectors[3])
    (tmp_path / "t.txt").write_text("\n".join(texts))
    code, out, err = run(capsys, "embed", home, tmp_path / "t.txt", "--out", tmp_path / "v.npy", "--json")
    assert code == 0
    assert line in err.splitlines()
    assert json.loads(out)["cut"] == 2
    code, out, err = run(capsys, "embed", home, texts[1], "--out", tmp_path / "v.npy", "--json")
    assert (json.loads(out)["cut"], "longer" in err) == (0, False)


def test_documents_that_are_cut_are_counted_where_they_are_searched(tmp_path, capsys):
    home, data = folder(tmp_path / "model"), tmp_path / "beir"
    (data / "qrels").mkdir(parents=True)
    (data / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": i, "text": "fox " * (1 + 99 * i)}) + "\n" for i in (0, 1))
    )
    (data / "queries.jsonl").write_text('{"_id": "q", "text": "fox"}\n')
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\t0\t1\n")
    code, _, err = run(capsys, "evaluate", home, data, "--precision", "fp32")
    assert code == 0
    assert "warning: 1 of 2 documents are longer than 64 tokens: their ends are not read" in err.splitlines()


def test_a_column_that_the_first_row_lacks_is_read(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b", "text2": "c"}\n')
    with pytest.raises(UserError, match=r"d\.jsonl:1: column 'text2' is empty"):
        read_items(path, labelled=False)
    rows = [{"text": "a", "text2": "b"}, {"text": "b", "text2": "c", "label": 1}]
    assert [item.label for item in as_items(rows, labelled=False)[0]] == [None, 1]


def test_rows_without_a_text_have_null_predictions_in_their_place(tmp_path):
    model, said = folder(tmp_path / "model"), []
    path = tmp_path / "d.csv"
    path.write_text('text\nfox\n""\ndog\n" "\n""\n')
    finetune(model, [("fox", "a"), ("dog", "b")] * 3, task="classify", out=tmp_path / "c", **QUICK)
    rows = predict(tmp_path / "c", path, say=said.append)
    assert [row["input"]["text"] for row in rows] == ["fox", "", "dog", " ", ""]
    assert [row["label"] is None for row in rows] == [False, True, False, True, True]
    assert rows[1] == {"input": {"text": ""}, "label": None, "probability": None, "probabilities": None}
    assert "3 of 5 rows have no text: their predictions are null" in said
    finetune(model, [("fox", "dog", 1.0), ("dog", "ox", 0.0)], task="similarity", out=tmp_path / "s", **QUICK)
    pairs = [{"text": "fox", "text2": second} for second in ("", "ox")]
    assert [row["score"] is None for row in predict(tmp_path / "s", pairs)] == [True, False]


@pytest.mark.parametrize("spelled", ["NA", "N/A", "#N/A", "nan", "null", "<NA>"])
def test_missing_labels_spelled_out_are_said(tmp_path, spelled):
    model, said = folder(tmp_path / "model"), []
    rows = [("the fox", "a"), ("the dog", "b"), ("the ox", spelled)] * 3
    finetune(model, rows, task="classify", out=tmp_path / "m", say=said.append, **QUICK)
    (line,) = [line for line in said if "missing" in line]
    assert line == (
        f"warning: 3 of 9 labels are {spelled!r}, as missing values are written: they count as a class; "
        "leave those rows out if they are none"
    )
    said.clear()
    predict(tmp_path / "m", ["the fox", spelled, spelled], say=said.append)
    said = [line for line in said if "does not know" not in line]  # the tiny vocabulary has no '#'
    assert said == [f"warning: 2 of 3 texts are {spelled!r}, as missing values are written: they are read as words"]


@pytest.mark.parametrize("numbers", [("0.5", "1.25"), ("0", "1"), (1.0, 2)])
@pytest.mark.parametrize("spelled", ["NA", "nan", "null"])
def test_missing_labels_among_numbers_are_refused(tmp_path, numbers, spelled):
    model, (a, b) = folder(tmp_path / "model"), numbers
    rows = [("the fox", a), ("the dog", b), ("the ox", spelled)] * 3
    with pytest.raises(UserError, match=f"row 3: label '{spelled}' among numbers, and in 2 more rows"):
        finetune(model, rows, task="classify", **QUICK)
    assert finetune(model, rows, task="classify", problem="single", **QUICK)["metric"] == "accuracy"
    with pytest.raises(UserError, match="all 6 labels are how missing values are written"):
        finetune(model, [("the fox", spelled), ("the dog", "None")] * 3, task="classify", **QUICK)
    rows = [("the fox", a), ("the dog", b), ("the ox", "high")] * 3  # classes with odd names
    assert finetune(model, rows, task="classify", **QUICK)["metric"] == "accuracy"


def test_nan_in_a_carried_row_is_null(tmp_path):
    finetune(folder(tmp_path / "model"), [("fox", "a"), ("dog", "b")] * 3, task="classify", out=tmp_path / "m", **QUICK)
    (row,) = predict(tmp_path / "m", [{"text": "fox", "age": float("nan"), "dose": float("inf")}])
    assert row["input"] == {"text": "fox", "age": None, "dose": None}
    json.dumps(row, allow_nan=False)


@pytest.mark.parametrize(("said", "answers"), [("false", 1), (False, 1), (None, 1), ("True", 0), (1, 0)])
def test_an_answer_is_discarded_only_where_it_is_said(said, answers):
    row = {"question": "who", "context": "the fox", "answers": [{"text": "fox", "answer_start": 4}]}
    assert len(as_questions([{**row, "is_impossible": said}], labelled=True)[0].answers) == answers
    with pytest.raises(UserError, match="is_impossible"):
        as_questions([{**row, "is_impossible": "perhaps"}], labelled=True)


UNREAD = "1 of 3 texts are blank or hold no token that the model knows (text 3): predictions say nothing of them"


@pytest.mark.parametrize("task", ["classify", "tag", "answer"])
def test_texts_that_the_model_cannot_read_are_said(tmp_path, capsys, task):
    """A model answered "neg, .999999" for three emojis: the answer of nothing but [UNK]."""
    texts = ["the quick fox", "the dog", "😀😀😀"]
    rows = {
        "classify": [{"text": text, "label": name} for text, name in zip(texts, "abb", strict=True)],
        "tag": [{"text": text, "entities": [{"start": 0, "end": 3, "label": "PER"}]} for text in texts],
        "answer": [
            {"question": "the fox", "context": text, "answers": [{"text": text[:3], "answer_start": 0}]}
            for text in texts
        ],
    }[task]
    model, said = folder(tmp_path / "model"), []
    finetune(model, rows, task=task, out=tmp_path / "m", say=said.append, **QUICK)
    assert f"warning: {UNREAD}" in said
    with pytest.warns(UserWarning, match=r"1 of 3 texts are blank"):
        found = predict(tmp_path / "m", rows)
    assert len(found) == 3
    said.clear()
    evaluate(tmp_path / "m", rows, say=said.append, draws=2)
    assert f"warning: {UNREAD}" in said
    (tmp_path / "d.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    _, out, err = run(capsys, "predict", tmp_path / "m", tmp_path / "d.jsonl", "--out", tmp_path / "p.jsonl", "--json")
    assert f"warning: {UNREAD}" in err.splitlines()
    assert json.loads(out)


def test_questions_that_leave_no_room_are_refused(tmp_path, capsys):
    """All beyond three quarters of the room was cut off without a word."""
    context = "the quick fox jumps"
    rows = [
        {"question": question, "context": context, "answers": [{"text": "quick", "answer_start": 4}]}
        for question in ("what jumps", "fox " * 45, "fox " * 46)  # 64 slots, 3 of them special: 46 of 61 for a question
    ]
    model = folder(tmp_path / "model")
    finetune(model, rows, task="answer", out=tmp_path / "m", say=list, **QUICK)
    rows.append({**rows[0], "question": "fox " * 47})
    said = "questions longer than 46 tokens.*: row 4: 47 tokens"
    with pytest.raises(UserError, match=said):
        finetune(model, rows, task="answer", out=tmp_path / "n", **QUICK)
    with pytest.raises(UserError, match=said):
        finetune(model, rows[:3], task="answer", validation=rows, out=tmp_path / "n", **QUICK)
    for verb in (predict, evaluate):
        with pytest.raises(UserError, match=said):
            verb(tmp_path / "m", rows, say=list)
    (tmp_path / "d.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    code, _, err = run(capsys, "predict", tmp_path / "m", tmp_path / "d.jsonl", "--out", tmp_path / "p.jsonl")
    assert (code, (tmp_path / "p.jsonl").exists()) == (2, False)
    assert "d.jsonl:4: 47 tokens" in err.replace("\n", "")


def test_a_text_that_is_read_gives_no_warning(tmp_path):
    model = folder(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        finetune(model, [("the fox", "a"), ("the dog", "b")], task="classify", out=tmp_path / "m", **QUICK)
        predict(tmp_path / "m", ["the quick fox"])


def test_tag_types_in_two_spellings_are_said(tmp_path):
    model, said = folder(tmp_path / "model"), []
    rows = [
        {"text": "Ada lived", "entities": [{"start": 0, "end": 3, "label": kind}]} for kind in ("PER", "Per", "LOC")
    ]
    finetune(model, rows, task="tag", out=tmp_path / "m", say=said.append, **QUICK)
    assert "warning: labels that differ in case or spelling alone count as classes apart: 'PER' and 'Per'" in said


def _of(task, pairs):
    if task == "classify":
        return [{"text": text, "label": label} for text, label in pairs]
    if task == "similarity":
        return [{"text": text, "text2": "the ox", "score": float(label == "fox")} for text, label in pairs]
    if task == "tag":
        return [{"text": text, "entities": [{"start": 0, "end": 3, "label": label}]} for text, label in pairs]
    rows = [(text, {"text": label, "answer_start": text.lower().index(label)}) for text, label in pairs]
    return [{"question": "who", "context": text, "answers": [answer]} for text, answer in rows]


@pytest.mark.parametrize(
    ("task", "what"), [("classify", "labels"), ("similarity", "labels"), ("tag", "entities"), ("answer", "answers")]
)
def test_the_same_text_under_several_labels_is_said_once(tmp_path, task, what):
    pairs = [("the fox", "fox"), ("the dog", "the"), ("the  fox", "the"), ("the dog", "the"), ("the ox", "the")]
    model, said = folder(tmp_path / "model"), []
    finetune(model, _of(task, pairs), task=task, out=tmp_path / "m", say=said.append, **QUICK)
    labels = {"classify": (" ('fox')", " ('the')"), "similarity": (" (1.0)", " (0.0)")}.get(task, ("", ""))
    line = f"warning: 1 text is there with different {what}: row 1{labels[0]} and row 3{labels[1]}"
    assert [entry for entry in said if "different" in entry] == [line]
    said.clear()
    evaluate(tmp_path / "m", _of(task, pairs), say=said.append, draws=2)
    assert said.count(line) == 1


def test_texts_with_several_labels_at_once_differ_in_no_order(tmp_path):
    model, said = folder(tmp_path / "model"), []
    rows = [("the fox", ["a", "b"]), ("The fox", ["b", "a", "b"]), ("the dog", ["a"]), ("the dog", ["b"])]
    finetune(model, rows, task="classify", out=tmp_path / "m", say=said.append, **QUICK)
    (line,) = [entry for entry in said if "different" in entry]
    assert line == "warning: 1 text is there with different labels: row 3 ('a') and row 4 ('b')"


@pytest.mark.parametrize("joined", ["a|b", "b;a", "a, b"])
def test_labels_that_join_others_are_refused(tmp_path, joined):
    model = folder(tmp_path / "model")
    rows = [("the fox", "a"), ("the dog", "b"), ("the quick fox", joined)] * 2
    with pytest.raises(UserError, match=r"row 3: label .* holds several of the other labels"):
        finetune(model, rows, task="classify", **QUICK)
    assert finetune(model, rows, task="classify", problem="single", **QUICK)["metric"] == "accuracy"
    finetune(
        model, [("the fox", "a"), ("the dog", "b"), ("a fox", "c;d")], task="classify", **QUICK
    )  # a name of its own


@pytest.mark.parametrize("between", ["; ", "|"])
def test_labels_that_hold_the_same_part_may_be_several(tmp_path, between):
    model, said = folder(tmp_path / "model"), []
    labels = [f"balance{between}money", f"transfer{between}money", "alarm"]
    rows = [(f"the fox {n}", labels[n % 3]) for n in range(12)]
    finetune(model, rows, task="classify", say=said.append, **QUICK)
    assert [line for line in said if "stands in" in line] == [
        "warning: money stands in several classes, between ; or |: several labels per text are parted by |, with "
        "problem='multi'"
    ]
    said.clear()
    finetune(model, rows, task="classify", problem="single", say=said.append, **QUICK)
    finetune(model, [("the fox", "a; b"), ("the dog", "c; d")] * 4, task="classify", say=said.append, **QUICK)
    assert not any("stands in" in line for line in said)


def test_labels_with_bars_between_are_several(tmp_path):
    """Cells neg|asp, pos|asp|sep were a class per combination, with problem=multi too."""
    model, both = folder(tmp_path / "model"), ["neg|asp", "pos|asp", "pos|sep", "neg|sep", "|", "neg"]
    rows = [(f"the fox {w}", both[i % 6]) for i, w in enumerate(["lazy", "dog", "quick", "bank"] * 6)]
    with pytest.raises(UserError, match=r"holds several of the other labels[\s\S]*problem='multi'"):
        finetune(model, rows, task="classify", **QUICK)
    lists = [(text, [] if label == "|" else label.split("|")) for text, label in rows]
    given = {"problem": "multi", "validation": rows[:12], **QUICK}
    finetune(model, rows, task="classify", out=tmp_path / "m", **given)
    finetune(model, lists, task="classify", out=tmp_path / "l", **given | {"validation": lists[:12]})
    assert predict(tmp_path / "m", ["the fox"]) == predict(tmp_path / "l", ["the fox"])
    assert set(predict(tmp_path / "m", ["the fox"])[0]["probabilities"]) == {"neg", "pos", "asp", "sep"}
    assert evaluate(tmp_path / "m", rows, draws=2)["metrics"] == evaluate(tmp_path / "l", lists, draws=2)["metrics"]
    with pytest.raises(UserError, match=r"row 1: an empty label in 'neg\|'"):
        finetune(model, [("a", "neg|"), *rows], task="classify", **given)
    semicolons = [(text, label.replace("|", "; ")) for text, label in rows if label != "|"]
    with pytest.raises(UserError, match="holds several of the other labels"):
        finetune(model, semicolons, task="classify", **given)


def test_the_rule_of_several_labels_gives_one(tmp_path):
    """Where no label holds for half of the rows the rule gave none, and scored 0.000: always giving the top one .47."""
    rows = [(f"the fox {i}", ["ab", "a", "c", "d", "a", "b", "c", "d"][i % 8]) for i in range(40)]
    lists = [(text, list(names)) for text, names in rows]
    found = finetune(
        folder(tmp_path / "model"),
        lists,
        task="classify",
        validation=lists,
        out=tmp_path / "m",
        **QUICK | {"start": "probe"},
    )
    (rule,) = [row for row in found["comparison"] if row["model"] == "most frequent labels"]
    assert rule["value"] == pytest.approx(2 * 15 / (40 + 45))  # F1 of "a", in 15 of 40 rows of 45 labels


@pytest.mark.parametrize("task", ["classify", "tag", "answer"])
def test_a_column_split_says_what_rows_are_for(tmp_path, task):
    """Test rows of a file with a column `split` were trained on, without a word."""
    parts = ["train", "train", "dev", "Test"] * 12
    rows: list[dict[str, object]] = [{"split": part} for part in parts]
    for i, row in enumerate(rows):
        text = f"the {['quick', 'lazy'][i % 2]} fox {i}"
        extra = {"text": text, "label": f"class {i % 2 + 2 * (row['split'] == 'Test')}"}
        if task == "tag":
            extra = {"tokens": text.split(), "tags": ["O", "B-A" if row["split"] == "Test" else "B-B", "O", "O"]}
        if task == "answer":
            extra = {
                "id": f"q{i}",
                "question": "which fox?",
                "context": text,
                "answers": {"text": [text[4:8]], "answer_start": [4]},
            }
        row |= extra
    path, said = tmp_path / "rows.jsonl", []
    path.write_text("\n".join(json.dumps(row) for row in rows))
    given = {"epochs": 1, "precision": "fp32"}
    result = finetune(folder(tmp_path / "model"), path, task=task, out=tmp_path / "m", say=said.append, **given)
    assert "a column says what the rows are for: 24 train, 12 validation, 12 test; test rows are left out" in said
    assert (result["rows_trained_on"], result["rows_held_out"]) == (24, 0)
    if task != "answer":
        labels = json.loads((tmp_path / "m" / "config.json").read_text())["id2label"].values()
        assert not {"class 2", "class 3", "B-A"} & set(labels)
        return  # their test rows have labels that the model lacks
    said.clear()
    assert evaluate(tmp_path / "m", path, say=said.append, draws=2)["rows"] == 12
    assert "a column says what the rows are for: the 12 test rows of 48 are judged" in said


def test_numbers_that_the_training_mean_is_nearer_to_are_said(tmp_path):
    """On validation rows of another scale the correlation was .996 and the error half as large again as the mean's."""
    words = ["fox", "dog", "quick", "lazy"]
    rows = [(f"the {words[i % 4]} {words[i // 4 % 4]}", 0.5 + i % 4) for i in range(48)]
    given = {"epochs": 1, "precision": "fp32", "problem": "regression"}
    model = folder(tmp_path / "model")
    far = [(text, -100 * value) for text, value in rows[:24]]
    lines = finetune(model, rows, task="classify", validation=far, out=tmp_path / "far", **given)["lines"]
    (line,) = [line for line in lines if "rmse" in line]
    assert re.fullmatch(r"warning: its rmse is [\d.]+, that of the mean of the training rows [\d.]+: .*", line)
    lines = finetune(model, rows, task="classify", validation=rows[:24], out=tmp_path / "near", **given)["lines"]
    (line,) = [line for line in lines if "rmse" in line]
    assert re.fullmatch(r"its rmse is [\d.]+, that of the mean of the training rows [\d.]+", line)


def test_classes_are_listed_and_no_label_among_them_is_told(tmp_path):
    model, said = folder(tmp_path / "model"), []
    finetune(model, [(f"fox {i}", (i % 4) - 1) for i in range(12)], task="classify", say=said.append, **QUICK)
    assert "classes: -1 (3), 0 (3), 1 (3), 2 (3)" in said
    assert [line for line in said if line.startswith("warning: class -1 (3 times) counts as one")]
    said.clear()
    finetune(model, [(f"fox {i}", f"c{i % 12}") for i in range(36)], task="classify", say=said.append, **QUICK)
    (line,) = [line for line in said if line.startswith("classes: ")]
    assert line.endswith(" and 2 more")


@pytest.mark.parametrize("names", [["-1", "1"], ["-1", "0", "1"], ["-2", "-1", "0", "1"], ["-1", "a"], ["0", "1"]])
def test_minus_one_is_a_class_among_others_that_are_signed(names):
    assert len(class_counts(dict.fromkeys(names, 3))) == 1


@pytest.mark.parametrize("task", ["classify", "similarity"])
def test_codes_among_numbers_to_be_learnt_are_told(task, tmp_path):
    model, said = folder(tmp_path / "model"), []
    more = {"text2": "a dog"} if task == "similarity" else {}
    rows = [{"text": f"fox {i}", "label": 20.5 + i} | more for i in range(12)] + [{"text": "fox", "label": 999} | more]
    out, line = tmp_path / "m", "warning: labels 999 (1 time) stand apart from the others (20.5 to 31.5)"
    finetune(model, rows, task=task, out=out, say=said.append, **QUICK)
    evaluate(out, rows, say=said.append, draws=2)
    assert sum(entry.startswith(line) for entry in said) == 2
    said.clear()
    finetune(model, rows[:-1], task=task, say=said.append, **QUICK)
    assert not [entry for entry in said if "apart" in entry]


def test_questions_of_a_table_with_one_text_each_are_told_the_form(tmp_path):
    path = tmp_path / "q.csv"
    path.write_text("question,context,answer\n" + "who?,It is Ada.,Ada\n" * 20)
    with pytest.raises(UserError, match="20 questions are wrong") as found:
        as_questions(path, labelled=True)
    assert 'answers: [{"text": ..., "answer_start": ...}]' in found.value.hint
