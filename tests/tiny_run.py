"""A training run of a few steps on made-up texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tiny import MODALITIES, make_model, ratio_corruption
from unmask.core.batch import pack
from unmask.core.sampler import PackedSampler
from unmask.training.job import Job, RunResult
from unmask.training.run import run
from unmask.training.settings import TrainSettings

TEXT = MODALITIES["text"]
EXAMPLES = [TEXT.example(i, 12) for i in range(16)]


def job() -> Job:
    def batch(rows: list[list[int]], count: int) -> Any:
        if not rows:
            return pack(EXAMPLES[:1], slots=12, rows=count, placement=[])
        return pack([EXAMPLES[i] for row in rows for i in row], slots=12, rows=count)

    sampler = PackedSampler(lengths=np.full(16, 12), examples=np.arange(12), slots=12, rows=4)
    held = [pack(EXAMPLES[12:], slots=12, rows=4)]
    return Job(
        model=make_model(TEXT, "in_place", "bert"),
        sampler=sampler,
        make_batch=batch,
        corruption=ratio_corruption(),
        validation=held,
        validation_corruption=ratio_corruption(),
    )


def trained(out: Path, resume: bool = False, **more: Any) -> RunResult:
    settings = TrainSettings(**{"steps": 4, "precision": "fp32", "device": "cpu", **more})
    return run(job(), out, settings, resume=resume, console=False)


def lines(out: Path, kind: str) -> list[dict]:
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]
