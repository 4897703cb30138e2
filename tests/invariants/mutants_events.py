"""Broken copies of the event room's masking code; see `mutants`."""

from __future__ import annotations

from mutants import MODEL, mutant

CODEC = "events/codec.py"

MUTANTS = [
    mutant(
        1,
        "events: the event is embedded behind the mask",
        (MODEL, "tensor.view(-1, *tensor.shape[2:])[masked] = 0", "pass"),
        (CODEC, "torch.where(masked[..., None], self.mask, x)", "x + self.mask * masked[..., None]"),
    ),
    mutant(
        1,
        "events: the time of a hidden event is told",
        (MODEL, "tensor.view(-1, *tensor.shape[2:])[masked] = 0", "pass"),
        (CODEC, 'masked if self.config.hides == "all" else None', "None"),
    ),
    mutant(
        3,
        "events: targets one event off",
        (CODEC, "values[name].flatten()[flat].float()", "values[name].flatten()[flat - 1].float()"),
    ),
]
