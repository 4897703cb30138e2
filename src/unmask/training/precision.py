"""Which device, and which number format to compute in; weights stay fp32 either way.

bf16 is faster on hardware that multiplies it, and slower elsewhere. With AMX it is faster, with AVX2 alone it is slower
(docs/explanation/decisions.md has the ratios). In between (AVX512-bf16 without AMX, oneDNN's bf16 without either) it
depends on the processor, so 'auto' measures once per machine and stores the result: the same command computes in the
same format, however busy the machine is.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.errors import UserError, option
from unmask.kernels.fused_linear import multiplies_bf16
from unmask.kernels.threads import one_core
from unmask.writing import written

WORTH_IT = 1.15
"""How much faster bf16 must measure before 'auto' gives up fp32's digits for it."""
KNOWN = "AMX"
"""Instructions with which bf16 was faster in every shape measured. With AVX512-bf16 alone it was 1.5 to 2.1 times as
fast on AMD's processors, and half as fast on an Intel one whose AMX was hidden by the virtual machine."""
LAYER = (512, 256, 1024)
"""Slots, inputs and outputs of the layer that is measured: quick, and large enough to reach the matrix units."""
SMALL = 2_000_000
"""Parameters of a model below which bf16 saves nothing when the trained model is used. With AMX, time in bf16 over fp32
of embed, fill and score, many texts and one: 4 x 256 .55 to .94, 6 x 192 .56 to .97, 4 x 128 .66 to 1.17, 2 x 64 .93 to
1.21."""


@dataclass(frozen=True)
class Precision:
    """The compute precision of a run.

    Attributes:
        reason: one sentence saying why, warnings included; printed and stored with the run.
    """

    name: str
    dtype: torch.dtype
    reason: str


def resolve_device(device: str = "auto") -> torch.device:
    """The device to run on: 'auto' takes CUDA where there is one, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu":
        return torch.device("cpu")
    if device == "cuda":
        if not torch.cuda.is_available():
            built = "finds no usable GPU" if torch.version.cuda else "is built without CUDA"
            raise UserError(
                f"device=cuda, but this torch ({torch.__version__}) {built}",
                hint=f"Use {option('device', 'cpu')} (or auto), or install a CUDA build of torch and check nvidia-smi.",
            )
        return torch.device("cuda")
    raise UserError(f"device={device}", hint="Expected one of auto, cpu, cuda.")


def resolve_precision(precision: str, device: torch.device | str) -> Precision:
    """The precision to compute in on `device`, and why.

    'auto' takes bf16 on a CPU with AMX and on a GPU that has bf16, fp32 on a CPU without it; on a CPU that multiplies
    bf16 by other instructions, what `remembered_gain` finds decides. In a distributed run one process resolves and
    tells the others.
    """
    device = torch.device(device)
    if precision not in ("auto", "fp32", "bf16"):
        raise UserError(f"precision={precision}", hint="Expected one of auto, fp32, bf16.")
    if precision == "fp32":
        return Precision("fp32", torch.float32, "asked for")
    features: list[str] = []
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        where = f"{torch.cuda.get_device_name(device)} {'has' if native else 'has no'} bf16 arithmetic"
    else:
        features = bf16_features()
        native = bool(features)
        where = f"this CPU has {' and '.join(features)}" if native else "this CPU has no bf16 instructions"
    if precision == "bf16":
        warning = "" if native else f", but {where}: expect it to be slower than fp32"
        return Precision("bf16", torch.bfloat16, "asked for" + warning)
    if features and KNOWN not in features:
        gain = remembered_gain()
        where += f", and bf16 measured {gain:.2f}x the speed of fp32 on it ({WORTH_IT}x is needed)"
        native = gain > WORTH_IT
    return Precision("bf16", torch.bfloat16, where) if native else Precision("fp32", torch.float32, where)


@functools.cache
def bf16_pays(device: str) -> bool:
    """Whether 'auto' computes in bf16 on devices of this type ('cpu' or 'cuda'), found once per process."""
    return resolve_precision("auto", device).name == "bf16"


def precision_of(model: nn.Module, precision: str, device: torch.device) -> str:
    """The precision to use a trained model in: as `resolve_precision`, but 'auto' is fp32 for small ones."""
    if precision == "auto" and sum(p.numel() for p in model.parameters()) < SMALL:
        return "fp32"
    return resolve_precision(precision, device).name


def computing(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Within, products are computed in bf16 where `precision` is 'bf16'; else as they are."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


def bf16_features() -> list[str]:
    """The CPU's bf16 instruction sets that torch can use, by name; empty where there are none."""
    # Private names of torch, present in 2.8-2.13: where one is gone, the feature counts as absent and 'auto'
    # is fp32.
    probes = {"AMX": "_is_amx_tile_supported", "AVX512-bf16": "_is_avx512_bf16_supported"}
    found = [name for name, probe in probes.items() if bool(getattr(torch.cpu, probe, lambda: False)())]
    return found or (["bf16 through oneDNN"] if multiplies_bf16() else [])


