"""The application: its commands by name, each made when it is called. `unmask --help` imports no modality."""

from __future__ import annotations

import os
import shlex
import shutil
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from unmask.cli.common import on_stderr
from unmask.cli.dispatch import Dispatch, command_of, flags, kind_of_data, read_words
from unmask.errors import UserError, suggest
from unmask.files import check_there
from unmask.plugins import resolve
from unmask.registry import MODALITIES, modalities, modality, names
from unmask.remote import is_url
from unmask.training.launcher import check_one_process

COMMANDS: Mapping[str, str] = {
    "demo": "Train a small masked model on embedded data in minutes, use it, and write report.html.",
    "describe": "Look at a table or at pictures before a run: what is there, and what wants a decision.",
    "prepare": "Make data of any size ready for pretraining: on all cores or a Ray cluster; run again, it goes on.",
    "pretrain": "Pretrain a masked model from raw data.",
    "adapt": "Continue pretraining on your own text; stops early, watches for forgetting.",
    "finetune": "Fine-tune a model for a task; the folder loads in transformers too.",
    "predict": "Predict with a fine-tuned model.",
    "fill": "Fill what is hidden or missing: blanks of texts, parts of pictures, cells of tables, values of patients.",
    "ask": "How probable is what is to come of patients: questions in words, answered without a label.",
    "generate": "Draw new texts, or rows of a table: all is hidden, and filled in a few slots at a time.",
    "impute": "Fill the missing cells of a table; everything else is written as it was read.",
    "synthesize": "Draw new rows: every cell given those drawn before it, none copied from a real row.",
    "augment": "Add synthetic patients to a stratum of the training data.",
    "score": "Pseudo-log-likelihood of texts, rows or patients' events: the higher, the more natural.",
    "embed": "Embed texts, rows, pictures or patients: one vector each, order kept.",
    "evaluate": "Text: loss, perplexity, accuracy on hidden tokens; fine-tuned: its metrics; queries and documents: "
    "retrieval. Pictures: neighbours and linear probe. Tables: synthetic rows beside real.",
    "zeroshot": "Classify texts without training: by an NLI head where the model has one, else by masked prompts.",
    "serve": "Serve models over HTTP: batched, with the dialects that clients speak, and a page to try them by hand.",
    "inspect": "Parameters, context, FLOPs per token, memory by precision.",
    "export": "Write a model for transformers, sentence-transformers or onnxruntime, with the head that it is for.",
    "recommend": "Which family and checkpoint to start from, with the reasons and the memory.",
    "surgery": "Longer positions, a smaller vocabulary, round tables; what the model says stays the same.",
    "events": "Patient events.",
}
"""Name -> help, in the order of `unmask --help`. `events` holds that modality's own commands."""

BY_KIND = ("prepare", "pretrain")
"""Commands whose first word is the kind of data."""

BY_SEVERAL = ("pretrain", "adapt", "finetune")
"""Commands that say themselves whether they run under torchrun; the others would do their work in each process."""

OWN: Mapping[str, str] = {
    "demo": "unmask.cli.serve:demo",
    "serve": "unmask.cli.serve:serve",
    "inspect": "unmask.cli.serve:inspect",
}
"""The commands that are the same for every modality; those of the others are in `Modality.commands`."""


