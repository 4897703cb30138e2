"""Which device, and which number format to compute in; weights stay fp32 either way.

bf16 pays on hardware that multiplies it (CPU with AMX or AVX512-bf16, most GPUs) and costs elsewhere, and
the flags a CPU reports do not tell how much: so 'auto' checks them first and then measures for a fraction of
a second.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn

from unmask.encoder.products import multiplies_bf16
from unmask.errors import UserError

WORTH_IT = 1.15
"""How much faster bf16 must measure before 'auto' gives up fp32's digits for it."""
SMALL = 10_000_000
"""Parameters of a model below which casting costs more than bf16 saves when the trained model is used."""


@dataclass(frozen=True)
class Precision:
    """The compute precision of a run.

    Attributes:
        name: 'fp32' or 'bf16'.
        dtype: the torch dtype of it.
        reason: one sentence saying why, warnings included; printed and stored with the run.
    """

    name: str
    dtype: torch.dtype
    reason: str


def resolve_device(device: str = "auto") -> torch.device:
    """The device to run on: 'auto' takes CUDA where there is one, else the CPU.

    Raises:
        UserError: when CUDA is asked for and absent, or the name is unknown.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cpu":
        return torch.device("cpu")
    if device == "cuda":
        if not torch.cuda.is_available():
            built = "finds no usable GPU" if torch.version.cuda else "is built without CUDA"
            raise UserError(
                f"device=cuda, but this torch ({torch.__version__}) {built}",
                hint="Use --device cpu (or auto), or install a CUDA build of torch and check nvidia-smi.",
            )
        return torch.device("cuda")
    raise UserError(f"device={device}", hint="Expected one of auto, cpu, cuda.")


def resolve_precision(precision: str, device: torch.device | str) -> Precision:
    """The precision to compute in on `device`, and why.

    'auto' on a CPU with bf16 instructions measures both for under 0.3 s (once per process) and takes bf16 if
    it is more than `WORTH_IT` times faster; on a GPU it takes bf16 where the hardware has it. In a
    distributed run let one process resolve and tell the others: measurements differ.

    Raises:
        UserError: for an unknown name.
    """
    device = torch.device(device)
    if precision not in ("auto", "fp32", "bf16"):
        raise UserError(f"precision={precision}", hint="Expected one of auto, fp32, bf16.")
    if precision == "fp32":
        return Precision("fp32", torch.float32, "asked for")
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
    if native and device.type == "cpu":
        gain = measure_bf16_gain()
        where += f", and bf16 measured {gain:.2f}x the speed of fp32 ({WORTH_IT}x is needed)"
        native = gain > WORTH_IT
    return Precision("bf16", torch.bfloat16, where) if native else Precision("fp32", torch.float32, where)


def precision_of(model: nn.Module, precision: str, device: torch.device) -> str:
    """The name of the precision to use a trained model in: as `resolve_precision`, but 'auto' is fp32 for small ones."""
    if precision == "auto" and sum(p.numel() for p in model.parameters()) < SMALL:
        return "fp32"
    return resolve_precision(precision, device).name


def computing(precision: str, device: torch.device) -> contextlib.AbstractContextManager:
    """Within, products are computed in bf16 where `precision` is 'bf16'; else as they are."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


def bf16_features() -> list[str]:
    """The CPU's bf16 instruction sets that torch can use, by name; empty where there are none."""
    # Private names of torch, present in 2.8-2.13: where one is gone, the feature counts as absent and 'auto'
    # is fp32.
    probes = {"AMX": "_is_amx_tile_supported", "AVX512-bf16": "_is_avx512_bf16_supported"}
    found = [name for name, probe in probes.items() if bool(getattr(torch.cpu, probe, lambda: False)())]
    return found or (["bf16 through oneDNN"] if multiplies_bf16() else [])


@lru_cache(maxsize=1)
def measure_bf16_gain(seconds: float = 0.25) -> float:
    """How many times faster a linear layer is in bf16 than in fp32 on this CPU: forward, backward and casts.

    The layer is 256 to 1024 wide over 2048 slots: small enough to be quick, large enough to reach the matrix
    units. The best of several alternating rounds is taken, since other work on the machine only ever slows a
    round down.
    """
    values, weight, upstream = torch.ones(2048, 256), torch.ones(1024, 256), torch.ones(2048, 1024)

    def layer(dtype: torch.dtype) -> None:
        x, w, g = values.to(dtype), weight.to(dtype), upstream.to(dtype)
        (x @ w.t()).float()
        (g @ w).float()
        (g.t() @ x).float()

    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    deadline = time.perf_counter() + seconds
    with torch.no_grad():
        for round_number in range(20):
            for dtype in best:
                start = time.perf_counter()
                layer(dtype)
                took = time.perf_counter() - start
                if round_number > 0 or took > seconds / 4:  # the first call pays for one-time set-up
                    best[dtype] = min(best[dtype], took)
            if time.perf_counter() + best[torch.float32] / 2 > deadline and min(best.values()) < float("inf"):
                break
    fp32, bf16 = best[torch.float32], best[torch.bfloat16]
    return fp32 / bf16 if bf16 < float("inf") and fp32 < float("inf") else 1.0
