"""Files as people have them: each is read right, or refused in one line that says what to do."""

from __future__ import annotations

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from commands import run
from tiny_folders import folder
from unmask.errors import UserError
from unmask.modalities.text.tasks.answer import as_questions
from unmask.modalities.text.tasks.conll import as_sentences
from unmask.modalities.text.tasks.data import Problems, as_items, read_items
from unmask.modalities.text.tasks.finetune import finetune
from unmask.modalities.text.tasks.row_files import Columns
from unmask.modalities.text.tasks.similarity import as_pairs

QUICK = {"start": "plain", "steps": 1, "precision": "fp32"}


@pytest.mark.parametrize(
    ("name", "text", "marks"),
    [
        ("d.csv", "\ufefftext;label\r\nthe fox, red;a\r\nthe dog;b\r\n", "semicolons"),
        ("d.csv", "text\tlabel\nthe fox\ta\nthe dog\tb\n", "tabs"),
        ("d.tsv", "text,label\nthe fox,a\nthe dog,b\n", "commas"),
    ],
)
def test_another_separator_is_named(tmp_path, name, text, marks):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=f":1: {marks} between the cells"):
        read_items(path)
    with pytest.raises(UserError, match=f":1: {marks} between the cells"):
        read_items(path, Columns(header=True), labelled=False)


@pytest.mark.parametrize("name", ["d.csv.gz", "D.CSV.GZ"])
def test_compressed_files_are_read_whatever_the_case_of_their_names(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b"text,label\nthe fox,a\nthe dog,b\n"))
    assert [item.label for item in read_items(tmp_path / name)[0]] == ["a", "b"]


def test_a_name_with_a_semicolon_is_a_name(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("text,label;old,label\nthe fox,x,a\nthe dog,y,b\n")
    assert [item.label for item in read_items(path)[0]] == ["a", "b"]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ({"a": 1}, "is an object"),
        ("['fault', 'fire']", "is a list written as text"),
        ('["fault"]', "is a list written as text"),
        ("[]", "is a list written as text"),
    ],
)
def test_labels_that_are_no_names(tmp_path, label, message):
    path = tmp_path / "d.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"the fox {i}", "label": x}) + "\n" for i, x in enumerate(["[a", label]))
    )
    with pytest.raises(UserError, match=rf"d\.jsonl:2: column 'label' {message}"):
        read_items(path)


def test_a_key_given_twice(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "x", "label": "y"}\n')
    with pytest.raises(UserError, match=r"d\.jsonl:2: 'label' is there twice"):
        read_items(path)


@pytest.mark.parametrize("numbers", [("0,5", "1,25", "2"), ("10,050.0", "64.5", "1,000,000")])
def test_numbers_with_commas_are_no_classes(tmp_path, numbers):
    rows = list(zip(["the fox", "the dog", "the ox"], numbers, strict=True)) * 3
    model = folder(tmp_path / "model")
    with pytest.raises(UserError, match=f"row 1: label '{numbers[0]}': a number with a comma"):
        finetune(model, rows, task="classify", **QUICK)
    assert finetune(model, rows, task="classify", problem="single", **QUICK)["metric"] == "accuracy"


def test_labels_that_differ_in_case_or_spelling_are_said(tmp_path):
    said: list[str] = []
    rows = [("the fox", "Good"), ("the dog", "bad"), ("the ox", "good"), ("a fox", "1.0"), ("an ox", "1")] * 3
    finetune(folder(tmp_path / "model"), rows, task="classify", say=said.append, **QUICK)
    (line,) = [line for line in said if "differ" in line]
    assert line == (
        "warning: labels that differ in case or spelling alone count as classes apart: '1' and '1.0'; 'Good' and 'good'"
    )


def test_decimals_that_are_one_number_are_sections_or_amounts(tmp_path):
    """1.1 and 1.10 were said to be classes apart, and learnt as one amount."""
    model, said = folder(tmp_path / "model"), list[str]()
    rows = [("the fox", "1.1"), ("the dog", "1.10"), ("the ox", "2.3"), ("a fox", "1.1")] * 2
    with pytest.raises(UserError, match=r"row 1: label '1.1', and row 2: '1.10': two classes, or one number\?"):
        finetune(model, rows, task="classify", **QUICK)
    assert finetune(model, rows, task="classify", problem="single", **QUICK)["metric"] == "accuracy"
    assert finetune(model, rows, task="classify", problem="regression", say=said.append, **QUICK)["metric"] == "pearson"
    assert not any("differ" in line for line in said)
    assert finetune(model, rows[:3], task="classify", **QUICK)["metric"] == "pearson"  # too many for classes


def test_a_pair_with_one_text_is_not_learnt(tmp_path):
    rows = [{"text": "a fox", "text2": second, "score": 1} for second in ("the fox", " ")]
    with pytest.raises(UserError, match="row 2: column 'text2' is empty"):
        as_pairs(rows, None, labelled=True)
    assert len(as_pairs(rows, None, labelled=False)[0]) == 2


