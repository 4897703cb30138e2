"""Shared commands, such as `unmask fill MODEL ...`: the modality of the model says what runs and what it reads.

Each modality brings a function per command (`Modality.commands`); its signature is the list of what it reads. So
`unmask fill MODEL --help` shows the options for that model, `unmask fill --help` those of all, under their names.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import inspect
import itertools
import mimetypes
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from unmask.cli import options
from unmask.cli.common import Output, Result
from unmask.errors import UserError
from unmask.files import check_place
from unmask.modality import Command, Modality
from unmask.plugins import resolve
from unmask.registry import is_model, kind_of, modalities
from unmask.writing import temporary_folder

Readers = Mapping[str, TyperCommand]
"""Name of a case, as help has it -> the command that reads its options."""


def command_of(function: Callable[..., Any], name: str, without: Iterable[str] = ()) -> TyperCommand:
    """A command from a function with typer's parameters, less those in `without`, which keep their defaults."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(name)(_for_typer(function))
    command: Any = typer.main.get_command(app)
    missing = set(without) - {parameter.name for parameter in command.params}
    if missing:
        raise ValueError(f"{name}: without {', '.join(sorted(missing))}, which {function.__name__} does not have")
    command.params = [parameter for parameter in command.params if parameter.name not in without]
    return command


def _for_typer(function: Callable[..., Any]) -> Callable[..., None]:
    """A command as typer reads it: groups of options are taken apart, behind its own, and a `Result` is printed, for
    which there is --json."""
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, Any] = {
        name: p.annotation for name, p in signature.parameters.items() if dataclasses.is_dataclass(p.annotation)
    }
    shared = {name: found for group in groups.values() for name, found in options.of_group(group).items()}
    if signature.return_annotation is Result and "json_" not in signature.parameters:
        shared["json_"] = options.Json, False
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [p.replace(kind=kind) for name, p in signature.parameters.items() if name not in groups]
    for name, (annotation, default) in shared.items():
        parameters.append(inspect.Parameter(name, kind, annotation=annotation, default=default))

    def run(**given: Any) -> None:
        output = Output(given.get("json_", False), given.get("seed") or 0)
        if "json_" in shared:
            del given["json_"]
        with _rows_on_stdout(given, signature.parameters.get("out"), output.as_json) as place:
            for name, group in groups.items():
                own = [option.name for option in dataclasses.fields(group) if option.name in given]
                given[name] = group(**{option: given.pop(option) for option in own})
            result = function(**given)
            if result is not None and place is not None:
                output.write({}, [line.replace(place, "standard output") for line in result.lines])
        if result is not None and place is None:
            about = {} if result.by is None else {"device": str(result.by.device), "precision": result.by.precision}
            output.write(result.found, result.lines, **about)
        if result is not None and result.code:
            raise typer.Exit(result.code)

    run.__doc__, run.__annotations__ = function.__doc__, {}
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


@contextlib.contextmanager
def _rows_on_stdout(given: dict[str, Any], out: inspect.Parameter | None, as_json: bool) -> Iterator[str | None]:
    """Within, `--out -` is a file, which is printed at the end; all else that is printed goes to stderr.

    Args:
        given: the options, changed in place.
        out: the parameter of that name.

    Yields:
        The file; None where there is no `--out -`.
    """
    rows = out.default if out is not None and isinstance(out.default, options.Rows) else None
    if given.get("out") != "-":
        if rows is not None and not rows.folder and given.get("out") is not None:
            check_place(given["out"])  # before anything is imported to make them
        yield None
        return
    if rows is None:
        raise UserError("--out -: no rows of text are written here", hint="Give the name of a file or folder.")
    if as_json:
        raise UserError("--out - with --json: both go to standard output", hint="Leave one of them out.")
    if several := [name for name in ("draws", "proper") if given.get(name)]:
        raise UserError(
            f"--out - with --{several[0]}: several tables", hint="Give a file's name: F-1.csv, F-2.csv, ..."
        )
    with temporary_folder() as folder, contextlib.redirect_stdout(sys.stderr):
        given["out"] = place = str(Path(folder, f"rows{rows.suffix}"))
        yield place
        written = Path(place).read_bytes()
    sys.stdout.flush()
    sys.stdout.buffer.write(written)


def readers_of(one: Modality, name: str) -> dict[str, TyperCommand]:
    """The cases of a modality's command, ready to read their options."""
    cases = one.cases(name)
    return {label: command_of(resolve(case.run), name, case.without.split()) for label, case in cases.items()}


