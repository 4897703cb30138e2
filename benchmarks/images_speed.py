"""Masked autoencoders beside transformers' ViTMAEForPreTraining: same shapes, same cores, one process, alternating
steps.

    python benchmarks/images_speed.py [--seconds 40] [--only ti224,s224,cifar] [--json F] [--memory]
    python benchmarks/images_speed.py --hidden            the encoder's cost by the share of hidden patches

A step is forward, backward and fused AdamW on pictures already in memory, 75 % hidden, normalised targets; ours draws
its masks within the step, as theirs does. Peers: ViTMAE in fp32, and under bf16 autocast where the processor has bf16
(ours in the same formats), SDPA attention, position tables set. Figures are medians; each ratio is of neighbouring
steps (median and quartiles), so that a change of the machine's speed hits both. Peak memory is measured in processes
of their own (`--memory`).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from beside import format_here

SHAPES: dict[str, dict[str, Any]] = {
    "ti224": {"image": 224, "patch": 16, "encoder": (192, 12, 3), "decoder": (512, 8, 16), "batch": 16},
    "s224": {"image": 224, "patch": 16, "encoder": (384, 12, 6), "decoder": (512, 8, 16), "batch": 16},
    "cifar": {"image": 32, "patch": 4, "encoder": (192, 12, 3), "decoder": (192, 4, 3), "batch": 128},
}
Step = Callable[[], float]
"""Runs one optimiser step; returns its loss."""


def context(bf16: bool) -> contextlib.AbstractContextManager:
    return torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext()


def make_ours(shape: dict[str, Any], ratio: float = 0.75):
    from unmask.modalities.images.network.build import codec_config, new_model
    from unmask.modalities.images.recipes import PIXELS, ImageSettings, with_overrides

    (width, layers, heads), (dw, dl, dh) = shape["encoder"], shape["decoder"]
    settings = with_overrides(
        ImageSettings(),
        PIXELS
        | {
            "width": width,
            "layers": layers,
            "heads": heads,
            "decoder_width": dw,
            "decoder_layers": dl,
            "decoder_heads": dh,
            "patch": shape["patch"],
            "statistics": 0.0,
            "ratio": ratio,
        },
    )
    side = (shape["image"], shape["image"])
    return new_model(settings, codec_config(settings, side, 3, (0.0,) * 3, (1.0,) * 3))


def ours(shape: dict[str, Any], bf16: bool, ratio: float = 0.75) -> Step:
    from unmask.core.pretrain import StepContext, pretrain
    from unmask.modalities.images.network.batches import image_batch
    from unmask.modalities.images.network.masking import image_corruption
    from unmask.training.optimiser import build_optimiser, step
    from unmask.training.settings import TrainSettings

    model = make_ours(shape, ratio)
    optimiser = build_optimiser(model, TrainSettings(learning_rate=1e-4))
    config = model.codec.config
    corruption = image_corruption(config, ratio=ratio)

    def update(_: float) -> tuple[float, bool]:
        norm = step(optimiser, model.parameters(), clip=None)
        optimiser.zero_grad(set_to_none=True)
        return float(norm), True

    def batches():
        number = 0
        while True:
            images = torch.randn(shape["batch"], 3, shape["image"], shape["image"])
            yield number, [image_batch(config, images, np.arange(shape["batch"]) + number * shape["batch"])]
            number += 1

    machine = StepContext(update=update, autocast=lambda: context(bf16))
    reports = pretrain(model, batches(), corruption, machine, progress=lambda _: 0.0)
    return lambda: next(reports).loss


def their_config(shape: dict[str, Any]) -> Any:
    """Of transformers' MAE, in this shape."""
    from transformers import ViTMAEConfig

    (width, layers, heads), (dw, dl, dh) = shape["encoder"], shape["decoder"]
    return ViTMAEConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        image_size=shape["image"],
        patch_size=shape["patch"],
        decoder_hidden_size=dw,
        decoder_num_hidden_layers=dl,
        decoder_num_attention_heads=dh,
        decoder_intermediate_size=4 * dw,
        mask_ratio=0.75,
        norm_pix_loss=True,
        attn_implementation="sdpa",
    )


def theirs(shape: dict[str, Any], bf16: bool) -> Step:
    from transformers import ViTMAEForPreTraining

    from unmask.modalities.images.network.build import grid_table

    (width, *_), (dw, *_) = shape["encoder"], shape["decoder"]
    model = ViTMAEForPreTraining(their_config(shape)).train()
    grid = (shape["image"] // shape["patch"],) * 2
    with torch.no_grad():
        model.vit.embeddings.position_embeddings.copy_(grid_table(grid, width, True)[None])
        model.decoder.decoder_pos_embed.copy_(grid_table(grid, dw, True)[None])
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)

    def one() -> float:
        images = torch.randn(shape["batch"], 3, shape["image"], shape["image"])
        with context(bf16):
            loss = model(pixel_values=images).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss.item()

    return one


BF16 = format_here().name == "bf16"
FORMATS = {"bf16": True, "fp32": False} if BF16 else {"fp32": False}
LOOPS: dict[str, Callable[[dict[str, Any]], Step]] = {
    f"{side} {name}": functools.partial(make, bf16=bf16)
    for side, make in (("ours", ours), ("ViTMAE", theirs))
    for name, bf16 in FORMATS.items()
}
RATIOS = [(a, b) for a in LOOPS for b in LOOPS if a.startswith("ours") and b.startswith("ViTMAE")]


def timed(one: Step) -> float:
    start = time.perf_counter()
    one()
    return time.perf_counter() - start


