"""Encoders without padding say what they say in training: every family, every length, every number format."""

import numpy as np
import pytest
import torch

import unmask
from published import CASES, VOCABULARY, published
from text_corpus import SENTENCES
from unmask.core.batch import Example, pack
from unmask.encoder import inference_encoder, local_global
from unmask.encoder.inference_encoder import has_eight_bit_form, has_inference_form
from unmask.errors import UserError
from unmask.kernels import inference_attention
from unmask.kernels.fused_linear import FusedLinear
from unmask.modalities.text.uses.padding_free import PaddingFreeEmbedder


@pytest.mark.parametrize("name", CASES)
def test_every_state_is_the_cores(name, tmp_path, monkeypatch):
    monkeypatch.setattr(local_global, "BAND", 8)
    monkeypatch.setattr(inference_attention, "QUERIES", 16)
    monkeypatch.setattr(inference_attention, "SCORES", 16 * 40 * 3)  # three heads, or one at a time
    published(name, tmp_path)
    loaded = unmask.load(tmp_path, precision="fp32", device="cpu")
    model = loaded.model
    assert has_inference_form(model.encoder)
    model.encoder.batch_invariant = False
    rng = np.random.default_rng(0)
    texts = [rng.integers(5, VOCABULARY, n) for n in (64, 63, 40, 40, 17, 9, 9, 9, 2, 1)]
    for precision, tolerance in (("fp32", 2e-5), ("bf16", 0.15)):
        embedder = PaddingFreeEmbedder.of(model, precision)
        with torch.inference_mode():
            found = embedder.states(texts).float().split([len(t) for t in texts])
            for text, mine in zip(texts, found, strict=True):
                batch = pack([Example(values={"token": text}, identity=0)], slots=len(text))
                exact = model.states(batch)[0]
                assert (mine - exact).norm() / exact.norm() < tolerance


@pytest.mark.parametrize(
    "name", ["bert", "roberta", "albert-groups", "mpnet", "deberta-v3", "longformer", "bigbird", "modernbert"]
)
def test_embeddings_in_every_number_format(name, tmp_path):
    published(name, tmp_path)
    model = unmask.load(tmp_path, precision="fp32", device="cpu")
    texts = [s[:60] for s in SENTENCES] + ["x"]
    for pooling in ("mean", "first", "max"):
        fast = model.embed(texts, pooling=pooling)
        model.__dict__["padding_free"], model.model.encoder.batch_invariant = None, False
        plain = model.embed(texts, pooling=pooling)
        del model.__dict__["padding_free"]
        np.testing.assert_allclose(fast, plain, atol=1e-4, rtol=1e-4)
    exact = model.embed(texts, normalise=True)
    half = unmask.load(tmp_path, precision="bf16", device="cpu").embed(texts, normalise=True)
    assert (half * exact).sum(1).min() > 0.99
    eight = unmask.load(tmp_path, precision="int8", device="cpu")
    if has_eight_bit_form(model.model.encoder.config):
        assert (eight.embed(texts, normalise=True) * exact).sum(1).mean() > 0.98
    else:
        with pytest.raises(UserError, match="int8"):
            eight.embed(texts)


@pytest.mark.parametrize("multiplies", [False, True])
def test_int8_asks_for_bf16_only_where_the_processor_multiplies_it(multiplies, tmp_path, monkeypatch):
    monkeypatch.setattr(inference_encoder, "multiplies_bf16", lambda: multiplies)
    published("bert", tmp_path)
    embedder = unmask.load(tmp_path, precision="int8", device="cpu").padding_free
    asked = {layer.qkv.out_type for _, layer, _ in embedder.encoder.layers}
    assert asked == {torch.bfloat16 if multiplies else torch.float32}


def test_a_text_alone_is_hardly_padded(tmp_path, monkeypatch):
    seen = []
    whole = FusedLinear.__call__
    monkeypatch.setattr(FusedLinear, "__call__", lambda self, x: seen.append(len(x)) or whole(self, x))
    published("bert", tmp_path)
    embedder = unmask.load(tmp_path, precision="fp32", device="cpu").padding_free
    for lengths, rows in (([1], 16), ([16], 16), ([17], 32), ([54], 64), ([64] * 5 + [1], 6 * 64)):
        seen.clear()
        embedder.embed([np.full(length, 5) for length in lengths])
        assert set(seen) == {rows}, lengths
