"""A stand-in for CUDA on a machine without one: tensors that are on `cuda:0` to all who ask, with values on the CPU.

Everything of torch that looks at the device sees CUDA: autograd, autocast, `tensor.is_cuda`, factories. The operations
are worked out on the CPU, so that results can be compared with those of the CPU path. What CUDA would refuse is refused
(tensors of both devices in one operation), and what would make the host wait for the device is counted, with the line
of ours that asked for it.

It is not a GPU: no CUDA kernel runs, and none of its numerics, speed or memory is seen.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import safetensors.torch
import torch
import torch._dynamo  # looks at torch.cuda as it is, so before anything of that is replaced
from accelerate.state import AcceleratorState
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

import unmask

varlen = pytest.importorskip("torch.nn.attention.varlen")  # since PyTorch 2.10

DEVICE = torch.device("cuda", 0)
CUDA = ("cuda", "meta")
"""`cuda` without a number arrives as what the guard says the current device is, see `_register`."""
SOURCE = str(Path(unmask.__file__).parent)
aten = torch.ops.aten

IN_FP32 = {
    "layer_norm",
    "rms_norm",
    "softmax",
    "log_softmax",
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "l1_loss",
    "sum",
    "prod",
    "cumsum",
    "cumprod",
    "norm",
    "exp",
    "log",
    "log1p",
    "pow",
    "rsqrt",
    "softplus",
    "kl_div",
    "smooth_l1_loss",
    "cosine_similarity",
    "binary_cross_entropy_with_logits",
    "dist",
    "cdist",
    "erfinv",
    "expm1",
    "logsumexp",
}
"""What autocast works out in fp32 on CUDA (the op reference of torch.amp)."""
WAITS = {
    aten._local_scalar_dense.default: "a number for the host",
    aten.nonzero.default: "a length that depends on values",
    aten.masked_select.default: "a length that depends on values",
    aten._unique2.default: "a length that depends on values",
    aten.unique_dim.default: "a length that depends on values",
    aten.unique_consecutive.default: "a length that depends on values",
    aten.repeat_interleave.Tensor: "a length that depends on values",
    aten.bincount.default: "a length that depends on values",
    aten.equal.default: "a number for the host",
    aten.is_nonzero.default: "a number for the host",
}
"""Operations after which the host waits for the device."""
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
MIXES = {aten.copy_.default, aten._to_copy.default, aten.set_.source_Tensor}
"""Operations that take tensors of both devices."""


WRAPPERS = ("stand_in.py", "torch/_ops.py", "_dynamo/eval_frame.py", "torch/_compile.py", "utils/_python_dispatch.py")


class Event:
    """Of `torch.cuda`: what was recorded is done, for all is done at once here."""

    def record(self) -> None: ...

    def synchronize(self) -> None:
        _watch.note("for an earlier step")


class MixedDevicesError(RuntimeError):
    """An operation was given tensors of both devices, which CUDA refuses."""


class StandIn(Tensor):
    """A tensor that is on `cuda:0`; `values` are on the CPU."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> StandIn:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
        )
        made.values = values
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def get_device(self) -> int:
        return 0

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"StandIn({self.values!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return work_out(func, args, kwargs or {})


@dataclass
class Watch:
    """What was seen: waits, by (reason, place)."""

    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    on: bool = True

    def note(self, reason: str) -> None:
        """Count a wait at the line of ours that is being run."""
        if self.on:
            self.waits[reason, place()] += 1

    @property
    def total(self) -> int:
        return self.waits.total()

    def told(self) -> str:
        """The waits in words, most frequent first."""
        return "\n".join(f"{count:4} {reason:34} {where}" for (reason, where), count in self.waits.most_common())


_watch = Watch(on=False)


def place() -> str:
    """The innermost line of the library that is being run."""
    for frame in reversed(traceback.extract_stack()):
        if frame.filename.startswith(SOURCE):
            return f"{Path(frame.filename).relative_to(SOURCE)}:{frame.lineno} {frame.line}"
    return "outside"


def in_engine() -> bool:
    """Whether autograd itself asks, not a line of Python."""
    frame: Any = sys._getframe(2)
    while frame is not None and (
        frame.f_code.co_name == "__torch_dispatch__" or frame.f_code.co_filename.endswith(WRAPPERS)
    ):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


