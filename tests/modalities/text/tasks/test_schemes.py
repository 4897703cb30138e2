"""Taggers of transformers name their labels in many ways: read as what they mean, or refused."""

from __future__ import annotations

import json

import pytest
import torch

from text_corpus import tokenizer
from unmask.errors import UserError
from unmask.modalities.text.tasks.finetune import evaluate, predict
from unmask.modalities.text.tasks.tag import as_tags


@pytest.mark.parametrize(
    ("labels", "tags"),
    [
        ("O PER LOC", "O I-PER I-LOC"),
        ("PER O LABEL", "I-PER O I-LABEL"),
        ("O B-PER I-PER", "O B-PER I-PER"),
        ("B_PER M_PER E_PER S_PER O", "B-PER I-PER E-PER S-PER O"),
        ("O M-PER B-PER", "O I-PER B-PER"),
        ("O PER-B PER-I", "O B-PER I-PER"),
        ("O B I", "O B-_ I-_"),
        ("O B-cell T_cell-x", None),
        ("O B-PER X", None),
        ("O B I-PER", None),
        ("LABEL_0 LABEL_1", None),
        ("O LABEL_1", None),
        ("NOUN VERB", None),
    ],
)
def test_labels_are_read_or_refused(labels: str, tags: str | None) -> None:
    if tags is None:
        with pytest.raises(UserError, match="labels"):
            as_tags(labels.split(), "model")
    else:
        assert as_tags(labels.split(), "model") == tags.split()


def test_a_tagger_without_marks_predicts_what_transformers_says(tmp_path) -> None:
    transformers = pytest.importorskip("transformers")

    from published import CASES, SMALL

    torch.manual_seed(0)
    names = {"id2label": {0: "PER", 1: "O", 2: "LOC"}, "label2id": {"PER": 0, "O": 1, "LOC": 2}}
    config = transformers.BertConfig(**SMALL, **CASES["bert"][1], **names)
    model = transformers.BertForTokenClassification(config).eval()
    with torch.no_grad():
        model.classifier.weight.mul_(50)
    model.save_pretrained(tmp_path)
    tokenizer("wordpiece").save(tmp_path, types=True)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]
    read = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokens = read(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        said = model(**tokens).logits[0].argmax(-1).tolist()
    first = [tokens.word_ids().index(w) for w in range(len(words))]
    theirs = [config.id2label[said[t]] for t in first]
    assert set(theirs) >= {"O", "PER"} or set(theirs) >= {"O", "LOC"}
    (row,) = predict(tmp_path, [{"tokens": words}], precision="fp32")
    ours = ["O"] * len(words)
    places = [(len(" ".join(words[:i])) + (i > 0), word) for i, word in enumerate(words)]
    for e in row["entities"]:
        for i, (start, _) in enumerate(places):
            if e["start"] <= start < e["end"]:
                ours[i] = e["label"]
    assert ours == theirs
    rows = [{"tokens": words, "tags": ["O" if t == "O" else f"I-{t}" for t in theirs]}]
    assert evaluate(tmp_path, rows, precision="fp32", draws=0)["value"] == 1.0
    config_file = tmp_path / "config.json"
    config_file.write_text(
        json.dumps(json.loads(config_file.read_text()) | {"id2label": {"0": "A", "1": "B-X", "2": "C"}})
    )
    with pytest.raises(UserError, match="do not say what is an entity"):
        predict(tmp_path, [{"tokens": words}])
