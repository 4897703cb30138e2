"""Entities before an apostrophe, and words whose marks the tokenizer strips."""

import json

import pytest

from text_corpus import tokenizer
from tiny_folders import folder
from unmask.modalities.text.tasks.conll import as_sentences
from unmask.modalities.text.tasks.encoding import ExampleMaker
from unmask.modalities.text.tasks.finetune import evaluate, finetune, predict
from unmask.modalities.text.tasks.tag import Tag, words_of


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
    finetune("tag", folder(tmp_path / "m"), str(path), out=tmp_path / "t", epochs=6, precision="fp32", device="cpu")
    assert evaluate(tmp_path / "t", str(path))["f1"] > 0.9
    assert predict(tmp_path / "t", ["the fox's house"])[0]["entities"][0]["text"] == "fox"


def test_entities_inside_a_word_are_listed():
    encoder = ExampleMaker(tokenizer("wordpiece"), slots=64, types=True)
    items = as_sentences([{"text": "the foxes run", "entities": [{"start": 4, "end": 7, "label": "X"}]}], labelled=True)
    said = Tag.remarks(encoder, items, labelled=True)
    assert "1 of 1 entities begin or end inside a word (row 1: 'fox' in" in said[0]
