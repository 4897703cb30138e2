"""Parts of tiny runs, as each of several processes trains them; see tests/training/test_shards.py."""

from __future__ import annotations

import dataclasses
import errno
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tiny_run
from tiny import TEXT_CODEC, encoder_config
from unmask.core.batch import PackedBatch
from unmask.core.corruption import Corruption, Hidden
from unmask.core.model import MaskedModel, WantedSlots
from unmask.core.prediction import Categorical
from unmask.core.token_codec import TokenCodec
from unmask.encoder.build import make_encoder
from unmask.encoder.config import Disentangled, Sharing
from unmask.errors import UserError
from unmask.training import shards_checkpoint
from unmask.training.run import run
from unmask.training.settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class Watched(Corruption):
    """Notes which slots of which example are hidden in which of the steps, and what stands there instead."""

    steps: int = 0
    seen: list[tuple[int, ...]] = field(default_factory=list)

    def draw(self, batch: PackedBatch, **named: Any) -> Hidden:
        gone = super().draw(batch, **named)
        if "progress" in named:
            who, where = (t.flatten()[gone.flat].tolist() for t in (batch.identity, batch.position))
            step = [round(named["progress"] * self.steps)] * len(gone)
            self.seen.extend(zip(step, who, where, gone.action.tolist(), gone.bits.tolist(), strict=True))
        return gone


class Rarely(TokenCodec):
    """Uses one parameter for the batch that example 3 is in, and another never."""

    def __init__(self) -> None:
        super().__init__(TEXT_CODEC)
        self.rare, self.never = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(5))

    def predict(self, states: torch.Tensor, wanted: WantedSlots | None = None) -> Categorical:
        assert wanted is not None
        return super().predict(states * self.rare if (wanted.batch.identity == 3).any() else states, wanted)


def model(kind: str) -> MaskedModel:
    kind = kind.partition("-")[0]
    if kind == "rarely":
        return MaskedModel(Rarely(), make_encoder(encoder_config("bert")))
    config = encoder_config("bert")
    if kind == "albert":
        config = dataclasses.replace(config, sharing=Sharing(groups=1))
    if kind == "deberta":
        config = dataclasses.replace(config, positions=Disentangled(slots=64, buckets=8, furthest=16, decoder_steps=2))
    tied = dataclasses.replace(TEXT_CODEC, tied=True)
    return MaskedModel(TokenCodec(tied), make_encoder(config))


def stage(out: Path, steps: int, resume: bool = False, kind: str = "bert", **more: Any) -> tuple[list[Any], dict]:
    """Train to a step; what this process hid, and on the first the weights that are saved."""
    torch.manual_seed(3)
    job = dataclasses.replace(tiny_run.job(), model=model(kind))
    watched = Watched(select=job.corruption.select, replace=job.corruption.replace, steps=steps)
    weights: dict[str, Any] = {}
    settings = {"precision": "fp32", "device": "cpu", "log_every": 1, "learning_rate": 0.01, "schedule": "constant"}
    run(
        dataclasses.replace(job, corruption=watched),
        out,
        TrainSettings(**{**settings, "warmup": 0.0, "steps": steps, "validate_every": 2, **more}),
        resume=resume,
        console=False,
        save=lambda model: weights.update({k: v.detach().numpy().copy() for k, v in model.state_dict().items()}),
    )
    return watched.seen, weights


def stages(*parts: tuple[Path, int, dict[str, Any]]) -> list[tuple[list[Any], dict]]:
    """Several of them one after the other, in one group of processes."""
    return [stage(out, steps, **more) for out, steps, more in parts]


def disk_full(out: Path) -> str:
    """A run whose second checkpoint finds no room; what is said."""
    real = shards_checkpoint.end_writing

    def end(folder: Path, step: int, keep: int) -> None:
        if step > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(folder, step, keep)

    shards_checkpoint.end_writing = end  # type: ignore[assignment]
    try:
        stage(out, 9, shard="full", checkpoint_every=2)
    except UserError as error:
        return error.what
    finally:
        shards_checkpoint.end_writing = real  # type: ignore[assignment]
    return "nothing"
