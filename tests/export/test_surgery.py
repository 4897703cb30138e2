"""Surgery changes shapes, not answers; recommendations fit what was asked."""

import json

import numpy as np
import pytest
import torch

import unmask
from text_corpus import SENTENCES, tokenizer
from unmask.cli import main
from unmask.errors import UserError
from unmask.export.folders import to_hf, to_sentence_transformers
from unmask.export.surgery import extend_positions, pad_vocabulary, prune_vocabulary
from unmask.families.catalogue import CHECKPOINTS, recommend
from unmask.modalities.text.network.folder import new_text_model, save_folder

TEXT = "the quick brown fox [MASK] over the dog."


@pytest.fixture(params=["wordpiece", "bpe", "unigram"])
def folder(request, tmp_path):
    torch.manual_seed(0)
    words = tokenizer(request.param)
    model, family = new_text_model(
        "bert", vocabulary=words.vocab_size, width=32, layers=2, heads=2, slots=48, tokenizer=words
    )
    torch.nn.init.normal_(model.codec.bias)
    save_folder(tmp_path / "model", model=model, tokenizer=words, family=family)
    return tmp_path / "model"


def scores(model, text):
    """Logit of every token by its spelling, at the blank."""
    from unmask.core.batch import Example, pack
    from unmask.core.corruption import hide

    ids = model.tokenizer.ids([text])[0]
    batch = pack([Example(values={"token": ids}, identity=0)], slots=len(ids))
    at = torch.tensor([int(np.flatnonzero(ids == model.tokenizer.mask_id)[0])])
    with torch.inference_mode():
        logits = model.model(batch, hide(torch.zeros(0, dtype=torch.int64)), wanted=at).logits[0]
    return {model.tokenizer.token(i): float(logits[i]) for i in range(model.tokenizer.vocab_size)}


def test_pruning_keeps_tokens_and_their_scores(folder, tmp_path):
    before = unmask.load(folder, precision="fp32", device="cpu")
    model = unmask.load(folder, precision="fp32", device="cpu")
    corpus = [SENTENCES[0], SENTENCES[1], TEXT.replace("[MASK]", "jumps")]
    found = prune_vocabulary(model, corpus)
    assert found["kept"] < found["before"]
    for text in corpus:
        a, b = (m.tokenizer.ids([text])[0] for m in (before, model))
        assert [before.tokenizer.token(i) for i in a] == [model.tokenizer.token(i) for i in b]
    model.save(tmp_path / "small")
    after = unmask.load(tmp_path / "small", precision="fp32", device="cpu")
    old, new = scores(before, TEXT), scores(after, TEXT)
    assert set(new) < set(old)
    assert max(abs(new[t] - old[t]) for t in new) < 1e-5


def test_padding_and_longer_positions_change_no_answer(folder, tmp_path):
    before, model = (unmask.load(folder, precision="fp32", device="cpu") for _ in range(2))
    pad_vocabulary(model, 64)
    extend_positions(model, 100)
    to_hf(model, tmp_path / "out")
    after = unmask.load(tmp_path / "out", precision="fp32", device="cpu")
    assert after.model.codec.word.weight.shape[0] % 64 == 0
    assert after.slots == 100
    old, new = scores(before, TEXT), scores(after, TEXT)
    assert max(abs(new[t] - old[t]) for t in old) < 1e-5
    assert after.embed([" ".join(["fox"] * 80)]).shape == (1, 32)
    transformers = pytest.importorskip("transformers")
    _, info = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with pytest.raises(UserError, match="positions"):
        extend_positions(after, 50)
    with pytest.raises(UserError, match="pad_vocabulary=0"):
        pad_vocabulary(after, 0)


def test_a_model_in_use_embeds_longer_texts_once_extended(folder):
    model = unmask.load(folder, precision="fp32", device="cpu")
    model.embed(["the fox"])
    extend_positions(model, 100)
    assert model.embed([" ".join(["fox"] * 80)]).shape == (1, 32)


