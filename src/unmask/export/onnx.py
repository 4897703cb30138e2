"""ONNX out: one graph for every batch and length, checked against our own outputs, and 8-bit weights of it."""

from __future__ import annotations

import contextlib
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.errors import UserError
from unmask.export.folders import whole_folder

OPSET = 17
CLOSE = 1e-3
"""Largest difference of states or logits, relative to the largest value, that an exported graph may show."""


def require_onnx() -> None:
    """Raises:
    UserError: the extra `onnx` is not installed.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise UserError(f"ONNX needs {error.name}", hint="pip install 'unmask[onnx]'") from None


class Graph(nn.Module):
    """What is exported: (input_ids, attention_mask[, token_type_ids]) -> last_hidden_state[, logits]."""

    def __init__(self, model: Any, *, logits: bool) -> None:
        super().__init__()
        self.model, self.logits = model, logits

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        position = (attention_mask.cumsum(1) - 1).clamp_min(0) * attention_mask
        values = {"token": input_ids} | ({} if token_type_ids is None else {"type": token_type_ids})
        x = self.model.codec.embed(values, torch.zeros_like(input_ids, dtype=torch.bool))
        states = self.model.encoder(x, segment=attention_mask, position=position)
        if not self.logits:
            return states
        predict = getattr(self.model.encoder, "decode", self.model.encoder)
        asked = states if predict is self.model.encoder else predict(x, segment=attention_mask, position=position)
        logits = self.model.codec.predict(asked.flatten(0, 1)).logits
        return states, logits.view(input_ids.shape[0], input_ids.shape[1], -1)


def _example(tokenizer: Any, vocabulary: int, types: bool) -> tuple[Tensor, ...]:
    """Two ragged rows of ids; another shape checks that the graph holds for all."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (2, 12), generator=generator)
    seen = torch.ones_like(ids)
    seen[1, 7:] = 0
    ids[1, 7:] = tokenizer.pad_id or 0
    return (ids, seen, torch.zeros_like(ids)) if types else (ids, seen)


def to_onnx(model: Any, out: str | Path, *, quantize: str | None = None, opset: int = OPSET) -> dict[str, Any]:
    """Write model.onnx (and model_int8.onnx) beside config and tokenizer.

    Args:
        model: a `TextModel`.
        quantize: None or 'int8': weights of the products by channel, activations by batch (dynamic).

    Returns:
        out, bytes, largest difference to our outputs; of the int8 file: bytes, whether products are in 8 bits or
        weights alone (where products would name another token more than 3 times in 100), top-1 agreement.

    Raises:
        UserError: an encoder that has no graph for all lengths (BigBird), a graph that differs from ours, no onnx.
    """
    require_onnx()
    if quantize not in (None, "int8"):
        raise UserError(f"quantize={quantize}", hint="Expected int8.")
    if model.model.visible_only or model.model.encoder.config.attention.block:
        raise UserError(
            f"{model.folder.family.name}: its attention depends on the length; one graph cannot hold for all",
            hint="Export to hf instead.",
        )
    with whole_folder(out) as new:
        found = _write(model, new, quantize, opset)
    return {"out": str(out)} | found


def _write(model: Any, new: Path, quantize: str | None, opset: int) -> dict[str, Any]:
    import json

    head = model.folder.why_not_masked() is None
    network = model.model.float().eval()
    types = bool(network.codec.config.types)
    inputs = ["input_ids", "attention_mask"] + (["token_type_ids"] if types else [])
    outputs = ["last_hidden_state"] + (["logits"] if head else [])
    axes = {name: {0: "batch", 1: "slots"} for name in (*inputs, *outputs)}
    path = new / "model.onnx"
    graph = Graph(network, logits=head).eval()
    example = _example(model.tokenizer, network.codec.config.vocabulary, types)
    try:
        # The exporter that needs no further package prints its whole graph when it fails.
        with warnings.catch_warnings(), torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                graph, example, str(path), input_names=inputs, output_names=outputs, dynamic_axes=axes,
                opset_version=opset, dynamo=False,
            )  # fmt: skip
    except torch.onnx.errors.UnsupportedOperatorError as error:
        raise UserError(f"{model.folder.family.name}: {error}", hint="Export to hf instead.") from None
    difference = _check(path, graph, model, types)
    model.tokenizer.save(new)
    (new / "config.json").write_text(json.dumps(model.folder.hf_config, indent=2), encoding="utf-8")
    found: dict[str, Any] = {"bytes": path.stat().st_size, "largest_difference": difference, "outputs": outputs}
    if quantize:
        found |= _eight_bits(path, new / "model_int8.onnx", model, types, head)
    return found


AGREES = 0.97
"""Least share of hidden tokens for which an 8-bit file must name the same likeliest token as the full one."""


def _eight_bits(path: Path, small: Path, model: Any, types: bool, head: bool) -> dict[str, Any]:
    """The 8-bit file: products in 8 bits where that keeps the answers, else weights alone in 8 bits."""
    found: dict[str, Any] = quantise(path, small) | {"int8_products": True, "int8_top1_agreement": None}
    if not head:
        return found
    found["int8_top1_agreement"] = _agreement(path, small, model, types)
    if found["int8_top1_agreement"] >= AGREES:
        return found
    other = small.with_name("weights.onnx")
    closer: dict[str, Any] = quantise(path, other, products=False) | {"int8_products": False}
    closer["int8_top1_agreement"] = _agreement(path, other, model, types)
    if closer["int8_top1_agreement"] <= found["int8_top1_agreement"]:
        other.unlink()
        return found
    other.replace(small)
    return closer


