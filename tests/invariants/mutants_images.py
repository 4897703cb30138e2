"""Broken copies of the image room's masking code; see `mutants`."""

from __future__ import annotations

from mutants import MODEL, mutant

CODEC = "modalities/images/network/codec.py"
LATENTS = "modalities/images/network/latents.py"

MUTANTS = [
    mutant(
        1,
        "images: the patch is embedded behind the mask",
        (MODEL, "tensor.view(-1, *tensor.shape[2:])[hidden.masked] = 0", "pass"),
        (
            CODEC,
            "torch.where(masked[..., None], self.mask.to(x.dtype), x)",
            "x + self.mask.to(x.dtype) * masked[..., None]",
        ),
    ),
    mutant(
        1,
        "images: noise keeps a trace of the patch",
        (
            CODEC,
            'return {"patch": normal.to(values["patch"].device)}',
            'return {"patch": normal + values["patch"].flatten(0, 1)[flat]}',
        ),
    ),
    mutant(1, "images: the encoder reads missing patches", (MODEL, "there &= on_host(batch.observed)", "pass")),
    mutant(
        1,
        "images: views are encoded with their hidden patches",
        (LATENTS, "index_fill(0, on_host(hidden.flat), False)", "index_fill(0, on_host(hidden.flat), True)"),
    ),
    mutant(
        1,
        "images: predicted representations of hidden patches learn by changing their targets",
        (LATENTS, "with torch.no_grad():", "with torch.enable_grad():"),
    ),
    mutant(
        3,
        "images: targets one patch off",
        (CODEC, 'return values["patch"].flatten(0, 1)[flat]', 'return values["patch"].flatten(0, 1)[flat - 1]'),
    ),
    mutant(
        7,
        "images: mean over the patches of a micro-batch",
        (CODEC, "return weighted_sum(error.mean(-1), weight) + extra", "return error.mean() + extra"),
    ),
]
