"""What the commands share: JSON on stdout, progress on stderr, settings from a file and from --set."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unmask.errors import UserError, suggest
from unmask.files import split_lines


class Output:
    """Prints a result for people, or with --json as one machine-readable object."""

    def __init__(self, as_json: bool, seed: int = 0) -> None:
        self.as_json, self.seed, self.started = as_json, seed, time.perf_counter()

    def write(
        self, result: dict[str, Any], lines: Iterable[str], *, device: str = "cpu", precision: str = "fp32"
    ) -> None:
        if os.environ.get("RANK", "0") != "0":
            return  # under a launcher the first process speaks for all
        if self.as_json:
            seconds = round(time.perf_counter() - self.started, 3)
            about = {"seed": self.seed, "seconds": seconds, "device": device, "precision": precision}
            print(json.dumps(about | result, ensure_ascii=False, allow_nan=False, default=_plain))
        else:
            for line in lines:
                print(line)


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def read_lines(source: str) -> list[str]:
    """The lines of a UTF-8 text file, or the text itself where it cannot be meant for one.

    A folder, and a single word without a blank that has a slash or a file's suffix, is taken for a path.

    Raises:
        UserError: no such file; not UTF-8; no line in it.
    """
    path = Path(source)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError:
        is_file = is_folder = False
    if not is_file:
        if is_folder or re.fullmatch(r"[^\s\[\]<>]*(/[^\s\[\]<>]*|\.[A-Za-z][A-Za-z0-9]*)", source):
            raise UserError(
                f"{source}: no such file", hint="Give a text file with one text a line, or the text itself."
            )
        return [source]
    return file_lines(path)


def file_lines(path: str | Path) -> list[str]:
    """The lines of a UTF-8 text file.

    Raises:
        UserError: it is not there, not UTF-8, or empty.
    """
    path = Path(path)
    try:
        # As bytes: reading as text would turn a lone carriage return inside a line into a line's end.
        lines = split_lines(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}", hint="Give a text file with one text a line.") from None
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: not UTF-8 text", hint="Convert the file to UTF-8.") from None
    if not lines:
        raise UserError(f"{path}: empty", hint="Give one text a line.")
    return lines


def refuse_unread(context: Any, reads: Mapping[str, str], reader: str) -> None:
    """Refuse flags given to a command for something that does not read them: nothing a person says is passed over.

    Args:
        context: typer's, of the running command.
        reads: kind of data (or task) -> the command's parameters that it reads, parted by blanks. Those named nowhere are
            read by all.
        reader: the kind at hand; one without an entry is refused as a whole, elsewhere.

    Raises:
        UserError: naming the first such flag, and whom it is for.
    """
    for parameter in context.command.params:
        readers = [name for name, read in reads.items() if parameter.name in read.split()]
        given = context.get_parameter_source(parameter.name).name == "COMMANDLINE"
        if given and readers and reader in reads and reader not in readers:
            raise UserError(
                f"{parameter.opts[0]}: not read for {reader}", hint=f"It is for {', '.join(readers)} alone."
            )


PART = 1024
"""Texts that are worked on between two looks at the clock."""


def in_parts(texts: Sequence[str], work: Callable[[Sequence[str]], Any], verb: str) -> list[Any]:
    """What `work` makes of the texts, part by part; how far it is goes to stderr every five seconds."""
    out, watch = [], watcher(verb, "texts", seconds=5)
    for start in range(0, len(texts), PART):
        out.append(work(texts[start : start + PART]))
        watch(min(start + PART, len(texts)), len(texts))
    return out


def watcher(verb: str, what: str, seconds: float = 10.0) -> Callable[[int, int], None]:
    """Says on stderr how far work is: called with how many are done, of how many; a line every `seconds` at most, none at the end."""
    started = shown = time.monotonic()

    def watch(done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= seconds and done < total:
            left = (now - started) / done * (total - done)
            print(f"{verb} {done:,} of {total:,} {what}, {left:,.0f} s left", file=sys.stderr, flush=True)
            shown = now

    return watch


def by_kind(reads: Mapping[str, str], what: str = "a model of") -> type:
    """A command whose help lists the flags that all kinds read first, then those that only some read, under their names.

    Args:
        reads: as for `refuse_unread`, which refuses a flag where its kind is not named above it.
        what: stands in front of the kinds in the headings.
    """
    from typer.core import TyperCommand

    class ByKind(TyperCommand):
        def format_options(self, ctx: Any, formatter: Any) -> None:
            groups: dict[tuple[str, ...], list[tuple[str, str]]] = {(): []}
            arguments = []
            for parameter in self.get_params(ctx):
                record = parameter.get_help_record(ctx)
                if record is None:
                    continue
                if parameter.param_type_name == "argument":
                    arguments.append(record)
                    continue
                readers = tuple(kind for kind, read in reads.items() if parameter.name in read.split())
                groups.setdefault(readers, []).append(record)
            for heading, records in (("Arguments", arguments), *((_heading(k, what), r) for k, r in groups.items())):
                if records:
                    with formatter.section(heading):
                        formatter.write_dl(records)

    return ByKind


def _heading(readers: tuple[str, ...], what: str) -> str:
    return f"Options for {what} {', '.join(readers)} alone" if readers else "Options"


def write_array(array: Any, path: str | Path) -> None:
    """Write a NumPy array as .npy, under whatever name, whole or not at all.

    Raises:
        UserError: its folder is not there, or it cannot be written.
    """
    import numpy as np

    from unmask.files import written

    with written(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)


def overrides(config: str | None, pairs: Sequence[str], **flags: Any) -> dict[str, Any]:
    """Settings from a TOML file, then --set, then the command's own flags (None means not given).

    A run has one ending: naming one replaces whichever was named before.
    """
    from unmask.training.settings import load_toml, parse_set, without_endings

    found: dict[str, Any] = dict(load_toml(Path(config))) if config else {}
    for later in (parse_set(pairs), {k: v for k, v in flags.items() if v is not None}):
        found = (found if without_endings(later) == later else without_endings(found)) | later
    return found


RUN_FLAGS = ("steps", "epochs", "minutes", "seed", "precision", "device")


def run_overrides(context: Any, **more: Any) -> dict[str, Any]:
    """`overrides` from a command that trains: its --config and --set, its flags of `RUN_FLAGS`, and `more`."""
    given = context.params
    return overrides(given["config"], given["set_"], **{name: given[name] for name in RUN_FLAGS}, **more)


def with_recipe(recipe: str | None, recipes: Mapping[str, Any], settings: Any, change: Any, given: Any) -> Any:
    """Settings of a kind: its defaults, then a recipe, then what was given; `change` is the kind's `with_overrides`.

    Raises:
        UserError: there is no such recipe.
    """
    if recipe is not None and recipe not in recipes:
        raise UserError(f"--recipe {recipe}", hint=suggest(recipe, recipes))
    return change(change(settings, recipes[recipe] if recipe else {}), given)


def run_lines(result: Any, out: str, *, rate: str, held: str, notes: Sequence[str] = ()) -> list[str]:
    """What a pretraining run tells people.

    Args:
        result: a `training.job.RunResult`.
        rate: how fast it was.
        held: a format for the held-out figures, by their names without "validation_"; one there is not shows as nan.
    """
    if result.stopped == "signal":
        return [f"stopped by a signal after step {result.steps}; --resume continues"]
    lines = [f"{result.steps} steps, {result.seconds:.0f} s, {rate}, {result.precision} on {result.device}", *notes]
    if result.validation:
        found = {k.removeprefix("validation_"): v for k, v in result.validation.items()}
        lines.append(held.format_map(defaultdict(lambda: float("nan"), found)))
    return [*lines, f"model:  {out}", f"report: {out}/report.html"]
