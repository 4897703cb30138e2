"""ONNX in: an encoder somebody exported becomes a folder of ours, where its config.json names a family.

Exporters keep the names of embeddings, norms and biases, but transpose the weights of products and name them after
nothing; which product a weight belongs to stands in its node's name ("/encoder/layer.0/attention/self/query/MatMul").
fp16 files are widened, int8 files (dynamic quantisation) multiplied out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError

_PRODUCTS = ("MatMul", "MatMulInteger", "Gemm", "DynamicQuantizeMatMul")


def find_graph(folder: Path) -> Path:
    """The ONNX file of a folder.

    Raises:
        UserError: there is none, or several and none called model.onnx.
    """
    found = sorted([*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")])
    named = [p for p in found if p.name == "model.onnx"]
    if named or len(found) == 1:
        return (named or found)[0]
    raise UserError(f"{folder}: {len(found)} ONNX files and no model.onnx", hint="Keep the one to import.")


def read_onnx(path: str | Path) -> dict[str, Any]:
    """Tensors of an exported encoder under their published names, fp32.

    Raises:
        UserError: not an ONNX file, or no encoder's names in it.
    """
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise UserError("ONNX needs onnx", hint="pip install 'unmask[onnx]'") from None
    import torch

    try:
        graph = onnx.load(str(path)).graph
    except Exception as error:
        raise UserError(f"{path}: not an ONNX model ({type(error).__name__})", hint="Copy the file again.") from None
    held = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            held[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    widened = {name: _widen(name, held) for name in held}
    plain = {name: array for name, array in widened.items() if array is not None}
    out = {name: array for name, array in plain.items() if re.search(r"\.(weight|bias)$", name)}
    for node in graph.node:
        if node.op_type in _PRODUCTS and "/" in node.name:
            found = [i for i in node.input if i in plain and plain[i].ndim == 2]
            if found:
                place = re.sub(r"_quant$", "", node.name).strip("/").split("/")[:-1]
                weight = plain[found[0]]
                transposed = node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute)
                out.setdefault(".".join(place) + ".weight", weight if transposed else weight.T)
    if not any(".layer" in name or "layers." in name or "transformer" in name for name in out):
        raise UserError(f"{path}: no encoder layers by name", hint="Export it with its module names kept.")
    return {k: torch.from_numpy(np.array(v, np.float32, order="C")) for k, v in out.items()}


def _widen(name: str, held: dict[str, np.ndarray]) -> np.ndarray | None:
    """A tensor as fp32 numbers; None for scales, zero points and whole numbers that are no weights."""
    array = held[name]
    if array.dtype in (np.float32, np.float16, np.float64):
        return None if name.endswith("_scale") else array.astype(np.float32)
    stem = name.removesuffix("_quantized")
    if array.dtype in (np.int8, np.uint8) and stem != name and f"{stem}_scale" in held:
        scale, zero = held[f"{stem}_scale"], held.get(f"{stem}_zero_point", np.zeros(1, array.dtype))
        return (array.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)
    return None
