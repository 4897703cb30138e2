"""ONNX files in 8 bits, and how far they answer as the full ones do: measured on real text, on the head that was
exported."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unmask.export.graph import MASKED, Graph
from unmask.families.heads import SEQUENCE, SPAN
from unmask.families.onnx_import import EIGHT, SCALE, TRANSPOSED, ZERO
from unmask.modalities.text.tasks.encoding import ExampleMaker, share

AGREES = 0.97
"""Least agreement of an 8-bit file whose products are in 8 bits; below it, weights alone are tried."""
KEPT = ("/feedforward/down/", "/Gemm")
"""Products of an 8-bit file that stay in fp32: what they read has a few channels several times wider than all others,
and onnxruntime's one scale a tensor would leave the others no digits; and the vocabulary's, whose ranks are the answer.
"""
TEXTS, LONGEST = 256, 128
"""How many texts the agreement is measured on, and how many tokens of each."""


@dataclass(frozen=True)
class Sample:
    """Texts as a graph is fed them.

    Attributes:
        feeds: arrays by input name, one dict per batch; texts of one length share a batch, so that nothing is padded.
        hidden: for each batch the slot of each text that is hidden; None where the graph predicts no hidden tokens.
        source: what the texts are, in words.
    """

    feeds: list[dict[str, np.ndarray]]
    hidden: list[np.ndarray] | None
    source: str


def sample(model: Any, kind: str, texts: Sequence[str] | None, inputs: Sequence[str]) -> Sample:
    """Up to 256 texts, cut to 128 tokens: those given, else docstrings of the installed packages (English).

    Models of questions or pairs are given the first twelve words of the next text in front. Where tokens are predicted,
    one per text is hidden, drawn with a fixed seed.
    """
    source = f"{min(len(texts), TEXTS)} texts given" if texts else "docstrings of installed packages, English"
    if not texts:
        from itertools import islice

        from unmask.modalities.text.reading.documents import docstrings

        texts = [text for _, text in islice(docstrings(), TEXTS)]
        source = f"{len(texts)} {source}"
    texts, most = list(texts)[:TEXTS], min(model.slots, LONGEST)
    task = model.folder.settings.get("task") or {}
    if kind == SPAN or task.get("pair"):
        starts = [" ".join(t.split()[:12]) for t in texts[1:] + texts[:1]]
        maker = ExampleMaker(model.tokenizer, slots=most, types=True)
        rows = []
        for start, text in zip(maker.texts(starts), maker.texts(texts), strict=True):
            kept, before = share(len(text), len(start), most - maker.pair.size)
            made = maker.example([start.ids[:before], text.ids[:kept]], 0)
            rows.append((made.values["token"], made.values["type"]))
    else:
        rows = [(ids, np.zeros_like(ids)) for ids in model.tokenizer.ids(texts, max_slots=most)]
    rng, special = np.random.default_rng(2), list(model.tokenizer.special_ids)
    feeds, hidden = [], []
    for length in sorted({len(ids) for ids, _ in rows if np.setdiff1d(ids, special).size}):
        alike = [(i, t) for i, t in rows if len(i) == length and np.setdiff1d(i, special).size]
        ids, types = (np.stack(part) for part in zip(*alike, strict=True))
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}
        if kind == MASKED:
            places = np.array([rng.choice(np.flatnonzero(~np.isin(row, special))) for row in ids])
            feed["input_ids"] = ids.copy()
            feed["input_ids"][np.arange(len(ids)), places] = model.tokenizer.require_mask()
            hidden.append(places)
        feeds.append({name: feed[name] for name in inputs})
    return Sample(feeds, hidden if kind == MASKED else None, source)


def session(path: Path) -> Any:
    """An onnxruntime session on the CPU that keeps quiet."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def eight_bits(path: Path, small: Path, graph: Graph, given: Sample) -> dict[str, Any]:
    """Write the 8-bit file: products in 8 bits where that keeps the answers, else weights alone in 8 bits.

    Returns:
        int8_bytes, int8_products, int8_agreement and what it is (int8_measure), what a file that always gave the
        commonest answer would have (int8_constant, where answers are choices), and the texts (int8_texts).
    """
    full = _answers(session(path), graph, given)
    found = (
        quantise(path, small)
        | {"int8_products": True}
        | _agreement(full, _answers(session(small), graph, given), graph)
    )
    if found["int8_agreement"] < AGREES:
        other = small.with_name("weights.onnx")
        closer = quantise(path, other, products=False) | {"int8_products": False}
        closer |= _agreement(full, _answers(session(other), graph, given), graph)
        if closer["int8_agreement"] > found["int8_agreement"]:
            other.replace(small)
            found = closer
        else:
            other.unlink()
    return found | {"int8_texts": given.source}


def _answers(session: Any, graph: Graph, given: Sample) -> np.ndarray:
    """What a file says: one row per text, per slot, or per hidden token."""
    names = [o.name for o in session.get_outputs()]
    out = []
    for number, feed in enumerate(given.feeds):
        if graph.kind == SPAN:
            start, end = session.run(["start_logits", "end_logits"], feed)
            out.append(np.stack([start.argmax(1), end.argmax(1)], 1))
            continue
        found = session.run([names[-1]], feed)[0]
        if given.hidden is not None:
            found = found[np.arange(len(found)), given.hidden[number]].argmax(-1)[:, None]
        out.append(found if found.ndim == 2 else found.reshape(-1, found.shape[-1]))
    return np.concatenate(out)


