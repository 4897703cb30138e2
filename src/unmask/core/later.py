"""Numbers of the device that the host reads once it needs them, not before."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor


class Later:
    """Numbers on their way to the host. Reading them waits for the work that they came of, not for what was begun
    since.

    Args:
        numbers: plain ones, or 0-d tensors on the host or on one device.
    """

    def __init__(self, numbers: Sequence[Tensor | float]) -> None:
        tensors = [n.detach() if isinstance(n, Tensor) else torch.tensor(n, dtype=torch.float64) for n in numbers]
        device = next((t.device for t in tensors if t.device.type != "cpu"), torch.device("cpu"))
        together = torch.stack([t.to(device, torch.float64, non_blocking=True) for t in tensors])
        self._copy = together.to("cpu", non_blocking=True)
        self._event = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record()

    @functools.cached_property
    def values(self) -> tuple[float, ...]:
        """The numbers, as they were when this was made."""
        if self._event is not None:
            self._event.synchronize()
        return tuple(self._copy.tolist())
