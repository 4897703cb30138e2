"""Law 12. A text's answer has the same bits alone and in any batch: for every family, verb and number format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import unmask
from published import CASES, published, task_head
from running_server import running
from text_corpus import SENTENCES
from unmask.kernels.fused_linear import FusedLinear, multiplies_bf16, row_blocks
from unmask.serving.limits import Limits
from unmask.serving.models import load_served
from unmask.training.precision import bf16_features

EIGHT_BITS = ("bert", "albert", "mpnet", "roberta", "longformer", "bigbird", "deberta-v3")
TEXTS = [s[: 10 + 3 * i] for i, s in enumerate(SENTENCES[:5] * 6)]
BESIDE: tuple[list[int], ...] = ([3, 0], [7, 6, 5, 4, 0, 2, 1], [*range(1, 30), 0])
"""Batches, by the numbers of their texts, with text 0 among them."""


def check(answer: Callable[[Sequence[Any]], Any], inputs: Sequence[Any] = TEXTS) -> None:
    """Input 0 gets the same bits alone and beside others, wherever it stands."""
    alone = answer(inputs[:1])[0]
    for numbers in BESIDE:
        found = answer([inputs[i] for i in numbers])[numbers.index(0)]
        assert np.array_equal(found, alone), (numbers, found, alone)


def precisions(name: str) -> list[str]:
    half = ["bf16"] if multiplies_bf16() else []
    return ["fp32", *half, *(["int8"] if name in EIGHT_BITS else [])]


@pytest.mark.parametrize("name", CASES)
def test_masked_models(name: str, tmp_path):
    published(name, tmp_path)
    for precision in precisions(name):
        model = unmask.load(tmp_path, precision=precision, device="cpu")
        for pooling in ("mean", "first"):
            check(lambda texts, m=model, p=pooling: m.embed(texts, pooling=p))
        if precision == "int8":
            continue
        check(lambda texts, m=model: [row["score"] for row in m.score(texts)])
        check(
            lambda texts, m=model: [
                [c["probability"] for c in row["slots"][0]["candidates"]]
                for row in m.fill([f"[MASK] {t}" for t in texts])
            ]
        )


@pytest.mark.parametrize("precision", precisions(""))
def test_with_two_threads(precision: str, tmp_path):
    published("bert", tmp_path)
    model = unmask.load(tmp_path, precision=precision, device="cpu")
    torch.set_num_threads(2)
    try:
        check(model.embed)
        check(lambda texts: [row["score"] for row in model.score(texts)])
    finally:
        torch.set_num_threads(1)


@pytest.mark.skipif("AMX" in bf16_features(), reason="with AMX a server has one core for each text")
@pytest.mark.parametrize("shape", [(1152, 384), (384, 1536), (2304, 768), (768, 3072), (1024, 4096)])
@pytest.mark.parametrize("dtype", [torch.float32, *([torch.bfloat16] if multiplies_bf16() else [])])
def test_one_core_or_two(shape: tuple[int, int], dtype: torch.dtype):
    """A server gives a text that comes alone two cores, and one beside others."""
    half = torch.randn(shape[0], shape[1] // 2)
    linear = FusedLinear.of(torch.cat([half, -half], 1), torch.zeros(shape[0]), dtype)
    try:
        for rows in (16, 48, 64, 128, 448):
            x = torch.randn(rows, shape[1] // 2).repeat(1, 2).to(dtype)  # sums of 0 but for rounding
            found = []
            for threads in (1, 2):
                torch.set_num_threads(threads)
                found.append(linear(x))
            assert torch.equal(*found), rows
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("precision", precisions(""))
def test_blanks_that_see_each_other(precision: str, tmp_path):
    published("bert", tmp_path)
    model = unmask.load(tmp_path, precision=precision, device="cpu")
    check(lambda texts: [_said(row) for row in model.fill([f"[MASK] {t} [MASK] [MASK]" for t in texts], steps=3)])
    check(lambda texts: [_said(row) for row in model.fill([f"[MASK] {t}" for t in texts], longest=2)])


@pytest.mark.parametrize("precision", precisions(""))
def test_a_mask_decoder(precision: str, tmp_path):
    published("deberta-v3", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["deberta.embeddings.position_embeddings.weight"] = torch.randn(64, 32)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = unmask.load(tmp_path, precision=precision, device="cpu")
    assert model.model.encoder.config.positions.decoder_steps
    check(lambda texts: [row["score"] for row in model.score(texts)])
    check(lambda texts: [_said(row) for row in model.fill([f"[MASK] {t}" for t in texts])])


@pytest.mark.parametrize("precision", precisions("bert"))
def test_the_server(precision: str, tmp_path):
    """Requests of eight clients share batches, and get what the model says of each text alone."""
    published("bert", tmp_path)
    model = unmask.load(tmp_path, precision=precision, device="cpu")
    blanked = [f"[MASK] {text}" for text in TEXTS]
    asked = [("embed", {"texts": text}) for text in TEXTS]
    if precision != "int8":
        asked += [(verb, {"texts": text}) for verb, texts in (("fill", blanked), ("score", TEXTS)) for text in texts]
    served = running(load_served({"m": str(tmp_path)}, Limits(), device="cpu", precision=precision), threads=2)
    with served as server, ThreadPoolExecutor(8) as clients:
        answers = [found for _, found in clients.map(lambda one: server.post(f"/models/m/{one[0]}", one[1]), asked)]
    vectors = np.array([found["embeddings"] for found in answers[: len(TEXTS)]], np.float32)
    assert np.array_equal(vectors, np.stack([model.embed(text) for text in TEXTS])[:, 0].reshape(vectors.shape))
    if precision != "int8":
        filled, scored = answers[len(TEXTS) : 2 * len(TEXTS)], answers[2 * len(TEXTS) :]
        for found, text in zip(filled, blanked, strict=True):
            assert found["results"][0]["log_probability"] == model.fill([text])[0]["log_probability"]
        for found, text in zip(scored, TEXTS, strict=True):
            assert found["results"][0]["score"] == model.score([text])[0]["score"]


def _said(row: Mapping[str, Any]) -> str:
    """Without the number of the row."""
    return str({key: value for key, value in row.items() if key not in ("id", "input")})


@pytest.mark.parametrize("name", ["bert", "modernbert", "longformer", "deberta-v2"])
@pytest.mark.parametrize("task", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
def test_fine_tuned_models(name: str, task: str, tmp_path):
    if name == "longformer" and task != "SequenceClassification":
        pytest.skip("no published head")
    task_head(name, task, tmp_path)
    if task == "TokenClassification":
        config = json.loads((tmp_path / "config.json").read_text())
        config |= {"id2label": {"0": "O", "1": "B-X", "2": "I-X"}, "label2id": {"O": 0, "B-X": 1, "I-X": 2}}
        (tmp_path / "config.json").write_text(json.dumps(config))
    inputs: list[Any] = TEXTS
    if task == "QuestionAnswering":
        inputs = [{"question": "what?", "context": text} for text in TEXTS]
    for precision in precisions(""):
        model = unmask.load(tmp_path, precision=precision, device="cpu")
        check(lambda given, m=model: [_said(row) for row in m.predict(given)], inputs)


def test_labels_without_training(tmp_path):
    published("bert", tmp_path)
    model = unmask.load(tmp_path, precision="fp32", device="cpu")
    check(
        lambda texts: [list(row["probabilities"].values()) for row in model.zero_shot(texts, ["fox", "dog"])],
        [t for t in TEXTS if t.isascii()],
    )


@pytest.mark.parametrize("dtype", [torch.float32, *([torch.bfloat16] if multiplies_bf16() else [])])
@pytest.mark.parametrize("shape", [(384, 1536), (768, 768)])
def test_products_of_the_sizes_of_published_models(shape: tuple[int, int], dtype: torch.dtype):
    """Sums that are 0 but for rounding, which shows in every digit in which order they were added."""
    half = torch.randn(shape[0], shape[1] // 2)
    linear = FusedLinear.of(torch.cat([half, -half], 1), None, dtype)
    for rows in (16, 48, 80, 448, 704, 1088):
        x = torch.randn(rows, shape[1] // 2).repeat(1, 2).to(dtype)
        parts = F.pad(x, (0, 0, 0, -rows % 64)).split(64)
        alone = torch.cat([linear.multiply(part, None) for part in parts])[:rows]
        assert torch.equal(linear(x), alone)
        assert torch.equal(linear.plus(x, torch.zeros(rows, shape[0], dtype=dtype)), alone)
    assert sum(row_blocks(448, shape, dtype, ("none", False, False), torch.get_num_threads())) == 448


def test_what_was_made_before_training_is_not_used_after(tmp_path):
    """Fused optimisers change weights without a trace."""
    published("bert", tmp_path)
    model = unmask.load(tmp_path, precision="fp32", device="cpu")
    encoder, scores = model.model.encoder, []
    for _ in range(2):
        scores.append([row["score"] for row in model.score(["ab cd ef"])])
        encoder.train()
        weights = [weight.requires_grad_() for weight in encoder.parameters()]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        torch.optim.AdamW(weights, lr=0.1, fused=True).step()
        encoder.eval()
    encoder.batch_invariant = False
    scores.append([row["score"] for row in model.score(["ab cd ef"])])
    encoder.batch_invariant = True
    assert scores[0] != scores[1]
    assert [row["score"] for row in model.score(["ab cd ef"])] == pytest.approx(scores[2], rel=1e-4)


def test_a_model_just_fine_tuned_keeps_to_it(tmp_path):
    published("bert", tmp_path / "model")
    rows = [(text, "ab"[number % 2]) for number, text in enumerate(dict.fromkeys(TEXTS))]
    done = unmask.finetune(tmp_path / "model", rows, tmp_path / "out", task="classify", epochs=1, start="plain")
    check(lambda texts: [list(row["probabilities"].values()) for row in done.model.predict(list(texts))])
