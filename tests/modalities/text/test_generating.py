"""New texts: what is given stays, what is drawn is no special token, and one pass is what `fill` draws."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from text_corpus import MODEL_SLOTS
from text_corpus import made_model as make
from unmask.errors import UserError
from unmask.modalities.text.uses.filling import blank_examples
from unmask.modalities.text.uses.generating import _with_room, shown_little

KINDS = ("wordpiece", "bpe", "unigram")
PREFIX, SUFFIX = "The  QUICK brown fox,", "near the river bank."


@pytest.mark.parametrize("kind", KINDS)
def test_prefix_and_suffix_stay_to_the_byte(kind: str):
    model = make(kind)
    for one in model.generate(prefix=PREFIX, suffix=SUFFIX, length=4, number=3, remask=0.3):
        assert one["text"].startswith(PREFIX)
        assert one["text"].endswith(SUFFIX)
        assert one["tokens"] == 4
    [one] = model.generate(prefix=PREFIX, length=3)
    assert one["text"].startswith(PREFIX)
    [one] = model.generate(suffix=SUFFIX, length=3)
    assert one["text"].endswith(SUFFIX)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", ["Title\n\n", "a\tb\t", "two  "])
def test_white_space_at_the_end_of_a_prefix_stays(kind: str, prefix: str):
    model = make(kind)
    for one in model.generate(prefix=prefix, length=2, number=8, temperature=5.0):
        assert one["text"].startswith(prefix)


def test_no_mark_of_a_piece_is_shown_in_what_was_generated():
    for one in make().generate(prefix="a", length=1, number=40, temperature=50.0):
        assert "##" not in one["generated"]


def test_no_space_is_written_between_characters_of_scripts_without_or_before_a_comma():
    from unmask.modalities.text.uses.filling import close_up

    assert close_up("他 是 一 个 学 生 。") == "他是一个学生。"
    assert close_up("日 本 の 2015 年") == "日本の 2015 年"
    assert close_up("a b , c") == "a b , c"
    model = make()
    [one] = model.generate(prefix="他是一个", suffix="学生。", length=2)
    assert " " not in one["text"].replace(one["generated"], "") or not one["generated"]
    [one] = model.generate(prefix="It was in", suffix=", in 2015.", length=2)
    assert one["text"].endswith(one["generated"] + ", in 2015.")


def test_a_draw_has_its_probability_among_what_may_be_drawn():
    model = make()
    [one] = model.generate(prefix="The quick brown", length=1, temperature=1.0)
    candidates = model.fill(["The quick brown [MASK]"], top=model.tokenizer.vocab_size)[0]["slots"][0]["candidates"]
    special = set(model.tokenizer.special_ids.tolist())
    possible = sum(c["probability"] for c in candidates if c["token"] not in special)
    assert possible < 0.999  # special tokens have the rest
    [drawn] = {c["probability"] for c in candidates if c["value"] == one["generated"]}
    assert one["log_probability"] == pytest.approx(np.log(drawn / possible), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_are_never_drawn(kind: str):
    model = make(kind)
    for one in model.generate(length=20, number=8, temperature=50.0):
        assert not any(token in one["text"] for token in ("[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]"))


def test_one_pass_is_fill():
    model = make()
    blanks = f"{PREFIX} [MASK][MASK][MASK] {SUFFIX}"
    [one] = model.generate(prefix=PREFIX, suffix=SUFFIX, length=3, steps=1, temperature=0.0)
    [filled] = model.fill(blanks)
    assert one["text"] == filled["filled"]
    assert one["log_probability"] == pytest.approx(filled["log_probability"], abs=1e-4)
    [drawn] = model.generate(prefix=PREFIX, suffix=SUFFIX, length=3, steps=1, order="confidence", seed=4)
    assert drawn["text"] == model.fill(blanks, temperature=1.0, seed=4)[0]["filled"]


def test_the_same_seed_draws_the_same_texts():
    model = make()
    first = model.generate(length=8, number=3, seed=1)
    assert first == model.generate(length=8, number=3, seed=1)
    assert first != model.generate(length=8, number=3, seed=2)
    assert len({one["text"] for one in first}) == 3


def test_lengths_are_those_of_training_texts_where_they_are_noted():
    model = make()
    assert {one["tokens"] for one in model.generate(number=2)} == {32}
    model.folder = dataclasses.replace(model.folder, settings={"lengths": [5, 9]})
    assert {one["tokens"] for one in model.generate(number=20)} == {5, 9}
    given = len(model.tokenizer.ids(["A masked model"])[0]) - 2
    found = {one["tokens"] for one in model.generate(prefix="A masked model", number=20)}
    assert found == set(np.maximum(np.array([5, 9]) - given, 1).tolist())
    [between] = model.generate(prefix=PREFIX, suffix=SUFFIX)
    assert 1 <= between["tokens"] <= 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix": "a [MASK] b"}, "prefix holds"),
        ({"suffix": "a [SEP] [MASK]"}, r"suffix holds \[SEP\], \[MASK\]"),
        ({"prefix": "[CLS]", "suffix": "[PAD]"}, r"prefix holds \[CLS\]"),
        ({"prefix": "a [UNK]"}, r"prefix holds \[UNK\]"),
        (
            {"length": MODEL_SLOTS},
            f"have 2 tokens .* {MODEL_SLOTS} more are to be drawn: the model takes {MODEL_SLOTS}",
        ),
        ({"prefix": "word " * MODEL_SLOTS}, "prefix and suffix have [0-9]+ tokens .* the model takes"),
        ({"prefix": "word " * 40, "suffix": "word " * 40, "length": 5}, "prefix and suffix have .* 5 more are to be"),
        ({"length": 0}, "length=0"),
        ({"length": 2.5}, "length=2.5"),
        ({"seed": 2**70, "length": 1}, "seed="),
        ({"seed": -1, "length": 1}, "seed=-1"),
        ({"prefix": None, "length": 1}, "prefix"),
        ({"prefix": "caf\udce9", "length": 1}, "not UTF-8"),
        ({"number": 0}, "number=0"),
        ({"temperature": -1.0}, "temperature"),
        ({"order": "sideways", "length": 2}, "order"),
        ({"remask": 1.5, "length": 2}, "remask"),
    ],
)
def test_what_cannot_be_is_refused(options: dict, message: str):
    with pytest.raises(UserError, match=message):
        make().generate(**options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("prefix", "suffix"), [("The quick fox", ""), ("fox ", " dog"), ("", "dog"), ("(", ", dog")])
def test_all_the_room_there_is_can_be_drawn_and_no_more(kind: str, prefix: str, suffix: str):
    model = make(kind)
    given = len(blank_examples(model, [_with_room(model, prefix, suffix, 1)])[0]) - 1
    [one] = model.generate(prefix=prefix, suffix=suffix, length=MODEL_SLOTS - given, steps=1)
    assert one["tokens"] == MODEL_SLOTS - given
    with pytest.raises(UserError, match=f"prefix and suffix have {given} tokens"):
        model.generate(prefix=prefix, suffix=suffix, length=MODEL_SLOTS - given + 1)


def test_remasking_takes_back_of_a_few_tokens_too():
    model, passes = make(), list[int]()
    model.model.register_forward_pre_hook(lambda *_: passes.append(1))
    taken = {}
    for remask in (0.0, 0.9):
        passes.clear()
        found = [model.generate(length=2, seed=seed, remask=remask)[0] for seed in range(8)]
        assert [one["log_probability"] is None for one in found] == [bool(remask)] * 8
        taken[remask] = len(passes)
    assert taken[0.0] == 2 * 8
    assert taken[0.9] > 2.5 * 8  # a token that was taken back is drawn in a pass of its own
    with pytest.raises(UserError, match=r"(?s)remask=0.2.*steps=2.*3 or more"):
        model.generate(length=2, steps=2, remask=0.2)


@pytest.mark.parametrize("temperature", [float("nan"), float("inf"), -1.0])
def test_temperatures_that_are_none_are_refused(temperature):
    model = make()
    with pytest.raises(UserError, match="temperature"):
        model.generate(length=2, temperature=temperature)
    with pytest.raises(UserError, match="temperature"):
        model.fill("The [MASK] fox.", temperature=temperature)


def test_a_model_that_never_saw_mostly_hidden_text_is_told_of():
    model = make()
    assert "never trained on mostly hidden text" in (shown_little(model) or "")
    for density, told in (("uniform", False), ("fixed", True)):
        settings = {"text": {"density": density, "ratio": 0.15}}
        model.folder = dataclasses.replace(model.folder, settings=settings)
        assert (shown_little(model) is not None) == told
