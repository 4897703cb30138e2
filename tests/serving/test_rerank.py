"""Texts ordered by their relevance to a query: by a model of pairs, and by an embedder's cosine."""

from __future__ import annotations

import pytest

import unmask
from running_server import running
from text_corpus import SENTENCES
from tiny_folders import folder, sentiment
from unmask.modalities.text.tasks.finetune import finetune
from unmask.serving.limits import Limits
from unmask.serving.models import load_served

FAST = {"start": "plain", "epochs": 1, "batch": 8, "learning_rate": 3e-3, "precision": "fp32", "dropout": 0.0}
QUERY, TEXTS = SENTENCES[0], [text for text in SENTENCES[1:6] if len(text) < 70]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("rerank")
    base = folder(root / "base")
    texts = [text for text, _ in sentiment(24)]
    pairs = list(zip(texts, texts[1:] + texts[:1], range(len(texts)), strict=True))
    data = {
        "relevant": ("classify", [(a, b, str(n % 2)) for a, b, n in pairs]),
        "number": ("classify", [(a, b, n / 50) for a, b, n in pairs]),
        "named": ("classify", [(a, b, "ab"[n % 2]) for a, b, n in pairs]),
        "similar": ("similarity", [(a, b, n / 50) for a, b, n in pairs]),
    }
    for name, (task, rows) in data.items():
        finetune(base, rows, task=task, out=root / name, **FAST)
    return {name: root / name for name in data}


@pytest.fixture(scope="module")
def server(folders):
    named = {name: str(path) for name, path in folders.items()}
    with running(load_served(named, Limits(), device="cpu", precision="fp32")) as asked:
        yield asked


def own_scores(folders, name):
    if name == "similar":
        vectors = unmask.load(folders[name], precision="fp32").embed([QUERY, *TEXTS], normalise=True)
        return (vectors[1:] @ vectors[0]).tolist()
    rows = unmask.predict(folders[name], [(QUERY, text) for text in TEXTS], precision="fp32")
    return [row["value"] if name == "number" else row["probabilities"]["1"] for row in rows]


@pytest.mark.parametrize("name", ["relevant", "number", "similar"])
def test_scores_are_those_of_the_model_in_both_dialects(server, folders, name):
    own = own_scores(folders, name)
    order = sorted(range(len(TEXTS)), key=lambda n: -own[n])
    body = {"query": QUERY, "texts": TEXTS, "return_text": True}
    status, found = server.post(f"/models/{name}/tei/rerank", body)
    assert status == 200, found
    assert [row["index"] for row in found] == order
    assert [row["score"] for row in found] == pytest.approx([own[n] for n in order], abs=1e-4)
    assert [row["text"] for row in found] == [TEXTS[n] for n in order]
    documents = [TEXTS[0], *({"text": text} for text in TEXTS[1:])]
    for path in ("/v1/rerank", "/v2/rerank"):
        status, found = server.post(path, {"model": name, "query": QUERY, "documents": documents, "top_n": 2})
        assert status == 200, found
        assert [row["index"] for row in found["results"]] == order[:2]
        assert found["results"][0]["document"] == {"text": TEXTS[order[0]]}
        assert found["results"][0]["relevance_score"] == pytest.approx(own[order[0]], abs=1e-4)
    bare = server.post("/v1/rerank", {"model": name, "query": "a", "documents": ["b"], "return_documents": False})[1]
    assert bare["results"][0].keys() == {"index", "relevance_score"}


def test_the_only_model_that_orders_needs_no_name(folders):
    named = {name: str(folders[name]) for name in ("relevant", "named")}
    with running(load_served(named, Limits(), device="cpu", precision="fp32")) as server:
        assert server.post("/rerank", {"query": QUERY, "texts": TEXTS})[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/models/relevant/tei/rerank", {"query": "a"}, 400, "texts: not there"),
        ("/models/relevant/tei/rerank", {"query": "a", "texts": []}, 400, "texts: 0 values"),
        ("/models/relevant/tei/rerank", {"query": "a", "texts": ["b"], "raw_scores": True}, 400, "raw_scores"),
        ("/models/relevant/tei/rerank", {"query": "a", "texts": ["long " * 500]}, 400, "tokens, the model takes"),
        ("/models/named/tei/rerank", {"query": "a", "texts": ["b"]}, 404, "named does not answer rerank"),
        ("/v1/rerank", {"model": "relevant", "query": "a", "documents": [3]}, 400, "documents[0]: a number"),
        ("/v1/rerank", {"model": "relevant", "query": "a", "documents": ["b"], "topn": 1}, 400, "topn: no such key"),
        ("/v1/rerank", {"model": "named", "query": "a", "documents": ["b"]}, 404, "model 'named'"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, 400, "no model is named"),
    ],
)
def test_wrong_input_is_named_in_the_words_of_the_dialect(server, path, body, status, said):
    got, found = server.post(path, body)
    assert got == status
    assert said in (found["error"] if "tei" in path else found["error"]["message"])


def test_long_texts_are_cut_where_that_is_asked_for(server):
    body = {"query": "a", "texts": ["long " * 500], "truncate": True}
    for name in ("relevant", "similar"):
        assert server.post(f"/models/{name}/tei/rerank", body)[0] == 200


def test_it_stands_in_the_documentation(server):
    paths = server.get("/openapi.json")[1]["paths"]
    assert {"/v1/rerank", "/models/relevant/tei/rerank"} <= set(paths)
    assert "/models/named/tei/rerank" not in paths
