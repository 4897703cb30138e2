"""Arithmetic as another processor might do it: products add up in an order that depends on their shape, and elementwise
functions round the last few elements of a tensor differently.

Both are what libraries do where they have several kernels (AVX2, AVX512, AMX): the same product within a larger one, or
an element at another place, comes out with other last bits. A test that passes on one processor and compares bits
across shapes fails on the next; under this it fails everywhere. Results stay deterministic, and right to single
precision.

    UNMASK_TEST_PROCESSOR=other pytest tests/modalities/table
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
LANES = 32
"""Elements beyond a multiple of this many are the rest that vector instructions leave."""
ELEMENTWISE = {getattr(aten, name).default for name in ("exp", "log", "sigmoid", "tanh", "erf", "special_ndtr")}
EXACT = (torch.float32, torch.float64)


def cut(*tensors: Tensor) -> int:
    """Where the sum of a product is cut in two: another place for another shape."""
    inner = tensors[0].shape[-1]
    return 1 + zlib.crc32(repr([tuple(t.shape) for t in tensors]).encode()) % (inner - 1) if inner > 1 else inner


def product(a: Tensor, b: Tensor, times: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    at = cut(a, b)
    if at == a.shape[-1]:
        return times(a, b)
    return times(a[..., :at], b[..., :at, :]) + times(a[..., at:], b[..., at:, :])


class OtherProcessor(TorchDispatchMode):
    """Within, this thread's products and elementwise functions are those of another processor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if not isinstance(first, Tensor) or first.dtype not in EXACT:
            return func(*args, **kwargs)
        if func in (aten.mm.default, aten.bmm.default):
            return product(*args, func)
        if func in (aten.addmm.default, aten.baddbmm.default):
            bias, a, b = args
            plain = aten.mm.default if func is aten.addmm.default else aten.bmm.default
            return kwargs.get("beta", 1) * bias + kwargs.get("alpha", 1) * product(a, b, plain)
        out = func(*args, **kwargs)
        if func in ELEMENTWISE and out.numel() % LANES:
            rest = out.numel() % LANES
            out = out.contiguous()
            last = out.view(-1)[-rest:]
            last.copy_(torch.nextafter(last, last * 2))
        return out


@contextlib.contextmanager
def other_processor() -> Iterator[None]:
    """The whole process, threads of pools included."""
    submit = concurrent.futures.ThreadPoolExecutor.submit

    def submitted(pool: Any, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        def there(*a: Any, **k: Any) -> Any:
            with OtherProcessor():
                return work(*a, **k)

        return submit(pool, there, *args, **kwargs)

    concurrent.futures.ThreadPoolExecutor.submit = submitted  # type: ignore[method-assign]
    try:
        with OtherProcessor():
            yield
    finally:
        concurrent.futures.ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]