KEPT = ("/feedforward/down/", "/Gemm")
"""Products of an 8-bit file that stay in fp32: what they read has a few channels several times wider than all others,
and onnxruntime's one scale a tensor would leave the others no digits; and the vocabulary's, whose ranks are the answer."""


def quantise(path: Path, out: Path, *, products: bool = True) -> dict[str, Any]:
    """8-bit weights, by output channel.

    Args:
        products: multiply in 8 bits, activations quantised by batch as they come: smaller and faster. False: the
            weights are stored in 8 bits and multiplied out when the session reads them: smaller, and closer.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    if not products:
        graph = onnx.load(str(path))
        _weights_in_8_bits(graph.graph)
        onnx.save(graph, str(out))
        return {"int8_bytes": out.stat().st_size}
    nodes = [n.name for n in onnx.load(str(path), load_external_data=False).graph.node]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize_dynamic(
            str(path),
            str(out),
            per_channel=True,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=[name for name in nodes if any(part in name for part in KEPT)],
        )
    return {"int8_bytes": out.stat().st_size}


def _weights_in_8_bits(graph: Any) -> None:
    """Replace, in place, each weight that only products read by an int8 tensor and its scales, one an output channel."""
    from onnx import helper, numpy_helper

    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    new = []
    for tensor in list(graph.initializer):
        users = readers.get(tensor.name, [])
        if len(tensor.dims) != 2 or not users or any(_weight(n) != tensor.name for n in users):
            continue
        transposed = {any(a.name == "transB" and a.i for a in n.attribute) for n in users}
        if len(transposed) > 1:
            continue
        weight = numpy_helper.to_array(tensor)
        channel = 0 if transposed.pop() else 1
        scale = np.abs(weight).max(1 - channel, keepdims=True).astype(np.float32) / 127
        scale[scale == 0] = 1
        graph.initializer.remove(tensor)
        stem = tensor.name
        parts = [f"{stem}_{part}" for part in ("int8", "scale", "zero")]
        whole = np.clip(np.rint(weight / scale), -127, 127).astype(np.int8)
        for name, array in zip(parts, (whole, scale.ravel(), np.zeros(scale.size, np.int8)), strict=True):
            graph.initializer.append(numpy_helper.from_array(array, name))
        new.append(helper.make_node("DequantizeLinear", parts, [stem], name=f"{stem}_full", axis=channel))
    for node in reversed(new):
        graph.node.insert(0, node)


def _weight(node: Any) -> str | None:
    return str(node.input[1]) if node.op_type in ("MatMul", "Gemm") else None


def session(path: Path) -> Any:
    """An onnxruntime session on the CPU that keeps quiet."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _ragged(model: Any, types: bool, rows: int = 3, longest: int = 40) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    longest = min(longest, model.slots)
    special = list(model.tokenizer.special_ids)
    ordinary = np.setdiff1d(np.arange(model.tokenizer.vocab_size), special)
    seen = np.zeros((rows, longest), np.int64)
    ids = np.full((rows, longest), model.tokenizer.pad_id or 0, np.int64)
    for row, length in enumerate(np.linspace(1, longest, rows).astype(int)):
        seen[row, :length], ids[row, :length] = 1, rng.choice(ordinary, length)
    return {"input_ids": ids, "attention_mask": seen} | ({"token_type_ids": np.zeros_like(ids)} if types else {})


def _check(path: Path, graph: Graph, model: Any, types: bool) -> float:
    """Largest difference of real slots between the file and our own outputs, on another shape than was traced.

    Raises:
        UserError: they differ by more than rounding.
    """
    feed = _ragged(model, types)
    theirs = session(path).run(None, feed)
    with torch.inference_mode():
        ours = graph(*(torch.from_numpy(v) for v in feed.values()))
    ours = ours if isinstance(ours, tuple) else (ours,)
    real = feed["attention_mask"].astype(bool)
    worst = 0.0
    for a, b in zip(theirs, ours, strict=True):
        mine = b.float().numpy().reshape(a.shape)[real]
        difference = float(np.abs(a[real] - mine).max())
        worst = max(worst, difference)
        if not difference <= CLOSE * max(1.0, float(np.abs(mine).max())):
            raise UserError(
                f"the ONNX graph differs from the model by {difference:.3g}",
                hint="This torch cannot export this encoder; export to hf instead.",
            )
    return worst


def _agreement(path: Path, small: Path, model: Any, types: bool) -> float:
    """Share of hidden slots where the 8-bit file's likeliest token is the full one's: 256 rows, one hidden in each."""
    feed = _ragged(model, types, rows=256)
    length = feed["attention_mask"].sum(1)
    at = (np.random.default_rng(2).random(len(length)) * length).astype(int)
    feed["input_ids"][np.arange(len(at)), at] = model.tokenizer.require_mask()
    runs, same = [session(p) for p in (path, small)], 0
    for part in np.array_split(np.arange(len(at)), 16):
        rows = {name: v[part] for name, v in feed.items()}
        full, less = (r.run(["logits"], rows)[0][np.arange(len(part)), at[part]].argmax(-1) for r in runs)
        same += int((full == less).sum())
    return same / len(at)
