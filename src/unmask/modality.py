"""What a kind of data brings to unmask: where its model, demo and commands are. They are imported when they are used.

A package announces its `Modality` by an entry point in the group `unmask.modalities` (its own pyproject.toml):

    [project.entry-points."unmask.modalities"]
    dna = "unmask_dna:MODALITY"

`unmask.registry` finds it there. `examples/dna` is a whole one; CONTRIBUTING.md goes through it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Chooser = Callable[[Sequence[str], Mapping[str, str]], str | None]
"""(the words of a command, its options with a value) -> the case at hand; None where the words do not say yet."""


class Model(Protocol):
    """What a loaded model of any modality has. The rest (`fill`, `score`, `impute`, ...) is its modality's own."""

    def inspect(self) -> dict[str, Any]:
        """Size, context and settings."""
        ...

    def __getattr__(self, name: str) -> Any:
        """The uses of its modality."""


def commands_of(module: str, *names: str) -> dict[str, str]:
    """Commands by the names of their functions in a module.

    >>> commands_of("birds.cli", "fill", "score")
    {'fill': 'birds.cli:fill', 'score': 'birds.cli:score'}
    """
    return {name: f"{module}:{name}" for name in names}


STANDARD = commands_of("unmask.cli.standard", "pretrain", "fill", "score", "embed", "evaluate")
"""Commands for a modality that needs no options of its own; `unmask.cli.standard` says what its model must have."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command function, and which of its parameters are not read in this case.

    Args:
        run: "package.module:function", a function with the parameters that typer reads.
        without: names of parameters, parted by blanks, that the command refuses here and its help leaves out.
    """

    run: str
    without: str = ""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of a modality that reads other options in some cases, such as one per task.

    Args:
        cases: name of the case, as help and messages have it -> what runs.
        choose: "package.module:function" of a `Chooser`, whose answer is a name in `cases`.
    """

    cases: Mapping[str, Case]
    choose: str


@dataclass(frozen=True, kw_only=True)
class Modality:
    """A kind of data.

    Args:
        name: what `unmask.json` of its model folders says under "kind", and `unmask pretrain NAME`.
        plural: what models of it are models of, in messages: "models of tables".
        load: "package.module:function", called with (path, device=, precision=) and options of its own: the model in a
            folder. A model has `inspect()`, and the methods that the commands below use.
        demo: "package.module:function", called with (out, seed=) and, where it was given, minutes=; returns figures,
            with "report" (path), "device", "precision" and "lines" (what to tell a person) among them. None: no demo.
        card: "package.module:function", called with (files, run) as `evaluation.card.card_of` has them: the
            `Card` that README.md of a folder and the end of its report are made of. None: a plain one.
        settings: "package.module:class" of a settings dataclass with a field `train` (a `TrainSettings`), and
        pretrain: "package.module:function", called with (data, out, settings=, resume=, console=); for the standard
            `pretrain` command it gives a `training.job.RunResult`.
        finetune: "package.module:function", called with (model, data, out), and
        predict, evaluate: "package.module:function", called with (model, data): the verbs of `unmask` itself. Where one
            is None, a loaded model's method of that name is called, if it has one.
        commands: shared command, such as `unmask fill MODEL` -> "package.module:function" or `Command`.
        tools: commands of its own, `unmask NAME TOOL`.
        serves: "package.module:function", called with (path, limits=) and, where it reads them, device= and precision=;
            returns an `unmask.serving.verbs.Served`: what `unmask serve` answers. None: not served.
        model_types: `model_type` of config.json in folders without unmask.json that are of this modality.
        architectures: how `architecture` begins in config.json of such folders without a model_type, as of timm.
        weights: endings of bare weights files that `load` reads.
        endings: how names of data files end that are of this modality and of no other, as ".txt".
        first: what a person has, as "texts (.txt, .csv)", and the commands to begin with: what `unmask` alone prints.
    """

    name: str
    plural: str
    load: str
    demo: str | None = None
    card: str | None = None
    settings: str | None = None
    pretrain: str | None = None
    finetune: str | None = None
    predict: str | None = None
    evaluate: str | None = None
    commands: Mapping[str, str | Command] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    serves: str | None = None
    model_types: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    first: tuple[str, ...] = ()

    def cases(self, command: str) -> Mapping[str, Case]:
        """The cases of a shared command; a plain function is one of the modality's name; none where there is no such
        command."""
        found = self.commands.get(command)
        if isinstance(found, Command):
            return found.cases
        return {} if found is None else {self.name: Case(run=found)}
