"""A text model in use, on random weights: every number against the same number worked out step by step."""

import json
import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Backend

from text_corpus import MODEL_SLOTS, SENTENCES
from text_corpus import made_model as make
from unmask.core.batch import pack
from unmask.core.corruption import hide
from unmask.core.inference import packed_batches
from unmask.errors import UserError
from unmask.modalities.text.tokens.batches import measuring_corruption, text_example
from unmask.modalities.text.tokens.tokenizer import Tokenizer
from unmask.modalities.text.uses.filling import blank_examples, word_of, write_blanks
from unmask.modalities.text.uses.model import TextModel, load

KINDS = ("wordpiece", "bpe", "unigram")
SLOTS = MODEL_SLOTS


@pytest.fixture(scope="module")
def model() -> TextModel:
    return make()


def log_probs(model: TextModel, ids: np.ndarray, hidden: list[int], wanted: int) -> torch.Tensor:
    """Log-probabilities at slot `wanted` with `hidden` behind the mask, the plain way."""
    batch = pack([text_example(ids, np.arange(len(ids)), np.zeros(len(ids), bool), 0)], slots=len(ids))
    with torch.no_grad():
        return model.model(batch, hide(torch.tensor(hidden)), wanted=torch.tensor([wanted])).logits.log_softmax(-1)[0]


def test_candidates_are_the_softmax_at_the_blank(model: TextModel) -> None:
    texts = ["The quick [MASK] fox.", "Some [MASK] and them [MASK] back, and much more of the same kind to follow."]
    for text, result in zip(texts, model.fill(texts, top=7), strict=True):
        ids = model.tokenizer.encode([text])[0].ids
        places = np.flatnonzero(ids == model.tokenizer.mask_id).tolist()
        assert result["text"] == text
        assert len(result["slots"]) == len(places)
        joint = 0.0
        for place, slot in zip(places, result["slots"], strict=True):
            p = log_probs(model, ids, places, place)
            allowed = p.clone()
            allowed[torch.from_numpy(model.tokenizer.special_ids)] = -torch.inf
            best = allowed.topk(7)
            assert [c["value"] for c in slot["candidates"]] == [
                word_of(model.tokenizer, i) for i in best.indices.tolist()
            ]
            expected = p[best.indices].exp().numpy()
            np.testing.assert_allclose([c["probability"] for c in slot["candidates"]], expected, rtol=1e-4)
            joint += float(best.values[0])
        assert result["log_probability"] == pytest.approx(joint, abs=1e-4)


def test_filled_keeps_the_text_around_the_blanks(model: TextModel) -> None:
    for text in ("Don't  STOP [MASK], naïve\tCafé!", "[MASK] The (End) [MASK]"):
        filled = model.fill(text)[0]["filled"]
        assert "[MASK]" not in filled
        at = 0
        for part in (p.strip() for p in text.split("[MASK]")):
            assert part in filled[at:]
            at = filled.index(part, at) + len(part)


@pytest.mark.parametrize(
    ("kind", "tokens", "text", "expected"),
    [
        ("wordpiece", ["the", "##s"], "Read [MASK] [MASK]!", "Read thes!"),
        ("wordpiece", ["the", "of"], "Read [MASK]-[MASK]!", "Read the-of!"),
        ("wordpiece", ["##s"], "word [MASK] now", "words now"),
        ("bpe", ["Ġthe"], "in [MASK] end", "in the end"),
        ("bpe", ["Ġthe"], "in[MASK] end", "in the end"),
        ("bpe", ["s"], "word [MASK] end", "words end"),
        ("unigram", ["▁the"], "in [MASK] end", "in the end"),
    ],
)
def test_tokens_are_written_as_people_write(kind: str, tokens: list[str], text: str, expected: str) -> None:
    model = make(kind)
    ids = [model.tokenizer.id(t) for t in tokens]
    assert None not in ids
    assert write_blanks(model.tokenizer, text, ids) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_the_space_before_a_blank_is_not_a_token_of_its_own(kind: str) -> None:
    """Otherwise the model sees a lone space that it never saw in training."""
    model = make(kind)
    sentence = "A masked language model hides some words."
    word = next(
        w
        for w in ("model", "some", "words", "hides", "masked", "language")
        if (model.tokenizer.encode([sentence])[0].units >= 0).sum()
        == len(blank_examples(model, [sentence.replace(w, "[MASK]", 1)])[0]) - 2
    )
    blank = blank_examples(model, [sentence.replace(word, "[MASK]", 1)])[0].values["token"]
    whole = model.tokenizer.encode([sentence])[0].ids
    place = int(np.flatnonzero(blank == model.tokenizer.mask_id)[0])
    assert np.array_equal(np.delete(blank, place), np.delete(whole, place))


