"""Pretraining, the same for every kind of data: its folder, its files, its run, its report.

What is pretrained brings its data, its model and what it writes as a `Pretrainable`; the order of things, who works
first among several processes, and what a run may be refused for are written here once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import nn

from unmask.training.job import Job, RunResult
from unmask.training.launcher import check_launcher, record_run_start, restarted
from unmask.training.precision import resolve_device
from unmask.training.processes import first_process_first
from unmask.training.run import check_run_folder, refuse_compile, run
from unmask.training.settings import TrainSettings
from unmask.training.tracking import console_logger
from unmask.writing import own_folder

Finished = TypeVar("Finished")


class Pretrainable(ABC, Generic[Finished]):
    """What a kind of data brings to pretraining; `pretrained` calls its methods from top to bottom.

    `Finished` is what `pretrained` returns for this kind: a finished run.

    Attributes:
        settings: of this kind, a dataclass with a field `train`.
    """

    settings: Any

    @property
    def train(self) -> TrainSettings:
        """How it is trained; asked again after `job`, which may fit it to the data."""
        found: TrainSettings = self.settings.train
        return found

    @abstractmethod
    def prepare(self, out: Path, *, resume: bool, first: bool, say: Callable[[str], None]) -> None:
        """Read the data, and write below `out` what all processes of a launcher are to share.

        Args:
            resume: the run in `out` goes on.
            first: this process is the first; the others come after it, and find what it made.
        """

    @abstractmethod
    def job(self, out: Path, say: Callable[[str], None]) -> Job:
        """The model, the data and the corruption of the run."""

    @abstractmethod
    def save(self, out: Path, model: nn.Module) -> None:
        """Write the trained model's folder."""

    @abstractmethod
    def finished(self, out: Path, result: RunResult) -> Finished:
        """What came of the run."""

    @abstractmethod
    def report(self, finished: Finished) -> None:
        """Write report.html."""


def pretrained(
    kind: Pretrainable[Finished],
    out: str | Path,
    *,
    resume: bool = False,
    console: bool = True,
    trackers: Sequence[str] = (),
) -> Finished:
    """Pretrain a model of any kind of data, and write its run folder.

    Args:
        out: run folder; see `check_run_folder`.
        resume: continue the run in `out`; on a CPU with one process and as many threads, bit for bit as if never
            interrupted (runs bounded by minutes excepted: their schedule follows the clock). A run that torchrun starts
            again after it lost a process resumes unasked.
    """
    refuse_compile(kind.train)
    check_launcher()
    on_cpu = resolve_device(kind.train.device).type == "cpu"
    resume = restarted(out, cpu=on_cpu) or resume
    out = check_run_folder(out, resume=resume)
    say = console_logger(console)
    with own_folder(out, busy="trains there"):
        with first_process_first(kind.train) as first:
            if first:
                record_run_start(out, cpu=on_cpu)
            kind.prepare(out, resume=resume, first=first, say=say)
        job = kind.job(out, say)
        result = run(
            job,
            out,
            kind.train,
            resume=resume,
            console=console,
            trackers=trackers,
            save=lambda trained: kind.save(out, trained),
        )
        finished = kind.finished(out, result)
        if first and (out / "model.safetensors").exists():
            kind.report(finished)
        return finished
