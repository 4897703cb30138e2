"""The command line as a script runs it, for the tests of all rooms."""

from __future__ import annotations

from typing import Any

import pytest

from unmask.cli import main


def exit_code(*arguments: Any) -> int:
    """Of `unmask ARGUMENTS`."""
    try:
        main([str(a) for a in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `unmask ARGUMENTS`."""
    code = exit_code(*arguments)
    out = capsys.readouterr()
    return code, out.out, out.err
