"""The first line of a csv of texts is a header or a row: known for certain, told, or refused."""

from __future__ import annotations

import json

import pytest

from commands import exit_code
from tiny_folders import folder, sentiment
from unmask.errors import UserError
from unmask.modalities.text.tasks.data import Problems, as_items, read_items
from unmask.modalities.text.tasks.row_files import Columns, read_rows

NOTES = ["a fine day", "a dull day", "a long night", "a short night", "no end"]


def write(path, header, rows):
    path.write_text(header + "".join(f"{row}\n" for row in rows))
    return path


def texts(path, columns=None, labelled=True):
    return [item.text for item in read_items(path, columns, labelled=labelled)[0]]


def test_an_unusual_header_is_no_row(tmp_path):
    path = write(tmp_path / "d.csv", "note,diagnosis\n", [f"{n},{'ab'[i % 2]}" for i, n in enumerate(NOTES)])
    items, columns = read_items(path)
    assert [item.text for item in items] == NOTES
    assert {item.label for item in items} == {"a", "b"}
    assert (columns.text, columns.label) == ("note", "diagnosis")


def test_columns_named_by_the_user_are_a_header(tmp_path):
    path = write(tmp_path / "d.csv", "befund,icd\n", [f"{n},{'ab'[i % 2]}" for i, n in enumerate(NOTES)])
    with pytest.raises(UserError, match=r"d\.csv:1: .*'befund', 'icd'[\s\S]*Columns\(text="):
        read_items(path)
    items, _ = read_items(path, Columns(text="befund", label="icd"))
    assert next((i.text, i.label) for i in items) == ("a fine day", "a")
    assert len(items) == 5
    items, _ = read_items(path, Columns(header=True, text="befund"), labelled=False)
    assert len(items) == 5
    with pytest.raises(UserError, match="no column 'befnd'"):
        read_items(path, Columns(text="befnd", header=True))


def test_an_identifier_is_never_the_text(tmp_path):
    path = write(tmp_path / "d.csv", "report_id,note,diagnosis\n", [f"R{i},{n},a" for i, n in enumerate(NOTES)])
    assert texts(path) == NOTES
    path = write(tmp_path / "d.csv", "report_id,befund,label\n", [f"R{i},{n},a" for i, n in enumerate(NOTES)])
    with pytest.raises(UserError, match="no column of texts among report_id, befund, label"):
        read_items(path)


@pytest.mark.parametrize(
    ("name", "rows", "expected"),
    [
        ("d.tsv", ["a plane takes off\ta jet takes off\t5.0", "one\ttwo\t3.8"], ("text", "text2", "label")),  # STS-B
        ("d.tsv", ["they left\t1", "he left\t0", "she left\t1"], ("text", None, "label")),
        ("d.tsv", ["gj04\t1\t\tThey left.", "gj04\t0\t*\tHe leave."], ("text", None, "label")),  # CoLA
        ("d.csv", ["fine day,good", "dull day,bad", "what a day,good"], ("text", None, "label")),
        ("d.csv", ["question,1", "the answer,0"], ("text", None, "label")),
    ],
)
def test_a_first_line_that_must_be_a_row_is_read_as_one_and_said(tmp_path, name, rows, expected):
    path = write(tmp_path / name, "", rows)
    items, read_from = as_items(path)
    assert len(items) == len(rows)
    columns = read_items(path)[1]
    assert columns == read_from
    assert "no header" in columns.line()
    assert (columns.text, columns.text2, columns.label) == expected


@pytest.mark.parametrize(
    "rows",
    [
        ["the fox", "runs"],  # one column of texts
        ["fine,good", "dull,bad"],  # no cell comes back
        ["0,1", "fine day,1", "dull day,0"],  # how pandas writes columns without names
        ["text,label", "some words,label", "others,b"],  # a name that is a value too
    ],
)
def test_where_it_cannot_be_known_it_must_be_told(tmp_path, rows):
    path = write(tmp_path / "d.csv", "", rows)
    with pytest.raises(UserError, match=r"d\.csv:1: [\s\S]*header=False"):
        read_items(path, labelled=False)
    assert len(read_items(path, Columns(header=False), labelled=False)[0]) == len(rows)


def test_empty_rows_are_kept_where_texts_are_predicted_and_those_at_the_end_are_not_labelled(tmp_path):
    path = write(tmp_path / "d.csv", "text,label\n", ["a,x", ",", "b,y", ",", ","])
    assert texts(path, labelled=False) == ["a", "", "b", "", ""]
    with pytest.raises(UserError, match=r"d\.csv:3: column 'text' is empty"):
        read_items(path)
    path = write(tmp_path / "d.csv", "text,label\n", ["a,x", "b,y", ",", ","])
    said: list[str] = []
    assert len(read_items(path, problems=Problems(say=said.append))[0]) == 2
    assert said == [f"{path}: 2 rows at the end hold nothing and are left out"]
    assert len(read_rows(path)) == 2


def test_as_many_predictions_as_rows(tmp_path, capsys):
    model = folder(tmp_path / "model")
    path = write(tmp_path / "d.csv", "befund,icd\n", [f'"{t}",{y}' for t, y in sentiment(24)])
    quick = ["--steps", 1, "--set", "precision=fp32"]
    named = ["--text", "befund", "--label", "icd"]
    assert exit_code("finetune", "classify", model, path, "--out", tmp_path / "m", *named, *quick) == 0
    said = capsys.readouterr().err
    assert "text: 'befund', label: 'icd'" in said
    assert exit_code("predict", tmp_path / "m", path, "--out", tmp_path / "p.jsonl", "--text", "befund") == 0
    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == 24
    assert exit_code("evaluate", tmp_path / "m", path, *named, "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == 24
    bare = write(tmp_path / "bare.csv", "", ["the fox", "runs"])
    assert exit_code("predict", tmp_path / "m", bare, "--out", tmp_path / "q.jsonl") == 2
    assert "--no-header" in capsys.readouterr().err
    assert not (tmp_path / "q.jsonl").exists()
    assert exit_code("predict", tmp_path / "m", bare, "--out", tmp_path / "q.jsonl", "--no-header") == 0
    assert len((tmp_path / "q.jsonl").read_text().splitlines()) == 2