def test_a_list_in_json_is_a_file_of_rows(tmp_path):
    path = tmp_path / "d.json"
    path.write_text(json.dumps([{"question": "who", "context": "the fox", "answers": []}]))
    assert as_questions(path, labelled=True)[0].question == "who"
    path.write_text(json.dumps([{"text": "a fox", "label": "x", "entities": [[2, 5, "A"]]}]))
    assert as_items(path)[0][0].label == "x"
    assert as_sentences(path, labelled=True)[0].spans == ((2, 5, "A"),)


@pytest.mark.parametrize(
    ("text", "what"),
    [('{"text": "a"}', "dict, not a list"), ('[{"text": "a"}, 3]', "row 2 is a int"), ("[", "not JSON"),
     ('[{"text": "a", "text": "b"}]', "twice")],
)  # fmt: skip
def test_json_that_is_no_list_of_rows(text, what, tmp_path):
    (tmp_path / "d.json").write_text(text)
    with pytest.raises(UserError, match=what):
        as_items(tmp_path / "d.json")


def test_nothing_to_tag(tmp_path):
    path = tmp_path / "d.txt"
    path.write_text("")
    with pytest.raises(UserError, match=r"d\.txt: no sentences"):
        as_sentences(path, labelled=False)


def test_predict_offers_no_option_that_it_has_not(tmp_path, capsys):
    model = folder(tmp_path / "model")
    finetune(model, [("the fox", "a"), ("the dog", "b")] * 3, task="classify", out=tmp_path / "m", **QUICK)
    path = tmp_path / "d.jsonl"
    for rows in ([{"text": 7}], [{"text": 7}, {"text": None}]):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        code, _, err = run(capsys, "predict", tmp_path / "m", path, "--out", tmp_path / "p.jsonl")
        assert code == 2
        assert "lenient" not in err
        code, _, err = run(capsys, "evaluate", tmp_path / "m", path)
        assert code == 2


@pytest.mark.parametrize("lenient", [False, True])
def test_tags_without_a_type_say_how_to_rename_them(tmp_path, lenient):
    path = tmp_path / "bare.conll"
    path.write_text("with\tO\ncolon\tB\ncancer\tI\n.\tO\n\n" * 20)
    with pytest.raises(UserError, match=r"bare.conll:2: tag 'B' names no type") as told:
        as_sentences(path, labelled=True, problems=Problems(lenient=lenient))
    assert "B-Disease" in told.value.hint


def test_numbers_of_classes_in_a_parquet_of_the_hub_get_their_names(tmp_path):
    def kept(rows, features):
        about = {"huggingface": json.dumps({"info": {"features": features}})}
        pq.write_table(pa.table(rows).replace_schema_metadata(about), tmp_path / "d.parquet")
        return tmp_path / "d.parquet"

    names = {"names": ["neg", "pos"], "_type": "ClassLabel"}
    path = kept({"text": ["bad film", "good film", "?"], "label": [0, 1, -1]}, {"label": names})
    assert [item.label for item in read_items(path)[0]] == ["neg", "pos", -1]
    tags = {"feature": {"names": ["O", "B-PER", "I-PER"], "_type": "ClassLabel"}, "_type": "Sequence"}
    path = kept({"tokens": [["Peter", "Blackburn", "came"]], "ner_tags": [[1, 2, 0]]}, {"ner_tags": tags})
    assert as_sentences(path, labelled=True)[0].spans == ((0, 15, "PER"),)


def test_what_an_annotator_rejected_is_not_learnt(tmp_path):
    """Prodigy's exports hold all rows, and `answer` says which were accepted; so of lists in Python."""
    given = [("the fox", "reject"), ("the dog", "accept"), ("the owl", "ignore"), ("the cat", "accept")]
    rows = [{"text": t, "label": "a", "spans": [{"start": 4, "end": 7, "label": "X"}], "answer": a} for t, a in given]
    (path := tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    lines: list[str] = []
    for data in (path, rows):
        noted = Problems(say=lines.append)
        assert [item.text for item in as_items(data, problems=noted)[0]] == ["the dog", "the cat"]
        assert [item.text for item in as_sentences(data, labelled=True, problems=noted)] == ["the dog", "the cat"]
        assert len(as_items(data, labelled=False)[0]) == len(as_sentences(data, labelled=False)) == 4
    left_out = "2 rows that are not accepted are left out (column 'answer', accept: 2; ignore: 1; reject: 1)"
    assert lines == [left_out] * 4
    assert len(as_items(path, Columns(label="answer"))[0]) == len(as_items([*rows, rows[0] | {"answer": "no"}])[0]) - 1
    for read in (as_items, lambda data: as_sentences(data, labelled=True)):
        with pytest.raises(UserError, match="reject: 1: no row is accepted"):
            read(rows[:1])
