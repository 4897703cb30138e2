"""Texts of which nothing is scored have no score, special tokens in texts are told of, and unknown ones are counted."""

import json

import numpy as np
import pytest

from commands import run
from text_corpus import SENTENCES, made_model
from unmask.errors import UserError
from unmask.modalities.text.uses.filling import nothing_to_read, special_notes, special_tokens_in, unknown_notes
from unmask.modalities.text.uses.minimal_pairs import MinimalPair, evaluate_minimal_pairs

NOTHING = ["", "   ", "\N{GRINNING FACE}\N{GRINNING FACE}", "[MASK]", "[SEP] [PAD]", "\N{ZERO WIDTH SPACE}"]


@pytest.fixture(scope="module")
def model():
    return made_model()


def knows_latin_alone():
    """A model whose tokenizer knows Latin words and no Chinese."""
    from unmask.modalities.text.tokens.tokenizer import Tokenizer

    made = made_model()
    words = [s for s in SENTENCES if s.isascii()] * 12
    made.folder.tokenizer = Tokenizer.train(words, kind="wordpiece", vocab_size=300, min_frequency=1)
    assert made.folder.tokenizer.vocab_size <= made.model.codec.config.vocabulary
    return made


def test_a_text_of_which_nothing_is_scored_has_no_score(model):
    found = model.score([SENTENCES[0], *NOTHING])
    assert found[0]["score"] < 0
    for row in found[1:]:
        assert (row["score"], row["slots"], row["perplexity"]) == (None, 0, None), row


def test_a_pair_with_a_sentence_that_has_no_score_is_a_tie(model):
    said: list[str] = []
    pairs = [MinimalPair(good=g, bad=b, paradigm="p", field="f") for g, b in [("[MASK]", "a fox"), ("a fox", "[SEP]")]]
    found = evaluate_minimal_pairs(model, pairs, say=said.append)
    assert (found["accuracy"], found["ties"]) == (0.5, 2)
    assert said[0].startswith("ties, since nothing of one of the two sentences is scored: 2 (")


def test_a_pair_of_which_one_sentence_has_unknown_or_special_tokens_is_a_tie(model):
    said: list[str] = []
    texts = [
        ("The quick fox.", "The quick \u0f00 \u0f00."),
        ("The quick \u0f00.", "\u0f00 quick The."),
        ("a fox", "a [SEP] fox"),
    ]
    pairs = [MinimalPair(good=g, bad=b, paradigm="p", field="f") for g, b in texts]
    found = evaluate_minimal_pairs(model, pairs, say=said.append)
    assert found["ties"] == 2
    line, rest = said
    assert rest.endswith(": 1 of 3")
    assert line.startswith("ties, since one sentence has more unknown or special tokens")
    assert "than the other: 2; the first is" in line
    assert repr(texts[0][1]) in line
    assert model.score("a [SEP] \u0f00 fox")[0]["unscored"] == 2


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_special_tokens_in_a_text_are_found(kind):
    tokenizer = made_model(kind).tokenizer
    assert special_tokens_in(tokenizer, "The [MASK] sat [SEP] on[PAD] the [MASK].") == ["[MASK]", "[SEP]", "[PAD]"]
    for text in ("The cat sat.", "The [mask] sat (SEP).", "", "\N{GRINNING FACE}"):
        assert special_tokens_in(tokenizer, text) == []
    [line] = special_notes(tokenizer, ["a fox", "a [SEP] fox", "[PAD]"])
    assert line.startswith("warning: 2 of 3 texts hold special tokens, the first is text 2 ([SEP])")
    assert special_notes(tokenizer, ["a fox", ""]) == []
    assert special_notes(tokenizer, ["a [MASK]"], but=["[MASK]"]) == []


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_texts_without_anything_to_read_are_found(kind):
    tokenizer = made_model(kind).tokenizer
    bare = [
        "",
        "   ",
        " \t\n ",
        "[MASK]",
        "[SEP] [PAD]",
        " [SEP] ",
        "\u3000",
        "\xa0",
        "\u2028",
        "\u200b",
        "\ufeff \u200b",
    ]
    unknown = [text for text in ("\u0f00 \u0f00", "\N{GRINNING FACE}") if kind != "bpe"]  # which knows all bytes
    assert nothing_to_read(tokenizer, tokenizer.ids([SENTENCES[0], *bare, *unknown])) == list(
        range(1, 1 + len(bare) + len(unknown))
    )
    assert nothing_to_read(tokenizer, []) == []
    assert nothing_to_read(tokenizer, tokenizer.ids(["\u3000" * 12 + "the", "\u0f00 the"])) == []
    assert len(unknown_notes(tokenizer, tokenizer.ids(["the \u0f00"]))) == (kind != "bpe")
    rows = made_model(kind).score([*bare, *unknown])
    assert [(row["score"], row["slots"]) for row in rows] == [(None, 0)] * len(rows)


