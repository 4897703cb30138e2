"""One way of embedding sentences, timed in a process of its own; `families.py` runs it for every variant and compares.

    python benchmarks/embed_peers.py VARIANT MODEL SENTENCES.json OUT.npy [--onnx FOLDER]

Prints one JSON object: seconds to import, to load, to the first answer, sentences per second (median of the runs, and
all of them), sentences per second of processor time (on a busy machine the fairer number; with OMP_NUM_THREADS=1 no
thread waits), peak memory. VARIANT is one of those of `families.py`; `st-bf16-128` has batches of 128 instead of 32.
Peers run in their own environment: sentence-transformers[onnx], fastembed, transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

START = time.perf_counter()
Embed = Callable[[list[str]], object]


def unmask_(model: str, precision: str) -> tuple[Embed, str]:
    import unmask

    loaded = unmask.load(model, precision=precision)
    return lambda s: loaded.embed(s, normalise=True), f"precision {loaded.precision}"


def pipeline_(model: str, batch: int) -> tuple[Embed, str]:
    import numpy as np
    from transformers import logging, pipeline

    logging.set_verbosity_error()
    run = pipeline("feature-extraction", model=model, device="cpu")

    def embed(sentences: list[str]) -> object:
        found = run(sentences, batch_size=batch, truncation=True)
        vectors = np.array([np.asarray(v, np.float32)[0].mean(0) for v in found])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return embed, f"batch_size {batch}"


def sentence_transformers_(model: str, kind: str, onnx: str | None) -> tuple[Embed, str]:
    import torch
    from sentence_transformers import SentenceTransformer

    kind, _, batch = kind.partition("-")
    settings: dict[str, object] = {}
    if kind == "bf16":
        settings = {"model_kwargs": {"torch_dtype": torch.bfloat16}}
    if kind.startswith("onnx"):
        file = "onnx/model.onnx" if kind == "onnx" else "onnx/model_int8.onnx"
        settings = {"backend": "onnx", "model_kwargs": {"file_name": file, "provider": "CPUExecutionProvider"}}
    run = SentenceTransformer(onnx if kind.startswith("onnx") else model, device="cpu", **settings)  # type: ignore[arg-type]
    return (
        lambda s: run.encode(s, batch_size=int(batch or 32), normalize_embeddings=True, show_progress_bar=False),
        f"batch_size {batch or '32, its own default'}; sorted by length, as it does",
    )


def onnxruntime_(model: str, kind: str, onnx: str | None) -> tuple[Embed, str]:
    """The leanest use of onnxruntime we know: Rust tokenizer, sorted, batches of a slot budget."""
    import numpy as np
    import onnxruntime as ort
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)
    options = ort.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "2"))
    file = f"{onnx}/onnx/{'model_int8' if kind == 'int8' else 'model'}.onnx"
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    width = 384

    def embed(sentences: list[str], budget: int = 2048) -> object:
        ids = [e.ids for e in tokenizer.encode_batch(sentences)]
        order = np.argsort([len(i) for i in ids], kind="stable")
        out = np.empty((len(ids), width), np.float32)
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end - start + 1) * len(ids[order[end]]) <= budget:
                end += 1
            longest = len(ids[order[end - 1]])
            tokens, seen = np.zeros((2, end - start, longest), np.int64)
            for row, number in enumerate(order[start:end]):
                tokens[row, : len(ids[number])] = ids[number]
                seen[row, : len(ids[number])] = 1
            feed = {"input_ids": tokens, "attention_mask": seen, "token_type_ids": np.zeros_like(tokens)}
            states = session.run(None, {n: feed[n] for n in names})[0]
            vectors = (states * seen[..., None]).sum(1) / seen.sum(1, keepdims=True)
            out[order[start:end]] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            start = end
        return out

    return embed, "sorted, 2048 slots per batch"


def fastembed_(model: str, onnx: str | None) -> tuple[Embed, str]:
    """fastembed's own download is not needed: the same ONNX file is registered as a custom model."""
    import numpy as np
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model(
        model="local/minilm",
        pooling=PoolingType.MEAN,
        normalization=True,
        dim=384,
        model_file="onnx/model.onnx",
        sources=ModelSource(hf="local/minilm"),
    )
    run = TextEmbedding("local/minilm", specific_model_path=onnx, threads=int(os.environ.get("OMP_NUM_THREADS", "2")))
    return lambda s: np.array(list(run.embed(s, batch_size=32))), "batch_size 32"


def make(variant: str, model: str, onnx: str | None) -> tuple[Embed, str]:
    name, _, kind = variant.partition("-")
    if name == "unmask":
        return unmask_(model, kind)
    if name == "pipeline":
        return pipeline_(model, int(kind))
    if name == "st":
        return sentence_transformers_(model, kind, onnx)
    if name == "ort":
        return onnxruntime_(model, kind, onnx)
    return fastembed_(model, onnx)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant")
    parser.add_argument("model")
    parser.add_argument("sentences", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--onnx")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--most", type=int, default=10**9, help="sentences to use")
    arguments = parser.parse_args()
    sentences = json.loads(arguments.sentences.read_text())[: arguments.most]
    embed, settings = make(arguments.variant, arguments.model, arguments.onnx)
    loaded = time.perf_counter()
    embed(sentences[:1])
    first = time.perf_counter()
    times, used = [], []
    for _ in range(arguments.runs):
        before, spent = time.perf_counter(), time.process_time()
        vectors = embed(sentences)
        times.append(time.perf_counter() - before)
        used.append(time.process_time() - spent)
    import numpy as np

    np.save(arguments.out, np.asarray(vectors, np.float32))
    rates = [len(sentences) / t for t in times]
    found = {
        "variant": arguments.variant,
        "settings": settings,
        "load_s": loaded - START,
        "first_s": first - START,
        "rate": statistics.median(rates),
        "rates": rates,
        "per_cpu_second": len(sentences) / min(used),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
    }
    print(json.dumps(found))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