def work_out(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the values; what comes out is on the stand-in where CUDA would have it."""
    flat, spec = tree_flatten((args, kwargs))
    ours = [t for t in flat if isinstance(t, StandIn)]
    asked = kwargs.get("device")
    asked = torch.device(asked) if asked is not None else None
    if asked is not None and asked.type == "cpu" and in_engine():
        asked, kwargs = DEVICE, kwargs | {"device": DEVICE}  # which the gradient of a tensor there is on
        flat, spec = tree_flatten((args, kwargs))
    on_device = bool(ours) if asked is None else asked.type in CUDA
    if ours:
        _refuse_mixed(func, flat)
    _count(func, args, kwargs, ours)
    if func in (aten._pin_memory.default,):
        out = args[0].clone()
        out.pinned = True
        return out
    if func is aten.is_pinned.default:
        return getattr(args[0], "pinned", False)
    if func is aten._fused_sdp_choice.default:
        return 0  # plain products: the other kernels have no form on the CPU
    plain, keyed = tree_unflatten([t.values if isinstance(t, StandIn) else t for t in flat], spec)
    if asked is not None and asked.type in CUDA:
        keyed["device"] = torch.device("cpu")
    for unknown in ("pin_memory",):
        if keyed.get(unknown):
            keyed.pop(unknown)
    if func is aten._to_copy.default and asked is None:
        on_device = isinstance(args[0], StandIn)
    out = func(*plain, **keyed)
    known = {id(t.values): t for t in ours}

    def wrapped(t: Tensor) -> Tensor:
        if id(t) in known:
            return known[id(t)]
        return StandIn(t) if on_device else t

    if func in (aten._local_scalar_dense.default, aten.equal.default):
        return out
    return tree_map_only(Tensor, wrapped, out)


def _refuse_mixed(func: Any, flat: list[Any]) -> None:
    """As CUDA does: tensors of the CPU beside those of the device are refused, numbers (no dimension) excepted."""
    if func in MIXES:
        return
    cpu = [t for t in flat if isinstance(t, Tensor) and not isinstance(t, StandIn)]
    if func in INDEXED:
        if any(t.ndim for t in cpu):
            _watch.note("a copy of indices to the device")
        return
    if any(t.ndim for t in cpu):
        shapes = [tuple(t.shape) for t in cpu if t.ndim]
        raise MixedDevicesError(f"{func}: tensors of the CPU {shapes} beside tensors of the device, at {place()}")


def _count(func: Any, args: Any, kwargs: dict[str, Any], ours: list[StandIn]) -> None:
    if func is aten._to_copy.default or func is aten.copy_.default:
        source = args[0] if func is aten._to_copy.default else args[1]
        asked = kwargs.get("device")
        to_device = isinstance(args[0], StandIn) if asked is None else torch.device(asked).type in CUDA
        from_device = isinstance(source, StandIn)
        waits = not (kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True))
        if from_device != to_device:
            if from_device and waits:
                _watch.note("a copy to the host")
            elif to_device and source.ndim and (waits or not getattr(source, "pinned", False)):
                _watch.note("a copy to the device")
        return
    if not ours:
        return
    if func in WAITS:
        _watch.note(WAITS[func])
    elif func in INDEXED and any(isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8) for t in args[1]):
        by_fill = func is not aten.index.Tensor and args[2].numel() == 1 and len(args[1]) == 1  # needs no lengths
        _watch.waits["a length that depends on values", place()] += int(_watch.on and not by_fill)


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return work_out(func, args, kwargs or {})


@functools.cache
def _register() -> None:
    """`tensor.to("cuda")` asks which of the GPUs is meant; this torch has nobody to ask. What answers for `meta` does:
    one device without a number."""
    library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
    guards = (ctypes.c_void_p * 20).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    cuda, meta = 1, 14  # numbers of c10::DeviceType
    if guards[cuda]:
        import pytest  # the benchmarks' dry run needs none

        pytest.skip("a real GPU is here, which nothing can stand in for: -m gpu walks the same way on it")
    assert guards[meta]
    guards[cuda] = guards[meta]


class _Functions(TorchFunctionMode):
    """Autocast of CUDA by that of the CPU, which does the same for products; what CUDA keeps in fp32 besides is told
    here. And tensors of numbers of the host, which are made out of sight of `_Mode`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, first = getattr(func, "__name__", ""), args[0] if args else None
        if name == "cpu" and isinstance(first, StandIn):
            return _moved((first, "cpu"), kwargs)
        if name == "tolist" and isinstance(first, StandIn):
            return _to_host(first).tolist()
        if name == "new_tensor" and isinstance(first, StandIn):
            return torch.tensor(*args[1:], **{"dtype": first.dtype, **kwargs}).to(DEVICE)
        if name == "to" and (asked := _moved(args, kwargs)) is not None:
            return asked
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if name in IN_FP32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map_only(StandIn, _wide, (args, kwargs))
        return func(*args, **kwargs)


def _moved(args: Any, kwargs: dict[str, Any]) -> Tensor | None:
    """`tensor.to(...)` where it leaves the device or takes it from another tensor, which torch itself would not see;
    None elsewhere."""
    tensor, others = args[0], [*args[1:], *kwargs.values()]
    device = next((torch.device(o) for o in others if isinstance(o, str | torch.device)), None)
    dtype = next((o for o in others if isinstance(o, torch.dtype)), None)
    like = next((o for o in others if isinstance(o, Tensor)), None)
    if like is not None:
        device, dtype = like.device, like.dtype
    leaves = isinstance(tensor, StandIn) and device is not None and device.type == "cpu"
    enters = not isinstance(tensor, StandIn) and like is not None and isinstance(like, StandIn)
    if not (leaves or enters):
        return None
    return aten._to_copy(tensor, dtype=dtype, device=device, non_blocking=bool(kwargs.get("non_blocking")))


def _to_host(tensor: StandIn) -> Tensor:
    return aten._to_copy(tensor, device="cpu")


def _wide(t: StandIn) -> Tensor:
    return t.float() if t.dtype in (torch.bfloat16, torch.float16) else t


def _varlen_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, **more: Any
) -> Tensor:
    """`torch.nn.attention.varlen.varlen_attn` by plain products, with what its kernel refuses."""
    window = more.pop("window_size", (-1, -1))
    scale = more.pop("scale", None)
    assert not more, more
    assert all(t.is_cuda for t in (q, k, v, cu_q, cu_k))
    assert q.dtype in (torch.bfloat16, torch.float16), f"flash attention takes half precision, not {q.dtype}"
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert q.shape[-1] % 8 == 0, f"flash attention takes heads of multiples of 8, not {q.shape[-1]}"
    assert q.shape[-1] <= 256, f"flash attention takes heads up to 256, not {q.shape[-1]}"
    assert isinstance(max_q, int)
    assert isinstance(max_k, int)
    assert int(cu_q.values[-1]) == len(q), "the last cumulative length is not the number of tokens"
    assert max_q >= int(cu_q.values.diff().max())
    first = cu_q.values[:-1].long()
    token = torch.arange(len(q))
    owner = StandIn(torch.searchsorted(first, token, right=True))
    where = StandIn(token)
    allowed = owner[:, None] == owner[None]
    if window != (-1, -1):
        away = where[None] - where[:, None]
        allowed &= (away >= -window[0]) & (away <= window[1])
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * (scale or q.shape[-1] ** -0.5)
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v.float()).to(q.dtype)


