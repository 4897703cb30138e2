"""ONNX in: an encoder somebody exported becomes a folder of ours, where its config.json names a family.

Our own files (`unmask.export.onnx`) keep every weight under our name and carry a note (family, head, tensors stored
once for several names): they are read back whole, heads included. Other exporters keep the names of embeddings, norms
and biases, but transpose the weights of products and name them after nothing; which product a weight belongs to stands
in its node's name ("/encoder/layer.0/attention/self/query/MatMul"). fp16 files are widened, int8 files (dynamic
quantisation) multiplied out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from unmask.errors import UserError
from unmask.families.base import by_published_names

NOTE, TRANSPOSED, AFTER = "unmask", ".transposed", "after."
"""Key of our note in a file's metadata; ending of the names of weights that stand turned in the file; beginning of the
names of weights behind pooling, which the folder holds in files of their own."""
EIGHT, SCALE, ZERO = "_quantized", "_scale", "_zero_point"
"""Endings of the three parts of a weight in 8 bits (onnxruntime's names)."""
_PRODUCTS = ("MatMul", "MatMulInteger", "Gemm", "DynamicQuantizeMatMul")


def find_graph(folder: Path) -> Path:
    """The ONNX file of a folder."""
    found = sorted([*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")])
    named = [p for p in found if p.name == "model.onnx"]
    if named or len(found) == 1:
        return (named or found)[0]
    raise UserError(f"{folder}: {len(found)} ONNX files and no model.onnx", hint="Keep the one to import.")


def read_onnx(path: str | Path, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Tensors of an exported model under their published names, fp32.

    Args:
        config: config.json beside it; needed for files that unmask wrote.
    """
    try:
        import onnx
        from onnx import numpy_helper
    except ImportError:
        raise UserError("ONNX needs onnx", hint="pip install 'unmask[onnx]'") from None
    import torch

    if not Path(path).is_file():  # opening a pipe would wait for somebody to write into it
        raise UserError(f"{path}: not a file", hint="Export the model again, or copy it whole.")
    try:
        file = onnx.load(str(path))
        graph = file.graph
        held = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
        note = {p.key: p.value for p in file.metadata_props}.get(NOTE)
    except Exception as error:
        raise UserError(f"{path}: not an ONNX model ({type(error).__name__})", hint="Copy the file again.") from None
    if note is not None and config is not None:
        return _ours(path, note, config, held, graph)
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value":
            held[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    widened = {name: _widen(name, held) for name in held}
    plain = {name: array for name, array in widened.items() if array is not None}
    plain |= {name.removesuffix("_quantized"): array for name, array in plain.items()}
    out = {name: array for name, array in plain.items() if re.search(r"\.(weight|bias)$", name)}
    for node in graph.node:
        if node.op_type in _PRODUCTS and "/" in node.name:
            found = [i for i in node.input if i in plain and plain[i].ndim == 2]
            if found:
                place = re.sub(r"_quant$", "", node.name).replace("/Gemm/", "/").strip("/").split("/")[:-1]
                weight = plain[found[0]]
                transposed = node.op_type == "Gemm" and any(a.name == "transB" and a.i for a in node.attribute)
                out.setdefault(".".join(place) + ".weight", weight if transposed else weight.T)
    if not any(".layer" in name or "layers." in name or "transformer" in name for name in out):
        raise UserError(f"{path}: no encoder layers by name", hint="Export it with its module names kept.")
    return {k: torch.from_numpy(np.array(v, np.float32, order="C")) for k, v in out.items()}


def _ours(
    path: str | Path, note: str, config: Mapping[str, Any], held: dict[str, np.ndarray], graph: Any
) -> dict[str, Any]:
    """Tensors of a file that `unmask export` wrote."""
    import torch

    from unmask.families import by_name

    try:
        note_fields = json.loads(note)
        family, same = by_name(note_fields["family"]), dict(note_fields["same"])
    except (ValueError, KeyError, TypeError, StopIteration):
        raise UserError(f"{path}: a damaged note of unmask's", hint="Export it again.") from None
    axes = {
        n.input[0]: next((a.i for a in n.attribute if a.name == "axis"), 1)
        for n in graph.node
        if n.op_type == "DequantizeLinear"
    }
    state = {}
    for name, array in held.items():
        if name.startswith(AFTER) or (array.dtype != np.float32 and not (name.endswith(EIGHT) and array.ndim == 2)):
            continue
        if name.endswith(EIGHT):
            stem = name.removesuffix(EIGHT)
            scale = held[stem + SCALE].reshape((-1, 1) if axes.get(name) == 0 else (1, -1))
            zero = held.get(stem + ZERO, np.zeros(1, array.dtype)).astype(np.float32).reshape(scale.shape)
            name, array = stem, (array.astype(np.float32) - zero) * scale
        state[name.removesuffix(TRANSPOSED)] = array.T if name.endswith(TRANSPOSED) else array
    state |= {name: state[twin] for name, twin in same.items() if twin in state}
    tensors = {k: torch.from_numpy(np.array(v, np.float32, order="C")) for k, v in state.items()}
    encoder, _ = family.read(config)
    model = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    head = {k.removeprefix("head.layers.").replace("/", "."): v for k, v in tensors.items() if k.startswith("head.")}
    return by_published_names(family, model, encoder) | head


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