def test_relative_distances_stay_as_they_were_when_the_context_grows(tmp_path):
    from published import published

    published("deberta-v3", tmp_path / "model")  # its config.json has max_relative_positions -1
    model = unmask.load(tmp_path / "model", precision="fp32", device="cpu")
    text = " ".join(SENTENCES[:2])[:90]
    before = model.embed([text])
    extend_positions(model, 256)
    model.save(tmp_path / "long")
    after = unmask.load(tmp_path / "long", precision="fp32", device="cpu")
    np.testing.assert_allclose(after.embed([text]), before, atol=1e-5)


def test_folders_appear_whole_or_not_at_all(folder, tmp_path):
    model = unmask.load(folder, precision="fp32", device="cpu")
    to_sentence_transformers(model, tmp_path / "st", dtype="bf16")
    modules = json.loads((tmp_path / "st" / "modules.json").read_text())
    assert [m["type"].rsplit(".", 1)[1] for m in modules] == ["Transformer", "Pooling"]
    assert unmask.load(tmp_path / "st").folder.loaded.types
    with pytest.raises(UserError, match="exists"):
        to_hf(model, tmp_path / "st")
    with pytest.raises(UserError, match="fp8"):
        to_hf(model, tmp_path / "no", dtype="fp8")
    assert not list(tmp_path.glob("*no*"))


def test_a_sentence_folder_says_how_vectors_are_made(folder, tmp_path):
    model = unmask.load(folder, precision="fp32", device="cpu")
    to_sentence_transformers(model, tmp_path / "st", pooling="first", normalise=True)
    limit = tmp_path / "st" / "sentence_bert_config.json"
    limit.write_text(json.dumps({"max_seq_length": 6}))
    back = unmask.load(tmp_path / "st", precision="fp32", device="cpu")
    short, long = "the fox", "the fox " * 12
    expected = model.embed(short, pooling="first", normalise=True)
    np.testing.assert_allclose(back.embed(short), expected, atol=1e-5)
    assert np.linalg.norm(back.embed(short, normalise=False)) != pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(back.embed(long), back.embed("the fox " * 9), atol=1e-5)
    to_sentence_transformers(back, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "sentence_bert_config.json").read_text())["max_seq_length"] == 6
    assert json.loads((tmp_path / "again" / "1_Pooling" / "config.json").read_text())["pooling_mode_cls_token"]
    (tmp_path / "st" / "1_Pooling" / "config.json").write_text('{"pooling_mode_best": true}')
    with pytest.raises(UserError, match="best"):
        unmask.load(tmp_path / "st")


def test_recommendations_fit():
    for found in recommend(languages=("de",), context=4096, size="large"):
        assert found["context"] >= 4096
        assert found["languages"] == ["*"] or "de" in found["languages"]
    assert recommend(domain="legal")[0]["domain"] == "legal"
    assert all(c.parameters > 0 and c.why for c in CHECKPOINTS)
    with pytest.raises(UserError, match="no known checkpoint"):
        recommend(languages=("tlh",), context=8192, size="tiny")


def test_commands(folder, tmp_path, capsys):
    main_ = [
        ("recommend", "--domain", "biomedical", "--json"),
        ("export", folder, "--to", "hf", "--dtype", "fp16", "--out", tmp_path / "hf", "--json"),
        ("surgery", folder, "--pad-vocabulary", "64", "--out", tmp_path / "s", "--json"),
        ("inspect", tmp_path / "s", "--json"),
    ]
    for arguments in main_:
        with pytest.raises(SystemExit) as done:
            main([str(a) for a in arguments])
        assert done.value.code == 0
        assert {"seed", "seconds", "device", "precision"} <= json.loads(capsys.readouterr().out).keys()
    for flags, message in (
        ([], "nothing to do"),
        (["--prune", str(tmp_path / "corpus.raw")], "corpus.raw: no such file"),
    ):
        with pytest.raises(SystemExit) as done:
            main(["surgery", str(folder), "--out", str(tmp_path / "x"), *flags])
        assert done.value.code == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "x").exists()
