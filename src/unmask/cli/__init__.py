"""The command line: thin functions that parse, call and print. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BRIEFLY = "3000"
"""Rounds, some 40 microseconds: about as long as one thread is done before the other, and as the next product takes to
come. Of 0 to 30 000 the least that is nearly as quick as 300 000, OpenMP's own, for single texts through MiniLM-L6."""


def wait_briefly() -> None:
    """Threads that share a product wait for each other spinning for a moment, then asleep, unless the environment says
    how they wait.

    OpenMP reads this once, when torch is loaded, so commands set it and importing the library does not. Spinning for
    long costs many times the work where another process has taken a core; never spinning costs short texts, one at a
    time, a third of the speed where none has (`benchmarks/text_busy.py`).
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = BRIEFLY


_written_out = warnings.formatwarning


def _in_one_line(message: Any, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """A warning of this package, or to who calls it, which is typer here, without the place in the code; those of
    others as they are."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]) or Path(filename).parent.name == "typer":
        from unmask.cli.common import printable

        return f"warning: {printable(str(message), sys.stderr)}\n"
    return _written_out(message, category, filename, lineno, line)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP end a command as Ctrl-C does: what it began is cleaned up, and the exit code is 128
    plus the signal's number, so that `pretrain ... && fill ...` does not go on.

    A signal that is ignored (as SIGHUP under nohup) or handled already stays so; a second one acts at once.
    """
    received: list[signal.Signals] = []
    previous: dict[signal.Signals, Any] = {}

    def restore() -> None:
        while previous:
            signal.signal(*previous.popitem())

    def end(number: int, frame: Any) -> None:
        received.append(signal.Signals(number))
        restore()
        raise KeyboardInterrupt

    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    with contextlib.suppress(ValueError):  # outside the main thread Python allows no handlers
        for number in map(signal.Signals.__getitem__, names):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                previous[number] = signal.signal(number, end)
    try:
        of_runs(forget=True)
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        came = received[0] if received else of_runs()
        from unmask.cli.common import Stopped, left_behind

        if came is None or isinstance(stop, Stopped):
            raise
        done = isinstance(stop, SystemExit) and not stop.code
        how = "came when all was done but the last lines" if done else f"stopped it; {left_behind()}"
        print(f"unmask: {signal.Signals(came).name} {how}", file=sys.stderr)
        sys.exit(128 + came)
    finally:
        restore()


def of_runs(*, forget: bool = False) -> int | None:
    """The signal that came to a run of this command, which saves before it leaves; None where none came."""
    guards = sys.modules.get("unmask.training.signals")
    if guards is not None and forget:
        guards.SignalGuard.received = None
    return None if guards is None else guards.SignalGuard.received


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A person's mistake is one message on stderr and exit code 2, never a traceback."""
    from unmask.errors import UserError, with_flags

    wait_briefly()
    warnings.formatwarning = _in_one_line
    umask = os.umask(0o077)  # what a command writes may hold rows of patients: it is for its owner alone
    try:
        with ended_by_signals(), with_flags():
            from unmask.cli.app import build
            from unmask.cli.common import shown_for

            with shown_for(sys.argv[1:] if arguments is None else arguments):
                build()(args=arguments, prog_name="unmask")
    except UserError as error:
        from unmask.cli.common import on_stderr

        on_stderr(f"unmask: {error}")
        sys.exit(UserError.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    finally:
        os.umask(umask)
