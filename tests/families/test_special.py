"""What transformers has no model of, or hides: NeoBERT, the enhanced mask decoder, Longformer's global slot, long
bands."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from text_corpus import tokenizer
from unmask.core.batch import Example, pack
from unmask.core.corruption import hide
from unmask.encoder.attention import AttentionLayout, reference
from unmask.kernels.bands import banded
from unmask.modalities.text.network.folder import load_folder, save_folder

transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402

from published import VOCABULARY, published  # noqa: E402


def neobert_logits(w, ids, layers, heads):
    """NeoBERT's published forward pass, written out: rotary by complex numbers, queries, keys, values by head."""
    x = w["model.encoder.weight"][ids]
    depth = x.shape[-1] // heads
    angle = torch.outer(torch.arange(len(ids)).float(), 10_000 ** (-torch.arange(0, depth, 2).float() / depth))
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]

    def rms(t, name):
        return t * torch.rsqrt(t.square().mean(-1, keepdim=True) + 1e-6) * w[name]

    def rotate(t):
        return torch.view_as_real(torch.view_as_complex(t.reshape(*t.shape[:-1], -1, 2)) * turn).flatten(2)

    for i in range(layers):
        at = f"model.transformer_encoder.{i}"
        qkv = (rms(x, f"{at}.attention_norm.weight") @ w[f"{at}.qkv.weight"].t()).view(len(ids), heads, 3 * depth)
        q, k, v = qkv.chunk(3, -1)
        q, k, v = (t.transpose(0, 1) for t in (rotate(q), rotate(k), v))
        mixed = F.scaled_dot_product_attention(q[None], k[None], v[None])[0].transpose(0, 1).reshape(len(ids), -1)
        x = x + mixed @ w[f"{at}.wo.weight"].t()
        a, b = (rms(x, f"{at}.ffn_norm.weight") @ w[f"{at}.ffn.w12.weight"].t()).chunk(2, -1)
        x = x + (F.silu(a) * b) @ w[f"{at}.ffn.w3.weight"].t()
    return rms(x, "model.layer_norm.weight") @ w["decoder.weight"].t() + w["decoder.bias"]


