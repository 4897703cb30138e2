"""ONNX out and in: the graph says what the model says, at any shape; an exported encoder can be read back."""

import numpy as np
import pytest
import torch

import unmask
from unmask.errors import UserError

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
transformers = pytest.importorskip("transformers")
from published import published  # noqa: E402
from unmask.export.eight_bits import session  # noqa: E402
from unmask.export.onnx import to_onnx  # noqa: E402

EXPORTED = ["bert", "albert-groups", "mpnet", "deberta-v3", "eurobert"]
"""Exports take seconds: the others (roberta, distilbert, electra, longformer, modernbert) are in test_onnx_heads.py."""


@pytest.mark.parametrize("name", EXPORTED)
def test_the_graph_holds_for_other_shapes(name, tmp_path, rng):
    published(name, tmp_path / "m")
    model = unmask.load(tmp_path / "m", precision="fp32", device="cpu")
    found = to_onnx(model, tmp_path / "onnx", quantize="int8" if name == "bert" else None)
    assert found["largest_difference"] < 1e-3
    run = session(tmp_path / "onnx" / "model.onnx")
    ids = rng.integers(5, 400, (1, 33))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    logits = run.run(["logits"], {i.name: feed[i.name] for i in run.get_inputs()})[0][0]
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "m").eval()
    with torch.inference_mode():
        expected = theirs(input_ids=torch.tensor(ids)).logits[0].numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-3, rtol=1e-3)
    again = unmask.load(tmp_path / "onnx", precision="fp32", device="cpu")
    np.testing.assert_allclose(again.embed(["The quick fox."]), model.embed(["The quick fox."]), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", ["bert", "modernbert"])
def test_weights_alone_in_8_bits_are_smaller_and_close(name, tmp_path, rng):
    from unmask.export.eight_bits import quantise

    published(name, tmp_path / "m")
    to_onnx(unmask.load(tmp_path / "m", precision="fp32", device="cpu"), tmp_path / "onnx")
    path, small = tmp_path / "onnx" / "model.onnx", tmp_path / "small.onnx"
    assert quantise(path, small, products=False)["int8_bytes"] < path.stat().st_size
    ids = rng.integers(5, 400, (2, 33))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    full, less = (
        r.run(["logits"], {i.name: feed[i.name] for i in r.get_inputs()})[0] for r in (session(path), session(small))
    )
    assert 0 < np.square(full - less).mean() < 0.01 * np.square(full).mean()


def test_what_has_no_graph_is_refused(tmp_path):
    published("bigbird", tmp_path / "m")
    with pytest.raises(UserError, match="bigbird"):
        to_onnx(unmask.load(tmp_path / "m", precision="fp32"), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


class Exported(torch.nn.Module):
    """An encoder as the tools around transformers export it."""

    def __init__(self, bert):
        super().__init__()
        self.bert = bert

    def forward(self, input_ids, attention_mask):
        return self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


@pytest.mark.parametrize("file", ["model.onnx", "model_int8.onnx"])
def test_an_exported_encoder_is_read_back(file, tmp_path):
    """As others export it: from transformers' own module, products named by their nodes, weights transposed."""
    from safetensors.torch import load_file

    from unmask.export.eight_bits import quantise
    from unmask.families.onnx_import import read_onnx
    from unmask.modalities.text.network.folder import load_folder

    theirs = Exported(published("bert", tmp_path).bert)
    ids = torch.ones(2, 9, dtype=torch.int64)
    torch.onnx.export(
        theirs,
        (ids, ids),
        str(tmp_path / "model.onnx"),
        input_names=["input_ids", "attention_mask"],
        dynamo=False,
        opset_version=17,
    )
    quantise(tmp_path / "model.onnx", tmp_path / "model_int8.onnx")
    exact = load_file(tmp_path / "model.safetensors")
    for name, tensor in read_onnx(tmp_path / file).items():
        if name in exact:
            torch.testing.assert_close(tensor, exact[name], atol=0 if file == "model.onnx" else 0.01, rtol=0)
    (tmp_path / "model.safetensors").unlink()
    if file != "model.onnx":
        (tmp_path / "model_int8.onnx").rename(tmp_path / "model.onnx")
    loaded = load_folder(tmp_path)
    assert not any(".layer." in name or "embeddings" in name for name in loaded.random)
    assert loaded.why_not_masked() is not None


def test_other_files_are_no_graphs(tmp_path):
    from unmask.families.onnx_import import read_onnx

    (tmp_path / "x.onnx").write_bytes(b"not a graph")
    with pytest.raises(UserError, match=r"x\.onnx"):
        read_onnx(tmp_path / "x.onnx")