def _agreement(full: np.ndarray, less: np.ndarray, graph: Graph) -> dict[str, Any]:
    if graph.kind in (MASKED, SPAN):
        of = (
            "hidden tokens with the same likeliest token"
            if graph.kind == MASKED
            else "texts with the same likeliest span"
        )
        return _choices(full, less, f"share of {of}")
    if graph.head is None:
        norms = np.linalg.norm(full, axis=1) * np.linalg.norm(less, axis=1)
        cosine = (full * less).sum(1) / np.maximum(norms, 1e-12)
        return {
            "int8_agreement": float(cosine.mean()),
            "int8_measure": "mean cosine of the vectors",
            "int8_constant": None,
        }
    rows = "texts" if graph.kind == SEQUENCE else "tokens"
    if graph.problem == "regression":
        spread = float(np.square(full - full.mean(0)).mean())
        share = 1 - float(np.square(full - less).mean()) / max(spread, 1e-12)
        measure = "share of the variance of its values that is kept (R2); 0: always their mean"
        return {"int8_agreement": share, "int8_measure": measure, "int8_constant": 0.0}
    if graph.problem == "multi" or full.shape[1] == 1:
        return _choices(full > 0, less > 0, f"share of {rows} with the same yes and no for every label")
    return _choices(full.argmax(1)[:, None], less.argmax(1)[:, None], f"share of {rows} with the same label")


def _choices(full: np.ndarray, less: np.ndarray, measure: str) -> dict[str, Any]:
    """Rows of choices that are the same, and the share of the commonest row."""
    count = np.unique(full, axis=0, return_counts=True)[1]
    return {
        "int8_agreement": float((full == less).all(1).mean()),
        "int8_measure": measure,
        "int8_constant": float(count.max() / len(full)),
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within, other libraries' warnings and log lines are not shown."""
    root, before = logging.getLogger(), logging.root.manager.disable
    handler = logging.NullHandler()  # without any, the first line would set up logging for good
    root.addHandler(handler)
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
        root.removeHandler(handler)


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
    file = onnx.load(str(path))
    _without_gemm(file.graph)
    with quiet():
        quantize_dynamic(
            file,
            str(out),
            per_channel=True,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul"],
            nodes_to_exclude=[n.name for n in file.graph.node if any(part in n.name for part in KEPT)],
        )
    return {"int8_bytes": out.stat().st_size}


def _without_gemm(graph: Any) -> None:
    """Replace, in place, x W' + b in one node by a product and a sum.

    onnxruntime's quantiser does so itself, under names by which `KEPT` no longer knows them, and turns a weight that
    others read as it was (a table of embeddings that is the vocabulary's projection too).
    """
    from onnx import helper, numpy_helper

    held = {i.name: i for i in graph.initializer}
    readers: dict[str, int] = {}
    for node in graph.node:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    nodes = []
    for node in graph.node:
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if (
            node.op_type != "Gemm"
            or given.get("alpha", 1.0) != 1
            or given.get("beta", 1.0) != 1
            or given.get("transA", 0)
        ):
            nodes.append(node)
            continue
        weight = node.input[1]
        if given.get("transB", 0):
            turned = weight + TRANSPOSED
            if weight in held and readers[weight] == 1:
                array = np.ascontiguousarray(numpy_helper.to_array(held[weight]).T)
                graph.initializer.remove(held[weight])
                graph.initializer.append(numpy_helper.from_array(array, turned))
            else:
                nodes.append(helper.make_node("Transpose", [weight], [turned], name=f"{node.name}_turn", perm=[1, 0]))
            weight = turned
        plus = len(node.input) > 2
        product = f"{node.output[0]}_product" if plus else node.output[0]
        nodes.append(helper.make_node("MatMul", [node.input[0], weight], [product], name=f"{node.name}/MatMul"))
        if plus:
            nodes.append(helper.make_node("Add", [product, node.input[2]], list(node.output), name=f"{node.name}/Add"))
    del graph.node[:]
    graph.node.extend(nodes)


def _weights_in_8_bits(graph: Any) -> None:
    """Replace each weight that only products read by an int8 tensor and scales, one per output channel."""
    from onnx import helper, numpy_helper

    readers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    new = []
    for tensor in list(graph.initializer):
        users = readers.get(tensor.name, [])
        if (
            len(tensor.dims) != 2
            or not users
            or any(n.op_type not in ("MatMul", "Gemm") or str(n.input[1]) != tensor.name for n in users)
        ):
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
        parts = [stem + part for part in (EIGHT, SCALE, ZERO)]
        whole = np.clip(np.rint(weight / scale), -127, 127).astype(np.int8)
        for name, array in zip(parts, (whole, scale.ravel(), np.zeros(scale.size, np.int8)), strict=True):
            graph.initializer.append(numpy_helper.from_array(array, name))
        new.append(helper.make_node("DequantizeLinear", parts, [stem], name=f"{stem}_full", axis=channel))
    for node in reversed(new):
        graph.node.insert(0, node)
