"""ONNX out: one graph for every batch and length, of the head that the model is for, checked against our
own outputs."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unmask.encoder.kinds import BlockSparse
from unmask.errors import UserError
from unmask.evaluation.card import add_card
from unmask.export.eight_bits import eight_bits, quiet, sample, session
from unmask.export.folders import chosen_sentences, whole_folder
from unmask.export.graph import BY_TEXT, MASKED, OUTPUTS, SENTENCE, Graph, class_name, outputs_here, what
from unmask.families.onnx_import import NOTE, TRANSPOSED
from unmask.modalities.text.network.sentence_files import write_sentences

OPSET = 17
CLOSE = 1e-3
"""Largest difference of states or logits, relative to the largest value, that an exported graph may show."""


def require_onnx() -> None:
    """Refuse to go on without the extra `onnx`."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise UserError(f"ONNX needs {error.name}", hint="pip install 'unmask[onnx]'") from None


def _example(tokenizer: Any, vocabulary: int, types: bool) -> tuple[Tensor, ...]:
    """Two ragged rows of ids; another shape checks that the graph holds for all."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (2, 12), generator=generator)
    seen = torch.ones_like(ids)
    seen[1, 7:] = 0
    ids[1, 7:] = tokenizer.pad_id or 0
    return (ids, seen, torch.zeros_like(ids)) if types else (ids, seen)


def to_onnx(
    model: Any,
    out: str | Path,
    *,
    quantize: str | None = None,
    pooling: str | None = None,
    texts: Sequence[str] | None = None,
    opset: int = OPSET,
) -> dict[str, Any]:
    """Write model.onnx (and model_int8.onnx) beside config and tokenizer: the head that the folder is for (see
    `graph.what`).

    Args:
        quantize: None or 'int8': weights of the products by channel, activations by batch (dynamic).
        pooling: mean, first or max: sentence vectors, whatever the folder is for.
        texts: what the 8-bit file's answers are measured on; default docstrings of installed packages.

    Returns:
        out, head, outputs, bytes, largest difference to our outputs; of the int8 file see `eight_bits.eight_bits`.
    """
    require_onnx()
    if quantize not in (None, "int8"):
        raise UserError(f"quantize={quantize}", hint="Expected int8.")
    if model.model.visible_only or isinstance(model.model.encoder.config.attention, BlockSparse):
        raise UserError(
            f"{model.folder.family.name}: its attention depends on the length; one graph cannot hold for all",
            hint="Export to hf instead.",
        )
    with whole_folder(out) as new:
        found = _write(model, new, quantize, pooling, texts, opset)
    return {"out": str(out)} | found


def _write(
    model: Any, new: Path, quantize: str | None, pooling: str | None, texts: Sequence[str] | None, opset: int
) -> dict[str, Any]:
    kind, head = what(model, pooling)
    sentences = chosen_sentences(model.folder.sentences, pooling, None)
    if kind == SENTENCE and not sentences.include_prompt and any(sentences.prompts.values()):
        raise UserError(
            "the model's prompts are read and not pooled (include_prompt false), which a graph of ids cannot know",
            hint="Export to sentence-transformers instead.",
        )
    network = model.model.float().eval()
    graph = Graph(network, kind, head, sentences=sentences, problem=_problem(model)).eval()
    types, outputs = bool(network.codec.config.types), list(OUTPUTS[kind])
    inputs = ["input_ids", "attention_mask"] + (["token_type_ids"] if types else [])
    axes = {name: {0: "batch", 1: "slots"} for name in (*inputs, *outputs)}
    if kind in BY_TEXT:
        axes[outputs[-1]] = {0: "batch"}
    path = new / "model.onnx"
    example = _example(model.tokenizer, network.codec.config.vocabulary, types)
    try:
        # The exporter that needs no further package prints its whole graph when it fails. Constants are not folded:
        # folded weights lose their names, by which the file is read back.
        with quiet(), torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
            torch.onnx.export(
                graph,
                example,
                str(path),
                input_names=inputs,
                output_names=outputs,
                dynamic_axes=axes,
                opset_version=opset,
                dynamo=False,
                do_constant_folding=False,
            )
    except torch.onnx.errors.UnsupportedOperatorError as error:
        raise UserError(f"{model.folder.family.name}: {error}", hint="Export to hf instead.") from None
    _named(path, graph, model.folder.family.name)
    difference = _check(path, graph, model, types)
    found: dict[str, Any] = {
        "head": kind,
        "outputs": outputs,
        "bytes": path.stat().st_size,
        "largest_difference": difference,
    }
    if quantize:
        found |= eight_bits(path, new / "model_int8.onnx", graph, sample(model, kind, texts, inputs))
    _save_companions(new, model, graph, found)
    return found


def _problem(model: Any) -> str:
    """Of a classifier: single, multi or regression."""
    problem = str(
        (model.folder.settings.get("task") or {}).get("problem") or model.folder.hf_config.get("problem_type")
    )
    return {"multi_label_classification": "multi", "multi": "multi", "regression": "regression"}.get(problem, "single")


def _save_companions(new: Path, model: Any, graph: Graph, found: dict[str, Any]) -> None:
    """Tokenizer, config.json, unmask.json and, for sentence vectors, sentence-transformers' files."""
    folder = model.folder
    config = dict(folder.hf_config) | {"architectures": [class_name(folder.family, graph.kind)], "dtype": "float32"}
    config.pop("torch_dtype", None)
    about = {k: v for k, v in folder.settings.items() if k not in ("decoder", "task", "onnx")}
    about |= {"kind": "text", "family": folder.family.name, "onnx": found}
    task = folder.settings.get("task")
    if task and (graph.head is not None or (graph.kind == SENTENCE and task.get("name") == "similarity")):
        about["task"] = dict(task) | ({"pooling": graph.sentences.pooling} if graph.kind == SENTENCE else {})
    (new / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (new / "unmask.json").write_text(json.dumps(about, indent=2, default=str), encoding="utf-8")
    longest = (task or {}).get("slots") or model.model.encoder.config.longest
    model.tokenizer.save(new, types=bool(model.model.codec.config.types), longest=longest)
    if graph.kind == SENTENCE and "task" not in about:
        write_sentences(new, graph.sentences, model.model.encoder.config.width, model.embedded_slots)
    add_card(new, new)


def _named(path: Path, graph: Graph, family: str) -> None:
    """Turn weights in the file so that products read them as they are, and note what is needed to read it back.

    Equal tensors are stored once; the note says which other names they go by.
    """
    import onnx
    from onnx import numpy_helper

    file = onnx.load(str(path))
    held = {i.name: i for i in file.graph.initializer}
    readers: dict[str, int] = {}
    for node in file.graph.node:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    for node in [n for n in file.graph.node if n.op_type == "Transpose"]:
        (source,), (target,) = node.input, node.output
        if source not in held or readers[source] > 1 or len(held[source].dims) != 2:
            continue
        turned = numpy_helper.from_array(
            np.ascontiguousarray(numpy_helper.to_array(held[source]).T), source + TRANSPOSED
        )
        file.graph.initializer.remove(held.pop(source))
        file.graph.initializer.append(turned)
        for other in file.graph.node:
            for place, name in enumerate(other.input):
                if name == target:
                    other.input[place] = turned.name
        file.graph.node.remove(node)
    there = {i.name.removesuffix(TRANSPOSED) for i in file.graph.initializer}
    # Of the codec's prediction outputs depend only where tokens are predicted.
    used = "" if graph.kind == MASKED else ("model.codec.word.", "model.codec.token_type.", "model.encoder.", "head.")
    state = {name: t for name, t in graph.state_dict().items() if name.startswith(used)}
    # Tied tensors have one storage under several names.
    first = {(t.data_ptr(), t.shape): name for name, t in state.items() if name in there}
    same = {}
    for name, tensor in state.items():
        if name in there:
            continue
        twin = first.get((tensor.data_ptr(), tensor.shape)) or next(
            (o for o in there if o in state and state[o].shape == tensor.shape and torch.equal(state[o], tensor)), None
        )
        if twin is not None:
            same[name] = twin
        else:
            # Weights that these outputs do not read (Longformer's for global slots) belong to the encoder all the same.
            file.graph.initializer.append(numpy_helper.from_array(tensor.detach().numpy(), name))
    note = file.metadata_props.add()
    note.key, note.value = NOTE, json.dumps({"version": 1, "family": family, "head": graph.kind, "same": same})
    onnx.save(file, str(path))


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
    """Largest difference of real slots between the file and what `predict`, `embed` and `fill` go by, on another shape
    than was traced.
    """
    feed = _ragged(model, types)
    real = feed["attention_mask"].astype(bool)
    theirs = session(path).run(None, feed)
    ours = outputs_here(graph, [row[seen] for row, seen in zip(feed["input_ids"], real, strict=True)])
    worst = 0.0
    for name, expected, other in zip(OUTPUTS[graph.kind], ours, theirs, strict=True):
        flat = other if graph.kind in BY_TEXT and name != "last_hidden_state" else other[real]
        difference = float(np.abs(expected.numpy() - flat).max())
        worst = max(worst, difference)
        if not difference <= CLOSE * max(1.0, float(expected.abs().max())):
            raise UserError(
                f"the ONNX graph differs from the model by {difference:.3g} ({name})",
                hint="This torch cannot export this encoder; export to hf instead.",
            )
    return worst
