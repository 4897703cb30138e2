"""Which columns of pairs are read for similarity; what may be a label is refused, not passed over."""

import json

import pytest

from tiny_folders import folder
from unmask.errors import UserError
from unmask.modalities.text.tasks.data import as_items
from unmask.modalities.text.tasks.finetune import finetune
from unmask.modalities.text.tasks.row_files import Columns
from unmask.modalities.text.tasks.similarity import as_pairs

GRADED = [("the fox ran", "a fox ran", 1), ("the dog sat", "the fox ran", 0), ("a river", "the river", 1)]


@pytest.mark.parametrize("name", ["is_duplicate", "relatedness_score", "similarity_score"])
def test_published_names_of_grades_are_read(tmp_path, name):
    (path := tmp_path / "pairs.csv").write_text(
        f"id,qid1,qid2,question1,question2,{name}\n"
        + "".join(f"{i},{2 * i},{i},{a},{b},{grade}\n" for i, (a, b, grade) in enumerate(GRADED))
    )
    items, columns = as_pairs(path, None, labelled=True)
    assert columns is not None
    assert (columns.label, [item.label for item in items]) == (name, ["1", "0", "1"])


@pytest.mark.parametrize("name", ["duplicate", "sim", "distance"])
def test_numbers_beside_pairs_are_no_labels_by_chance(tmp_path, name):
    """A column of numbers under no known name would be passed over, and every pair taken for a positive one."""
    rows = [{"sentence1": a, "sentence2": b, name: grade} for a, b, grade in GRADED]
    (path := tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for data in (path, rows):
        with pytest.raises(UserError, match=f"column '{name}' .* no column is read as the label") as found:
            as_pairs(data, None, labelled=True)
        assert name in str(found.value.hint)
        items, _ = as_pairs(data, Columns(label=name), labelled=True)
        assert [item.label for item in items] == [1, 0, 1]
        assert len(as_pairs(data, None, labelled=False)[0]) == 3
    assert as_pairs(
        [{"anchor": r["sentence1"], "positive": r["sentence2"], name: r[name]} for r in rows], None, labelled=True
    )


@pytest.mark.parametrize("name", ["id", "pair_id", "qid1", "Unnamed: 0", "row", "split", "n"])
def test_numbers_that_name_rows_are_no_labels(name):
    values = (0, 1, 0) if name != "n" else (5, 8, 3)
    rows = [{"text": a, "text2": b, name: value} for (a, b, _), value in zip(GRADED, values, strict=True)]
    rows = [row | ({"split": "train"} if name == "split" else {}) for row in rows]
    assert [item.label for item in as_pairs(rows, None, labelled=True)[0]] == [None] * 3


def test_classes_of_inference_are_no_grades():
    rows = [{"premise": a, "hypothesis": b, "label": 2 * grade} for a, b, grade in GRADED]
    with pytest.raises(UserError, match="label 2 of a premise and a hypothesis: a class, not a grade"):
        as_pairs(rows, None, labelled=True)
    items, _ = as_pairs([row | {"label": 0.3} for row in rows], None, labelled=True)
    assert [item.label for item in items] == [0.3] * 3


def test_names_of_sentence_transformers_and_bge_are_read(tmp_path):
    (path := tmp_path / "triples.csv").write_text("anchor,positive,negative\na fox,the fox,a dog\n")
    [item] = as_pairs(path, None, labelled=True)[0]
    assert (item.text, item.text2, item.negative) == ("a fox", "the fox", "a dog")
    (path := tmp_path / "bge.jsonl").write_text(
        json.dumps({"query": "fox?", "pos": ["a fox"], "neg": ["a dog", "a cat"], "type": "x"})
        + "\n"
        + json.dumps({"query": "dog?", "pos": ["a dog", "the dog"], "neg": ["a fox"]})
    )
    items, _ = as_pairs(path, None, labelled=True)
    assert [(item.text, item.text2, item.negative) for item in items] == [
        ("fox?", "a fox", "a dog"),
        ("fox?", "a fox", "a cat"),
        ("dog?", "a dog", "a fox"),
        ("dog?", "the dog", "a fox"),
    ]
    with pytest.raises(UserError, match=r"column 'pos' is \['a fox'\]"):
        as_pairs(path, None, labelled=False)
    (path := tmp_path / "opinions.csv").write_text("what a film,pos\na bore,neg\nwell done,pos\nso long,neg\n")
    assert [item.label for item in as_items(path)[0]] == ["pos", "neg", "pos", "neg"]


def test_labels_that_run_the_other_way_are_said(tmp_path):
    """Distances, which are higher for what is less alike."""
    same = [(f"The quick brown fox jumps {i}", f"The quick brown fox jumps {i} .", 0.1) for i in range(30)]
    other = [(f"The quick brown fox jumps {i}", f"Readers rarely check the sources {i}", 0.9) for i in range(30)]
    model, said, given = folder(tmp_path / "model"), [], {"steps": 1, "precision": "fp32"}
    data = same + other
    finetune(model, data, task="similarity", validation=data, out=tmp_path / "m", say=said.append, **given)
    assert any("go against their labels (Spearman -0." in line for line in said)
    said.clear()
    data = [(a, b, 1 - distance) for a, b, distance in data]
    finetune(model, data, task="similarity", validation=data, out=tmp_path / "t", say=said.append, **given)
    assert not any("go against" in line for line in said)
