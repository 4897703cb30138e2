"""Options that several commands take, with their help, written once; and groups of them.

A group is a dataclass of options, with aliases of here or `flag`. A command has it as one parameter, which
`dispatch.command_of` takes apart.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from unmask.cli.common import overrides
from unmask.errors import UserError
from unmask.files import check_there
from unmask.remote import is_url
from unmask.writing import temporary_folder


def _seed(seed: int | None) -> int | None:
    from unmask.training.settings import check_seed

    return check_seed(seed)


def there(expected: str, *, text: bool = False, stdin: str = "") -> Callable[[Any], Any]:
    """A callback that refuses files and folders which are not there, before anything is imported to read them.

    Args:
        text: what cannot be meant for a path is a text itself.
        stdin: of which format standard input (-) is, as ".csv": the callback gives a file with it, and of a text too.
            "": what reads the texts does that; anything else is not read from there.
    """

    def check(value: Any) -> Any:
        return [one(name) for name in value] if isinstance(value, list) else value and one(value)

    def one(name: str) -> str:
        if name == "-" and stdin:
            return _file_of(sys.stdin.buffer.read(), stdin)
        if name == "-" and not text:
            raise UserError("-: standard input is not read here", hint=f"Expected: {expected}")
        check_there(name, f"Expected: {expected}", text=text)
        if text and stdin and not (os.path.exists(name) or is_url(name) or name.startswith("hf:")):
            return _file_of(json.dumps({"text": name}).encode(), ".jsonl")
        return name

    return check


_FILES: list[Any] = []
"""Folders with what was given in place of a file; they are gone with the process."""


def _file_of(content: bytes, suffix: str) -> str:
    _FILES.append(temporary_folder())
    place = Path(_FILES[-1].name, f"stdin{suffix}")
    place.write_bytes(content)
    return str(place)


def source(help: str, *, default: Any = ..., text: bool = False, stdin: str = "", metavar: str | None = None) -> Any:
    """An argument that names what is read: a file, a folder, a URL, hf:NAME or a pattern; see `there`."""
    return typer.Argument(default, help=help, metavar=metavar, callback=there(help, text=text, stdin=stdin))


class Rows(typer.models.OptionInfo):
    """--out of a command that writes rows as text: - is standard output, on which there is nothing else then."""

    suffix = ""
    folder = False


def rows(suffix: str, help: str, default: Any = ..., *, folder: bool = False) -> Any:
    """--out of rows that are text, of a format with this suffix; or, with `folder`, of several files in a folder."""
    option = Rows(default=default, help=f"{help.rstrip('.')}; -: standard output.")
    option.suffix, option.folder = suffix, folder
    return option


def source_option(help: str, default: Any = None) -> Any:
    """An option that names what is read."""
    return typer.Option(default, help=help, callback=there(help))


def _is_there(models: Any) -> Any:
    from unmask.registry import check_model

    if isinstance(models, str):
        check_model(models)
    else:
        for name in models:
            check_model(name.rpartition("=")[2])
    return models


def model(help: str = "Model folder or hub name.") -> Any:
    """An argument that names a model, or several: their folders, or NAME=FOLDER."""
    return typer.Argument(help=help, callback=_is_there)


Model = Annotated[str, model()]
Tuned = Annotated[str, model("Fine-tuned model folder.")]
_HELD_OUT = "Held-out labelled data: early stopping, calibration, report."
Validation = Annotated[str | None, typer.Option(help=_HELD_OUT, callback=there(_HELD_OUT))]
Text = Annotated[str | None, typer.Option(help="Column of texts; of words in a CoNLL file, by number from 1.")]
Text2 = Annotated[str | None, typer.Option(help="Column of second texts.")]
Label = Annotated[
    list[str],
    typer.Option(
        help="Column of labels; of tags in a CoNLL file, by number from 1; repeated: columns of 0 and 1, a label each."
    ),
]
FillSteps = Annotated[int, typer.Option("--steps", help="Fill in this many steps, most confident blanks first.")]
FillOrder = Annotated[str, typer.Option("--order", help="confidence, random or left_to_right.")]
FillTemperature = Annotated[float, typer.Option("--temperature", help="0 takes the likeliest, above 0 samples.")]
_TOML = "TOML file of settings."
Config = Annotated[str | None, typer.Option(help=_TOML, callback=there(_TOML))]
Set = Annotated[list[str], typer.Option("--set", help="key=value, any setting; may be repeated.")]
Steps = Annotated[int | None, typer.Option(help="Optimiser steps.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the data.")]
RunSeed = Annotated[int | None, typer.Option(callback=_seed, help="Decides weights, order and masks.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]
RunPrecision = Annotated[str | None, typer.Option(help="auto, fp32 or bf16.")]
RunDevice = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Examples = Annotated[
    bool,
    typer.Option("--examples", help="Show examples of the data in the report: rows, pictures, patients' records."),
]
Workers = Annotated[int | None, typer.Option(help="How many work side by side; default all cores there are.")]
Engine = Annotated[
    str,
    typer.Option(help="local, or ray: the cluster that RAY_ADDRESS names, or one that is begun on this machine."),
]
Trackers = Annotated[list[str], typer.Option(help="tensorboard, wandb or mlflow; may be repeated.")]
Seed = Annotated[int, typer.Option(callback=_seed, help="Decides what is drawn.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Absent = Annotated[
    str,
    typer.Option(help="Columns that may be lacking, commas between, or any; follow-up time and event always may."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether a csv's first line names its columns, where it does not tell."),
]
Lenient = Annotated[
    bool,
    typer.Option("--lenient", help="Leave out rows that are wrong, and say how many; else they are refused."),
]
EscapeFormulas = Annotated[
    bool, typer.Option("--escape-formulas", help="Put ' before cells that a spreadsheet would take for formulas.")
]
ReadSettings = Annotated[
    list[str],
    typer.Option("--set", help="How files are read: planes, alpha, nodata, slice, view, overlap, rescale."),
]
TableReadSettings = Annotated[
    list[str],
    typer.Option(
        "--set",
        help="How files are read: planes, alpha, nodata, slice, view, overlap, rescale; of a table of files: pictures, "
        "column.",
    ),
]


def flag(default: Any, help: str, *names: str, **limits: Any) -> Any:
    """A field of a group of options; an empty list for one that may be repeated.

    Args:
        names: how it is written, where that does not follow from the field's name.
        limits: `min` and `max`, or `callback`.
    """
    about = {"typer": typer.Option(*names, help=help, **limits)}
    if default == []:
        return field(default_factory=list, metadata=about)
    return field(default=default, metadata=about)


def of_group(group: Any) -> dict[str, tuple[Any, Any]]:
    """The options of a group: name -> its annotation for typer, and its default."""
    hints, found = get_type_hints(group, include_extras=True), {}
    for one in dataclasses.fields(group):
        hint = Annotated[hints[one.name], one.metadata["typer"]] if one.metadata else hints[one.name]
        found[one.name] = (hint, [] if one.default is dataclasses.MISSING else one.default)
    return found


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How a model is loaded."""

    precision: str = flag("auto", "auto, fp32 or bf16.")
    device: Device = "auto"

    def load(self, model: str) -> Any:
        """The model in a folder, or under a hub name."""
        from unmask.registry import load

        return load(model, device=self.device, precision=self.precision)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is set: by a file, by --set, and by flags of its own."""

    config: Config = None
    set_: Set = field(default_factory=list)
    steps: Steps = None
    epochs: Epochs = None
    minutes: float | None = flag(None, "Wall clock to spend.")
    seed: RunSeed = None
    resume: Resume = False
    precision: RunPrecision = None
    device: RunDevice = None

    def overrides(self, **more: Any) -> dict[str, Any]:
        """The settings that are given, and `more`."""
        flags = {name: value for name, value in vars(self).items() if name not in ("config", "set_", "resume")}
        return overrides(self.config, self.set_, **flags, **more)