def test_step_by_step_log_probability_is_the_chain(model: TextModel) -> None:
    text = "The [MASK] brown [MASK] jumps [MASK] the dog."
    result = model.fill(text, steps=3, order="left_to_right", top=1)[0]
    ids = model.tokenizer.encode([text])[0].ids.astype(np.int64)
    places = np.flatnonzero(ids == model.tokenizer.mask_id).tolist()
    total, allowed = 0.0, np.setdiff1d(np.arange(model.tokenizer.vocab_size), model.tokenizer.special_ids)
    for i, place in enumerate(places):
        p = log_probs(model, ids, places[i:], place)
        ids[place] = allowed[int(p[allowed].argmax())]
        total += float(p[ids[place]])
        assert result["slots"][i]["candidates"][0]["value"] == word_of(model.tokenizer, int(ids[place]))
    assert result["log_probability"] == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_candidates_of_several_tokens_are_scored_by_the_chain(kind: str) -> None:
    model = make(kind)
    words = ["fox", "unbelievable river", "model"]
    result = model.fill("The quick [MASK] jumps.", candidates=[*words, words[0], words[1]])[0]
    assert len(result["slots"][0]["candidates"]) == len(words)  # each once
    got = {c["value"]: c for c in result["slots"][0]["candidates"]}
    assert set(got) == set(words)
    assert math.isclose(sum(c["share"] for c in got.values()), 1, abs_tol=1e-6)
    lengths = set()
    for word in words:
        e = model.tokenizer.encode([f"The quick {word} jumps."])[0]
        start, end = 10, 10 + len(word)
        mine = [i for i, (a, b) in enumerate(e.offsets) if a < end and b > start and not e.special[i]]
        chain = sum(float(log_probs(model, e.ids, mine[j:], place)[int(e.ids[place])]) for j, place in enumerate(mine))
        assert got[word]["probability"] == pytest.approx(math.exp(chain), rel=1e-3)
        lengths.add(len(mine))
    assert len(lengths) > 1
    best = result["slots"][0]["candidates"][0]["value"]
    assert result["filled"] == f"The quick {best} jumps."


def test_answers_find_the_likeliest_pair(model: TextModel) -> None:
    """With a beam as wide as the vocabulary the search is complete."""
    text, v = "The quick [MASK] jumps.", model.tokenizer.vocab_size
    found = model.answers(text, lengths=(2,), top=1, beam=v)[0]
    ids = model.tokenizer.encode(["The quick [MASK] [MASK] jumps."])[0].ids.astype(np.int64)
    place = int(np.flatnonzero(ids == model.tokenizer.mask_id)[0])
    allowed = np.setdiff1d(np.arange(v), model.tokenizer.special_ids)
    first, best = log_probs(model, ids, [place, place + 1], place), -math.inf
    for token in allowed[np.argsort(-first[allowed].numpy())]:
        ids[place] = token
        best = max(best, float(first[token] + log_probs(model, ids, [place + 1], place + 1)[allowed].max()))
    assert found["log_probability"] == pytest.approx(best, abs=1e-4)
    assert found["tokens"] == 2
    single = model.answers(text, lengths=(1,), top=3)
    shown = model.fill(text, top=3)[0]["slots"][0]["candidates"]
    assert [a["value"] for a in single] == [c["value"] for c in shown]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_empty_text_has_a_vector_whatever_the_tokenizer_adds(precision: str) -> None:
    made = make()
    backend = Backend.from_str(made.tokenizer.backend.to_str())
    backend.post_processor = None
    made.folder.tokenizer, made.precision = Tokenizer(backend), precision
    for texts in ([""], ["", "The quick fox"]):
        assert np.isfinite(made.embed(texts)).all()


def test_scores_and_order(model: TextModel) -> None:
    texts = [SENTENCES[0], "Stop.", SENTENCES[3], ""]
    found = model.score(texts, mode="slot")
    assert [f["text"] for f in found] == texts
    ids = model.tokenizer.encode([texts[1]])[0].ids
    ordinary = [i for i, t in enumerate(ids) if t not in model.tokenizer.special_ids]
    expected = sum(float(log_probs(model, ids, [i], i)[int(ids[i])]) for i in ordinary)
    assert found[1]["score"] == pytest.approx(expected, abs=1e-4)
    assert found[1]["perplexity"] == pytest.approx(math.exp(-expected / len(ordinary)), rel=1e-4)
    assert (found[3]["slots"], found[3]["score"], found[3]["perplexity"]) == (0, None, None)


