"""What the commands share: JSON on stdout, progress on stderr, settings from a file and from --set."""

from __future__ import annotations

import contextlib
import itertools
import re
import shlex
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

from unmask.errors import UserError, suggest
from unmask.files import json_text
from unmask.progress import counted, reporting_to
from unmask.writing import filling_folder, first_of_all, training_folder, written

T = TypeVar("T")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str, file: TextIO) -> str:
    """A text for people. On a terminal what it would obey, which cells, names and texts of others may hold, is written
    out: "\\x1b[2J" does not clear the screen."""
    if not file.isatty():
        return text
    return _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}" if m[0] < "\xff" else f"\\u{ord(m[0]):04x}", text)


class Result(NamedTuple):
    """What a command found; one that returns this has --json (`dispatch.command_of`).

    Attributes:
        lines: that tell it to people.
        by: the model or run whose device and precision it has.
        code: with which the command exits.
    """

    found: dict[str, Any]
    lines: Iterable[str] = ()
    by: Any = None
    code: int = 0


class Stopped(SystemExit):
    """The end of a command whose run a signal stopped, which has been told."""


class Output:
    """Prints a result for people, or with --json as one machine-readable object."""

    def __init__(self, as_json: bool, seed: int = 0) -> None:
        self.as_json, self.seed, self.started = as_json, seed, time.perf_counter()

    def write(
        self, result: dict[str, Any], lines: Iterable[str], *, device: str = "cpu", precision: str = "fp32"
    ) -> None:
        """Print the lines, or with --json the result with seed, seconds, device and precision.

        Of several processes of a launcher only the first prints.

        Raises:
            Stopped: the result says `stopped` 'signal': 128 plus the signal's number, once it is printed.
        """
        stopped = result.get("stopped") == "signal"
        if stopped:
            lines = [f"stopped by a signal after step {result['steps']}, which is saved; {continued()}"]
        if not first_of_all():
            pass  # under a launcher the first process speaks for all
        elif self.as_json:
            seconds = round(time.perf_counter() - self.started, 3)
            about = {"seed": self.seed, "seconds": seconds, "device": device, "precision": precision}
            print(json_text(about | result, allow_nan=False, default=_plain))
        else:
            for line in lines:
                print(printable(line, sys.stdout))
        if stopped:
            from unmask.training.signals import SignalGuard

            raise Stopped(128 + (SignalGuard.received or signal.SIGTERM))


_words: list[str] = []
"""Of this command."""


def continued() -> str:
    """The command that goes on with this one."""
    words = [*_words, *(["--resume"] if "--resume" not in _words else [])]
    return f"to go on: unmask {shlex.join(words)}"


