"""Masked pretraining beside transformers' BertForMaskedLM: same documents, same model shape, same cores, one process.

Reference loops: (a) `padded`: dynamic padding, fp32, the library's collator; (b) `concat`: its best here, concatenated
blocks, SDPA, fused AdamW. `ours` and `concat` compute in the format that `precision=auto` picks on this processor:
bf16 with AMX or AVX512-bf16 (`ours-fp32` is then measured too), else fp32 - where bf16 is emulated, both loops are ten
times slower in it, and their ratio says nothing. Steps alternate between the loops, so that a change of the machine's
speed hits all of them. Figures are real tokens per second (padding not counted), medians over steps, and the ratio of
each pair of neighbouring steps with its quartiles. In this process all loops have our allocator settings, which help
the reference too; `padded-default` is loop (a) as it comes, in a process of its own, one step at a time.

`gemm` is what this machine's matrix products reach in that format (a 4096 x width x 4 width product), `useful` what
our loop does in useful arithmetic (every matrix product a token needs, forward and backward; attention left out), in
GFLOP/s: their quotient bounds what is left to win.

    python benchmarks/text_pretrain.py [--sizes 4x256,6x384,12x768] [--slots 128,512] [--dropout 0,0.1] [--seconds 25]
    python benchmarks/text_pretrain.py --learning       equal learning: same held-out loss after the same tokens
"""

from __future__ import annotations

import argparse
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

from beside import format_here, processor
from unmask.modalities.text.recipes import TextSettings
from unmask.training.precision import computing

VOCABULARY = 30522
TOKENS = 4096  # slots in an optimiser step, on all sides


def corpus(folder: Path, slots: int):
    """Docstrings of the installed packages, tokenised once: real text, nothing to download."""
    from unmask.modalities.text.reading.documents import write_corpus
    from unmask.modalities.text.tokens.cache import TokenCache
    from unmask.modalities.text.tokens.tokenizer import Tokenizer

    path = folder / "docstrings.jsonl"
    if not path.exists():
        write_corpus(path)
    if not (folder / "tokenizer" / "tokenizer.json").exists():
        texts = (json.loads(line)["text"] for line in path.open(encoding="utf-8"))
        (folder / "tokenizer").mkdir(exist_ok=True)
        Tokenizer.train(texts, kind="wordpiece", vocab_size=VOCABULARY).save(folder / "tokenizer")
    tokenizer = Tokenizer.load(folder / "tokenizer")
    cache = TokenCache.build(
        [str(path)], tokenizer, folder / f"cache-{slots}", settings=TextSettings(slots=slots, holdout=0.02)
    )
    return cache, tokenizer


LOOPS = ("ours", "padded", "concat", "padded-default")
FORMAT = format_here()
"""What `ours` and `concat` compute in."""
Stepper = Callable[[], tuple[int, float, float]]
"""One optimiser step: (real tokens, seconds, loss)."""


def ours(
    cache, tokenizer, layers: int, width: int, slots: int, dropout: float, precision: str
) -> tuple[Stepper, torch.nn.Module]:
    from unmask.core.corruption import Corruption
    from unmask.core.pretrain import StepContext, pretrain
    from unmask.core.sampler import PackedSampler
    from unmask.modalities.text.network.folder import new_text_model
    from unmask.modalities.text.tokens.batches import batch_maker
    from unmask.training.optimiser import build_optimiser, step
    from unmask.training.settings import TrainSettings

    torch.manual_seed(0)
    model, _ = new_text_model(
        "bert",
        vocabulary=VOCABULARY,
        width=width,
        layers=layers,
        heads=width // 64,
        inner=4 * width,
        slots=512,
        tokenizer=tokenizer,
        dropout=dropout,
        decoder=None,
    )
    if dropout:
        object.__setattr__(model.encoder.config, "attention_dropout", dropout)
    settings = TrainSettings(steps=10**6, learning_rate=1e-4, schedule="constant", warmup=0.0)
    optimiser = build_optimiser(model, settings)
    sampler = PackedSampler(lengths=cache.lengths, examples=np.asarray(cache.train), slots=slots, rows=TOKENS // slots)
    make = batch_maker(cache, slots, tokenizer.special_ids)

    def batches() -> Iterator[tuple[int, list]]:
        for planned in sampler.steps():
            yield planned.epoch, [make(planned.rows, sampler.rows)]

    def update(progress: float) -> tuple[float, bool]:
        norm = step(optimiser, model.parameters(), clip=1.0)
        optimiser.zero_grad(set_to_none=True)
        return float(norm), True

    context = StepContext(update=update, autocast=lambda: computing(precision, torch.device("cpu")))
    loop = pretrain(model, batches(), Corruption(), context, progress=lambda n: 0.0)

    def one() -> tuple[int, float, float]:
        start = time.perf_counter()
        report = next(loop)
        return report.slots, time.perf_counter() - start, report.loss

    return one, model


def their_config(layers: int, width: int, dropout: float) -> Any:
    """Of transformers' BERT, in this shape."""
    from transformers import BertConfig

    return BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation="sdpa",
    )


