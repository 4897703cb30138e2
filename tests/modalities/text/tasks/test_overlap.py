"""The rule of question answering: which sentence has the words of the question, alone and beside a model."""

import numpy as np
import pytest

from tiny_folders import folder
from unmask.modalities.text.tasks.answer import LONGEST, as_questions, longest_answer
from unmask.modalities.text.tasks.baselines import EDGE, OUTSIDE, fit_overlap, overlaps
from unmask.modalities.text.tasks.encoding import ExampleMaker
from unmask.modalities.text.tasks.finetune import evaluate, finetune, predict
from unmask.modalities.text.tasks.model import load
from unmask.modalities.text.tasks.registry import task_class
from unmask.modalities.text.tasks.settings import TaskSettings
from unmask.modalities.text.tokens.words import sentences

QUICK = {"epochs": 1, "batch": 16, "precision": "fp32", "dropout": 0.0}
ANIMALS, COLOURS = ("fox", "dog", "cat", "hen"), ("red", "black", "white", "brown")


def asked(count: int) -> list[dict]:
    """Whose colour is asked for: the answer is the sentence about that animal."""
    rng, rows = np.random.default_rng(5), []
    for _ in range(count):
        order = rng.permutation(4)
        told = [f"The {ANIMALS[i]} is {COLOURS[rng.integers(4)]}." for i in order]
        right = int(rng.integers(4))
        context = " ".join(told)
        answer = {"text": told[right], "answer_start": context.index(told[right])}
        rows.append({"question": f"which {ANIMALS[order[right]]}?", "context": context, "answers": [answer]})
    return rows


def test_sentences_end_at_marks_and_lose_no_character_but_white_space():
    text = "One two.  Three! Four?\nFive"
    assert [text[a:b] for a, b in sentences(text)] == ["One two.", "Three!", "Four?", "Five"]
    assert sentences("") == [(0, 0)]
    spans, found = overlaps("where is the fox", "A hen. The fox is here.")
    assert found.argmax() == 1
    assert spans[1] == (7, 23)


def test_the_gain_is_large_where_overlap_tells_and_small_where_it_misleads():
    rows = as_questions(asked(40), labelled=True)
    turned = [{**r, "question": "which hen?"} for r in asked(40)]
    told, misled = (float(fit_overlap(q).model.weight[0, 0]) for q in (rows, as_questions(turned, labelled=True)))
    assert told == 8.0
    assert misled < told


def test_scores_of_a_window_are_those_of_its_sentences(tmp_path):
    from unmask.modalities.text.network.folder import load_folder

    text = load_folder(folder(tmp_path / "model"))
    items = as_questions(asked(3), labelled=True)
    encoder = ExampleMaker(text.tokenizer, slots=24, types=True)
    task = task_class("answer").from_items(encoder, items, TaskSettings(stride=4))
    prepared = task.prepare(items, labelled=True)
    assert len(prepared.extra["windows"]) > len(items)  # several windows per text
    baseline = fit_overlap(items)
    for number, scores in enumerate(baseline.sentence_scores(prepared)):
        window = prepared.extra["windows"][number]
        inside = np.arange(len(scores)) - window.shift
        context = (inside >= 0) & (inside < window.last - window.first)
        assert (scores[~context] == OUTSIDE).all()
        spans, found = overlaps(items[window.owner].question, items[window.owner].context)
        for slot in np.flatnonzero(context):
            a, b = prepared.extra["offsets"][window.owner][window.first + inside[slot]]
            of = next(i for i, (x, y) in enumerate(spans) if x <= a and b <= y)
            assert scores[slot] - 8.0 * found[of] == pytest.approx(0.0, abs=EDGE + 1e-9)


def test_the_rule_is_saved_where_it_is_asked_for_and_used_by_predict(tmp_path):
    model, rows = folder(tmp_path / "model"), asked(48)
    given = QUICK | {"validation": rows[32:], "out": tmp_path / "out", "baseline": "lookup"}
    result = finetune(model, rows[:32], task="answer", **given)
    table = {r["model"]: r["value"] for r in result["comparison"]}
    kept = next(r for r in result["comparison"] if r["kept"])
    assert kept["model"] == "words in common by sentence"
    assert kept["value"] == max(table.values()) > 90
    assert evaluate(tmp_path / "out", rows[32:])["value"] == pytest.approx(kept["value"])
    assert load(tmp_path / "out").baseline.kind == "sentence"
    said = predict(tmp_path / "out", rows[32:])
    assert np.mean([p["answer"]["text"] == r["answers"][0]["text"] for p, r in zip(said, rows[32:], strict=True)]) > 0.9


def test_where_some_have_no_answer_the_rule_is_shown_but_not_kept(tmp_path):
    rows = asked(40)
    rows[::4] = [{**r, "answers": []} for r in rows[::4]]
    result = finetune(folder(tmp_path / "model"), rows, task="answer", validation=rows[:20], **QUICK)
    assert "sentence with the most words in common" in {r["model"] for r in result["comparison"]}
    assert not result["kept"].startswith("words in common")


def test_answers_as_long_as_those_of_the_training_are_looked_for(tmp_path):
    from unmask.modalities.text.network.folder import load_folder

    encoder = ExampleMaker(load_folder(folder(tmp_path / "model")).tokenizer, slots=64, types=True)
    long = " ".join(["fox"] * 45)
    rows = [{"question": "q", "context": long, "answers": [{"text": long, "answer_start": 0}]}] * 3
    assert longest_answer(encoder, as_questions(rows, labelled=True)) >= 45
    assert longest_answer(encoder, as_questions(asked(5), labelled=True)) == LONGEST