def left_behind() -> str:
    """What there is of this command, which a signal ended before it was done, and how to go on."""
    parts = [part for word in _words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for out in (Path(value) for name, value in itertools.pairwise(parts) if name == "--out"):
        if any((place / "checkpoints").is_dir() for place in (out, training_folder(out))):
            return f"its last checkpoint is kept; {continued()}"
        if (_words[0] == "prepare" and out.is_dir()) or (_words[0] == "impute" and filling_folder(out).is_dir()):
            return f"what is done is kept; to go on: unmask {shlex.join(_words)}"
    return "what it had begun to write is removed"


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def on_stderr(text: str) -> None:
    """A line on stderr: how far work is. Of several processes of a launcher only the first prints."""
    if first_of_all():
        print(printable(text, sys.stderr), file=sys.stderr, flush=True)


PART = 1024
"""Texts, or rows of them, that are worked on at a time."""


def in_parts(texts: Sequence[T], work: Callable[[Sequence[T]], Any]) -> Iterator[Any]:
    """What `work` makes of the texts, part by part; how far it is counts as progress."""
    parts = [texts[start : start + PART] for start in range(0, len(texts), PART)]
    yield from map(work, counted(parts, len(texts), len))


def check_most(most: int | None) -> None:
    """Refuse a --most that takes nothing."""
    if most is not None and most < 1:
        raise UserError(f"--most {most}", hint="Expected a whole number, 1 or more.")


def write_array(parts: Iterable[Any], rows: int, path: str | Path) -> tuple[int, ...]:
    """Write a NumPy array as .npy, under whatever name, whole or not at all; its shape.

    Args:
        parts: arrays that follow each other, one of which at a time is held.
        rows: of all of them.
    """
    import numpy as np

    shape: tuple[int, ...] = ()
    with written(path) as temporary, temporary.open("wb") as file:
        for part in parts:
            if not shape:
                shape = (rows, *part.shape[1:])
                about = {"descr": np.lib.format.dtype_to_descr(part.dtype), "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(file, about)
            file.write(part.tobytes())
    return shape


def overrides(config: str | None, pairs: Sequence[str], **flags: Any) -> dict[str, Any]:
    """Settings from a TOML file, then --set, then the command's own flags (None means not given).

    A run has one ending: naming one replaces whichever was named before.
    """
    from unmask.training.settings import load_toml, parse_set, without_endings

    found: dict[str, Any] = dict(load_toml(Path(config))) if config else {}
    for later in (parse_set(pairs), {k: v for k, v in flags.items() if v is not None}):
        found = (found if without_endings(later) == later else without_endings(found)) | later
    return found


def with_recipe(recipe: str | None, recipes: Mapping[str, Any], settings: Any, change: Any, given: Any) -> Any:
    """Settings of a kind: its defaults, then a recipe, then what was given; `change` is the kind's `with_overrides`."""
    if recipe is not None and recipe not in recipes:
        raise UserError(f"--recipe {recipe}", hint=suggest(recipe, recipes))
    return change(change(settings, recipes[recipe] if recipe else {}), given)


def scores(loaded: Any, results: Sequence[Mapping[str, Any]], lines: Sequence[str], **more: Any) -> Result:
    """What `score` prints: a line per result, or all results as JSON with the keys that all kinds have."""
    found = {"rows": len(results), "slots": sum(r["slots"] for r in results), "results": results, **more}
    return Result(found, lines, loaded)


def embedded(loaded: Any, parts: Iterable[Any], rows: int, out: str, **more: Any) -> Result:
    """What `embed` prints, once the vectors are written; `more` stands in the JSON too."""
    shape = write_array(parts, rows, out)
    found = {"out": out, "rows": shape[0], "shape": list(shape), **more}
    return Result(found, [f"{out}: {shape[0]} x {shape[1]}"], loaded)


def run_lines(result: Any, out: str, *, rate: str, held: str, notes: Sequence[str] = ()) -> list[str]:
    """What a pretraining run tells people.

    Args:
        result: a `training.job.RunResult`.
        rate: how fast it was.
        held: a format for the held-out figures, by their names without "validation_"; one there is not shows as nan.
    """
    from unmask.evaluation.meanings import legend

    lines = [f"{result.steps} steps, {result.seconds:.0f} s, {rate}, {result.precision} on {result.device}", *notes]
    if result.validation:
        found = {k.removeprefix("validation_"): v for k, v in result.validation.items()}
        directions = legend(name for name in ("loss", "accuracy") if "{" + name in held)
        lines.append(held.format_map(defaultdict(lambda: float("nan"), found)) + f" ({directions})")
    return [*lines, f"model:  {out}", f"report: {out}/report.html"]


TRAINING = ("demo", "pretrain", "adapt", "finetune")
"""Commands that show the steps of a run instead (`training.tracking`)."""
SECONDS = 5.0
"""Between two lines."""


class OnTerminal:
    """Prints "fill: 40 %, 12 s left".

    Args:
        name: of the command.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.begin()

    def begin(self) -> None:
        """A loop begins that is part of no other."""
        self.started = self.shown = time.monotonic()
        self.done = 0.0

    def __call__(self, done: float, *, whole: bool) -> None:
        """Say it, where that is due and news; see `unmask.progress.Listener`."""
        now = time.monotonic()
        if now - self.shown < SECONDS or done <= self.done or (whole and done >= 1):
            return
        spent, self.shown, self.done = now - self.started, now, done
        progress = f"{done:.0%}, {spent / done * (1 - done):,.0f} s left" if whole else f"{done:,.0f} in {spent:,.0f} s"
        print(f"{self.name}: {progress}", file=sys.stderr, flush=True)


def shown_for(arguments: Sequence[str]) -> AbstractContextManager[None]:
    """Progress of the command that these words call: on a terminal alone, and not of one that trains."""
    _words[:] = arguments
    name = next((word for word in arguments if not word.startswith("-")), "")
    if name in TRAINING or not sys.stderr.isatty():
        return contextlib.nullcontext()
    return reporting_to(OnTerminal(name))
