"""What is served of text equals what the model says by itself, also when requests share a batch."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import unmask
from text_corpus import SENTENCES
from unmask.modalities.text.tasks.finetune import predict
from unmask.modalities.text.tasks.zeroshot import zero_shot
from unmask.serving.verbs import Warned

TEXTS = [s for s in SENTENCES if len(s) < 70]
BLANKED = [text.replace("the", "[MASK]") for text in TEXTS if "the" in text]


@pytest.fixture(scope="module")
def model(text_folders):
    return unmask.load(text_folders["masked"], precision="fp32")


def together(server, path, bodies):
    """Answers to requests that are sent side by side."""
    found: list = [None] * len(bodies)

    def one(number):
        found[number] = server.post(path, bodies[number])

    threads = [threading.Thread(target=one, args=(n,)) for n in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [status for status, _ in found] == [200] * len(bodies)
    return [answer for _, answer in found]


def test_embeddings_are_those_of_the_model(text_server, model):
    answers = together(text_server, "/models/masked/embed", [{"texts": [a, b]} for a in TEXTS for b in TEXTS[:2]])
    for answer, (a, b) in zip(answers, [(a, b) for a in TEXTS for b in TEXTS[:2]], strict=True):
        np.testing.assert_allclose(answer["embeddings"], model.embed([a, b]), atol=2e-5)
    one = text_server.post("/models/masked/embed", {"texts": TEXTS[0], "normalise": True, "pooling": "first"})[1]
    np.testing.assert_allclose(one["embeddings"], model.embed(TEXTS[0], normalise=True, pooling="first"), atol=2e-5)
    assert one["tokens"] == len(model.tokenizer.ids([TEXTS[0]])[0])


def test_vectors_that_are_cut_short_keep_their_length_where_they_had_one(text_server):
    body = {"texts": TEXTS[:2], "normalise": True, "dimensions": 8}
    found = np.array(text_server.post("/models/masked/embed", body)[1]["embeddings"])
    assert found.shape == (2, 8)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_blanks_are_filled_as_the_model_fills_them(text_server, model):
    bodies = [{"texts": [text], "top": 3} for text in BLANKED]
    for answer, text in zip(together(text_server, "/models/masked/fill", bodies), BLANKED, strict=True):
        (row,), (own,) = answer["results"], model.fill([text], top=3)
        assert row["filled"] == own["filled"]
        assert row["log_probability"] == pytest.approx(own["log_probability"], abs=1e-4)
        assert [c["value"] for c in row["slots"][0]["candidates"]] == [
            c["value"] for c in own["slots"][0]["candidates"]
        ]


def test_several_blanks_are_filled_jointly_and_drawn_alike(text_server, model):
    text = "The [MASK] brown [MASK] jumps over the [MASK] dog."
    for options in ({"steps": 3}, {"steps": 3, "temperature": 1.0, "seed": 7}, {"longest": 1, "top": 2}):
        (row,) = text_server.post("/models/masked/fill", {"texts": text, **options})[1]["results"]
        assert row["filled"] == model.fill(text, **options)[0]["filled"]
    (row,) = text_server.post("/models/masked/fill", {"texts": "The [MASK] fox.", "candidates": ["quick", "dog"]})[1][
        "results"
    ]
    assert {c["value"] for c in row["slots"][0]["candidates"]} == {"quick", "dog"}


def test_scores_are_those_of_the_model_and_of_its_tokens(text_server, model):
    answer = text_server.post("/models/masked/score", {"texts": TEXTS, "tokens": True})[1]
    for row, own in zip(answer["results"], model.score(TEXTS), strict=True):
        assert (row["score"], row["slots"]) == (pytest.approx(own["score"], rel=1e-4), own["slots"])
        assert row["perplexity"] == pytest.approx(own["perplexity"], rel=1e-4)
        told = [t["log_probability"] for t in row["tokens"] if t["log_probability"] is not None]
        assert sum(told) == pytest.approx(row["score"], rel=1e-4)
        assert all(row["text"][t["start"] : t["end"]] == t["text"] for t in row["tokens"])


def test_tasks_predict_as_the_folders_do(text_server, text_folders):
    texts = TEXTS[:3]
    for name in ("classify", "tag"):
        found = text_server.post(f"/models/{name}/{name}", {"texts": texts})[1]["results"]
        for row, own in zip(found, predict(text_folders[name], texts, precision="fp32"), strict=True):
            assert row.get("label") == own.get("label")
            assert row.get("entities") == pytest.approx(own.get("entities")) if name == "classify" else True
    questions = [{"question": "Who lived there?", "context": "Ada lived in London near the river."}]
    (row,) = text_server.post("/models/answer/answer", {"questions": questions})[1]["results"]
    (own,) = predict(text_folders["answer"], questions, precision="fp32")
    assert row["answer"]["text"] == own["answer"]["text"]
    pairs = text_server.post("/models/nli/classify", {"texts": [[texts[0], texts[1]]]})[1]["results"]
    assert set(pairs[0]["probabilities"]) == {"entailment", "contradiction"}


def test_questions_without_anything_to_read_have_no_answer(text_server):
    blank = [{"question": " ", "context": "Ada lived in London."}, {"question": "Who?", "context": ""}]
    found = text_server.post("/models/answer/answer", {"questions": blank})[1]
    assert [(row["answer"], row["nbest"]) for row in found["results"]] == [(None, None)] * 2
    assert "2 of 2 rows have no text: their predictions are null" in found["warnings"]
    for one in blank:
        status, found = text_server.post("/models/answer", {"inputs": one})
        assert (status, "without anything to read" in str(found)) == (400, True)


def test_questions_that_leave_no_room_are_refused(text_server):
    long = {"question": "fox " * 60, "context": "Ada lived in London."}
    for path, body in (("answer/answer", {"questions": [long]}), ("answer", {"inputs": long})):
        status, found = text_server.post(f"/models/{path}", body)
        assert (status, "row 1: 60 tokens" in found["error"]["what"]) == (400, True)


DIALECTS = [
    ("masked/pipeline/fill-mask", "/models/masked/fill", {"inputs": "\u4ed6 [MASK]"}, {"texts": "\u4ed6 [MASK]"}),
    ("masked/tei/embed", "/models/masked/embed", *[{k: ["the \u4ed6"]} for k in ("inputs", "texts")]),
    ("masked/pipeline/feature-extraction", "/models/masked/embed", *[{k: ["\u4ed6"]} for k in ("inputs", "texts")]),
    ("classify", "/models/classify/classify", {"inputs": "the \u4ed6"}, {"texts": ["the \u4ed6"]}),
    ("classify/tei/predict", "/models/classify/classify", {"inputs": "a \u4ed6"}, {"texts": ["a \u4ed6"]}),
    ("tag", "/models/tag/tag", {"inputs": "the \u4ed6"}, {"texts": ["the \u4ed6"]}),
    (
        "answer",
        "/models/answer/answer",
        {"inputs": {"question": "Who?", "context": "a \u4ed6"}},
        {"questions": [{"question": "Who?", "context": "a \u4ed6"}]},
    ),
    (
        "classify/tei/predict",
        "/models/classify/classify",
        {"inputs": ["fox " * 99], "truncate": True},
        {"texts": ["fox " * 99], "truncate": True},
    ),
    (
        "masked/tei/embed",
        "/models/masked/embed",
        {"inputs": ["fox " * 99], "truncate": True},
        {"texts": ["fox " * 99], "truncate": True},
    ),
]


@pytest.mark.parametrize(("path", "own", "body", "own_body"), DIALECTS)
def test_answers_in_other_words_have_their_warnings_in_a_header(text_server, path, own, body, own_body):
    """Their bodies have no place for them: not a word was said of texts that were cut or hold nothing known."""
    said = text_server.post(own, own_body)[1]["warnings"]
    assert said
    status, headers, _ = text_server.send("POST", f"/models/{path}", body)
    assert (status, headers["x-unmask-warning"]) == (200, "; ".join(said))


def test_what_openai_is_asked_has_them_too_and_a_plain_text_has_none(text_server):
    for text, warned in (("the \u4ed6", True), ("the fox", False)):
        _, headers, _ = text_server.send("POST", "/v1/embeddings", {"model": "masked", "input": text})
        assert ("x-unmask-warning" in headers) == warned


def test_a_warning_in_a_header_is_one_line_of_ascii():
    said = Warned([], ["text 1 is '\u4ed6'\r\nx-other:\0 1", "w" * 9000]).header
    assert said.startswith("text 1 is '\\u4ed6' x-other:\\x00 1; www")
    assert len(said) == 4000


def test_tasks_say_what_they_cannot_read(text_server):
    text = "\u4ed6 \u4ed6"
    bodies = {
        "classify": {"texts": [text]},
        "tag": {"texts": [text]},
        "answer": {"questions": [{"question": "Who?", "context": text}]},
    }
    for task, body in bodies.items():
        assert (
            "1 of 1 texts are blank or hold no" in text_server.post(f"/models/{task}/{task}", body)[1]["warnings"][-1]
        )


@pytest.mark.parametrize("name", ["masked", "nli"])
def test_labels_without_training_are_those_of_the_library(text_server, text_folders, name):
    labels = ["quick", "lazy"]
    answer = text_server.post(f"/models/{name}/zeroshot", {"texts": TEXTS[:2], "labels": labels})[1]
    rows = zero_shot(text_folders[name], TEXTS[:2], labels, precision="fp32")
    assert answer["method"] == rows.about["method"]
    for row, own in zip(answer["results"], rows, strict=True):
        assert row["probabilities"] == pytest.approx(own["probabilities"], abs=1e-4)


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("fill", {"texts": ["a [MASK].", "no blank", "none"]}, "texts[1], texts[2]"),
        ("fill", {"texts": "[MASK] and [MASK]", "longest": 2}, "several blanks"),
        ("embed", {"texts": ["a", "word " * 200]}, "texts[1] has"),
        ("score", {"texts": ["word " * 200]}, "texts[0] has"),
        ("zeroshot", {"texts": "a", "labels": ["one"]}, "labels: 1 values"),
        ("zeroshot", {"texts": "a", "labels": ["a", "b"], "template": "no blank"}, "template"),
        ("embed", {"texts": ["a"] * 1025}, "at most 1,024 per request"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_place(text_server, path, body, said):
    status, found = text_server.post(f"/models/masked/{path}", body)
    assert status == 400
    assert said in found["error"]["what"]


def test_texts_to_classify_are_cut_where_that_is_asked_for_alone(text_server, text_folders):
    long, cut = "quick fox " * 200, "1 of 2 texts are longer than 64 tokens: their ends are not read"
    ask = lambda path, **body: text_server.post(f"/models/{path}", body)  # noqa: E731
    status, found = ask("classify/classify", texts=["a fox", long])
    assert (status, found["error"]["what"].startswith("texts[1] has ")) == (400, True)
    assert ask("nli/classify", texts=[["a", "b"], ["quick " * 40, "fox " * 40]])[0] == 400
    for path, key in (("classify/tei/predict", "inputs"), ("classify", "inputs")):
        assert ask(path, **{key: [long]})[0] in (400, 413)
    found = ask("classify/classify", texts=["a fox", long], truncate=True)[1]
    (_, own) = predict(text_folders["classify"], ["a fox", long], precision="fp32")
    assert found["results"][1]["probabilities"] == pytest.approx(own["probabilities"], abs=1e-4)
    assert found["warnings"] == [cut]
    assert ask("classify/tei/predict", inputs=[long], truncate=True)[0] == 200


def test_long_texts_are_cut_where_that_is_asked_for(text_server, model):
    body = {"texts": ["word " * 200], "truncate": True}
    found = text_server.post("/models/masked/embed", body)[1]
    np.testing.assert_allclose(found["embeddings"], model.embed(body["texts"]), atol=2e-5)
    assert found["tokens"] == model.embedded_slots


def test_nothing_is_nothing(text_server):
    nothing = {"embeddings": [], "tokens": 0, "warnings": []}
    assert text_server.post("/models/masked/embed", {"texts": []}) == (200, nothing)
    assert text_server.post("/models/masked/fill", {"texts": []}) == (200, {"results": [], "warnings": []})
    assert text_server.post("/models/classify/classify", {"texts": []}) == (200, {"results": [], "warnings": []})


def test_a_text_of_nothing_is_labelled_where_it_can_be_and_like_itself(text_server):
    body = {"texts": ["a fox", ""], "labels": ["good", "bad"]}
    assert text_server.post("/models/masked/zeroshot", body)[0] == 200
    status, found = text_server.post("/models/nli/zeroshot", body)
    assert (status, found["error"]["what"]) == (400, "texts[1]: empty")
    found = text_server.post("/models/masked/similarity", {"text": "", "others": ["  ", "a fox"]})[1]
    assert max(found["similarities"]) <= 1


def test_what_is_not_read_as_it_was_meant_is_said(text_server):
    """The answers are the same numbers; a client that never sees a terminal learns of it too."""
    texts = ["The fox. [SEP] The dog.", "The \u4ed6 fox.", "The quick fox.", "\u4ed6"]
    ask = lambda verb, **body: text_server.post(f"/models/masked/{verb}", body)[1]["warnings"]  # noqa: E731
    special = "1 of 4 texts hold special tokens, the first is text 1 ([SEP]): the model reads them as its own marks"
    unknown = "2 of 4 texts hold words or characters that the model does not know, the first is text 2: it reads [UNK]"
    assert [line.startswith(w) for line, w in zip(ask("score", texts=texts), (special, unknown), strict=True)] == [1, 1]
    scored, _ = ask("score", texts=texts)
    assert scored == f"{special}, and they are not scored"
    embedded = ask("embed", texts=texts)
    assert embedded[:1] == [special]
    assert embedded[1].startswith(unknown)
    assert "(text 4)" in embedded[2]
    assert ask("similarity", text=texts[0], others=texts[1:]) == embedded
    filled = ask("fill", texts=[f"{text} [MASK]" for text in texts])
    assert filled[0] == special
    assert filled[1].startswith(unknown)
    labelled = ask("zeroshot", texts=texts, labels=["quick", "lazy"])
    assert labelled[0] == special
    assert labelled[1].startswith(unknown)
    assert "(text 4)" in labelled[2]
    for verb, more in (("score", {}), ("embed", {}), ("zeroshot", {"labels": ["quick", "lazy"]})):
        assert ask(verb, texts=texts[2], **more) == []
    assert ask("fill", texts="The [MASK] fox.") == []