def _copied_first(write: Callable[..., Any]) -> Callable[..., Any]:
    """Safetensors copies tensors of the device to the host itself, by their addresses."""

    def to_host(tensors: dict[str, Tensor], *more: Any) -> Any:
        return write({k: t.values if isinstance(t, StandIn) else t for k, t in tensors.items()}, *more)

    return to_host


def _patches() -> Iterator[Any]:
    def nothing(*args: Any, **kwargs: Any) -> None: ...

    def waits(*args: Any, **kwargs: Any) -> None:
        _watch.note("synchronize")

    replaced: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": nothing,
        "_lazy_init": nothing,
        "synchronize": waits,
        "mem_get_info": lambda device=None: (60 << 30, 80 << 30),
        "max_memory_allocated": lambda device=None: 0,
        "memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": nothing,
        "empty_cache": nothing,
        "Event": Event,
        "get_device_name": lambda device=None: "stand-in",
        "get_device_capability": lambda device=None: (9, 0),
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
        "manual_seed_all": nothing,
    }
    for name, value in replaced.items():
        yield mock.patch.object(torch.cuda, name, value)
    cast, enabled, dtype = torch.autocast.__init__, torch.is_autocast_enabled, torch.get_autocast_dtype

    def begin(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        cast(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    def asked(of: Callable[..., Any]) -> Callable[..., Any]:
        return lambda device_type="cpu": of("cpu" if device_type == "cuda" else device_type)

    def enter(self: Any) -> None:
        self.within = torch.no_grad()
        self.within.__enter__()

    # Tensors of this kind cannot be made in inference mode.
    yield mock.patch.object(torch.inference_mode, "__enter__", enter)
    yield mock.patch.object(torch.inference_mode, "__exit__", lambda self, *error: self.within.__exit__(*error))
    yield mock.patch.object(varlen, "varlen_attn", _varlen_attention)
    yield mock.patch.object(safetensors.torch, "_flatten_as_ptr", _copied_first(safetensors.torch._flatten_as_ptr))

    class Generator(torch.Generator):  # a class, for annotations that name it
        def __new__(cls, device: str = "cpu") -> Generator:
            return super().__new__(cls, "cpu")

        def __init__(self, device: str = "cpu") -> None: ...

    yield mock.patch.object(torch, "Generator", Generator)
    yield mock.patch.object(torch.autocast, "__init__", begin)
    yield mock.patch.object(torch, "is_autocast_enabled", asked(enabled))
    yield mock.patch.object(torch, "get_autocast_dtype", asked(dtype))


@contextlib.contextmanager
def cuda() -> Iterator[Watch]:
    """Within, `device="cuda"` is the stand-in. Yields what it counts."""
    global _watch
    _register()
    AcceleratorState._reset_state(reset_partial_state=True)
    before, _watch = _watch, Watch()
    with contextlib.ExitStack() as stack:
        for patch in _patches():
            stack.enter_context(patch)
        # `param.data = moved`, which modules do by default, would lose the values.
        for name in ("swap_module_params_on_conversion", "overwrite_module_params_on_conversion"):
            change = getattr(torch.__future__, f"set_{name}")
            stack.callback(change, getattr(torch.__future__, f"get_{name}")())
            change(True)
        stack.enter_context(_Functions())
        stack.enter_context(_Mode())
        try:
            yield _watch
        finally:
            _watch = before
            AcceleratorState._reset_state(reset_partial_state=True)
