"""Tensors of a batch on the device, with what the host knows of them.

A batch is made on the host and copied to the device. Reading a number from the device, or a tensor whose length depends
on values (`nonzero`, a boolean index), makes the host wait until the device has finished all work queued so far. Most
such reads are about which slots a batch has, which the host knew before the copy: `to_device` keeps the host's tensor,
and `on_host` returns it.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NAME = "_unmask_on_host"


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """The tensor on the device; from the host to a GPU it is copied beside the device's work, and remembered."""
    device = torch.device(device)
    if tensor.device.type != "cpu" or device.type != "cuda":
        return tensor.to(device, non_blocking=True)
    moved = tensor.pin_memory().to(device, non_blocking=True)
    setattr(moved, _NAME, (tensor, _version(moved), _version(tensor)))
    return moved


def on_host(tensor: Tensor) -> Tensor:
    """The tensor's values on the host: itself where it is there, what was moved where neither has been changed since;
    else a copy, for which the host waits."""
    if tensor.device.type == "cpu":
        return tensor
    source, then, before = getattr(tensor, _NAME, (None, None, None))
    if source is not None and then == _version(tensor) and before == _version(source):
        return source
    return tensor.cpu()


def _version(tensor: Tensor) -> int:
    """How often the tensor has been written to. Nobody counts in inference mode: there what is moved is not written
    to."""
    return 0 if tensor.is_inference() else tensor._version
