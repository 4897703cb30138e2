"""Bad input is one sentence naming file, line, value and what to do."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from commands import exit_code
from tiny_folders import folder, sentiment
from unmask.cli.text.uses import read_lines
from unmask.errors import UserError
from unmask.modalities.text.tasks.answer import as_questions
from unmask.modalities.text.tasks.conll import as_sentences, read_conll
from unmask.modalities.text.tasks.data import as_items, read_items
from unmask.modalities.text.tasks.finetune import compare_domain_adaptation, evaluate, finetune, predict, seeds
from unmask.modalities.text.tasks.glue import TASKS as GLUE
from unmask.modalities.text.tasks.glue import read_glue, write_test
from unmask.writing import write_json_lines

QUICK = {"start": "plain", "steps": 1, "precision": "fp32"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("tiny") / "model")


def test_a_label_only_in_validation(model):
    with pytest.raises(UserError, match="label 'odd' is not among those of the training data"):
        finetune(model, sentiment(), task="classify", validation=[("x", "odd")], **QUICK)


def test_nothing_to_choose_by_is_said_before_training(model, tmp_path):
    with pytest.raises(UserError, match="several seeds without validation data"):
        seeds(model, sentiment(), task="classify", count=2, out=tmp_path / "m", **QUICK)
    with pytest.raises(UserError, match="adapting without validation data"):
        compare_domain_adaptation(model, sentiment(), ["some text"], task="classify", out=tmp_path / "m", **QUICK)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("odd", ["nan", "inf", float("nan"), float("-inf"), "high", None])
def test_a_score_that_is_no_number(model, tmp_path, odd):
    """NaN was trained on, and scored NaN."""
    rows = [{"text": "a fox", "text2": "the fox", "score": s} for s in (0.1, 0.9, 0.4)]
    wrong = [*rows, {**rows[0], "score": odd}]
    with pytest.raises(UserError, match=r"row 4: score .* is not a number"):
        finetune(model, wrong, task="similarity", **QUICK)
    with pytest.raises(UserError, match=r"row 4: (label .* is not a number|column 'score' is empty)"):
        finetune(
            model,
            [{"text": r["text"], "score": r["score"]} for r in wrong],
            task="classify",
            problem="regression",
            **QUICK,
        )
    out = tmp_path / "m"
    finetune(model, rows, task="similarity", out=out, **QUICK)
    with pytest.raises(UserError, match=r"row 4: score .* is not a number"):
        evaluate(out, wrong, draws=0)


def test_one_class_and_more_labels_than_rows(model):
    with pytest.raises(UserError, match="one label only"):
        finetune(model, [("a", "x"), ("b", "x")], task="classify", **QUICK)
    with pytest.raises(UserError, match="20 labels in 20"):
        finetune(model, [(f"text {i}", f"l{i}") for i in range(20)], task="classify", **QUICK)


def test_empty_text_names_line_and_column(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("text,label\nfine,1\n ,0\n")
    with pytest.raises(UserError, match=r"d\.csv:3: column 'text' is empty"):
        read_items(path)
    path.write_text("text,label\nfine,\n")
    with pytest.raises(UserError, match=r"d\.csv:2: column 'label' is empty"):
        read_items(path)
    path.write_text("text,label\na,b,c\n")
    with pytest.raises(UserError, match=r"d\.csv:2: 3 columns, expected 2"):
        read_items(path)


def test_conll_line_with_a_missing_column(tmp_path):
    path = tmp_path / "d.conll"
    path.write_text("a O\nb B-X\n\nc\nd O\n")
    with pytest.raises(UserError, match=r"d\.conll:4: 1 columns"):
        read_conll(path)
    path.write_text("a O\nb WRONG\n")
    with pytest.raises(UserError, match=r"d\.conll:2: tag 'WRONG'"):
        read_conll(path)


@pytest.mark.parametrize("tag", ["PER", 3])
def test_tags_of_rows_are_checked_as_those_of_columns(tag):
    rows = [{"tokens": ["a", "b"], "tags": ["O", "B-X"]}, {"tokens": ["a", "b", "c"], "tags": ["O", tag, "O"]}]
    with pytest.raises(UserError, match=rf"row 2: tag {tag!r}"):
        as_sentences(rows, labelled=True)
    assert as_sentences(rows, labelled=False)[1].text == "a b c"


def test_numbers_of_a_datasets_classes_become_their_names(monkeypatch):
    class Rows(list):
        @property
        def features(self):
            return {
                "text": SimpleNamespace(dtype="string"),
                "tokens": SimpleNamespace(feature=SimpleNamespace(dtype="string")),
                "ner_tags": SimpleNamespace(feature=SimpleNamespace(names=["O", "B-PER"])),
                "label": SimpleNamespace(names=["neg", "pos"]),
            }

    def load_dataset(name, split):
        if split == "dev":
            raise ValueError("Unknown split 'dev'")
        return Rows([{"text": "ab c", "tokens": ["ab", "c"], "ner_tags": [1, 0], "label": 1}])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert as_items("hf:some/set")[0][0].label == "pos"
    assert as_sentences("hf:some/set", labelled=True)[0].spans == ((0, 2, "PER"),)
    with pytest.raises(UserError, match=r"hf:some/set:dev: cannot be loaded .*Unknown split"):
        as_items("hf:some/set:dev")


def test_a_file_of_separators_has_no_rows(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(",\n,\n")
    with pytest.raises(UserError, match="no rows"):
        as_items(path)


def test_what_cannot_be_compared_is_refused_before_training(model, tmp_path):
    with pytest.raises(UserError, match=r"metric=acuracy\n.*'accuracy'"):
        finetune(model, sentiment(), task="classify", metric="acuracy", **QUICK)
    with pytest.raises(UserError, match="metric=f1"):
        finetune(model, ["a", "b"], task="similarity", metric="f1", **QUICK)
    with pytest.raises(UserError, match="several seeds without validation data"):
        seeds(model, sentiment(), task="classify", count=2, out=tmp_path / "out", **QUICK)
    with pytest.raises(UserError, match="adapting without validation data"):
        compare_domain_adaptation(model, sentiment(), "nowhere.txt", task="classify", out=tmp_path / "out", **QUICK)
    with pytest.raises(UserError, match="seed=-1"):
        finetune(model, sentiment(), task="classify", seed=-1, **QUICK)


def test_single_texts_to_a_model_of_pairs(model, tmp_path):
    finetune(model, [("a", "b", i % 2) for i in range(6)], task="classify", out=tmp_path / "m", **QUICK)
    with pytest.raises(UserError, match="fine-tuned on pairs and is given single texts"):
        predict(tmp_path / "m", ["a"])


def test_answer_not_at_its_offset(tmp_path):
    path = tmp_path / "d.json"
    qa = {"id": "q7", "question": "who?", "answers": [{"text": "Anna", "answer_start": 3}]}
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": "It is Anna.", "qas": [qa]}]}]}))
    with pytest.raises(UserError, match="'q7': answer 'Anna' is not at 3") as error:
        as_questions(path, labelled=True)
    assert "It is at 6" in error.value.hint


def test_a_context_longer_than_any_window_is_read_in_windows(model, tmp_path):
    data = [
        {"question": "where?", "context": "fox " * 400 + "river.", "answers": [{"text": "river", "answer_start": 1600}]}
    ]
    finetune(model, data, task="answer", out=tmp_path / "qa", **QUICK)
    row = predict(tmp_path / "qa", [{"question": "where? " * 10, "context": data[0]["context"]}])[0]
    assert row["nbest"]


def test_unbalanced_and_empty_texts_predict(model, tmp_path):
    data = [("the fox", "a")] * 19 + [("readers", "b")]
    result = finetune(
        model, data, task="classify", validation=data[:5], out=tmp_path / "m", class_weights="balanced", **QUICK
    )
    assert 0 <= result["value"] <= 1  # a fold of one class
    path = tmp_path / "in.txt"
    path.write_text("one\n\nthree\n")
    assert len(predict(tmp_path / "m", path)) == 3


def test_a_line_is_what_other_tools_count(tmp_path):
    """Unicode separators and form feeds stand inside a text: one output a line, in order, all the same."""
    path = tmp_path / "in.txt"
    path.write_text("one\u2028still one\x0c\x85\r\n\nthree\n", encoding="utf-8", newline="")
    assert [i.text for i in as_items(path, labelled=False)[0]] == ["one\u2028still one\x0c\x85", "", "three"]
    assert [s.text for s in as_sentences(path, labelled=False)] == ["one\u2028still one\x0c\x85", "", "three"]
    assert read_lines(str(path)) == ["one\u2028still one\x0c\x85", "", "three"]
    path.write_bytes(b"\xef\xbb\xbfone\rstill one\r\n\nthree")
    assert read_lines(str(path)) == ["one\rstill one", "", "three"]


def test_half_a_surrogate_pair_is_written(tmp_path):
    write_json_lines([{"text": "\ud800 ü"}, {"text": "ü"}], tmp_path / "p.jsonl")
    lines = (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["\ud800 ü", "ü"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": None}, "context of 'q' is None"),
        ({"answers": [{"text": "fox", "answer_start": "x"}]}, "answers of question 'q'"),
        ({"answers": [{"text": "fox"}]}, "answers of question 'q'"),
        ({"answers": "fox"}, "answers of question 'q'"),
    ],
)
def test_broken_questions(tmp_path, change, message):
    row = {"id": "q", "question": "who?", "context": "the fox", "answers": []} | change
    with pytest.raises(UserError, match=message):
        as_questions([row], labelled=True)
    context = row.pop("context")
    path = tmp_path / "d.json"
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": [row]}]}]}))
    with pytest.raises(UserError, match=message):
        as_questions(path, labelled=True)


def test_a_column_that_is_there_twice(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("text,text,label\na,b,1\n")
    with pytest.raises(UserError, match="'text' is there twice"):
        as_items(path)


def test_evaluate_names_a_label_the_model_does_not_know(model, tmp_path):
    finetune(model, sentiment(12), task="classify", out=tmp_path / "m", **QUICK)
    with pytest.raises(UserError, match="row 3: label 'neither'"):
        evaluate(tmp_path / "m", [*sentiment(2), ("the fox", "neither")])


def test_published_glue_files_hold_broken_lines(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t1\t2\ta\tb\t1\n2\tx\ty\n3\t1\t2\tc\td\t0\n")
    said: list[str] = []
    assert len(read_glue(path, GLUE["QQP"], labelled=True, say=said.append)) == 2
    assert "train.tsv:3" in said[0]
    with pytest.raises(UserError, match=r"train\.tsv:3: 3 columns"):
        read_glue(path, GLUE["QQP"], labelled=False)


def test_the_leaderboard_gets_names_where_files_hold_numbers(tmp_path):
    write_test(tmp_path / "RTE.tsv", [{"label": "1"}, {"label": "entailment"}, {"label": "0"}], GLUE["RTE"])
    assert (tmp_path / "RTE.tsv").read_text().split() == [
        "index",
        "prediction",
        "0",
        "not_entailment",
        "1",
        "entailment",
        "2",
        "entailment",
    ]


def test_entity_outside_its_text(model):
    rows = [{"text": "abc", "entities": [{"start": 1, "end": 9, "label": "X"}]}]
    with pytest.raises(UserError, match=r"row 1: entity 1\.\.9 in a text of 3"):
        finetune(model, rows, task="tag", **QUICK)


def test_command_line(model, tmp_path, capsys):
    train = tmp_path / "train.csv"
    train.write_text("text,label\n" + "".join(f'"{t}",{y}\n' for t, y in sentiment(24)))
    out, predicted = tmp_path / "out", tmp_path / "p.jsonl"
    args = ["--epochs", "1", "--set", "precision=fp32", "--json"]
    exit_code("finetune", "classify", str(model), str(train), "--validation", str(train), "--out", str(out), *args)
    found = json.loads(capsys.readouterr().out)
    assert {"seed", "seconds", "device", "precision", "value", "metric"} <= set(found)
    exit_code("predict", str(out), str(train), "--out", str(predicted))
    rows = [json.loads(line) for line in predicted.read_text().splitlines()]
    assert len(rows) == 24
    assert {"label", "probability"} <= set(rows[0])
    capsys.readouterr()
    exit_code("evaluate", str(out), str(train), "--json")
    assert "accuracy" in json.loads(capsys.readouterr().out)
    exit_code("zeroshot", str(model), "the fox", "--label", "rows", "--label", "readers", "--json")
    assert len(json.loads(capsys.readouterr().out)["results"]) == 1
    assert exit_code("finetune", "classify", str(model), str(train), "--out", "x", "--seeds", "2", "--resume") == 2
    assert "no --seeds" in capsys.readouterr().err
    assert exit_code("finetune", "sort", str(model), str(train), "--out", str(tmp_path / "x")) == 2
    assert "task 'sort'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
