"""What callers of Python give as texts, and some of many texts."""

from __future__ import annotations

import pytest

from text_corpus import made_model
from unmask.errors import UserError
from unmask.modalities.text.reading.sources import PART, drawn


@pytest.fixture(scope="module")
def model():
    return made_model()


@pytest.mark.parametrize("texts", [["a fox", None], ["a fox", float("nan")], None, b"a fox", 3])
@pytest.mark.parametrize("use", ["score", "embed", "fill", "evaluate"])
def test_what_is_no_text_is_named(model, use, texts):
    with pytest.raises(UserError, match=r"^texts.*: no text"):
        getattr(model, use)(texts)


@pytest.mark.parametrize("use", ["score", "embed", "fill", "evaluate"])
def test_columns_of_texts_are_lists(model, use):
    with pytest.raises(UserError, match="not lists of one length"):
        getattr(model, use)({"text": "a fox"})


def test_one_candidate_is_one_and_settings_of_filling_are_checked(model):
    text = "The quick [MASK] jumps."
    (row,) = model.fill(text, candidates="fox")
    assert [one["value"] for one in row["slots"][0]["candidates"]] == ["fox"]
    for wrong in ({"longest": -1}, {"longest": 0}, {"top": 1.5}, {"top": 0}, {"steps": 0}, {"seed": -1}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            model.fill(text, **wrong)
    with pytest.raises(UserError, match="text 2 has"):
        model.fill([text, "The fox " * 200 + "[MASK]"], longest=2)


def test_texts_are_drawn_whatever_their_order():
    texts = [f"text {number}" for number in range(3 * PART // 2)]
    found, some = drawn(texts, 100, seed=1)
    assert some == f"100 of {len(texts):,} texts, drawn by the seed"
    assert len(set(found)) == 100
    assert [int(text.split()[1]) for text in found] == sorted(int(text.split()[1]) for text in found)
    assert max(int(text.split()[1]) for text in found) > PART
    late = sum(int(text.split()[1]) >= len(texts) // 2 for text in found)
    assert 30 < late < 70
    assert drawn(texts, 100, seed=2)[0] != found
    assert drawn(iter(texts), 100, seed=1)[0] == found
    assert drawn([], 5) == ([], "")
    assert drawn(texts, len(texts)) == (texts, "")
    unread = iter(texts)
    assert max(int(text.split()[1]) for text in drawn(unread, 5, of=50)[0]) < 50
    assert next(unread) == "text 51"  # one was looked at, to know that there are more