def theirs(
    cache, tokenizer, layers: int, width: int, slots: int, dropout: float, kind: str
) -> tuple[Stepper, torch.nn.Module]:
    from transformers import BertForMaskedLM, DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    torch.manual_seed(0)
    model = BertForMaskedLM(their_config(layers, width, dropout)).train()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01, fused=True
    )
    hf = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    collate = DataCollatorForLanguageModeling(hf, mlm_probability=0.15)

    def documents() -> Iterator[list[int]]:
        rng = np.random.default_rng(0)
        while True:
            for number in rng.permutation(np.asarray(cache.train)):
                yield cache.example(int(number))[0].tolist()

    def batches() -> Iterator[list[list[int]]]:
        source = documents()
        if kind == "padded":
            mean = float(cache.lengths[np.asarray(cache.train)].mean())
            while True:
                yield [next(source) for _ in range(max(1, round(TOKENS / mean)))]
        flat: list[int] = []
        while True:
            while len(flat) < TOKENS:
                flat += next(source)
            yield [flat[i : i + slots] for i in range(0, TOKENS, slots)]
            flat = flat[TOKENS:]

    source = batches()

    def one() -> tuple[int, float, float]:
        start = time.perf_counter()  # of the whole step, the choice of its rows included, as in `ours`
        rows = next(source)
        real = sum(len(row) for row in rows)
        batch = collate([{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows])
        if kind == "concat":
            del batch["attention_mask"]  # nothing is padded: SDPA needs no mask
        with computing(FORMAT.name if kind == "concat" else "fp32", torch.device("cpu")):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        return real, time.perf_counter() - start, float(loss.detach())

    return one, model


def gemm(width: int) -> float:
    """GFLOP/s of a product of this model's shape, in `FORMAT`: the best of 20, as nothing else reaches more."""
    a, b = torch.randn(TOKENS, width, dtype=FORMAT.dtype), torch.randn(width, 4 * width, dtype=FORMAT.dtype)
    out = torch.mm(a, b)
    best = 1e9
    for _ in range(20):
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - start)
    return 2 * out.numel() * width / best / 1e9


def useful_flops(layers: int, width: int) -> float:
    """Of one token, forward and backward: the layers' matrices, and head and vocabulary for the 15 % hidden ones."""
    return 6 * (12 * layers * width**2 + 0.15 * (width * VOCABULARY + width**2))


class Elsewhere:
    """A loop in a process of its own with the C library's default allocator; it works only when asked for a step."""

    def __init__(self, folder: Path, name: str, layers: int, width: int, slots: int, dropout: float) -> None:
        asked = [sys.executable, __file__, "--serve", name, "--sizes", f"{layers}x{width}", "--slots", str(slots)]
        asked += ["--dropout", str(dropout), "--folder", str(folder)]
        self.process = subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self) -> tuple[int, float, float]:
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        tokens, seconds, loss = json.loads(self.process.stdout.readline())
        return tokens, seconds, loss

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def serve(folder: Path, size: str, slots: int, dropout: float, name: str) -> None:
    layers, width = (int(n) for n in size.split("x"))
    one, _ = make_loop(name, *corpus(folder, slots), layers, width, slots, dropout)
    for _ in sys.stdin:
        print(json.dumps(one()), flush=True)


def make_loop(name: str, *arguments) -> tuple[Stepper, torch.nn.Module]:
    if name.startswith("ours"):
        return ours(*arguments, "fp32" if name == "ours-fp32" else FORMAT.name)
    return theirs(*arguments, name)


def measure(folder: Path, size: str, slots: int, dropout: float, seconds: float, loops: list[str]) -> dict:
    cache, tokenizer = corpus(folder, slots)
    layers, width = (int(n) for n in size.split("x"))
    made: dict[str, Stepper] = {}
    for name in loops:
        if name == "padded-default":
            made[name] = Elsewhere(folder, "padded", layers, width, slots, dropout)
        else:
            made[name] = make_loop(name, cache, tokenizer, layers, width, slots, dropout)[0]
    for one in made.values():
        one(), one()
    speeds: dict[str, list[float]] = {name: [] for name in loops}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds * len(loops) or len(speeds[loops[0]]) < 3:
        for name, one in made.items():
            tokens, spent, _ = one()
            speeds[name].append(tokens / spent)
    out = {"size": size, "slots": slots, "dropout": dropout, "steps": len(speeds[loops[0]])}
    best = np.array(speeds[loops[0]])
    for name in loops:
        out[name] = float(np.median(speeds[name]))
        ratio = best / np.array(speeds[name])
        out[f"ratio_to_{name}"] = [float(np.quantile(ratio, q)) for q in (0.25, 0.5, 0.75)]
    for one in made.values():
        if isinstance(one, Elsewhere):
            one.close()
    out["gemm"], out["useful"] = gemm(width), out[loops[0]] * useful_flops(layers, width) / 1e9
    return out


