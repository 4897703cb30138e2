"""Retrieval evaluation from BEIR's files, through the command, on a model fine-tuned for similarity."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tiny_folders import folder, sentiment
from unmask.cli import main
from unmask.errors import UserError
from unmask.modalities.text.tasks.finetune import finetune, predict
from unmask.modalities.text.tasks.retrieval import read_collection
from unmask.modalities.text.uses.model import load

TEXTS = ["The quick brown fox", "Readers check sources", "jumps over the dog", "of the river bank"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    home = tmp_path_factory.mktemp("similar")
    texts = [t for t, _ in sentiment(8)]
    finetune(
        folder(home / "model"),
        texts,
        task="similarity",
        out=home / "out",
        steps=1,
        precision="fp32",
        pooling="first",
        slots=16,
    )
    return home / "out"


def collection(home, qrels):
    (home / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{i}", "title": t.split()[0], "text": " ".join(t.split()[1:])} for i, t in enumerate(TEXTS)]
    documents.append({"_id": "q0", "text": TEXTS[0]})  # the first query itself
    queries = [{"_id": f"q{i}", "text": t} for i, t in enumerate(TEXTS)]
    for name, rows in (("corpus", documents), ("queries", queries)):
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + qrels)
    return home


def evaluated(arguments, capsys):
    with pytest.raises(SystemExit) as done:
        main(["evaluate", *map(str, arguments), "--json"])
    assert done.value.code == 0
    return json.loads(capsys.readouterr().out)


def test_documents_are_found_by_their_vectors(model, tmp_path, capsys):
    # Each query has the words of one document. q1 has a second, unlike it; q3's one is not relevant, only judged.
    data = collection(tmp_path / "beir", "q0\td0\t1\nq1\td1\t2\nq1\td3\t1\nq2\td2\t1\nq3\td3\t0\n")
    found = evaluated([model, data], capsys)
    assert (found["task"], found["queries"], found["documents"]) == ("retrieval", 3, 5)
    assert found["mrr@10"] == 1.0  # a document of the query's own name is not looked at
    words = found["figures"]["rule"]
    assert words["name"] == "shared words (TF-IDF)"
    assert words["mrr@10"] == 1.0  # each query has the words of its document
    assert words["ndcg@10"] <= 1.0
    assert found["recall@10"] == found["recall@100"] == 1.0
    assert found["low"] <= found["value"] == found["ndcg@10"] <= found["high"] == 1.0
    assert evaluated([model.parent / "model", data], capsys)["mrr@10"] == 1.0


def test_judgements_of_what_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"test\.tsv:3: 'd9' is not in corpus\.jsonl"):
        read_collection(collection(tmp_path / "a", "q0\td0\t1\nq0\td9\t1\n"))
    with pytest.raises(UserError, match="no query has a relevant document"):
        read_collection(collection(tmp_path / "b", "q0\td0\t0\n"))
    (tmp_path / "b" / "qrels" / "test.tsv").unlink()
    with pytest.raises(UserError, match=r"qrels: no \.tsv file"):
        read_collection(tmp_path / "b")


def test_a_similarity_model_embeds_as_it_was_trained(model):
    texts = [TEXTS[0], "the fox " * 20]
    expected = np.array([row["embedding"] for row in predict(model, texts)])
    np.testing.assert_allclose(load(model, precision="fp32").embed(texts), expected, atol=1e-5)


@pytest.mark.parametrize("rows", ["q0\td0\t1\r\nq2\td2\t0\r\n", "q0 0 d0 1\nq2 Q0 d2 0\n", "q0\t1\td0\t1\n"])
def test_judgements_without_a_header_and_of_trec_are_read(rows, tmp_path):
    judged = (collection(tmp_path / "a", "") / "qrels" / "test.tsv").write_text
    judged(rows)
    found = read_collection(tmp_path / "a")
    assert (found.queries, found.relevant) == (TEXTS[:1], [{0: 1.0}])
    judged("q0\td0\n")
    with pytest.raises(UserError, match=r"test\.tsv:1: 2 columns"):
        read_collection(tmp_path / "a")
