"""Everything that waits for a GPU, in order of worth: each part within ten minutes, results as JSON, resumable.

    python benchmarks/gpu.py --out results/                    # all parts not done yet; those that are done are kept
    python benchmarks/gpu.py --out results/ --parts text       # some of them; --again does them anew
    python benchmarks/gpu.py --out results/ --dry              # without a GPU: tiny shapes on the stand-in of the tests

    walk    the tests of tests/gpu on the GPU: every step and use of all kinds, families and tasks beside the CPU
    text    pretraining 12 x 768 (BERT's base) at 512 slots in bf16: tokens/s and share of the processor's peak, beside
            transformers' BertForMaskedLM (concatenated blocks, SDPA, fused AdamW, compiled and not)
    images  MAE steps of ViT-B/16 at 224 pixels: pictures/s beside transformers' ViTMAEForPreTraining
    events  steps of the demo's patients in a 6 x 512 encoder: events/s
    cifar-pretrain, cifar-finetune, cifar-scratch
            benchmarks/images_cifar_gpu.py, a stage each, with --cifar FOLDER; left out without it
    long    eight minutes of `unmask pretrain text` on the docstrings of the installed packages: held-out loss

Loops take turns, blocks of steps each, and the device is waited for at the end of a block alone, so that a loop that
prepares the next step meanwhile gains by it. Ratios are of neighbouring blocks, with their quartiles. Useful FLOPs are
those of the matrix products that a token needs, forward and backward (attention within its example; padding and
recomputation do not count); --peak is what the GPU could do, in TFLOP/s.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from text_pretrain import VOCABULARY

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 600
PEAKS = {"H100": 989.0, "H200": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "T4": 65.0}
"""TFLOP/s of dense bf16 (fp16 for the T4) products, by the makers' data sheets."""
Loop = Callable[[], tuple[int, float]]
"""One step; (tokens, pictures or events it took, their useful FLOPs)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--again", action="store_true", help="do parts that are done anew")
    parser.add_argument("--dry", action="store_true", help="tiny, on a stand-in for CUDA; its figures say nothing")
    parser.add_argument("--cifar", help="CIFAR-10 as benchmarks/images_cifar_gpu.py takes it")
    parser.add_argument("--peak", type=float, help="TFLOP/s of the GPU in bf16; known for some")
    parser.add_argument("--blocks", type=int, default=8, help="per loop")
    parser.add_argument("--steps", type=int, default=10, help="per block")
    parser.add_argument("--only", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.only:
        with on_stand_in() if arguments.dry else contextlib.nullcontext():
            found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "dry": arguments.dry}
            found |= PARTS[arguments.only](arguments)
        if found.get("exit"):
            raise SystemExit(found["exit"])
        (arguments.out / f"{arguments.only}.json").write_text(json.dumps(found, indent=1) + "\n")
        return
    if not (arguments.dry or torch.cuda.is_available()):
        raise SystemExit("no GPU: --dry walks this script on a stand-in")
    for part in arguments.parts:
        file = arguments.out / f"{part}.json"
        if file.exists() and not arguments.again:
            print(f"{part}: done, see {file}")
            continue
        if part.startswith("cifar") and (arguments.dry or not arguments.cifar):
            print(f"{part}: left out, it needs {'a GPU' if arguments.dry else '--cifar FOLDER'}")
            continue
        command = [sys.executable, __file__, *sys.argv[1:], "--only", part]
        began = time.monotonic()
        try:
            code: int | str = subprocess.run(command, timeout=LIMIT, check=False).returncode
        except subprocess.TimeoutExpired:
            code = f"not within {LIMIT} s"
        print(
            f"{part}: {'done' if code == 0 else f'failed ({code})'} after {time.monotonic() - began:.0f} s", flush=True
        )


def on_stand_in() -> Any:
    """The stand-in for CUDA that the tests walk on."""
    sys.path.insert(0, str(ROOT / "tests"))
    import stand_in

    return stand_in.cuda()


def walk(arguments: argparse.Namespace) -> dict[str, Any]:
    """The tests of tests/gpu; in a dry run they are collected."""
    more = ["--collect-only"] if arguments.dry else []
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "gpu",
        *more,
        "tests/gpu",
        "tests/training/test_optimiser.py",
    ]
    return said_by(command)


def said_by(command: list[str]) -> dict[str, Any]:
    """Exit code and last lines of a command, which are shown where it fails."""
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        print(found.stdout[-4000:], found.stderr[-4000:], flush=True)
    return {"exit": found.returncode, "said": found.stdout.splitlines()[-30:]}


def cifar(stage: str) -> Callable[[argparse.Namespace], dict[str, Any]]:
    """A stage of the recipes on CIFAR-10."""

    def part(arguments: argparse.Namespace) -> dict[str, Any]:
        work = arguments.out / "cifar"
        resume = ["--resume"] if stage == "pretrain" and (work / "model").exists() else []
        command = [sys.executable, str(ROOT / "benchmarks" / "images_cifar_gpu.py"), "--data", arguments.cifar]
        return said_by([*command, "--work", str(work), "--stage", stage, "--minutes", "8", *resume])

    return part


def long(arguments: argparse.Namespace) -> dict[str, Any]:
    """Pretraining from raw text by the clock, as the command does it."""
    from unmask.modalities.text.network.pretrain import pretrain
    from unmask.modalities.text.reading.documents import write_corpus
    from unmask.modalities.text.recipes import TextSettings, with_overrides

    chosen: dict[str, Any] = {"minutes": 8, "width": 768, "layers": 12, "heads": 12, "slots": 512}
    chosen |= {"batch_slots": 131072, "vocabulary": VOCABULARY}
    with tempfile.TemporaryDirectory() as scratch:
        if arguments.dry:
            chosen = {"steps": 2, "width": 32, "layers": 2, "heads": 2, "slots": 64, "vocabulary": 300}
            few_texts(Path(scratch), 64)
            corpus = Path(scratch) / "corpus.txt"
        else:
            corpus = Path(scratch) / "docstrings.jsonl"
            write_corpus(corpus)
        settings = with_overrides(TextSettings(), {**chosen, "device": "cuda", "precision": "bf16"})
        run = pretrain(str(corpus), Path(scratch) / "run", settings=settings)
    return run.to_dict()


def measured(loops: dict[str, Loop], arguments: argparse.Namespace, unit: str) -> dict[str, Any]:
    """Blocks of steps in turns: medians, shares of the peak, ratios of the first loop to each other one."""
    peak = arguments.peak or next((p for n, p in PEAKS.items() if n in torch.cuda.get_device_name()), None)
    speeds: dict[str, list[float]] = {name: [] for name in loops}
    shares: dict[str, list[float]] = {name: [] for name in loops}
    for loop in loops.values():  # kernels are chosen, layers compiled, memory is taken
        for _ in range(1 if arguments.dry else 5):
            loop()
    torch.cuda.synchronize()
    for _ in range(1 if arguments.dry else arguments.blocks):
        for name, loop in loops.items():
            began, done, useful = time.perf_counter(), 0, 0.0
            for _ in range(1 if arguments.dry else arguments.steps):
                count, flops = loop()
                done, useful = done + count, useful + flops
            torch.cuda.synchronize()
            seconds = time.perf_counter() - began
            speeds[name].append(done / seconds)
            shares[name].append(useful / seconds / 1e12 / peak if peak else 0.0)
    first = next(iter(loops))
    out: dict[str, Any] = {"unit": f"{unit}/s", "peak_tflops": peak}
    for name in loops:
        ratio = np.array(speeds[first]) / np.array(speeds[name])
        out[name] = {
            "speed": float(np.median(speeds[name])),
            "share_of_peak": float(np.median(shares[name])) if peak else None,
            f"{first}_over_it": [float(q) for q in np.quantile(ratio, [0.25, 0.5, 0.75])],
        }
        share = f"{out[name]['share_of_peak']:.1%} of the peak" if peak else "the GPU's peak is not known (--peak)"
        print(f"{name:24} {out[name]['speed']:12,.0f} {unit}/s  {share}", flush=True)
    out["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return out


def our_loop(
    model: Any, batches: Iterator[tuple[int, list[Any]]], corruption: Any, flops: Callable[[Any], float]
) -> Loop:
    """Steps of the loop that `unmask pretrain` runs, batches made ahead of it by a thread."""
    from unmask.core.pretrain import StepContext, pretrain
    from unmask.training.ahead import ahead
    from unmask.training.optimiser import build_optimiser, step
    from unmask.training.precision import computing
    from unmask.training.settings import TrainSettings

    device = torch.device("cuda")
    model.to(device).train()
    optimiser = build_optimiser(model, TrainSettings(learning_rate=1e-4))
    parameters = list(model.parameters())

    def update(_: float) -> tuple[Any, Any]:
        norm = step(optimiser, parameters, clip=1.0)
        optimiser.zero_grad(set_to_none=True)
        return norm, torch.isfinite(norm)

    context = StepContext(update=update, device=device, autocast=lambda: computing("bf16", device))
    reports = pretrain(model, ahead(batches, 4), corruption, context, progress=lambda _: 0.0)

    def one() -> tuple[int, float]:
        report = next(reports)
        return report.slots, flops(report)

    return one


def text(arguments: argparse.Namespace) -> dict[str, Any]:
    """BERT's base at 512 slots, 131 072 slots a step."""
    from transformers import BertForMaskedLM

    from text_pretrain import corpus, their_config
    from unmask.core.corruption import Corruption
    from unmask.core.sampler import PackedSampler
    from unmask.modalities.text.network.folder import new_text_model
    from unmask.modalities.text.tokens.batches import batch_maker
    from unmask.training.precision import computing

    layers, width, slots, rows = (2, 64, 64, 4) if arguments.dry else (12, 768, 512, 256)
    layer = 6 * 12 * layers * width**2

    def useful(tokens: int, hidden: int, length: float) -> float:
        return tokens * (layer + 12 * layers * width * length) + 6 * hidden * (width * VOCABULARY + width**2)

    with tempfile.TemporaryDirectory() as scratch:
        cache, tokenizer = (few_texts if arguments.dry else corpus)(Path(scratch), slots)
        torch.manual_seed(0)
        shape = {"width": width, "layers": layers, "heads": width // 64, "inner": 4 * width, "slots": slots}
        model, _ = new_text_model(
            "bert", vocabulary=VOCABULARY, tokenizer=tokenizer, dropout=0.0, decoder=None, **shape
        )
        sampler = PackedSampler(lengths=cache.lengths, examples=np.asarray(cache.train), slots=slots, rows=rows)
        make = batch_maker(cache, slots, tokenizer.special_ids)
        mean = float((cache.lengths.astype(float) ** 2).sum() / cache.lengths.sum())  # that a token sees

        def batches() -> Iterator[tuple[int, list[Any]]]:
            for planned in sampler.steps():
                yield planned.epoch, [make(planned.rows, sampler.rows)]

        ours = our_loop(model, batches(), Corruption(), lambda r: useful(r.slots, r.hidden, mean))
        flat = np.concatenate(
            [cache.example(int(i))[0] for i in np.asarray(cache.train)[: 40_000 if rows > 8 else 200]]
        )
        config = their_config(layers, width, 0.0)

        def theirs(compiled: bool) -> Loop:
            torch.manual_seed(0)
            bert = BertForMaskedLM(config).to("cuda").train()
            run = torch.compile(bert) if compiled else bert
            optimiser = torch.optim.AdamW(bert.parameters(), lr=1e-4, fused=True)
            rng, parameters = np.random.default_rng(0), list(bert.parameters())

            def one() -> tuple[int, float]:
                start = rng.integers(0, len(flat) - slots, rows)
                ids = torch.from_numpy(flat[start[:, None] + np.arange(slots)].astype(np.int64))
                chosen = torch.rand(ids.shape) < 0.15
                labels = ids.masked_fill(~chosen, -100)
                ids = ids.masked_fill(chosen, tokenizer.mask_id)
                ids, labels = (t.pin_memory().to("cuda", non_blocking=True) for t in (ids, labels))
                with computing("bf16", torch.device("cuda")):
                    loss = run(input_ids=ids, labels=labels).loss
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
                return rows * slots, useful(rows * slots, int(0.15 * rows * slots), slots)

            return one

        loops = {"ours": ours, "transformers": theirs(False)}
        if not arguments.dry:
            loops["transformers, compiled"] = theirs(True)
        return measured(loops, arguments, "tokens")


def few_texts(folder: Path, slots: int) -> Any:
    """A corpus and its tokenizer that are made in a moment."""
    from text_corpus import write_corpus
    from unmask.modalities.text.recipes import TextSettings
    from unmask.modalities.text.tokens.cache import TokenCache
    from unmask.modalities.text.tokens.tokenizer import Tokenizer

    path = write_corpus(folder / "corpus.txt", 200)
    tokenizer = Tokenizer.train([path.read_text()], kind="wordpiece", vocab_size=300)
    settings = TextSettings(slots=slots, holdout=0.1)
    return TokenCache.build(str(path), tokenizer, folder / "cache", settings=settings), tokenizer


def images(arguments: argparse.Namespace) -> dict[str, Any]:
    """ViT-B/16 at 224 pixels, 256 pictures a step, three quarters hidden."""
    from transformers import ViTMAEForPreTraining

    from images_speed import make_ours, their_config
    from unmask.modalities.images.network.batches import image_batch
    from unmask.modalities.images.network.masking import image_corruption
    from unmask.training.precision import computing

    shape: dict[str, Any] = {"image": 224, "patch": 16, "encoder": (768, 12, 12), "decoder": (512, 8, 16), "batch": 256}
    if arguments.dry:
        shape = {"image": 32, "patch": 8, "encoder": (64, 2, 2), "decoder": (32, 1, 2), "batch": 4}
    (width, layers, _), (dw, dl, _), patches = (
        shape["encoder"],
        shape["decoder"],
        (shape["image"] // shape["patch"]) ** 2,
    )
    seen = patches // 4

    def stack(width: int, layers: int, slots: int) -> float:
        return slots * (6 * 12 * layers * width**2 + 12 * layers * width * slots)

    flops = stack(width, layers, seen) + stack(dw, dl, patches)
    model = make_ours(shape)
    config = model.codec.config
    pool = torch.randn(4 * shape["batch"], 3, shape["image"], shape["image"])

    def batches() -> Iterator[tuple[int, list[Any]]]:
        for number in range(10**9):
            at = (number % 4) * shape["batch"]
            numbers = np.arange(shape["batch"]) + number * shape["batch"]
            yield number, [image_batch(config, pool[at : at + shape["batch"]], numbers)]

    inner = our_loop(model, batches(), image_corruption(config, ratio=0.75), lambda _: shape["batch"] * flops)

    def ours() -> tuple[int, float]:
        return shape["batch"], inner()[1]

    def theirs(compiled: bool) -> Loop:
        mae = ViTMAEForPreTraining(their_config(shape)).to("cuda").train()
        run = torch.compile(mae) if compiled else mae
        parameters = [p for p in mae.parameters() if p.requires_grad]
        optimiser, at = torch.optim.AdamW(parameters, lr=1e-4, fused=True), iter(range(10**9))

        def one() -> tuple[int, float]:
            start = (next(at) % 4) * shape["batch"]
            pixels = pool[start : start + shape["batch"]].pin_memory().to("cuda", non_blocking=True)
            with computing("bf16", torch.device("cuda")):
                loss = run(pixel_values=pixels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            return shape["batch"], shape["batch"] * flops

        return one

    loops: dict[str, Loop] = {"ours": ours, "transformers": theirs(False)}
    if not arguments.dry:
        loops["transformers, compiled"] = theirs(True)
    return measured(loops, arguments, "pictures")


def events(arguments: argparse.Namespace) -> dict[str, Any]:
    """The demo's patients in rows of 512 events, 65 536 a step."""
    from unmask.core.sampler import PackedSampler
    from unmask.modalities.events.recipes import EventSettings, with_overrides
    from unmask.modalities.events.records.histories import Histories
    from unmask.modalities.events.records.meds import read_meds
    from unmask.modalities.events.records.vocabulary import Vocabulary
    from unmask.modalities.events.uses.demo import simulate
    from unmask.modalities.events.uses.folder import new_model
    from unmask.modalities.events.uses.pretrain import batch_maker, corruption_of

    width, layers, slots, rows, patients = (32, 2, 64, 4, 60) if arguments.dry else (512, 6, 512, 128, 4000)
    shape = {"width": width, "layers": layers, "heads": max(1, width // 64), "inner": 4 * width, "slots": slots}
    settings = with_overrides(EventSettings(), {**shape, "batch_slots": rows * slots})
    with tempfile.TemporaryDirectory() as scratch:
        simulate(Path(scratch), patients=patients)
        read = read_meds(Path(scratch) / "meds")
    histories = Histories(read, Vocabulary.fit(read))
    model = new_model(settings, len(histories.vocabulary))
    lengths = np.array([histories.length(i) for i in range(len(read))])
    sampler = PackedSampler(lengths=lengths, examples=np.arange(len(read)), slots=slots, rows=rows)
    make = batch_maker(histories, slots)

    def batches() -> Iterator[tuple[int, list[Any]]]:
        for planned in sampler.steps():
            yield planned.epoch, [make(planned.rows, sampler.rows)]

    layer = 6 * 12 * layers * width**2
    loop = our_loop(model, batches(), corruption_of(settings), lambda r: r.slots * layer)
    return measured({"ours": loop}, arguments, "events")


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "walk": walk,
    "text": text,
    "images": images,
    "events": events,
    **{f"cifar-{stage}": cifar(stage) for stage in ("pretrain", "finetune", "scratch")},
    "long": long,
}


if __name__ == "__main__":
    main()