def test_embeddings_keep_the_order_and_long_texts_are_cut(model: TextModel) -> None:
    texts = [SENTENCES[0] * 9, "Stop.", SENTENCES[2]]
    together = model.embed(texts)
    assert together.shape == (3, 32)
    np.testing.assert_allclose(together, np.stack([model.embed(t)[0] for t in texts]), atol=1e-5)


def test_evaluation_is_the_mean_over_hidden_tokens(model: TextModel) -> None:
    documents = [" ".join(SENTENCES[:5]) * 2, SENTENCES[1], SENTENCES[3]]
    found = model.evaluate(documents, ratio=0.3, seed=5)
    json.dumps(found, allow_nan=False)
    assert found == model.evaluate(documents, ratio=0.3, seed=5)
    assert found != model.evaluate(documents, ratio=0.3, seed=6)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert 0 <= found["accuracy_at_1"] <= found["accuracy_at_5"] <= 1
    low, high = found["intervals"]["loss"]
    assert low <= found["loss"] <= high
    for bands in (found["by_position"], found["by_frequency"]):
        assert sum(b["n"] for b in bands) == found["hidden_slots"]
    one = model.evaluate([SENTENCES[3]], ratio=0.3, seed=5)
    [(batch, _)] = packed_batches(model.examples([SENTENCES[3]]), SLOTS)
    hidden = measuring_corruption(0.3).draw(batch, seed=5)
    truth = batch.values["token"].flatten()[hidden.flat]
    with torch.no_grad():
        loss = -model.model(batch, hidden).logits.log_softmax(-1).gather(1, truth[:, None]).mean()
    assert one["loss"] == pytest.approx(float(loss), abs=1e-4)
    unseen = model.evaluate(documents, frequencies=np.zeros(model.tokenizer.vocab_size))
    assert [b["band"] for b in unseen["by_frequency"]] == ["unseen"]


@pytest.mark.parametrize("kind", KINDS)
def test_nearest_words_are_by_cosine(kind: str) -> None:
    model = make(kind)
    [found] = model.nearest_words(["the"], k=3)
    table = torch.nn.functional.normalize(model.model.codec.word.weight.detach(), dim=-1)
    number = next(i for t in ("Ġthe", "▁the", "the") if (i := model.tokenizer.id(t)) is not None)
    names = [model.tokenizer.token(i).lstrip("Ġ▁") for i in range(model.tokenizer.vocab_size)]
    real = [i for i, n in enumerate(names) if n.isalpha() and len(n) > 1 and n != "the"]
    best = max(real, key=lambda i: float(table[i] @ table[number]))
    assert found["neighbours"][0] == (names[best], pytest.approx(float(table[best] @ table[number]), abs=1e-5))


def test_inspect_counts(model: TextModel) -> None:
    found = model.inspect()
    assert found["parameters"] == sum(p.numel() for p in model.model.parameters())
    assert found["memory_mb_fp32"] == pytest.approx(found["parameters"] * 4 / 1e6)
    assert (found["longest_context"], found["family"]) == (SLOTS, "bert")


def test_a_saved_folder_says_the_same(model: TextModel, tmp_path) -> None:
    model.save(tmp_path / "m")
    again = load(tmp_path / "m", device="cpu", precision="fp32")
    assert again.fill("The [MASK] fox.") == model.fill("The [MASK] fox.")
    assert again.slots == SLOTS


def test_bf16_is_close(model: TextModel) -> None:
    half = TextModel(folder=model.folder, device=model.device, precision="bf16")
    a, b = (m.embed(SENTENCES[:3], normalise=True) for m in (model, half))
    assert ((a * b).sum(1) > 0.99).all()
    assert half.score(SENTENCES[0])[0]["score"] == pytest.approx(model.score(SENTENCES[0])[0]["score"], rel=0.03)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: m.fill(["a [MASK]", "no blank"]), r"text 2 has no \[MASK\].*Write \[MASK\]"),
        (lambda m: m.fill("[MASK] " + "word " * 80), "has [0-9]+ tokens, the model takes 64"),
        (lambda m: m.score("word " * 80), "has [0-9]+ tokens, the model takes 64"),
        (lambda m: m.fill("[MASK] [MASK]", candidates=["a"]), "exactly one"),
        (lambda m: m.fill("[MASK]", candidates=[""]), "has no token"),
        (lambda m: m.answers("[MASK] or [MASK]"), "exactly one"),
        (lambda m: m.evaluate([""]), "no token to hide"),
    ],
)
def test_mistakes_are_named(model: TextModel, call, said: str) -> None:
    with pytest.raises(UserError, match=f"(?s){said}") as error:
        call(model)
    assert str(error.value)