class Lazy(TyperGroup):
    """A group whose commands are made when they are called or listed.

    Args:
        made: name -> the command of that name.
        listed: the names, in the order of its help.
    """

    def __init__(
        self, name: str, help: str, *, made: Callable[[str], Any], listed: Callable[[], list[str]], **more: Any
    ) -> None:
        super().__init__(name=name, help=help, rich_markup_mode=None, **{"no_args_is_help": True} | more)
        self._made, self._listed = made, listed

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As always; of data whose kind is left out, with its kind in front."""
        if self.name in BY_KIND:
            args = self._with_kind(args)
        return super().parse_args(ctx, args)

    def _with_kind(self, args: list[str]) -> list[str]:
        kinds = {kind: self.get_command(None, kind) for kind in self._listed()}
        data = next(iter(read_words(args, flags(kinds), 1)[0]), None)
        if data is None or data in kinds:
            return args
        check_there(data, f"Expected: {', '.join(kinds)}, or data of one of these kinds.", text=True)
        if not (os.path.exists(data) or is_url(data) or data.startswith("hf:")):
            raise UserError(f"{data}: neither a kind of data nor a file or folder", hint=suggest(data, kinds))
        from unmask import verbs

        kind = verbs.kind_of_data(data)
        if kind not in kinds:
            raise UserError(f"{data}: data of kind {kind}", hint=f"unmask {self.name} is for {' and '.join(kinds)}.")
        on_stderr(f"{data} is taken for {kind}: unmask {self.name} {shlex.join([kind, *args])}")
        return [kind, *args]

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of the help."""
        return self._listed()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, made when it is first asked for; None where there is none."""
        if cmd_name not in self._listed():
            return None
        return self.commands.setdefault(cmd_name, self._made(cmd_name))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The commands and what they do, whole: wrapped where click would cut them."""
        helps = ((name, (self.get_command(ctx, name).help or "").partition("\n\n")[0]) for name in self._listed())
        with formatter.section("Commands"):
            formatter.write_dl([(name, " ".join(help.split())) for name, help in helps])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As always; that the closest name is suggested needs all of them."""
        for name in self._listed() if args and args[0] not in self._listed() else ():
            self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


def ways_in() -> list[str]:
    """What `unmask` alone says: where to begin with each kind of data. Commands are lines that can be copied."""
    width = min(shutil.get_terminal_size().columns, 80)
    lines = textwrap.wrap("Hide part of the data, predict it back. What do you have?", width)
    for one in modalities().values():
        for have in one.first[:1]:
            lines += ["", *textwrap.wrap(have[0].upper() + have[1:], width)]
        lines += [f"  {command}" for command in one.first[1:]]
    kinds = ", ".join(name for name, one in modalities().items() if one.demo)
    end = f"Nothing at hand: unmask demo KIND, one of {kinds}. All commands: unmask --help; of one: unmask fill --help."
    return [*lines, "", *textwrap.wrap(end, width)]


def build() -> Lazy:
    """The application."""

    def top(
        context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and exit.")
    ) -> None:
        if version:
            from unmask.version import __version__

            print(f"unmask {__version__}")
            raise typer.Exit
        if context.invoked_subcommand is None:
            print(*ways_in(), sep="\n")

    root = command_of(top, "unmask")
    return Lazy(
        "unmask",
        "Hide part of the data, predict it back.",
        made=_shared,
        listed=lambda: [*COMMANDS, *(name for name in names() if name not in MODALITIES.built_in)],
        invoke_without_command=True,
        no_args_is_help=False,
        callback=root.callback,
        params=root.params,
    )


def _shared(name: str) -> Any:
    """A command of `COMMANDS`, or the group of a modality's own commands."""
    if name not in BY_SEVERAL:
        check_one_process(f"unmask {name}")
    if name in OWN:
        return command_of(resolve(OWN[name]), name)
    if name in BY_KIND:
        return Lazy(
            name,
            COMMANDS[name],
            made=lambda kind: command_of(resolve(modality(kind).cases(name)[kind].run), kind),
            listed=lambda: [n for n, m in modalities().items() if name in m.commands],
        )
    if name == "finetune":
        return Dispatch(name, COMMANDS[name], at=1, heading="finetuning:")
    if name == "describe":
        return Dispatch(name, COMMANDS[name], heading="data of kind", kind=kind_of_data)
    if name == "export":
        return Dispatch(name, COMMANDS[name], heading="--to")
    if name in COMMANDS and name != "events":
        return Dispatch(name, COMMANDS[name])
    return _tools(name)


def _tools(name: str) -> Lazy:
    """The commands of a modality's own: `unmask NAME TOOL`."""

    def made(tool: str) -> TyperCommand:
        return command_of(resolve(modality(name).tools[tool]), tool)

    about = COMMANDS.get(name, f"Commands for {name} alone; pretrain, fill and the other shared ones serve it too.")
    return Lazy(name, about, made=made, listed=lambda: list(modality(name).tools))
