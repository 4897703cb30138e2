"""Published task heads say what transformers' models say, and travel back unchanged; what is no masked
model says so."""

import pytest
import torch

import unmask
from text_corpus import SENTENCES, tokenizer
from unmask.errors import UserError

transformers = pytest.importorskip("transformers")
from safetensors.torch import load_file  # noqa: E402

from published import SMALL  # noqa: E402
from published import task_head as made  # noqa: E402

HEADS = [
    *[
        (name, "SequenceClassification")
        for name in (
            "bert",
            "roberta",
            "distilbert",
            "albert",
            "electra-projected",
            "mpnet",
            "deberta-v3",
            "modernbert",
            "longformer",
            "bigbird-full",
            "eurobert",
        )
    ],
    *[(name, "TokenClassification") for name in ("bert", "deberta-v3", "modernbert", "eurobert")],
    *[(name, "QuestionAnswering") for name in ("roberta", "modernbert")],
    ("electra-projected", "PreTraining"),
]
TEXTS = [SENTENCES[0], "fox.", SENTENCES[1]]


@pytest.mark.parametrize(("name", "task"), HEADS)
def test_heads_agree(name, task, tmp_path):
    theirs = made(name, task, tmp_path)
    model = unmask.load(tmp_path, precision="fp32", device="cpu")
    for text, said in zip(TEXTS, model.label(TEXTS), strict=True):
        ids = torch.tensor(model.tokenizer.ids([text], max_slots=64)[0])[None]
        with torch.inference_mode():
            out = theirs(input_ids=ids)
        logits = torch.stack([out.start_logits[0], out.end_logits[0]], -1) if "start_logits" in out else out.logits
        expected = logits.reshape(len(said["logits"]), -1)
        torch.testing.assert_close(torch.tensor(said["logits"]), expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(UserError, match="masked"):
        model.fill("a [MASK].")
    model.save(tmp_path / "again")
    before, after = (load_file(p / "model.safetensors") for p in (tmp_path, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_number_formats_and_names_are_kept(tmp_path):
    theirs = transformers.BertModel(transformers.BertConfig(**SMALL, max_position_embeddings=64)).half()
    theirs.save_pretrained(tmp_path)
    tokenizer("wordpiece").save(tmp_path)
    model = unmask.load(tmp_path, precision="fp32", device="cpu")
    model.save(tmp_path / "again")
    before, after = (load_file(p / "model.safetensors") for p in (tmp_path, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[k], after[k]) and before[k].dtype == after[k].dtype for k in before)
    model.save(tmp_path / "wide", dtype=torch.float32)
    assert {v.dtype for v in load_file(tmp_path / "wide" / "model.safetensors").values()} == {torch.float32}


def test_a_discriminator_is_no_masked_model(tmp_path):
    made("deberta-v3", "MaskedLM", tmp_path)
    from safetensors.torch import save_file

    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"mask_predictions.dense.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    model = unmask.load(tmp_path, precision="fp32")
    assert model.embed(["x"]).shape == (1, 32)
    with pytest.raises(UserError, match="discriminator"):
        model.fill("a [MASK].")


def test_silently_wrong_loads_are_refused(tmp_path):
    import json

    made("bert", "MaskedLM", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for change, message in (
        ({"is_decoder": True}, "decoder"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"num_hidden_layers": 6}, "bert.encoder.layer.4"),
        ({"model_type": "gpt2"}, "gpt2"),
        ({"vocab_size": 100}, "tokenizer has"),
    ):
        path.write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=message):
            unmask.load(tmp_path, precision="fp32")
    path.write_text(json.dumps(config))
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "tf_model.h5").write_bytes(b"x")
    with pytest.raises(UserError, match="TensorFlow"):
        unmask.load(tmp_path)
