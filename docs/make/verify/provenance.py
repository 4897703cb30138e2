"""Where, when and by what code a result was measured, and whether that code has changed since."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.version import __version__

PACKAGES = ("torch", "numpy", "scikit-learn", "scipy", "tokenizers")
"""Whose versions may move a figure."""


def root_of(place: str | Path | None = None) -> Path:
    """The root of the checkout that is verified: a given folder, the one above here, or the one this code lies in."""
    here = (
        [Path(place)] if place is not None else [Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[3]]
    )
    for folder in here:
        if (folder / "src" / "unmask").is_dir() and (folder / "docs").is_dir():
            return folder
    raise UserError(
        f"{here[0]}: no checkout of unmask (src/unmask and docs)",
        hint="The figures belong to the pages of the source: run it in a clone, or say --root CLONE.",
    )


def processor() -> dict[str, Any]:
    """Cores, and which of the instructions it has that choose how products are added up."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    name = re.search(r"model name\s*: (.*)", info)
    known = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
    return {
        "cores": os.cpu_count(),
        "model": name.group(1) if name else "",
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "features": [f for f in known if re.search(rf"\b{f}\b", info)],
    }


def about(root: Path, sources: Sequence[str], *, seconds: float, processor_seconds: float) -> dict[str, Any]:
    """What a record keeps of where it comes from."""
    return {
        "version": __version__,
        "commit": _git(root, "rev-parse", "HEAD") or None,
        "changed_since_commit": bool(_git(root, "status", "--porcelain", "--", *sources)),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "sources": list(sources),
        "digest": digest(root, sources),
        "processor": processor(),
        "seconds": round(seconds, 1),
        "processor_seconds": round(processor_seconds, 1),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def digest(root: Path, sources: Iterable[str]) -> str:
    """Hash of all Python files among the sources, names and contents: what has the same one is the same code.

    It is what decides whether a figure is older than its code: unlike a commit it survives a rebase, a squash and a
    copy without history.
    """
    found = hashlib.blake2b(digest_size=16)
    for path in sorted({path for source in sources for path in _files(root, source)}):
        found.update(path.relative_to(root).as_posix().encode())
        found.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return found.hexdigest()


def _files(root: Path, source: str) -> list[Path]:
    place = root / source
    files = [place] if place.is_file() else [*place.rglob("*.py")]
    if not files:
        raise UserError(f"{place}: no source there", hint="Name in docs/make/verify/declared.py what is measured now.")
    return files


def older(root: Path, record_about: dict[str, Any], sources: Sequence[str]) -> str:
    """What has changed in the code that a record measured, in words; "" where nothing has."""
    if record_about.get("digest") == digest(root, sources):
        return ""
    commit = str(record_about.get("commit") or "")
    log = _git(root, "log", "--oneline", f"{commit}..HEAD", "--", *sources) if commit else ""
    count = len(log.splitlines())
    if count:
        return f"{count} commit{'s' * (count != 1)} to the code it measured since {commit[:9]}"
    return "the code it measured has changed"


def changed_since(root: Path, commit: str, sources: Sequence[str]) -> str:
    """How many commits have touched sources since one of them, in words; "" where none has.

    It is what is left for a figure whose file does not know the hash of the code.
    """
    if not _git(root, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"):
        return f"how much older is not known: no commit {commit[:9]} in this history"
    count = len(_git(root, "log", "--oneline", f"{commit}..HEAD", "--", *sources).splitlines())
    return f"{count} commit{'s' * (count != 1)} to the code it measured since {commit[:9]}" if count else ""


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


__all__ = ["about", "changed_since", "digest", "older", "processor", "root_of"]
