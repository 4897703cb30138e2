"""The command line: one thin module a command (parse, call, print). Nothing heavy is imported before it is needed."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any


def build() -> Any:
    """The Typer application."""
    import typer

    from unmask.cli import (
        adapt,
        augment,
        demo,
        describe,
        embed,
        evaluate,
        events,
        export,
        fill,
        finetune,
        impute,
        inspect,
        predict,
        pretrain,
        recommend,
        score,
        surgery,
        synthesize,
        zeroshot,
    )

    app = typer.Typer(
        name="unmask",
        help="Hide part of the data, predict it back.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    commands = (
        demo, describe, pretrain, adapt, finetune, predict, fill, impute, synthesize, augment, score, embed, evaluate, zeroshot, inspect,
        export, recommend, surgery, events,
    )  # fmt: skip
    for module in commands:
        module.register(app)

    @app.callback(invoke_without_command=True)
    def top(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
        if version:
            from unmask.version import __version__

            print(f"unmask {__version__}")
            raise typer.Exit

    return app


def wait_asleep() -> None:
    """Threads that share a product wait for each other asleep, not spinning, unless the environment says how they wait.

    OpenMP reads this once, when torch is loaded, so commands set it and importing the library does not. Twelve steps of a small
    encoder on two cores beside six other processes per core: 53 s spinning, 2.5 s asleep.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "0"


_written_out = warnings.formatwarning


def _in_one_line(message: Any, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """A warning of this package without the place in its code; those of others as they are."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"warning: {message}\n"
    return _written_out(message, category, filename, lineno, line)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A person's mistake is one message on stderr and exit code 2, never a traceback."""
    from unmask.errors import UserError

    wait_asleep()
    warnings.formatwarning = _in_one_line
    try:
        build()(args=arguments, prog_name="unmask")
    except UserError as error:
        print(f"unmask: {error}", file=sys.stderr)
        sys.exit(UserError.exit_code)
    except BrokenPipeError:
        sys.exit(0)
