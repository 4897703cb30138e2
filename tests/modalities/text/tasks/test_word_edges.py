"""Entities before an apostrophe, and words whose marks the tokenizer strips."""

import json
import re

import pytest

from text_corpus import tokenizer
from tiny_folders import folder
from unmask.modalities.text.tasks.conll import as_sentences
from unmask.modalities.text.tasks.encoding import ExampleMaker
from unmask.modalities.text.tasks.finetune import evaluate, finetune, predict
from unmask.modalities.text.tasks.tag import Tag, words_of, words_of_training


def words(text):
    encoder = ExampleMaker(tokenizer("wordpiece"), slots=64, types=True)
    item = as_sentences([{"text": text, "entities": []}], labelled=True)[0]
    return [text[a:b] for _, a, b in words_of(item, encoder.texts([text])[0])]


@pytest.mark.parametrize("mark", ["'", "\u2019"])
def test_a_word_ends_at_an_apostrophe(mark):
    assert words(f"the fox{mark}s den") == ["the", "fox", f"{mark}s", "den"]
    assert words(f"don{mark}t") == ["don", f"{mark}t"]


def test_a_word_has_its_combining_marks():
    assert words("Zoe\u0301 reads") == ["Zoe\u0301", "reads"]
    assert words("\u092e\u0947\u0902 fox")[0] == "\u092e\u0947\u0902"


def test_an_entity_before_an_apostrophe_is_learnt(tmp_path):
    names, rows = ["fox", "dog", "river", "reader"], []
    for i in range(40):
        name = names[i % 4]
        text = f"the {name}'s house" if i % 2 else f"a {name} \u2019s plan"
        rows.append(
            {"text": text, "entities": [{"start": text.index(name), "end": text.index(name) + len(name), "label": "X"}]}
        )
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    finetune(
        folder(tmp_path / "m"), str(path), task="tag", out=tmp_path / "t", epochs=6, precision="fp32", device="cpu"
    )
    assert evaluate(tmp_path / "t", str(path))["f1"] > 0.9
    assert predict(tmp_path / "t", ["the fox's house"])[0]["entities"][0]["text"] == "fox"


def test_entities_inside_a_word_are_listed():
    encoder = ExampleMaker(tokenizer("wordpiece"), slots=64, types=True)
    items = as_sentences([{"text": "the foxes run", "entities": [{"start": 4, "end": 7, "label": "X"}]}], labelled=True)
    said = Tag.remarks(encoder, items, labelled=True)
    assert "1 of 1 entities begin or end inside a word (row 1: 'fox' in" in said[0]


def conll(path, rows):
    path.write_text("\n\n".join("\n".join(" ".join(pair) for pair in row) for row in rows) + "\n", encoding="utf-8")
    return path


def test_raw_text_is_parted_as_the_words_of_training_are(tmp_path):
    """The tokenizer parts "Dr." and "8:30"; a sentence of such words says the same written as text."""
    rows = [
        [
            ("Dr.", "B-PER"),
            (name, "I-PER"),
            ("saw", "O"),
            ("it", "O"),
            ("at", "O"),
            (f"{i % 9}:30", "B-TIME"),
            (".", "O"),
        ]
        for i, name in enumerate(["fox", "dog", "river", "reader"] * 10)
    ]
    path, out, said = conll(tmp_path / "train.conll", rows), tmp_path / "t", []
    given = {"epochs": 6, "precision": "fp32", "device": "cpu", "say": said.append}
    finetune(folder(tmp_path / "m"), str(path), task="tag", out=out, **given)
    assert any(line.startswith("80 words of the data are parted by the tokenizer (Dr. and") for line in said)
    for text in ("Dr. fox saw it at 8:30 .", "Dr. fox saw it at 8:30."):
        assert [e["text"] for e in predict(out, [text])[0]["entities"]] == ["Dr. fox", "8:30"]
    assert "`task.words`" in (out / "README.md").read_text(encoding="utf-8")


def test_words_that_the_tokenizer_parts_nowhere_leave_raw_text_to_it(tmp_path):
    encoder = ExampleMaker(tokenizer("wordpiece"), slots=64, types=True)
    for words in (["the", "fox", "den", "."], ["\u4eca\u5929", "8:30"]):
        path = conll(tmp_path / "a.conll", [[(words[0], "B-X"), *((word, "O") for word in words[1:])]] * 2)
        assert words_of_training(encoder, as_sentences(path, labelled=True))[0] == ""


def test_signs_and_endings_are_parted_where_they_are_words_of_training(tmp_path):
    encoder = ExampleMaker(tokenizer("wordpiece"), slots=64, types=True)
    words = ["Dr.", "Ray", "'s", "(", "8:30", ")", ".", ","]
    path = conll(tmp_path / "a.conll", [[(word, "O") for word in words]] * 3)
    parting, cut = words_of_training(encoder, as_sentences(path, labelled=True))
    assert cut == ["Dr.", "'s", "8:30"] * 3
    text = "(Dr. Ray\u2019s 9:45-10:15), a.b... U.S."
    expected = ["(", "Dr.", "Ray", "\u2019s", "9:45-10:15", ")", ",", "a.b", ".", ".", ".", "U.S", "."]
    assert re.findall(parting, text) == expected
    assert re.findall(parting, "Is it $5, Ray?") == ["Is", "it", "$", "5", ",", "Ray", "?"]
    assert re.findall(parting, "." * 100_000) == ["."] * 100_000