def remembered_gain() -> float:
    """`measure_bf16_gain`, taken once per processor, torch version and shape, and kept in the user's cache folder.

    The file is $XDG_CACHE_HOME/unmask/precision.json (~/.cache without it). Where it cannot be read or written, the
    measurement is taken again.
    """
    key = f"{processor_name()}; torch {torch.__version__}; layer {'x'.join(map(str, LAYER))}"
    path = cache_folder() / "precision.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        gain = float(known[key])
        if 0 < gain < float("inf"):
            return gain
    except (OSError, ValueError, KeyError, TypeError):
        known = {}
    gain = measure_bf16_gain()
    with contextlib.suppress(OSError, UserError):
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {**(known if isinstance(known, dict) else {}), key: round(gain, 4)}
        with written(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return round(gain, 4)


def cache_folder() -> Path:
    """Where what can be found again is kept: $XDG_CACHE_HOME/unmask, or ~/.cache/unmask."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path(os.path.expanduser("~/.cache"))) / "unmask"


def processor_name() -> str:
    """The processor's model as the system names it, with its numbers: virtual machines name many models alike."""
    with contextlib.suppress(OSError):
        about = Path("/proc/cpuinfo").read_text(errors="replace")
        names = ("model name", "cpu family", "model", "stepping")
        found = [re.search(rf"^{name}\s*: (.+)$", about, re.MULTILINE) for name in names]
        if found[0]:
            return " ".join(each[1].strip() for each in found if each)
    return platform.processor() or platform.machine()


def measure_bf16_gain(rounds: int = 9) -> float:
    """How many times faster a linear layer (`LAYER`) is in bf16 than in fp32 on this CPU: forward, backward and casts.

    Other work on the machine does not count: processor seconds of one thread are compared, the two formats take turns,
    and the best round of each is taken.
    """
    slots, inputs, outputs = LAYER
    values, weight, upstream = torch.ones(slots, inputs), torch.ones(outputs, inputs), torch.ones(slots, outputs)

    def layer(dtype: torch.dtype) -> None:
        x, w, g = values.to(dtype), weight.to(dtype), upstream.to(dtype)
        (x @ w.t()).float()
        (g @ w).float()
        (g.t() @ x).float()

    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    began = time.thread_time()
    with torch.no_grad(), one_core():
        for number in range(rounds + 1):
            if number > 2 and time.thread_time() - began > 1:  # far from equal: a few rounds will do
                break
            for dtype in best:
                start = time.thread_time()
                layer(dtype)
                took = time.thread_time() - start
                if number:  # the first call pays for one-time set-up
                    best[dtype] = min(best[dtype], took)
    return best[torch.float32] / max(best[torch.bfloat16], 1e-9)