def memory(folder: Path, size: str, slots: int, dropout: float, name: str) -> float:
    """Peak memory of five steps in a process of its own, MB, over that of the same process before the first step."""
    cache, tokenizer = corpus(folder, slots)
    layers, width = (int(n) for n in size.split("x"))
    if name == "concat" or name == "padded":
        import transformers  # noqa: F401
    before = high_water()
    one, _ = make_loop(name, cache, tokenizer, layers, width, slots, dropout)
    for _ in range(5):
        one()
    return high_water() - before


def rounded(value):
    """Three digits are more than the machine's noise leaves."""
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return (
        float(f"{value:.3g}")
        if isinstance(value, float) and value < 1000
        else round(value)
        if isinstance(value, float)
        else value
    )


def high_water() -> float:
    """Peak resident memory of this process alone, MB; getrusage would count the parent's from before exec."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1000


def learning(folder: Path, steps: int) -> None:
    """Held-out loss after the same number of tokens, measured by the same code on both models."""
    from unmask.core.pretrain import validate
    from unmask.modalities.text.network.folder import load_folder
    from unmask.modalities.text.tokens.batches import measuring_corruption, validation_batches

    cache, tokenizer = corpus(folder, 128)
    held = validation_batches(cache, np.asarray(cache.validation), slots=128, special_ids=tokenizer.special_ids)
    losses = {}
    for name in ("ours", "concat"):
        one, model = make_loop(name, cache, tokenizer, 4, 256, 128, 0.0)
        seen = 0
        while seen < steps * TOKENS:
            seen += one()[0]
        if name == "concat":
            with tempfile.TemporaryDirectory() as saved:
                model.save_pretrained(saved)
                tokenizer.save(saved)
                model = load_folder(saved).model
        losses[name] = validate(model, held, measuring_corruption())["loss"]
        print(f"{name:10} {seen:,} tokens: held-out loss {losses[name]:.4f}", flush=True)
    print(f"ours / concat: {losses['ours'] / losses['concat']:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="4x256,6x384,12x768")
    parser.add_argument("--slots", default="128,512")
    parser.add_argument("--dropout", default="0,0.1")
    parser.add_argument("--seconds", type=float, default=20.0, help="per loop and setting")
    parser.add_argument("--folder", default=str(Path(tempfile.gettempdir()) / "unmask-bench"))
    every = [*LOOPS, "ours-fp32"] if FORMAT.name == "bf16" else LOOPS
    parser.add_argument("--loops", default=",".join(every), help="which loops, ours first")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--learning", action="store_true")
    parser.add_argument("--steps", type=int, default=300, help="for --learning: steps of 4096 tokens")
    arguments = parser.parse_args()
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.learning:
        return learning(folder, arguments.steps)
    dropouts = [float(d) for d in arguments.dropout.split(",")]
    if arguments.serve:
        return serve(folder, arguments.sizes, int(arguments.slots), dropouts[0], arguments.serve)
    if arguments.memory:
        print(memory(folder, arguments.sizes, int(arguments.slots), dropouts[0], arguments.memory))
        return None
    from unmask.memory import keep_freed_memory

    keep_freed_memory()  # for all loops alike: it helps the reference too
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {FORMAT.name}: {FORMAT.reason}; {TOKENS} slots "
        "per step; tokens/s, ratio quartiles",
        json.dumps({"processor": processor()}),
        flush=True,
    )
    for slots in (int(s) for s in arguments.slots.split(",")):
        for size in arguments.sizes.split(","):
            for dropout in dropouts:
                loops = arguments.loops.split(",")
                row = measure(folder, size, slots, dropout, arguments.seconds, loops)
                print(json.dumps({k: rounded(v) for k, v in row.items()}), flush=True)
                for name in (n for n in ("ours", "concat", "padded") if n in loops):
                    command = [sys.executable, __file__, "--memory", name, "--sizes", size, "--slots", str(slots)]
                    done = subprocess.run(
                        [*command, "--dropout", str(dropout), "--folder", str(folder)],
                        capture_output=True,
                        text=True,
                    )
                    # A loop may need more memory than the machine has.
                    found = round(float(done.stdout)) if done.returncode == 0 else None
                    print(json.dumps({"size": size, "slots": slots, f"memory_{name}": found}), flush=True)
    return None


if __name__ == "__main__":
    main()