def kind_of_data(data: str) -> str:
    """The modality that describes data before there is a model: of folders, pictures, arrays and tables of
    files that are pictures 'images', else 'table'."""
    path = Path(data).expanduser()
    arrays = path.name.lower().endswith((".npy", ".npz", ".dcm", ".nii", ".nii.gz")) or "idx" in path.suffixes
    if path.suffix.lower() in (".csv", ".tsv") and _names_pictures(path):
        return "images"
    known = (mimetypes.guess_type(path.name)[0] or "").startswith("image/")
    return "images" if path.is_dir() or arrays or known or "ubyte" in path.name else "table"


_FILES = re.compile("file|filename|file_name|filepath|file_path|path|image|image_path|img|picture", re.IGNORECASE)


def _names_pictures(table: Path) -> bool:
    """Whether a table has a column of files, by its name, and the first of them is a picture that is there."""
    with contextlib.suppress(OSError, ValueError, csv.Error), table.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(itertools.islice(lines, 2), delimiter="\t" if table.suffix.lower() == ".tsv" else ",")
        names, first = next(rows, []), next(rows, [])
        cells = [cell for name, cell in zip(names, first, strict=False) if _FILES.fullmatch(name.strip())]
        return any((table.parent / cell).is_file() and kind_of_data(cell) == "images" for cell in cells)
    return False


