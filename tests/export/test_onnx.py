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
from unmask.export.onnx import session, to_onnx  # noqa: E402

EXPORTED = ["bert", "roberta", "distilbert", "albert-groups", "electra-projected", "mpnet", "deberta-v3", "modernbert", "longformer", "eurobert"]  # fmt: skip


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


def test_what_has_no_graph_is_refused(tmp_path):
    published("bigbird", tmp_path / "m")
    with pytest.raises(UserError, match="bigbird"):
        to_onnx(unmask.load(tmp_path / "m", precision="fp32"), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
