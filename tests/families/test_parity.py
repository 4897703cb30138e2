"""Law 8: every family equals transformers on the same weights (1e-4 in fp32) and gives its tensors back bit for bit."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from text_corpus import tokenizer
from unmask.core.batch import Example, pack
from unmask.core.corruption import hide
from unmask.errors import UserError
from unmask.modalities.text.network.folder import load_folder, new_text_model, save_folder
from unmask.writing import note_weights

transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file  # noqa: E402

from published import CASES, IDS, SMALL, VOCABULARY, published, unswitched  # noqa: E402


def ours_all(model, texts: list[np.ndarray], slots: int) -> list[torch.Tensor]:
    """Logits of every slot, ragged examples packed beside each other."""
    batch = pack([Example(values={"token": ids}, identity=i) for i, ids in enumerate(texts)], slots=slots)
    real = (batch.segment.flatten() > 0).nonzero().flatten()
    with torch.inference_mode():
        logits = model(batch, hide(torch.zeros(0, dtype=torch.int64)), wanted=real).logits
    owner = batch.index.flatten()[real]
    return [logits[owner == i] for i in range(len(texts))]


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_and_weights_round_trip(name, tmp_path, rng):
    theirs = published(name, tmp_path)
    loaded = load_folder(tmp_path)
    assert loaded.random == []
    assert [n for n in loaded.ignored if "pooler" not in n] == []
    texts = [rng.integers(5, VOCABULARY, n) for n in (1, 2, 17, 30, 64)]
    for ids, mine in zip(texts, ours_all(loaded.model, texts, 64), strict=True):
        with torch.inference_mode():
            expected = unswitched(theirs)(input_ids=torch.tensor(ids)[None]).logits[0]
        torch.testing.assert_close(mine, expected, atol=1e-4, rtol=1e-4)
    out = tmp_path / "again"
    save_folder(
        out,
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        family=loaded.family,
        hf_config=loaded.hf_config,
        passengers=loaded.passengers,
    )
    before, after = load_file(tmp_path / "model.safetensors"), load_file(out / "model.safetensors")
    assert set(before) == set(after)
    assert all(torch.equal(before[k], after[k]) for k in before)
    again = transformers.AutoModelForMaskedLM.from_pretrained(out).eval()
    assert all(
        torch.equal(a, b) for a, b in zip(theirs.state_dict().values(), again.state_dict().values(), strict=True)
    )


def test_training_gradients_equal(tmp_path, rng):
    """The last layer computed only where needed, the head on hidden slots, the fused loss: all exact."""
    theirs = published("bert", tmp_path)
    model = load_folder(tmp_path).model
    ids = torch.tensor(rng.integers(5, VOCABULARY, (4, 64)))
    hidden = torch.tensor(sorted(rng.choice(256, 40, replace=False)))
    labels = torch.full((256,), -100)
    labels[hidden] = ids.flatten()[hidden]
    masked = ids.flatten().clone()
    masked[hidden] = 4
    theirs(input_ids=masked.view(4, 64), labels=labels.view(4, 64)).loss.backward()
    batch = pack([Example(values={"token": row.numpy()}, identity=i) for i, row in enumerate(ids)], slots=64)
    order = [int(batch.index[i, 0]) for i in range(4)]
    assert order == [0, 1, 2, 3]
    (model(batch, hide(hidden)).loss(ids.flatten()[hidden]) / len(hidden)).backward()
    expected = theirs.bert.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(model.codec.word.weight.grad, expected, atol=1e-5, rtol=1e-3)
    query = theirs.bert.encoder.layer[0].attention.self.query.weight.grad
    torch.testing.assert_close(model.encoder.layers[0].attention.qkv.weight.grad[:32], query, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("recipe", ["bert", "modern"])
def test_transformers_loads_our_own_models(recipe, tmp_path, rng):
    model, family = new_text_model(
        recipe, vocabulary=VOCABULARY, width=32, layers=4, heads=4, slots=64, tokenizer=tokenizer("wordpiece")
    )
    save_folder(tmp_path, model=model.eval(), tokenizer=tokenizer("wordpiece"), family=family)
    theirs, info = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    ids = rng.integers(5, VOCABULARY, 40)
    with torch.inference_mode():
        expected = theirs.eval()(input_ids=torch.tensor(ids)[None]).logits[0]
    torch.testing.assert_close(ours_all(model, [ids], 64)[0], expected, atol=1e-4, rtol=1e-4)


def test_poolers_and_heads_travel_along(tmp_path):
    torch.manual_seed(0)
    theirs = transformers.BertForPreTraining(transformers.BertConfig(**SMALL, max_position_embeddings=64))
    theirs.save_pretrained(tmp_path)
    tokenizer("wordpiece").save(tmp_path)
    loaded = load_folder(tmp_path)
    assert any("pooler" in name for name in loaded.ignored)
    save_folder(
        tmp_path / "again",
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        family=loaded.family,
        hf_config=loaded.hf_config,
        passengers=loaded.passengers,
    )
    before, after = (load_file(p / "model.safetensors") for p in (tmp_path, tmp_path / "again"))
    assert set(before) <= set(after) | {"cls.predictions.decoder.bias", "cls.predictions.decoder.weight"}
    assert all(torch.equal(before[k], after[k]) for k in set(before) & set(after))


def test_a_bare_encoder_says_that_its_head_is_random(tmp_path):
    transformers.BertModel(transformers.BertConfig(**SMALL, max_position_embeddings=64)).save_pretrained(tmp_path)
    tokenizer("wordpiece").save(tmp_path)
    assert any("cls.predictions" in name for name in load_folder(tmp_path).random)


def test_what_does_not_fit_is_named(tmp_path):
    published("bert", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "bert.encoder.layer.1.intermediate.dense.weight"
    save_file(weights | {name: torch.zeros(50, 32)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=rf"{name} has shape \[50, 32\], config.json implies \[48, 32\]"):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match=r"'gpt2'.*\n.*bert"):
        load_folder(tmp_path)


# Where the last block of a BigBird is depends on the padding there, never here.
@pytest.mark.parametrize("name", [name for name in CASES if name != "bigbird"])
def test_padding_there_and_packing_here_agree(name, tmp_path, rng):
    theirs = published(name, tmp_path)
    pad = theirs.config.pad_token_id
    texts = [rng.integers(5, VOCABULARY, n) for n in (1, 3, 40, 64)]
    ids = torch.full((len(texts), 64), pad)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    seen = torch.arange(64)[None] < torch.tensor([len(t) for t in texts])[:, None]
    with torch.inference_mode():
        expected = theirs(input_ids=ids, attention_mask=seen.long()).logits
    for row, mine in zip(expected, ours_all(load_folder(tmp_path).model, texts, 64), strict=True):
        torch.testing.assert_close(mine, row[: len(mine)], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["bert", "roberta", "electra-projected", "modernbert"])
@pytest.mark.parametrize("config_says_so", [True, False])
def test_a_projection_with_its_own_table(name, config_says_so, tmp_path, rng):
    """transformers unties two different tables even where the config says that they are one."""
    published(name, tmp_path)
    projection = {"bert": "cls.predictions.decoder", "roberta": "lm_head.decoder", "modernbert": "decoder"}
    projection = projection.get(name, "generator_lm_head")
    weights = load_file(tmp_path / "model.safetensors")
    table = next(v for k, v in weights.items() if k.endswith(("word_embeddings.weight", "tok_embeddings.weight")))
    weights[f"{projection}.weight"] = torch.randn_like(table)
    if name in ("bert", "roberta"):
        weights[f"{projection}.bias"] = torch.randn(VOCABULARY)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    if config_says_so:
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    loaded = load_folder(tmp_path)
    assert loaded.random == []
    ids = rng.integers(5, VOCABULARY, 30)
    with torch.inference_mode():
        expected = theirs(input_ids=torch.tensor(ids)[None]).logits[0]
    torch.testing.assert_close(ours_all(loaded.model, [ids], 64)[0], expected, atol=1e-4, rtol=1e-4)
    out = tmp_path / "again"
    save_folder(
        out,
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        family=loaded.family,
        hf_config=loaded.hf_config,
        passengers=loaded.passengers,
    )
    after = load_file(out / "model.safetensors")
    assert set(after) == set(weights)
    assert all(torch.equal(after[k], weights[k]) for k in weights)
    again, info = transformers.AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.inference_mode():
        assert torch.equal(again.eval()(input_ids=torch.tensor(ids)[None]).logits[0], expected)


def test_old_spellings_bare_encoders_and_copies(tmp_path):
    published("bert", tmp_path)
    file = tmp_path / "model.safetensors"
    new = load_file(file)
    old = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
        for k, v in new.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(64)[None]
    save_file(old, file)
    expected = load_folder(tmp_path).model.state_dict()
    assert load_folder(tmp_path).random == load_folder(tmp_path).ignored == []
    copies = {
        "cls.predictions.decoder.weight": new["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": new["cls.predictions.bias"].clone(),
    }
    save_file(new | copies, file)
    loaded = load_folder(tmp_path)
    assert all(torch.equal(v, expected[k]) for k, v in loaded.model.state_dict().items())
    save_folder(
        tmp_path,
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        family=loaded.family,
        hf_config=loaded.hf_config,
        aliases=loaded.aliases,
    )
    written = load_file(file)
    assert set(written) == set(new | copies)
    assert all(torch.equal(v, written[k]) for k, v in (new | copies).items())
    bare = {k.removeprefix("bert."): v for k, v in new.items() if k.startswith("bert.")}
    save_file(bare | {"pooler.dense.weight": torch.ones(32, 32)}, file)
    note_weights(tmp_path)
    loaded = load_folder(tmp_path)
    assert loaded.ignored == ["bert.pooler.dense.weight"]
    assert all("cls." in name for name in loaded.random)


def test_incomplete_attention_and_every_wrong_part_are_named(tmp_path):
    published("bert", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    key = "bert.encoder.layer.0.attention.self.key.weight"
    save_file({k: v for k, v in weights.items() if k != key}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=key):
        load_folder(tmp_path)
    save_file(weights | {key: torch.zeros(31, 32)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=rf"{key} has shape \[31, 32\], config.json implies \[32, 32\]"):
        load_folder(tmp_path)


def test_dropout_is_the_published_one(tmp_path):
    config = transformers.ModernBertConfig(
        **SMALL, **IDS, mlp_dropout=0.3, embedding_dropout=0.1, attention_dropout=0.2
    )
    transformers.ModernBertForMaskedLM(config).save_pretrained(tmp_path)
    tokenizer("wordpiece").save(tmp_path)
    read = load_folder(tmp_path).model.encoder.config
    assert (read.dropout, read.embedding_dropout, read.attention_dropout) == (0.3, 0.1, 0.2)


SHARED = Path(os.environ.get("UNMASK_SHARED", Path(__file__).parents[2].parent / "shared")) / "data" / "weights"
HEAVY = "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"
CHINESE = ["今天天气很好，我们一起去公园散步。", "北京是中国的首都，也是政治和文化中心。", "他在大学里学习计算机科学。"]


@pytest.mark.parametrize("name", ["sapiens-roberta-mlm-vh", "sapiens-roberta-mlm-vl", "simbert-tiny-zh-electra-mlm"])
def test_trained_weights_rank_as_transformers_does(name):
    if not (SHARED / name).exists():
        pytest.skip(f"trained weights are not here: {SHARED / name}")
    loaded = load_folder(SHARED / name)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(SHARED / name).eval()
    texts = CHINESE if "zh" in name else [HEAVY, HEAVY[10:80]]
    mask = loaded.tokenizer.require_mask()
    compared = 0
    for e in loaded.tokenizer.encode(texts):
        for at in np.flatnonzero(~e.special)[::5]:
            ids = e.ids.copy()
            ids[at] = mask
            with torch.inference_mode():
                expected = theirs(input_ids=torch.tensor(ids)[None].long()).logits[0, at]
            mine = ours_all(loaded.model, [ids], len(ids))[0][at]
            k = min(len(expected), 100)
            assert mine.topk(k).indices[:5].tolist() == expected.topk(k).indices[:5].tolist()
            torch.testing.assert_close(mine, expected, atol=1e-4, rtol=1e-4)
            compared += 1
    assert compared >= 8