class Dispatch(TyperCommand):
    """A shared command: finds the case at hand in its words, and hands over to it.

    Args:
        name: of the command.
        help: its first line stands in `unmask --help`.
        at: which of its words is the model, from 0.
        heading: stands in front of the cases in the headings of its help.
        kind: the modality of that word.
    """

    def __init__(
        self,
        name: str,
        help: str,
        *,
        at: int = 0,
        heading: str = "a model of",
        kind: Callable[[str], str] = kind_of,
    ) -> None:
        super().__init__(name, help=help, rich_markup_mode=None)
        self.at, self.heading, self.kind = at, heading, kind
        self.shown: Readers = {}

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the command that runs; of this one where only its help is asked for."""
        having = {n: m for n, m in modalities().items() if name_of(self) in m.commands}
        readers = {n: readers_of(m, name_of(self)) for n, m in having.items()}
        every = {label: command for some in readers.values() for label, command in some.items()}
        if self.kind is kind_of:
            self._check_order(args, readers, every)
        kind, words = self._kind(args, having, every)
        if kind is not None:
            case = self._case(having[kind], args, readers[kind])
            if case is not None:
                self._refuse(args, case, readers[kind][case], readers)
                return readers[kind][case].make_context(info_name, args, parent=parent, **extra)
            every = readers[kind]
        elif words:  # what is named before the model, such as a task
            every = {label: command for label, command in every.items() if label in words} or every
        self.shown = every
        if "--help" not in args:
            raise UserError(f"unmask {info_name}: too few words", hint=f"unmask {info_name} --help says what it needs.")
        return super().make_context(info_name, ["--help"], parent=parent, **extra)

    def _check_order(self, args: Sequence[str], readers: Mapping[str, Readers], every: Readers) -> None:
        """Refuse words that are not in order: the model where its data belongs, or in front of the task."""
        known = flags(every)
        counts = [len(read_words(args[:end], known)[0]) for end in range(len(args) + 1)]
        places = [place for place in range(len(args)) if counts[place + 1] > counts[place]][: self.at + 2]
        words = [args[place] for place in places]
        if self.at and words and is_model(words[0]) and words[0] not in every:
            task = next(iter(readers[kind_of(words[0])].values())).params[0]
            if len(words) < 2 or words[1] not in every:
                raise UserError(
                    f"no task: {words[0]} is a model",
                    hint=f"unmask {self.name} TASK {shlex.join(args)}, where TASK is {getattr(task, 'help', '')}",
                )
            first, what = 0, f"{words[0]} is a model and stands where the task belongs"
        elif len(words) == self.at + 2 and not is_model(words[-2]) and is_model(words[-1]) and _is_data(words[-2]):
            first, what = self.at, f"{words[-2]} is no model, {words[-1]} is one: they are swapped"
        else:
            return
        given, (one, other) = list(args), places[first : first + 2]
        given[one], given[other] = given[other], given[one]
        raise UserError(what, hint=f"In order: unmask {self.name} {shlex.join(given)}")

    def _kind(
        self, args: Sequence[str], having: Mapping[str, Modality], every: Readers
    ) -> tuple[str | None, list[str]]:
        """The modality that runs, None where the words do not say yet; and the words."""
        if len(having) == 1:
            return next(iter(having)), []  # says itself what is wrong with a model that is not its own
        words, _ = read_words(args, flags(every), self.at + 1)
        if len(words) <= self.at:
            return None, words
        kind = self.kind(words[self.at])
        if kind not in having:
            able = [m.plural for m in having.values()]
            raise UserError(
                f"{words[self.at]}: a model of {modalities()[kind].plural if kind in modalities() else kind}",
                hint=f"`unmask {self.name}` is for models of {', '.join(able[:-1])} and {able[-1]}.",
            )
        return kind, words

    def _case(self, one: Modality, args: Sequence[str], readers: Readers) -> str | None:
        command = one.commands[name_of(self)]
        if not isinstance(command, Command):
            return one.name
        return resolve(command.choose)(*read_words(args, flags(readers)))

    def _refuse(self, args: Sequence[str], case: str, chosen: TyperCommand, readers: Mapping[str, Readers]) -> None:
        """Refuse options that another case reads and this one does not: nothing a person says is passed over."""
        own = flags({case: chosen})
        every = {
            label if label == kind else f"{label} of {kind}": command
            for kind, some in readers.items()
            for label, command in some.items()
        }
        _, given = read_words(args, {name: bool(valued) for name, valued in flags(every).items()} | own)
        for flag in given:
            others = [label for label, command in every.items() if flag in flags({label: command})]
            if flag not in own and others:
                raise UserError(f"{flag}: not read for {case}", hint=f"It is for {', '.join(others)} alone.")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The arguments by the names that the first case gives them."""
        first = [p for command in list(self.shown.values())[:1] for p in command.params]
        arguments = [p for p in first if p.param_type_name == "argument"]
        return [*super().collect_usage_pieces(ctx), *(piece for p in arguments for piece in p.get_usage_pieces(ctx))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """What all cases read first, then what only some read, under their names."""
        records: dict[tuple[str, tuple[str, str]], list[str]] = {}
        for label, command in self.shown.items():
            for parameter in command.get_params(ctx):
                record = parameter.get_help_record(ctx)
                if record is not None:
                    records.setdefault((parameter.param_type_name, record), []).append(label)
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for (kind, record), labels in records.items():
            name = f"{kind.capitalize()}s"
            if len(labels) < len(self.shown):
                name = f"{name} for {self.heading} {', '.join(labels)} alone"
            sections.setdefault(name, []).append(record)
        for name, rows in sorted(sections.items(), key=lambda section: section[0].partition(" ")[0]):  # arguments first
            if rows:
                with formatter.section(name):
                    formatter.write_dl(rows)


def _is_data(word: str) -> bool:
    """Whether a word is certainly data, no name of a model: what is there, or a text."""
    return os.path.exists(os.path.expanduser(word)) or " " in word


def name_of(command: TyperCommand) -> str:
    """The name of a command; all of ours have one."""
    return command.name or ""


def flags(readers: Readers) -> dict[str, bool | None]:
    """Option, such as "--top" -> whether a value follows it; None where the readers differ."""
    found: dict[str, bool | None] = {"--help": False}
    for command in readers.values():
        for parameter in command.params:
            if parameter.param_type_name == "option":
                valued = not (getattr(parameter, "is_flag", False) or getattr(parameter, "count", False))
                for option in (*parameter.opts, *parameter.secondary_opts):
                    found[option] = valued if found.get(option, valued) is valued else None
    return found


def read_words(
    args: Sequence[str], known: Mapping[str, bool | None], most: int | None = None
) -> tuple[list[str], dict[str, str]]:
    """The words (arguments) of a command line and its options, "" for one without a value, before a command has been
    chosen.

    Args:
        known: the `flags` of all that may be.
        most: stop after this many words.
    """
    words: list[str] = []
    options: dict[str, str] = {}
    rest = iter(args)
    for part in rest:
        if most is not None and len(words) >= most:
            break
        if part == "--":
            words += rest
        elif not part.startswith("-") or part == "-":
            words.append(part)
        else:
            option, equals, value = part.partition("=")
            valued = known.get(option, False)
            if valued is None and not equals:
                raise UserError(
                    f"{option} before the model: what it means depends on that", hint="Write it at the end."
                )
            options[option] = next(rest, "") if valued and not equals else value
    return words, options