def alternate(steps: dict[str, Step], seconds: float) -> dict[str, list[float]]:
    """Seconds of each step, the loops taking turns, for about `seconds` in all."""
    for one in steps.values():
        one()
        one()
    found: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, found.values())) < 3:
        for name, one in steps.items():
            found[name].append(timed(one))
    return found


def quartiles(values: list[float]) -> tuple[float, float, float]:
    low, middle, high = np.percentile(values, [25, 50, 75])
    return float(low), float(middle), float(high)


def compare(name: str, seconds: float) -> dict[str, Any]:
    shape = SHAPES[name]
    torch.manual_seed(0)
    found = alternate({k: make(shape) for k, make in LOOPS.items()}, seconds)
    out: dict[str, Any] = {"batch": shape["batch"], "steps": len(next(iter(found.values())))}
    print(
        f"\n{name}: {shape['image']} px, patch {shape['patch']}, encoder {shape['encoder']}, decoder {shape['decoder']}"
    )
    for loop, times in found.items():
        out[loop] = shape["batch"] / statistics.median(times)
        print(f"  {loop:14}{out[loop]:9.1f} images/s   (best {shape['batch'] / min(times):.1f}, n = {len(times)})")
    for a, b in RATIOS:
        ratio = quartiles([y / x for x, y in zip(found[a], found[b], strict=True)])
        out[f"{a} / {b}"] = ratio
        print(f"  {a} is {ratio[1]:.2f} x {b}   (quartiles {ratio[0]:.2f} to {ratio[2]:.2f})", flush=True)
    return out


def hidden_curve(seconds: float) -> dict[str, Any]:
    """Forward and backward of the encoder alone, ViT-S/16 at 224, by the share of hidden patches."""
    from unmask.modalities.images.network.batches import image_batch
    from unmask.modalities.images.network.masking import hidden_count

    shape = SHAPES["s224"]
    model = make_ours(shape)
    config = model.codec.config
    batch = image_batch(config, torch.randn(8, 3, 224, 224), np.arange(8))
    model.decoder = torch.nn.Identity()
    shares = (0.0, 0.25, 0.5, 0.75, 0.9)

    def encoder_step(share: float) -> Step:
        keep = config.patches - (hidden_count(config.patches, share) if share else 0)
        where = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(config.patches)[:keep].sort().values])
        where = where.expand(8, -1)
        values = {
            k: v.gather(1, where.view(*where.shape, *[1] * (v.dim() - 2)).expand(-1, -1, *v.shape[2:]))
            for k, v in batch.values.items()
        }
        nothing = torch.zeros(where.shape, dtype=torch.bool)

        def one() -> float:
            with context(BF16):
                x = model.codec.embed(values, nothing)
                states = model.encoder(x, segment=torch.ones_like(where), position=where)
            states.float().square().mean().backward()
            model.zero_grad(set_to_none=True)
            return 0.0

        return one

    def whole_step(share: float) -> Step:
        return ours(shape, BF16, share) if share else ours(shape, BF16, 1 / config.patches)

    out: dict[str, Any] = {}
    print(
        f"\nViT-S/16 at 224, {'bf16' if BF16 else 'fp32'}, by hidden share: time relative to nothing hidden (median of "
        "neighbouring steps, quartiles)"
    )
    for what, make, few in (("encoder", encoder_step, shares), ("whole step", whole_step, (0.0, 0.5, 0.75))):
        found = alternate({str(s): make(s) for s in few}, seconds)
        for share in few:
            ratio = quartiles([a / b for a, b in zip(found[str(share)], found["0.0"], strict=True)])
            out[f"{what} {share:g}"] = {"seconds": statistics.median(found[str(share)]), "relative": ratio}
            print(
                f"  {what:11}{share:5.0%} hidden  {ratio[1]:.2f}  ({ratio[0]:.2f} to {ratio[2]:.2f})  "
                f"{out[f'{what} {share:g}']['seconds']:.3f} s",
                flush=True,
            )
    return out


def memory(names: list[str]) -> dict[str, Any]:
    """Peak resident memory over that of the libraries, of five steps, each loop in a process of its own."""
    out: dict[str, Any] = {}
    print("\npeak memory of five steps over the process's start, MB")
    for name in names:
        for loop in LOOPS:
            done = subprocess.run(
                [sys.executable, __file__, "--measure", name, loop], capture_output=True, text=True, check=True
            )
            out[f"{name} {loop}"] = float(done.stdout.split()[-1])
            print(f"  {name:8}{loop:14}{out[f'{name} {loop}']:9.0f}", flush=True)
    return out


def measure(name: str, loop: str) -> None:
    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3

    import transformers  # noqa: F401 - both sides start with the same libraries

    import unmask.modalities.images.uses.model  # noqa: F401

    start = peak()
    one = LOOPS[loop](SHAPES[name])
    for _ in range(5):
        one()
    print(peak() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=40, help="per shape")
    parser.add_argument("--only", default=",".join(SHAPES))
    parser.add_argument("--hidden", action="store_true", help="the cost by hidden share, nothing else")
    parser.add_argument("--memory", action="store_true", help="peak memory, nothing else")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()
    if args.measure:
        measure(*args.measure)
        return
    from unmask.memory import keep_freed_memory

    names = args.only.split(",")
    keep_freed_memory()  # both sides gain: it is the process's
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; {format_here().reason}")
    if args.hidden:
        found: dict[str, Any] = {"hidden": hidden_curve(args.seconds)}
    elif args.memory:
        found = {"memory": memory(names)}
    else:
        found = {name: compare(name, args.seconds) for name in names}
    if args.json:
        have = json.loads(args.json.read_text()) if args.json.exists() else {}
        args.json.write_text(json.dumps(have | found, indent=1))


if __name__ == "__main__":
    main()
