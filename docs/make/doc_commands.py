"""The command line as a page: every command of the application, walked as it is built."""

from __future__ import annotations

from typing import Any

from unmask.cli.app import COMMANDS, OWN, build
from unmask.cli.dispatch import command_of, readers_of
from unmask.plugins import resolve
from unmask.registry import MODALITIES, Modality, modalities

INTRODUCTION = """# The command line

`unmask COMMAND --help` prints the same. A command for several kinds of data has a table for each; an option that a
model does not read is refused, not passed over.
"""


def built_in() -> dict[str, Modality]:
    """The modalities of unmask itself, by name."""
    return {name: one for name, one in modalities().items() if name in MODALITIES.built_in}


def command_line() -> str:
    """The page."""
    lines = [INTRODUCTION, "| command | |", "|---|---|"]
    lines += [f"| [`unmask {name}`](#unmask-{name}) | {about} |" for name, about in COMMANDS.items()]
    for name, about in COMMANDS.items():
        lines += ["", f"## unmask {name}", "", about]
        cases = cases_of(name)
        for case, command in cases.items():
            lines += _case(name, case if len(cases) > 1 else "", command)
    return "\n".join(lines) + "\n"


def cases_of(name: str) -> dict[str, Any]:
    """Case (a kind of data, a task) -> the command that reads its options; ready to be asked for its parameters."""
    if name in OWN:
        return {"": command_of(resolve(OWN[name]), name)}
    if name in modalities():
        return {tool: command_of(resolve(run), tool) for tool, run in modalities()[name].tools.items()}
    found: dict[str, Any] = {}
    for one in built_in().values():
        if name in one.commands:
            found |= readers_of(one, name)
    return found


def every_option() -> dict[str, set[str]]:
    """Command -> its options as users write them, `--out` and the like, over all cases. For tests."""
    return {
        name: {o for c in cases_of(name).values() for p in _options(c) for o in (*p.opts, *p.secondary_opts)}
        for name in build().list_commands(None)
        if name in COMMANDS
    }


def _case(name: str, case: str, command: Any) -> list[str]:
    ctx = command.context_class(command, info_name=name)
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = [piece for p in arguments for piece in p.get_usage_pieces(ctx)]
    shown = {"events": f"unmask events {case}", "pretrain": f"unmask pretrain {case}"}.get(name, f"unmask {name}")
    lines = ["", f"### {name} {case}"] if case else []
    lines += ["", "```text", " ".join([shown, *words, "[OPTIONS]"]), "```", ""]
    rows = [row for p in [*arguments, *_options(command)] if (row := p.get_help_record(ctx))]
    return [*lines, "| | |", "|---|---|", *(f"| `{flag}` | {_text(said)} |" for flag, said in rows)] if rows else lines


def _options(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]


def _text(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")
