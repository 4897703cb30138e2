"""Entities of jsonl are where they say they are: wrong offsets are refused, blanks cut off, what words cannot tell is
counted."""

from __future__ import annotations

import time

import numpy as np
import pytest

from text_corpus import tokenizer
from tiny_folders import folder
from unmask.errors import UserError
from unmask.modalities.text.tasks.conll import Sentence, as_sentences
from unmask.modalities.text.tasks.data import Problems
from unmask.modalities.text.tasks.encoding import ExampleMaker
from unmask.modalities.text.tasks.finetune import evaluate, finetune
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.modalities.text.tasks.tag import Tag

TEXT = "The quick fox runs in Paris now"
QUICK = {"start": "plain", "steps": 1, "precision": "fp32"}


def row(*entities: tuple, **extra) -> dict:
    return {"text": TEXT, "entities": [{"start": a, "end": b, "label": k, **extra} for a, b, k in entities]}


def test_an_entity_is_what_its_own_text_says():
    assert as_sentences([row((22, 27, "LOC"), text="Paris")], labelled=True)[0].spans == ((22, 27, "LOC"),)
    with pytest.raises(UserError, match=r"row 1: entity 24\.\.29 says 'Paris', there stands 'ris n'") as error:
        as_sentences([row((24, 29, "LOC"), text="Paris")], labelled=True)
    assert "It is at 22: offsets count characters" in str(error.value)
    with pytest.raises(UserError, match="is white space"):
        as_sentences([row((3, 4, "LOC"))], labelled=True)


def test_wrong_offsets_of_a_file_are_named_together_or_left_out(tmp_path):
    import json

    path = tmp_path / "d.jsonl"
    rows = [row((22, 27, "LOC"), text="Paris"), row((21, 26, "LOC"), text="Paris"), row((0, 3, "X"), text="Paris")]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    with pytest.raises(UserError, match=r"2 rows are wrong: .*d\.jsonl:2: entity 21.*d\.jsonl:3: entity 0"):
        as_sentences(path, labelled=True)
    said: list[str] = []
    assert len(as_sentences(path, labelled=True, problems=Problems(lenient=True, say=said.append))) == 1
    assert "2 rows left out" in said[0]


def test_blanks_at_the_ends_are_cut_off_and_counted():
    said: list[str] = []
    found = as_sentences([row((3, 10, "X"), (22, 27, "LOC"))], labelled=True, problems=Problems(say=said.append))
    assert found[0].spans == ((4, 9, "X"), (22, 27, "LOC"))
    assert said == ["entities with blanks at their ends, which were cut off: 1"]


def test_what_tags_of_words_cannot_tell_is_counted(tmp_path):
    model, said = folder(tmp_path / "model"), []
    rows = [row((4, 9, "X"), (11, 13, "X"), (4, 13, "Y")), row((22, 27, "X"))]
    finetune(model, rows * 3, task="tag", out=tmp_path / "m", say=said.append, **QUICK)
    first = "warning: 3 of 12 entities begin or end inside a word"
    second = "warning: 3 of 12 entities lie over another one"
    for wanted in (first, second):
        assert [line for line in said if line.startswith(wanted)], said
    said.clear()
    evaluate(tmp_path / "m", rows, say=said.append, draws=0)
    assert [line for line in said if line.startswith("warning: 1 of 4 entities begin")], said


@pytest.mark.parametrize(
    ("entity", "span"),
    [
        ([0.0, 5.0, "PER"], (0, 5, "PER")),
        (["0", "5", "PER"], (0, 5, "PER")),
        ([0, 5, 7], (0, 5, "7")),
        ({"start": 0.0, "end": 5, "label": "PER"}, (0, 5, "PER")),
    ],
)
@pytest.mark.parametrize("key", ["entities", "spans", "label"])
def test_entities_as_people_have_them_are_read(entity, span, key):
    [found] = as_sentences([{"text": "Peter went home", key: [entity]}], labelled=True)
    assert found.spans == (span,)


@pytest.mark.parametrize(
    "entities",
    [
        [[0, 5]],
        [[-5, -1, "PER"]],
        [[0, None, "PER"]],
        [{"start": 0, "end": 5}],
        "PER",
        3,
        [[[0, 5], "PER"]],
        [[0, 5, None]],
        [[0.5, 5, "PER"]],
        [[True, 5, "PER"]],
        [3],
        [None],
        [[0, 5, ""]],
        [["a", "b", "PER"]],
        [[0, float("nan"), "PER"]],
        [[0, float("inf"), "PER"]],
    ],
)
def test_what_is_no_entity_is_refused_by_its_row(entities):
    with pytest.raises(UserError, match=r"row 1: entit"):
        as_sentences([{"text": "Peter went home", "entities": entities}], labelled=True)


def test_a_contract_of_many_entities_takes_no_product_of_words_and_entities():
    """20 000 words with 2 000 entities took 6 s, of one core, which is what is measured."""
    spans = tuple((i * 4, i * 4 + 3, "X") for i in range(0, 20_000, 10))
    contract = Sentence(text=" ".join(["fox"] * 20_000), spans=spans)
    task = Tag.from_items(ExampleMaker(tokenizer("wordpiece"), slots=64, types=True), [contract], TaskSettings())
    words = [(i, i * 4, i * 4 + 3) for i in range(20_000)]
    began = time.thread_time()
    tags = task._tags(contract, words, 20_000)
    assert time.thread_time() - began < 0.5
    assert np.flatnonzero(tags > 1).tolist() == list(range(0, 20_000, 10))
