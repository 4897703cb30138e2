"""Options that several commands take, with their help, written once; and groups of them.

A group is a dataclass of options. A command has it as one parameter, which `dispatch.command_of` takes apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from unmask.cli.common import overrides


def _seed(seed: int | None) -> int | None:
    from unmask.training.settings import check_seed

    return check_seed(seed)


Model = Annotated[str, typer.Argument(help="Model folder or hub name.")]
Tuned = Annotated[str, typer.Argument(help="Fine-tuned model folder.")]
Validation = Annotated[str | None, typer.Option(help="Held-out labelled data: early stopping, calibration, report.")]
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
Config = Annotated[str | None, typer.Option(help="TOML file of settings.")]
Set = Annotated[list[str], typer.Option("--set", help="key=value, any setting; may be repeated.")]
Steps = Annotated[int | None, typer.Option(help="Optimiser steps.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the data.")]
Minutes = Annotated[float | None, typer.Option(help="Wall clock to spend.")]
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
Precision = Annotated[str, typer.Option(help="auto, fp32 or bf16.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Absent = Annotated[
    str,
    typer.Option(help="Columns that may be lacking, commas between, or any; follow-up time and event always may."),
]
MostUnknown = Annotated[
    float,
    typer.Option(help="Refuse data of whose events a larger share has codes that the model does not know."),
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
Missing = Annotated[list[str], typer.Option(help="A further spelling of a missing value, e.g. -9; may be repeated.")]
Decimal = Annotated[str | None, typer.Option(help="The mark before decimals in the file's numbers: , or .")]
Encoding = Annotated[str | None, typer.Option(help="Of a text file that is not UTF-8, e.g. cp1252.")]
Sheet = Annotated[str | None, typer.Option(help="Of a spreadsheet that has several.")]
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


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How a model is loaded."""

    precision: Precision = "auto"
    device: Device = "auto"

    def load(self, model: str) -> Any:
        """The model in a folder, or under a hub name."""
        from unmask.registry import load

        return load(model, device=self.device, precision=self.precision)


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a run is set: by a file, by --set, and by flags of its own."""

    config: Config = None
    set_: Set = field(default_factory=list)
    steps: Steps = None
    epochs: Epochs = None
    minutes: Minutes = None
    seed: RunSeed = None
    resume: Resume = False
    precision: RunPrecision = None
    device: RunDevice = None

    def overrides(self, **more: Any) -> dict[str, Any]:
        """The settings that are given, and `more`."""
        flags = {name: value for name, value in vars(self).items() if name not in ("config", "set_", "resume")}
        return overrides(self.config, self.set_, **flags, **more)
