"""What every room that writes to disk needs."""

from __future__ import annotations

import os
from pathlib import Path


def fsync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
