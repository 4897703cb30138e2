"""What every room that writes to disk needs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from unmask.errors import UserError


def split_lines(text: str) -> list[str]:
    """The lines of a text file: parted by LF or CRLF alone.

    `str.splitlines` also parts at form feeds and Unicode separators, which stand inside texts: then the n-th output would
    no longer belong to the n-th line that other tools count.

    >>> split_lines("one\\u2028still one\\r\\n\\nthree\\n")
    ['one\\u2028still one', '', 'three']
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if not lines[-1] else lines


def fsync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def demo_folder(out: str | Path) -> Path:
    """An empty folder for a demo; that of an earlier demo is emptied.

    Raises:
        UserError: `out` exists and is not an earlier demo.
    """
    out = Path(out)
    if out.exists():
        if not (out / "demo.json").exists() and any(out.iterdir()):
            raise UserError(f"{out} exists and is not an earlier demo", hint="Choose another --out.")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / "demo.json").write_text("{}")
    return out
