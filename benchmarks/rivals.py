"""Rivals of the table benchmarks that live in Pythons of their own, because their requirements and ours differ."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np


class PeerError(Exception):
    """A rival in a Python of its own that ended in an error of its own."""


def elsewhere(variable: str, code: str, x: np.ndarray, *arguments: str) -> tuple[np.ndarray, str]:
    """(array, what was printed) of code run by the Python that an environment variable names.

    Args:
        code: its arguments are a file that holds `x`, a file for the resulting array, and `arguments`.

    Raises:
        ModuleNotFoundError: the variable is not set.
        PeerError: the code failed; its last line.
    """
    python = os.environ.get(variable)
    if not python:
        raise ModuleNotFoundError(f"{variable} is not set")
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "x.npy", Path(folder) / "out.npy"
        np.save(source, x)
        command = [python, "-c", code, str(source), str(target), *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise PeerError(done.stderr.strip().splitlines()[-1] if done.stderr else f"exit {done.returncode}")
        return np.load(target), done.stdout
