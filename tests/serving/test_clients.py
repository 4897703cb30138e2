"""Clients that exist already: huggingface_hub's for every task, OpenAI's and text-embeddings-inference's calls."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

import unmask
from text_corpus import SENTENCES
from unmask.modalities.text.tasks.pipelines import fill_mask

TEXT = SENTENCES[0]


@pytest.fixture(scope="module")
def client(text_server):
    """A client for one of the served models, at its address or at that of one task."""

    def made(name, task=""):
        return InferenceClient(base_url=f"{text_server.url}/models/{name}{f'/pipeline/{task}' if task else ''}")

    return made


@pytest.fixture(scope="module")
def model(text_folders):
    return unmask.load(text_folders["masked"], precision="fp32")


def test_fill_mask(client, model):
    found = client("masked").fill_mask("The quick [MASK] fox.", top_k=4)
    (own,) = model.fill("The quick [MASK] fox.", top=4)
    assert [one.token_str for one in found] == [c["value"] for c in own["slots"][0]["candidates"]]
    assert [one.score for one in found] == pytest.approx([c["probability"] for c in own["slots"][0]["candidates"]])
    assert found[0].sequence == own["filled"]
    assert all(model.tokenizer.token(one.token) == one.token_str for one in found)
    (only,) = client("masked").fill_mask("The quick [MASK] fox.", targets=["brown"])
    assert only.token_str == "brown"
    words = ["brown", "quick", "fox"]
    ranked = fill_mask(model, "The quick [MASK] fox.", targets=words)
    assert len(ranked) == 3
    assert fill_mask(model, "The quick [MASK] fox.", targets=words, top_k=1) == ranked[:1]
    (served,) = client("masked").fill_mask("The quick [MASK] fox.", targets=words, top_k=1)
    assert served.token_str == ranked[0]["token_str"]


def test_feature_extraction(client, model):
    asked = client("masked", "feature-extraction")
    np.testing.assert_allclose(asked.feature_extraction(TEXT), model.embed(TEXT), atol=2e-5)
    np.testing.assert_allclose(asked.feature_extraction([TEXT, "a"]), model.embed([TEXT, "a"]), atol=2e-5)
    normal = asked.feature_extraction(TEXT, normalize=True, dimensions=4)
    assert normal.shape == (1, 4)


def test_sentence_similarity(client, model):
    found = client("masked").sentence_similarity(TEXT, other_sentences=[TEXT, SENTENCES[2]])
    own = model.embed([TEXT, SENTENCES[2]], normalise=True)
    assert found == pytest.approx([1.0, float(own[0] @ own[1])], abs=1e-4)


def test_zero_shot_classification(client):
    for name in ("masked", "nli"):
        found = client(name).zero_shot_classification(TEXT, ["quick", "lazy"])
        assert {one.label for one in found} == {"quick", "lazy"}
        assert sum(one.score for one in found) == pytest.approx(1)
    with pytest.raises(HfHubHTTPError, match="multi_label"):
        client("masked").zero_shot_classification(TEXT, ["quick", "lazy"], multi_label=True)


def test_text_classification(client, text_folders):
    found = client("classify").text_classification(TEXT)
    (own,) = unmask.predict(text_folders["classify"], [TEXT], precision="fp32")
    assert {one.label: one.score for one in found} == pytest.approx(own["probabilities"], abs=1e-5)
    assert found[0].score >= found[1].score
    assert len(client("classify").text_classification(TEXT, top_k=1)) == 1


def test_token_classification(client, text_folders):
    text = "Ada lived in London"
    found = client("tag").token_classification(text)
    (own,) = unmask.predict(text_folders["tag"], [text], precision="fp32")
    assert [(e.start, e.end, e.entity_group, e.word) for e in found] == [
        (e["start"], e["end"], e["label"], e["text"]) for e in own["entities"]
    ]


def test_question_answering(client):
    context = "Ada lived in London near the river."
    found = client("answer").question_answering(question="Who lived there?", context=context)
    assert context[found.start : found.end] == found.answer
    several = client("answer").question_answering(question="Who lived there?", context=context, top_k=3)
    assert len(several) == 3
    assert several[0].score >= several[1].score


def test_what_a_client_asks_of_the_wrong_model_is_said(client):
    with pytest.raises(HfHubHTTPError, match="pipeline/feature-extraction"):
        client("masked").feature_extraction("no blank in it")
    with pytest.raises(HfHubHTTPError, match="does not answer"):
        client("classify", "fill-mask").fill_mask("[MASK]")
    with pytest.raises(HfHubHTTPError, match="align_to_words"):
        client("answer").question_answering(question="a", context="b", align_to_words=True)


def test_health_and_info(text_server):
    client = InferenceClient(f"{text_server.url}/models/masked", provider="hf-inference")
    assert client.health_check()
    assert client.get_endpoint_info()["model_id"] == "masked"


def test_openai_embeddings(text_server, model):
    own = model.embed([TEXT, "a"])
    body = {"model": "masked", "input": [TEXT, "a"]}
    status, found = text_server.post("/v1/embeddings", body)
    assert (status, found["object"], found["model"]) == (200, "list", "masked")
    assert [row["index"] for row in found["data"]] == [0, 1]
    np.testing.assert_allclose([row["embedding"] for row in found["data"]], own, atol=2e-5)
    assert found["usage"]["total_tokens"] == sum(map(len, model.tokenizer.ids([TEXT, "a"])))
    packed = text_server.post("/v1/embeddings", body | {"encoding_format": "base64", "user": "me"})[1]["data"]
    for row, vector in zip(packed, own, strict=True):
        np.testing.assert_allclose(np.frombuffer(base64.b64decode(row["embedding"]), "<f4"), vector, atol=2e-5)
    short = text_server.post("/v1/embeddings", body | {"dimensions": 5})[1]["data"]
    assert len(short[0]["embedding"]) == 5
    one = text_server.post("/v1/embeddings", body | {"input": TEXT})[1]
    assert len(one["data"]) == 1


def test_openai_embeddings_are_counted_under_their_model(text_server):
    body = {"model": "masked", "input": [TEXT]}
    assert text_server.post("/v1/embeddings", body)[0] == 200
    assert text_server.post("/v1/embeddings", {"model": "masked", "input": 3})[0] == 400
    assert text_server.post("/v1/embeddings", {"model": "nobody", "input": 3})[0] == 404
    counted = text_server.send("GET", "/metrics")[2].decode()
    for status in (200, 400):
        assert f'unmask_requests_total{{model="masked",action="openai/embeddings",status="{status}"}}' in counted
    assert 'model="",action="openai/embeddings",status="404"' in counted


def test_openais_client_is_told_why(text_server):
    """It shows `error.message`, and without it "Error code: 400" alone."""
    status, found = text_server.post("/v1/embeddings", {"model": "masked", "input": [3]})
    assert status == 400
    error = found["error"]
    assert error["message"].startswith(error["what"])
    assert error["hint"].rstrip(".") in error["message"]


def test_text_embeddings_inferences_clients_are_told_why(text_server, client):
    path = "/models/masked/tei/embed"
    status, found = text_server.post(path, {"inputs": [3]})
    assert (status, set(found), found["error_type"]) == (400, {"error", "error_type"}, "Validation")
    assert "inputs" in found["error"]
    assert text_server.post("/embed", {"inputs": "a"})[1]["error_type"] == "Validation"  # several models: which one?
    with pytest.raises(HfHubHTTPError, match="the model takes 64"):
        InferenceClient(base_url=f"{text_server.url}{path}").feature_extraction("word " * 200)


def test_text_embeddings_inference(text_server, model):
    own = model.embed([TEXT, "a"], normalise=True)
    path = "/models/masked/tei/embed"
    np.testing.assert_allclose(text_server.post(path, {"inputs": [TEXT, "a"]})[1], own, atol=2e-5)
    np.testing.assert_allclose(
        text_server.post(path, {"inputs": TEXT, "normalize": False})[1], model.embed([TEXT]), atol=2e-5
    )
    assert text_server.post(path, {"inputs": "word " * 200})[0] == 400
    assert text_server.post(path, {"inputs": "word " * 200, "truncate": True})[0] == 200
    one = text_server.post("/models/classify/tei/predict", {"inputs": TEXT})[1]
    several = text_server.post("/models/classify/tei/predict", {"inputs": [[TEXT], [TEXT]]})[1]
    for row in several:
        assert [r["label"] for r in row] == [r["label"] for r in one]
        assert [r["score"] for r in row] == pytest.approx([r["score"] for r in one], abs=1e-5)
    assert {row["label"] for row in one} == {"good", "bad"}
    assert text_server.get("/models/masked/info")[1]["max_input_length"] == 64