def test_fill_and_embed_tell_of_marks_and_of_nothing(model, tmp_path, capsys):
    model.save(tmp_path / "m")
    code, _, error = run(capsys, "fill", tmp_path / "m", "the [MASK] fox [SEP] jumps")
    assert (code, "1 of 1 texts hold special tokens, the first is text 1 ([SEP])" in error) == (0, True), error
    code, _, error = run(capsys, "fill", tmp_path / "m", "the [MASK] fox jumps")
    assert (code, "special" in error) == (0, False), error
    code, _, error = run(capsys, "fill", tmp_path / "m", "\u0f00 [MASK]")
    assert (code, "1 of 1 texts hold words or characters that the model does not know" in error) == (0, True), error
    code, _, error = run(capsys, "generate", tmp_path / "m", "--prefix", "\u0f00 is", "--length", "2")
    assert (code, "the model does not know" in error) == (0, True), error
    (tmp_path / "t.txt").write_text(f"the quick fox\n\nthe [MASK] fox\n{NOTHING[2]}\n")
    code, _, error = run(capsys, "embed", tmp_path / "m", tmp_path / "t.txt", "--out", tmp_path / "t.npy")
    assert (code, np.load(tmp_path / "t.npy").shape[0]) == (0, 4)
    assert "1 of 4 texts hold special tokens, the first is text 3 ([MASK])" in error
    assert "2 of 4 texts are blank or hold no token that the model knows (text 2, text 4)" in error


def test_score_tells_of_both(model, tmp_path, capsys):
    model.save(tmp_path / "m")
    (tmp_path / "t.txt").write_text(f"the quick fox\n\nthe [MASK] fox\n{NOTHING[2]}\n")
    code, out, error = run(capsys, "score", tmp_path / "m", tmp_path / "t.txt")
    assert code == 0
    assert [line.split()[0] == "-" for line in out.splitlines()] == [False, True, False, True]
    assert "1 of 4 texts hold special tokens, the first is text 3 ([MASK])" in error
    assert "2 of 4 texts have no score, the first is text 2" in error
    code, out, error = run(capsys, "score", tmp_path / "m", tmp_path / "t.txt", "--json")
    found = json.loads(out)
    assert [row["score"] is None for row in found["results"]] == [False, True, False, True]
    assert error.count("have no score") == 1
    code, _, error = run(capsys, "score", tmp_path / "m", "the quick fox")
    assert (code, error) == (0, "")


@pytest.mark.parametrize("verb", ["score", "fill"])
def test_an_empty_text_is_called_empty(model, tmp_path, capsys, verb):
    model.save(tmp_path / "m")
    code, _, error = run(capsys, verb, tmp_path / "m", "")
    assert (code, "the text is empty" in error, "no such file" in error) == (2, True, False), error


def test_evaluate_tells_of_unknown_tokens_and_refuses_many():
    model, said = knows_latin_alone(), []
    latin = [s for s in SENTENCES if s.isascii()]
    found = model.evaluate(latin, nelbo_draws=0, say=said.append)
    assert (found["unknown_share"], said) == (0.0, [])
    texts = [*latin, latin[0] + " \N{GRINNING FACE}"]
    found = model.evaluate(texts, nelbo_draws=0, say=said.append)
    ids = np.concatenate([e.ids for e in model.tokenizer.encode(texts, specials=False)])
    share = float(np.mean(ids == model.tokenizer.unk_id))
    assert 0.001 < share < 0.1
    assert found["unknown_share"] == pytest.approx(share)
    [line] = said
    assert line.startswith(f"{share:.2%} of the tokens of the texts are unknown")
    with pytest.raises(UserError, match=r"(?s)the texts: .*% of the tokens are unknown.*at most 10%.*language"):
        model.evaluate([*latin, *SENTENCES[5:7] * 3], nelbo_draws=0)


def test_the_command_tells_of_unknown_tokens(tmp_path, capsys):
    knows_latin_alone().save(tmp_path / "m")
    latin = " ".join(s for s in SENTENCES if s.isascii())
    (tmp_path / "some.txt").write_text(f"{latin} \N{GRINNING FACE}")
    (tmp_path / "many.txt").write_text("\n\n".join([latin, *SENTENCES[5:7] * 4]), encoding="utf-8")
    code, out, error = run(capsys, "evaluate", tmp_path / "m", tmp_path / "some.txt", "--json")
    assert (code, "of the tokens of the texts are unknown" in error) == (0, True), error
    assert json.loads(out)["unknown_share"] > 0
    code, out, error = run(capsys, "evaluate", tmp_path / "m", tmp_path / "many.txt", "--json")
    assert (code, out, "are unknown to the model's tokenizer" in error) == (2, "", True), error


def test_the_rule_of_the_shorter_sentence_counts_tokens_that_are_not_scored(model):
    said: list[str] = []
    longer = MinimalPair(good="a \u0f00 fox", bad="a \u0f00 \u0f00 fox", paradigm="p", field="f")
    alike = MinimalPair(good="a \u0f00 fox", bad="a fox \u0f00", paradigm="q", field="f")
    found = evaluate_minimal_pairs(model, [longer, alike], say=said.append)
    assert found["shorter"] == 0.75
    assert said[-1].endswith("as many in both sentences: 1 of 2")