def test_neobert(tmp_path, rng):
    heads, width, layers, inner = 4, 32, 3, 32
    config = {
        "model_type": "neobert",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 48,
        "vocab_size": VOCABULARY,
        "max_length": 64,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = {
        "model.encoder.weight": (VOCABULARY, width),
        "model.layer_norm.weight": (width,),
        "decoder.weight": (VOCABULARY, width),
        "decoder.bias": (VOCABULARY,),
    }
    for i in range(layers):
        at = f"model.transformer_encoder.{i}"
        shapes |= {
            f"{at}.qkv.weight": (3 * width, width),
            f"{at}.wo.weight": (width, width),
            f"{at}.attention_norm.weight": (width,),
            f"{at}.ffn_norm.weight": (width,),
            f"{at}.ffn.w12.weight": (2 * inner, width),
            f"{at}.ffn.w3.weight": (width, inner),
        }
    weights = {k: torch.tensor(rng.normal(0, 0.3, s), dtype=torch.float32) for k, s in shapes.items()}
    save_file(weights, tmp_path / "model.safetensors")
    tokenizer("wordpiece").save(tmp_path)
    loaded = load_folder(tmp_path)
    assert loaded.why_not_masked() is None
    for n in (1, 20, 64):
        ids = rng.integers(5, VOCABULARY, n)
        torch.testing.assert_close(
            logits(loaded, ids), neobert_logits(weights, torch.tensor(ids), layers, heads), atol=1e-4, rtol=1e-4
        )
    out = tmp_path / "again"
    save_folder(
        out,
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        family=loaded.family,
        hf_config=loaded.hf_config,
        like=loaded.loaded,
    )
    after = load_file(out / "model.safetensors")
    assert after.keys() == weights.keys()
    assert all(torch.equal(after[k], weights[k]) for k in weights)


def logits(loaded, ids, beside=()):
    batch = pack([Example(values={"token": i}, identity=n) for n, i in enumerate((ids, *beside))], slots=64)
    mine = (batch.index.flatten() == 0).nonzero().flatten()
    with torch.inference_mode():
        return loaded.model(batch, hide(torch.zeros(0, dtype=torch.int64)), wanted=mine).logits


def test_enhanced_mask_decoder(tmp_path, rng):
    """The last layer asked twice by absolute positions: built from transformers' own layers."""
    theirs = published("deberta-v3", tmp_path)
    table = torch.tensor(rng.normal(0, 0.5, (64, 32)), dtype=torch.float32)
    weights = load_file(tmp_path / "model.safetensors")
    name = "deberta.embeddings.position_embeddings.weight"
    save_file(weights | {name: table}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded = load_folder(tmp_path)
    assert loaded.model.encoder.config.positions.decoder_steps == 2
    ids = rng.integers(5, VOCABULARY, 40)
    encoder = theirs.deberta.encoder
    with torch.inference_mode():
        before = theirs.deberta(torch.tensor(ids)[None], output_hidden_states=True).hidden_states[-2]
        asked = before + table[:40]
        mask = encoder.get_attention_mask(torch.ones(1, 40))
        for _ in range(2):
            asked, _ = encoder.layer[-1](
                before,
                mask,
                query_states=asked,
                relative_pos=encoder.get_rel_pos(before),
                rel_embeddings=encoder.get_rel_embedding(),
            )
        expected = theirs.lm_predictions(asked, theirs.deberta.embeddings.word_embeddings)[0]
    torch.testing.assert_close(logits(loaded, ids, [ids[:20]]), expected, atol=1e-4, rtol=1e-4)
    save_folder(
        tmp_path / "again",
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        family=loaded.family,
        hf_config=loaded.hf_config,
        like=loaded.loaded,
    )
    _, info = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "again", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]


@pytest.mark.parametrize("window", [2, 16])
@pytest.mark.parametrize("extra", [False, True])
def test_bands_are_the_masked_product(window, extra, rng):
    q, k, v = (torch.tensor(rng.normal(size=(2, 3, 203, 8)), dtype=torch.float32) for _ in range(3))
    segment = torch.tensor(np.repeat([1, 2, 0], [120, 70, 13]))[None].expand(2, -1).contiguous()
    segment[1] = 1
    position = torch.cat([torch.arange(120), torch.arange(70), torch.arange(13)])[None].expand(2, -1).contiguous()
    position[1] = torch.arange(203)
    layout = AttentionLayout(segment=segment, position=position)
    allowed = layout.allowed(window)
    columns = None
    if extra:
        columns = torch.tensor([[0, 120], [0, -1]])
        allowed = layout.allowed(None) & (allowed | ((position == 0) & (segment > 0))[:, None, None])
    out = banded(q, k, v, layout, window, extra=columns)
    expected = reference(q, k, v, allowed, 8**-0.5)
    real = segment[:, None, :, None] > 0
    torch.testing.assert_close(out * real, expected * real, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["longformer", "modernbert-long", "bigbird"])
def test_long_rows_with_neighbours(family, tmp_path, rng):
    """Long rows take another road than short ones: an example's prediction is the same on both."""
    published(family, tmp_path)
    loaded = load_folder(tmp_path)
    ids = rng.integers(5, VOCABULARY, 60)
    alone = logits(loaded, ids)
    batch = pack(
        [
            Example(values={"token": ids}, identity=0),
            *(Example(values={"token": rng.integers(5, VOCABULARY, n)}, identity=n) for n in (50, 40, 30)),
        ],
        slots=200,
    )
    mine = (batch.index.flatten() == 0).nonzero().flatten()
    for wanted in (mine, mine[::7]):
        with torch.inference_mode():
            packed = loaded.model(batch, hide(torch.zeros(0, dtype=torch.int64)), wanted=wanted).logits
        torch.testing.assert_close(packed, alone if len(wanted) == 60 else alone[::7], atol=1e-4, rtol=1e-4)
