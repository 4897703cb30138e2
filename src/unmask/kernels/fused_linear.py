"""Matrix products of an encoder at inference, on a CPU: weights laid out once for the kernel, what follows fused with
them.

Three number formats: fp32, bf16, and int8 (weights by output channel, activations as 8 bits without a sign, with one
scale for a tensor and a factor a channel folded into the weights). Time of the product 2048 x 384 -> 1536 with GELU on
2 cores without AMX, milliseconds, on a busy machine: `F.linear` and GELU fp32 49, bf16 40; here fp32 32, bf16 17, int8
8. On AVX2 alone int8 takes half the time of fp32 (15 for 31).

The kernels are oneDNN's as torch's own compiler calls them. Where one is missing, `F.linear` does the work, slower.

Shape letters: slots (of all examples, without padding), inputs, outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8, UInt8
from torch import Tensor

from unmask.errors import UserError, option

ROWS = 2048
"""Slots the layout is chosen for; other numbers work too."""
ACTIVATIONS = {
    "none": ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "tanh": ("tanh", ""),
}
"""What can follow a product within it: oneDNN's name and variant."""
ROUND = 64
"""Rows given to a product are rounded up to this where their number changes from batch to batch. oneDNN keeps a kernel
and its work space for every shape it has seen: with the exact number of hidden slots, a new one at every step, a run of
4 x 256 grew by 16 MB per step, to gigabytes; embedding 2 000 sentences held 70 MB more."""
FEW, ROUND_FEW = 256, 16
"""At inference so few rows are rounded up to this: texts of 8 to 128 tokens, one at a time through MiniLM-L6, took .80
of the time that they took in 64s, and as long in 8s. Kernels of all lengths to 256 hold 60 MB (26 in 64s, 116 in 8s).
"""
ZERO = 128
"""What stands for 0 in 8 bits without a sign."""
LARGEST = 127
"""Largest 8-bit weight."""


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """`gelu` is the exact (erf) form; the tanh form is 2.6-5x slower on CPUs and kept for old checkpoints."""
    return {
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "relu": F.relu,
        "silu": F.silu,
        "tanh": torch.tanh,
    }[name]


def round_up(states: Float[Tensor, "slots width"], *, few: int = ROUND) -> Float[Tensor, "rounded width"]:
    """Rows of zeros added up to a multiple of ROUND, on CPUs; see there.

    Args:
        few: the same for at most FEW rows.
    """
    if states.is_cuda or torch.jit.is_tracing() or torch.compiler.is_compiling():  # type: ignore[attr-defined]
        return states
    return F.pad(states, (0, 0, 0, -len(states) % (few if len(states) <= FEW else ROUND)))


def batch_invariant(product: Callable[[Tensor], Tensor], x: Float[Tensor, "*rows inputs"], *, wide: int = 0) -> Tensor:
    """`product` of all rows; at inference on a CPU of ROUND at a time, zeros behind the last, so that a row's result
    has the same bits whatever stands beside it: the order in which a product adds depends on the number of its rows.

    Args:
        wide: outputs of a product in fp32 that has many. Then the last rows are rounded up to ROUND_FEW alone, where
            that was tried to give the same bits: one hidden token is else 64 rows of a vocabulary.
    """
    traced = torch.jit.is_tracing()  # type: ignore[attr-defined]
    if traced or x.device.type != "cpu" or not torch.is_inference_mode_enabled() or not len(x) or x.dim() > 2:
        return product(x)
    few = ROUND_FEW if wide and _few_have_same_bits(wide, x.shape[1], torch.get_num_threads()) else ROUND
    return torch.cat([product(part) for part in F.pad(x, (0, 0, 0, -len(x) % few)).split(ROUND)])[: len(x)]


