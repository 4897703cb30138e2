"""Other people's packages, put on the path with the metadata that an installer writes; nothing is downloaded."""

from __future__ import annotations

import importlib
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from unmask import plugins, registry

ROOT = Path(__file__).parents[1]


def write_metadata(site: Path, package: str, groups: dict[str, dict[str, str]]) -> None:
    """The `.dist-info` of a package, with its entry points."""
    about = site / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [
        line for group, points in groups.items() for line in (f"[{group}]", *(f"{n} = {v}" for n, v in points.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines))


def install_example(site: Path, name: str) -> None:
    """Install the package in examples/NAME as an installer would: its modules, and the entry points of its
    pyproject.toml."""
    source = ROOT / "examples" / name
    project = tomllib.loads((source / "pyproject.toml").read_text())
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        shutil.copytree(source / package, site / package)
    write_metadata(site, project["project"]["name"], project["project"]["entry-points"])


def forget() -> None:
    """Look for installed packages anew."""
    importlib.invalidate_caches()
    plugins._announced.cache_clear()
    registry._warn.cache_clear()


def on_path(site: Path) -> Iterator[None]:
    """A folder of installed packages on the path, and what it announces, for as long as this generator lives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        before = set(sys.modules)
        forget()
        yield
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(site)):
                del sys.modules[name]
    forget()
