"""What a run tells: metrics.jsonl for programs, a live line on stderr for people, external trackers."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TextIO

from unmask.errors import UserError, suggest
from unmask.writing import first_of_all, replacing

_TRACKERS = {"tensorboard": "TensorBoardTracker", "wandb": "WandBTracker", "mlflow": "MLflowTracker"}
_SHOWN = {
    "loss": lambda v: f"loss {v:.4f}",
    "accuracy": lambda v: f"accuracy {v:.1%}",
    "slots_per_second": lambda v: f"{v:,.0f} slots/s",
    "padding_waste": lambda v: f"padding {v:.1%}",
}


class Tracker:
    """Records a run: a line of `metrics.jsonl` per call, and progress on stderr.

    Each line holds `kind` ('train' unless said otherwise), `step`, `progress`, `seconds` since the start of
    the run (over resumes) and the metrics; a number that is not finite is written as null, for JSON has no
    other word. The live line shows `loss`, `accuracy` (on hidden slots), `slots_per_second` (real slots) and
    `padding_waste` (share of slots wasted), as far as given, and the time left. On a terminal it is a rich
    progress bar, elsewhere a plain line every `interval` seconds.

    Args:
        folder: the run's folder; None records nothing, nor does a process of a launcher that is not the first.
        total: what ends the run, in words: '20000 steps', '30 minutes'. For people only.
        console: whether to show progress.
        trackers: any of 'tensorboard', 'wandb', 'mlflow', through Accelerate.
        config: settings to hand to these trackers.
        resumed_step: the step a resumed run continues from: later lines in metrics.jsonl (of steps that will
            now be run again) and half a last line are removed. None starts a new file.
        interval: seconds between plain lines.
    """

    def __init__(
        self,
        folder: str | Path | None,
        *,
        total: str = "",
        console: bool = True,
        trackers: Iterable[str] = (),
        config: dict[str, Any] | None = None,
        resumed_step: int | None = None,
        interval: float = 10.0,
    ) -> None:
        self.total, self.interval = total, interval
        folder = folder if first_of_all() else None
        self.step, self.progress = resumed_step or 0, 0.0
        self._file: TextIO | None = None
        self._started = time.monotonic()
        self._before = 0.0  # seconds spent before a resume
        self._first: tuple[float, float] | None = None  # (progress, clock) at this process's first report
        self._shown_at = -math.inf
        self._bar: Any = None
        # Trackers first: one that is missing must not cost an old metrics.jsonl.
        self._trackers = [] if folder is None else _external(trackers, Path(folder), config or {})
        if folder is not None:
            path = Path(folder) / "metrics.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            if resumed_step is not None:
                self._before = _cut(path, resumed_step)
            self._file = path.open("w" if resumed_step is None else "a", encoding="utf-8")
        self._console = console and folder is not None
        if self._console and sys.stderr.isatty():
            self._bar, self._task = _progress_bar(total)

    def log(self, step: int, progress: float, *, kind: str = "train", **metrics: Any) -> None:
        """Record metrics at `step`, with `progress` (0 to 1) of the run done."""
        self.step, self.progress = step, progress
        if self._first is None:
            self._first = (progress, time.monotonic())
        record = {"kind": kind, "step": step, "progress": round(progress, 6), "seconds": self.seconds, **metrics}
        self._write(record)
        numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, int | float) or hasattr(v, "item")}
        for tracker in self._trackers:
            tracker.log({f"{kind}/{name}": value for name, value in numbers.items()}, step=step)
        if kind == "train":
            self._show(numbers)

    def event(self, kind: str, **fields: Any) -> None:
        """Record something that happened (a checkpoint, an early stop), at the current step."""
        self._write({"kind": kind, "step": self.step, "seconds": self.seconds, **fields})

    def close(self) -> None:
        """Finish the bar, the file and the trackers; calling it twice is harmless."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._file is not None:
            self._file.close()
            self._file = None
        for tracker in self._trackers:
            tracker.finish()
        self._trackers = []

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def seconds(self) -> float:
        """Seconds spent on this run so far, earlier processes of a resumed run included."""
        return round(self._before + time.monotonic() - self._started, 3)

    def time_left(self) -> float | None:
        """Seconds until the end at the speed of this process so far; None before there are two reports."""
        if self._first is None or self.progress <= self._first[0]:
            return None
        speed = (self.progress - self._first[0]) / max(time.monotonic() - self._first[1], 1e-9)
        return max(1.0 - self.progress, 0.0) / speed

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(_plain(record)) + "\n")
            self._file.flush()  # a run that is killed keeps its curve

    def _show(self, numbers: dict[str, float]) -> None:
        if not self._console:
            return
        parts = [show(numbers[name]) for name, show in _SHOWN.items() if name in numbers]
        left = self.time_left()
        parts += [] if left is None else [f"{_clock(left)} left"]
        if self._bar is not None:
            self._bar.update(self._task, completed=self.progress, text=f"step {self.step}  " + "  ".join(parts))
        elif time.monotonic() - self._shown_at >= self.interval or self.progress >= 1.0:
            self._shown_at = time.monotonic()
            total = f" of {self.total}" if self.total else ""
            line = [f"step {self.step}", f"{self.progress:.0%}{total}", *parts]
            print("  ".join(line), file=sys.stderr, flush=True)


def console_logger(console: bool) -> Callable[[str], None]:
    """What tells people a line on stderr as long work goes on; nothing where no console is asked for."""
    shown = console and first_of_all()
    return (lambda line: print(line, file=sys.stderr, flush=True)) if shown else (lambda line: None)


def _progress_bar(total: str) -> tuple[Any, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        TextColumn("{task.fields[text]}"),
    )
    bar = Progress(*columns, console=Console(stderr=True), refresh_per_second=4)
    bar.start()
    return bar, bar.add_task(total or "training", total=1.0, text="")


def _external(names: Iterable[str], folder: Path, config: dict[str, Any]) -> list[Any]:
    names = list(names)
    for name in names:
        if name not in _TRACKERS:
            raise UserError(f"unknown tracker '{name}'", hint=suggest(name, _TRACKERS))
    if not names:
        return []
    import accelerate.utils as available
    from accelerate import tracking

    started = []
    for name in names:
        if not getattr(available, f"is_{name}_available")():
            extra = "'unmask[track]'" if name == "tensorboard" else name
            raise UserError(f"tracker '{name}' is not installed", hint=f"Run: pip install {extra}")
    for name in names:
        where = {"dir" if name == "wandb" else "logging_dir": str(folder)}
        tracker = getattr(tracking, _TRACKERS[name])(folder.resolve().name, **where)
        if hasattr(tracker, "start"):  # before Accelerate 1.8 the constructor did it
            tracker.start()
        scalars = {k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in config.items()}
        tracker.store_init_configuration(scalars)
        started.append(tracker)
    return started


def _cut(path: Path, step: int) -> float:
    """Drop lines after `step` and broken ones from metrics.jsonl; returns the seconds spent up to there."""
    if not path.exists():
        return 0.0
    kept, seconds = [], 0.0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("step", 0) <= step:
            kept.append(line + "\n")
            seconds = max(seconds, record.get("seconds", 0.0))
    with replacing(path) as temporary:
        temporary.write_text("".join(kept), encoding="utf-8")
    return seconds


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: arrays and tensors unwrapped, infinities and NaN as null."""
    if hasattr(value, "item") and not isinstance(value, dict):
        value = value.item() if getattr(value, "size", 1) == 1 or getattr(value, "ndim", 1) == 0 else value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | str) or value is None else str(value)


def _clock(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss.

    >>> _clock(75), _clock(3725)
    ('1:15', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