@cache
def _few_have_same_bits(outputs: int, inputs: int, threads: int) -> bool:
    """Whether `F.linear` in fp32 of fewer rows than ROUND, in steps of ROUND_FEW, has the bits of ROUND rows."""
    draw = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(n, inputs, generator=draw) for n in (min(outputs, 1024), ROUND))
    weight = weight.repeat(-(-outputs // 1024), 1)[:outputs]  # drawing them all would take longer than the products
    whole = F.linear(x, weight)
    return all(torch.equal(F.linear(x[:rows], weight), whole[:rows]) for rows in range(ROUND_FEW, ROUND, ROUND_FEW))


TRIED = ((16, 32, 48), (128, 192, 256), (448, 1024), (1984, 2048))
"""Numbers of rows, by how large they are."""


@cache
def row_blocks(
    rows: int, shape: tuple[int, int], dtype: torch.dtype, how: tuple[str, bool, bool], threads: int
) -> list[int]:
    """How many of `rows` rows to multiply at a time, as many as give each row the bits that it has among ROUND rows;
    the last of them may be more than are left. In fp32 that is all of them on the processors tried; in bf16 with AMX
    the sums of 768 inputs and more are cut at places that depend on the rows. All at once where some numbers of rows
    about as large as `rows` pass: to try each would take longer than the products that it is for.

    Args:
        shape: (outputs, inputs) of the weight.
        how: activation, whether there is a bias, and whether a residual is added.
        threads: that torch has.
    """
    out: list[int] = []
    near = next((sizes for sizes in TRIED if rows <= sizes[-1]), TRIED[-1])
    if rows == ROUND or all(_same_bits(size, shape, dtype, how, threads) for size in near):
        return [rows]
    for size in (1024, 512, 256, 128, ROUND, rows % ROUND):
        while 0 < size <= rows - sum(out) and (size == ROUND or _same_bits(size, shape, dtype, how, threads)):
            out.append(size)
    return out if sum(out) == rows else [*out, ROUND]


@cache
def _same_bits(
    rows: int, shape: tuple[int, int], dtype: torch.dtype, how: tuple[str, bool, bool], threads: int
) -> bool:
    """Whether a product of so many rows has the bits of products of ROUND rows, tried on sums that are 0 but for
    rounding: of such another order changes every bit, which the few digits of bf16 else hide."""
    (outputs, inputs), (name, biased, added) = shape, how
    draw = torch.Generator().manual_seed(0)
    half, order = inputs // 2, torch.randperm(inputs // 2 * 2, generator=draw)
    weight, x = torch.zeros(outputs, inputs), torch.zeros(rows, inputs)
    drawn, values = torch.randn(outputs, half, generator=draw), torch.randn(rows, half, generator=draw)
    weight[:, : 2 * half] = torch.cat([drawn, -drawn], 1)[:, order]
    x[:, : 2 * half] = torch.cat([values, values], 1)[:, order]
    linear = FusedLinear.of(weight, torch.zeros(outputs) if biased else None, dtype, name)
    zeros = torch.zeros(rows, outputs, dtype=dtype)
    x = x.to(dtype)
    blocks = F.pad(x, (0, 0, 0, -rows % ROUND)).split(ROUND)
    parts = torch.cat([linear.multiply(part, zeros.new_zeros(ROUND, outputs) if added else None) for part in blocks])
    return torch.equal(linear.multiply(x, zeros if added else None), parts[:rows])


def _has(space: str, name: str) -> bool:
    return hasattr(getattr(torch.ops, space), name)


def multiplies_bf16() -> bool:
    """Whether oneDNN multiplies bf16 on this CPU: not where there is AVX2 alone, nor where this torch cannot say."""
    if not (_has("mkldnn", "_is_mkldnn_bf16_supported") and torch.backends.mkldnn.is_available()):
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def has_kernels(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies laid-out weights of this number format here."""
    known = _has("mkldnn", "_reorder_linear_weight") and torch.backends.mkldnn.is_available()
    return known and (dtype != torch.bfloat16 or multiplies_bf16())


@dataclass(frozen=True)
class FusedLinear:
    """x W' + b in fp32 or bf16, with an activation behind it, or a residual added."""

    weight: Tensor
    bias: Tensor | None
    shape: tuple[int, int]
    packed: bool
    activation: str

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, activation: str = "none") -> FusedLinear:
        """Lay out a (outputs, inputs) weight."""
        weight = weight.detach().to(dtype)
        bias = None if bias is None else bias.detach().to(dtype)
        packed, shape = weight.device.type == "cpu" and has_kernels(dtype), (weight.shape[0], weight.shape[1])
        if packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        return cls(weight, bias, shape, packed, activation)

    def __call__(self, x: Float[Tensor, "slots inputs"]) -> Float[Tensor, "slots outputs"]:
        return self._in_row_blocks(x, None)

    def plus(self, x: Float[Tensor, "slots inputs"], residual: Float[Tensor, "slots outputs"]) -> Tensor:
        """The product with a residual added."""
        return self._in_row_blocks(x, residual)

    def _in_row_blocks(self, x: Tensor, residual: Tensor | None) -> Tensor:
        rows = len(x)
        if rows % ROUND_FEW:
            return self.multiply(x, residual)
        how = (self.activation, self.bias is not None, residual is not None)
        sizes = row_blocks(rows, self.shape, x.dtype, how, torch.get_num_threads())
        if sizes == [rows]:
            return self.multiply(x, residual)
        if (more := sum(sizes) - rows) > 0:
            x, residual = F.pad(x, (0, 0, 0, more)), None if residual is None else F.pad(residual, (0, 0, 0, more))
        added = [None] * len(sizes) if residual is None else residual.split(sizes)
        return torch.cat([self.multiply(part, of) for part, of in zip(x.split(sizes), added, strict=True)])[:rows]

    def multiply(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """All rows at once."""
        if not self.packed:
            x = F.linear(x, self.weight, self.bias)
            x = x if self.activation == "none" else activation(self.activation)(x)
            return x if residual is None else x.add_(residual)
        if residual is not None:
            return torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
        name, form = ACTIVATIONS[self.activation]
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, name, [], form)


@dataclass(frozen=True)
class Levels:
    """How 8 bits stand for numbers: value = (level - zero) x scale, channel by channel x factor + shift.

    Attributes:
        factor, shift: by channel, folded into the weights of the product that reads them.
        scale, zero: of the whole tensor.
    """

    factor: Tensor
    shift: Tensor
    scale: float
    zero: int = ZERO

    @classmethod
    def around(cls, low: Tensor, high: Tensor, weight: Tensor, *, share: float = 0.8, room: float = 1.05) -> Levels:
        """From each channel's range. Wide channels are narrowed and their weights widened, by a share of the way
        (SmoothQuant: Xiao et al. 2023, eq. 4); each channel is centred first.

        Args:
            low, high: smallest and largest value seen, by channel.
            weight: (outputs, inputs) of the product that reads them.
            room: how much further than seen the levels reach.
        """
        reach = ((high - low) / 2).clamp_min(1e-6)
        wide = weight.abs().amax(0).clamp_min(1e-6)
        factor = reach**share / wide ** (1 - share)
        return cls(factor, (high + low) / 2, float((reach / factor).max() * room / 127))

    def affine(self) -> tuple[Tensor, Tensor]:
        """(a, b) such that x a + b, cut to whole numbers, are the levels."""
        a = 1 / (self.factor * self.scale)
        return a, self.zero + 0.5 - self.shift * a


@dataclass(frozen=True)
class EightBitLinear:
    """The product of 8-bit activations and weights, with 32 bits inside, and what follows fused."""

    weight: Tensor
    weight_scale: Tensor
    weight_zero: Tensor
    bias: Tensor
    levels: Levels
    activation: str
    out_scale: float
    out_zero: int
    out_type: torch.dtype

    @classmethod
    def of(
        cls,
        weight: Tensor,
        bias: Tensor | None,
        levels: Levels,
        *,
        activation: str = "none",
        out: torch.dtype = torch.float32,
        out_scale: float = 1.0,
        out_zero: int = 0,
        mean: Tensor | None = None,
    ) -> EightBitLinear:
        """Quantise a (outputs, inputs) weight, each output on its own.

        Args:
            mean: of the activations, by channel: what rounding the weights adds to it is taken off the bias, since
                pooling averages out all errors but such.
            levels: of the activations it will be given.
            out: number format of the result: fp32, bf16, or uint8 with `out_scale` and `out_zero`.
        """
        require_int8()
        weight = weight.detach().float()
        offset = weight @ levels.shift if bias is None else bias.detach().float() + weight @ levels.shift
        folded = weight * levels.factor
        scale = _reach(folded).clamp_min(1e-12) / LARGEST
        whole = (folded / scale[:, None]).round().clamp(-LARGEST, LARGEST).to(torch.int8)
        if mean is not None:
            offset = offset + (folded - whole.float() * scale[:, None]) @ ((mean - levels.shift) / levels.factor)
        return cls(*_pack(whole, scale), offset, levels, activation, out_scale, out_zero, out)

    def __call__(self, x: UInt8[Tensor, "slots inputs"]) -> Tensor:
        name, form = ACTIVATIONS[self.activation]
        out = (self.bias, self.out_scale, self.out_zero, self.out_type)
        return torch.ops.onednn.qlinear_pointwise(x, *self._read, *out, name, [], form)

    def plus(self, x: UInt8[Tensor, "slots inputs"], residual: Float[Tensor, "slots outputs"]) -> Tensor:
        """The product with a residual added."""
        out = (residual, self.bias, 1.0, 0, self.out_type)
        added: tuple[Any, ...] = (1.0, 0, "add", 1.0, "none", [], "")
        return torch.ops.onednn.qlinear_pointwise.binary(x, *self._read, *out, *added)

    @property
    def _read(self) -> tuple[Any, ...]:
        """How activations and weights are read."""
        return self.levels.scale, self.levels.zero, self.weight, self.weight_scale, self.weight_zero


def _pack(whole: Int8[Tensor, "outputs inputs"], scale: Float[Tensor, " outputs"]) -> tuple[Tensor, Tensor, Tensor]:
    """Whole weights laid out for the kernel, their scales and zeros."""
    packed = torch.ops.onednn.qlinear_prepack(whole, [ROWS, whole.shape[1]])
    return packed, scale, torch.zeros(len(scale), dtype=torch.int32)


def _reach(weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, " outputs"]:
    """What stands for LARGEST in each output's 8-bit weights, so that no sum of products is cut off on this CPU.

    CPUs with 8-bit dot products (VNNI, AMX) add in 32 bits: the largest weight. Others (AVX2 or AVX-512 alone) add the
    products of neighbours, 2n and 2n + 1, in 16 bits, and cut off what does not fit in without a word (487.7 became
    3.9): there the largest sum of two neighbours of one sign, 128 x 255 being the most that fits in.
    """
    largest = weight.abs().amax(1)
    if multiplies_exactly(LARGEST, LARGEST):
        return largest
    pairs = F.pad(weight, (0, weight.shape[1] % 2)).unflatten(1, (-1, 2))
    above, below = pairs.clamp_min(0).sum(2).amax(1), pairs.clamp_max(0).sum(2).amin(1)
    return torch.stack([largest, above, -below]).amax(0)


@cache
def multiplies_exactly(even: int, odd: int) -> bool:
    """Whether this CPU multiplies weights that alternate so with the largest activations and loses nothing."""
    inputs, outputs = 64, 32
    levels = Levels(torch.ones(inputs), torch.zeros(inputs), scale=1.0, zero=0)
    whole = torch.tensor([even, odd], dtype=torch.int8).repeat(outputs, inputs // 2)
    linear = EightBitLinear(
        *_pack(whole, torch.ones(outputs)), torch.zeros(outputs), levels, "none", 1.0, 0, torch.float32
    )
    found = [linear(torch.full((rows, inputs), 255, dtype=torch.uint8)) for rows in (1, ROWS)]
    return all(bool((sums == 255 * (even + odd) * inputs // 2).all()) for sums in found)


def require_int8() -> None:
    """Refuse a torch or CPU that cannot multiply 8-bit integers, or loses digits of their sums."""
    hint = f"Use {option('precision', 'bf16')} or fp32."
    if not (_has("onednn", "qlinear_pointwise") and torch.backends.mkldnn.is_available()):
        raise UserError("this torch has no oneDNN int8 products", hint=hint)
    if not (multiplies_exactly(LARGEST, 1) and multiplies_exactly(1, LARGEST)):
        raise UserError("8-bit products lose digits on this CPU", hint=hint)
