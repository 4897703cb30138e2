"""What the host remembers of moved tensors holds as long as neither side is written to."""

from __future__ import annotations

import torch

import stand_in
from unmask.core.pretrain import Later
from unmask.kernels.on_host import on_host, to_device


def test_what_was_moved_is_known_without_waiting():
    source = torch.arange(3)
    assert on_host(source) is source
    assert to_device(source, "cpu") is source
    with stand_in.cuda() as watch:
        moved = to_device(source, "cuda")
        assert moved.is_cuda
        assert on_host(moved) is source
    assert not watch.waits


def test_what_was_written_to_since_is_read_anew():
    with stand_in.cuda() as watch:
        source = torch.arange(3)
        moved = to_device(source, "cuda")
        moved.add_(1)
        assert on_host(moved).tolist() == [1, 2, 3]
        source = torch.arange(3)
        moved = to_device(source, "cuda")
        source.zero_()
        assert on_host(moved).tolist() == [0, 1, 2]
    assert watch.total == 2


def test_numbers_are_as_they_were_when_they_were_asked_for():
    with stand_in.cuda() as watch:
        x = torch.ones((), device="cuda")
        later = Later([x, torch.tensor(2.0), 3.0])
        x.add_(5)
        assert {reason for reason, _ in watch.waits} <= {"a copy to the device"}
        assert later.values == (1.0, 2.0, 3.0)
    assert Later([torch.tensor(0.1), True]).values == (float(torch.tensor(0.1)), 1.0)
